// A model that streams to the GPU under both caps, held to what the driver and the kernel count; plans on paper and
// prompts on the disk, as the CPU's tests have them.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <regex>
#include <thread>

#include "cuda_engine/on_gpu.h"
#include "device/cpu.h"
#include "device/device.h"
#include "device/gpu.h"
#include "engine/support.h"
#include "environment.h"
#include "synth-model/write.h"

namespace millrace::engine {
namespace {

using namespace test;
namespace fs = std::filesystem;

const std::uint64_t kBareResident = device::resident_bytes();  // before anybody asks for CUDA

EngineOptions on_gpu(const std::string& path) {
  EngineOptions options;
  options.model.path = path;
  options.device.choice = DeviceChoice::cuda;
  return options;
}

// ---- caps

constexpr std::int64_t kVocab = 8000;
constexpr const char* kModelVariable = "MILLRACE_TEST_STREAMED_MODEL";
constexpr const char* kDraftVariable = "MILLRACE_TEST_DRAFT_MODEL";
constexpr const char* kDriverVariable = "MILLRACE_TEST_DRIVER_BYTES";

/// A line of /proc/self/status, in bytes; 0 where it is missing.
std::uint64_t status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10) * 1024;
  return 0;
}

/// Asks the driver again and again how much memory is free, from start() on.
class FreeVram {
 public:
  ~FreeVram() { stop(); }
  /// REQUIRES: there is a context; this must not be what creates it.
  void start() {
    if (thread_.joinable()) return;
    thread_ = std::thread([this] {
      while (!ended_) {
        sample();
        std::this_thread::sleep_for(std::chrono::microseconds(500));
      }
    });
  }
  void stop() {
    if (!thread_.joinable()) return;
    ended_ = true;
    thread_.join();
    sample();
  }
  std::uint64_t least() const { return least_; }
  std::uint64_t samples() const { return samples_; }

 private:
  void sample() {
    const auto state = device::vram_state();
    if (!state.ok()) return;
    least_ = std::min(least_, state->free_bytes);
    ++samples_;
  }
  std::thread thread_;
  std::atomic<bool> ended_{false};
  std::uint64_t least_ = UINT64_MAX, samples_ = 0;
};

