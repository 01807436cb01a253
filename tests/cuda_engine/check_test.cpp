// What the GPU's executor refuses, and with which words. Needs no GPU.
#include <string>

#include "engine/paper.h"
#include "engine/reference.h"
#include "exec/gpu/executor.h"
#include "exec/small_model.h"

namespace millrace::exec {
namespace {

constexpr std::uint64_t kA100 = 163 * kKiB, kRtx4090 = 99 * kKiB, kRtx2080 = 64 * kKiB;  // shared memory of a block

Status check(std::int64_t head_dim, DType kv_dtype, std::uint64_t block_shared_bytes) {
  test::SmallShape shape;
  shape.layers = 1;
  shape.head_dim = head_dim;
  const test::SmallModel model(shape);
  return check_gpu(model.program(), model.units(), {kv_dtype, block_shared_bytes});
}

TEST(CheckGpu, TakesUsualHeadsInEveryFormatOnEveryDevice) {
  for (const std::int64_t head_dim : {64, 80, 96, 128, 256})
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0, DType::q4_0, DType::q3_k, DType::q2_0})
      EXPECT_EQ(check(head_dim, dtype, kRtx4090).ok(), head_dim < 256 || dtype != DType::f32) << head_dim;
}

TEST(CheckGpu, SaysWhatHeadsOf256InF32Need) {
  EXPECT_TRUE(check(256, DType::f32, kA100).ok());
  const Status status = check(256, DType::f32, kRtx4090);
  EXPECT_EQ(status.code(), Code::unsupported);
  for (const char* word : {"256", "160 KiB", "99 KiB", "--kv f16", "--device cpu"})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(CheckGpu, SaysWhatHeadsOfFewKilobytesNeed) {
  for (const std::int64_t head_dim : {64, 80, 96, 128, 256})
    for (const DType dtype : {DType::f16, DType::f32, DType::q8_0, DType::q4_0, DType::q3_k, DType::q2_0}) {
      const bool fits = dtype == DType::f32 ? head_dim <= 96 : dtype != DType::f16 || head_dim <= 128;
      EXPECT_EQ(check(head_dim, dtype, kRtx2080).ok(), fits) << head_dim << " " << info(dtype).name;
    }
  for (const auto& [head_dim, instead] :
       {std::pair<std::int64_t, std::string>{128, "--kv f16, or --device cpu"}, {256, "--kv q8_0, or --device cpu"}}) {
    const Status status = check(head_dim, head_dim == 128 ? DType::f32 : DType::f16, kRtx2080);
    for (const std::string& word : {std::string("99 KiB"), std::string("64 KiB"), instead})
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
  EXPECT_FALSE(check(512, DType::f16, kRtx2080).ok());
}

TEST(CheckGpu, TakesHeadsOf512InF16OnEveryDevice) {
  EXPECT_TRUE(check(512, DType::f16, kA100).ok());
  EXPECT_TRUE(check(512, DType::f16, kRtx4090).ok());
}

TEST(CheckGpu, SaysWhatHeadsOf512Need) {
  for (const DType dtype : {DType::f32, DType::q8_0, DType::q4_0, DType::q3_k}) {
    const Status status = check(512, dtype, kA100);
    EXPECT_EQ(status.code(), Code::unsupported);
    for (const std::string_view word : {info(dtype).name, std::string_view("512"), std::string_view("--kv f16")})
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  }
}

TEST(CheckGpu, PadsHeadsUpToTheWidestTile) {
  for (const std::int64_t head_dim : {32, 48, 112, 192})
    EXPECT_TRUE(check(head_dim, DType::f16, kA100).ok()) << head_dim;
}

TEST(CheckGpu, KeepsHeadsAsWideAsATile) {
  for (const auto& [own, kept] :
       {std::pair<std::int64_t, std::int64_t>{32, 64}, {64, 64}, {72, 80}, {192, 256}, {512, 512}}) {
    test::SmallShape shape;
    shape.layers = 2;
    shape.head_dim = own;
    const test::SmallModel model(shape);
    const kv::Layout layout = gpu_kv_layout(model.program());
    ASSERT_EQ(layout.groups().size(), model.program().layout.groups().size());
    for (std::int64_t layer = 0; layer < 2; ++layer) {
      EXPECT_EQ(layout.place(layer), model.program().layout.place(layer));
      EXPECT_EQ(layout.group_of(layer).k_dim, kept);
      EXPECT_EQ(layout.group_of(layer).v_dim, kept);
      EXPECT_EQ(layout.group_of(layer).window, model.program().layout.group_of(layer).window);
    }
  }
}

TEST(CheckGpu, NamesHeadsThatNoKernelHas) {
  for (const std::int64_t head_dim : {320, 576}) {
    const Status status = check(head_dim, DType::f16, kA100);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().find(std::to_string(head_dim)), std::string::npos) << status.message();
  }
}

/// docs/reference/models-and-file-types.md says so.
TEST(CheckGpu, TakesEveryCheckpointThatRunsOnAGpu) {
  for (const engine::test::Checkpoint& checkpoint : engine::test::kCheckpoints) {
    SCOPED_TRACE(checkpoint.name);
    const auto engine = engine::test::make(engine::test::roomy(checkpoint.model()));
    ASSERT_NE(engine, nullptr);
    const model::Model& model = engine->model();
    for (const std::uint64_t block_shared : {kA100, kRtx4090}) {
      if (block_shared == kRtx4090 && checkpoint.kv == DType::f32) continue;
      const Status status = check_gpu(model.program(), model.units(), {checkpoint.kv, block_shared});
      EXPECT_EQ(status.ok(), checkpoint.gpu) << status.message();
    }
  }
}

TEST(CheckGpu, APlanOnPaperIsForTheProcessorWhereTheGpuRefusesTheModel) {
  engine::Machine machine;
  machine.name = "a PC";
  machine.ram_bytes = machine.vram_bytes = 8'000'000'000;
  machine.processors = 8;
  machine.rates = {.disk = 1e9,
                   .ram = 50e9,
                   .cpu_decode = 48e9,
                   .host_to_device = 25e9,
                   .device_memory = 900e9,
                   .cpu_product = 4e-6,
                   .machine = "a test"};
  engine::EngineOptions options;
  options.model.path = std::string(MILLRACE_TEST_DATA) + "/reference/deepseek-v4.gguf";
  options.kv.dtype = DType::f32;
  const auto planned = engine::plan_for(options, machine);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  for (const residency::Plan::Row& row : planned->plan.rows) EXPECT_NE(row.tier, "vram") << row.what;
  options.device.choice = engine::DeviceChoice::cuda;
  EXPECT_EQ(engine::plan_for(options, machine).status().code(), Code::unsupported);
}

}  // namespace
}  // namespace millrace::exec
