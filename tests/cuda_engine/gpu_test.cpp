// The engine on a GPU, from outside: right logits, the same bits however a pass is cut, launched and shared, one launch
// and one read-back a token, and a cap on device memory that the driver's own count confirms.

#include "device/gpu.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "cuda_engine/on_gpu.h"
#include "device/device.h"
#include "engine/reference.h"
#include "modelfile/quantize.h"

namespace millrace::engine {
namespace {

using namespace test;

class Gpu : public OnGpu {};

constexpr DType kKvFormats[] = {DType::f16, DType::q8_0, DType::q4_0, DType::q3_k, DType::q2_0};

EngineOptions on_gpu(const std::string& path, DType kv_dtype = DType::f16) {
  EngineOptions options;
  options.model.path = path;
  options.device.choice = DeviceChoice::cuda;
  options.kv.dtype = kv_dtype;
  return options;
}

double relative_l2(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

TEST_F(Gpu, LogitsAgreeWithTheReference) {
  const Agreement draft = agreement(on_gpu(draft_path()), MILLRACE_TEST_DATA "/reference/demo-draft.bin");
  EXPECT_LE(draft.relative_l2, 2e-3);
  EXPECT_EQ(draft.same_argmax, 1);
  const Agreement mixture = agreement(on_gpu(moe_path()), MILLRACE_TEST_DATA "/reference/demo-moe.bin");
  EXPECT_LE(mixture.relative_l2, 0.15);  // Q4_K_M against float32
}

TEST_F(Gpu, LogitsAgreeWithTheCpus) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    const std::vector<float> gpu = logits_of(on_gpu(path), 200, 1), cpu = logits_of(roomy(path), 200, 1);
    ASSERT_EQ(gpu.size(), cpu.size());
    // Sums run in another order. In the quantized mixture an activation may then round to another int8, and a router
    // that is nearly undecided may choose another expert; in the dense float model there is neither.
    EXPECT_LE(relative_l2(gpu, cpu), path == moe_path() ? 0.1 : 1e-3) << path;
  }
}

/// The copy of a block's beginning has the bits of what was computed, and the answer those of one without it.
TEST_F(Gpu, APromptGoesOnFromTheMiddleOfAnothersBlock) {
  EngineOptions sharing = on_gpu(draft_path());
  sharing.kv.share_prefixes = true;
  const auto engine = make(sharing), alone = make(on_gpu(draft_path()));
  const std::vector<TokenId> first = real_text(*engine, 150);
  std::vector<TokenId> second = first;
  std::rotate(second.begin() + 100, second.begin() + 101, second.end());
  ASSERT_NE(first[100], second[100]);
  ASSERT_TRUE(engine->run(greedy(first, 4)).status.ok());
  const auto answer = [&](Engine& of, std::vector<float>& logits) {
    Request request = greedy(second, 16);
    request.ignore_end_tokens = true;
    request.on_logits = [&](std::int64_t, std::span<const float> row) {
      logits.insert(logits.end(), row.begin(), row.end());
    };
    return of.run(std::move(request));
  };
  std::vector<float> shared, computed;
  EXPECT_EQ(answer(*engine, shared).cached_tokens, 100);  // a block of 64, and 36 of the next one
  EXPECT_EQ(answer(*alone, computed).cached_tokens, 0);
  expect_same_bits(shared, computed);
}

/// The GPU computes the next pass while text is told: nothing of it is lost, late for the end, or out of order.
TEST_F(Gpu, TextIsToldWholeAndBeforeTheEnd) {
  EngineOptions options = on_gpu(moe_path());
  options.demand.max_sequences = 3;
  const auto engine = make(options);
  std::vector<std::string> told(3);
  std::vector<Engine::Id> ids;
  bool token_came_first = true;
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < told.size(); ++i) {
    Request request = greedy(chat(*engine, i == 0 ? "Tell me a short story." : "What is the capital of France?"), 40);
    request.on_text = [&, i](std::string_view text, std::span<const TokenId> ids_of_it) {
      told[i] += text;
      if (i == 2) tokens -= std::ssize(ids_of_it);
      token_came_first = token_came_first && tokens >= 0;
    };
    if (i == 2) request.on_token = [&](const TokenChoice&) { token_came_first = token_came_first && tokens++ >= 0; };
    ids.push_back(*engine->submit(std::move(request)));
  }
  while (!engine->finished(ids[0])) {
    ASSERT_TRUE(engine->step());
    for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(!engine->finished(ids[i]) || !told[i].empty());
  }
  drain(*engine);
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_EQ(engine->take(ids[i]).text, told[i]) << i;
  EXPECT_TRUE(token_came_first);
}

