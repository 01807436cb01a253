// The numerics contract, from outside: where weights lie, how they come, who computes and who else is in the batch
// never change a bit of the logits.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/support.h"

namespace millrace::engine {
namespace {

using namespace test;

constexpr std::size_t kPrompt = 700, kDecoded = 32, kVocab = 2263;

/// Logits of the first `prompt` tokens of the same text, then of what is decoded.
std::vector<float> logits_with(const EngineOptions& options, std::size_t prompt = kPrompt, bool of_prompt = true) {
  const auto engine = make(options);
  if (engine == nullptr) return {};
  std::vector<float> logits;
  Request request = greedy(real_text(*engine, prompt), kDecoded);
  keep_logits(request, logits);
  request.logits_of_prompt = of_prompt;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(result.finish, Finish::length) << result.status.message();
  return logits;
}

/// Logits of 700 prompt and 31 decode rows, everything resident, best kernels.
const std::vector<float>& baseline() {
  static const std::vector<float> logits = logits_with(roomy(moe_path()));
  return logits;
}

void expect_same_rows(const std::vector<float>& logits, std::size_t rows) {
  const std::vector<float>& expected = baseline();
  ASSERT_EQ(expected.size(), (kPrompt + kDecoded - 1) * kVocab);
  ASSERT_GE(logits.size(), rows * kVocab);
  for (std::size_t i = 0; i < rows * kVocab; ++i)
    ASSERT_EQ(std::memcmp(&logits[i], &expected[i], sizeof(float)), 0)
        << "row " << i / kVocab << ", token " << i % kVocab << ": " << logits[i] << " instead of " << expected[i];
}

void expect_same_bits(const EngineOptions& options) {
  const std::vector<float> logits = logits_with(options);
  ASSERT_EQ(logits.size(), baseline().size());
  expect_same_rows(logits, kPrompt + kDecoded - 1);
}

/// For settings that read much a pass: rows of the prompt need no pass of their own, and those of what is decoded
/// depend on all of them.
void expect_same_bits_of_decoded(const EngineOptions& options) {
  const std::vector<float> logits = logits_with(options, kPrompt, false);
  ASSERT_EQ(logits.size(), kDecoded * kVocab);
  ASSERT_EQ(std::memcmp(logits.data(), baseline().data() + (kPrompt - 1) * kVocab, logits.size() * sizeof(float)), 0);
}

/// The quick form for slow settings: a causal model's first rows do not know how long the text is.
void expect_same_bits_of_prompt(const EngineOptions& options, std::size_t prompt) {
  expect_same_rows(logits_with(options, prompt), prompt);
}

EngineOptions demo() { return roomy(moe_path()); }

TEST(SameBits, LogitsAreFinite) {
  for (const float logit : baseline()) ASSERT_TRUE(std::isfinite(logit));
}

TEST(SameBits, ForEveryBudget) {
  EngineOptions options = demo();
  options.demand.context_tokens = 768;
  options.demand.batch_tokens = 32;
  options.memory.ram_bytes = 1;
  const std::optional<std::uint64_t> smallest = named_ram(Engine::create(options).status().message());
  ASSERT_TRUE(smallest.has_value());
  options.memory.ram_bytes = *smallest;
  expect_same_bits_of_prompt(options, 40);
  for (const std::uint64_t ram : {6'000'000u, 9'000'000u, 13'000'000u}) {
    SCOPED_TRACE(ram);
    options.memory.ram_bytes = ram;
    expect_same_bits_of_decoded(options);
  }
}

TEST(SameBits, ForEveryStorage) {
  using storage::BackendKind;
  for (const BackendKind kind : storage::backend_kinds()) {
    if (kind == BackendKind::automatic) continue;
    SCOPED_TRACE(storage::backend_name(kind));
    EngineOptions options = demo();
    options.storage.backend = kind;
    options.memory.ram_bytes = kind == BackendKind::mmap ? 25'000'000 : 9'000'000;
    options.demand.context_tokens = 768;
    const Status status = Engine::create(options).status();
    if (status.code() == Code::unsupported) continue;  // a container without io_uring, a file system without O_DIRECT
    expect_same_bits_of_decoded(options);
  }
}

TEST(SameBits, ForEveryThreadCount) {
  for (const int threads : {1, 3}) {
    SCOPED_TRACE(threads);
    EngineOptions options = demo();
    options.device.threads = threads;
    expect_same_bits(options);
  }
}

TEST(SameBits, ForEveryInstructionSet) {
  for (const kernels::Isa isa : device::kIsas) {
    if (!device::has_isa(isa)) continue;
    SCOPED_TRACE(device::isa_name(isa));
    EngineOptions options = demo();
    options.device.best_isa = false;
    options.device.isa = isa;
    if (isa == kernels::Isa::plain) {
      expect_same_bits_of_prompt(options, 60);
    } else {
      expect_same_bits(options);
    }
  }
}

TEST(SameBits, HoweverThePromptIsCut) {
  for (const std::int64_t batch : {1, 7, 100}) {
    SCOPED_TRACE(batch);
    EngineOptions options = demo();
    options.demand.batch_tokens = batch;
    if (batch == 1) {
      expect_same_bits_of_prompt(options, 120);
    } else {
      expect_same_bits(options);
    }
  }
}

TEST(SameBits, ForEveryTileSize) {
  for (const std::uint64_t tile : {20'000u, 100'000u}) {
    SCOPED_TRACE(tile);
    EngineOptions options = demo();
    options.memory.tile_bytes = tile;
    options.memory.ram_bytes = 9'000'000;
    options.demand.context_tokens = 768;
    expect_same_bits_of_prompt(options, 150);
  }
}

TEST(SameBits, WithOneExpertAtATime) {
  EngineOptions options = demo();
  options.experts.ram_slots = 1;
  const auto engine = make(options);
  EXPECT_EQ(engine->store().expert_slots(), 1);
  expect_same_bits_of_decoded(options);
}

TEST(SameBits, ForBothPolicies) {
  EngineOptions options = demo();
  options.experts.policy = residency::CachePolicy::lfu;
  options.memory.ram_bytes = 6'000'000;
  options.demand.context_tokens = 768;
  expect_same_bits_of_decoded(options);
}

/// Fewer bits a channel change the logits, and then the same everywhere.
TEST(SameBits, WithQuantizedKvOfItsOwn) {
  struct Case {
    DType dtype;
    double most;  // relative; a router that chooses otherwise counts in full
    std::size_t same_percent;
  };
  constexpr std::size_t kRows = 200;
  for (const Case& c : {Case{DType::q8_0, 5e-2, 97}, Case{DType::q4_0, 2e-1, 90}, Case{DType::q3_k, 3e-1, 90},
                        Case{DType::q2_0, 5e-1, 80}}) {
    SCOPED_TRACE(info(c.dtype).name);
    EngineOptions options = demo();
    options.kv.dtype = c.dtype;
    const std::vector<float> first = logits_with(options, kRows);
    ASSERT_GE(first.size(), kRows * kVocab);
    double error = 0, norm = 0;
    std::size_t same_choice = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      const float *a = first.data() + row * kVocab, *b = baseline().data() + row * kVocab;
      for (std::size_t i = 0; i < kVocab; ++i) error += (a[i] - b[i]) * (a[i] - b[i]), norm += b[i] * b[i];
      same_choice += std::max_element(a, a + kVocab) - a == std::max_element(b, b + kVocab) - b ? 1 : 0;
    }
    EXPECT_GT(error, 0.0);
    EXPECT_LT(std::sqrt(error / norm), c.most);
    EXPECT_GE(same_choice, kRows * c.same_percent / 100);
    options.device.threads = 1;
    options.demand.batch_tokens = 33;
    EXPECT_EQ(logits_with(options, kRows), first);
    options.device.best_isa = false;
    options.device.isa = kernels::Isa::plain;
    options.memory.ram_bytes = 8'000'000;
    EXPECT_EQ(logits_with(options, kRows), first);
  }
}

/// The rotation changes nothing but what rounding makes of it.
TEST(SameBits, RotationAloneIsRounding) {
  constexpr std::size_t kRows = 60;
  EngineOptions options = demo();
  options.kv.dtype = DType::q4_0;
  const std::vector<float> rotated = logits_with(options, kRows);
  options.kv.rotation = kv::Rotation::never;
  EXPECT_NE(logits_with(options, kRows), rotated);
  options.kv.dtype = DType::q8_0;
  const std::vector<float> plain = logits_with(options, kRows);
  options.kv.rotation = kv::Rotation::of_format;
  const std::vector<float> turned = logits_with(options, kRows);
  EXPECT_NE(turned, plain);
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < kRows * kVocab; ++i)
    error += (turned[i] - plain[i]) * (turned[i] - plain[i]), norm += plain[i] * plain[i];
  EXPECT_LT(std::sqrt(error / norm), 1e-1);  // a router that chooses otherwise counts in full
}

TEST(SameBits, InABatchOfEight) {
  EngineOptions options = demo();
  options.demand.max_sequences = 8;
  options.demand.context_tokens = 768;
  options.demand.batch_tokens = 96;
  const auto engine = make(options);
  std::vector<float> logits;
  std::vector<Engine::Id> ids;
  for (std::size_t i = 0; i < 8; ++i) {
    // The one that is watched stands in the middle; the others have other texts and lengths.
    Request request = i == 3 ? greedy(real_text(*engine, kPrompt), kDecoded)
                             : greedy(real_text(*engine, 100 + 50 * i, 5000 * (i + 1)), 30);
    if (i == 3) keep_logits(request, logits);
    request.ignore_end_tokens = true;
    ids.push_back(*engine->submit(std::move(request)));
  }
  drain(*engine);
  for (const Engine::Id id : ids) EXPECT_EQ(engine->take(id).finish, Finish::length);
  ASSERT_EQ(logits.size(), baseline().size());
  expect_same_rows(logits, kPrompt + kDecoded - 1);
}

}  // namespace
}  // namespace millrace::engine
