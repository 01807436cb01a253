// What may come next in an answer that has to keep a form, such as JSON of a schema. A constraint follows one answer
// token by token: mask() says which tokens keep the form, accept() takes the one that was picked.
// Thread-safety: one thread; what constraints share is immutable or locks for itself.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "text/tokenizer.h"

namespace millrace::text {

class Constraint {
 public:
  virtual ~Constraint() = default;
  /// Sets every bit: bit i % 32 of bits[i / 32] is 1 where token i may come next. End tokens may come where the text is
  /// whole. REQUIRES: bits.size() >= ceil(vocabulary / 32); bits past the vocabulary are set to 0.
  /// Errors: invalid_argument (the form cannot be followed with bounded work).
  virtual Status mask(std::span<std::uint32_t> bits) = 0;
  /// The token that was picked. An end token changes nothing. Errors: invalid_argument (it does not keep the form).
  virtual Status accept(TokenId id) = 0;
  /// The text is whole and nothing but its end may follow.
  virtual bool done() const = 0;
  /// Memory that it holds now, which grows and shrinks with mask() and accept(); what it shares with the others of its
  /// model comes beside that.
  virtual std::uint64_t bytes() const { return 0; }
  virtual std::uint64_t shared_bytes() const { return 0; }
};

}  // namespace millrace::text
