#include "residency/refine.h"

#include <gtest/gtest.h>

#include "residency/predict.h"

namespace millrace::residency {
namespace {

constexpr double kBytes = 4e9;  // of weights, of which a pass reads some from the disk

Plan dense(double read) {
  Plan plan;
  plan.cost.home = kBytes - read;
  plan.cost.read = read;
  plan.cost.weights = {{DType::q4_k, kBytes, 7e9}};
  plan.ring_slots = 4;
  plan.ring_slot_bytes = 8u << 20;
  return plan;
}
Rates brief_rates() {
  return {.disk = 2e9, .disk_latency = 1e-4, .ram = 24e9, .cpu_decode = 20e9, .machine = "a test", .brief = true};
}
DecodePasses passes(std::int64_t count, double each, double waits) {
  DecodePasses all;
  all.passes = count;
  all.seconds = each * static_cast<double>(count);
  all.wait_seconds = waits * static_cast<double>(count);
  return all;
}

TEST(Refine, ThePassesOfARunAreWhatTheNextPlanPredicts) {
  const Plan plan = dense(0);
  const Rates found = refined(brief_rates(), plan, passes(50, 0.4, 0));  // predicted: 0.2 s
  EXPECT_NEAR(predict_pass(plan, found, {}, 1).seconds, 0.4, 0.004);
  EXPECT_NEAR(found.cpu_decode, 10e9, 1e8);
  EXPECT_TRUE(found.brief);
}

TEST(Refine, NothingWasKnown) {
  const Plan plan = dense(0);
  const Rates found = refined({}, plan, passes(50, 0.4, 0));
  EXPECT_NEAR(found.cpu_decode, 10e9, 1);
  EXPECT_TRUE(found.brief);
}

TEST(Refine, FewPassesAndShortOnesSayNothing) {
  const Plan plan = dense(0);
  EXPECT_EQ(refined(brief_rates(), plan, passes(3, 0.4, 0)).cpu_decode, 20e9);
  EXPECT_EQ(refined(brief_rates(), plan, passes(50, 0.001, 0)).cpu_decode, 20e9);
}

TEST(Refine, ADiskThatPassesWaitForIsAsFastAsItWas) {
  const Plan plan = dense(2e9);
  DecodePasses slow = passes(50, 2, 1.8);
  slow.disk_bytes = 50 * 2e9;
  slow.disk_busy_seconds = 50 * 1.95;
  const Rates found = refined(brief_rates(), plan, slow);
  const double in_flight = 3 * static_cast<double>(plan.ring_slot_bytes);
  EXPECT_NEAR(bytes_in_order(2e9, in_flight, found) / found.disk, 1.95, 0.02);
  // Of passes that hardly wait nothing is learned about it.
  slow.wait_seconds = 1;
  EXPECT_EQ(refined(brief_rates(), plan, slow).disk, 2e9);
}

TEST(Refine, BesideAGpuTheProcessorsOwnPart) {
  Plan plan = dense(0);
  plan.cost.gpu = true;
  plan.cost.shared = 2e9;
  Rates rates = brief_rates();
  rates.host_to_device = 50e9;
  rates.device_memory = 2e12;
  rates.cpu_decode_busy = 16e9;
  DecodePasses all = passes(50, 0.2, 0);
  all.host_bytes = 50 * 1e9;
  all.host_seconds = 50 * 0.125;
  EXPECT_NEAR(refined(rates, plan, all).cpu_decode_busy, 8e9, 1);
  EXPECT_EQ(refined(rates, plan, all).cpu_decode, 20e9);
}

TEST(Refine, ADisksLatencyIsWaitedForOnceForAllThatIsInFlight) {
  Rates rates = brief_rates();  // 2 GB/s: in 0.1 ms come 200 kB
  EXPECT_DOUBLE_EQ(bytes_in_order(1e6, 2e5, rates), 2e6);
  EXPECT_DOUBLE_EQ(bytes_in_order(1e6, 2e7, rates), 1.01e6);
  rates.disk_latency = 0;  // an older calibration
  EXPECT_DOUBLE_EQ(bytes_in_order(1e6, kHalfRateInFlight, rates), 2e6);
}

}  // namespace
}  // namespace millrace::residency