/// A prompt and a decode under both caps, in a process that did nothing before: 0, or how many things were wrong, said
/// on stderr. draft: a model that guesses, from VRAM; empty: none.
int run_capped(const std::string& path, std::uint64_t vram_bytes, std::uint64_t ram_bytes, int share,
               const std::string& draft = {}) {
  int wrong = 0;
  const auto expect = [&](bool right, const std::string& what) {
    if (right) return;
    std::fprintf(stderr, "share %d %%: %s\n", share, what.c_str());
    ++wrong;
  };
  const auto before = device::vram_state_without_context(0);
  FreeVram free;
  EngineOptions options = on_gpu(path);
  options.memory.vram_bytes = vram_bytes;
  options.memory.ram_bytes = ram_bytes;
  options.memory.bare_resident_bytes = kBareResident;
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = 256;
  options.device.threads = std::min(8, ThreadPool::usable_processors());
  options.memory.cpu_share_percent = share;
  options.planning.find_rates = share < 0;        // which takes memory, too
  options.memory.pins = *parse_pins("21-=disk");  // three layers, whatever there is room for
  options.watch.on_load = [&](std::uint64_t, std::uint64_t) {
    free.start();
    return true;
  };
  options.speculate.draft_model = draft;
  if (!draft.empty()) options.speculate.mode = SpeculateOptions::Mode::fixed, options.speculate.drafts = 4;
  auto made = Engine::create(options);
  if (!made.ok()) {
    expect(false, made.status().message());
    return wrong;
  }
  Engine& engine = **made;
  expect(draft.empty() || engine.draft_seat().place == DraftPlace::gpu,
         "the draft model: " + engine.draft_seat().words);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 300; ++i) prompt.push_back(static_cast<TokenId>(5 + i * 37 % (kVocab - 5)));
  Request request = greedy(prompt, 40);
  request.ignore_end_tokens = true;
  const Result result = engine.run(std::move(request));
  free.stop();
  expect(result.finish == Finish::length && result.tokens.size() == 40, "no answer: " + result.status.message());
  const residency::StoreCounters moved = engine.store_counters();
  expect(draft.empty() || (result.drafted > 0 && engine.load().drafts.size() == 1), "nobody guessed");
  expect(moved.bytes_to_device > 0, "nothing crossed to the GPU");
  expect(moved.bytes_from_disk > 0, "nothing came from the disk");
  expect(share < 0 || (moved.host_bytes > 0) == (share > 0),
         fmt::format("the CPU computed with {} bytes", moved.host_bytes));

  std::uint64_t locked = 0;
  for (const auto& entry : engine.budget().entries())
    if (entry.tag == "page-locked weights") locked += entry.bytes;
  // Registered pages are the process's own and count as resident. Were they the driver's, the kernel would tell them
  // apart, and they would come on top.
  const std::uint64_t grown = device::peak_resident_bytes() - kBareResident;
  const std::uint64_t pinned = status_bytes("VmPin") + status_bytes("VmLck");
  const bool resident = grown >= locked;
  const std::uint64_t host = grown + (resident ? 0 : pinned);
  std::printf(
      "share %d %%: RAM %s of %s (page-locked weights %s, %s; VmPin and VmLck %s; granted %s), to the GPU %s, from "
      "the disk %s\n",
      share, format_bytes(host).c_str(), format_bytes(ram_bytes).c_str(), format_bytes(locked).c_str(),
      resident ? "resident" : "not resident", format_bytes(pinned).c_str(),
      format_bytes(engine.budget().reserved_bytes()).c_str(), format_bytes(moved.bytes_to_device).c_str(),
      format_bytes(moved.bytes_from_disk).c_str());
  expect(host <= ram_bytes, fmt::format("{} of RAM under a cap of {}", host, ram_bytes));
  expect(engine.budget().reserved_bytes() <= ram_bytes, "more RAM granted than there is");
  expect(engine.vram_budget()->reserved_bytes() <= vram_bytes, "more VRAM granted than there is");
  if (!before.ok()) {
    std::printf("share %d %%: VRAM not held to the cap: %s\n", share, before.status().message().c_str());
    return wrong;
  }
  const std::uint64_t taken = before->free_bytes - std::min(before->free_bytes, free.least());
  std::printf("share %d %%: VRAM %s of %s (granted %s), asked %llu times\n", share, format_bytes(taken).c_str(),
              format_bytes(vram_bytes).c_str(), format_bytes(engine.vram_budget()->reserved_bytes()).c_str(),
              static_cast<unsigned long long>(free.samples()));
  expect(free.samples() > 10, "the driver was hardly asked");
  expect(taken <= vram_bytes, fmt::format("{} of VRAM under a cap of {}", taken, vram_bytes));
  return wrong;
}

