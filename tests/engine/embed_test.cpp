// Embeddings: the states that the reference's logits are made of, and the same bits however they are computed.
#include "engine/embed.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>

#include "engine/pooler.h"
#include "engine/reference.h"
#include "tensor/codec.h"

namespace millrace::engine {
namespace {

using namespace test;
using model::Pooling;
using Vector = std::vector<float>;

constexpr Pooling kPoolings[] = {Pooling::mean, Pooling::first, Pooling::last};

Request embedding(std::vector<TokenId> prompt, Pooling pooling) {
  Request request;
  request.prompt = std::move(prompt);
  request.pooling = pooling;
  return request;
}

Vector embed_one(Engine& engine, std::vector<TokenId> prompt, Pooling pooling, Session* session = nullptr) {
  Result result = engine.run(embedding(std::move(prompt), pooling), session);
  EXPECT_EQ(result.finish, Finish::stop) << result.status.message();
  EXPECT_TRUE(result.tokens.empty() && result.text.empty());
  return std::move(result.embedding);
}

void expect_same_bits(const Vector& a, const Vector& b) {
  ASSERT_FALSE(b.empty());
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << a[0] << " instead of " << b[0];
}

double dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * double{b[i]};
  return sum;
}
double length(std::span<const float> a) { return std::sqrt(dot(a, a)); }
double cosine(std::span<const float> a, std::span<const float> b) { return dot(a, b) / (length(a) * length(b)); }

/// The head of a model's file, decoded.
struct Head {
  explicit Head(const std::string& path) {
    const auto file = modelfile::Model::open(path);
    EXPECT_TRUE(file.ok()) << file.status().message();
    const modelfile::TensorInfo* tensor = file->find("output.weight");
    if (tensor == nullptr) tensor = file->find("token_embd.weight");
    std::vector<std::byte> row(row_bytes(tensor->dtype, tensor->cols()));
    std::ifstream bytes(path, std::ios::binary);
    bytes.seekg(static_cast<std::streamoff>(tensor->offset));
    for (std::int64_t i = 0; i < tensor->rows(); ++i) {
      bytes.read(reinterpret_cast<char*>(row.data()), static_cast<std::streamsize>(row.size()));
      decode_row(tensor->dtype, row.data(), tensor->cols(),
                 rows.emplace_back(static_cast<std::size_t>(tensor->cols())).data());
    }
  }
  Vector times(const Vector& state) const {
    Vector logits;
    for (const Vector& row : rows) logits.push_back(static_cast<float>(dot(row, state)));
    return logits;
  }
  std::vector<Vector> rows;
};

TEST(Embed, TheHeadMakesTheReferencesLogitsOfThem) {
  const Head head(draft_path());
  const auto engine = make(roomy(draft_path()));
  std::size_t rows = 0;
  for (const Reference& reference : read_references(MILLRACE_TEST_DATA "/reference/demo-draft.bin")) {
    const auto logits_of = [&](std::size_t row) {
      return std::span(reference.logits).subspan(row * reference.vocab, reference.vocab);
    };
    Vector sum(head.rows[0].size(), 0);  // of the states, at the lengths that the reference's logits tell
    for (std::size_t row = 0; row < reference.tokens.size(); ++row, ++rows) {
      const std::vector<TokenId> prompt(reference.tokens.begin(),
                                        reference.tokens.begin() + static_cast<std::ptrdiff_t>(row) + 1);
      const Vector state = embed_one(*engine, prompt, Pooling::last);
      ASSERT_NEAR(length(state), 1, 1e-6);
      const Vector logits = head.times(state);
      EXPECT_GT(cosine(logits, logits_of(row)), 0.99999);
      if (row > 0) {
        EXPECT_LT(cosine(logits, logits_of(row - 1)), 0.999) << "another row's would do as well";
      }
      const double scale = length(logits_of(row)) / length(logits);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<float>(scale * double{state[i]});
      const Vector mean = embed_one(*engine, prompt, Pooling::mean);
      EXPECT_GT(cosine(mean, sum), 0.9999);
      if (row > 2) {
        EXPECT_LT(cosine(mean, state), 0.999) << "a mean that is the last row";
      }
      EXPECT_GT(cosine(embed_one(*engine, prompt, Pooling::first),
                       embed_one(*engine, {reference.tokens.front()}, Pooling::last)),
                0.999999);
    }
  }
  EXPECT_GT(rows, 30u);
}

std::vector<TokenId> text_of(const Engine& engine, std::size_t index) {
  return real_text(engine, 20 + 35 * index, 400 * index);
}

/// Of text 3, alone, everything resident.
Vector alone(const std::string& path, Pooling pooling) {
  const auto engine = make(roomy(path));
  return embed_one(*engine, text_of(*engine, 3), pooling);
}

TEST(Embed, SameBitsInABatchOfEightThatAlsoAnswers) {
  for (const Pooling pooling : kPoolings) {
    EngineOptions options = roomy(moe_path());
    options.demand.max_sequences = 8;
    options.demand.context_tokens = 512;
    options.kv.share_prefixes = true;
    const auto engine = make(options);
    const std::string story = engine->run(greedy(chat(*engine, "Tell me a short story."), 40)).text;
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < 7; ++i) ids.push_back(*engine->submit(embedding(text_of(*engine, i), pooling)));
    ids.push_back(*engine->submit(greedy(chat(*engine, "Tell me a short story."), 40)));
    drain(*engine);
    expect_same_bits(engine->take(ids[3]).embedding, alone(moe_path(), pooling));
    EXPECT_EQ(engine->take(ids[7]).text, story);
  }
}

