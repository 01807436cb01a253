// Models that see, against transformers: the rows that towers make of pictures, logits of prompts with pictures and the
// answers to them; whole, in chunks, in a batch, gone on from and rewound.
#include "engine/vision.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/picture_rows.h"

namespace millrace::engine {
namespace {

using namespace test;

class Vision : public testing::TestWithParam<const char*> {
 protected:
  const std::string name_ = GetParam();
  const VisionReference reference_ = read_vision(name_);
  /// Whether a picture's rows see each other, so that it is never cut.
  bool sees_ahead() const { return name_ == "gemma3" || name_.starts_with("gemma4-moe"); }

  /// Logits of the prompt, where they can be had, and the answer.
  void expect_the_reference(Engine& engine) const {
    for (const VisionPrompt& prompt : reference_.prompts) {
      Request request = with_pictures(engine, reference_, prompt.tokens, std::ssize(prompt.answer));
      std::vector<float> logits;
      if (!sees_ahead()) keep_logits(request, logits);
      const Result result = engine.run(std::move(request));
      ASSERT_EQ(result.status.message(), "");
      EXPECT_EQ(result.tokens, prompt.answer);
      if (sees_ahead()) continue;
      ASSERT_GE(logits.size(), prompt.logits.size());
      EXPECT_LE(relative(std::span(logits).first(prompt.logits.size()), prompt.logits), 2e-3);
    }
  }
};

TEST_P(Vision, TowersMakeTheRowsThatTransformersMakes) {
  const auto engine = make(sees(name_));
  ASSERT_NE(engine, nullptr);
  for (std::size_t i = 0; i < reference_.pictures.size(); ++i) {
    const auto picture = encoded(*engine, reference_, i);
    ASSERT_NE(picture, nullptr);
    EXPECT_EQ(picture->grid, reference_.pictures[i].grid);
    EXPECT_EQ(picture->cols, reference_.pictures[i].cols);
    EXPECT_LE(relative(picture->states, reference_.pictures[i].states), 2e-4) << "picture " << i;
  }
}

TEST_P(Vision, AnswersAsTransformersDoes) {
  for (const std::int64_t rows :
       sees_ahead() ? std::vector<std::int64_t>{0, name_ == "gemma3" ? 9 : 24} : std::vector<std::int64_t>{0, 5, 1}) {
    SCOPED_TRACE(rows);
    EngineOptions options = sees(name_);
    options.demand.batch_tokens = rows;
    options.demand.max_sequences = 1;
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    expect_the_reference(*engine);
  }
}

TEST_P(Vision, ABatchWithTextsAnswersAsEachAlone) {
  const auto engine = make(sees(name_));
  ASSERT_NE(engine, nullptr);
  const std::vector<TokenId> text = {10, 20, 30, 40, 50};
  const Result alone = engine->run(greedy(text, 12));
  std::vector<Engine::Id> ids;
  for (const VisionPrompt& prompt : reference_.prompts)
    ids.push_back(engine->submit(with_pictures(*engine, reference_, prompt.tokens, std::ssize(prompt.answer))).value());
  ids.push_back(engine->submit(greedy(text, 12)).value());
  drain(*engine);
  for (std::size_t i = 0; i < reference_.prompts.size(); ++i)
    EXPECT_EQ(engine->take(ids[i]).tokens, reference_.prompts[i].answer) << i;
  EXPECT_EQ(engine->take(ids.back()).tokens, alone.tokens);
}

/// A conversation that goes on, then back to before its last picture.
TEST_P(Vision, ASessionGoesOnAndRewinds) {
  const auto engine = make(sees(name_));
  ASSERT_NE(engine, nullptr);
  const auto session = engine->new_session();
  const VisionPrompt& prompt = reference_.prompts[0];
  for (int turn = 0; turn < 2; ++turn) {
    const Result result =
        engine->run(with_pictures(*engine, reference_, prompt.tokens, std::ssize(prompt.answer)), session.get());
    EXPECT_EQ(result.tokens, prompt.answer) << result.status.message();
  }
  // Behind the answer, as the next turn of a conversation: the same as without what was kept.
  std::vector<std::int32_t> longer = prompt.tokens;
  longer.insert(longer.end(), prompt.answer.begin(), prompt.answer.end());
  longer.insert(longer.end(), {11, 12, -1001, -1002, 13});
  const auto all = [&] { return with_pictures(*engine, reference_, longer, 8); };
  const Result kept = engine->run(all(), session.get()), anew = engine->run(all());
  EXPECT_EQ(kept.tokens, anew.tokens) << kept.status.message() << anew.status.message();
  EXPECT_EQ(kept.tokens.size(), 8u);
  // The first prompt once more.
  const Result again =
      engine->run(with_pictures(*engine, reference_, prompt.tokens, std::ssize(prompt.answer)), session.get());
  EXPECT_EQ(again.tokens, prompt.answer);
}

/// The second request finds the first one's KV, also where only its pictures' beginning agrees.
TEST_P(Vision, PicturesAreFoundInThePrefixCacheAndToldApart) {
  EngineOptions options = sees(name_);
  options.kv.share_prefixes = true;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < 12; ++i)
    for (const std::int32_t token : reference_.prompts[0].tokens) tokens.push_back(token);
  tokens.resize(180);
  while (tokens.back() < 0) tokens.pop_back();
  const Result first = engine->run(with_pictures(*engine, reference_, tokens, 8));
  const Result second = engine->run(with_pictures(*engine, reference_, tokens, 8));
  EXPECT_EQ(first.status.message(), "");
  EXPECT_EQ(second.tokens, first.tokens);
  EXPECT_GE(second.cached_tokens, 64);
  EXPECT_EQ(engine->pictures()->encoded(), std::ssize(reference_.pictures));
  // Another picture in the place of one: nothing behind it is the first one's.
  auto other = std::make_shared<EncodedPicture>();
  const auto known = encoded(*engine, reference_, 0);
  other->key.fill(std::byte{99});
  other->grid = known->grid;
  other->cols = known->cols;
  other->states.assign(known->states.size(), 0.25f);
  Request changed = with_pictures(*engine, reference_, tokens, 8);
  const PlacedPicture before = changed.pictures.front();
  for (PlacedPicture& placed : changed.pictures) {
    if (placed.picture != before.picture) continue;
    placed.picture = other;
    for (std::int64_t row = 0; row < placed.count; ++row)
      changed.prompt[static_cast<std::size_t>(placed.first + row)] = picture_token(other->key, placed.first_row + row);
  }
  const Result third = engine->run(std::move(changed));
  EXPECT_EQ(third.status.message(), "");
  EXPECT_LT(third.cached_tokens, 8);
}

TEST_P(Vision, TheDiskRemembersPromptsWithPictures) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("vision-prompts-" + std::to_string(getpid()) + name_);
  fs::remove_all(folder);
  EngineOptions options = sees(name_);
  options.demand.context_tokens = 512;
  options.kv.prompt_cache = folder.string();
  options.kv.prompt_cache_seconds = 0;
  std::vector<std::int32_t> tokens;
  while (tokens.size() < 300)
    tokens.insert(tokens.end(), reference_.prompts[0].tokens.begin(), reference_.prompts[0].tokens.end());
  std::vector<TokenId> first;
  for (const bool again : {false, true}) {
    const auto engine = make(options);
    ASSERT_NE(engine, nullptr);
    const Result result = engine->run(with_pictures(*engine, reference_, tokens, 8));
    drain(*engine);
    while (engine->saving()) engine->step();
    EXPECT_EQ(result.status.message(), "");
    EXPECT_GE(result.cached_tokens, again ? 64 : 0);
    if (!again) first = result.tokens;
    EXPECT_EQ(result.tokens, first);
  }
  fs::remove_all(folder);
}

