// Where a draft model finds its seat beside a model on a GPU, and what that model's plan is then. On paper: no GPU.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "engine/gpu/draft.h"
#include "engine/setup.h"
#include "engine/support.h"
#include "engine/within.h"
#include "residency/predict.h"
#include "synth-model/write.h"

namespace millrace::engine {
namespace {

using namespace test;
namespace fs = std::filesystem;

// As of a desktop with a small card.
const residency::Rates kRates{.disk = 2e9,
                              .ram = 40e9,
                              .cpu_decode = 30e9,
                              .host_to_device = 12e9,
                              .host_to_device_busy = 10e9,
                              .cpu_decode_busy = 20e9,
                              .device_memory = 600e9,
                              .cpu_prefill_macs = 1e12,
                              .device_prefill_macs = 4e13,
                              .machine = "a test"};
constexpr std::uint64_t kContext = 400 * kMiB;

class DraftPlan : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::temp_directory_path() / fmt::format("millrace-draft-plan-{}", getpid());
    fs::create_directories(folder_);
    synth::Shape shape;  // 16 layers of 8.4 MB
    shape.layers = 16, shape.dim = 512, shape.ff = 2048, shape.heads = 8, shape.kv_heads = 8, shape.head_dim = 64;
    shape.vocab = 4000;
    ASSERT_TRUE(synth::write(large(), shape, {}).ok());
    shape.layers = 2, shape.dim = 128, shape.ff = 256, shape.heads = 2, shape.kv_heads = 2;
    ASSERT_TRUE(synth::write(small(), shape, {}).ok());
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static std::string large() { return (folder_ / "large.gguf").string(); }
  static std::string small() { return (folder_ / "small.gguf").string(); }

  static EngineOptions options(std::uint64_t vram_bytes, const residency::Rates& rates = kRates) {
    EngineOptions options;
    options.model.path = large();
    options.device.choice = DeviceChoice::cuda;
    options.memory.vram_bytes = vram_bytes;
    options.memory.ram_bytes = 2'000'000'000;
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = 128;
    options.device.threads = 4;
    options.memory.exact_budget = true;
    options.planning.rates = rates;
    options.speculate.mode = SpeculateOptions::Mode::automatic;
    options.speculate.draft_model = small();
    return options;
  }
  static DraftModelPlan draft(const EngineOptions& options) {
    auto plan = plan_draft_model(options);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? std::move(*plan) : DraftModelPlan();
  }
  static device::Gpu gpu() {
    device::Gpu gpu;
    gpu.block_shared_bytes = 227 * kKiB;
    return gpu;
  }

  static residency::Rates slow_cpu() {
    residency::Rates rates = kRates;
    rates.cpu_decode = rates.cpu_decode_busy = 1e8;
    return rates;
  }

