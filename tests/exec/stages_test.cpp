// Stages that run one after the other give the bits of the whole model.
#include "exec/stages.h"

#include <gtest/gtest.h>

#include <cstring>

namespace millrace::exec::test {
namespace {

/// Logits of two sequences of 100 and 30 tokens, by passes in which both have rows.
std::vector<float> logits_through(std::vector<std::unique_ptr<StageParts>> stages) {
  const std::int64_t dim = stages[0]->model->hyperparameters().model_dim;
  const std::vector<std::int32_t> texts[] = {some_tokens(100, 1), some_tokens(30, 2)};
  std::vector<std::vector<kv::SequenceState>> sequences;  // by stage
  for (const auto& stage : stages) {
    sequences.emplace_back();
    for (std::size_t s = 0; s < std::size(texts); ++s) sequences.back().emplace_back(stage->kv);
  }
  std::vector<float> logits;
  while (sequences[0][0].length() < std::ssize(texts[0])) {
    std::vector<kv::BatchRow> rows;
    std::vector<std::int64_t> ends;
    for (std::size_t s = 0; s < std::size(texts); ++s) {
      const std::int64_t first = sequences[0][s].length();
      const std::int64_t end = std::min<std::int64_t>(first + (s == 0 ? 33 : 7), std::ssize(texts[s]));
      for (std::int64_t p = first; p < end; ++p)
        rows.push_back({texts[s][static_cast<std::size_t>(p)], static_cast<std::int32_t>(s),
                        static_cast<std::int32_t>(p), true, p % 2 == 0});
      ends.push_back(end);
    }
    std::vector<float> residual;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      kv::Batch batch;
      batch.rows = rows;
      batch.given = i == 0 ? nullptr : residual.data();
      for (std::size_t s = 0; s < std::size(texts); ++s) {
        EXPECT_TRUE(sequences[i][s].reserve(ends[s]).ok());
        batch.sequences.push_back(&sequences[i][s]);
      }
      const Status status = stages[i]->executor->run(batch, {});
      EXPECT_TRUE(status.ok()) << status.message();
      for (std::size_t s = 0; s < std::size(texts); ++s) sequences[i][s].set_length(ends[s]);
      if (i + 1 == stages.size()) {
        const Logits made = stages[i]->executor->last_logits();
        logits.insert(logits.end(), made.data, made.data + made.rows * made.vocab);
        continue;
      }
      std::vector<float> handed(rows.size() * static_cast<std::size_t>(dim));
      EXPECT_TRUE(stages[i]->executor->read_hidden(0, std::ssize(rows), handed.data()).ok());
      residual = std::move(handed);
    }
  }
  return logits;
}

std::vector<std::unique_ptr<StageParts>> cut(std::initializer_list<model::Stage> stages) {
  std::vector<std::unique_ptr<StageParts>> parts;
  for (const model::Stage& stage : stages) parts.push_back(std::make_unique<StageParts>(stage));
  return parts;
}

TEST(Stages, GiveTheBitsOfTheWholeModelWhereverItIsCut) {
  const std::vector<float> whole = logits_through(cut({{}}));
  ASSERT_FALSE(whole.empty());
  const std::int64_t layers = StageParts({}).model->hyperparameters().layers;
  ASSERT_GE(layers, 4);
  const auto same = [&](const std::vector<float>& logits) {
    return logits.size() == whole.size() && std::memcmp(logits.data(), whole.data(), whole.size() * sizeof(float)) == 0;
  };
  EXPECT_TRUE(same(logits_through(cut({{0, layers / 2}, {layers / 2, 0}}))));
  EXPECT_TRUE(same(logits_through(cut({{0, 1}, {1, 0}})))) << "an odd cut";
  EXPECT_TRUE(same(logits_through(cut({{0, 1}, {1, 3}, {3, 0}})))) << "three";
}

}  // namespace
}  // namespace millrace::exec::test
