#include "app/measure/distribution.h"

#include <algorithm>
#include <cmath>

namespace millrace::measure {
namespace {

constexpr std::int64_t kBlock = 8192;

}  // namespace

double Distributions::sum(std::int64_t size, FunctionRef<double(std::int64_t begin, std::int64_t end)> work) {
  const std::int64_t blocks = (size + kBlock - 1) / kBlock;
  partial_.resize(static_cast<std::size_t>(blocks));
  const auto some = [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t b = first; b < last; ++b)
      partial_[static_cast<std::size_t>(b)] = work(b * kBlock, std::min(size, (b + 1) * kBlock));
  };
  if (pool_ != nullptr && size >= kForThreads)
    pool_->parallel_for(blocks, 1, some);
  else
    some(0, blocks, 0);
  double total = 0;
  for (const double part : partial_) total += part;
  return total;
}

LogSum Distributions::log_sum(std::span<const float> logits) {
  LogSum found;
  const auto top = std::max_element(logits.begin(), logits.end());
  found.largest = *top;
  found.top = static_cast<std::int32_t>(top - logits.begin());
  const double total = sum(std::ssize(logits), [&](std::int64_t begin, std::int64_t end) {
    double part = 0;
    for (std::int64_t i = begin; i < end; ++i)
      part += std::exp(static_cast<double>(logits[static_cast<std::size_t>(i)]) - found.largest);
    return part;
  });
  found.log_sum = std::log(total);
  return found;
}

double Distributions::divergence(std::span<const float> log_p, std::span<const float> logits, const LogSum& q) {
  return sum(std::ssize(logits), [&](std::int64_t begin, std::int64_t end) {
    double part = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      const double of_p = log_p[static_cast<std::size_t>(i)];
      const double of_q = q.log_probability(logits[static_cast<std::size_t>(i)]);
      const double p = std::exp(of_p);
      part += p * (of_p - of_q) - p + std::exp(of_q);
    }
    return part;
  });
}

}  // namespace millrace::measure
