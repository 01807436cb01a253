// Assistants of Gemma 4 guess over the keys and values of the model: what transformers answers with them, no change of
// any answer, and what is refused by name.
#include <cmath>
#include <cstdio>

#include "engine/assistant_drafter.h"
#include "engine/reference.h"
#include "engine/scheduler.h"
#include "engine/within.h"
#include "engine/within_checks.h"
#include "modelfile/gguf_writer.h"

namespace millrace::engine {
namespace {

using namespace test;

struct Pair {
  const char *assistant, *target;
};
/// One whose last layers read keys of earlier ones, and one whose values are keys.
constexpr Pair kPairs[] = {{"gemma4-assistant", "gemma4"}, {"gemma4-assistant-moe", "gemma4-moe"}};
constexpr std::int64_t kStarts[] = {10, 40, 79};  // of tools/reference-models/assistant.py

std::string assistant_file(const std::string& name) { return MILLRACE_TEST_DATA "/heads/" + name + ".gguf"; }

double distance(const std::vector<float>& logits, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    difference += std::pow(double{logits[i]} - double{expected[i]}, 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

/// The model's pass over the first `rows` tokens; its last row's states.
std::vector<float> read_prompt(Parts& parts, kv::SequenceState& sequence, const std::vector<TokenId>& tokens,
                               std::int64_t rows) {
  kv::Batch batch;
  batch.sequences = {&sequence};
  batch.wants_hidden = true;
  for (std::int64_t i = 0; i < rows; ++i)
    batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, static_cast<std::int32_t>(i), false, true});
  EXPECT_TRUE(sequence.reserve(rows + 1).ok());
  EXPECT_TRUE(parts.executor->run(batch, {}).ok());
  sequence.set_length(rows);
  std::vector<float> states(static_cast<std::size_t>(parts.model->hyperparameters().model_dim));
  EXPECT_TRUE(parts.executor->read_hidden(rows - 1, 1, states.data()).ok());
  return states;
}

class AssistantOverKv : public testing::TestWithParam<DType> {};

TEST_P(AssistantOverKv, GivesTransformersLogits) {
  const double most = GetParam() == DType::f32 ? 1e-3 : 0.25;  // keys that were not rotated alike would give 1
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.assistant);
    const std::vector<TokenId> tokens =
        read_references(MILLRACE_TEST_DATA "/reference/" + std::string(pair.target) + ".bin").front().tokens;
    EngineOptions options = within(roomy(reference(pair.target)), assistant_file(pair.assistant));
    options.demand.context_tokens = 256;
    options.kv.dtype = GetParam();
    Expected<Parts> parts = assemble(with_head(std::move(options)));
    ASSERT_TRUE(parts.ok()) << parts.status().message();
    const model::DraftPasses* const draft = parts->model->draft_passes();
    ASSERT_NE(draft, nullptr) << parts->draft.words;
    EXPECT_TRUE(draft->reads_model);
    exec::CpuOptions how;
    how.isa = parts->isa;
    how.embedding_rows_from_disk = how.aside = true;
    const auto executor = exec::make_cpu_executor(*parts->store, *parts->pool, *parts->budget, how);
    exec::PassLimits limits;
    limits.max_rows = limits.max_logit_rows = 1;
    limits.max_positions = 256;
    limits.kv_dtype = GetParam();
    ASSERT_TRUE(executor->prepare(draft->program, limits).ok());
    const std::vector<Reference> expected =
        read_references(MILLRACE_TEST_DATA "/heads/" + std::string(pair.assistant) + ".bin");
    ASSERT_EQ(expected.size(), std::size(kStarts));
    for (std::size_t s = 0; s < expected.size(); ++s) {
      SCOPED_TRACE(kStarts[s]);
      kv::SequenceState sequence(parts->kv_pool);
      std::vector<float> states = read_prompt(*parts, sequence, tokens, kStarts[s]), logits;
      EXPECT_EQ(tokens[static_cast<std::size_t>(kStarts[s])], expected[s].tokens.front());
      for (const TokenId token : expected[s].tokens) {
        kv::Batch batch;
        batch.sequences = {&sequence};
        batch.given = states.data();
        batch.wants_hidden = true;
        batch.rows = {{token, 0, static_cast<std::int32_t>(kStarts[s] - 1), true, false}};
        const Status status = executor->run(batch, {});
        ASSERT_TRUE(status.ok()) << status.message();
        const exec::Logits row = executor->last_logits();
        logits.insert(logits.end(), row.data, row.data + row.vocab);
        ASSERT_TRUE(executor->read_hidden(0, 1, states.data()).ok());
      }
      ASSERT_EQ(logits.size(), expected[s].logits.size());
      std::printf("%s from %d: relative L2 %.2e\n", pair.assistant, static_cast<int>(kStarts[s]),
                  distance(logits, expected[s].logits));
      EXPECT_LT(distance(logits, expected[s].logits), most);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kv, AssistantOverKv, testing::Values(DType::f32, DType::q8_0),
                         [](const auto& each) { return std::string(millrace::info(each.param).name); });

TEST(Assistant, ChangesNoAnswer) {
  for (const Pair& pair : kPairs) {
    SCOPED_TRACE(pair.assistant);
    const std::string assistant = assistant_file(pair.assistant);
    expect_no_change(several(reference(pair.target)), assistant, noise);
    expect_same_session(of_512(reference(pair.target)), assistant);
    expect_same_of_restored(of_512(reference(pair.target)), assistant);
  }
  EngineOptions streamed = several(reference("gemma4"));
  const std::string assistant = assistant_file("gemma4-assistant");
  streamed.memory.exact_budget = true;  // the plan is the same whatever the program took before
  streamed.memory.ram_bytes = ram_above_smallest(within(streamed, assistant), 1.0);
  expect_no_change(streamed, assistant, noise, true);
}

TEST(Assistant, IsPaidAndInMemory) {
  EngineOptions options = roomy(reference("gemma4"));
  options.demand.context_tokens = 256;
  const std::string assistant = assistant_file("gemma4-assistant");
  const auto plain = plan_only(options), planned = plan_only(within(options, assistant));
  ASSERT_TRUE(plain.ok() && planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->draft.place, DraftPlace::cpu);
  EXPECT_EQ(planned->draft.what, "Gemma 4's assistant");
  EXPECT_NE(planned->draft.words.find("its layers and its head stay in memory"), std::string::npos)
      << planned->draft.words;
  EXPECT_GE(planned->plan.resident_bytes, plain->plan.resident_bytes + 200'000) << "it has 217 kB";
  const auto engine = make(within(options, assistant));
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(engine->budget().reserved_bytes(), engine->budget().cap_bytes());
}

TEST(Assistant, WhatItCannotGuessForIsNamed) {
  expect_left_out(roomy(reference("llama3")), assistant_file("gemma4-assistant"),
                  "guesses for models of gemma4, and this one is of llama");
  EngineOptions small = roomy(reference("gemma4"));
  small.demand.context_tokens = 256;
  small.memory.ram_bytes = ram_above_smallest(small, 1.0);
  expect_left_out(small, assistant_file("gemma4-assistant"), "does not fit");
  const Status alone = model::load(*modelfile::Model::open(assistant_file("gemma4-assistant")), {}).status();
  EXPECT_EQ(alone.code(), Code::unsupported);
  EXPECT_NE(alone.message().find("give it to --draft"), std::string::npos) << alone.message();
}

/// Keys and values in VRAM are out of its reach.
TEST(Assistant, BesideAGpuIsRefusedByName) {
  const EngineOptions options = with_head(within(roomy(reference("gemma4")), assistant_file("gemma4-assistant")));
  std::vector<std::string> paths;
  const auto file = modelfile::Model::open(options.model.path);
  ASSERT_TRUE(file.ok());
  const Status status = load_with_drafter(options, *file, {}, DraftUnits::apart, paths).status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("lie in VRAM"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace millrace::engine
