// Restricts an answer to a form, such as the JSON of a schema. A constraint follows one answer token by token: mask()
// returns the allowed tokens, and accept() takes the sampled one. Thread-safety: one thread; state shared by
// constraints is immutable or has its own lock.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace::text {

class Constraint {
 public:
  virtual ~Constraint() = default;
  /// Writes every bit: bit i % 32 of bits[i / 32] is 1 if token i may come next. End tokens are allowed if the text is
  /// complete. REQUIRES: bits.size() >= ceil(vocabulary / 32); bits past the vocabulary are set to 0. Errors:
  /// invalid_argument (following the form would exceed the limit on work).
  virtual Status mask(std::span<std::uint32_t> bits) = 0;
  /// Takes the sampled token. End tokens have no effect. Errors: invalid_argument (the form does not allow it).
  virtual Status accept(TokenId id) = 0;
  /// True if the text is complete and only its end may follow.
  virtual bool done() const = 0;
  /// The memory that it holds, which changes with mask() and accept(), without the memory shared by constraints of the
  /// same model.
  virtual std::uint64_t bytes() const { return 0; }
  virtual std::uint64_t shared_bytes() const { return 0; }
};

}  // namespace millrace::text