TEST_F(Gpu, QuantizedKvIsNearToHalvesAndToTheCpus) {
  struct Case {
    DType dtype;
    kv::Rotation rotation;
    double to_half, to_cpu;  // of the dense model, relative
  };
  using kv::Rotation;
  for (const Case& c : {Case{DType::q8_0, Rotation::of_format, 2e-2, 1e-2},
                        {DType::q8_0, Rotation::never, 2e-2, 1e-2},
                        {DType::q4_0, Rotation::of_format, 2e-1, 5e-2},
                        {DType::q4_0, Rotation::never, 2e-1, 5e-2},
                        // Levels lie further apart, so that one that is nearly undecided counts more.
                        {DType::q3_k, Rotation::of_format, 3e-1, 1e-1},
                        {DType::q2_0, Rotation::of_format, 5e-1, 2e-1}}) {
    for (const std::string& path : {moe_path(), draft_path()}) {
      EngineOptions options = on_gpu(path, c.dtype);
      options.kv.rotation = c.rotation;
      const std::vector<float> quantized = logits_of(options, 200, 1);
      const std::vector<float> half = logits_of(on_gpu(path), 200, 1);
      EngineOptions on_cpu = roomy(path);
      on_cpu.kv.dtype = c.dtype;
      on_cpu.kv.rotation = c.rotation;
      const std::vector<float> cpu = logits_of(on_cpu, 200, 1);
      ASSERT_EQ(quantized.size(), half.size());
      ASSERT_EQ(quantized.size(), cpu.size());
      const double to_half = relative_l2(quantized, half), to_cpu = relative_l2(quantized, cpu);
      std::printf("%s KV of %s: relative L2 to f16 %.2e, to the CPU's %.2e\n", info(c.dtype).name.data(), path.c_str(),
                  to_half, to_cpu);
      EXPECT_GT(to_half, 0) << "are these the bits of f16?";
      // In the mixture a router that is nearly undecided may choose another expert.
      EXPECT_LE(to_half, path == moe_path() ? std::max(0.3, c.to_half) : c.to_half) << path;
      EXPECT_LE(to_cpu, path == moe_path() ? 0.3 : c.to_cpu) << path;
    }
  }
}

TEST_F(Gpu, QuantizedKvTakes34Or18BytesWhereHalvesTake64) {
  const auto kv_bytes = [](DType dtype) {
    EngineOptions options = on_gpu(draft_path(), dtype);
    options.demand.context_tokens = 512;
    options.demand.max_sequences = 2;
    options.demand.kv_tokens = 1024;
    std::uint64_t bytes = 0;
    const auto engine = make(options);
    if (engine == nullptr) return bytes;
    for (const auto& entry : engine->vram_budget()->entries())
      if (entry.tag == "kv") bytes += entry.bytes;
    return bytes;
  };
  const std::uint64_t half = kv_bytes(DType::f16);
  EXPECT_GT(half, 0u);
  EXPECT_EQ(kv_bytes(DType::q8_0) * 64, half * 34);
  EXPECT_EQ(kv_bytes(DType::q4_0) * 64, half * 18);
}

TEST_F(Gpu, SameBitsHoweverThePassIsCut) {
  for (const DType kv : kKvFormats) {
    const std::vector<float> whole = logits_of(on_gpu(moe_path(), kv), 700, 8);
    for (const std::int64_t batch : {3, 64, 65, 256, 512}) {
      SCOPED_TRACE(::testing::Message() << batch << " rows a pass, KV " << info(kv).name);
      EngineOptions options = on_gpu(moe_path(), kv);
      options.demand.batch_tokens = batch;
      expect_same_bits(logits_of(options, 700, 8), whole);
    }
  }
}