/// Each case runs in a process of its own (gtest's "threadsafe" death tests start the program anew for it): only there
/// is the CUDA context part of what is counted, and the peak that run's. What the first process finds out for them it
/// hands down in the environment.
class StreamingCaps : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    if (IsSkipped() || std::getenv(kModelVariable) != nullptr) return;
    made_ = (fs::temp_directory_path() / fmt::format("millrace-streamed-{}.gguf", getpid())).string();
    synth::Shape shape;  // 763 MB
    shape.layers = 24, shape.dim = 1024, shape.ff = 4096, shape.heads = 16, shape.kv_heads = 4, shape.head_dim = 64;
    shape.vocab = kVocab;
    const auto written = synth::write(made_, shape, {});
    ASSERT_TRUE(written.ok()) << written.status().message();
    millrace::test::set_variable(kModelVariable, made_.c_str());
    draft_ = made_ + ".draft";
    shape.layers = 4, shape.dim = 256, shape.ff = 512, shape.heads = 4;
    const auto draft = synth::write(draft_, shape, {});
    ASSERT_TRUE(draft.ok()) << draft.status().message();
    millrace::test::set_variable(kDraftVariable, draft_.c_str());
    // What the driver takes of host memory differs from version to version, by more than a layer.
    ASSERT_TRUE(device::use_gpu(0).ok());
    millrace::test::set_variable(kDriverVariable, std::to_string(device::resident_bytes() - kBareResident).c_str());
  }
  void TearDown() override {
    if (made_.empty()) return;
    fs::remove(made_);
    fs::remove(draft_);
    millrace::test::unset_variable(kModelVariable);
    millrace::test::unset_variable(kDraftVariable);
  }
  std::string made_, draft_;
};

TEST_F(StreamingCaps, HoldForDecodeAndPromptWithAndWithoutTheCpu) {
  const std::string path = std::getenv(kModelVariable);
  // Context and margins take more than half of it, so a part of the layers has to stream.
  const std::uint64_t vram = 1'250'000'000;
  // Margins, staging, the ring and the embedding take 170 MB: there is room for some of the layers that stream.
  const std::uint64_t ram = std::strtoull(std::getenv(kDriverVariable), nullptr, 10) + 350'000'000;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int share : {0, 50, -1}) {
    EXPECT_EXIT(
        {
          const int wrong = run_capped(path, vram, ram, share);
          std::fflush(nullptr);
          _exit(wrong == 0 ? 0 : 1);
        },
        ::testing::ExitedWithCode(0), "")
        << "share " << share;
  }
}

