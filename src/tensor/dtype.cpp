#include "tensor/dtype.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "tensor/blocks.h"

namespace millrace {
namespace {

constexpr std::array kDTypes = {
    DTypeInfo{DType::f32, "F32", 1, 4, true},
    DTypeInfo{DType::f16, "F16", 1, 2, true},
    DTypeInfo{DType::q4_0, "Q4_0", kBlock, sizeof(BlockQ4_0), true},
    DTypeInfo{DType::q4_1, "Q4_1", kBlock, sizeof(BlockQ4_1), true},
    DTypeInfo{DType::q5_0, "Q5_0", kBlock, sizeof(BlockQ5_0), true},
    DTypeInfo{DType::q5_1, "Q5_1", kBlock, sizeof(BlockQ5_1), true},
    DTypeInfo{DType::q8_0, "Q8_0", kBlock, sizeof(BlockQ8_0), true},
    DTypeInfo{DType::q2_k, "Q2_K", kSuperBlock, sizeof(BlockQ2_K), true},
    DTypeInfo{DType::q3_k, "Q3_K", kSuperBlock, sizeof(BlockQ3_K), true},
    DTypeInfo{DType::q4_k, "Q4_K", kSuperBlock, sizeof(BlockQ4_K), true},
    DTypeInfo{DType::q5_k, "Q5_K", kSuperBlock, sizeof(BlockQ5_K), true},
    DTypeInfo{DType::q6_k, "Q6_K", kSuperBlock, sizeof(BlockQ6_K), true},
    DTypeInfo{DType::iq2_xxs, "IQ2_XXS", kSuperBlock, sizeof(BlockIQ2_XXS), true},
    DTypeInfo{DType::iq2_xs, "IQ2_XS", kSuperBlock, sizeof(BlockIQ2_XS), true},
    DTypeInfo{DType::iq3_xxs, "IQ3_XXS", kSuperBlock, sizeof(BlockIQ3_XXS), true},
    DTypeInfo{DType::iq1_s, "IQ1_S", kSuperBlock, sizeof(BlockIQ1_S), true},
    DTypeInfo{DType::iq4_nl, "IQ4_NL", kBlock, sizeof(BlockIQ4_NL), true},
    DTypeInfo{DType::iq3_s, "IQ3_S", kSuperBlock, sizeof(BlockIQ3_S), true},
    DTypeInfo{DType::iq2_s, "IQ2_S", kSuperBlock, sizeof(BlockIQ2_S), true},
    DTypeInfo{DType::iq4_xs, "IQ4_XS", kSuperBlock, sizeof(BlockIQ4_XS), true},
    DTypeInfo{DType::i8, "I8", 1, 1, false},
    DTypeInfo{DType::i16, "I16", 1, 2, false},
    DTypeInfo{DType::i32, "I32", 1, 4, false},
    DTypeInfo{DType::i64, "I64", 1, 8, false},
    DTypeInfo{DType::f64, "F64", 1, 8, false},
    DTypeInfo{DType::iq1_m, "IQ1_M", kSuperBlock, sizeof(BlockIQ1_M), true},
    DTypeInfo{DType::bf16, "BF16", 1, 2, true},
    DTypeInfo{DType::tq1_0, "TQ1_0", kSuperBlock, sizeof(BlockTQ1_0), true},
    DTypeInfo{DType::tq2_0, "TQ2_0", kSuperBlock, sizeof(BlockTQ2_0), true},
    DTypeInfo{DType::mxfp4, "MXFP4", kBlock, sizeof(BlockMXFP4), true},
    DTypeInfo{DType::nvfp4, "NVFP4", kNvfp4Block, sizeof(BlockNVFP4), true},
    DTypeInfo{DType::q1_0, "Q1_0", kBlockQ1_0, sizeof(BlockQ1_0), true},
    DTypeInfo{DType::q2_0, "Q2_0", kBlockQ2_0, sizeof(BlockQ2_0), true},
};

static_assert(std::is_sorted(kDTypes.begin(), kDTypes.end(),
                             [](const DTypeInfo& a, const DTypeInfo& b) { return a.dtype < b.dtype; }));

const DTypeInfo* find_id(std::uint32_t id) {
  for (const DTypeInfo& row : kDTypes) {
    if (static_cast<std::uint32_t>(row.dtype) == id) return &row;
  }
  return nullptr;
}

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::toupper(static_cast<unsigned char>(x)) == std::toupper(static_cast<unsigned char>(y));
  });
}

}  // namespace

std::span<const DTypeInfo> all_dtypes() { return kDTypes; }

const DTypeInfo& info(DType dtype) {
  const DTypeInfo* found = find_id(static_cast<std::uint32_t>(dtype));
  MR_ASSERT(found != nullptr);
  return *found;
}

Expected<DType> dtype_from_id(std::uint32_t id) {
  if (const DTypeInfo* found = find_id(id)) return found->dtype;
  return error(Code::unsupported, "tensor type {} is not one that this version reads", id);
}

Expected<DType> dtype_from_name(std::string_view name) {
  for (const DTypeInfo& row : kDTypes) {
    if (same_letters(row.name, name)) return row.dtype;
  }
  return error(Code::unsupported, "tensor type \"{}\" is not one that this version knows", name);
}

std::int64_t row_bytes(DType dtype, std::int64_t cols) {
  const DTypeInfo& type = info(dtype);
  MR_ASSERT(cols >= 0 && cols % type.block_elements == 0);
  return cols / type.block_elements * type.block_bytes;
}

}  // namespace millrace
