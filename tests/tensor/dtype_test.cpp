#include "tensor/dtype.h"

#include <gtest/gtest.h>

namespace millrace {
namespace {

TEST(DType, GeometryIsGgufs) {
  // {name, id, elements, bytes}: what the format's documents say, written out by hand.
  struct Row {
    const char* name;
    std::uint32_t id;
    std::int64_t elements, bytes;
  };
  const Row rows[] = {
      {"F32", 0, 1, 4},         {"F16", 1, 1, 2},        {"Q4_0", 2, 32, 18},      {"Q4_1", 3, 32, 20},
      {"Q5_0", 6, 32, 22},      {"Q5_1", 7, 32, 24},     {"Q8_0", 8, 32, 34},      {"Q2_K", 10, 256, 84},
      {"Q3_K", 11, 256, 110},   {"Q4_K", 12, 256, 144},  {"Q5_K", 13, 256, 176},   {"Q6_K", 14, 256, 210},
      {"IQ2_XXS", 16, 256, 66}, {"IQ2_XS", 17, 256, 74}, {"IQ3_XXS", 18, 256, 98}, {"IQ1_S", 19, 256, 50},
      {"IQ3_S", 21, 256, 110},  {"IQ2_S", 22, 256, 82},  {"IQ1_M", 29, 256, 56},   {"TQ1_0", 34, 256, 54},
      {"TQ2_0", 35, 256, 66},   {"IQ4_NL", 20, 32, 18},  {"IQ4_XS", 23, 256, 136}, {"I8", 24, 1, 1},
      {"I16", 25, 1, 2},        {"I32", 26, 1, 4},       {"I64", 27, 1, 8},        {"F64", 28, 1, 8},
      {"BF16", 30, 1, 2},       {"MXFP4", 39, 32, 17},   {"NVFP4", 40, 64, 36},    {"Q1_0", 41, 128, 18},
      {"Q2_0", 42, 64, 18}};
  ASSERT_EQ(all_dtypes().size(), std::size(rows));
  for (const Row& row : rows) {
    const Expected<DType> dtype = dtype_from_id(row.id);
    ASSERT_TRUE(dtype.ok()) << row.name;
    EXPECT_EQ(info(*dtype).name, row.name);
    EXPECT_EQ(info(*dtype).block_elements, row.elements) << row.name;
    EXPECT_EQ(info(*dtype).block_bytes, row.bytes) << row.name;
    EXPECT_EQ(row_bytes(*dtype, 3 * row.elements), 3 * row.bytes) << row.name;
    EXPECT_EQ(row_bytes(*dtype, 0), 0) << row.name;
  }
}

TEST(DType, NamesInAnyCase) {
  EXPECT_EQ(*dtype_from_name("q4_k"), DType::q4_k);
  EXPECT_EQ(*dtype_from_name("Q4_K"), DType::q4_k);
  EXPECT_EQ(*dtype_from_name("bf16"), DType::bf16);
  for (const DTypeInfo& row : all_dtypes()) EXPECT_EQ(*dtype_from_name(row.name), row.dtype);
}

TEST(DType, UnknownOnesAreNamed) {
  for (const std::uint32_t id : {4u, 5u, 9u, 15u, 31u, 43u, 0xffffffffu}) {
    const Status status = dtype_from_id(id).status();
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().find(std::to_string(id)), std::string::npos) << status.message();
  }
  for (const char* name : {"", "Q4", "Q4_KM", "Q4_K "}) {
    const Status status = dtype_from_name(name).status();
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().find(name), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace millrace
