// Parts of the model guess, its first layers or the block behind them: the same tokens and logits as without, wherever
// weights lie, and nothing read from the disk for a guess.
#include "engine/within.h"

#include "engine/mtp_drafter.h"
#include "engine/reference.h"
#include "engine/scheduler.h"
#include "engine/self_drafter.h"
#include "engine/within_checks.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/schema.h"

namespace millrace::engine {
namespace {

using namespace test;

TEST(SelfDraft, ChangesNoAnswerOfAResidentModel) {
  for (const char* who : {"self:1", "self:3", "self:5"}) {
    SCOPED_TRACE(who);
    expect_no_change(several(moe_path()), who, questions);
  }
}

TEST(SelfDraft, ChangesNoAnswerOfAStreamedModel) {
  EngineOptions options = several(moe_path());
  for (const std::uint64_t ram : {6'500'000, 9'000'000}) {
    options.memory.ram_bytes = ram;
    SCOPED_TRACE(ram);
    expect_no_change(options, "self:1", questions, true);
  }
  options = several(draft_path());
  options.memory.ram_bytes = 2'800'000;  // of 3,000,000 it sometimes all fits, by what the program took before
  expect_no_change(options, "self:1", questions, true);
}

TEST(SelfDraft, AnswersKeepTheirForm) {
  expect_no_change(several(moe_path()), "self:3", [](const Engine& engine) {
    const auto trie = text::TokenTrie::make(engine.tokenizer());
    std::vector<Request> requests = questions(engine);
    for (Request& request : requests) request.constraint = text::make_constraint(text::json_object_grammar(), trie);
    return requests;
  });
}

TEST(SelfDraft, WindowsAndLatentsForgetGuesses) {
  for (const char* name : {"gemma3", "gemma3n", "llama4", "gpt-oss", "deepseek-v3", "llama"}) {
    SCOPED_TRACE(name);
    expect_no_change(several(reference(name)), "self:1", noise);
  }
}

TEST(SelfDraft, WhoLosesItsKvSaysTheSame) {
  expect_no_change_by_preemption(several(moe_path()), "self:2", [](const Engine& engine) {
    std::vector<Request> all;
    for (std::size_t i = 0; i < 4; ++i) {
      all.push_back(greedy(real_text(engine, 50, 300 * i), 100));
      all.back().ignore_end_tokens = true;
    }
    return all;
  });
}

TEST(SelfDraft, ASessionGoesOnBehindGuesses) { expect_same_session(of_512(reference("gemma3")), "self:1"); }

TEST(SelfDraft, GoesOnFromPromptsOfTheDisk) { expect_same_of_restored(of_512(moe_path()), "self:2"); }

/// All of a model's layers over the request's KV guess what it will say.
TEST(SelfDraft, OfAllLayersIsAlwaysRight) {
  for (const std::string& path : {moe_path(), reference("gemma3"), reference("deepseek-v3")}) {
    EngineOptions options = roomy(path);
    options.demand.context_tokens = 512;
    Expected<Parts> parts = assemble(options);
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    auto drafter = SelfDrafter::make(parts->model->program().layer_count(), *parts);
    ASSERT_TRUE(drafter.ok()) << drafter.status().message();
    SpeculateOptions speculate = drafting(options, nullptr, 5).speculate;
    speculate.drafters.push_back(std::move(*drafter));
    Scheduler scheduler(*parts, speculate);
    std::vector<TokenId> prompt(100, 5);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<TokenId>(3 + i * i % 70);
    Request request = greedy(prompt, 90);
    request.ignore_end_tokens = true;
    const auto id = scheduler.submit(std::move(request), std::make_shared<Conversation>(parts->kv_pool));
    ASSERT_TRUE(id.ok());
    while (scheduler.step()) {
    }
    const Result result = scheduler.take(*id);
    EXPECT_EQ(result.drafts_right, result.drafted) << path;
    EXPECT_GE(result.drafts_right, 70) << path;
  }
}

/// Where weights stream, the layers that guess stay, however KV grows.
TEST(SelfDraft, ReadsNothingForAGuess) {
  EngineOptions options = roomy(moe_path());
  options.demand.context_tokens = 1024;
  options.memory.ram_bytes = 10'000'000;
  const auto engine = make(within(options, "self"));
  const int layers = engine->plan().front_layers;
  EXPECT_GE(layers, 1);
  EXPECT_LT(layers, 6);
  EXPECT_EQ(engine->draft_seat().place, DraftPlace::cpu);
  Request request = greedy(real_text(*engine, 300), 700);
  request.ignore_end_tokens = true;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(std::ssize(result.tokens), 700) << result.status.message();
  EXPECT_GT(result.drafted, 0);
  const residency::UnitTable& units = engine->model().units();
  for (std::size_t t = 0; t < units.tiles().size(); ++t)
    if (residency::in_front(units.units()[static_cast<std::size_t>(units.tiles()[t].unit)], layers)) {
      EXPECT_TRUE(engine->store().present(static_cast<std::int32_t>(t))) << t;
    }
}

TEST(SelfDraft, BenchSaysHowOftenGuessesAreRight) { expect_right_as_told(within(roomy(moe_path()), "self:2")); }

TEST(SelfDraft, WhatCannotGuessDoesNot) {
  expect_left_out(roomy(reference("qwen3next")), "self:1", "state");
  expect_left_out(roomy(moe_path()), "self:6", "has 6 layers");
  expect_left_out(roomy(moe_path()), "self", "self:K insists");
  EngineOptions small = roomy(moe_path());
  small.demand.context_tokens = 512;
  small.memory.ram_bytes = ram_above_smallest(small, 1.15);
  expect_left_out(small, "self:5", "the first 5 layers");
}

TEST(SelfDraft, IsReadAsItIsWritten) {
  SpeculateOptions options;
  ASSERT_TRUE(read_draft("self", options).ok());
  EXPECT_EQ(options.within, Within::self);
  EXPECT_EQ(options.self_layers, 0);
  ASSERT_TRUE(read_draft("self:12", options).ok());
  EXPECT_EQ(options.self_layers, 12);
  EXPECT_TRUE(options.draft_model.empty());
  ASSERT_TRUE(read_draft("mtp", options).ok());
  EXPECT_EQ(options.within, Within::mtp);
  EXPECT_EQ(options.self_layers, 0);
  for (const char* file : {"./self", "./mtp", "mtp.gguf", "selfish.gguf", "self.gguf"}) {
    ASSERT_TRUE(read_draft(file, options).ok());
    EXPECT_EQ(options.within, Within::none);
    EXPECT_EQ(options.draft_model, file);
  }
  for (const char* wrong : {"self:", "self:0", "self:-1", "self:x", "self:2x", "self:99999999999"})
    EXPECT_EQ(read_draft(wrong, options).code(), Code::invalid_argument) << wrong;
}

const char* const kWithBlocks[] = {"glm4moe", "glm-4.7-flash", "qwen35moe"};

TEST(MtpDraft, ChangesNoAnswer) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_no_change(several(reference(name)), "mtp", noise);
    EngineOptions streamed = several(reference(name));
    streamed.memory.exact_budget = true;  // the plan is the same whatever the program took before
    streamed.memory.ram_bytes = ram_above_smallest(within(streamed, "mtp"), 1.0);
    streamed.experts.prefetch = exec::Prefetch::off;  // what it reads depends on how long passes take
    expect_no_change(streamed, "mtp", noise, true);
  }
}

