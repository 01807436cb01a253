// A shard has some rows of every matrix: together the shards have each row once, and a model that is not cut so says
// why.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model/model.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using exec::Step;
using test::TinyModel;

using Rows = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // bytes of a file

/// By tensor, where the bytes of its parts lie; neighbours joined. Routers are everybody's, as norms are.
std::map<std::string, Rows> bytes_of(const std::vector<const Model*>& models) {
  std::map<std::string, Rows> all;
  for (const Model* const model : models)
    for (const residency::Unit& unit : model->units().units())
      for (const residency::Part& part : unit.parts)
        if (unit.kind != residency::UnitKind::embedding && (part.rows > 1 || part.name.ends_with(".bias")) &&
            !part.name.ends_with("ffn_gate_inp.weight"))
          all[part.name].push_back({part.offset, part.offset + part.bytes()});
  for (auto& [name, rows] : all) {
    std::sort(rows.begin(), rows.end());
    Rows joined;
    for (const auto& [begin, end] : rows) {
      EXPECT_TRUE(joined.empty() || begin >= joined.back().second) << name << ": a row is two shards'";
      if (!joined.empty() && begin == joined.back().second)
        joined.back().second = end;
      else
        joined.push_back({begin, end});
    }
    rows = joined;
  }
  return all;
}

std::unique_ptr<Model> open(const modelfile::Model& file, const Shard& shard) {
  LoadOptions how;
  how.shard = shard;
  auto model = load(file, how);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

TEST(Shard, TogetherTheyHaveEveryRowOnce) {
  for (const TinyModel& tiny : {TinyModel::llama(false), TinyModel::llama(true), TinyModel::qwen2(), TinyModel::phi3(),
                                TinyModel::qwen3moe(96)}) {
    const modelfile::Model file = tiny.open("shard_test");
    SCOPED_TRACE(tiny.tensors.back().name);
    const auto whole = open(file, {}), first = open(file, {0, 2}), second = open(file, {1, 2});
    ASSERT_TRUE(whole && first && second);
    std::map<std::string, Rows> expected = bytes_of({whole.get()});
    if (whole->units().find(residency::UnitKind::head) < 0) {  // a shard's head is rows of the table
      const residency::Unit& table = whole->units().units()[0];
      expected[table.parts[0].name] = {{table.parts[0].offset, table.parts[0].offset + table.parts[0].bytes()}};
    }
    EXPECT_EQ(bytes_of({first.get(), second.get()}), expected);
    EXPECT_EQ(first->hyperparameters().kv_heads, whole->hyperparameters().kv_heads);
    const auto& groups = whole->program().layout.groups();
    ASSERT_EQ(first->program().layout.groups().size(), groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g)
      EXPECT_EQ(2 * second->program().layout.groups()[g].block_bytes(), groups[g].block_bytes());
  }
}

TEST(Shard, GathersWhatAttentionHiddenLayersAndProductsGive) {
  const auto shard = open(TinyModel::llama(false).open("shard_test"), {1, 2});
  ASSERT_NE(shard, nullptr);
  const exec::Program& program = shard->program();
  EXPECT_TRUE(program.is_shard());
  const auto gathers = std::count_if(program.steps.begin(), program.steps.end(),
                                     [](const Step& step) { return step.kind == Step::Kind::gather; });
  EXPECT_EQ(gathers, 4 * shard->hyperparameters().layers);
  const Step& logits = program.steps.back();
  EXPECT_EQ(logits.kind, Step::Kind::logits);
  EXPECT_EQ(logits.vocab, shard->hyperparameters().vocab);
  EXPECT_EQ(logits.first + shard->units().part(logits.weight).rows, logits.vocab);
}

/// States and latents are everybody's, and are kept by everybody.
TEST(Shard, WhatIsNotCutIsWhole) {
  for (const TinyModel& tiny : {TinyModel::qwen35(), TinyModel::deepseek2(64)}) {
    const modelfile::Model file = tiny.open("shard_test");
    const auto whole = open(file, {}), shard = open(file, {1, 2});
    ASSERT_TRUE(whole && shard);
    const auto& groups = whole->program().layout.groups();
    ASSERT_EQ(shard->program().layout.groups().size(), groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const bool cut = !groups[g].is_state() && groups[g].kv_heads > 1;
      EXPECT_EQ(shard->program().layout.groups()[g].block_bytes() * (cut ? 2 : 1), groups[g].block_bytes());
    }
    EXPECT_LT(shard->units().total_bytes(), whole->units().total_bytes());
  }
}

TEST(Shard, TooNarrowAModelSaysSo) {
  LoadOptions how;
  how.shard = {0, 8};
  const auto model = load(TinyModel::llama(false).open("shard_test"), how);
  ASSERT_FALSE(model.ok());
  EXPECT_EQ(model.status().code(), Code::unsupported);
  EXPECT_NE(model.status().message().find("8 GPUs"), std::string::npos) << model.status().message();
}

}  // namespace
}  // namespace millrace::model
