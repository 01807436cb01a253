// The interface of drafters, which guess the next tokens of an answer so that one pass can verify several of them. A
// guess costs one row of the pass and changes nothing else: the tokens are those that would be sampled without it.
// Thread-safety: the thread that runs the passes.
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

/// The most guesses of a request in a pass.
constexpr std::int64_t kMostDrafts = 31;

/// A request for guesses, and the drafter's reply.
struct DraftAsk {
  std::uint64_t request = 0;              // a number of its own, until forget()
  std::span<const text::TokenId> tokens;  // prompt and answer so far; what was there at the last ask stays as it was
  std::int64_t expected = 0;              // tokens that the request may come to have, for memory
  std::int64_t most = 0;                  // guesses at most
  /// The model's KV of `tokens`, as far as they are computed; null if there is none. A drafter may reserve room after
  /// its length and write there; the length must not change.
  kv::SequenceState* sequence = nullptr;
  std::vector<text::TokenId> guesses = {};  // [<= most], of the tokens behind `tokens`, in order; empty when asked
  /// The confidence level of the guesses, below Drafter::levels(): guesses of one level are right about equally often.
  int level = 0;
  /// Out: the drafter had to process many of `tokens` first, so that it took longer than usual.
  bool read_prompt = false;
  /// Bench: guesses to be taken in place of its own choices, which are made all the same. Whoever has none to choose
  /// leaves them alone.
  std::span<const text::TokenId> choices = {};
};

/// The rows of one request that a pass computed: rows of accepted tokens, each with a known next token.
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
  /// Whether guessing takes negligible time, so that it also guesses when no guess is verified: the rate of right
  /// guesses is then known without spending rows on them.
  virtual bool is_free() const = 0;

  /// Fills in the guesses of each decoding request. After an error (of any code) the drafter is not used any more; no
  /// answer ends because of it. `stop` is polled; true: returns soon, with the guesses so far.
  virtual Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) = 0;
  /// Whether it also guesses after tokens of pictures, which are negative (engine/pictures.h).
  virtual bool takes_pictures() const { return false; }
  /// Whether it guesses from the model's final states: passed() is then called after every pass, which provides them.
  virtual bool wants_states() const { return false; }
  /// REQUIRES: the executor's last pass is the one that computed this. Errors: as propose().
  virtual Status passed(std::span<const Computed> /*computed*/, const exec::Executor& /*executor*/) { return {}; }
  /// Reports that the pass verified the first `drafted` of a request's last guesses, and that the first `right` of them
  /// became part of the answer.
  virtual void accepted(std::uint64_t request, std::int64_t drafted, std::int64_t right) = 0;
  /// Frees what is kept of a request, which has ended.
  virtual void forget(std::uint64_t request) = 0;
};

}  // namespace millrace::engine
