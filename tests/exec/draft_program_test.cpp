// The block behind a model's layers is the layer that its weights make, over what is made of tokens and states.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "exec/executor.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "model/tiny_model.h"
#include "residency/plan.h"
#include "residency/weight_store.h"
#include "storage/storage.h"

namespace millrace::exec::test {
namespace {

using millrace::test::TinyModel;

constexpr std::int64_t kRows = 9, kDim = 64, kVocab = 96;
constexpr float kEps = 1e-5f;

std::vector<float> random_values(std::int64_t count, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// Gives every tensor values of its own, so that it can be found again in another file.
void fix_values(TinyModel& model) {
  unsigned seed = 100;
  for (TinyModel::Tensor& tensor : model.tensors) {
    std::int64_t count = 1;
    for (const std::int64_t dim : tensor.shape) count *= dim;
    tensor.values = random_values(count, ++seed, 0.2f);
  }
}

const std::vector<float>& values_of(const TinyModel& model, const std::string& name) {
  for (const TinyModel::Tensor& tensor : model.tensors)
    if (tensor.name == name) return tensor.values;
  ADD_FAILURE() << name;
  return model.tensors.front().values;
}

/// Logits of all rows, one pass of `program`.
std::vector<float> run(const modelfile::Model& file, const model::Model& model, const Program& program,
                       const std::vector<std::int32_t>& tokens, const std::vector<float>& given) {
  residency::Budget budget(1 << 28);
  const auto plan = residency::make_plan(model.units(), {.ram_bytes = 1 << 26, .passes = {.top_k = 2}}, {});
  EXPECT_TRUE(plan.ok()) << plan.status().message();
  const auto backend = storage::open_backend(file.paths(), {.kind = storage::BackendKind::pread_buffered});
  const auto store = residency::WeightStore::create(model.units(), *plan, **backend, budget, {});
  EXPECT_TRUE(store.ok()) << store.status().message();
  ThreadPool pool({.threads = 1, .pin = false});
  const auto executor = make_cpu_executor(**store, pool, budget, {.embedding_rows_from_disk = true, .aside = true});
  const Status prepared =
      executor->prepare(program, {.max_rows = kRows, .max_sequences = 1, .max_logit_rows = kRows, .max_positions = 64});
  EXPECT_TRUE(prepared.ok()) << prepared.message();
  kv::SequenceState sequence(std::make_shared<kv::BlockPool>(program.layout.with(DType::f32, kv::kOnHost), budget));
  EXPECT_TRUE(sequence.reserve(kRows).ok());
  kv::Batch batch;
  batch.sequences = {&sequence};
  batch.given = given.empty() ? nullptr : given.data();
  for (std::int64_t i = 0; i < kRows; ++i)
    batch.rows.push_back({tokens[static_cast<std::size_t>(i)], 0, static_cast<std::int32_t>(i), true});
  const Status status = executor->run(batch, {});
  EXPECT_TRUE(status.ok()) << status.message();
  const Logits logits = executor->last_logits();
  if (logits.data == nullptr) return {};
  return {logits.data, logits.data + logits.rows * logits.vocab};
}

std::vector<double> normalised(const float* x, const std::vector<float>& weight) {
  double squares = 0;
  for (std::int64_t i = 0; i < kDim; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double factor = 1 / std::sqrt(squares / kDim + kEps);
  std::vector<double> out;
  for (std::int64_t i = 0; i < kDim; ++i) out.push_back(x[i] * factor * weight[static_cast<std::size_t>(i)]);
  return out;
}

/// A model of two layers and a block behind them, with or without a norm and a head of the block's own.
TinyModel with_block(bool own_head) {
  TinyModel file = TinyModel::llama(false);
  file.set("block_count", 3u);
  file.set("nextn_predict_layers", 1u);
  const std::vector<TinyModel::Tensor> tensors = file.tensors;
  for (const TinyModel::Tensor& tensor : tensors)
    if (tensor.name.starts_with("blk.1.")) file.add("blk.2." + tensor.name.substr(6), tensor.shape);
  file.add(2, "nextn.eh_proj.weight", {2 * kDim, kDim});
  file.add(2, "nextn.enorm.weight", {kDim});
  file.add(2, "nextn.hnorm.weight", {kDim});
  if (own_head) {
    file.add(2, "nextn.shared_head_norm.weight", {kDim});
    file.add(2, "nextn.shared_head_head.weight", {kDim, kVocab});
    file.add(2, "nextn.embed_tokens.weight", {kDim, kVocab});
  }
  fix_values(file);
  return file;
}

/// The same as a model of one layer: its embeddings are what the block's layer begins with, row by row.
TinyModel as_a_layer(const TinyModel& block, bool own_head, const std::vector<std::int32_t>& tokens,
                     const std::vector<float>& states) {
  TinyModel file = block;
  file.tensors.clear();
  file.set("block_count", 1u);
  file.set("nextn_predict_layers", 0u);
  for (const TinyModel::Tensor& tensor : block.tensors)
    if (tensor.name.starts_with("blk.2.") && tensor.name.find("nextn") == std::string::npos)
      file.tensors.push_back({"blk.0." + tensor.name.substr(6), tensor.dtype, tensor.shape, tensor.values});
  const std::string nextn = "blk.2.nextn.";
  const std::vector<float> table = values_of(block, own_head ? nextn + "embed_tokens.weight" : "token_embd.weight");
  const std::vector<float> joined = values_of(block, nextn + "eh_proj.weight");
  std::vector<float> rows(static_cast<std::size_t>(kVocab * kDim));
  for (std::int64_t r = 0; r < kRows; ++r) {
    std::vector<double> both =
        normalised(table.data() + tokens[static_cast<std::size_t>(r)] * kDim, values_of(block, nextn + "enorm.weight"));
    const std::vector<double> state = normalised(states.data() + r * kDim, values_of(block, nextn + "hnorm.weight"));
    both.insert(both.end(), state.begin(), state.end());
    for (std::int64_t i = 0; i < kDim; ++i) {
      double sum = 0;
      for (std::int64_t j = 0; j < 2 * kDim; ++j)
        sum += both[static_cast<std::size_t>(j)] * joined[static_cast<std::size_t>(i * 2 * kDim + j)];
      rows[static_cast<std::size_t>(r * kDim + i)] = static_cast<float>(sum);
    }
  }
  const std::string norm = own_head ? nextn + "shared_head_norm.weight" : "output_norm.weight",
                    head = own_head ? nextn + "shared_head_head.weight" : "output.weight";
  file.tensors.push_back({"token_embd.weight", DType::f32, {kDim, kVocab}, rows});
  file.tensors.push_back({"output_norm.weight", DType::f32, {kDim}, values_of(block, norm)});
  file.tensors.push_back({"output.weight", DType::f32, {kDim, kVocab}, values_of(block, head)});
  return file;
}

TEST(DraftProgram, IsALayerOverTokensAndStates) {
  for (const bool own_head : {false, true}) {
    const TinyModel block = with_block(own_head);
    std::vector<std::int32_t> tokens, places;
    for (std::int32_t i = 0; i < kRows; ++i) {
      tokens.push_back((i * 37 + 5) % static_cast<std::int32_t>(kVocab));
      places.push_back(i);
    }
    const std::vector<float> states = random_values(kRows * kDim, 3, 2.0f);
    const modelfile::Model file = block.open("draft-block");
    const auto model = model::load(file, {.draft_block = true});
    ASSERT_TRUE(model.ok()) << model.status().message();
    ASSERT_NE((*model)->draft_passes(), nullptr);
    const std::vector<float> got = run(file, **model, (*model)->draft_passes()->program, tokens, states);
    const modelfile::Model other = as_a_layer(block, own_head, tokens, states).open("draft-layer");
    const auto layer = model::load(other, {});
    ASSERT_TRUE(layer.ok()) << layer.status().message();
    const std::vector<float> expected = run(other, **layer, (*layer)->program(), places, {});
    ASSERT_EQ(got.size(), static_cast<std::size_t>(kRows * kVocab));
    ASSERT_EQ(expected.size(), got.size());
    double difference = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
      norm += std::pow(static_cast<double>(expected[i]), 2);
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-5) << own_head;
    EXPECT_GT(norm, 1);
  }
}

/// The layers' own passes are what they are without it, and its units are nobody else's.
TEST(DraftProgram, StandsAside) {
  const modelfile::Model file = with_block(true).open("draft-aside");
  const auto plain = model::load(file, {}), model = model::load(file, {.draft_block = true});
  ASSERT_TRUE(plain.ok() && model.ok());
  EXPECT_EQ((*plain)->draft_passes(), nullptr);
  EXPECT_EQ((*model)->program().steps.size(), (*plain)->program().steps.size());
  EXPECT_EQ((*model)->program().layout, (*plain)->program().layout);
  EXPECT_EQ((*plain)->draft_blocks().size(), 1u);
  EXPECT_TRUE((*model)->draft_blocks().empty());
  for (const WeightRef weight : (*model)->program().weights())
    EXPECT_FALSE((*model)->units().units()[static_cast<std::size_t>(weight.unit)].aside);
  std::int64_t aside = 0;
  for (const residency::Unit& unit : (*model)->units().units()) aside += unit.aside ? 1 : 0;
  EXPECT_EQ(aside, 2) << "its embedding and its trunk";
}

TEST(DraftProgram, WhatIsMissingIsNamed) {
  TinyModel without = with_block(false);
  without.remove("blk.2.nextn.hnorm.weight");
  const auto missing = model::load(without.open("draft-missing"), {.draft_block = true});
  EXPECT_EQ(missing.status().code(), Code::not_found);
  EXPECT_NE(missing.status().message().find("blk.2.nextn.hnorm.weight"), std::string::npos);
  const auto none = model::load(TinyModel::llama(true).open("draft-none"), {.draft_block = true});
  EXPECT_EQ(none.status().code(), Code::unsupported);
}

}  // namespace
}  // namespace millrace::exec::test