  /// What a plan takes of VRAM, the draft model's part among it.
  struct Planned {
    Parts parts;
    std::int64_t movers = 0;
    std::uint64_t vram_bytes = 0;
    Status status;
  };
  static Planned plan(const EngineOptions& options, const DraftModelPlan* draft) {
    Planned planned;
    Parts& parts = planned.parts;
    std::vector<std::string> paths;
    planned.status = open_model(options, kGpuTileBytes, DraftUnits::none, parts, paths);
    if (!planned.status.ok()) return planned;
    GpuPlanner planner(options, {.free_bytes = 8'000'000'000, .context_bytes = kContext, .multiprocessors = 40}, parts);
    planned.status = draft != nullptr ? seat_draft(options, *draft, gpu(), planner, parts) : planner.plan();
    if (!planned.status.ok()) return planned;
    planned.movers = planner.homes().movers;
    planned.vram_bytes = parts.plan.vram_weight_bytes + parts.plan.vram_fixed_bytes + parts.plan.vram_draft_bytes +
                         parts.plan_options.kv_bytes;
    EXPECT_LE(planned.vram_bytes, planner.cap_bytes());
    return planned;
  }
  /// The least cap that all of the large model fits into.
  static std::uint64_t whole() { return plan(options(0), nullptr).vram_bytes + kMiB; }

  static inline fs::path folder_;
};

TEST_F(DraftPlan, WithRoomForBothItIsInVram) {
  // Of a small model a pass of a usual CPU is shorter than a GPU's turn.
  const EngineOptions roomy = options(0, slow_cpu());
  const DraftModelPlan model = draft(roomy);
  const auto taken = plan_gpu_draft(model, gpu());
  ASSERT_TRUE(taken.ok()) << taken.status().message();
  const Planned planned = plan(roomy, &model);
  ASSERT_TRUE(planned.status.ok()) << planned.status.message();
  EXPECT_EQ(planned.parts.draft.place, DraftPlace::gpu) << planned.parts.draft.words;
  EXPECT_EQ(planned.parts.plan.vram_draft_bytes, taken->taken.vram_bytes);
  EXPECT_EQ(planned.movers, 0);
  EXPECT_EQ(planned.parts.draft.ram_bytes, taken->taken.ram_bytes);
  EXPECT_GT(taken->taken.vram_bytes, fs::file_size(small()) / 2);
  EXPECT_NE(residency::render_plan(planned.parts.plan, planned.parts.plan_options, kRates).find("draft model"),
            std::string::npos);
}

/// It takes the room of layers, or leaves it to them: whichever is predicted to be faster, and within the cap.
TEST_F(DraftPlan, ItsBytesAreWeighedAgainstLayersAtHome) {
  const EngineOptions tight = options(whole());
  ASSERT_EQ(plan(tight, nullptr).movers, 0);
  const DraftModelPlan model = draft(tight);
  const Planned planned = plan(tight, &model);
  ASSERT_TRUE(planned.status.ok()) << planned.status.message();
  // A few layers that cross make the pass several times as long, and the CPU guesses in a moment.
  EXPECT_NE(planned.parts.draft.place, DraftPlace::gpu) << planned.parts.draft.words;
  EXPECT_EQ(planned.movers, 0);
  EXPECT_NE(planned.parts.draft.words.find("on the GPU"), std::string::npos) << planned.parts.draft.words;
  // Where the link is as fast as memory, layers that cross cost nothing; where the CPU is slow, guesses there do.
  residency::Rates fast = slow_cpu();
  fast.host_to_device = fast.host_to_device_busy = fast.device_memory;
  const EngineOptions linked = options(whole(), fast);
  const DraftModelPlan again = draft(linked);
  const Planned with_link = plan(linked, &again);
  EXPECT_EQ(with_link.parts.draft.place, DraftPlace::gpu) << with_link.parts.draft.words;
  EXPECT_GT(with_link.movers, 0) << "layers made room";
}

/// The processor's part is chosen for the rows that guesses make.
TEST_F(DraftPlan, TheProcessorHasLessOfPassesThatVerify) {
  residency::Rates rates = kRates;
  rates.cpu_few_macs = 1e10;  // a row of F16 comes at 20 GB/s, and another takes as long again
  EngineOptions half = options(kContext + (whole() - kContext) * 2 / 3, rates);
  half.speculate.mode = SpeculateOptions::Mode::fixed, half.speculate.drafts = 3;
  const DraftModelPlan model = draft(half);
  const Planned alone = plan(half, nullptr), verifying = plan(half, &model);
  ASSERT_TRUE(verifying.status.ok()) << verifying.status.message();
  ASSERT_NE(verifying.parts.draft.place, DraftPlace::none) << verifying.parts.draft.words;
  ASSERT_GT(residency::host_bytes(alone.parts.plan), 0);
  EXPECT_EQ(verifying.parts.plan_options.passes.decode_rows, 4);
  EXPECT_LT(residency::host_bytes(verifying.parts.plan), residency::host_bytes(alone.parts.plan));
  half.planning.rates.cpu_few_macs = 0;
  EXPECT_GT(residency::host_bytes(plan(half, &model).parts.plan), residency::host_bytes(verifying.parts.plan))
      << "not known";
}

TEST_F(DraftPlan, WhereItDoesNotFitTheCpuGuessesOrNobody) {
  EngineOptions tight = options(whole());
  tight.memory.pins = *parse_pins("0-=vram");  // no layer makes room
  DraftModelPlan model = draft(tight);
  const Planned on_cpu = plan(tight, &model);
  ASSERT_TRUE(on_cpu.status.ok()) << on_cpu.status.message();
  EXPECT_NE(on_cpu.parts.draft.place, DraftPlace::gpu);
  EXPECT_NE(on_cpu.parts.draft.words.find("not on the GPU: "), std::string::npos) << on_cpu.parts.draft.words;
  tight.speculate.mode = SpeculateOptions::Mode::fixed, tight.speculate.drafts = 4;
  EXPECT_EQ(plan(tight, &model).parts.draft.place, DraftPlace::cpu) << "as the user asks for guesses";
  model.on_cpu = error(Code::out_of_budget, "too large");
  const Planned nobody = plan(tight, &model);
  ASSERT_TRUE(nobody.status.ok()) << nobody.status.message();
  EXPECT_EQ(nobody.parts.draft.place, DraftPlace::none);
  EXPECT_NE(nobody.parts.draft.words.find("not on the CPU: too large"), std::string::npos) << nobody.parts.draft.words;
}

/// However many ways were planned, what is kept is the plan of one.
TEST_F(DraftPlan, WithoutASeatThePlanIsAsWithoutADraftModel) {
  for (const std::uint64_t vram : {whole(), whole() - 60 * kMiB}) {
    for (const bool shares_out : {false, true}) {
      EngineOptions tight = options(vram);
      if (shares_out) tight.demand.max_sequences = 0;
      tight.speculate.acceptance = 0;  // so that none is best
      const DraftModelPlan model = draft(tight);
      const Planned with = plan(tight, &model), without = plan(tight, nullptr);
      ASSERT_TRUE(with.status.ok() && without.status.ok());
      EXPECT_EQ(with.parts.draft.place, DraftPlace::none) << with.parts.draft.words;
      EXPECT_EQ(with.vram_bytes, without.vram_bytes);
      EXPECT_EQ(with.movers, without.movers);
      EXPECT_EQ(with.parts.limits.sequences, without.parts.limits.sequences);
      EXPECT_EQ(with.parts.limits.kv_tokens, without.parts.limits.kv_tokens);
      EXPECT_EQ(with.parts.plan.cpu_permille, without.parts.plan.cpu_permille);
      EXPECT_EQ(with.parts.plan.predicted_decode_tokens_per_second,
                without.parts.plan.predicted_decode_tokens_per_second);
    }
  }
}

TEST_F(DraftPlan, WithoutRatesItIsInVramWhereThereIsRoom) {
  const EngineOptions unknown = options(0, {});
  const DraftModelPlan model = draft(unknown);
  const Planned planned = plan(unknown, &model);
  ASSERT_TRUE(planned.status.ok()) << planned.status.message();
  EXPECT_EQ(planned.parts.draft.place, DraftPlace::gpu) << planned.parts.draft.words;
  EXPECT_EQ(planned.parts.draft.words.find("predicted"), std::string::npos) << planned.parts.draft.words;
}

/// The model's own first layers: those in VRAM come first then, and what their passes take is counted.
TEST_F(DraftPlan, FirstLayersGuessWhereOthersStream) {
  EngineOptions tight = options(whole() - 60 * kMiB);
  tight.speculate.draft_model.clear();
  const Planned without = plan(tight, nullptr);
  tight.speculate.within = Within::self;
  for (const int layers : {0, 3}) {
    tight.speculate.self_layers = layers;
    const Planned planned = plan(tight, nullptr);
    ASSERT_TRUE(planned.status.ok()) << planned.status.message();
    const residency::Plan& found = planned.parts.plan;
    EXPECT_EQ(found.front_layers, layers > 0 ? layers : 16 - planned.movers);
    EXPECT_GE(planned.movers, without.movers);
    EXPECT_GT(found.vram_draft_bytes, 0u);
    for (std::size_t u = 0; u < found.homes.size(); ++u)
      if (residency::in_front(planned.parts.model->units().units()[u], found.front_layers)) {
        EXPECT_EQ(found.homes[u], residency::Tier::vram) << u;
      }
    const DraftSeat seat = seat_within(tight, planned.parts);
    EXPECT_EQ(seat.place, DraftPlace::gpu);
    EXPECT_EQ(seat.vram_bytes, found.vram_draft_bytes);
    EXPECT_NE(seat.words.find("layers and the head stay in VRAM"), std::string::npos) << seat.words;
    EXPECT_NE(seat.words.find("predicted"), std::string::npos) << seat.words;
  }
  tight.speculate.self_layers = 15;
  const Planned too_many = plan(tight, nullptr);
  EXPECT_EQ(too_many.parts.plan.front_layers, 0);
  EXPECT_EQ(too_many.movers, without.movers);
  EXPECT_EQ(too_many.vram_bytes, without.vram_bytes) << "as without";
  EXPECT_NE(seat_within(tight, too_many.parts).words.find("the first 15 layers"), std::string::npos);
  EngineOptions roomy = tight;
  roomy.memory.vram_bytes = 0;
  roomy.speculate.self_layers = 3;
  EXPECT_EQ(plan(roomy, nullptr).parts.plan.front_layers, 3) << "as the user asks for them";
  roomy.speculate.self_layers = 0;
  EXPECT_EQ(plan(roomy, nullptr).parts.plan.front_layers, 0);
}

}  // namespace
}  // namespace millrace::engine