TEST(Embed, SameBitsHoweverPassesCutThePromptAndWhereverTheWeightsLie) {
  for (const Pooling pooling : kPoolings) {
    const Vector expected = alone(moe_path(), pooling);
    for (const std::int64_t rows : {1, 7, 16, 64, 100}) {
      SCOPED_TRACE(rows);
      EngineOptions options = roomy(moe_path());
      options.demand.batch_tokens = rows;
      const auto engine = make(options);
      expect_same_bits(embed_one(*engine, text_of(*engine, 3), pooling), expected);
    }
    EngineOptions options = roomy(moe_path());
    options.memory.ram_bytes = 5'000'000;
    options.demand.context_tokens = 512;
    const auto engine = make(options);
    expect_same_bits(embed_one(*engine, text_of(*engine, 3), pooling), expected);
  }
}

TEST(Embed, KvThatOthersLeftIsNotGoneOnFrom) {
  EngineOptions options = roomy(draft_path());
  options.kv.share_prefixes = true;
  const auto engine = make(options);
  const std::vector<TokenId> text = text_of(*engine, 3);
  const auto session = engine->new_session();
  engine->run(greedy(text, 1), session.get());
  const std::uint64_t rows = engine->load().rows;
  for (const Pooling pooling : kPoolings) {
    expect_same_bits(embed_one(*engine, text, pooling), alone(draft_path(), pooling));
    expect_same_bits(embed_one(*engine, text, pooling, session.get()), alone(draft_path(), pooling));
  }
  EXPECT_EQ(engine->load().rows - rows, 6 * text.size());
}

TEST(Embed, WhoLosesItsKvBeginsItsSumAgain) {
  EngineOptions options = roomy(draft_path());
  options.demand.max_sequences = 4;
  options.demand.context_tokens = 256;
  options.demand.kv_tokens = 256;
  options.demand.batch_tokens = 40;
  options.demand.chunk_tokens = 1;  // the answer grows beside it until there is no KV for both
  const auto engine = make(options);
  Request stream = greedy(real_text(*engine, 50), 190);
  stream.ignore_end_tokens = true;
  const auto answer = *engine->submit(std::move(stream));
  for (int pass = 0; pass < 2; ++pass) engine->step();
  const std::vector<TokenId> text = text_of(*engine, 3);
  const auto id = *engine->submit(embedding(text, Pooling::mean));
  drain(*engine);
  EXPECT_GT(engine->load().preempted, 0u);
  EXPECT_EQ(engine->take(answer).finish, Finish::length);
  expect_same_bits(engine->take(id).embedding, alone(draft_path(), Pooling::mean));
}

