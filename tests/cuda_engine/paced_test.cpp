// The speed that plans predict, measured: simulated devices whose links and memory have given rates, so slow that the
// processor's own arithmetic is hidden, decode with a plan that was made for these rates. What a token moves, over
// which link and what of it at the same time: that is what these tests hold predict.h to. Its constants are of real
// GPUs (predictions_test.cpp has those), and the devices here are given them.
#ifdef MILLRACE_SIMULATED

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cuda_engine/on_gpu.h"
#include "engine/support.h"
#include "engine/synth_file.h"
#include "environment.h"
#include "simulated/device.h"

namespace millrace::engine {
namespace {

using namespace test;
using Clock = std::chrono::steady_clock;

// As parts of the rate of long copies, what products reach: of VRAM, and of experts one by one across the link.
constexpr double kProductsOfCopy = 0.8, kExpertsOfLink = 0.7;
constexpr double kFast = 1e12;  // bytes per second of what must not limit a case

struct Case {
  const char* name;
  const char* bound;  // as in residency::Plan
  double link = 0;    // bytes per second; 0: no limit
  double memory = 0;
  int gpus = 1;
  const char* pins = "";
  bool least_vram = false;  // room for the fewest layers that the planner accepts, where layers cannot be pinned
  double disk = 0;
  std::int64_t experts = 0, top_k = 0, vram_slots = -1;
};

class PacedGpu : public OnGpu, public testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    if (const char* const before = std::getenv(kGpus)) gpus_before_ = before;
    millrace::test::set_variable(kGpus, std::to_string(GetParam().gpus).c_str());
    OnGpu::SetUp();
  }
  void TearDown() override {
    set_rates({});
    if (gpus_before_.empty())
      millrace::test::unset_variable(kGpus);
    else
      millrace::test::set_variable(kGpus, gpus_before_.c_str());
  }

  static void set_rates(const simulated::DeviceRates& rates) {
    for (int gpu = 0; gpu < GetParam().gpus; ++gpu) simulated::set_rates(gpu, rates);
  }
  static simulated::DeviceRates rates() {
    return {.copies = GetParam().link,
            .weights = GetParam().memory * kProductsOfCopy,
            .weights_host = GetParam().link * kExpertsOfLink};
  }
  /// Some 0.8 MB a layer.
  static synth::Shape shape() {
    synth::Shape shape;
    shape.layers = 6, shape.dim = 256, shape.ff = 768, shape.heads = 4, shape.kv_heads = 1, shape.head_dim = 64;
    shape.vocab = kVocab;
    // Memory for KV that is not needed yet would keep a layer that is smaller (residency/gpu/spare.h).
    if (GetParam().gpus > 1) shape.ff = 2304;
    if (GetParam().experts == 0) return shape;
    shape.architecture = "qwen3moe";
    shape.experts = GetParam().experts, shape.top_k = GetParam().top_k, shape.expert_ff = 256;
    return shape;
  }
  static EngineOptions options(const std::string& path) {
    EngineOptions options;
    options.model.path = path;
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 2;
    for (int gpu = 1; gpu < GetParam().gpus; ++gpu) options.device.gpus_beside.push_back(gpu);
    options.memory.vram_bytes = 4'000'000'000;
    options.memory.pins = *parse_pins(GetParam().pins);
    options.memory.cpu_share_percent = 0;
    options.experts.vram_slots = GetParam().vram_slots;
    options.demand.context_tokens = 512;
    const auto or_fast = [](double rate) { return rate > 0 ? rate : kFast; };
    if (GetParam().disk > 0)
      options.storage.faults = {{.kind = storage::Fault::Kind::slow,
                                 .count = UINT64_MAX,
                                 .stall_ms = static_cast<std::uint64_t>(std::lround(1e9 / GetParam().disk))}};
    options.planning.rates = {.disk = or_fast(GetParam().disk),
                              .ram = kFast,
                              .cpu_decode = kFast,
                              .host_to_device = or_fast(GetParam().link),
                              .device_memory = or_fast(GetParam().memory),
                              .machine = "a test"};
    return options;
  }
  /// The cap that the planner names where it has too little.
  static std::uint64_t least_vram(EngineOptions options) {
    options.memory.vram_bytes = 1'000'000;
    const auto planned = plan_only(options);
    if (planned.ok()) return 0;
    const std::string message(planned.status().message());
    std::smatch match;
    if (!std::regex_search(message, match, std::regex("--vram ([0-9.]+[A-Za-z]*)"))) return 0;
    const Expected<std::uint64_t> bytes = parse_bytes(match[1].str());
    return bytes.ok() ? *bytes : 0;
  }
  /// Tokens per second once the ring is as far ahead as it gets.
  static double measure(Engine& engine) {
    constexpr std::size_t kFirst = 3, kTokens = 12;
    std::vector<TokenId> prompt;
    for (int i = 0; i < 10; ++i) prompt.push_back(static_cast<TokenId>(5 + i * 37 % (kVocab - 5)));
    std::vector<Clock::time_point> at;
    Request request = greedy(std::move(prompt), kTokens);
    request.ignore_end_tokens = true;
    request.on_token = [&](const TokenChoice&) { at.push_back(Clock::now()); };
    const Result result = engine.run(std::move(request));
    EXPECT_EQ(result.finish, Finish::length) << result.status.message();
    if (at.size() != kTokens) return 0;
    return static_cast<double>(kTokens - 1 - kFirst) / std::chrono::duration<double>(at.back() - at[kFirst]).count();
  }