TEST(MtpDraft, WhoLosesItsKvSaysTheSame) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_no_change_by_preemption(several(reference(name)), "mtp", [](const Engine& engine) {
      std::vector<Request> requests = noise(engine);
      for (Request& request : requests) request.max_tokens = 100;
      return requests;
    });
  }
}

TEST(MtpDraft, GoesOnFromWhatOthersComputed) {
  for (const char* name : kWithBlocks) {
    SCOPED_TRACE(name);
    expect_same_session(of_512(reference(name)), "mtp");
    expect_same_of_restored(of_512(reference(name)), "mtp");
  }
}

/// Is told what passes computed, and checks it; guesses what it knows.
class ListeningDrafter final : public Drafter {
 public:
  explicit ListeningDrafter(std::shared_ptr<KnowingDrafter> guesses) : guesses_(std::move(guesses)) {}
  std::string_view name() const override { return "listening"; }
  bool is_free() const override { return true; }
  bool wants_states() const override { return true; }
  Status passed(std::span<const Computed> computed, const exec::Executor& executor) override {
    if (++passes_ == fails_at) return error(Code::io_error, "told to fail");
    for (const Computed& one : computed) {
      EXPECT_GE(one.rows, 0);
      EXPECT_LT(one.first + one.rows, std::ssize(one.tokens)) << "a token stands behind each";
      auto& seen = seen_[one.request];
      EXPECT_LE(one.first, std::ssize(seen)) << "no row is left out";
      seen.resize(static_cast<std::size_t>(one.first));
      std::vector<float> states(64 * 512);
      for (std::int64_t i = 0; i < one.rows; ++i) {
        EXPECT_TRUE(executor.read_hidden(one.first_row + i, 1, states.data()).ok());
        seen.push_back(one.tokens[static_cast<std::size_t>(one.first + i)]);
      }
      most_ = std::max(most_, std::ssize(seen));
    }
    return {};
  }
  Status propose(std::span<DraftAsk> asks, const std::function<bool()>& stop) override {
    for (const DraftAsk& ask : asks) {
      const auto& seen = seen_.at(ask.request);
      EXPECT_EQ(std::ssize(seen) + 1, std::ssize(ask.tokens)) << "all but the last token";
      EXPECT_TRUE(std::equal(seen.begin(), seen.end(), ask.tokens.begin()));
    }
    return guesses_->propose(asks, stop);
  }
  void accepted(std::uint64_t request, std::int64_t drafted, std::int64_t right) override {
    guesses_->accepted(request, drafted, right);
  }
  void forget(std::uint64_t request) override { seen_.erase(request); }

