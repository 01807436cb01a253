#include "residency/calibrate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "device/cpu.h"
#include "environment.h"
#include "kernels/kernels.h"

namespace millrace::residency {
namespace {

namespace fs = std::filesystem;

/// A cache folder of the test's own, and the environment as it was afterwards.
class CalibrateTest : public testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    millrace::test::set_variable("XDG_CACHE_HOME", folder_.string().c_str());
  }
  void TearDown() override {
    fs::remove_all(folder_);
    millrace::test::unset_variable("XDG_CACHE_HOME");
  }
  const fs::path folder_ = fs::path(MILLRACE_BINARY_DIR) / "calibrate_test_cache";
};

TEST_F(CalibrateTest, MeasuresDiskAndMemoryAndLeavesNothingBehind) {
  const fs::path disk = folder_ / "disk";
  fs::create_directories(disk);
  CalibrateOptions options;
  options.path = disk.string();
  options.seconds_each = 0.05;
  options.memory_bytes = 32u << 20;
  options.scratch_bytes = 32u << 20;
  std::vector<double> told;
  auto rates = calibrate(options, [&](std::string_view, double done) { told.push_back(done); });
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_GT(rates->disk, 1e6);
  EXPECT_LT(rates->disk, 1e12);
  EXPECT_GT(rates->ram, 1e8);
  EXPECT_LT(rates->ram, 1e13);
  EXPECT_EQ(rates->cpu_decode, 0);
  EXPECT_EQ(rates->cpu_prefill_macs, 0);
  EXPECT_EQ(rates->cpu_product, 0);
  EXPECT_EQ(rates->machine, *machine_key(options.path));
  EXPECT_TRUE(fs::is_empty(disk));
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
  ASSERT_FALSE(told.empty());
  EXPECT_EQ(told.back(), 1);
}

TEST_F(CalibrateTest, MeasuresEveryTypeOfWeights) {
  CalibrateOptions options;
  options.path = folder_.string();
  options.threads = 2;
  options.kernels = &kernels::table(device::best_isa());
  options.seconds_each = 0.02;
  options.memory_bytes = 16u << 20;
  options.scratch_bytes = 32u << 20;
  const auto rates = calibrate(options);
  ASSERT_TRUE(rates.ok()) << rates.status().message();
  EXPECT_GT(rates->cpu_decode, 1e7);
  EXPECT_GT(rates->cpu_rows_macs, 1e7);
  std::vector<DType> measured;
  for (const TypeRates& of_type : rates->types) {
    measured.push_back(of_type.dtype);
    for (const double rate : {of_type.decode, of_type.rows_macs, of_type.prefill_macs}) {
      EXPECT_GT(rate, 1e7) << info(of_type.dtype).name;
      EXPECT_LT(rate, 1e13) << info(of_type.dtype).name;
    }
  }
  for (const DTypeInfo& known : all_dtypes()) {
    const bool expected = known.computable && known.dtype != DType::q4_k;
    EXPECT_EQ(std::count(measured.begin(), measured.end(), known.dtype), expected ? 1 : 0) << known.name;
  }
}

TEST_F(CalibrateTest, SaysWhatIsWrongWithAPath) {
  CalibrateOptions options;
  options.path = "/nowhere/model.gguf";
  const Status status = calibrate(options).status();
  EXPECT_EQ(status.code(), Code::not_found);
  EXPECT_NE(status.message().find("/nowhere/model.gguf"), std::string::npos);
}

TEST_F(CalibrateTest, RatesAreKeptBesideOthers) {
  const std::string here = folder_.string();
  EXPECT_EQ(load_rates(here).status().code(), Code::not_found);
  EXPECT_NE(load_rates(here).status().message().find("millrace calibrate"), std::string::npos);

  const std::string file = *rates_file();
  EXPECT_EQ(fs::path(file), folder_ / "millrace" / "rates.json");
  fs::create_directories(folder_ / "millrace");
  std::ofstream(file) << R"({"another machine": {"disk": 1}})";
  Rates rates;
  rates.disk = 3.25e9;
  rates.ram = 36e9;
  rates.cpu_decode = 35e9;
  rates.machine = *machine_key(here);
  ASSERT_TRUE(save_rates(here, rates).ok());
  rates.disk = 3.5e9;
  ASSERT_TRUE(save_rates(here, rates).ok());
  auto loaded = load_rates(here);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded->disk, 3.5e9);
  EXPECT_EQ(loaded->ram, 36e9);
  EXPECT_EQ(loaded->cpu_decode, 35e9);
  EXPECT_EQ(loaded->machine, rates.machine);
  std::ifstream again(file);
  const std::string text((std::istreambuf_iterator<char>(again)), std::istreambuf_iterator<char>());
  EXPECT_NE(text.find("another machine"), std::string::npos);
}

TEST_F(CalibrateTest, AnUnreadableRatesFileIsNoReasonToFail) {
  fs::create_directories(folder_ / "millrace");
  // Deeper than a thread's stack: of this machine, whose member is written out and read again.
  const std::string deep =
      "{\"" + *machine_key(folder_.string()) + "\": " + std::string(400'000, '[') + std::string(400'000, ']') + "}";
  for (const std::string& text :
       {std::string(), std::string("not json"), std::string("[1, 2]"), std::string("{\"a\": "), deep}) {
    std::ofstream(*rates_file()) << text;
    EXPECT_EQ(load_rates(folder_.string()).status().code(), Code::not_found);
  }
  Rates rates;
  rates.disk = 1e9;
  EXPECT_TRUE(save_rates(folder_.string(), rates).ok());
  EXPECT_TRUE(load_rates(folder_.string()).ok());
}

TEST_F(CalibrateTest, WithoutAHomeThereIsAWord) {
  millrace::test::unset_variable("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string kept = home == nullptr ? "" : home;
  millrace::test::unset_variable("HOME");
  EXPECT_EQ(rates_file().status().code(), Code::not_found);
  millrace::test::set_variable("HOME", "/somewhere");
  EXPECT_EQ(*rates_file(), "/somewhere/.cache/millrace/rates.json");
  millrace::test::set_variable("HOME", kept.c_str());
}

/// The thread that launches a GPU's kernels polls: with as many threads as processors it would take one from the
/// others.
TEST(ThreadsBesideGpu, LeaveAProcessorToTheThreadThatLaunches) {
  EXPECT_EQ(threads_beside_gpu(0, 8), 7);
  EXPECT_EQ(threads_beside_gpu(0, 16), 15);
  EXPECT_EQ(threads_beside_gpu(0, 4), 4) << "of a few, each is worth more";
  EXPECT_EQ(threads_beside_gpu(8, 8), 8) << "who says how many gets as many";
}

}  // namespace
}  // namespace millrace::residency
