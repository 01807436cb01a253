// Mixtures whose experts are not all in VRAM: whoever computes with an expert, wherever it lies and however it came,
// not one bit of a logit changes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cuda_engine/on_gpu.h"
#include "device/device.h"
#include "engine/reference.h"
#include "engine/support.h"
#include "kv/model_identity.h"
#include "model/model.h"
#include "modelfile/gguf.h"
#include "residency/expert_pack.h"

namespace millrace::engine {
namespace {

using namespace test;

class ExpertsOnGpu : public OnGpu {
 protected:
  static EngineOptions on_gpu(const std::string& path) {
    EngineOptions options;
    options.model.path = path;
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 3;
    return options;
  }
  /// Of the model that was trained text, of others any tokens.
  static std::vector<TokenId> tokens(const Engine& engine, std::size_t count) {
    const auto vocab = static_cast<std::size_t>(engine.tokenizer().vocab_size());
    if (vocab > 1000) return real_text(engine, count);
    std::vector<TokenId> ids;
    for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<TokenId>((i * 37 + i * i % 11) % vocab));
    return ids;
  }
  /// Logits of `prompt` tokens and of what is decoded after them.
  static std::vector<float> logits_of(Engine& engine, std::size_t prompt, std::int64_t decoded) {
    std::vector<float> logits;
    Request request = greedy(tokens(engine, prompt), decoded);
    request.ignore_end_tokens = true;
    keep_logits(request, logits);
    const Result result = engine.run(std::move(request));
    EXPECT_NE(result.finish, Finish::error) << result.status.message();
    return logits;
  }
  static std::vector<float> logits_of(const EngineOptions& options, std::size_t prompt, std::int64_t decoded) {
    const auto engine = make(options);
    return engine == nullptr ? std::vector<float>() : logits_of(*engine, prompt, decoded);
  }
};

struct Tiers {
  std::int64_t vram = 0, ram = 0;  // experts; ram 0: all
};
constexpr Tiers kTiers[] = {{0, 0}, {5, 0}, {40, 0}, {100'000, 0}, {0, 4}, {7, 9}, {30, 70}};

TEST_F(ExpertsOnGpu, EveryTierGivesTheSameBits) {
  for (const std::string& path : {moe_path(), std::string(MILLRACE_TEST_DATA "/reference/gpt-oss.gguf"),
                                  std::string(MILLRACE_TEST_DATA "/reference/glm4moe.gguf")}) {
    SCOPED_TRACE(path);
    const bool text = path == moe_path();
    const std::size_t prompt = text ? 300 : 64;
    EngineOptions options = on_gpu(path);
    const std::vector<float> resident = logits_of(options, prompt, 24);
    const std::vector<float> few = logits_of(options, 20, 40);
    for (const Tiers& tiers : kTiers) {
      SCOPED_TRACE(testing::Message() << tiers.vram << " in VRAM, " << tiers.ram << " in RAM");
      options.experts.vram_slots = tiers.vram;
      options.experts.ram_slots = tiers.ram;
      const auto engine = make(options);
      ASSERT_NE(engine, nullptr);
      expect_same_bits(logits_of(*engine, prompt, 24), resident);  // experts cross in waves, then one row at a time
      expect_same_bits(logits_of(*engine, 20, 40), few);           // the processor computes in prompts, too
      expect_same_bits(logits_of(*engine, prompt, 24), resident);  // with what came to slots meanwhile
      const residency::StoreCounters counters = engine->store_counters();
      EXPECT_GT(counters.hits + counters.misses, 0u);
      EXPECT_EQ(counters.hits > 0, tiers.vram > 0);
      EXPECT_TRUE(counters.host_bytes > 0 || tiers.vram >= 5);
    }
  }
}

TEST_F(ExpertsOnGpu, BatchesGiveTheBitsOfOneSequence) {
  EngineOptions options = on_gpu(moe_path());
  const std::vector<float> alone = logits_of(options, 90, 12);
  options.experts.vram_slots = 20;
  for (const std::int64_t sequences : {3, 8, 12}) {
    SCOPED_TRACE(sequences);
    options.demand.max_sequences = sequences;
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    std::vector<float> shared;
    for (std::int64_t i = 0; i < sequences; ++i) {
      const auto at = static_cast<std::size_t>(i);
      Request request = greedy(real_text(*engine, i == 2 ? 90 : 40 + 7 * at, i == 2 ? 0 : 50 * at + 9), 12);
      if (i == 2) keep_logits(request, shared);
      request.ignore_end_tokens = true;
      ASSERT_TRUE(engine->submit(std::move(request)).ok());
    }
    drain(*engine);
    expect_same_bits(shared, alone);
  }
}

/// What the router calls for again and again comes to VRAM and stays there.
TEST_F(ExpertsOnGpu, FavouritesComeToVram) {
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 200;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  (void)logits_of(*engine, 20, 200);
  const auto before = engine->store_counters();
  (void)logits_of(*engine, 20, 200);
  const auto after = engine->store_counters();
  const double hits = static_cast<double>(after.hits - before.hits);
  const double uses = hits + static_cast<double>(after.misses - before.misses);
  RecordProperty("hit_rate", std::to_string(hits / uses));
  EXPECT_GT(hits / uses, 0.5);
}

/// KV of 32 contexts is 100 MB, and an expert 0.1 MB: what KV leaves at first has room for all of them. Sequences are
/// short, so that they fill KV to the last megabytes, however many of them there is room for.
TEST_F(ExpertsOnGpu, LieInTheMemoryOfKvUntilThatIsNeeded) {
  constexpr std::int64_t kSequences = 32, kContext = 1024;
  constexpr std::size_t kLong = 950;
  EngineOptions options = on_gpu(moe_path());
  options.demand.max_sequences = kSequences;
  options.demand.context_tokens = kContext;
  options.demand.kv_tokens = kSequences * kContext;
  options.demand.batch_tokens = 2048;  // so that the last prompt is read before the first sequence ends
  options.kv.share_prefixes = false;
  const auto resident = make(options);
  ASSERT_NE(resident, nullptr);
  const std::vector<float> expected = logits_of(*resident, 60, 60);
  options.experts.ram_slots = 96;  // all of them, in RAM
  options.memory.vram_bytes = resident->vram_budget()->reserved_bytes() - 8'000'000;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  const auto misses = [&] {
    const std::uint64_t before = engine->store_counters().misses;
    expect_same_bits(logits_of(*engine, 60, 60), expected);
    EXPECT_LE(engine->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
    return engine->store_counters().misses - before;
  };
  for (int run = 0; run < 3; ++run) misses();
  EXPECT_EQ(misses(), 0u) << "not every expert has a slot";

  std::vector<Engine::Id> ids;
  for (std::int64_t i = 0; i < kSequences; ++i) {
    Request request = greedy(tokens(*engine, kLong - static_cast<std::size_t>(i)), 70);
    request.ignore_end_tokens = true;
    ids.push_back(*engine->submit(std::move(request)));
  }
  const std::uint64_t before = engine->store_counters().misses;
  drain(*engine);
  EXPECT_GT(engine->store_counters().misses, before) << "no expert gave way";
  EXPECT_LE(engine->vram_budget()->reserved_bytes(), options.memory.vram_bytes);
  for (const Engine::Id id : ids) EXPECT_NE(engine->take(id).finish, Finish::error);
  for (int run = 0; run < 3; ++run) misses();
  EXPECT_EQ(misses(), 0u) << "they did not come back";
}

/// To free device memory waits for all that runs there, and lets others who call the driver wait too. What runs there
/// waits for the processor's experts, whose thread must not be among them.
TEST_F(ExpertsOnGpu, OthersMayFreeDeviceMemoryMeanwhile) {
  EngineOptions options = on_gpu(moe_path());
  const std::vector<float> alone = logits_of(options, 20, 40);
  options.experts.vram_slots = 7;
  options.experts.ram_slots = 9;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  std::atomic<bool> ended{false};
  std::atomic<int> freed{0};
  std::thread other([&] {
    while (!ended) {
      auto memory = device::DeviceBuffer::allocate(1 << 20);
      auto pinned = device::PinnedBuffer::allocate(1 << 20);
      freed += memory.ok() && pinned.ok() ? 1 : 0;
    }
  });
  expect_same_bits(logits_of(*engine, 20, 40), alone);
  ended = true;
  other.join();
  EXPECT_GT(freed, 0);
}

TEST_F(ExpertsOnGpu, AReadThatFailsEndsTheRequestAndNotTheEngine) {
  EngineOptions options = on_gpu(moe_path());
  const std::vector<float> resident = logits_of(options, 50, 6);
  options.experts.vram_slots = 3;
  options.experts.ram_slots = 12;
  options.storage.faults.push_back({.kind = storage::Fault::Kind::eio, .after_reads = 400, .count = 1});
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  int failed = 0, right = 0;
  for (int i = 0; i < 8; ++i) {
    std::vector<float> logits;
    Request request = greedy(real_text(*engine, 50), 6);
    request.ignore_end_tokens = true;
    keep_logits(request, logits);
    const Result result = engine->run(std::move(request));
    if (result.finish == Finish::error) {
      ++failed;
    } else {
      ++right;
      expect_same_bits(logits, resident);
    }
  }
  EXPECT_EQ(failed, 1);
  EXPECT_EQ(right, 7);
}

/// A pack of the demo model in a file of its own, which goes with the object.
class Packed {
 public:
  explicit Packed(const std::string& name)
      : path_(std::string(MILLRACE_BINARY_DIR) + "/" + name + "." + std::to_string(getpid()) + ".pack") {
    const Status written = write();
    EXPECT_TRUE(written.ok()) << written.message();
  }
  ~Packed() { unlink(path_.c_str()); }
  Packed(const Packed&) = delete;
  Packed& operator=(const Packed&) = delete;
  const std::string& path() const { return path_; }
  /// Another bit in each byte of the last quarter, which is weights.
  void damage() const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary | std::ios::ate);
    const auto size = static_cast<std::size_t>(file.tellg()), bytes = size / 4;
    std::string end(bytes, '\0');
    file.seekg(static_cast<std::streamoff>(size - bytes)).read(end.data(), static_cast<std::streamsize>(bytes));
    for (char& byte : end) byte = static_cast<char>(byte ^ 4);
    file.seekp(static_cast<std::streamoff>(size - bytes)).write(end.data(), static_cast<std::streamsize>(bytes));
  }

 private:
  Status write() const {
    MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(moe_path()));
    MR_ASSIGN_OR_RETURN(const auto model, model::load(file, {}));
    MR_ASSIGN_OR_RETURN(const std::string identity, kv::model_identity(file));
    return residency::write_pack(path_, model->units(), file.paths(), identity, {});
  }
  const std::string path_;
};

TEST_F(ExpertsOnGpu, APackGivesTheSameBitsAndIsRead) {
  const Packed pack("gpu");
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 7;
  options.experts.ram_slots = 20;  // of RAM: the others come from the disk again and again
  options.experts.pack = "off";
  const auto without = make(options);
  options.experts.pack = pack.path();
  const auto with = make(options);
  ASSERT_NE(without, nullptr);
  ASSERT_NE(with, nullptr);
  for (const std::size_t prompt : {300, 20}) {  // experts in waves, then by what the router calls for
    SCOPED_TRACE(prompt);
    expect_same_bits(logits_of(*with, prompt, 24), logits_of(*without, prompt, 24));
  }
  const residency::StoreCounters packed = with->store_counters(), plain = without->store_counters();
  EXPECT_GT(packed.bytes_from_pack, 0u);
  EXPECT_EQ(packed.bytes_from_pack, packed.bytes_from_disk);  // a mixture's trunk is not read again
  EXPECT_EQ(plain.bytes_from_pack, 0u);
  EXPECT_GT(plain.bytes_from_disk, 0u);
}

TEST_F(ExpertsOnGpu, ADamagedPackFailsTheRequestAndIsNamed) {
  const Packed pack("gpu-damaged");
  pack.damage();
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 7;
  options.experts.ram_slots = 20;
  options.experts.pack = pack.path();
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  Request request = greedy(tokens(*engine, 300), 4);
  const Result result = engine->run(std::move(request));
  ASSERT_EQ(result.finish, Finish::error);
  EXPECT_NE(result.status.message().find("is damaged"), std::string::npos) << result.status.message();
}

TEST_F(ExpertsOnGpu, APackIsNotUsedWhereExpertsStayInRam) {
  const Packed pack("gpu-needless");
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 7;
  options.experts.pack = pack.path();
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  (void)logits_of(*engine, 40, 4);
  EXPECT_EQ(engine->store_counters().bytes_from_pack, 0u);
}

TEST_F(ExpertsOnGpu, GuessedExpertsAreReadAheadAndChangeNoBit) {
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 7;
  options.experts.ram_slots = 24;
  options.experts.prefetch = exec::Prefetch::off;
  const auto without = make(options);
  options.experts.prefetch = exec::Prefetch::always;
  const auto with = make(options);
  options.experts.prefetch = exec::Prefetch::automatic;
  const auto trying = make(options);
  ASSERT_NE(without, nullptr);
  ASSERT_NE(with, nullptr);
  ASSERT_NE(trying, nullptr);
  const std::vector<float> expected = logits_of(*without, 20, 200);
  expect_same_bits(logits_of(*with, 20, 200), expected);
  expect_same_bits(logits_of(*trying, 20, 200), expected);
  EXPECT_FALSE(without->store_counters().guesses.any());
  const residency::GuessFigures guesses = with->store_counters().guesses;
  const residency::GuessCounters& next = guesses.of(residency::Guess::next_router);
  RecordProperty("guesses", guesses.describe());
  EXPECT_GT(next.guessed, 200u);
  EXPECT_GT(next.recall(), 0.4);
  EXPECT_GT(guesses.read_ahead, 0u);
  EXPECT_GT(guesses.read_ahead_used, guesses.read_ahead / 4);
}

TEST_F(ExpertsOnGpu, AReadAheadThatFailsDoesNoHarm) {
  EngineOptions options = on_gpu(moe_path());
  const std::vector<float> resident = logits_of(options, 20, 60);
  options.experts.vram_slots = 3;
  options.experts.ram_slots = 24;
  options.experts.prefetch = exec::Prefetch::always;
  options.storage.faults.push_back({.kind = storage::Fault::Kind::eio, .after_reads = 600, .count = 3});
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  int right = 0;
  for (int i = 0; i < 6; ++i) {
    std::vector<float> logits;
    Request request = greedy(real_text(*engine, 20), 60);
    keep_logits(request, logits);
    if (engine->run(std::move(request)).finish == Finish::error) continue;
    ++right;
    expect_same_bits(logits, resident);
  }
  EXPECT_GE(right, 3);
}

TEST_F(ExpertsOnGpu, TooLittleMemoryNamesTheLeastThatWorks) {
  EngineOptions options = on_gpu(moe_path());
  options.experts.ram_slots = 2;
  const auto engine = Engine::create(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("are the least that work"), std::string::npos) << engine.status().message();
}

}  // namespace
}  // namespace millrace::engine
