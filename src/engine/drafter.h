// Who guesses the next tokens of an answer, so that one pass can verify several of them. A guess costs a row of the
// pass and changes nothing else: what is taken from the pass is what would have been picked without it. Thread-safety:
// the thread that runs the passes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "exec/executor.h"
#include "kv/sequence.h"
#include "text/tokenizer.h"

namespace millrace::engine {

/// Guesses of a request at most, in a pass.
constexpr std::int64_t kMostDrafts = 31;

/// What a drafter is asked for one request.
struct DraftAsk {
  std::uint64_t request = 0;              // a number of its own, until forget()
  std::span<const text::TokenId> tokens;  // prompt and answer so far; what was there at the last ask stays as it was
  std::int64_t expected = 0;              // tokens that the request may come to have, for memory
  std::int64_t most = 0;                  // guesses at most
  /// The model's KV of `tokens`, as far as they are computed; null where nobody has it. A drafter may take room behind
  /// its length and write there; the length stays.
  kv::SequenceState* sequence = nullptr;
  std::vector<text::TokenId> guesses = {};  // [<= most], of the tokens behind `tokens`, in order; empty when asked
  /// Guesses of one level are right about as often as each other: below Drafter::levels().
  int level = 0;
  /// Out: it had to read much of `tokens` first, so that it took longer than its guesses do.
  bool read_prompt = false;
  /// Bench: guesses to be taken in place of its own choices, which are made all the same. Whoever has none to choose
  /// leaves them alone.
  std::span<const text::TokenId> choices = {};
};

/// What a pass computed of one request: rows of tokens that stay, each with a token known behind it.
struct Computed {
  std::uint64_t request = 0;
  std::span<const text::TokenId> tokens;  // prompt and answer so far
  std::int64_t first = 0, rows = 0;       // positions; first + rows < tokens
  std::int64_t first_row = 0;             // of them in the pass
};

class Drafter {
 public:
  virtual ~Drafter() = default;
  /// "ngram", for the log and the counters.
  virtual std::string_view name() const = 0;
  virtual int levels() const { return 1; }
  /// Guessing takes no time worth counting, so that guesses are made also where none is verified: how often they are
  /// right is known then without a row spent on them.
  virtual bool is_free() const = 0;

  /// Fills the guesses of each request that is decoding. Errors (of any code): it guesses no more; nobody's answer
  /// ends for that.
  /// `stop` is asked now and then; true: returns soon, with what guesses there are.
  virtual Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) = 0;
  /// Whether it guesses behind tokens of pictures, too, which are negative (engine/pictures.h).
  virtual bool takes_pictures() const { return false; }
  /// It guesses from the model's final states: passed() is called behind every pass, which brings them.
  virtual bool wants_states() const { return false; }
  /// REQUIRES: the executor's last pass is the one that computed this. Errors: as propose().
  virtual Status passed(std::span<const Computed> /*computed*/, const exec::Executor& /*executor*/) { return {}; }
  /// Of a request's last guesses the pass verified the first `drafted`, and the first `right` of them became part of
  /// the answer.
  virtual void accepted(std::uint64_t request, std::int64_t drafted, std::int64_t right) = 0;
  /// The request has ended: what is kept of it goes.
  virtual void forget(std::uint64_t request) = 0;
};

}  // namespace millrace::engine
