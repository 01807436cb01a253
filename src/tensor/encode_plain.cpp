#include "tensor/encode_blocks.h"
#include "tensor/encode_body.h"

namespace millrace::plain {

void encode_blocks(DType dtype, const float* x, const float* importance, std::int64_t count, std::byte* out) {
  encode_any(dtype, x, importance, count, out);
}

}  // namespace millrace::plain
