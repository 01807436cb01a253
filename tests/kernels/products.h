// What tests of products on the CPU share: random weights and activations, memory that ends where nothing may be
// touched, and a comparison by bits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "fenced_memory.h"
#include "kernels/cpu/matmul.h"
#include "tensor/block_fields.h"
#include "tensor/codec.h"

namespace millrace::kernels::test {

using device::Isa;
using Rng = std::mt19937;

inline std::vector<Isa> vector_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::avx2, Isa::avx_vnni, Isa::avx512}) {
    if (device::has_isa(isa)) isas.push_back(isa);
  }
  return isas;
}

inline std::vector<DType> computable_dtypes() {
  std::vector<DType> dtypes;
  for (const DTypeInfo& entry : all_dtypes()) {
    if (entry.computable) dtypes.push_back(entry.dtype);
  }
  return dtypes;
}

using millrace::test::Fenced;
enum class Fill { random, extreme };

/// Random blocks: every bit pattern of the quants and of the small scales, float16 scales of sane size. Extreme: bytes
/// of all ones, all zeros and lone sign bits, where saturating instructions would show.
inline void fill_weights(DType dtype, std::int64_t rows, std::int64_t cols, Fill fill, Rng& rng, std::byte* out) {
  std::normal_distribution<float> normal(0, 1);
  if (!uses_q8(dtype)) {
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t n = 0; n < rows; ++n, out += row_bytes(dtype, cols)) {
      for (float& value : row) value = normal(rng);
      encode_row(dtype, row.data(), cols, out);
    }
    return;
  }
  constexpr unsigned char kExtremes[] = {0x00, 0xff, 0x80, 0x7f, 0x88, 0x77};
  const DTypeInfo& type = info(dtype);
  const std::int64_t blocks = rows * cols / type.block_elements;
  for (std::int64_t b = 0; b < blocks; ++b, out += type.block_bytes) {
    const unsigned char same = kExtremes[rng() % 6];
    for (std::int64_t i = 0; i < type.block_bytes; ++i) {
      out[i] = static_cast<std::byte>(fill == Fill::random ? rng() % 256 : same);
    }
    millrace::test::put_scales(
        dtype, out, [&] { return normal(rng) * 0.1F; }, [&] { return rng() % 20 == 0 ? rng() % 3 : 110 + rng() % 30; });
  }
}

struct Problem {
  DType dtype;
  std::int64_t weight_rows, cols, x_rows, x_source_rows;
  std::vector<std::int32_t> index;  // empty: none
  Fenced weight;
  std::vector<float> x;
  std::vector<std::byte> q8_memory;
  Q8Rows q8;

  Problem(DType type, std::int64_t n, std::int64_t k, std::int64_t rows, bool indexed, Fill fill, Rng& rng)
      : dtype(type),
        weight_rows(n),
        cols(k),
        x_rows(rows),
        x_source_rows(indexed ? rows + 3 : rows),
        weight(static_cast<std::size_t>(n * row_bytes(type, k))),
        x(static_cast<std::size_t>(x_source_rows * k)),
        q8_memory(static_cast<std::size_t>(q8_bytes(x_source_rows, k))) {
    fill_weights(type, n, k, fill, rng, weight.data());
    std::normal_distribution<float> normal(0, 1);
    for (float& value : x) value = fill == Fill::random ? normal(rng) : (rng() % 8 != 0 ? 3.0F : -3.0F);
    for (std::int64_t r = 0; indexed && r < rows; ++r) {
      index.push_back(static_cast<std::int32_t>(rng() % static_cast<unsigned>(x_source_rows)));
    }
    q8 = q8_rows_at(q8_memory.data(), x_source_rows, k);
    if (uses_q8(type)) plain::quantize_q8(x.data(), k, x_source_rows, k, q8);
  }

  MatmulArgs args() const {
    MatmulArgs args;
    args.dtype = dtype;
    args.weight = weight.data();
    args.weight_rows = weight_rows;
    args.cols = cols;
    args.x = x.data();
    args.x_stride = cols;
    args.x_q8 = q8;
    args.x_rows = x_rows;
    args.x_index = index.empty() ? nullptr : index.data();
    return args;
  }
};

/// y [x_rows, weight_rows], computed into a wider matrix whose gaps must stay as they were.
inline std::vector<float> product_of(void (*product)(const MatmulArgs&), std::int64_t (*workspace_bytes)(std::int64_t),
                                     MatmulArgs args) {
  const std::int64_t stride = args.weight_rows + 5;
  std::vector<float> y(static_cast<std::size_t>(args.x_rows * stride), 12345.0F);
  const std::size_t bytes = static_cast<std::size_t>(workspace_bytes(args.cols) + 63) / 64 * 64;
  Fenced workspace(bytes);  // ends on a page boundary, and so it is 64-byte aligned
  std::memset(workspace.data(), 0xa5, bytes);
  args.workspace = workspace.data();
  args.y = y.data();
  args.y_stride = stride;
  product(args);
  std::vector<float> dense;
  for (std::int64_t r = 0; r < args.x_rows; ++r) {
    const float* row = y.data() + r * stride;
    dense.insert(dense.end(), row, row + args.weight_rows);
    for (std::int64_t n = args.weight_rows; n < stride; ++n) EXPECT_EQ(row[n], 12345.0F) << "wrote past its columns";
  }
  return dense;
}

inline void expect_same_bits(const std::vector<float>& expected, const std::vector<float>& actual,
                             const Problem& problem, Isa isa) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    std::uint32_t want, got;
    std::memcpy(&want, &expected[i], sizeof want);
    std::memcpy(&got, &actual[i], sizeof got);
    ASSERT_EQ(want, got) << info(problem.dtype).name << " on " << device::isa_name(isa) << ": x row "
                         << i / static_cast<std::size_t>(problem.weight_rows) << ", weight row "
                         << i % static_cast<std::size_t>(problem.weight_rows) << " of " << problem.weight_rows << " x "
                         << problem.cols << ": " << expected[i] << " and " << actual[i];
  }
}

}  // namespace millrace::kernels::test
