#include "device/cpu.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

namespace millrace::device {
namespace {

TEST(Isa, NamesGoThereAndBack) {
  for (const Isa isa : {Isa::plain, Isa::avx2, Isa::avx512}) {
    auto parsed = isa_from_name(isa_name(isa));
    ASSERT_TRUE(parsed.ok());
    EXPECT_EQ(*parsed, isa);
  }
  EXPECT_EQ(isa_from_name("sse").status().code(), Code::invalid_argument);
}

#if defined(__x86_64__)
TEST(Isa, AgreesWithTheCompilersDetection) {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  EXPECT_EQ(best_isa(), avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::plain);
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

/// A directory tree that stands for a machine's /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() : path_(std::filesystem::path(MILLRACE_BINARY_DIR) / "cpu_test_root") {
    std::filesystem::remove_all(path_);
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  void write(const std::string& file, const std::string& text) const {
    const std::filesystem::path full = path_ / file;
    std::filesystem::create_directories(full.parent_path());
    std::ofstream(full) << text;
  }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Cgroup, TakesTheTightestOfV2AndItsParents) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/user/app/job\n");
  root.write("sys/fs/cgroup/user/app/job/memory.max", "max\n");
  root.write("sys/fs/cgroup/user/app/memory.max", "1200000000\n");
  root.write("sys/fs/cgroup/user/memory.max", "3000000000\n");
  EXPECT_EQ(cgroup_memory_limit(root.path()), 1200000000u);
}

TEST(Cgroup, ReadsV1AndItsNoLimitValue) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/\n");
  root.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(cgroup_memory_limit(root.path()), UINT64_MAX);
  root.write("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "734003200\n");
  EXPECT_EQ(cgroup_memory_limit(root.path()), 734003200u);
}

TEST(Cgroup, FindsTheLimitAtTheMountWhenThePathIsTheHosts) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/kubepods/pod1/container\n");
  root.write("sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(cgroup_memory_limit(root.path()), 536870912u);
}

TEST(Cgroup, NothingThereMeansNoLimit) {
  const FakeRoot root;
  EXPECT_EQ(cgroup_memory_limit(root.path()), UINT64_MAX);
}

}  // namespace
}  // namespace millrace::device
