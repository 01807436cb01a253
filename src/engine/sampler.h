// Picks the next token from logits. Greedy, temperature, top-k, top-p, min-p, typical-p, top-n-sigma, XTC, DRY and
// other penalties, seed. The same logits, options and seed give the same tokens on every machine.
//
// With a top-k, the kept tokens are sorted and drawn from. Without one, nothing is sorted, because sorting a vocabulary
// takes tens of milliseconds (kernels/draw.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/draw.h"
#include "text/tokenizer.h"

namespace millrace::engine {

/// Penalties of tokens that have occurred.
struct PenaltyOptions {
  float repeat = 1.0f;  // 1: off
  float presence = 0, frequency = 0;
  int last_n = 64;  // tokens they look back on; -1: all
};

/// XTC: with a probability, removes the likeliest tokens except the last of them.
struct XtcOptions {
  float probability = 0;   // 0: off
  float threshold = 0.1f;  // above 0.5: off
};

/// Mirostat version 2, which replaces all rules from top-n-sigma to XTC.
struct MirostatOptions {
  bool on = false;
  float tau = 5.0f, eta = 0.1f;  // the surprise it aims at, in bits, and how fast it learns
};

/// DRY: a penalty of a token that grows with the length of the repetition that it would continue.
struct DryOptions {
  float multiplier = 0;  // 0: off
  float base = 1.75f;
  int allowed_length = 2;
  int last_n = -1;                        // tokens it looks back on; -1: as many as it may
  std::vector<text::TokenId> breakers{};  // no repetition reaches across these; ascending
};

struct SamplerOptions {
  float temperature = 0.8f;  // 0: greedy
  int top_k = 40;            // 0: all
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off
  float typical_p = 1.0f;    // 1: off
  float top_n_sigma = 0;     // 0: off
  PenaltyOptions penalties{};
  XtcOptions xtc{};
  MirostatOptions mirostat{};
  DryOptions dry{};
  std::uint64_t seed = 0;  // 0: chosen at random by the app, and told
};

struct LogitBias {
  text::TokenId id = 0;
  float bias = 0;
};

/// Restrictions of one choice beyond the options. Applied first.
struct Shaping {
  std::span<const std::uint32_t> allowed;  // bit i % 32 of [i / 32]: token i may be picked; empty: every token
  std::span<const LogitBias> bias;         // added to the logits; ascending id
};

class Sampler {
 public:
  explicit Sampler(const SamplerOptions& options);
  /// logits: [vocab], read only. `history`: tokens so far, newest last. Order: penalties, DRY, top-n-sigma, top-k,
  /// typical-p, top-p, min-p, XTC, temperature, draw. Ties go to the smaller id. At temperature 0 the penalties and DRY
  /// alone count.
  /// Repeat penalty p: a positive logit is divided by p, another multiplied (CTRL, arXiv:1909.05858); presence and
  /// frequency are subtracted, once and for each occurrence (OpenAI). Top-p keeps the smallest set of the likeliest
  /// tokens that holds the probability (arXiv:1904.09751); min-p drops what has less than that share of the likeliest
  /// one's probability (arXiv:2407.01082). Typical-p keeps the tokens whose surprise is nearest to the entropy, until
  /// they hold the probability (arXiv:2202.00666). Top-n-sigma drops logits that lie more than n standard deviations
  /// below the largest (arXiv:2411.07641). XTC drops, with its probability, all but the least likely of the tokens that
  /// have its threshold's probability. DRY lowers a token that would lengthen a repetition of n >= dry_allowed_length
  /// tokens by multiplier * base ^ (n - dry_allowed_length). Mirostat keeps the tokens whose surprise is at most what
  /// it has learned gives the surprise it aims at (arXiv:2007.14966). A logit that is not a number is never picked.
  /// REQUIRES: logits not empty, shaping allows at least one token.
  text::TokenId pick(std::span<const float> logits, std::span<const text::TokenId> history,
                     const Shaping& shaping = {});

  /// How many of a row's largest logits are enough to choose from; 0: the token drawn from all logits by draw_rule() is
  /// enough; -1: all logits are needed.
  std::int64_t logits_needed() const;
  /// How the pick `ahead` picks from now is drawn from all of a row's logits. REQUIRES: logits_needed() is 0.
  kernels::DrawRule draw_rule(std::int64_t ahead) const;
  /// Takes what was drawn by draw_rule(0).
  text::TokenId take_drawn(text::TokenId id);
  /// The same token as pick() would take, from a row's largest logits in descending order (ties: the smaller id).
  /// REQUIRES: as many as logits_needed() says, or the whole vocabulary.
  text::TokenId pick_from_largest(std::span<const float> logits, std::span<const text::TokenId> ids);

  /// Tokens that DRY looks back on at most: it takes 12 bytes for each.
  static constexpr std::size_t kMostDryTokens = 16384;

  /// Memory a sampler may take for each token of the vocabulary (with top_k 0).
  static constexpr std::uint64_t kBytesPerToken = 12;

 private:
  struct Seen {
    text::TokenId id;
    int count;
  };
  struct Candidate {
    float logit;
    text::TokenId id;
  };
  static_assert(sizeof(Candidate) <= kBytesPerToken && sizeof(float) + sizeof(std::uint64_t) <= kBytesPerToken);
  static bool better(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  }

  bool penalises() const;
  bool filters() const;
  void count_history(std::span<const text::TokenId> history);
  void find_repetitions(std::span<const text::TokenId> history);
  float penalised(float logit, int count) const;
  template <typename Visit>
  void visit_logits(std::span<const float> logits, const Shaping& shaping, Visit visit) const;
  text::TokenId greedy(std::span<const float> logits, const Shaping& shaping) const;
  text::TokenId draw_from_all(std::span<const float> logits, const Shaping& shaping);
  void keep_top_k(std::span<const float> logits, const Shaping& shaping);
  void keep_near_largest(std::span<const float> logits);
  void keep_typical();
  void keep_probable();
  void drop_top_choices();
  text::TokenId draw_by_surprise();
  text::TokenId draw();

  SamplerOptions options_;
  std::uint64_t state_;
  double most_surprise_;        // of mirostat, which learns it
  std::vector<Seen> seen_;      // tokens the penalties apply to, ascending id
  std::vector<LogitBias> dry_;  // what DRY takes from these tokens, ascending id
  std::vector<std::int32_t> repeats_;
  std::vector<Candidate> candidates_;
  std::vector<float> shaped_;           // logits that may be drawn
  std::vector<std::uint64_t> weights_;  // of them
};

}  // namespace millrace::engine
