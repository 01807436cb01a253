#include "engine/engine.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/setup.h"
#include "engine/support.h"

namespace millrace::engine {
namespace {

using namespace test;

constexpr const char* kQuestion = "What is the capital of France?";
constexpr const char* kAnswer = "The capital of France is Paris.";

class Models : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Demo, Models, testing::Values("moe", "draft"), [](const auto& info) { return info.param; });
std::string path_of(const std::string& model) { return model == "moe" ? moe_path() : draft_path(); }

TEST_P(Models, KnowsTheCapitalOfFrance) {
  const auto engine = make(roomy(path_of(GetParam())));
  std::string streamed;
  std::vector<TokenId> tokens;
  Request request = greedy(chat(*engine, kQuestion), 64);
  const auto prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  request.on_text = [&](std::string_view text, std::span<const TokenId> ids) {
    streamed += text;
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  };
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(result.finish, Finish::stop) << result.status.message();
  EXPECT_EQ(result.text, kAnswer);
  EXPECT_EQ(streamed, kAnswer);
  EXPECT_EQ(tokens, result.tokens);
  EXPECT_EQ(result.prompt_tokens, prompt_tokens);
  EXPECT_GT(result.prompt_seconds, 0);
  EXPECT_GT(result.decode_seconds, 0);
}

TEST(Engine, StopStringEndsTheAnswerAcrossTokenBorders) {
  const auto engine = make(roomy(moe_path()));
  for (const char* stop : {"is Par", "France", "s Pa", "."}) {
    Request request = greedy(chat(*engine, kQuestion), 64);
    request.stop = {"never said", stop};
    std::string streamed;
    request.on_text = [&](std::string_view text, std::span<const TokenId>) { streamed += text; };
    const Result result = engine->run(std::move(request));
    const std::string answer = kAnswer;
    EXPECT_EQ(result.finish, Finish::stop);
    EXPECT_EQ(result.text, answer.substr(0, answer.find(stop)));
    EXPECT_EQ(streamed, result.text);
  }
}

TEST(Engine, LengthIsKept) {
  const auto engine = make(roomy(moe_path()));
  const Result three = engine->run(greedy(chat(*engine, kQuestion), 3));
  EXPECT_EQ(three.finish, Finish::length);
  EXPECT_EQ(three.tokens.size(), 3u);
  const Result none = engine->run(greedy(chat(*engine, kQuestion), 0));
  EXPECT_EQ(none.finish, Finish::length);
  EXPECT_TRUE(none.tokens.empty());
}

TEST(Engine, TheContextEndsAnAnswer) {
  EngineOptions options = roomy(moe_path());
  options.demand.context_tokens = 40;
  const auto engine = make(options);
  EXPECT_EQ(engine->context_tokens(), 40);
  Request request = greedy(real_text(*engine, 30), -1);
  request.ignore_end_tokens = true;
  const Result result = engine->run(std::move(request));
  EXPECT_EQ(result.finish, Finish::length);
  EXPECT_EQ(result.tokens.size(), 10u);
}

TEST(Engine, RequestsThatCannotBeAreRefusedWithAWord) {
  EngineOptions options = roomy(moe_path());
  options.demand.context_tokens = 64;
  const auto engine = make(options);
  const Result long_prompt = engine->run(greedy(real_text(*engine, 65), 5));
  EXPECT_EQ(long_prompt.finish, Finish::error);
  EXPECT_EQ(long_prompt.status.code(), Code::invalid_argument);
  for (const char* word : {"65", "64", "--ctx"})
    EXPECT_NE(long_prompt.status.message().find(word), std::string::npos) << long_prompt.status.message();
  EXPECT_EQ(engine->run(greedy({}, 5)).status.code(), Code::invalid_argument);
  EXPECT_EQ(engine->run(greedy({1, -4}, 5)).status.code(), Code::invalid_argument);
  EXPECT_EQ(engine->run(greedy({1, 2263}, 5)).status.code(), Code::invalid_argument);
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32)).text, kAnswer) << "and the engine goes on";
}

