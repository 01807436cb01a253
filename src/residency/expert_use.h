// A model of how often a mixture's experts are used, and of the hit rate of a number of slots, for predictions. Pure.
//
// A token uses top_k distinct experts of each layer. The i-th most popular of n experts is drawn with weight 1 /
// i^skew, and draws are repeated until k are distinct. Equivalently, give each expert a clock that rings at random with
// its weight as the rate: the first k clocks to ring are such a draw. So a token uses expert i with probability about
//     q_i = 1 - exp(-w_i t),   t such that the sum of all q_i is k.
// A pass of r tokens uses it with probability 1 - (1 - q_i)^r.
//   lfu  the s most popular experts have the slots: a use is a hit with probability (q_1 + ... + q_s) / k.
//   lru  an expert has a slot if one of the last T tokens used it: h_i = 1 - (1 - q_i)^T, T such that the sum of all
//   h_i
//        is s (Che's approximation); a use is a hit with probability sum(q_i h_i) / k. If a pass uses more than s
//        experts, s of them remain.
// If all experts are equally popular (skew 0), both are s / n.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/slot_table.h"

namespace millrace::residency {

/// The skew, from 0 to 8, with which the `slots` most popular experts of a layer have this hit rate; 0 if the hit rate
/// is not above that of uniform use.
double skew_that_meets(double met, double slots, std::int64_t experts, std::int64_t top_k);

class ExpertUse {
 public:
  /// experts: of a layer, of which a token uses top_k; 0 of either: no expert is ever used.
  ExpertUse(std::int64_t experts, std::int64_t top_k, double skew);

  /// The average part of a layer's experts that this many tokens use.
  double touched(double tokens) const;
  /// The part of the experts used by a pass of this many tokens that has slots. slots: the average per layer.
  double met(double slots, double tokens, CachePolicy policy) const;

 private:
  double top_k_ = 0;
  std::vector<double> chosen_;  // q_i, the likeliest first
};

}  // namespace millrace::residency
