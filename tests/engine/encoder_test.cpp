// Encoders against transformers: the tokens of texts in several scripts, and the texts' vectors, alone and among
// others.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "engine/embed.h"
#include "engine/reference.h"

namespace millrace::engine {
namespace {

using namespace test;
using model::Pooling;
using Vector = std::vector<float>;

constexpr double kLeastCosine = 0.99999;

/// tools/reference-models/encoders.py made it: NAME.gguf, and in NAME.bin each token's last state.
struct Encoder {
  const char* name;
  Pooling pooling;
  std::string model() const { return std::string(MILLRACE_TEST_DATA "/encoders/") + name + ".gguf"; }
  std::vector<Reference> references() const {
    return read_references(std::string(MILLRACE_TEST_DATA "/encoders/") + name + ".bin");
  }
};
void PrintTo(const Encoder& encoder, std::ostream* out) { *out << encoder.name; }

double cosine_of(const Vector& a, const Vector& b) {
  EXPECT_EQ(a.size(), b.size());
  double dot = 0, of_a = 0, of_b = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    dot += double{a[i]} * double{b[i]};
    of_a += double{a[i]} * double{a[i]};
    of_b += double{b[i]} * double{b[i]};
  }
  return dot / std::sqrt(of_a * of_b);
}

Vector pooled(const Reference& reference, Pooling pooling) {
  Vector sum(reference.vocab, 0.0f);
  const std::size_t rows = pooling == Pooling::first ? 1 : reference.tokens.size();
  for (std::size_t row = 0; row < rows; ++row)
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += reference.logits[row * sum.size() + i];
  return sum;
}

Request embedding_request(const Engine& engine, const Reference& reference) {
  return embedding_request(engine, reference.tokens, {});
}

class Encoders : public testing::TestWithParam<Encoder> {};

TEST_P(Encoders, TokensAreThoseOfTheTokenizersLibrary) {
  const auto engine = make(roomy(GetParam().model()));
  ASSERT_NE(engine, nullptr);
  for (const Reference& reference : GetParam().references()) {
    const auto ids = embedding_tokens(*engine, reference.text, false);
    ASSERT_TRUE(ids.ok()) << ids.status().message();
    EXPECT_EQ(*ids, reference.tokens) << reference.text;
  }
}

TEST_P(Encoders, VectorsAreTransformersAloneAndAmongOthers) {
  const auto engine = make(roomy(GetParam().model()));
  ASSERT_NE(engine, nullptr);
  const std::vector<Reference> references = GetParam().references();
  std::vector<Vector> alone;
  for (const Reference& reference : references) {
    Result result = engine->run(embedding_request(*engine, reference));
    ASSERT_EQ(result.finish, Finish::stop) << result.status.message();
    EXPECT_GE(cosine_of(result.embedding, pooled(reference, GetParam().pooling)), kLeastCosine) << reference.text;
    alone.push_back(std::move(result.embedding));
  }
  EngineOptions shared = roomy(GetParam().model());
  shared.demand.max_sequences = 8;
  const auto engine_of_many = make(shared);
  ASSERT_NE(engine_of_many, nullptr);
  std::vector<Engine::Id> ids;
  for (const Reference& reference : references) {
    const auto id = engine_of_many->submit(embedding_request(*engine_of_many, reference));
    ASSERT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
  }
  drain(*engine_of_many);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const Result result = engine_of_many->take(ids[i]);
    ASSERT_EQ(result.finish, Finish::stop) << result.status.message();
    ASSERT_EQ(result.embedding.size(), alone[i].size());
    EXPECT_EQ(std::memcmp(result.embedding.data(), alone[i].data(), alone[i].size() * sizeof(float)), 0)
        << "text " << i << " has other bits among others";
  }
}

/// A pass never has part of a text, however few rows it was to have: its bits are those of a roomy one's.
TEST_P(Encoders, AnswerFromTheDiskInSmallPasses) {
  const auto roomy_engine = make(roomy(GetParam().model()));
  EngineOptions tight = roomy(GetParam().model());
  tight.storage.backend = storage::BackendKind::pread_buffered;
  tight.demand.batch_tokens = 8;
  tight.memory.tile_bytes = 64 * kKiB;
  tight.memory.ram_bytes = 1'500'000;
  const auto small = make(tight);
  ASSERT_NE(roomy_engine, nullptr);
  ASSERT_NE(small, nullptr);
  for (const Reference& reference : GetParam().references()) {
    const Result one = roomy_engine->run(embedding_request(*roomy_engine, reference));
    const Result other = small->run(embedding_request(*small, reference));
    ASSERT_EQ(other.finish, Finish::stop) << other.status.message();
    EXPECT_EQ(one.embedding, other.embedding) << reference.text;
  }
}

TEST_P(Encoders, WriteNoTextAndSaySo) {
  const auto engine = make(roomy(GetParam().model()));
  ASSERT_NE(engine, nullptr);
  const auto refused = engine->submit(greedy({2, 3}, 4));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::unsupported);
  EXPECT_NE(refused.status().message().find("/v1/embeddings"), std::string::npos) << refused.status().message();
}

TEST_P(Encoders, HaveNoLongerContextThanPositions) {
  EngineOptions options = roomy(GetParam().model());
  options.demand.context_tokens = 1000;
  const auto engine = make(options);
  ASSERT_NE(engine, nullptr);
  if (engine->model().hyperparameters().most_positions == 0) {  // it rotates, and goes as far as is asked for
    EXPECT_EQ(engine->context_tokens(), 1000);
    return;
  }
  EXPECT_EQ(engine->context_tokens(), 160);
  std::string text;
  for (int i = 0; i < 200; ++i) text += "the ";
  const auto whole = embedding_tokens(*engine, text, false);
  ASSERT_FALSE(whole.ok());
  EXPECT_NE(whole.status().message().find("tokens, but this model's maximum context length is 160"), std::string::npos)
      << whole.status().message();
  EXPECT_EQ(whole.status().message().find("--ctx"), std::string::npos) << whole.status().message();
  const auto cut = embedding_tokens(*engine, text, true);
  ASSERT_TRUE(cut.ok()) << cut.status().message();
  EXPECT_EQ(std::ssize(*cut), 160);
  EXPECT_EQ(cut->back(), *engine->tokenizer().eos());
}

INSTANTIATE_TEST_SUITE_P(Reference, Encoders,
                         testing::Values(Encoder{"bert", Pooling::mean}, Encoder{"bert-cased", Pooling::first},
                                         Encoder{"nomic-bert", Pooling::mean}, Encoder{"modern-bert", Pooling::mean},
                                         Encoder{"xlm-roberta", Pooling::first}, Encoder{"eurobert", Pooling::mean},
                                         Encoder{"gemma-embedding", Pooling::mean},
                                         Encoder{"jina-bert-v2", Pooling::mean},
                                         Encoder{"nomic-bert-moe", Pooling::mean},
                                         Encoder{"jina-bert-v3", Pooling::mean}),
                         [](const auto& info) {
                           std::string name = info.param.name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace millrace::engine