/// Gemma 3's checkpoint: windows of 16 keys, which prompts in passes shorter and longer than that leave behind.
TEST_F(Gpu, WindowsLetGoOfWhatIsBehindThemAndNobodySees) {
  for (const DType kv : kKvFormats) {
    EngineOptions options = on_gpu(MILLRACE_TEST_DATA "/reference/gemma3.gguf", kv);
    options.demand.context_tokens = 4096;
    options.demand.max_sequences = 1;
    const auto random_tokens = [](const Engine& engine, std::int64_t count) {
      std::vector<TokenId> tokens;
      const std::int64_t vocab = engine.model().hyperparameters().vocab;
      for (std::int64_t i = 0; i < count; ++i)
        tokens.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31) % (vocab - 3)));
      return tokens;
    };
    std::vector<float> whole;
    for (const std::int64_t batch : {2048, 3, 64, 65, 512}) {
      SCOPED_TRACE(::testing::Message() << batch << " rows a pass, KV " << info(kv).name);
      options.demand.batch_tokens = batch;
      const auto engine = make(options);
      ASSERT_NE(engine, nullptr);
      Request request = greedy(random_tokens(*engine, 1500), 80);
      std::vector<float> logits;
      keep_logits(request, logits);
      request.logits_of_prompt = false;  // which passes of many rows have no room for
      ASSERT_TRUE(engine->run(std::move(request)).status.ok());
      if (whole.empty()) whole = logits;
      expect_same_bits(logits, whole);
      const kv::Layout& layout = engine->model().program().layout;
      ASSERT_EQ(layout.groups().size(), 2u);
      const bool few = kv_has_few_bits(kv);  // the rows of a pass then lie in plain blocks, too
      if (!few) {
        EXPECT_LT(
            engine->plan_options().kv_bytes,
            static_cast<std::uint64_t>(layout.with(kv, 0).bytes_per_token() * options.demand.context_tokens) * 3 / 4);
      }
      std::uint64_t taken = 0;
      for (const auto& entry : engine->vram_budget()->entries())
        if (entry.tag == "kv") taken += entry.bytes;
      EXPECT_LE(engine->plan_options().kv_bytes, taken) << "allocations are rounded up";
      EXPECT_LE(taken, engine->plan_options().kv_bytes + (std::uint64_t{few ? 8U : 4U} << 20)) << "to 2 MiB a group";
    }
  }
}

TEST_F(Gpu, SameBitsHoweverItIsLaunched) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    for (const DType kv : kKvFormats) {
      SCOPED_TRACE(::testing::Message() << path << ", KV " << info(kv).name);
      const std::vector<float> usual = logits_of(on_gpu(path, kv), 100, 8);
      EngineOptions options = on_gpu(path, kv);
      options.device.graphs = false;
      expect_same_bits(logits_of(options, 100, 8), usual);
      options.device.fuse = false;
      expect_same_bits(logits_of(options, 100, 8), usual);
    }
  }
}

/// Where the layers of a dense model are at home.
struct Homes {
  const char* pins;
  const char* storage;
};

TEST_F(Gpu, SameBitsWhereverTheLayersAreAtHome) {
  const std::vector<float> resident = logits_of(on_gpu(draft_path()), 200, 12);
  for (const char* pins :
       {"0=ram", "0-1=ram", "0-=ram", "1-=disk", "0-=disk", "0=ram,1=disk,2-=ram", "0=disk,1=vram,2-=ram"}) {
    for (const auto storage : {storage::BackendKind::io_uring, storage::BackendKind::pread_direct,
                               storage::BackendKind::pread_buffered, storage::BackendKind::mmap}) {
      SCOPED_TRACE(pins);
      EngineOptions options = on_gpu(draft_path());
      options.memory.pins = *parse_pins(pins);
      options.storage.backend = storage;
      expect_same_bits(logits_of(options, 200, 12), resident);
    }
  }
}

/// Logits of what is decoded after a prompt, and how often the layers crossed for both.
std::vector<float> logits_behind(const EngineOptions& options, std::size_t prompt, std::uint64_t& crossed_bytes) {
  const auto engine = make(options);
  if (engine == nullptr) return {};
  std::vector<float> logits;
  Request request = greedy(real_text(*engine, prompt), 4);
  keep_logits(request, logits);
  request.logits_of_prompt = false;
  const Result result = engine->run(std::move(request));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  crossed_bytes = engine->store_counters().bytes_to_device;
  return logits;
}

TEST_F(Gpu, ALongPromptBringsEveryLayerOnce) {
  constexpr std::size_t kPrompt = 1500;  // three windows of 512 at most
  std::uint64_t none = 0, short_prompt = 0, long_prompt = 0;
  for (const DType kv : kKvFormats) {
    EngineOptions options = on_gpu(draft_path(), kv);
    options.demand.context_tokens = 2048;
    const std::vector<float> resident = logits_behind(options, kPrompt, none);
    EXPECT_EQ(none, 0u);
    for (const char* pins : {"0-=ram", "0-=disk", "0=ram,1=disk,2-=ram"}) {
      SCOPED_TRACE(pins);
      options.memory.pins = *parse_pins(pins);
      expect_same_bits(logits_behind(options, kPrompt, long_prompt), resident);
      logits_behind(options, 100, short_prompt);
      EXPECT_LE(long_prompt, short_prompt + short_prompt / 8);
    }
  }
}

