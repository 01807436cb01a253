// The memory limits of cgroups.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "device/cpu.h"

namespace millrace::device {
namespace {

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
