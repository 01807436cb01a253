#include "residency/brief.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "device/cpu.h"
#include "device/gpu.h"
#include "environment.h"
#include "kernels/kernels.h"
#include "residency/calibrate.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

class BriefTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    millrace::test::set_variable("XDG_CACHE_HOME", folder_.string().c_str());
    std::ofstream file(model_, std::ios::binary);
    const std::string block(1 << 20, 'w');
    for (int i = 0; i < 64; ++i) file << block;
  }
  void TearDown() override {
    fs::remove_all(folder_);
    millrace::test::unset_variable("XDG_CACHE_HOME");
  }
  BriefOptions options() const {
    BriefOptions options;
    options.weights = {{DType::f32, 1e3, 1e3}, {DType::q4_k, 2e8, 4e8}, {DType::q6_k, 2e8, 3e8}};
    options.model_bytes = 64u << 20;
    options.paths = {model_.string()};
    options.kernels = &kernels::table(device::best_isa());
    options.threads = 2;
    options.host_bytes = 256u << 20;
    return options;
  }
  const fs::path folder_ = fs::path(MILLRACE_BINARY_DIR) / "brief_test_cache";
  const fs::path model_ = folder_ / "model.gguf";
};

TEST_F(BriefTest, MeasuresWhatThePlanLacksAndNothingElse) {
  const BriefOptions brief = options();
  ASSERT_TRUE(lacks_rates({}, brief));
  const auto measured = measure_briefly({}, brief);
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_TRUE(measured->brief);
  EXPECT_GT(measured->disk, 1e6);
  EXPECT_GT(measured->disk_latency, 0);
  EXPECT_GT(measured->cpu_decode, 1e7);
  EXPECT_GE(measured->ram, measured->cpu_decode);
  EXPECT_EQ(measured->machine, *machine_key(model_.string()));
  // Of the types that the model has, those that make up much of it: f32 does not, and Q4_K is the usual one.
  ASSERT_EQ(measured->types.size(), 1u);
  EXPECT_EQ(measured->types.front().dtype, DType::q6_k);
  EXPECT_GT(measured->types.front().decode, 1e7);
  EXPECT_FALSE(lacks_rates(*measured, brief));

  Rates calibrated = *measured;
  calibrated.brief = false;
  calibrated.types.clear();
  EXPECT_FALSE(lacks_rates(calibrated, brief)) << "what calibrate found is believed";
  Rates part;
  part.disk = 123e9;
  const auto rest = measure_briefly(part, brief);
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->disk, 123e9) << "known rates are not measured again";
  EXPECT_GT(rest->cpu_decode, 1e7);
}

TEST_F(BriefTest, TakesNoMoreMemoryThanThereIs) {
  BriefOptions brief = options();
  brief.host_bytes = 8u << 20;
  const auto measured = measure_briefly({}, brief);
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_GT(measured->disk, 0);
  EXPECT_EQ(measured->cpu_decode, 0) << "not measured is not guessed";
}

TEST_F(BriefTest, BesideAGpuBothAreMeasuredOrStayUnknown) {
  BriefOptions brief = options();
  brief.gpu = true;
  brief.model_bytes = brief.host_bytes = brief.device_bytes = 1024u << 20;
  const auto measured = measure_briefly({}, brief);
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_GT(measured->disk, 0);
  if (!device::gpus().ok()) {
    EXPECT_EQ(measured->cpu_decode, 0);
    EXPECT_EQ(measured->host_to_device, 0);
    return;
  }
  EXPECT_GT(measured->shared_decode(), 0);
  EXPECT_GT(measured->shared_link(), 0);
  EXPECT_FALSE(measured->gpu.empty());
  brief.device_bytes = 100u << 20;
  EXPECT_EQ(measure_briefly({}, brief)->host_to_device, 0) << "so little memory is no measure of a link";
}

TEST_F(BriefTest, HolesAreNoDisk) {
  const fs::path hollow = folder_ / "hollow.gguf";
  std::ofstream(hollow).put('x');
  fs::resize_file(hollow, 64u << 20);
  BriefOptions brief = options();
  brief.paths = {hollow.string()};
  const auto measured = measure_briefly({}, brief);
  ASSERT_TRUE(measured.ok()) << measured.status().message();
  EXPECT_EQ(measured->disk, 0);
}

TEST_F(BriefTest, CalibratedRatesStayAndTakeThePlaceOfBriefOnes) {
  const std::string here = folder_.string();
  Rates brief;
  brief.disk = 1e9;
  brief.disk_latency = 2e-4;
  brief.gpu = "a card";
  brief.brief = true;
  ASSERT_TRUE(save_rates(here, brief).ok());
  EXPECT_EQ(load_rates(here)->disk, 1e9);
  EXPECT_EQ(load_rates(here)->disk_latency, 2e-4);
  EXPECT_EQ(load_rates(here)->gpu, "a card");
  EXPECT_TRUE(load_rates(here)->brief);
  brief.disk = 2e9;
  ASSERT_TRUE(save_rates(here, brief).ok());
  EXPECT_EQ(load_rates(here)->disk, 2e9) << "passes refine what was measured briefly";
  Rates calibrated;
  calibrated.disk = 3e9;
  ASSERT_TRUE(save_rates(here, calibrated).ok());
  EXPECT_FALSE(load_rates(here)->brief);
  ASSERT_TRUE(save_rates(here, brief).ok());
  EXPECT_EQ(load_rates(here)->disk, 3e9) << "and nothing replaces a calibration but another one";
}

}  // namespace
}  // namespace millrace::residency