TEST_F(Gpu, SameBitsStraightFromTheDiskToTheGpu) {
  const std::vector<float> resident = logits_of(on_gpu(draft_path()), 200, 12);
  for (const char* pins : {"", "0-=disk", "0=ram,1=disk,2-=disk"}) {
    SCOPED_TRACE(pins);
    EngineOptions options = on_gpu(draft_path());
    options.storage.cufile = true;
    if (pins[0] != '\0') options.memory.pins = *parse_pins(pins);
    if (auto made = Engine::create(options); !made.ok()) {
      ASSERT_EQ(made.status().code(), Code::unsupported) << made.status().message();
      GTEST_SKIP() << made.status().message();
    }
    expect_same_bits(logits_of(options, 200, 12), resident);
  }
}

/// The draft in a dtype whose products are of integers, and whose prompts have products of their own.
std::string quantized_draft() {
  const std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("millrace-draft-{}.gguf", getpid())).string();
  static const bool written = [&] {
    const Status status = modelfile::quantize(draft_path(), path, {.type = modelfile::QuantizeType::q8_0});
    EXPECT_TRUE(status.ok()) << status.message();
    return status.ok();
  }();
  EXPECT_TRUE(written);
  return path;
}

/// So many sequences of different lengths in one batch, each with the bits that it has alone and resident; and the
/// processor had its share of some pass.
void expect_same_bits_beside(const EngineOptions& options, std::size_t sequences) {
  EngineOptions resident = on_gpu(options.model.path);
  std::vector<std::vector<float>> alone(sequences), shared(sequences);
  const auto request_of = [](const Engine& engine, std::size_t i, std::vector<float>& logits) {
    Request request = greedy(real_text(engine, 1 + 13 * i % 70, 31 * i), 10);
    keep_logits(request, logits);
    return request;
  };
  {
    const auto engine = make(resident);
    ASSERT_NE(engine, nullptr);
    for (std::size_t i = 0; i < sequences; ++i)
      ASSERT_NE(engine->run(request_of(*engine, i, alone[i])).finish, Finish::error);
  }
  EngineOptions together = options;
  together.demand.max_sequences = static_cast<std::int64_t>(sequences);
  const auto engine = make(together);
  ASSERT_NE(engine, nullptr);
  for (std::size_t i = 0; i < sequences; ++i) ASSERT_TRUE(engine->submit(request_of(*engine, i, shared[i])).ok());
  drain(*engine);
  for (std::size_t i = 0; i < sequences; ++i) {
    SCOPED_TRACE(i);
    expect_same_bits(shared[i], alone[i]);
  }
  if (sequences <= 8) {
    EXPECT_GT(engine->executor().counters().host_bytes, 0u) << "nothing was shared";
  }
}

TEST_F(Gpu, WhoSharesAPassChangesNoBitBesideTheProcessor) {
  for (const std::string& path : {draft_path(), quantized_draft()}) {
    for (const std::size_t sequences : {1, 2, 8, 9, 12}) {
      SCOPED_TRACE(fmt::format("{}, {} sequences", path, sequences));
      EngineOptions options = on_gpu(path);
      options.memory.pins = *parse_pins("0-=ram");
      options.memory.cpu_share_percent = 50;
      expect_same_bits_beside(options, sequences);
    }
  }
  std::filesystem::remove(quantized_draft());
}

TEST_F(Gpu, TheCpuComputesItsShareOfStreamedRows) {
  const std::vector<float> alone = logits_of(on_gpu(draft_path()), 200, 12);
  for (const char* pins : {"0=ram", "0-=ram", "0=ram,1=disk,2-=ram"}) {
    for (const int share : {10, 50, 95}) {
      SCOPED_TRACE(fmt::format("{} share {}", pins, share));
      EngineOptions options = on_gpu(draft_path());
      options.memory.pins = *parse_pins(pins);
      options.memory.cpu_share_percent = share;
      expect_same_bits(logits_of(options, 200, 12), alone);
    }
  }
}

TEST_F(Gpu, WhatTheCpuComputesDoesNotCrossToTheGpu) {
  std::uint64_t crossed[2] = {};
  for (const std::size_t kind : {0, 1}) {
    EngineOptions options = on_gpu(draft_path());
    options.memory.pins = *parse_pins("0-=ram");
    options.memory.cpu_share_percent = kind == 1 ? 75 : 0;
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    Request request = greedy(real_text(*engine, 3), 40);
    request.ignore_end_tokens = true;
    ASSERT_TRUE(engine->submit(std::move(request)).ok());
    ASSERT_TRUE(engine->step());  // the prompt, whose rows are the GPU's alone
    const std::uint64_t before = engine->store_counters().bytes_to_device;
    drain(*engine);
    crossed[kind] = engine->store_counters().bytes_to_device - before;
  }
  EXPECT_LT(static_cast<double>(crossed[1]), 0.4 * static_cast<double>(crossed[0]));
}

