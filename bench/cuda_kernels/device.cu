#include <type_traits>

#include "cuda_kernels/device.h"

namespace millrace::bench {
namespace {

constexpr int kThreads = 256, kBlocks = 1024;

__device__ std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

__global__ void fill_floats_kernel(float* to, std::size_t count) {
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::size_t{kBlocks} * kThreads)
    to[i] = static_cast<float>(static_cast<std::int64_t>(mixed(i) >> 40) - (1 << 23)) / static_cast<float>(1 << 23);
}

__global__ void fill_weights_kernel(std::uint64_t* to, std::size_t count) {
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::size_t{kBlocks} * kThreads)
    to[i] = (mixed(i) & 0x877f877f877f877fULL) | 0x1040104010401040ULL;
}

__global__ void read_all_kernel(const uint4* from, std::size_t count) {
  unsigned all = 1;
  for (std::size_t i = std::size_t{blockIdx.x} * kThreads + threadIdx.x; i < count;
       i += std::size_t{kBlocks} * kThreads) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from + i));
    all |= v.x | v.y | v.z | v.w;
  }
  if (all == 0) __trap();  // never: so that the compiler keeps what was read
}

// --- The tensor cores ---

constexpr int kProductThreads = 256;  // two warpgroups
constexpr int kRounds = 4096;

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// A round: four products of a warpgroup, m64 n256, over 128 bytes of each row.
constexpr int kRowBytes = 128, kARows = 64, kBRows = 256;

__device__ std::uint64_t operand(std::uint32_t address) {
  constexpr std::uint64_t kRowsOfEight = (8 * kRowBytes) >> 4, kSwizzle128 = 1;
  return (address & 0x3ffff) >> 4 | std::uint64_t{1} << 16 | kRowsOfEight << 32 | kSwizzle128 << 62;
}

#define MR_D(c, n) c(d[n]), c(d[n + 1]), c(d[n + 2]), c(d[n + 3]), c(d[n + 4]), c(d[n + 5]), c(d[n + 6]), c(d[n + 7])
#define MR_ALL_D(c)                                                                                                  \
  MR_D(c, 0), MR_D(c, 8), MR_D(c, 16), MR_D(c, 24), MR_D(c, 32), MR_D(c, 40), MR_D(c, 48), MR_D(c, 56), MR_D(c, 64), \
      MR_D(c, 72), MR_D(c, 80), MR_D(c, 88), MR_D(c, 96), MR_D(c, 104), MR_D(c, 112), MR_D(c, 120)
#define MR_NAMES                                                                                                    \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "  \
  "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, "  \
  "%68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, "  \
  "%90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, "  \
  "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}"

__device__ void multiply(float (&d)[128], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 " MR_NAMES ", %128, %129, 1, 1, 1, 0, 0;"
               : MR_ALL_D("+f")
               : "l"(a), "l"(b));
}
__device__ void multiply(int (&d)[128], std::uint64_t a, std::uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n256k32.s32.s8.s8 " MR_NAMES ", %128, %129, 1;"
               : MR_ALL_D("+r")
               : "l"(a), "l"(b));
}
#undef MR_D
#undef MR_ALL_D
#undef MR_NAMES
constexpr double kRoundMacBytes = 2.0 * kARows * kBRows * kRowBytes;  // of a block; divided by an element's bytes
#else
// A round: eight products of a warp, m16 n8, over 32 bytes of each row.
constexpr int kTiles = 8;
__device__ void multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ void multiply(int (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
constexpr double kRoundMacBytes = 8.0 * kTiles * 16 * 8 * 32;
#endif

/// T: of the sums.
template <typename T>
__global__ void __launch_bounds__(kProductThreads, 1) multiply_kernel(int rounds, double* operations) {
  constexpr int kElementBytes = std::is_same_v<T, float> ? 2 : 1;
  const double made = 2.0 * rounds * kRoundMacBytes / kElementBytes;
  if (blockIdx.x == 0 && threadIdx.x == 0) *operations = made;
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ __align__(1024) std::uint64_t memory[(2 * kARows + kBRows) * kRowBytes / 8];
  for (int i = static_cast<int>(threadIdx.x); i < (2 * kARows + kBRows) * kRowBytes / 8; i += kProductThreads)
    memory[i] = (mixed(static_cast<std::uint64_t>(i)) & 0x80ff80ff80ff80ffULL) | 0x3f003f003f003f00ULL;  // about 1
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
  const std::uint32_t a = base + threadIdx.x / 128 * kARows * kRowBytes, b = base + 2 * kARows * kRowBytes;
  T d[128] = {};
  for (int round = 0; round < rounds; ++round) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    for (int k = 0; k < 4; ++k) multiply(d, operand(a + 32 * k), operand(b + 32 * k));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  T all = 0;
  for (int i = 0; i < 128; ++i) all += d[i];
#else
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = (static_cast<unsigned>(mixed(threadIdx.x * 4 + i)) & 0x80ff80ffu) | 0x3f003f00u;
  for (int i = 0; i < 2; ++i) b[i] = (static_cast<unsigned>(mixed(threadIdx.x * 2 + i)) & 0x80ff80ffu) | 0x3f003f00u;
  T d[kTiles][4] = {};
  for (int round = 0; round < rounds; ++round)
    for (int t = 0; t < kTiles; ++t) multiply(d[t], a, b);
  T all = 0;
  for (int t = 0; t < kTiles; ++t)
    for (int i = 0; i < 4; ++i) all += d[t][i];
#endif
  if (all == static_cast<T>(12345)) *operations = made;  // so that the compiler keeps the sums
}

}  // namespace

cudaError_t fill_floats(float* to, std::size_t count, cudaStream_t stream) {
  fill_floats_kernel<<<kBlocks, kThreads, 0, stream>>>(to, count);
  return cudaGetLastError();
}

cudaError_t fill_weights(std::byte* to, std::size_t bytes, cudaStream_t stream) {
  fill_weights_kernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<std::uint64_t*>(to), bytes / 8);
  return cudaGetLastError();
}

cudaError_t read_all(const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  read_all_kernel<<<kBlocks, kThreads, 0, stream>>>(reinterpret_cast<const uint4*>(from), bytes / sizeof(uint4));
  return cudaGetLastError();
}

cudaError_t multiply_all(Operands operands, int multiprocessors, double* operations, cudaStream_t stream) {
  if (operands == Operands::bf16)
    multiply_kernel<float><<<multiprocessors, kProductThreads, 0, stream>>>(kRounds, operations);
  else
    multiply_kernel<int><<<multiprocessors, kProductThreads, 0, stream>>>(kRounds, operations);
  return cudaGetLastError();
}

}  // namespace millrace::bench