  int fails_at = 0;
  std::ptrdiff_t most() const { return most_; }

 private:
  std::shared_ptr<KnowingDrafter> guesses_;
  std::map<std::uint64_t, std::vector<TokenId>> seen_;
  int passes_ = 0;
  std::ptrdiff_t most_ = 0;
};

TEST(Drafters, AreToldOfEveryRowThatStays) {
  for (const char* name : {"llama", "qwen3next", "gemma3"}) {
    for (const int fails_at : {0, 5}) {
      SCOPED_TRACE(testing::Message() << name << ", fails at " << fails_at);
      EngineOptions options = several(reference(name));
      options.kv.share_prefixes = false;
      options.demand.kv_tokens = 256;
      const auto plain = make(options);
      const std::vector<Request> requests = noise(*plain);
      const std::vector<Told> expected = answers(*plain, noise(*plain));
      const auto knowing = std::make_shared<KnowingDrafter>(mixed_guess);
      for (std::size_t i = 0; i < requests.size(); ++i) knowing->learn(requests[i].prompt, expected[i].tokens);
      const auto listening = std::make_shared<ListeningDrafter>(knowing);
      listening->fails_at = fails_at;
      const auto engine = make(drafting(options, listening));
      const std::vector<Told> told = answers(*engine, noise(*engine));
      for (std::size_t i = 0; i < told.size(); ++i) EXPECT_TRUE(told[i] == expected[i]) << i;
      if (fails_at == 0) {
        EXPECT_GE(listening->most(), 150);
        EXPECT_GT(knowing->taken, 0);
      }
      EXPECT_EQ(engine->load().drafts.back().drafter, fails_at == 0 ? "listening" : "ngram");
    }
  }
}

TEST(MtpDraft, BenchSaysHowOftenGuessesAreRight) { expect_right_as_told(within(roomy(reference("glm4moe")), "mtp")); }