TEST(Engine, HeadsThatQuantizedKvCannotHoldAreSaid) {
  const auto layout = [](std::int64_t head_dim) {
    const kv::LayerKv layers[] = {{kv::Keeps::attention, 1, 64, 64}, {kv::Keeps::attention, 1, head_dim, head_dim}};
    return kv::Layout(layers);
  };
  for (const std::int64_t head_dim : {64, 96, 128, 256})
    EXPECT_TRUE(check_kv(layout(head_dim), DType::q8_0).ok()) << head_dim;
  EXPECT_TRUE(check_kv(layout(80), DType::f16).ok());
  const Status refused = check_kv(layout(80), DType::q8_0);
  EXPECT_EQ(refused.code(), Code::unsupported);
  EXPECT_NE(refused.message().find("multiple of 32"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("use --kv f16"), std::string::npos) << refused.message();
  EXPECT_EQ(check_kv(layout(80), DType::q4_0).code(), Code::unsupported);
}

TEST(Engine, WeightsAreReadOnceAPassHoweverLongThePrompt) {
  EngineOptions options = roomy(moe_path());
  options.demand.batch_tokens = 128;
  const auto engine = make(options);
  const std::uint64_t before = engine->executor().counters().passes;
  std::vector<std::int64_t> progress;
  Request request = greedy(real_text(*engine, 300), 4);
  request.ignore_end_tokens = true;
  request.on_prompt = [&](std::int64_t done, std::int64_t total) {
    EXPECT_EQ(total, 300);
    progress.push_back(done);
  };
  engine->run(std::move(request));
  EXPECT_EQ(progress, (std::vector<std::int64_t>{0, 128, 256, 300}));
  EXPECT_EQ(engine->executor().counters().passes - before, 3u + 3u) << "three for the prompt, three for tokens 2 to 4";
}

TEST(Engine, SequencesShareTheirPasses) {
  EngineOptions options = roomy(moe_path());
  options.demand.max_sequences = 4;
  const auto engine = make(options);
  const std::uint64_t before = engine->executor().counters().passes;
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 4; ++i) {
    Request request = greedy(real_text(*engine, 20, static_cast<std::size_t>(i) * 100), 5);
    request.ignore_end_tokens = true;
    ids.push_back(*engine->submit(std::move(request)));
  }
  drain(*engine);
  EXPECT_EQ(engine->executor().counters().passes - before, 5u);
  for (const Engine::Id id : ids) EXPECT_EQ(engine->take(id).tokens.size(), 5u);
}

TEST(Engine, RequestsBeyondTheLimitWaitForTheirTurn) {
  EngineOptions options = roomy(draft_path());
  options.demand.max_sequences = 2;
  const auto engine = make(options);
  std::vector<Engine::Id> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(*engine->submit(greedy(chat(*engine, kQuestion), 32)));
  drain(*engine);
  for (const Engine::Id id : ids) {
    EXPECT_TRUE(engine->finished(id));
    EXPECT_EQ(engine->take(id).text, kAnswer);
    EXPECT_FALSE(engine->finished(id));
  }
}

TEST(Engine, SamplingFollowsTheSeed) {
  const auto engine = make(roomy(moe_path()));
  const auto told = [&](std::uint64_t seed) {
    Request request;
    request.prompt = chat(*engine, "Tell me a short story.");
    request.sampler.temperature = 1.2f;
    request.sampler.seed = seed;
    request.max_tokens = 40;
    return engine->run(std::move(request)).text;
  };
  EXPECT_EQ(told(7), told(7));
  EXPECT_NE(told(7), told(8));
}

// --- Cancelling ---

TEST(Cancel, TheStopFlagEndsARunAndTheEngineGoesOn) {
  const auto engine = make(roomy(moe_path()));
  std::atomic<bool> stop{false};
  Request request = greedy(chat(*engine, "Tell me a short story."), -1);
  request.ignore_end_tokens = true;
  int pieces = 0;
  request.on_text = [&](std::string_view, std::span<const TokenId>) { stop = ++pieces == 3; };
  const Result result = engine->run(std::move(request), nullptr, &stop);
  EXPECT_EQ(result.finish, Finish::cancelled);
  EXPECT_FALSE(result.text.empty());
  EXPECT_LE(result.tokens.size(), 8u);
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32)).text, kAnswer);
}

TEST(Cancel, StopsALongPromptWithinThePass) {
  EngineOptions options = roomy(moe_path());
  options.demand.batch_tokens = 1500;
  options.device.threads = 1;
  const auto engine = make(options);
  std::atomic<bool> stop{false};
  Request request = greedy(real_text(*engine, 1500), 4);
  bool pass_ended = false;
  request.on_prompt = [&](std::int64_t done, std::int64_t) { pass_ended = done > 0; };
  std::thread user([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the pass takes half a second
    stop = true;
  });
  const Result result = engine->run(std::move(request), nullptr, &stop);
  user.join();
  EXPECT_EQ(result.finish, Finish::cancelled);
  EXPECT_FALSE(pass_ended);
}