TEST(Embed, AWholeContextFitsAndWhatCannotBeIsSaid) {
  EngineOptions options = roomy(draft_path());
  options.demand.context_tokens = 128;
  const auto engine = make(options);
  EXPECT_FALSE(embed_one(*engine, real_text(*engine, 128), Pooling::last).empty());
  EXPECT_EQ(engine->run(embedding(real_text(*engine, 129), Pooling::last)).status.code(), Code::invalid_argument);
  EXPECT_EQ(engine->run(embedding({1}, Pooling::other)).status.code(), Code::unsupported);
  EXPECT_TRUE(engine->run(greedy(real_text(*engine, 20), 2)).embedding.empty());
  const auto ids = embedding_tokens(*engine, "A fox and a lantern.", false);
  ASSERT_TRUE(ids.ok() && ids->size() > 4) << ids.status().message();
  const auto cut = embedding_tokens(*engine, "A fox and a lantern.", true, 3);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(*cut, std::vector<TokenId>(ids->begin(), ids->begin() + 3));
  EXPECT_EQ(embedding_tokens(*engine, "A fox and a lantern.", false, 3).status().code(), Code::invalid_argument);
}

TEST(Embed, NormaliseLeavesZerosAlone) {
  Vector vector = {3, 0, -4};
  normalise(vector);
  EXPECT_EQ(vector, (Vector{0.6f, 0, -0.8f}));
  Vector zeros = {0, 0};
  normalise(zeros);
  EXPECT_EQ(zeros, (Vector{0, 0}));
}

TEST(Embed, ManyTextsComeInTheirOrderThroughAShortQueue) {
  EngineOptions options = roomy(draft_path());
  options.demand.max_sequences = 3;
  options.demand.max_queue = 1;
  options.demand.context_tokens = 128;
  const auto service = *Service::start(options);
  const Engine& engine = service->engine();
  std::vector<std::vector<TokenId>> inputs;
  for (std::size_t i = 0; i < 30; ++i) inputs.push_back(real_text(engine, 5 + i * 7 % 40, 100 * i));
  const auto many = embed(*service, inputs, {});
  ASSERT_TRUE(many.ok()) << many.status().message();
  std::int64_t tokens = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto one = embed(*service, {inputs[i]}, {.pooling = Pooling::last});
    ASSERT_TRUE(one.ok());
    expect_same_bits(many->vectors[i], one->vectors[0]);
    tokens += std::ssize(inputs[i]);
  }
  EXPECT_EQ(many->prompt_tokens, tokens);

  const auto shorter = embed(*service, {inputs[0]}, {.dimensions = 10});
  ASSERT_EQ(shorter->vectors[0].size(), 10u);
  EXPECT_NEAR(length(shorter->vectors[0]), 1, 1e-6);
  EXPECT_GT(cosine(shorter->vectors[0], std::span(many->vectors[0]).first(10)), 0.999999);
  EXPECT_EQ(embed(*service, {inputs[0]}, {.dimensions = 1 << 20})->vectors, std::vector<Vector>{many->vectors[0]});
  EXPECT_TRUE(embed(*service, {}, {})->vectors.empty());
}

TEST(Embed, OneThatFailsEndsAllAndOneThatLeavesStopsThem) {
  EngineOptions options = roomy(draft_path());
  options.demand.max_sequences = 2;
  const auto service = *Service::start(options);
  const std::vector<TokenId> text = real_text(service->engine(), 400);
  std::vector<std::vector<TokenId>> inputs(12, text);
  inputs[5] = {1 << 30};
  EXPECT_EQ(embed(*service, inputs, {}).status().code(), Code::invalid_argument);
  inputs[5] = text;
  int asked = 0;
  EXPECT_EQ(embed(*service, std::vector(2000, text), {}, [&] { return ++asked > 3; }).status().code(), Code::cancelled);
  service->shutdown(std::chrono::milliseconds(0));
  EXPECT_EQ(service->active(), 0);
  EXPECT_EQ(embed(*service, inputs, {}).status().code(), Code::unavailable);
}

}  // namespace
}  // namespace millrace::engine