TEST(MtpDraft, ItsBlockIsAtHomeAndPaid) {
  EngineOptions options = roomy(reference("glm4moe"));
  options.demand.context_tokens = 256;
  const auto plain = plan_only(options), planned = plan_only(within(options, "mtp"));
  ASSERT_TRUE(plain.ok() && planned.ok()) << planned.status().message();
  EXPECT_EQ(plain->draft_blocks, 1);
  EXPECT_EQ(planned->draft_blocks, 0);
  EXPECT_EQ(planned->draft.place, DraftPlace::cpu);
  EXPECT_NE(planned->draft.words.find("the block behind the layers"), std::string::npos) << planned->draft.words;
  EXPECT_GE(planned->plan.resident_bytes, plain->plan.resident_bytes + plain->draft_block_bytes);
  EXPECT_GE(planned->plan.fixed_bytes, plain->plan.fixed_bytes + planned->draft.ram_bytes);
}

TEST(MtpDraft, WhatCannotGuessDoesNot) {
  expect_left_out(roomy(reference("llama")), "mtp", "no block that was trained");
  expect_left_out(roomy(reference("qwen35")), "mtp", "no block that was trained");
  EngineOptions small = roomy(reference("glm4moe"));
  small.demand.context_tokens = 256;
  small.memory.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, "mtp", "does not fit");
}

std::string head_file(const std::string& name) { return MILLRACE_TEST_DATA "/heads/" + name + ".gguf"; }

EngineOptions with_eagle3(const std::string& head) {
  EngineOptions options = within(roomy(reference("llama3")), head_file(head));
  options.demand.context_tokens = 256;
  options.kv.dtype = DType::f32;
  return with_head(std::move(options));
}

/// One pass of `program`, from whose rows logits and states come.
struct Passed {
  std::vector<float> logits, states;
};
Passed pass_of(Parts& parts, const exec::Program& program, const std::vector<TokenId>& tokens,
               const std::vector<float>& given, std::int64_t dim) {
  exec::CpuOptions how;
  how.isa = parts.isa;
  how.embedding_rows_from_disk = how.aside = true;
  const auto executor = exec::make_cpu_executor(*parts.store, *parts.pool, *parts.budget, how);
  const auto rows = std::ssize(tokens);
  exec::PassLimits limits;
  limits.max_rows = limits.max_logit_rows = limits.max_positions = rows;
  limits.kv_dtype = DType::f32;
  EXPECT_TRUE(executor->prepare(program, limits).ok());
  kv::SequenceState sequence(
      std::make_shared<kv::BlockPool>(program.layout.with(DType::f32, kv::kOnHost), *parts.budget));
  EXPECT_TRUE(sequence.reserve(rows).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  batch.given = given.data();
  batch.wants_hidden = true;
  for (std::int64_t i = 0; i < rows; ++i)
    batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, static_cast<std::int32_t>(i), true, false});
  const Status status = executor->run(batch, {});
  EXPECT_TRUE(status.ok()) << status.message();
  Passed passed;
  passed.states.resize(static_cast<std::size_t>(rows * dim));
  EXPECT_TRUE(executor->read_hidden(0, rows, passed.states.data()).ok());
  const exec::Logits logits = executor->last_logits();
  if (logits.data != nullptr) passed.logits.assign(logits.data, logits.data + logits.rows * logits.vocab);
  return passed;
}

/// Of the model's own pass over these tokens, what its tapped layers read: [rows, taps * model_dim].
std::vector<float> taps_of(Parts& parts, const std::vector<TokenId>& tokens) {
  const std::int64_t dim = parts.model->hyperparameters().model_dim, taps = parts.model->draft_passes()->taps;
  const auto rows = std::ssize(tokens);
  kv::SequenceState sequence(parts.kv_pool);
  EXPECT_TRUE(sequence.reserve(rows).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  batch.wants_hidden = true;
  for (std::int64_t i = 0; i < rows; ++i)
    batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, static_cast<std::int32_t>(i), false, true});
  EXPECT_TRUE(parts.executor->run(batch, {}).ok());
  std::vector<float> all(static_cast<std::size_t>(rows * taps * dim)), one(static_cast<std::size_t>(rows * dim));
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    EXPECT_TRUE(parts.executor->read_tap(tap, 0, rows, one.data()).ok());
    for (std::int64_t row = 0; row < rows; ++row)
      std::copy_n(one.data() + row * dim, dim, all.data() + (row * taps + tap) * dim);
  }
  EXPECT_EQ(parts.executor->read_tap(taps, 0, 1, one.data()).code(), Code::internal) << "there is no such tap";
  return all;
}

