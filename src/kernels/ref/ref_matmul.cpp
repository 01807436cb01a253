#include <vector>

#include "kernels/ref/ref.h"
#include "tensor/codec.h"

namespace millrace::kernels::ref {

void matmul(DType dtype, const std::byte* weight, std::int64_t weight_rows, std::int64_t cols, const float* x,
            std::int64_t x_rows, float* y) {
  std::vector<float> w(static_cast<std::size_t>(cols));
  const std::int64_t stride = row_bytes(dtype, cols);
  for (std::int64_t n = 0; n < weight_rows; ++n) {
    decode_row(dtype, weight + n * stride, cols, w.data());
    for (std::int64_t r = 0; r < x_rows; ++r) {
      double sum = 0;
      for (std::int64_t k = 0; k < cols; ++k) {
        sum += static_cast<double>(w[static_cast<std::size_t>(k)]) * static_cast<double>(x[r * cols + k]);
      }
      y[r * weight_rows + n] = static_cast<float>(sum);
    }
  }
}

}  // namespace millrace::kernels::ref
