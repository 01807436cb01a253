// A stage is some of a model's layers: their units alone, between what it is given and what it hands over.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/model.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using exec::Step;
using residency::UnitKind;
using test::TinyModel;

std::unique_ptr<Model> load_stage(const TinyModel& tiny, const Stage& stage) {
  auto model = load(tiny.open("stage_test"), {.stage = stage});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return model.ok() ? std::move(*model) : nullptr;
}

bool has_step(const Model& model, Step::Kind kind) {
  const auto& steps = model.program().steps;
  return std::any_of(steps.begin(), steps.end(), [&](const Step& step) { return step.kind == kind; });
}

std::vector<UnitKind> kinds_of(const Model& model) {
  std::vector<UnitKind> kinds;
  for (const residency::Unit& unit : model.units().units()) kinds.push_back(unit.kind);
  return kinds;
}

TEST(Stage, HasTheUnitsOfItsLayersAlone) {
  const auto first = load_stage(TinyModel::llama(false), {0, 1}), last = load_stage(TinyModel::llama(false), {1, 0});
  ASSERT_TRUE(first != nullptr && last != nullptr);
  EXPECT_EQ(kinds_of(*first), (std::vector{UnitKind::embedding, UnitKind::trunk}));
  EXPECT_EQ(kinds_of(*last), (std::vector{UnitKind::trunk, UnitKind::head}));
  EXPECT_EQ(last->units().units()[0].layer, 1);
  EXPECT_EQ(first->stage(), (Stage{0, 1}));
  EXPECT_EQ(last->hyperparameters().layers, 2);
}

TEST(Stage, BeginsWithWhatItIsGivenAndHandsTheResidualStreamOver) {
  const auto first = load_stage(TinyModel::llama(false), {0, 1}), last = load_stage(TinyModel::llama(false), {1, 2});
  ASSERT_TRUE(first != nullptr && last != nullptr);
  EXPECT_EQ(first->program().steps.front().kind, Step::Kind::embed);
  EXPECT_EQ(first->program().steps.back().kind, Step::Kind::hidden);
  EXPECT_FALSE(first->program().steps.back().for_hidden) << "in every pass";
  EXPECT_FALSE(has_step(*first, Step::Kind::logits));
  EXPECT_EQ(last->program().steps.front().kind, Step::Kind::given);
  EXPECT_TRUE(has_step(*last, Step::Kind::logits));
  EXPECT_FALSE(has_step(*last, Step::Kind::embed));
}

TEST(Stage, KeepsKvOfItsLayersUnderTheirNumbers) {
  const auto last = load_stage(TinyModel::llama(false), {1, 2});
  ASSERT_NE(last, nullptr);
  const kv::Layout& layout = last->program().layout;
  EXPECT_FALSE(layout.keeps(0));
  EXPECT_TRUE(layout.keeps(1));
  ASSERT_EQ(layout.groups().size(), 1u);
  EXPECT_EQ(layout.groups()[0].layers, 1);
}

TEST(Stage, ATiedHeadBringsTheEmbeddingAlong) {
  const auto first = load_stage(TinyModel::llama(true), {0, 1}), last = load_stage(TinyModel::llama(true), {1, 2});
  ASSERT_TRUE(first != nullptr && last != nullptr);
  EXPECT_TRUE(first->units().units()[0].by_rows) << "only rows of it are looked up";
  EXPECT_EQ(kinds_of(*last), (std::vector{UnitKind::embedding, UnitKind::trunk, UnitKind::trunk}));
  EXPECT_FALSE(last->units().units()[0].by_rows) << "it is the head";
}

TEST(Stage, WhatIsNoneIsRefusedWithAWord) {
  for (const Stage& stage : {Stage{1, 1}, Stage{0, 3}, Stage{2, 0}, Stage{-1, 1}}) {
    const auto model = load(TinyModel::llama(false).open("stage_test"), {.stage = stage});
    EXPECT_EQ(model.status().code(), Code::invalid_argument) << stage.first << " to " << stage.last;
    EXPECT_NE(model.status().message().find("2 layers"), std::string::npos);
  }
}

}  // namespace
}  // namespace millrace::model