const char* const kHeads[] = {"eagle3", "eagle3-wide"};

/// tools/reference-models/eagle3.py: rows of the model's states, then three of the head's own.
TEST(Eagle3, GivesTheReferencesLogits) {
  const std::vector<TokenId> tokens = read_references(MILLRACE_TEST_DATA "/reference/llama3.bin").front().tokens;
  for (const char* name : kHeads) {
    SCOPED_TRACE(name);
    Expected<Parts> parts = assemble(with_eagle3(name));
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    const model::DraftPasses* const draft = parts->model->draft_passes();
    ASSERT_NE(draft, nullptr) << parts->draft.words;
    const Reference expected = read_references(MILLRACE_TEST_DATA "/heads/" + std::string(name) + ".bin").front();
    const auto known = std::ssize(tokens) - 1, rows = std::ssize(expected.tokens);
    std::vector<float> states = pass_of(*parts, *draft->fusion, tokens, taps_of(*parts, tokens), draft->dim).states;
    states.resize(static_cast<std::size_t>(known * draft->dim));
    std::vector<TokenId> fed(tokens.begin() + 1, tokens.end());
    while (std::ssize(fed) < rows) {
      const Passed passed = pass_of(*parts, draft->program, fed, states, draft->dim);
      const auto last = passed.logits.end() - static_cast<std::ptrdiff_t>(expected.vocab);
      fed.push_back(draft->token(std::max_element(last, passed.logits.end()) - last));
      states.insert(states.end(), passed.states.end() - draft->dim, passed.states.end());
    }
    EXPECT_EQ(fed, expected.tokens);
    const std::vector<float> logits = pass_of(*parts, draft->program, fed, states, draft->dim).logits;
    ASSERT_EQ(logits.size(), expected.logits.size());
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      difference += std::pow(double{logits[i]} - double{expected.logits[i]}, 2);
      norm += std::pow(double{expected.logits[i]}, 2);
    }
    std::printf("%s: relative L2 %.2e\n", name, std::sqrt(difference / norm));
    EXPECT_LT(std::sqrt(difference / norm), 2e-3);
  }
}

TEST(Eagle3, ChangesNoAnswer) {
  for (const char* name : kHeads) {
    SCOPED_TRACE(name);
    const std::string head = head_file(name);
    expect_no_change(several(reference("llama3")), head, noise);
    EngineOptions streamed = several(reference("llama3"));
    streamed.memory.exact_budget = true;  // the plan is the same whatever the program took before
    streamed.memory.ram_bytes = ram_above_smallest(within(streamed, head), 1.0);
    expect_no_change(streamed, head, noise, true);
    expect_same_session(of_512(reference("llama3")), head);
    expect_same_of_restored(of_512(reference("llama3")), head);
  }
  expect_no_change_by_preemption(several(reference("llama3")), head_file("eagle3"), [](const Engine& engine) {
    std::vector<Request> requests = noise(engine);
    for (Request& request : requests) request.max_tokens = 100;
    return requests;
  });
}

/// A prompt is read in parts, and the head gets the same states of it.
TEST(Eagle3, TheSameGuessesWhateverThePasses) {
  const auto guesses = [](std::int64_t rows) {
    EngineOptions options = with_eagle3("eagle3");
    options.demand.batch_tokens = rows;
    const auto engine = make(options);
    std::vector<TokenId> prompt;
    for (std::int64_t i = 0; i < 130; ++i) prompt.push_back(static_cast<TokenId>(3 + (i * i * 7 + i * 31) % 77));
    Request request = greedy(prompt, 60);
    request.ignore_end_tokens = true;
    const Result result = engine->run(std::move(request));
    EXPECT_EQ(engine->load().drafts.size(), 1u);
    return std::tuple(result.tokens, result.drafted, result.drafts_right);
  };
  const auto expected = guesses(256);
  EXPECT_GT(std::get<1>(expected), 0);
  for (const std::int64_t rows : {8, 50, 64}) EXPECT_EQ(guesses(rows), expected) << rows;
}

