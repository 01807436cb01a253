// A cache of latents in device memory, and the rows of a pass, for tests of kernels that read them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cuda/on_device.h"
#include "kernels/cuda/launchers.h"
#include "tensor/codec.h"

namespace millrace::test {

constexpr int kBlockTokens = 64;

/// A cache of one layer in device memory, and rows at positions of their own in sequences.
class Cache {
 public:
  Cache(DType dtype, int dim, int sequences, int tokens)
      : dtype_(dtype),
        dim_(dim),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        memory_(static_cast<std::size_t>(sequences) * blocks_ * block_bytes()) {
    std::vector<const std::byte*> table;
    for (int b = 0; b < sequences * blocks_; ++b) table.push_back(memory_.at_bytes() + b * block_bytes());
    table_.emplace(table);
  }
  kernels::gpu::KvView view() const {
    kernels::gpu::KvView view;
    view.blocks.table = table_->get();
    view.max_blocks = blocks_;
    view.blocks.head_bytes = static_cast<std::int64_t>(block_bytes());
    view.dtype = dtype_;
    view.kv_heads = 1;
    view.head_dim = dim_;
    return view;
  }
  /// Encodes the latents [tokens, dim] of a sequence, and makes of them what the cache's format does.
  void put(int sequence, std::vector<float>& latents) {
    std::vector<std::byte> all = memory_.host();
    for (int t = 0; t < static_cast<int>(latents.size()) / dim_; ++t) {
      const std::vector<std::byte> row = encoded(latents.data() + t * dim_);
      decode_row(dtype_, row.data(), dim_, latents.data() + t * dim_);
      scatter(all.data() + block_at(sequence, t), t % kBlockTokens, row);
    }
    memory_.put(all);
  }
  /// The bytes of a token's latent as encode_row gives them.
  std::vector<std::byte> get(int sequence, int token) const {
    const std::vector<std::byte> all = memory_.host();
    std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(dtype_, dim_)));
    for_pieces(token % kBlockTokens, [&](std::size_t in_block, std::size_t in_row, std::size_t count) {
      std::copy_n(all.begin() + static_cast<std::ptrdiff_t>(block_at(sequence, token) + in_block), count,
                  row.begin() + static_cast<std::ptrdiff_t>(in_row));
    });
    return row;
  }
  std::vector<std::byte> encoded(const float* latent) const {
    std::vector<std::byte> row(static_cast<std::size_t>(row_bytes(dtype_, dim_)));
    encode_row(dtype_, latent, dim_, row.data());
    return row;
  }

 private:
  std::size_t block_bytes() const { return static_cast<std::size_t>(row_bytes(dtype_, dim_) * kBlockTokens); }
  std::size_t block_at(int sequence, int token) const {
    return static_cast<std::size_t>(sequence * blocks_ + token / kBlockTokens) * block_bytes();
  }
  /// Calls with (offset in a block, offset in an encoded row, bytes).
  template <typename Each>
  void for_pieces(int slot, Each each) const {
    const auto dim = static_cast<std::size_t>(dim_), at = static_cast<std::size_t>(slot);
    if (dtype_ != DType::q8_0) {
      const auto row = static_cast<std::size_t>(row_bytes(dtype_, dim_));
      return each(at * row, 0, row);
    }
    for (std::size_t g = 0; g < dim / 32; ++g) {
      each(at * dim + g * 32, g * 34 + 2, 32);
      each(kBlockTokens * dim + (at * (dim / 32) + g) * 2, g * 34, 2);
    }
  }
  void scatter(std::byte* block, int slot, const std::vector<std::byte>& row) const {
    for_pieces(slot, [&](std::size_t in_block, std::size_t in_row, std::size_t count) {
      std::copy_n(row.begin() + static_cast<std::ptrdiff_t>(in_row), count, block + in_block);
    });
  }

  DType dtype_;
  int dim_, blocks_;
  Array<std::byte> memory_;
  std::optional<Array<const std::byte*>> table_;
};

/// Rows of a pass in device memory.
struct PassRows {
  PassRows(std::vector<std::int32_t> sequences, std::vector<std::int32_t> positions)
      : sequence(sequences), position(positions), count(static_cast<std::int32_t>(positions.size())) {}
  kernels::gpu::RowView view() const { return {count, nullptr, sequence.get(), position.get()}; }
  Array<std::int32_t> sequence, position;
  std::int32_t count;
};

}  // namespace millrace::test
