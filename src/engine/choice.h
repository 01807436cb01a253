// Chooses one token from a row of logits: the sampler, the request's constraint and logit bias, and the report with the
// log probability if the request wants it.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "engine/sampler.h"

namespace millrace::engine {

/// A token and the `top` likeliest of a row of logits, [vocab]. `likeliest` holds what the result points to.
TokenChoice token_choice(std::span<const float> logits, text::TokenId id, int top,
                         std::vector<TokenChoice::Candidate>& likeliest);

class Chooser {
 public:
  explicit Chooser(const Request& request);

  /// As Sampler::logits_needed, draw_rule and take_drawn; -1 also where the constraint, the bias or log probabilities
  /// look at all of them.
  std::int64_t logits_needed() const { return needs_all_ ? -1 : sampler_.logits_needed(); }

  /// logits: [vocab]; `history`: prompt and answer so far. The constraint follows along.
  /// Errors: invalid_argument (nothing in the vocabulary keeps the form).
  Expected<text::TokenId> pick(const Request& request, std::span<const float> logits,
                               std::span<const text::TokenId> history);
  kernels::DrawRule draw_rule(std::int64_t ahead) const { return sampler_.draw_rule(ahead); }
  text::TokenId take_drawn(text::TokenId id) { return sampler_.take_drawn(id); }
  /// REQUIRES: logits_needed() is above 0; see Sampler.
  text::TokenId pick_from_largest(std::span<const float> logits, std::span<const text::TokenId> ids) {
    return sampler_.pick_from_largest(logits, ids);
  }
  /// Calls request.on_token for a token that becomes part of the answer. `logits`: those it was chosen from, or empty.
  void tell(const Request& request, std::span<const float> logits, text::TokenId id);

 private:
  std::span<const LogitBias> bias_now(const Request& request, std::span<const text::TokenId> history);

  Sampler sampler_;
  bool needs_all_;
  std::vector<LogitBias> bias_;         // ascending id
  std::vector<LogitBias> bias_now_;     // and what may not be picked now
  std::vector<std::uint32_t> allowed_;  // [ceil(vocab / 32)]
  std::vector<TokenChoice::Candidate> likeliest_;
};

}  // namespace millrace::engine
