// Data types of weights, numbered as GGUF numbers them, and the geometry of their blocks.
// Source: the GGUF specification's tensor types; block layouts in tensor/blocks.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/status.h"

namespace millrace {

enum class DType : std::uint32_t {  // value = GGUF's type id
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  iq2_xxs = 16,
  iq2_xs = 17,
  iq3_xxs = 18,
  iq1_s = 19,
  iq4_nl = 20,
  iq3_s = 21,
  iq2_s = 22,
  iq4_xs = 23,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  iq1_m = 29,
  bf16 = 30,
  tq1_0 = 34,
  tq2_0 = 35,
  mxfp4 = 39,
  nvfp4 = 40,
  q1_0 = 41,
  q2_0 = 42,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;        // "Q4_K" as GGUF tools print it
  std::int64_t block_elements;  // elements in a block; a row's length is a multiple of it
  std::int64_t block_bytes;
  bool computable;  // can be decoded to float and multiplied (i8..f64 cannot)
};

/// All dtypes above, in ascending id.
std::span<const DTypeInfo> all_dtypes();

/// REQUIRES: a DType of the enum.
const DTypeInfo& info(DType dtype);

/// By GGUF id or by name in any case ("q4_k", "Q4_K", "F16"). Errors: unsupported, naming the id or name.
Expected<DType> dtype_from_id(std::uint32_t id);
Expected<DType> dtype_from_name(std::string_view name);

/// Bytes of a row of `cols` elements. REQUIRES: cols is a multiple of the block's elements.
std::int64_t row_bytes(DType dtype, std::int64_t cols);

}  // namespace millrace
