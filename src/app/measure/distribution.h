// What a row of logits says of the token to come, and how two such rows differ. Sums are made in double, block after
// block in ascending order, so that neither threads nor who else is in a pass changes a bit.
// Thread-safety: one thread calls; the pool, where there is one, is that thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/thread_pool.h"

namespace millrace::measure {

/// log softmax(logits)[i] is logits[i] - largest - log_sum.
struct LogSum {
  float largest = 0;
  double log_sum = 0;    // of exp(logits - largest): not negative
  std::int32_t top = 0;  // the first of the largest
  double log_probability(float logit) const { return static_cast<double>(logit) - largest - log_sum; }
};

class Distributions {
 public:
  /// Rows of fewer than so many logits are not worth waking threads for.
  static constexpr std::int64_t kForThreads = 32768;
  /// `pool` may be null.
  explicit Distributions(ThreadPool* pool) : pool_(pool) {}

  /// REQUIRES: logits are finite, and there are some.
  LogSum log_sum(std::span<const float> logits);

  /// KL(P || Q) in nats, of P by its log-probabilities and Q by its logits: the sum of p (log p - log q) - p + q, whose
  /// terms are none of them negative, and in which errors of log p (it may come from 16 bits) count only as far as the
  /// two differ.
  double divergence(std::span<const float> log_p, std::span<const float> logits, const LogSum& q);

 private:
  /// The sum of work(begin, end) over blocks.
  double sum(std::int64_t size, FunctionRef<double(std::int64_t begin, std::int64_t end)> work);

  ThreadPool* pool_;
  std::vector<double> partial_;
};

}  // namespace millrace::measure
