// Drafts on the GPU: the same tokens, texts and logits as without, wherever weights lie and whoever computes.
#include "cuda_engine/on_gpu.h"
#include "engine/drafters.h"

namespace millrace::engine {
namespace {

using namespace test;

class SpeculationOnGpu : public OnGpu {
 protected:
  static EngineOptions on_gpu(const std::string& path) {
    EngineOptions options;
    options.model.path = path;
    options.device.choice = DeviceChoice::cuda;
    options.device.threads = 3;
    options.demand.max_sequences = 3;
    options.demand.context_tokens = 256;
    options.kv.share_prefixes = true;
    return options;
  }
  static std::string checkpoint(const char* name) {
    return std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf";
  }
  static std::vector<Request> requests(const Engine& engine) {
    const std::int64_t vocab = engine.tokenizer().vocab_size();
    std::vector<Request> all;
    for (std::int64_t r = 0; r < 3; ++r) {
      std::vector<TokenId> prompt;
      for (std::int64_t i = 0; i < 20 + 37 * r; ++i)
        prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31 + r) % (vocab - 3)));
      if (vocab > 1000) prompt = real_text(engine, prompt.size(), static_cast<std::size_t>(300 * r));
      all.push_back(greedy(std::move(prompt), 80));
      all.back().ignore_end_tokens = true;
      if (r > 0) all.back().sampler.temperature = 0.9f;
      if (r == 1) all.back().sampler.top_k = 0;
    }
    return all;
  }
  /// With the logits that the GPU finds, and with all of them.
  static void expect_the_same(const EngineOptions& options) {
    for (const bool to_logits : {false, true}) {
      SCOPED_TRACE(to_logits ? "all logits" : "the largest logits");
      expect_drafts_to_change_nothing(options, requests, to_logits);
    }
  }
};

/// Attention over all keys, in windows and of latents, mixtures, states.
TEST_F(SpeculationOnGpu, ResidentModelsOfEveryKind) {
  for (const std::string& path :
       {draft_path(), moe_path(), checkpoint("gemma3"), checkpoint("gpt-oss"), checkpoint("deepseek-v3"),
        checkpoint("qwen3next"), checkpoint("mamba2"), checkpoint("lfm2"), checkpoint("granitehybrid"),
        checkpoint("falcon-h1"), checkpoint("kimi-linear")}) {
    SCOPED_TRACE(path);
    expect_the_same(on_gpu(path));
  }
}

TEST_F(SpeculationOnGpu, WithoutGraphs) {
  EngineOptions options = on_gpu(draft_path());
  options.device.graphs = false;
  expect_the_same(options);
}

TEST_F(SpeculationOnGpu, LayersThatStreamWithAndWithoutTheProcessorsShare) {
  for (const char* pins : {"0-=ram", "0-=disk", "0=ram,1-=disk"})
    for (const int share : {0, 50}) {
      SCOPED_TRACE(testing::Message() << pins << ", " << share << " % of the rows for the CPU");
      EngineOptions options = on_gpu(draft_path());
      options.memory.pins = *parse_pins(pins);
      options.memory.cpu_share_percent = share;
      expect_the_same(options);
    }
}

TEST_F(SpeculationOnGpu, ExpertsInRamWithTwoSlots) {
  for (const std::string& path : {moe_path(), checkpoint("gpt-oss")}) {
    SCOPED_TRACE(path);
    EngineOptions options = on_gpu(path);
    options.experts.vram_slots = 2;
    expect_the_same(options);
  }
}

TEST_F(SpeculationOnGpu, WhoLosesItsKvSaysTheSame) {
  EngineOptions options = on_gpu(draft_path());
  options.demand.kv_tokens = 256;
  expect_the_same(options);
}

/// The model's own first layers, over the request's own KV.
class SelfDraftOnGpu : public SpeculationOnGpu {
 protected:
  static EngineOptions guessed(EngineOptions options, const std::string& who) {
    options = drafting(std::move(options), nullptr, 4);
    EXPECT_TRUE(read_draft(who, options.speculate).ok());
    return options;
  }
  static void expect_the_answers_without(const EngineOptions& options, const std::string& who) {
    const auto plain = make(options), engine = make(guessed(options, who));
    ASSERT_TRUE(plain != nullptr && engine != nullptr);
    EXPECT_EQ(engine->draft_seat().place, DraftPlace::gpu) << engine->draft_seat().words;
    for (const bool to_logits : {false, true}) {
      const std::vector<Told> expected = answers(*plain, requests(*plain), to_logits),
                              told = answers(*engine, requests(*engine), to_logits);
      for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i << ", " << to_logits;
    }
    ASSERT_EQ(engine->load().drafts.size(), 1u) << "it has not failed";
    EXPECT_TRUE(engine->load().drafts.front().drafter.starts_with("self ")) << engine->load().drafts.front().drafter;
    EXPECT_GT(engine->load().drafts.front().drafted, 0u);
    EXPECT_LE(engine->vram_budget()->reserved_bytes(), engine->vram_budget()->cap_bytes());
  }
};