TEST_F(Gpu, ALayerThatDoesNotFitStreamsAndTheCapHolds) {
  EngineOptions options = on_gpu(draft_path());
  options.demand.batch_tokens = 64;
  options.demand.context_tokens = 512;
  std::uint64_t all = 0;
  const std::vector<float> resident = logits_of(options, 60, 8);
  {
    const auto engine = make(options);
    all = engine->vram_budget()->reserved_bytes();
  }
  options.memory.vram_bytes = all - 1;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(engine->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
  std::vector<float> logits;
  Request request = greedy(real_text(*engine, 60), 8);
  keep_logits(request, logits);
  EXPECT_NE(engine->run(std::move(request)).finish, Finish::error);
  expect_same_bits(logits, resident);
  EXPECT_GT(engine->store_counters().bytes_to_device, 0u);
}

TEST_F(Gpu, LayersLieInTheMemoryOfKvUntilThatIsNeeded) {
  EngineOptions options = on_gpu(draft_path());
  options.demand.batch_tokens = 64;
  options.demand.context_tokens = 2048;
  options.demand.max_sequences = 1;
  options.memory.cpu_share_percent = 0;
  const auto resident = make(options);
  ASSERT_NE(resident, nullptr);
  // KV is 1.6 MB, a layer 0.4 MB: all of them stream, and two fit into what KV leaves at first.
  options.memory.vram_bytes = resident->vram_budget()->reserved_bytes() - 1'000'000;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  // Runs both; returns what crossed in the one that streams.
  const auto crossed = [&](std::size_t prompt, std::int64_t tokens) {
    std::vector<float> logits[2];
    const std::uint64_t before = engine->store_counters().bytes_to_device;
    for (const bool streams : {false, true}) {
      Engine& which = streams ? *engine : *resident;
      Request request = greedy(real_text(which, prompt), tokens);
      keep_logits(request, logits[streams ? 1 : 0]);
      request.logits_of_prompt = false;
      EXPECT_NE(which.run(std::move(request)).finish, Finish::error);
    }
    expect_same_bits(logits[1], logits[0]);
    EXPECT_LE(engine->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
    return engine->store_counters().bytes_to_device - before;
  };
  const auto by_ten_tokens = [&](std::size_t prompt) {
    crossed(prompt, 2);
    const std::uint64_t two = crossed(prompt, 2);
    return crossed(prompt, 12) - two;
  };
  const std::uint64_t few = by_ten_tokens(60), many = by_ten_tokens(1900);
  EXPECT_GT(many, 0u) << "nothing streamed";
  EXPECT_LT(few, many) << "no layer lay in spare memory, or none gave way";
  EXPECT_EQ(by_ten_tokens(60), few) << "they did not come back";
}

TEST_F(Gpu, AReadErrorFailsTheRequestAndTheNextOneIsRight) {
  const std::vector<float> resident = logits_of(on_gpu(draft_path()), 100, 8);
  EngineOptions options = on_gpu(draft_path());
  options.memory.pins = *parse_pins("0-=disk");
  options.storage.faults.push_back({.kind = storage::Fault::Kind::eio, .after_reads = 60});
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  int failed = 0, right = 0;
  for (int i = 0; i < 6; ++i) {
    std::vector<float> logits;
    Request request = greedy(real_text(*engine, 100), 8);
    keep_logits(request, logits);
    const Result result = engine->run(std::move(request));
    if (result.finish == Finish::error) {
      ++failed;
      EXPECT_EQ(result.status.code(), Code::io_error);
    } else {
      ++right;
      expect_same_bits(logits, resident);
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(right, 5);
}

void expect_same_bits_in_a_batch_of_eight(DType kv) {
  // Beyond what lies in plain blocks, where there are some.
  const std::size_t more = kv_has_few_bits(kv) ? 200 : 0;
  const std::vector<float> alone = logits_of(on_gpu(moe_path(), kv), 90 + more, 8);
  EngineOptions options = on_gpu(moe_path(), kv);
  options.demand.max_sequences = 8;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  std::vector<float> shared;
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < 8; ++i) {
    Request request = greedy(real_text(*engine, more + (i == 3 ? 90 : 40 + 7 * i), i == 3 ? 0 : 50 * i + 9), 8);
    if (i == 3) keep_logits(request, shared);
    request.ignore_end_tokens = true;
    const auto id = engine->submit(std::move(request));
    ASSERT_TRUE(id.ok());
    ids.push_back(*id);
  }
  drain(*engine);
  expect_same_bits(shared, alone);
}

TEST_F(Gpu, ADiskThatStallsMakesARequestSlowAndNotWrong) {
  const std::vector<float> resident = logits_of(on_gpu(draft_path()), 50, 4);
  EngineOptions options = on_gpu(draft_path());
  options.memory.pins = *parse_pins("0-=disk");
  options.storage.faults.push_back({.kind = storage::Fault::Kind::stall, .after_reads = 80, .stall_ms = 1500});
  const auto begin = std::chrono::steady_clock::now();
  expect_same_bits(logits_of(options, 50, 4), resident);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(1400)) << "nothing stalled";
}

TEST_F(Gpu, AFileThatIsCutWhileItStreamsEndsTheRequestAndNotTheProcess) {
  const std::string copy = (std::filesystem::temp_directory_path() / "millrace-cut-gpu.gguf").string();
  std::filesystem::copy_file(draft_path(), copy, std::filesystem::copy_options::overwrite_existing);
  EngineOptions options = on_gpu(copy);
  options.memory.pins = *parse_pins("0-=disk");
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  EXPECT_NE(engine->run(greedy(real_text(*engine, 50), 4)).finish, Finish::error);
  std::filesystem::resize_file(copy, std::filesystem::file_size(copy) / 2);
  for (int i = 0; i < 2; ++i) {
    const Result result = engine->run(greedy(real_text(*engine, 50), 4));
    EXPECT_EQ(result.finish, Finish::error);
    EXPECT_EQ(result.text, "") << "no token of a pass over a cut file may be believed";
    EXPECT_FALSE(result.status.message().empty());
  }
  std::filesystem::remove(copy);
}

TEST_F(Gpu, VramThatAnotherTakesAfterPlanningIsSaidAndNoCrash) {
  EngineOptions options = on_gpu(draft_path());
  std::vector<device::DeviceBuffer> taken;
  options.watch.on_load = [&](std::uint64_t, std::uint64_t) {
    // All that is left, in ever smaller pieces.
    for (std::size_t bytes = std::size_t{16} << 30; taken.size() < 1000 && bytes >= 1u << 20;) {
      auto memory = device::DeviceBuffer::allocate(bytes);
      if (memory.ok()) {
        taken.push_back(std::move(*memory));
      } else {
        bytes /= 2;
      }
    }
    return true;
  };
  const auto made = Engine::create(options);
  ASSERT_FALSE(taken.empty());
  taken.clear();
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::out_of_budget) << made.status().message();
  EXPECT_NE(made.status().message().find("out of memory"), std::string::npos) << made.status().message();
  EXPECT_EQ(logits_of(on_gpu(draft_path()), 10, 2).empty(), false);
}

TEST_F(Gpu, AModelThatClosesLeavesNoFileOpen) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  std::ptrdiff_t before = 0;
  for (int time = 0; time < 4; ++time) {
    ASSERT_NE(make(on_gpu(moe_path())), nullptr);
    if (time == 0) before = open_files();  // what the driver opens once stays open
  }
  EXPECT_LE(open_files(), before);
}

