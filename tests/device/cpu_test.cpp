#include "device/cpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace millrace::device {
namespace {

TEST(Isa, NamesGoThereAndBack) {
  for (const Isa isa : kIsas) {
    auto parsed = isa_from_name(isa_name(isa));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, isa);
  }
  EXPECT_EQ(isa_from_name("sse").status().code(), Code::invalid_argument);
}

#if defined(__x86_64__)
TEST(Isa, AgreesWithTheCompilersDetection) {
  // Clang 14 does not know "f16c", which every processor with AVX2 has.
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  EXPECT_EQ(has_isa(Isa::avx2), avx2);
  EXPECT_EQ(has_isa(Isa::avx512), avx512);
  EXPECT_EQ(best_isa(), avx512 ? Isa::avx512 : has_isa(Isa::avx_vnni) ? Isa::avx_vnni : avx2 ? Isa::avx2 : Isa::plain);
}
#endif

TEST(Memory, IsPlausible) {
  const MemoryLimits limits = memory_limits();
  EXPECT_GT(limits.total_bytes, 64u << 20);
  EXPECT_GT(limits.available_bytes, 0u);
  EXPECT_LE(limits.available_bytes, limits.total_bytes);
  EXPECT_GT(limits.cgroup_bytes, 1u << 20);
  EXPECT_GT(resident_bytes(), 0u);
  EXPECT_FALSE(cpu_model_name().empty());
}

TEST(Memory, LetsGoOfCodeAndGoesOn) {
  const std::string before = cpu_model_name();
  const std::uint64_t all = resident_bytes();
  release_code_pages();
  EXPECT_LT(resident_bytes() + (1 << 20), all);
  EXPECT_EQ(cpu_model_name(), before);
}

}  // namespace
}  // namespace millrace::device
