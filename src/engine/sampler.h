// Picks the next token from logits. Greedy, temperature, top-k, top-p, min-p, penalties, seed.
// The same logits, options and seed give the same tokens on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::engine {

struct SamplerOptions {
  float temperature = 0.8f;   // 0: greedy
  int top_k = 40;             // 0: all
  float top_p = 0.95f;        // 1: off
  float min_p = 0.05f;        // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  float presence_penalty = 0, frequency_penalty = 0;
  int repeat_last_n = 64;     // tokens the penalties look back on; -1: all
  std::uint64_t seed = 0;     // 0: chosen at random by the app, and told
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  /// logits: [vocab], read only. `history`: tokens so far, newest last. Order: penalties, top-k, top-p, min-p,
  /// temperature, draw. Ties go to the smaller id.
  text::TokenId pick(std::span<const float> logits, std::span<const text::TokenId> history);

 private:
  SamplerOptions options_;
  std::uint64_t state_;
  struct Candidate { float logit; text::TokenId id; };
  std::vector<Candidate> candidates_;
};

}  // namespace millrace::engine