  static constexpr std::int64_t kVocab = 1000;

 private:
  static constexpr const char* kGpus = "MILLRACE_SIMULATED_GPUS";
  std::string gpus_before_;
};

TEST_P(PacedGpu, DecodesAsFastAsThePlanPredicts) {
  const SynthFile file(shape(), {.matrices = DType::q8_0});
  EngineOptions options = PacedGpu::options(file.path());
  if (GetParam().least_vram) {
    options.memory.vram_bytes = least_vram(options);
    ASSERT_GT(options.memory.vram_bytes, 0u);
  }
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  const residency::Plan& plan = engine->plan();
  EXPECT_EQ(plan.bound, GetParam().bound);
  ASSERT_GT(plan.predicted_decode_tokens_per_second, 0);
  (void)measure(*engine);  // all weights are where they stay
  set_rates(rates());
  // A try on a machine that computes something else may be slower; none is faster than the bytes.
  double ratio = 0;
  for (int i = 0; i < 5 && std::abs(ratio - 1) > 0.1; ++i) {
    ratio = measure(*engine) / plan.predicted_decode_tokens_per_second;
    std::printf("%s: %.2f tok/s predicted, %.3f of that measured\n", GetParam().name,
                plan.predicted_decode_tokens_per_second, ratio);
    ASSERT_LT(ratio, 1.1);
  }
  EXPECT_NEAR(ratio, 1, 0.1);
}

INSTANTIATE_TEST_SUITE_P(
    OfGivenRates, PacedGpu,
    testing::Values(
        Case{.name = "Resident", .bound = "vram", .memory = 50e6},
        Case{.name = "Streamed", .bound = "pcie", .link = 40e6, .pins = "0-=ram"},
        Case{.name = "StreamedInPart", .bound = "pcie", .link = 20e6, .pins = "0-1=vram,2-=ram"},
        Case{.name = "StreamedWhileMemoryIsSlower", .bound = "vram", .link = 60e6, .memory = 50e6, .pins = "0-=ram"},
        Case{.name = "HalfStreamedHalfRead",
             .bound = "pcie",
             .link = 20e6,
             .memory = 60e6,
             .pins = "0=ram,1=vram,2=ram,3=vram,4=ram,5=vram"},
        Case{.name = "StreamedToTwo", .bound = "pcie", .link = 50e6, .gpus = 2, .least_vram = true},
        Case{.name = "ReadFromDisk", .bound = "disk", .pins = "0-=disk", .disk = 40e6},
        Case{.name = "ExpertsAcrossTheLink", .bound = "pcie", .link = 12e6, .experts = 8, .top_k = 2, .vram_slots = 0},
        Case{.name = "ExpertsInSlotsAndAcrossTheLink",
             .bound = "pcie",
             .link = 24e6,
             .experts = 8,
             .top_k = 8,
             .vram_slots = 24}),
    [](const auto& given) { return given.param.name; });

}  // namespace
}  // namespace millrace::engine

#endif