TEST_F(Gpu, SameBitsInABatchOfEight) {
  for (const DType kv : kKvFormats) expect_same_bits_in_a_batch_of_eight(kv);
}

/// The embedding of some tokens of text, alone or the fourth of eight.
std::vector<float> embedding_of(EngineOptions options, model::Pooling pooling, bool in_batch, std::size_t tokens = 90) {
  options.demand.max_sequences = in_batch ? 8 : 1;
  const auto engine = make(options);
  if (engine == nullptr) return {};
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < (in_batch ? 8 : 1); ++i) {
    const bool it = !in_batch || i == 3;
    Request request = greedy(real_text(*engine, it ? tokens : 40 + 7 * i, it ? 0 : 50 * i + 9), 8);
    if (it || i % 2 == 0) request.pooling = pooling;
    const auto id = engine->submit(std::move(request));
    EXPECT_TRUE(id.ok()) << id.status().message();
    ids.push_back(id.ok() ? *id : 0);
  }
  drain(*engine);
  const Result result = engine->take(ids[in_batch ? 3 : 0]);
  EXPECT_EQ(result.finish, Finish::stop) << result.status.message();
  return result.embedding;
}

TEST_F(Gpu, EmbeddingsAgreeWithTheCpusAndAreTheSameInABatch) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    for (const model::Pooling pooling : {model::Pooling::mean, model::Pooling::last}) {
      const std::vector<float> gpu = embedding_of(on_gpu(path), pooling, false);
      const std::vector<float> cpu = embedding_of(roomy(path), pooling, false);
      ASSERT_EQ(gpu.size(), cpu.size());
      ASSERT_FALSE(gpu.empty());
      // Both have length 1. As for logits: in the mixture a router may choose another expert.
      EXPECT_LE(relative_l2(gpu, cpu), path == moe_path() ? 0.1 : 1e-3) << path;
      expect_same_bits(embedding_of(on_gpu(path), pooling, true), gpu);
      EngineOptions plain = on_gpu(path);
      plain.device.fuse = plain.device.graphs = false;
      expect_same_bits(embedding_of(plain, pooling, false), gpu);
      EngineOptions cut = on_gpu(path);
      cut.demand.batch_tokens = 16;  // passes that are replayed as graphs
      expect_same_bits(embedding_of(cut, pooling, false), gpu);
      if (path == moe_path()) continue;
      EngineOptions streaming = on_gpu(path);
      streaming.memory.pins = *parse_pins("0-=ram");
      expect_same_bits(embedding_of(streaming, pooling, false), gpu);
      expect_same_bits(embedding_of(streaming, pooling, false, 1500), embedding_of(on_gpu(path), pooling, false, 1500));
    }
  }
}