TEST_F(SelfDraftOnGpu, ResidentModelsOfEveryKind) {
  for (const std::string& path :
       {draft_path(), moe_path(), checkpoint("gemma3"), checkpoint("gpt-oss"), checkpoint("deepseek-v3")}) {
    SCOPED_TRACE(path);
    expect_the_answers_without(on_gpu(path), "self:1");
  }
}

TEST_F(SelfDraftOnGpu, BeforeLayersThatStreamWithAndWithoutTheProcessorsShare) {
  for (const char* pins : {"1-=ram", "2-=disk", "1=ram,2-=disk"})
    for (const int share : {0, 50}) {
      SCOPED_TRACE(testing::Message() << pins << ", " << share << " % of the rows for the CPU");
      EngineOptions options = on_gpu(draft_path());
      options.memory.pins = *parse_pins(pins);
      options.memory.cpu_share_percent = share;
      expect_the_answers_without(options, "self");
    }
}

TEST_F(SelfDraftOnGpu, WithoutGraphsAndWithLittleKv) {
  EngineOptions options = on_gpu(draft_path());
  options.memory.pins = *parse_pins("2-=ram");
  options.demand.kv_tokens = 256;
  expect_the_answers_without(options, "self");
  options.device.graphs = false;
  expect_the_answers_without(options, "self:1");
}

/// A word in the log, and the answer without it.
TEST_F(SelfDraftOnGpu, WhatCannotGuessDoesNot) {
  const auto left_out = [](EngineOptions options, const std::string& who, const std::string& word) {
    testing::internal::CaptureStderr();
    const auto engine = make(guessed(std::move(options), who));
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find(" is left out: "), std::string::npos) << log;
    EXPECT_NE(log.find(word), std::string::npos) << log;
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->load().drafts.front().drafter, "ngram") << word;
  };
  left_out(on_gpu(draft_path()), "self", "self:K insists");
  EngineOptions streamed = on_gpu(draft_path());
  streamed.memory.pins = *parse_pins("1-=ram");
  left_out(streamed, "self:2", "the first 2 layers");
  EngineOptions flowing = on_gpu(moe_path());
  flowing.experts.vram_slots = 2;
  left_out(flowing, "self:1", "the first 1 layer");
  left_out(on_gpu(checkpoint("qwen3next")), "self:1", "state");
  left_out(on_gpu(checkpoint("llama3")), "mtp", "no block that was trained");
}

/// The block behind the layers, or a head in a file of its own: the CPU guesses by states that the GPU's passes leave.
class HostDraftOnGpu : public SelfDraftOnGpu {
 protected:
  static std::string head(const char* name) { return std::string(MILLRACE_TEST_DATA "/heads/") + name + ".gguf"; }
  static void expect_the_answers_without(const EngineOptions& options, const std::string& who) {
    SCOPED_TRACE(who);
    const auto plain = make(options), engine = make(guessed(options, who));
    ASSERT_TRUE(plain != nullptr && engine != nullptr);
    EXPECT_EQ(engine->draft_seat().place, DraftPlace::cpu) << engine->draft_seat().words;
    for (const bool to_logits : {false, true}) {
      const std::vector<Told> expected = answers(*plain, requests(*plain), to_logits),
                              told = answers(*engine, requests(*engine), to_logits);
      for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i << ", " << to_logits;
    }
    ASSERT_EQ(engine->load().drafts.size(), 1u) << "it has not failed";
    EXPECT_EQ(engine->load().drafts.front().drafter, who == "mtp" ? "mtp" : "eagle3");
    EXPECT_GT(engine->load().drafts.front().drafted, 0u);
    EXPECT_LE(engine->vram_budget()->reserved_bytes(), engine->vram_budget()->cap_bytes());
    EXPECT_LE(engine->budget().reserved_bytes(), engine->budget().cap_bytes());
  }
};

