// Rows shared out to several GPUs: the bits of one, whatever the model, the pass and the KV. Where a machine has one
// GPU alone it plays both, from two threads with memory of their own; where it has two, they do.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <regex>

#include "base/bytes.h"
#include "cuda_engine/on_gpu.h"
#include "engine/support.h"
#include "synth-model/write.h"

namespace millrace::engine {
namespace {

using namespace test;

// One GPU that plays two loads a kernel while another waits for the one that is loaded.
const bool kernels_come_first = setenv("CUDA_MODULE_LOADING", "EAGER", 1) == 0;

class Shards : public OnGpu {};

int second_gpu() {
  const auto gpus = device::gpus();
  return gpus.ok() && gpus->size() > 1 ? 1 : 0;
}

EngineOptions on_one(const std::string& path, DType kv_dtype = DType::f16) {
  EngineOptions options;
  options.model_path = path;
  options.device = DeviceChoice::cuda;
  options.kv_dtype = kv_dtype;
  options.vram_bytes = 4'000'000'000;
  options.context_tokens = 2048;
  return options;
}

EngineOptions on_two(EngineOptions options) {
  options.cuda_beside = {second_gpu()};
  return options;
}

/// In float16 and in Q8_0 of odd widths, with norms of heads and of results, windows, and a head that is the embedding.
TEST_F(Shards, TheBitsOfOneWhateverTheLayersAre) {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("millrace-shards-{}.gguf", getpid())).string();
  for (const char* const architecture : {"llama", "qwen3", "gemma3"}) {
    for (const DType dtype : {DType::f16, DType::q8_0}) {
      synth::Shape shape;
      shape.architecture = architecture;
      shape.layers = 3, shape.dim = 288, shape.ff = 480, shape.heads = 4, shape.kv_heads = 2, shape.head_dim = 64;
      shape.vocab = 4001;
      shape.tied = true;
      synth::WriteOptions options;
      options.types.matrices = dtype;
      const auto written = synth::write(path, shape, options);
      ASSERT_TRUE(written.ok()) << written.status().message();
      for (const DType kv : {DType::f16, DType::q8_0, DType::q4_0}) {
        SCOPED_TRACE(fmt::format("{} in {}, KV {}", architecture, info(dtype).name, info(kv).name));
        expect_same_bits(logits_of(on_two(on_one(path, kv)), 150, 12), logits_of(on_one(path, kv), 150, 12));
      }
    }
  }
  std::filesystem::remove(path);
}

/// Quantized matrices, prompts of several windows, and passes that no graph replays.
class ShardsOfQuantized : public Shards {
 protected:
  void SetUp() override {
    Shards::SetUp();
    if (IsSkipped()) return;
    path_ = (std::filesystem::temp_directory_path() / fmt::format("millrace-shards-{}.gguf", getpid())).string();
    synth::Shape shape;
    shape.layers = 6, shape.dim = 1024, shape.ff = 2816, shape.heads = 16, shape.kv_heads = 4, shape.head_dim = 64;
    shape.vocab = 8003;
    synth::WriteOptions options;
    options.types.mixture_q4_k_m = true;
    const auto written = synth::write(path_, shape, options);
    ASSERT_TRUE(written.ok()) << written.status().message();
  }
  void TearDown() override {
    if (!path_.empty()) std::filesystem::remove(path_);
  }
  std::string path_;
};

TEST_F(ShardsOfQuantized, TheBitsOfOneHoweverThePassIsCut) {
  const std::vector<float> whole = logits_of(on_one(path_), 700, 8);
  expect_same_bits(logits_of(on_two(on_one(path_)), 700, 8), whole);
  for (const bool graphs : {true, false}) {
    EngineOptions options = on_two(on_one(path_));
    options.batch_tokens = 64;
    options.cuda_graphs = graphs;
    options.cuda_fuse = graphs;
    expect_same_bits(logits_of(options, 700, 8), whole);
  }
}

TEST_F(ShardsOfQuantized, TheBitsOfOneWhereRowsStream) {
  EngineOptions one = on_one(path_);
  one.context_tokens = 1024;
  const std::vector<float> whole = logits_of(one, 300, 4);
  EngineOptions options = on_two(one);
  options.vram_bytes = 1'000'000;
  const auto refused = Engine::create(options);
  ASSERT_FALSE(refused.ok());
  ASSERT_EQ(refused.status().code(), Code::out_of_budget) << refused.status().message();
  std::smatch match;
  const std::string words(refused.status().message());
  ASSERT_TRUE(std::regex_search(words, match, std::regex("--vram ([0-9.]+[A-Za-z]*)"))) << words;
  const auto least = parse_bytes(match[1].str());
  ASSERT_TRUE(least.ok());
  options.vram_bytes = *least + 8'000'000;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  std::vector<float> logits;
  Request request = greedy(real_text(*engine, 300), 4);
  keep_logits(request, logits);
  ASSERT_NE(engine->run(std::move(request)).finish, Finish::error);
  expect_same_bits(logits, whole);
  EXPECT_GT(engine->store_counters().bytes_to_device, 0u) << "nothing has streamed";
  for (const int share : {30, 70}) {  // and the CPU computes some rows of each GPU's
    options.cpu_share_percent = share;
    options.cpu_feed_forwards = 0;
    options.vram_bytes = *least + 30'000'000;
    expect_same_bits(logits_of(options, 300, 4), whole);
  }
}

TEST_F(ShardsOfQuantized, SequencesShareBeginningsAndGoBack) {
  EngineOptions options = on_two(on_one(path_));
  options.max_sequences = 4;
  options.share_prefixes = true;
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

TEST_F(ShardsOfQuantized, WhatDoesNotWorkOverSeveralSaysSo) {
  const auto expect_refused = [](const EngineOptions& options, const std::string& word) {
    const auto engine = Engine::create(options);
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), Code::unsupported);
    EXPECT_NE(engine.status().message().find(word), std::string::npos) << engine.status().message();
  };
  expect_refused(on_two(on_one(moe_path())), "mixture of experts");
  expect_refused(on_two(on_one(draft_path())), "2 heads over 1");
  EngineOptions options = on_one(path_);
  options.cuda_beside = {99};
  expect_refused(options, "cuda:99");
  options = on_two(on_one(path_));
  options.cufile = true;
  expect_refused(options, "cufile");
}

}  // namespace
}  // namespace millrace::engine
