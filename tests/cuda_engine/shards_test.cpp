// Rows shared out to several GPUs: the bits of one, whatever the model, the pass and the KV. Where a machine has one
// GPU alone it plays both, from two threads with memory of their own; where it has two, they do.
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <regex>

#include "base/bytes.h"
#include "cuda_engine/on_gpu.h"
#include "engine/support.h"
#include "engine/synth_file.h"
#include "environment.h"

namespace millrace::engine {
namespace {

using namespace test;

// One GPU that plays two loads a kernel while another waits for the one that is loaded.
const bool kernels_come_first = (millrace::test::set_variable("CUDA_MODULE_LOADING", "EAGER"), true);
// And streams of both that share one of the GPU's eight queues wait for each other: what one copies would stand behind
// a kernel of the other that waits for it.
const bool streams_have_queues = (millrace::test::set_variable("CUDA_DEVICE_MAX_CONNECTIONS", "32"), true);

class Shards : public OnGpu {};

int second_gpu() {
  const auto gpus = device::gpus();
  return gpus.ok() && gpus->size() > 1 ? 1 : 0;
}

EngineOptions on_one(const std::string& path, DType kv_dtype = DType::f16) {
  EngineOptions options;
  options.model.path = path;
  options.device.choice = DeviceChoice::cuda;
  options.kv.dtype = kv_dtype;
  options.memory.vram_bytes = 4'000'000'000;
  options.demand.context_tokens = 2048;
  if (lacks_shared_memory(options)) options.kv.dtype = DType::q8_0;
  return options;
}

EngineOptions on_two(EngineOptions options) {
  options.device.gpus_beside = {second_gpu()};
  return options;
}

/// In float16 and in Q8_0 of odd widths, with norms of heads and of results, windows, and a head that is the embedding.
TEST_F(Shards, TheBitsOfOneWhateverTheLayersAre) {
  for (const char* const architecture : {"llama", "qwen3", "gemma3"}) {
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      synth::Shape shape;
      shape.architecture = architecture;
      shape.layers = 3, shape.dim = 288, shape.ff = 480, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 64;
      shape.vocab = 4001;
      shape.tied = true;
      const SynthFile file(shape, {.matrices = dtype});
      for (const DType kv : {DType::f16, DType::q8_0, DType::q4_0, DType::q3_k, DType::q2_0}) {
        SCOPED_TRACE(fmt::format("{} in {}, KV {}", architecture, info(dtype).name, info(kv).name));
        expect_same_bits(logits_of(on_two(on_one(file.path(), kv)), 150, 12),
                         logits_of(on_one(file.path(), kv), 150, 12));
      }
    }
  }
}

/// Mixtures with shared experts, with biases, beside states or latents, which are not cut: all GPUs compute them.
class ShardsOfArchitectures : public Shards, public testing::WithParamInterface<const char*> {
 protected:
  static synth::Shape shape() {
    const std::string architecture = GetParam();
    synth::Shape shape;
    shape.architecture = architecture;
    shape.layers = 4, shape.dim = 512, shape.ff = 480, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 64;
    shape.vocab = 4001;
    if (architecture == "falcon-h1")
      shape.state_heads = 4;
    else if (architecture != "qwen35")
      shape.experts = 12, shape.top_k = 3, shape.expert_ff = 160;
    if (architecture.starts_with("deepseek")) shape.latent = {64, 96, 32, 64}, shape.head_dim = 96, shape.kv_heads = 1;
    if (architecture == "deepseek32") shape.index = {3, 64, 40};
    if (architecture.starts_with("qwen35")) shape.state_heads = 32, shape.head_dim = 256;
    if (architecture == "nemotron_h_moe") shape.state_heads = 16, shape.layers = 8, shape.ff = 0;
    return shape;
  }
};

TEST_P(ShardsOfArchitectures, HaveTheBitsOfOne) {
  for (const DType dtype : {DType::f16, DType::q8_0, DType::q4_k}) {
    SCOPED_TRACE(info(dtype).name);
    const SynthFile file(shape(), {.matrices = dtype});
    const std::string& path = file.path();
    // A prompt whose experts are read one for many entries, one of few, and tokens.
    const std::vector<float> whole = logits_of(on_one(path), 150, 6), few = logits_of(on_one(path), 9, 6);
    EngineOptions two = on_two(on_one(path));
    expect_same_bits(logits_of(two, 150, 6), whole);
    expect_same_bits(logits_of(two, 9, 6), few);
    two.device.fuse = two.device.graphs = false;
    expect_same_bits(logits_of(two, 150, 6), whole);
  }
}

/// Some experts have slots, of each GPU's rows; the processor computes with others, the GPUs read some across their
/// links, and prompts bring them in waves.
TEST_P(ShardsOfArchitectures, HaveTheBitsOfOneWhereExpertsFlow) {
  if (shape().experts == 0) GTEST_SKIP() << "no experts";
  for (const DType dtype : {DType::f16, DType::q8_0, DType::q4_k}) {
    SCOPED_TRACE(info(dtype).name);
    const SynthFile file(shape(), {.matrices = dtype});
    const std::string& path = file.path();
    const std::vector<float> whole = logits_of(on_one(path), 150, 24);
    EngineOptions two = on_two(on_one(path));
    two.device.threads = 2;
    for (const int in_vram : {1, 20}) {
      two.experts.vram_slots = in_vram;
      for (const int of_the_link : {0, 40, 100}) {
        two.memory.cpu_share_percent = 100 - of_the_link;
        SCOPED_TRACE(fmt::format("{} in VRAM, {} % over the links", in_vram, of_the_link));
        expect_same_bits(logits_of(two, 150, 24), whole);
      }
    }
    two.memory.cpu_share_percent = -1;
    two.experts.ram_slots = 24;  // in RAM at once, of 48 or so
    expect_same_bits(logits_of(two, 150, 24), whole);
  }
}

INSTANTIATE_TEST_SUITE_P(All, ShardsOfArchitectures,
                         testing::Values("qwen3moe", "qwen35", "qwen35moe", "gpt-oss", "glm4moe", "deepseek2",
                                         "deepseek32", "nemotron_h_moe", "falcon-h1"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Quantized matrices, prompts of several windows, and passes that no graph replays.
class ShardsOfQuantized : public Shards {
 protected:
  void SetUp() override {
    Shards::SetUp();
    if (IsSkipped()) return;
    synth::Shape shape;
    shape.layers = 6, shape.dim = 1024, shape.ff = 2816, shape.heads = 16, shape.kv_heads = 4, shape.head_dim = 64;
    shape.vocab = 8003;
    file_ = std::make_unique<SynthFile>(shape, synth::Types{.mixture_q4_k_m = true});
    path_ = file_->path();
  }
  std::unique_ptr<SynthFile> file_;
  std::string path_;
};

TEST_F(ShardsOfQuantized, TheBitsOfOneHoweverThePassIsCut) {
  const std::vector<float> whole = logits_of(on_one(path_), 700, 8);
  expect_same_bits(logits_of(on_two(on_one(path_)), 700, 8), whole);
  for (const bool graphs : {true, false}) {
    EngineOptions options = on_two(on_one(path_));
    options.demand.batch_tokens = 64;
    options.device.graphs = graphs;
    options.device.fuse = graphs;
    expect_same_bits(logits_of(options, 700, 8), whole);
  }
}

TEST_F(ShardsOfQuantized, TheBitsOfOneThroughTheHost) {
  EngineOptions options = on_two(on_one(path_));
  options.device.gpus_through_host = true;
  expect_same_bits(logits_of(options, 700, 8), logits_of(on_one(path_), 700, 8));
  options.model.path = moe_path();
  for (const int in_vram : {-1, 20}) {
    options.experts.vram_slots = in_vram;
    expect_same_bits(logits_of(options, 150, 20), logits_of(on_one(moe_path()), 150, 20));
  }
}

TEST_F(ShardsOfQuantized, TheBitsOfOneWhereRowsStream) {
  EngineOptions one = on_one(path_);
  one.demand.context_tokens = 1024;
  const std::vector<float> whole = logits_of(one, 300, 4);
  EngineOptions options = on_two(one);
  options.memory.vram_bytes = 1'000'000;
  const auto refused = Engine::create(options);
  ASSERT_FALSE(refused.ok());
  ASSERT_EQ(refused.status().code(), Code::out_of_budget) << refused.status().message();
  std::smatch match;
  const std::string words(refused.status().message());
  ASSERT_TRUE(std::regex_search(words, match, std::regex("--vram ([0-9.]+[A-Za-z]*)"))) << words;
  const auto least = parse_bytes(match[1].str());
  ASSERT_TRUE(least.ok());
  options.memory.vram_bytes = *least + 8'000'000;
  const auto crossed = [&] {
    const auto engine = make(options);
    if (engine == nullptr) return std::uint64_t{0};
    std::vector<float> logits;
    Request request = greedy(real_text(*engine, 300), 4);
    keep_logits(request, logits);
    EXPECT_NE(engine->run(std::move(request)).finish, Finish::error);
    expect_same_bits(logits, whole);
    return engine->store_counters().bytes_to_device;
  };
  const std::uint64_t alike = crossed();
  EXPECT_GT(alike, 0u) << "nothing has streamed";
  options.memory.vram_beside = {options.memory.vram_bytes + 60'000'000};
  EXPECT_LT(crossed(), alike) << "the second GPU has more, and keeps layers there";
  options.memory.vram_beside.clear();
  for (const int share : {30, 70}) {  // and the CPU computes some rows of each GPU's
    options.memory.cpu_share_percent = share;
    options.memory.vram_bytes = *least + 30'000'000;
    expect_same_bits(logits_of(options, 300, 4), whole);
  }
}

TEST_F(ShardsOfQuantized, SequencesShareBeginningsAndGoBack) {
  // Where one GPU plays two, both wait for ever in a prompt's pass, all launches made; two GPUs do not.
  if (second_gpu() == 0) GTEST_SKIP() << "needs two GPUs";
  EngineOptions options = on_two(on_one(path_));
  options.demand.max_sequences = 4;
  options.kv.share_prefixes = true;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  const auto text = real_text(*engine, 400);
  std::vector<float> first, again, alone;
  for (std::vector<float>* const logits : {&first, &again}) {
    Request request = greedy(text, 6);
    keep_logits(request, *logits);
    request.logits_of_prompt = false;  // or all of it would be computed
    const Result result = engine->run(std::move(request));
    ASSERT_NE(result.finish, Finish::error) << result.status.message();
    if (logits == &again) {
      EXPECT_GE(result.cached_tokens, 320);
    }
  }
  Request request = greedy(text, 6);
  keep_logits(request, alone);
  request.logits_of_prompt = false;
  const auto one = make(on_one(path_));
  ASSERT_NE(one->run(std::move(request)).finish, Finish::error);
  expect_same_bits(first, alone);
  expect_same_bits(again, alone);
}

TEST_F(ShardsOfQuantized, AStoppedPassLeavesTheNextOneRight) {
  const auto engine = make(on_two(on_one(path_)));
  ASSERT_NE(engine, nullptr);
  const auto text = real_text(*engine, 1500);
  for (int i = 0; i < 3; ++i) {
    const auto id = engine->submit(greedy(text, 200));
    ASSERT_TRUE(id.ok());
    for (int pass = 0; pass < i; ++pass) engine->step();
    engine->cancel(*id);
    while (engine->step()) {
    }
  }
  std::vector<float> after, alone;
  for (std::vector<float>* const logits : {&after, &alone}) {
    const auto other = logits == &alone ? make(on_one(path_)) : nullptr;
    Request request = greedy(text, 4);
    keep_logits(request, *logits);
    ASSERT_NE((other ? *other : *engine).run(std::move(request)).finish, Finish::error);
  }
  expect_same_bits(after, alone);
}

/// Trained routers have favourites, which change their slots.
TEST_F(Shards, FavouritesOfADemoModelKeepTheBits) {
  EngineOptions one = on_one(moe_path());
  const std::vector<float> whole = logits_of(one, 300, 100);
  EngineOptions two = on_two(one);
  two.device.threads = 2;
  expect_same_bits(logits_of(two, 300, 100), whole);
  two.experts.vram_slots = 40;
  const auto engine = make(two);
  ASSERT_NE(engine, nullptr);
  for (int i = 0; i < 2; ++i) {  // in cold slots, and in those of the first time
    std::vector<float> logits;
    Request request = greedy(real_text(*engine, 300), 100);
    keep_logits(request, logits);
    const Result result = engine->run(std::move(request));
    ASSERT_NE(result.finish, Finish::error) << result.status.message();
    expect_same_bits(logits, whole);
  }
  const residency::StoreCounters counters = engine->store_counters();
  EXPECT_GT(counters.hits, 0u);
  EXPECT_GT(counters.misses, 0u);
}

/// Who is stopped in mid-pass, experts on their way, leaves the next request right.
TEST_F(Shards, AStoppedPassLeavesExpertsRight) {
  // Where one GPU plays two both wait for ever for the room of a wave; two GPUs do not.
  if (second_gpu() == 0) GTEST_SKIP() << "needs two GPUs";
  EngineOptions two = on_two(on_one(moe_path()));
  two.device.threads = 2;
  two.experts.vram_slots = 20;
  const auto engine = make(two);
  ASSERT_NE(engine, nullptr);
  const auto text = real_text(*engine, 900);
  for (int i = 0; i < 4; ++i) {
    const auto id = engine->submit(greedy(text, 50));
    ASSERT_TRUE(id.ok());
    for (int pass = 0; pass < i; ++pass) engine->step();
    engine->cancel(*id);
    drain(*engine);
  }
  std::vector<float> after;
  Request request = greedy(real_text(*engine, 200), 20);
  keep_logits(request, after);
  ASSERT_NE(engine->run(std::move(request)).finish, Finish::error);
  expect_same_bits(after, logits_of(on_one(moe_path()), 200, 20));
}

TEST_F(ShardsOfQuantized, WhatDoesNotWorkOverSeveralSaysSo) {
  const auto expect_refused = [](const EngineOptions& options, const std::string& word) {
    const auto engine = Engine::create(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::unsupported);
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  EngineOptions options = on_one(path_);
  options.device.gpus_beside = {99};
  expect_refused(options, "cuda:99");
  options = on_two(on_one(path_));
  options.storage.cufile = true;
  expect_refused(options, "cufile");
}

}  // namespace
}  // namespace millrace::engine