TEST_F(HostDraftOnGpu, BesideAResidentModel) {
  for (const char* name : {"eagle3", "eagle3-wide"})
    expect_the_answers_without(on_gpu(checkpoint("llama3")), head(name));
  for (const char* name : {"glm4moe", "glm-4.7-flash", "qwen35moe"}) {
    SCOPED_TRACE(name);
    expect_the_answers_without(on_gpu(checkpoint(name)), "mtp");
  }
  EngineOptions options = on_gpu(checkpoint("llama3"));
  options.device.graphs = false;
  expect_the_answers_without(options, head("eagle3"));
}

TEST_F(HostDraftOnGpu, BesideLayersThatStreamWithAndWithoutTheProcessorsShare) {
  for (const char* pins : {"0-=ram", "0-=disk", "0=ram,1-=disk"})
    for (const int share : {0, 50}) {
      SCOPED_TRACE(testing::Message() << pins << ", " << share << " % of the rows for the CPU");
      EngineOptions options = on_gpu(checkpoint("llama3"));
      options.memory.pins = *parse_pins(pins);
      options.memory.cpu_share_percent = share;
      expect_the_answers_without(options, head("eagle3"));
    }
}

/// What a head guesses follows from the model's states: on the CPU and on the GPU it is as often right.
TEST_F(HostDraftOnGpu, GuessesWhatItGuessesOnTheCpu) {
  const auto right = [](DeviceChoice device) {
    EngineOptions options = on_gpu(checkpoint("llama3"));
    options.device.choice = device;
    const auto engine = make(guessed(options, head("eagle3")));
    Request request = greedy(std::vector<TokenId>{3, 10, 17, 24, 31, 38, 45, 52, 59, 66, 73}, 100);
    request.ignore_end_tokens = true;
    const Result result = engine->run(std::move(request));
    EXPECT_EQ(result.finish, Finish::length);
    return std::pair(result.drafted, result.drafts_right);
  };
  const auto on_cpu = right(DeviceChoice::cpu), on_both = right(DeviceChoice::cuda);
  EXPECT_GT(on_both.first, 0);
  EXPECT_NEAR(static_cast<double>(on_both.second), static_cast<double>(on_cpu.second), 3);
}

/// The planner counts its bytes before homes are chosen, and the model's budget grants them.
TEST_F(HostDraftOnGpu, IsGrantedByTheSameBudget) {
  const EngineOptions options = on_gpu(checkpoint("llama3"));
  const auto plain = make(options), engine = make(guessed(options, head("eagle3-wide")));
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const DraftSeat& seat = engine->draft_seat();
  ASSERT_EQ(seat.place, DraftPlace::cpu) << seat.words;
  EXPECT_GT(seat.ram_bytes, 150'000u) << "its file has 160 kB";
  EXPECT_GE(engine->budget().reserved_bytes(), plain->budget().reserved_bytes() + seat.ram_bytes - 1'000'000);
}

TEST_F(HostDraftOnGpu, WhatDoesNotFitIsLeftOut) {
  testing::internal::CaptureStderr();
  const auto engine = make(guessed(on_gpu(checkpoint("llama")), head("eagle3")));
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("the head of EAGLE-3 is left out: "), std::string::npos) << log;
  EXPECT_NE(log.find("is for a model of 32 channels"), std::string::npos) << log;
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->draft_seat().place, DraftPlace::none);
}

/// A draft model beside the GPU's: the demo draft guesses for the demo mixture.
class DraftModelOnGpu : public SpeculationOnGpu {
 protected:
  static EngineOptions guessed(EngineOptions options, std::int64_t drafts = 4) {
    options = drafting(std::move(options), nullptr, drafts);
    options.speculate.draft_model = draft_path();
    return options;
  }
  /// The answers without it, to the last bit.
  static void expect_the_answers_without(const EngineOptions& options, DraftPlace place) {
    const auto plain = make(options), engine = make(guessed(options));
    ASSERT_TRUE(plain != nullptr && engine != nullptr);
    EXPECT_EQ(engine->draft_seat().place, place) << engine->draft_seat().words;
    for (const bool to_logits : {false, true}) {
      const std::vector<Told> expected = answers(*plain, requests(*plain), to_logits),
                              told = answers(*engine, requests(*engine), to_logits);
      for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i << ", " << to_logits;
    }
    ASSERT_EQ(engine->load().drafts.size(), 1u) << "it has not failed";
    EXPECT_GT(engine->load().drafts.front().right, 0u);
    EXPECT_LE(engine->vram_budget()->reserved_bytes(), engine->vram_budget()->cap_bytes());
  }
};