TEST(Eagle3, BenchSaysHowOftenGuessesAreRight) {
  expect_right_as_told(within(roomy(reference("llama3")), head_file("eagle3")));
}

TEST(Eagle3, ItsLayerIsAtHomeAndPaid) {
  EngineOptions options = roomy(reference("llama3"));
  options.demand.context_tokens = 256;
  const std::string head = head_file("eagle3");
  const auto plain = plan_only(options), planned = plan_only(within(options, head));
  ASSERT_TRUE(plain.ok() && planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->draft.place, DraftPlace::cpu);
  EXPECT_EQ(planned->draft.what, "the head of EAGLE-3");
  EXPECT_NE(planned->draft.words.find("its layer and the model's head stay in memory"), std::string::npos)
      << planned->draft.words;
  EXPECT_GE(planned->plan.resident_bytes, plain->plan.resident_bytes + 50'000) << "its layer has 57 kB";
  EXPECT_GE(planned->plan.fixed_bytes, plain->plan.fixed_bytes + planned->draft.ram_bytes);
  const auto engine = make(within(options, head));
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(engine->budget().reserved_bytes(), engine->budget().cap_bytes());
}

TEST(Eagle3, WhatDoesNotFitDoesNotGuess) {
  expect_left_out(roomy(reference("llama")), head_file("eagle3"),
                  "is for a model of 32 channels, and this one has 128");
  expect_left_out(roomy(reference("gemma3n")), head_file("eagle3"), "no head that guesses for models of gemma3n");
  EngineOptions small = roomy(reference("llama3"));
  small.demand.context_tokens = 256;
  small.memory.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, head_file("eagle3-wide"), "does not fit");
  const Status alone = model::load(*modelfile::Model::open(head_file("eagle3")), {}).status();
  EXPECT_EQ(alone.code(), Code::unsupported);
  EXPECT_NE(alone.message().find("give it to --draft"), std::string::npos) << alone.message();
}

/// A head whose vocabulary is named, and is not the model's.
TEST(Eagle3, OfAnotherVocabularyDoesNotGuess) {
  const std::string path = (std::filesystem::temp_directory_path() / fmt::format("head-{}.gguf", getpid())).string();
  for (const bool same : {true, false}) {
    const auto head = modelfile::Model::open(head_file("eagle3")), target = modelfile::Model::open(reference("llama3"));
    std::vector<std::string> tokens = *target->get_strings("tokenizer.ggml.tokens");
    if (!same) std::swap(tokens[40], tokens[41]);
    modelfile::Writer writer(path);
    for (const auto& [key, value] : head->metadata()) ASSERT_TRUE(writer.add(key, value).ok());
    ASSERT_TRUE(writer.add("tokenizer.ggml.tokens", modelfile::array_value(tokens)).ok());
    for (const modelfile::TensorInfo& tensor : head->tensors())
      ASSERT_TRUE(writer.declare(tensor.name, tensor.dtype, tensor.shape).ok());
    ASSERT_TRUE(writer.begin().ok());
    const auto file = modelfile::File::open_read(head_file("eagle3"));
    for (const modelfile::TensorInfo& tensor : head->tensors()) {
      std::vector<std::byte> bytes(tensor.bytes);
      ASSERT_TRUE(file->read_at(tensor.offset, bytes).ok());
      ASSERT_TRUE(writer.write_tensor_data(bytes).ok());
    }
    ASSERT_TRUE(writer.finish().ok());
    if (same)
      EXPECT_EQ(make(within(roomy(reference("llama3")), path))->draft_seat().place, DraftPlace::cpu);
    else
      expect_left_out(roomy(reference("llama3")), path, "its vocabulary differs from the model's at token 40");
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace millrace::engine
