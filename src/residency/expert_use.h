// How often a mixture's experts are called for, and what of that a number of slots meets: what predictions go by. Pure.
//
// A token calls for top_k distinct experts of each layer. Its i-th favourite of n is drawn with weight 1 / i^skew, and
// draws are repeated until k are distinct. With clocks that ring at random, each at its weight's rate, the first k to
// have rung are such a draw; so expert i is a token's with probability about
//     q_i = 1 - exp(-w_i t),   t such that the sum of all q_i is k.
// A pass of r tokens calls for it with probability 1 - (1 - q_i)^r.
//   favourites (lfu)  the experts with slots are the first s: a use is met with probability (q_1 + ... + q_s) / k.
//   lately used (lru) an expert is there if one of the last T tokens used it: h_i = 1 - (1 - q_i)^T, T such that the
//                     sum of all h_i is s (Che's approximation); a use is met with probability sum(q_i h_i) / k. Where
//                     a pass touches more than s experts, s of these are left.
// Where all are alike (skew 0) both are s / n.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/slot_table.h"

namespace millrace::residency {

/// The skew with which the `slots` likeliest experts of a layer meet so large a part of the uses (from 0 to 8); 0 where
/// they meet no more than any others would.
double skew_that_meets(double met, double slots, std::int64_t experts, std::int64_t top_k);

class ExpertUse {
 public:
  /// experts of a layer, of which a token uses top_k; none of either: there is nothing to meet.
  ExpertUse(std::int64_t experts, std::int64_t top_k, double skew);

  /// Of a layer's experts, the part that so many tokens touch, on average.
  double touched(double tokens) const;
  /// Of the experts that a pass of so many tokens touches, the part that has slots. slots: of a layer, on average.
  double met(double slots, double tokens, CachePolicy policy) const;

 private:
  double top_k_ = 0;
  std::vector<double> chosen_;  // q_i, the likeliest first
};

}  // namespace millrace::residency