TEST_F(StreamingCaps, HoldWithADraftModelInVram) {
  const std::string path = std::getenv(kModelVariable), draft = std::getenv(kDraftVariable);
  const std::uint64_t vram = 1'300'000'000;
  const std::uint64_t ram = std::strtoull(std::getenv(kDriverVariable), nullptr, 10) + 400'000'000;
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const int wrong = run_capped(path, vram, ram, 50, draft);
        std::fflush(nullptr);
        _exit(wrong == 0 ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(StreamingCaps, AMachineThatWasNeverCalibratedIsMeasuredAtTheStart) {
  EngineOptions options = on_gpu(std::getenv(kModelVariable));
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = 64;
  options.memory.pins = *parse_pins("0-=ram");
  options.planning.find_rates = true;
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("millrace-rates-{}", getpid());
  millrace::test::set_variable("XDG_CACHE_HOME", folder.string().c_str());  // where no rates are kept
  const auto begin = std::chrono::steady_clock::now();
  const auto planned = plan_only(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const residency::Rates& rates = planned->saved.rates;
  std::printf("%.2f s: link %.3g B/s (busy %.3g), CPU %.3g (busy %.3g), VRAM %.3g, share %d permille\n", seconds,
              rates.host_to_device, rates.host_to_device_busy, rates.cpu_decode, rates.cpu_decode_busy,
              rates.device_memory, planned->plan.cpu_permille);
  EXPECT_LT(seconds, 4) << "a second was promised, besides reading the file's head";
  EXPECT_GT(rates.host_to_device, 1e8);
  EXPECT_GT(rates.host_to_device_busy, 1e8);
  EXPECT_GT(rates.cpu_decode, 1e8);
  EXPECT_GT(rates.cpu_decode_busy, 1e8);
  EXPECT_GT(rates.device_memory, rates.host_to_device);
  EXPECT_EQ(planned->plan.cpu_permille % 50, 0);
  EXPECT_GT(planned->plan.predicted_decode_tokens_per_second, 0);

  options.planning.rates = rates;  // what is known is not measured again, and decides exactly
  const auto known = plan_only(options);
  ASSERT_TRUE(known.ok());
  EXPECT_EQ(known->saved.rates.host_to_device, rates.host_to_device);
  EXPECT_NEAR(known->plan.cpu_permille, planned->plan.cpu_permille, 25);
  options.planning.rates = {};
  options.planning.find_rates = false;
  const auto unknown = plan_only(options);
  ASSERT_TRUE(unknown.ok());
  EXPECT_EQ(unknown->saved.rates.host_to_device, 0);
  EXPECT_EQ(unknown->plan.cpu_permille, 0);
  millrace::test::unset_variable("XDG_CACHE_HOME");
  std::filesystem::remove_all(folder);
}

// ---- plans on paper

class GpuPlanOnPaper : public OnGpu {};

std::optional<std::uint64_t> named(const std::string& flag, const std::string& message) {
  std::smatch match;
  if (!std::regex_search(message, match, std::regex(flag + " ([0-9.]+[A-Za-z]*)"))) return std::nullopt;
  const Expected<std::uint64_t> bytes = parse_bytes(match[1].str());
  return bytes.ok() ? std::optional(*bytes) : std::nullopt;
}

struct Logged {
  std::vector<float> logits;
  std::vector<TokenId> tokens;
};
Logged logged(Engine& engine, std::size_t prompt, std::int64_t decoded) {
  Logged logged;
  Request request = greedy(real_text(engine, prompt), decoded);
  keep_logits(request, logged.logits);
  Result result = engine.run(std::move(request));
  EXPECT_NE(result.finish, Finish::error) << result.status.message();
  logged.tokens = std::move(result.tokens);
  return logged;
}

/// What the command line makes of a plan on paper.
EngineOptions follow(const std::string& path, const residency::SavedPlan& saved) {
  EngineOptions options = on_gpu(path);
  options.memory.vram_bytes = saved.vram_bytes;
  options.memory.ram_bytes = saved.ram_bytes;
  options.demand.context_tokens = saved.context_tokens;
  options.demand.batch_tokens = saved.batch_tokens;
  options.memory.tile_bytes = saved.tile_bytes;
  options.planning.follow = std::make_shared<const residency::SavedPlan>(saved);
  return options;
}

residency::SavedPlan through_paper(const Engine& engine) {
  const auto read = residency::parse_plan_json(residency::plan_to_json(engine.saved_plan()));
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? *read : residency::SavedPlan();
}

TEST_F(GpuPlanOnPaper, IsFollowedWithTheSameHomesAndBits) {
  struct Case {
    const char* pins;
    int share;
  };
  for (const Case& c : {Case{"", -1}, Case{"0=ram,1=disk,2-=ram", 0}, Case{"0-=ram", 50}, Case{"1-=disk", -1}}) {
    SCOPED_TRACE(fmt::format("pins '{}' share {}", c.pins, c.share));
    EngineOptions options = on_gpu(draft_path());
    options.demand.context_tokens = 512;
    options.demand.batch_tokens = 64;
    options.memory.pins = *parse_pins(c.pins);
    options.memory.cpu_share_percent = c.share;
    Logged first;
    residency::SavedPlan saved;
    {
      const auto engine = make(options);
      ASSERT_NE(engine, nullptr);
      first = logged(*engine, 100, 12);
      saved = through_paper(*engine);
    }
    EXPECT_TRUE(saved.gpu);
    EXPECT_EQ(saved.decisions.cpu_permille, c.share > 0 ? c.share * 10 : 0);
    const auto follower = make(follow(draft_path(), saved));
    ASSERT_NE(follower, nullptr);
    const residency::SavedPlan again = through_paper(*follower);
    EXPECT_EQ(again.homes, saved.homes);
    EXPECT_EQ(again.decisions.ring_slots, saved.decisions.ring_slots);
    EXPECT_EQ(again.decisions.cpu_permille, saved.decisions.cpu_permille);
    EXPECT_EQ(again.context_tokens, saved.context_tokens);
    EXPECT_EQ(again.batch_tokens, saved.batch_tokens);
    const Logged second = logged(*follower, 100, 12);
    EXPECT_EQ(second.tokens, first.tokens);
    EXPECT_TRUE(second.logits == first.logits);
  }
}

TEST_F(GpuPlanOnPaper, UnderASmallerCapNamesTheLeastThatWorks) {
  EngineOptions options = on_gpu(draft_path());
  options.demand.context_tokens = 512;
  options.demand.batch_tokens = 64;
  options.memory.pins = *parse_pins("0=ram,1=disk,2-=vram");
  residency::SavedPlan saved;
  Logged first;
  {
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    saved = through_paper(*engine);
    first = logged(*engine, 50, 4);
  }
  EngineOptions less = follow(draft_path(), saved);
  less.memory.vram_bytes = 50'000'000;  // less than the driver's margin alone
  const Status vram = Engine::create(less).status();
  EXPECT_EQ(vram.code(), Code::out_of_budget);
  EXPECT_NE(vram.message().find("the plan takes"), std::string::npos) << vram.message();
  const auto least_vram = named("--vram", vram.message());
  ASSERT_TRUE(least_vram) << vram.message();
  less.memory.vram_bytes = *least_vram + 64 * kMiB;  // what the driver takes is measured anew
  less.memory.ram_bytes = 5'000'000;
  const Status ram = Engine::create(less).status();
  EXPECT_EQ(ram.code(), Code::out_of_budget);
  EXPECT_NE(ram.message().find("of RAM"), std::string::npos) << ram.message();
  const auto least_ram = named_ram(ram.message());
  ASSERT_TRUE(least_ram) << ram.message();
  less.memory.ram_bytes = *least_ram + 64 * kMiB;  // this process may have grown since
  const auto follower = make(less);
  ASSERT_NE(follower, nullptr);
  EXPECT_TRUE(logged(*follower, 50, 4).logits == first.logits);
}

TEST_F(GpuPlanOnPaper, OfTheCpuOrOfAnotherModelIsRefused) {
  const auto cpu = make(roomy(draft_path()));
  const residency::SavedPlan of_cpu = through_paper(*cpu);
  EngineOptions options = on_gpu(draft_path());
  options.planning.follow = std::make_shared<const residency::SavedPlan>(of_cpu);
  const Status refused = Engine::create(options).status();
  EXPECT_EQ(refused.code(), Code::invalid_argument);
  EXPECT_NE(refused.message().find("the plan is for"), std::string::npos) << refused.message();

  const auto gpu = make(on_gpu(draft_path()));
  ASSERT_NE(gpu, nullptr);
  const Status other = Engine::create(follow(moe_path(), through_paper(*gpu))).status();
  EXPECT_EQ(other.code(), Code::invalid_argument);
  EXPECT_NE(other.message().find("another model"), std::string::npos) << other.message();
}

// ---- prompts on the disk

class GpuPromptCache : public OnGpu {
 protected:
  void SetUp() override {
    OnGpu::SetUp();
    fs::remove_all(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  EngineOptions caching(const std::string& path, DType kv = DType::f16) const {
    EngineOptions options = on_gpu(path);
    options.demand.context_tokens = 512;
    options.kv.dtype = kv;
    options.kv.prompt_cache = folder_.string();
    options.kv.prompt_cache_seconds = 0;
    return options;
  }
  std::size_t files() const {
    return fs::exists(folder_)
               ? static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()))
               : 0;
  }
  fs::path folder_ = fs::temp_directory_path() / fmt::format("millrace-gpu-prompts-{}", getpid());
};

struct Answer {
  Result result;
  std::vector<float> logits;  // of the sampled rows
  std::uint64_t rows = 0;
};
Answer ask(const EngineOptions& options, const std::vector<TokenId>& prompt) {
  Answer answer;
  const auto engine = make(options);
  if (engine == nullptr) return answer;
  Request request = greedy(prompt, 8);
  request.ignore_end_tokens = true;
  request.on_logits = [&](std::int64_t, std::span<const float> row) {
    answer.logits.insert(answer.logits.end(), row.begin(), row.end());
  };
  answer.result = engine->run(std::move(request));
  answer.rows = engine->load().rows;
  EXPECT_EQ(answer.result.finish, Finish::length) << answer.result.status.message();
  return answer;
}

TEST_F(GpuPromptCache, ARestartGivesTheSameBitsWithFewerRows) {
  struct Case {
    std::string path;
    DType kv;
    const char* pins;
  };
  for (const Case& c : {Case{draft_path(), DType::f16, ""}, Case{draft_path(), DType::q8_0, ""},
                        Case{draft_path(), DType::q4_0, ""}, Case{draft_path(), DType::q3_k, ""},
                        Case{moe_path(), DType::f16, ""}, Case{draft_path(), DType::f16, "0=ram,1=disk,2-=ram"}}) {
    SCOPED_TRACE(fmt::format("{} KV {} pins '{}'", c.path, info(c.kv).name, c.pins));
    fs::remove_all(folder_);
    const std::vector<TokenId> prompt = real_text(*make(roomy(c.path)), 300);
    EngineOptions options = caching(c.path, c.kv);
    options.memory.pins = *parse_pins(c.pins);
    EngineOptions without = options;
    without.kv.prompt_cache.clear();
    const Answer plain = ask(without, prompt);
    const Answer first = ask(options, prompt);
    EXPECT_EQ(first.result.cached_tokens, 0);
    EXPECT_EQ(first.rows, plain.rows);
    // 300 tokens have four whole blocks; of few bits there is the first one in plain bytes, too.
    EXPECT_EQ(files(), c.kv == DType::q3_k ? 5u : 4u);
    const Answer second = ask(options, prompt);
    EXPECT_EQ(second.result.cached_tokens, 256);
    EXPECT_EQ(second.rows, first.rows - 256);
    EXPECT_EQ(second.result.tokens, plain.result.tokens);
    EXPECT_TRUE(first.logits == plain.logits);
    EXPECT_TRUE(second.logits == plain.logits);
  }
}

TEST_F(GpuPromptCache, WhatTheCpuWroteIsNotTaken) {
  // Their sums differ in the last bits.
  const std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 200);
  EngineOptions cpu = roomy(draft_path());
  cpu.demand.context_tokens = 512;
  cpu.kv.prompt_cache = folder_.string();
  cpu.kv.prompt_cache_seconds = 0;
  ask(cpu, prompt);
  EXPECT_EQ(files(), 3u);
  EXPECT_EQ(ask(caching(draft_path()), prompt).result.cached_tokens, 0);
}

TEST_F(GpuPromptCache, ADamagedFileIsComputedAgain) {
  const std::vector<TokenId> prompt = real_text(*make(roomy(draft_path())), 200);
  const Answer first = ask(caching(draft_path()), prompt);
  ASSERT_EQ(files(), 3u);
  std::vector<fs::path> by_size(fs::directory_iterator(folder_), fs::directory_iterator{});
  std::sort(by_size.begin(), by_size.end(),
            [](const fs::path& one, const fs::path& other) { return fs::file_size(one) < fs::file_size(other); });
  {
    std::fstream stream(by_size[1], std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(-5, std::ios::end);
    stream.write("wrong", 5);
  }
  const Answer second = ask(caching(draft_path()), prompt);
  EXPECT_EQ(second.result.cached_tokens, 64) << "the first block's file is whole";
  EXPECT_TRUE(second.logits == first.logits);
  EXPECT_EQ(ask(caching(draft_path()), prompt).result.cached_tokens, 192) << "and kept again";
}

}  // namespace
}  // namespace millrace::engine