TEST_F(DraftModelOnGpu, LiesInVramBesideAResidentModel) {
  for (const std::string& path : {moe_path(), draft_path()}) {
    SCOPED_TRACE(path);
    expect_the_answers_without(on_gpu(path), DraftPlace::gpu);
  }
}

TEST_F(DraftModelOnGpu, LiesInVramBesideLayersThatStreamAndTheProcessorsShare) {
  for (const int share : {0, 50}) {
    SCOPED_TRACE(testing::Message() << share << " % of the rows for the CPU");
    EngineOptions options = on_gpu(draft_path());
    options.memory.pins = *parse_pins("0=ram,1-=disk");
    options.memory.cpu_share_percent = share;
    expect_the_answers_without(options, DraftPlace::gpu);
  }
}

TEST_F(DraftModelOnGpu, LiesInVramBesideExpertsWithTwoSlots) {
  EngineOptions options = on_gpu(moe_path());
  options.experts.vram_slots = 2;
  expect_the_answers_without(options, DraftPlace::gpu);
}

/// Of a model itself, a draft is right: the same weights, executor and class of rows.
TEST_F(DraftModelOnGpu, GuessesWhatItsOwnWeightsSay) {
  const auto engine = make(guessed(on_gpu(draft_path())));
  ASSERT_NE(engine, nullptr);
  Request request = greedy(real_text(*engine, 60, 100), 120);
  request.ignore_end_tokens = true;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(result.finish, Finish::length);
  // Its prompt and what follows are cut otherwise than the large model's, which may move a bit of KV.
  EXPECT_GT(result.drafts_right, result.drafted * 9 / 10);
  const DraftCounters drafts = engine->load().drafts.front();
  EXPECT_GT(drafts.passes, 0u);
  EXPECT_GT(drafts.pass_seconds, 0);
}

/// What it takes is granted by the budget of the model that it guesses for, as planned, and given back when both go.
TEST_F(DraftModelOnGpu, IsGrantedByTheSameBudget) {
  const EngineOptions options = on_gpu(moe_path());
  const auto plain = make(options), engine = make(guessed(options));
  ASSERT_TRUE(plain != nullptr && engine != nullptr);
  const DraftSeat& seat = engine->draft_seat();
  ASSERT_EQ(seat.place, DraftPlace::gpu) << seat.words;
  EXPECT_EQ(engine->plan().vram_draft_bytes, seat.vram_bytes);
  const std::uint64_t more = engine->vram_budget()->reserved_bytes() - plain->vram_budget()->reserved_bytes();
  EXPECT_LE(more, seat.vram_bytes);
  EXPECT_GT(more, seat.vram_bytes * 9 / 10) << "the plan is not far from what it takes";
}

/// The planner weighs its bytes against layers at home: where the cap is what the large model needs, layers leave, or
/// the CPU guesses; the cap holds.
TEST_F(DraftModelOnGpu, ThatDoesNotFitGoesToTheCpu) {
  EngineOptions options = on_gpu(draft_path());
  options.memory.pins = *parse_pins("0-=disk");  // so that no layer can make room
  const auto planned = plan_only(options);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  const residency::Plan& plan = planned->plan;
  options.memory.vram_bytes = plan.vram_weight_bytes + plan.vram_fixed_bytes + planned->options.kv_bytes + 16'000'000;
  expect_the_answers_without(options, DraftPlace::cpu);
}

/// bench --accept: the drafter works, and what it chose is replaced.
TEST_F(DraftModelOnGpu, WorksWhereItsChoicesAreReplaced) {
  const auto engine = make(guessed(on_gpu(moe_path())));
  ASSERT_NE(engine, nullptr);
  Request request = greedy(real_text(*engine, 40, 100), 200);
  request.ignore_end_tokens = true;
  request.forced_tokens = real_text(*engine, 200, 9000);
  request.drafts_right = 0.8;
  const std::vector<TokenId> forced = request.forced_tokens;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(result.tokens, forced);
  EXPECT_NEAR(199.0 / static_cast<double>(result.decode_turns), 3.36, 0.6);
  ASSERT_EQ(engine->load().drafts.size(), 1u);
  EXPECT_GT(engine->load().drafts.front().seconds, 0);
}

}  // namespace
}  // namespace millrace::engine
