#include "tensor/encode_blocks.h"

#if defined(__x86_64__)
#include "tensor/encode_body.h"

namespace millrace::avx512 {

void encode_blocks(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out) {
  encode_any(dtype, x, importance, count, out);
}

}  // namespace millrace::avx512

#endif
