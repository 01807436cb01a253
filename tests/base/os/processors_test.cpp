#include "base/os/processors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/os/process.h"
#include "base/thread_pool.h"

namespace millrace::os {
namespace {

class CgroupQuotaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() / ("millrace-cgroup-" + std::to_string(process_id()));
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << '\n';
  }
  std::filesystem::path root_;
};

TEST_F(CgroupQuotaTest, NoFilesMeanNoQuota) { EXPECT_EQ(cgroup_cpu_quota("0::/a\n", root_.string()), 0); }

TEST_F(CgroupQuotaTest, Version2TakesTheTightestParent) {
  write("cpu.max", "max 100000");
  write("a/cpu.max", "150000 100000");
  write("a/b/cpu.max", "800000 100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota("0::/a/b\n", root_.string()), 1.5);
  EXPECT_EQ(cgroup_cpu_quota("0::/\n", root_.string()), 0);
}

TEST_F(CgroupQuotaTest, Version1ReadsTheCpuControllerOnly) {
  write("cpu/box/cpu.cfs_quota_us", "200000");
  write("cpu/box/cpu.cfs_period_us", "100000");
  write("cpu/cpu.cfs_quota_us", "-1");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_DOUBLE_EQ(cgroup_cpu_quota("7:memory:/box\n4:cpu,cpuacct:/box\n", root_.string()), 2);
  EXPECT_EQ(cgroup_cpu_quota("7:cpuset:/box\n", root_.string()), 0);
}

TEST_F(CgroupQuotaTest, NonsenseIsNoQuota) {
  write("cpu.max", "fast please");
  EXPECT_EQ(cgroup_cpu_quota("0::/\ngarbage\n:\n", root_.string()), 0);
}

TEST(Processors, AtLeastOneAndWithinTheMask) {
  EXPECT_GE(ThreadPool::usable_processors(), 1);
  EXPECT_LE(ThreadPool::usable_processors(), static_cast<int>(allowed_processors().size()));
}

}  // namespace
}  // namespace millrace::os
