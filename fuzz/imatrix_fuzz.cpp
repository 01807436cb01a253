// The reader of importance matrices on any bytes: it refuses them in one line or gives numbers that a quantizer may
// use, and never crashes.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>

#include "modelfile/imatrix.h"

namespace {

void check(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  const auto matrix = modelfile::parse_imatrix(std::as_bytes(std::span(data, size)), "fuzz.imatrix");
  if (!matrix.ok()) {
    check(matrix.status().message().find('\n') == std::string::npos);
    return 0;
  }
  for (const auto& [name, entry] : matrix->entries) {
    check(!entry.counts.empty() && entry.sums.size() % entry.counts.size() == 0);
    const auto matrices = static_cast<std::int64_t>(entry.counts.size());
    const auto cols = static_cast<std::int64_t>(entry.sums.size()) / matrices;
    const modelfile::TensorInfo tensor{name, DType::f32, {cols, 1, matrices}, 0, 0, 0};
    const auto weights = modelfile::column_weights(entry, tensor);
    check(weights.ok() && weights->size() == entry.sums.size());
    for (const float weight : *weights) check(weight >= 0);
  }
  return 0;
}
