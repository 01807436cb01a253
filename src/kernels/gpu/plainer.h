// Families of kernels that this process goes without, since a GPU computed wrong by them (exec/gpu/self_test.h):
// plainer kernels do their work, slower and to the same bits, or for prompts to those of generated tokens. Thread-safe.
// Meant to be asked at every launch, and told before the first pass.
#pragma once

#include <atomic>
#include <cstdint>

namespace millrace::kernels::gpu {

enum class Family : std::uint8_t {
  product_tiles,    // matmul() with quantized weights: matvec(), kMatvecRows rows at a time
  prompt_products,  // matmul_prompt(): matmul()
  attention_tiles,  // rows in tiles: row by row
};

namespace internal {
inline std::atomic<unsigned> plainer{0};
}  // namespace internal

inline void do_without(Family family) { internal::plainer.fetch_or(1u << static_cast<unsigned>(family)); }
inline void do_with_all() { internal::plainer.store(0); }  // for tests
inline bool does_without(Family family) {
  return (internal::plainer.load(std::memory_order_relaxed) >> static_cast<unsigned>(family) & 1u) != 0;
}

}  // namespace millrace::kernels::gpu