TEST(Cancel, OneOfSeveralLeavesTheOthersAlone) {
  EngineOptions options = roomy(moe_path());
  options.demand.max_sequences = 2;
  const auto engine = make(options);
  Request story = greedy(chat(*engine, "Tell me a short story."), 200);
  Engine::Id story_id = 0;
  story.on_text = [&](std::string_view, std::span<const TokenId>) { engine->cancel(story_id); };
  story_id = *engine->submit(std::move(story));
  const Engine::Id question_id = *engine->submit(greedy(chat(*engine, kQuestion), 32));
  drain(*engine);
  const Result story_result = engine->take(story_id);
  EXPECT_EQ(story_result.finish, Finish::cancelled);
  EXPECT_EQ(story_result.tokens.size(), 1u);
  EXPECT_EQ(engine->take(question_id).text, kAnswer);
}

TEST(Cancel, ARequestStillInTheQueue) {
  const auto engine = make(roomy(draft_path()));
  const Engine::Id first = *engine->submit(greedy(chat(*engine, kQuestion), 32));
  const Engine::Id second = *engine->submit(greedy(chat(*engine, kQuestion), 32));
  engine->cancel(second);
  drain(*engine);
  EXPECT_EQ(engine->take(first).text, kAnswer);
  EXPECT_EQ(engine->take(second).finish, Finish::cancelled);
}

TEST(Cancel, FromAnotherThread) {
  const auto engine = make(roomy(draft_path()));
  Request request = greedy(chat(*engine, "Tell me a short story."), -1);
  request.ignore_end_tokens = true;
  const Engine::Id id = *engine->submit(std::move(request));
  std::thread other([&] { engine->cancel(id); });
  drain(*engine);
  other.join();
  EXPECT_NE(engine->take(id).finish, Finish::error);
}

// --- Sessions ---

TEST(Session, GoesOnWithoutComputingThePastAgain) {
  const auto engine = make(roomy(moe_path()));
  const auto session = engine->new_session();
  std::vector<TokenId> prompt = real_text(*engine, 200);
  Request first = greedy(prompt, 10);
  first.ignore_end_tokens = true;
  const Result start = engine->run(std::move(first), session.get());
  EXPECT_EQ(session->tokens().size(), 209u) << "the last token's KV is computed when it is needed";

  prompt.insert(prompt.end(), start.tokens.begin(), start.tokens.end());
  const std::vector<TokenId> more = real_text(*engine, 30, 3000);
  prompt.insert(prompt.end(), more.begin(), more.end());
  std::vector<float> continued, anew;
  const std::uint64_t before = engine->executor().counters().rows;
  Request second = greedy(prompt, 1);
  second.on_logits = [&](std::int64_t position, std::span<const float> row) {
    EXPECT_EQ(position, 239);
    continued.assign(row.begin(), row.end());
  };
  engine->run(std::move(second), session.get());
  EXPECT_EQ(engine->executor().counters().rows - before, 31u);

  Request whole = greedy(prompt, 1);
  whole.on_logits = [&](std::int64_t, std::span<const float> row) { anew.assign(row.begin(), row.end()); };
  engine->run(std::move(whole));
  EXPECT_EQ(continued, anew);
}

TEST(Session, APromptThatDiffersKeepsWhatAgrees) {
  const auto engine = make(roomy(moe_path()));
  const auto session = engine->new_session();
  engine->run(greedy(chat(*engine, "Tell me a short story."), 20), session.get());
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32), session.get()).text, kAnswer);
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32), session.get()).text, kAnswer) << "the same once more";
  session->clear();
  EXPECT_TRUE(session->tokens().empty());
  EXPECT_EQ(engine->run(greedy(chat(*engine, kQuestion), 32), session.get()).text, kAnswer);
}

TEST(Session, HoldsOneRequestAtATime) {
  const auto engine = make(roomy(draft_path()));
  const auto session = engine->new_session();
  const auto first = engine->submit(greedy(chat(*engine, kQuestion), 32), *session);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(engine->submit(greedy(chat(*engine, kQuestion), 32), *session).status().code(), Code::invalid_argument);
  drain(*engine);
  EXPECT_TRUE(engine->submit(greedy(chat(*engine, kQuestion), 32), *session).ok());
  drain(*engine);
}

}  // namespace
}  // namespace millrace::engine