TEST_F(Gpu, TheGpuPicksTheTokensThatTheHostWould) {
  const auto engine = make(on_gpu(moe_path()));
  for (const int top_k : {0, 1, 40, 64}) {
    for (const float temperature : {0.0f, 0.9f}) {
      Request request = greedy(chat(*engine, "Tell a story about a fox."), 40);
      request.sampler.temperature = temperature;
      request.sampler.top_k = top_k;
      request.sampler.seed = 7;
      for (const bool cut : {true, false}) {
        if (!cut) request.sampler.top_p = 1, request.sampler.min_p = 0;
        Request with_all_logits = request;
        with_all_logits.on_logits = [](std::int64_t, std::span<const float>) {};
        EXPECT_EQ(engine->run(request).tokens, engine->run(std::move(with_all_logits)).tokens);
      }
    }
  }
}

/// Who looks at all logits, for a while, changes nothing for those that share its passes.
TEST_F(Gpu, DrawsAreTheSameBesideOthers) {
  EngineOptions options = on_gpu(moe_path());
  options.demand.max_sequences = 3;
  const auto engine = make(options);
  std::vector<Request> requests;
  for (int r = 0; r < 3; ++r) {
    requests.push_back(greedy(chat(*engine, "Tell a story about a fox."), 40));
    requests.back().sampler = {.temperature = 1, .top_k = r == 1 ? 40 : 0, .top_p = 1, .min_p = 0, .seed = 11};
    requests.back().ignore_end_tokens = true;
  }
  requests[2].sampler.penalties.repeat = 1.1f;
  requests[2].max_tokens = 15;
  std::vector<Engine::Id> ids;
  for (const Request& request : requests) ids.push_back(engine->submit(request).value());
  while (engine->step()) {
  }
  for (std::size_t r = 0; r < requests.size(); ++r)
    EXPECT_EQ(engine->take(ids[r]).tokens, engine->run(requests[r]).tokens) << r;
}

TEST_F(Gpu, ADecodedTokenIsOneLaunchAndOneReadBack) {
  const auto engine = make(on_gpu(moe_path()));
  Request request = greedy(chat(*engine, "Tell a story about a fox."), 100);
  request.ignore_end_tokens = true;
  std::vector<device::DeviceCounters> seen;
  request.on_text = [&](std::string_view, std::span<const TokenId>) { seen.push_back(device::device_counters()); };
  engine->run(request);  // captures its graphs
  seen.clear();
  const device::DeviceCounters before = device::device_counters();
  const Result result = engine->run(request);
  const device::DeviceCounters after = device::device_counters();
  const auto passes = static_cast<std::uint64_t>(result.tokens.size());  // the prompt is few rows, too
  EXPECT_EQ(after.graph_launches - before.graph_launches, passes);
  EXPECT_EQ(after.synchronisations - before.synchronisations, passes);
  EXPECT_EQ(after.kernel_launches, before.kernel_launches);
  EXPECT_EQ(after.copies_to_host, before.copies_to_host);  // the one read-back is inside the graph
  EXPECT_EQ(after.allocations, before.allocations);
}