TEST_P(Vision, PenaltiesAndDraftsPassOverPictures) {
  EngineOptions options = sees(name_);
  options.speculate.mode = SpeculateOptions::Mode::fixed;
  options.speculate.drafts = 3;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  for (const VisionPrompt& prompt : reference_.prompts) {
    Request request = with_pictures(*engine, reference_, prompt.tokens, std::ssize(prompt.answer));
    EXPECT_EQ(engine->run(std::move(request)).tokens, prompt.answer);
    request = with_pictures(*engine, reference_, prompt.tokens, 16);
    request.sampler.penalties.repeat = 1.3f;
    request.sampler.penalties.last_n = -1;
    request.sampler.dry.multiplier = 0.8f;
    request.sampler.dry.last_n = -1;
    request.sampler.dry.allowed_length = 1;
    const Result result = engine->run(std::move(request));
    EXPECT_EQ(result.status.message(), "");
    EXPECT_EQ(result.tokens.size(), 16u);
    for (const TokenId id : result.tokens) EXPECT_GE(id, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Reference, Vision,
                         testing::Values("qwen35", "qwen4exp", "qwen3vl", "qwen2vl", "qwen2vl-quick", "mistral-nemo",
                                         "gemma3", "gemma4", "gemma4-moe", "gemma4-moe-unified", "qwen2-internvl",
                                         "qwen3-internvl", "llama-idefics3", "lfm2", "glm4v", "deepseek-v3-kimivl"),
                         [](const testing::TestParamInfo<const char*>& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Tiles are computed each by itself; their rows follow one another as one picture's.
TEST(VisionViews, RowsOfSeveralViewsFollowOneAnother) {
  const VisionReference reference = read_vision("llama-idefics3");
  const auto engine = make(sees("llama-idefics3"));
  ASSERT_NE(engine, nullptr);
  std::vector<vision::Patches> views;
  std::vector<float> rows;
  for (const std::size_t index : {0u, 1u, 0u}) {
    const VisionPicture& picture = reference.pictures[index];
    views.push_back(patches_of(picture, engine->pictures()->spec()));
    rows.insert(rows.end(), picture.states.begin(), picture.states.end());
  }
  const auto made = engine->pictures()->encode(file_key(9), views, {});
  ASSERT_TRUE(made.ok()) << made.status().message();
  EXPECT_EQ((*made)->grid, (vision::Grid{1, 3 * reference.pictures[0].grid.tokens()}));
  EXPECT_LE(relative((*made)->states, rows), 2e-4);
  EXPECT_EQ(engine->pictures()->encoded(), 1);
  // All views were computed with weights that were read once.
  const std::uint64_t read = engine->pictures()->bytes_read();
  const auto alone = engine->pictures()->encode(file_key(10), std::span(views).first(1), {});
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  EXPECT_GT(read, 0u);
  EXPECT_EQ(engine->pictures()->bytes_read(), 2 * read);
  EXPECT_TRUE(std::equal((*alone)->states.begin(), (*alone)->states.end(), (*made)->states.begin()));
}

TEST(VisionErrors, PicturesThatHaveNoPlaceAreRefused) {
  const VisionReference reference = read_vision("qwen35");
  const auto engine = make(sees("qwen35"));
  ASSERT_NE(engine, nullptr);
  const auto refused = [&](const std::function<void(Request&)>& change) {
    Request request = with_pictures(*engine, reference, reference.prompts[0].tokens, 4);
    change(request);
    const auto id = engine->submit(std::move(request));
    EXPECT_FALSE(id.ok());
    return id.ok() ? std::string() : id.status().message();
  };
  EXPECT_NE(refused([](Request& request) { request.pictures.pop_back(); }).find("a picture token without a picture"),
            std::string::npos);
  EXPECT_NE(refused([](Request& request) { request.pictures.clear(); }).find("outside the vocabulary"),
            std::string::npos);
  EXPECT_NE(refused([](Request& request) { ++request.pictures[0].first; }), "");
  EXPECT_NE(refused([](Request& request) { request.pictures[0].count = 1000; }).find("no place"), std::string::npos);
  EXPECT_NE(refused([](Request& request) { request.prompt[1] = -5; }).find("not its picture's"), std::string::npos);
  EXPECT_NE(refused([](Request& request) { request.pooling = model::Pooling::mean; }), "");
}

TEST(VisionErrors, ATowerOfAnotherModelIsRefused) {
  EngineOptions options = sees("qwen35");
  options.model.mmproj = vision_path("gemma3-mmproj.gguf");
  const auto engine = Engine::create(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("gemma3"), std::string::npos) << engine.status().message();
  options.model.mmproj = MILLRACE_TEST_DATA "/reference/qwen35.gguf";
  EXPECT_FALSE(Engine::create(options).ok());
  // Deepstack's rows are wider than this model's.
  options.model.mmproj = vision_path("qwen3vl-mmproj.gguf");
  EXPECT_FALSE(Engine::create(options).ok());
}

TEST(VisionErrors, RowsThatSeeEachOtherTakeNoKvOfFewBits) {
  EngineOptions options = sees("gemma3");
  options.kv.dtype = DType::q3_k;
  const auto engine = Engine::create(options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), Code::unsupported);
  EXPECT_NE(engine.status().message().find("--kv f16"), std::string::npos) << engine.status().message();
  options.model.mmproj.clear();
  EXPECT_NE(make(options), nullptr);
}

TEST(VisionErrors, ATowerThatDoesNotFitIsRefusedAndOthersGoOn) {
  const VisionReference reference = read_vision("qwen35");
  const auto engine = make(sees("qwen35"));
  ASSERT_NE(engine, nullptr);
  const VisionPicture& small = reference.pictures[0];
  vision::Patches large = patches_of(small, engine->pictures()->spec());
  large.rows = large.cols = 256;
  large.pixels.assign(static_cast<std::size_t>(large.rows * large.cols * large.dim), 0);
  const auto refused = engine->pictures()->encode(file_key(7), std::span(&large, 1), {});
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::out_of_budget) << refused.status().message();
  const vision::Patches patches = patches_of(small, engine->pictures()->spec());
  const auto cancelled = engine->pictures()->encode(file_key(0), std::span(&patches, 1), [] { return true; });
  EXPECT_EQ(cancelled.status().code(), Code::cancelled);
  EXPECT_NE(encoded(*engine, reference, 0), nullptr);
}

}  // namespace
}  // namespace millrace::engine