TEST_F(Gpu, TheCapOnDeviceMemoryHolds) {
  EngineOptions options = on_gpu(moe_path());
  options.memory.vram_bytes = 300'000'000;  // less than a CUDA context takes
  const Status refused = Engine::create(options).status();
  EXPECT_EQ(refused.code(), Code::out_of_budget);
  EXPECT_NE(refused.message().find("is the least that works"), std::string::npos) << refused.message();

  options.memory.vram_bytes = 1'500'000'000;
  const auto before = device::vram_state();
  ASSERT_TRUE(before.ok());
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  Request request = greedy(real_text(*engine, 700), 64);
  request.ignore_end_tokens = true;
  engine->run(std::move(request));
  const auto after = device::vram_state();
  ASSERT_TRUE(after.ok());
  const std::uint64_t taken = before->free_bytes - std::min(before->free_bytes, after->free_bytes);
  std::uint64_t granted = 0;
  for (const auto& entry : engine->vram_budget()->entries())
    if (entry.tag != "CUDA context") granted += entry.bytes;
  EXPECT_LE(engine->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
  EXPECT_LE(taken, granted + (std::uint64_t{200} << 20)) << "more than was granted, by more than the driver's margin";
}

TEST_F(Gpu, AutomaticTakesTheGpuUnlessTheModelDoesNotFit) {
  EngineOptions options;
  options.model.path = moe_path();
  EXPECT_NE(make(options)->vram_budget(), nullptr);
  options.memory.vram_bytes = 300'000'000;
  EXPECT_EQ(make(options)->vram_budget(), nullptr);
}

TEST_F(Gpu, KernelsOfTheCpuByNameTakeTheGpuWhereVramIsGiven) {
  EngineOptions options;
  options.model.path = draft_path();
  options.device.best_isa = false;
  options.device.isa = device::Isa::plain;
  EXPECT_EQ(make(options)->vram_budget(), nullptr) << "nothing speaks of a GPU";
  options.memory.vram_bytes = 2'000'000'000;
  EXPECT_NE(make(options)->vram_budget(), nullptr);
}

TEST_F(Gpu, AutomaticTakesWhoeverIsPredictedToDecodeFaster) {
  EngineOptions options = on_gpu(draft_path());
  options.demand.batch_tokens = 64;
  options.demand.context_tokens = 512;
  const std::uint64_t all = make(options)->vram_budget()->reserved_bytes();
  options.device.choice = DeviceChoice::automatic;
  options.memory.vram_bytes = all - 1;  // a layer streams
  options.memory.ram_bytes = 1'000'000'000;
  options.memory.exact_budget = true;
  const residency::Rates slow_link{
      .disk = 3e9, .ram = 1e9, .cpu_decode = 1e9, .host_to_device = 1e6, .device_memory = 1e12, .machine = "a test"};
  options.planning.rates = slow_link;
  const auto gpu_takes = [&] {
    const auto planned = plan_only(options);
    EXPECT_TRUE(planned.ok()) << planned.status().message();
    const auto engine = make(options);
    if (engine == nullptr || !planned.ok()) return false;
    const bool gpu = engine->vram_budget() != nullptr;
    EXPECT_EQ(planned->saved.gpu, gpu) << "plan and run choose alike";
    std::printf("the %s, predicted at %.3g tok/s\n", gpu ? "GPU" : "CPU",
                engine->plan().predicted_decode_tokens_per_second);
    EXPECT_NE(engine->run(greedy(real_text(*engine, 20), 4)).finish, Finish::error);
    return gpu;
  };
  EXPECT_FALSE(gpu_takes()) << "a megabyte a second across the link";
  options.planning.rates.host_to_device = 5e10;
  options.planning.rates.cpu_decode = options.planning.rates.ram = 1e7;
  EXPECT_TRUE(gpu_takes()) << "ten megabytes a second on the CPU";
  options.planning.rates = {};
  EXPECT_TRUE(gpu_takes()) << "nothing is known";
  options.planning.rates = slow_link;
  options.memory.vram_bytes = 0;
  options.memory.ram_bytes = 0;
  EXPECT_TRUE(gpu_takes()) << "a model that fits";
  options.device.choice = DeviceChoice::cuda;
  options.memory.vram_bytes = all - 1;
  EXPECT_TRUE(gpu_takes()) << "who asks for the GPU gets it";
}

TEST_F(Gpu, AGpuThatIsNotThereIsSaid) {
  EngineOptions options = on_gpu(moe_path());
  options.device.gpu = 99;
  const Status status = Engine::create(options).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("cuda:99"), std::string::npos) << status.message();
}

TEST_F(Gpu, ASessionKeepsWhatItHolds) {
  const auto engine = make(on_gpu(moe_path()));
  const auto session = engine->new_session();
  Request first = greedy(chat(*engine, "What is the capital of France?"), 20);
  const Result answer = engine->run(first, session.get());
  ASSERT_EQ(answer.finish, Finish::stop) << answer.status.message();
  EXPECT_NE(answer.text.find("Paris"), std::string::npos);
  // The same prompt again, all of it but its last token already held.
  EXPECT_EQ(engine->run(first, session.get()).text, answer.text);
}

}  // namespace
}  // namespace millrace::engine
