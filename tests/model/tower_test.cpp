// Vision towers as programs: what of a file they take, in which order, and which files they refuse.
#include "model/tower.h"

#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "model/rope.h"
#include "model/tiny_model.h"

namespace millrace::model {
namespace {

using modelfile::Value;
using residency::WeightRef;
using test::TinyModel;

/// Two layers of width 16, 2 heads of 8, patches of 8 x 8 pixels, 2 x 2 of them a token, rows of 24.
TinyModel qwen_tower() {
  TinyModel tiny;
  tiny.keys["general.architecture"] = Value(std::string("clip"));
  tiny.keys["clip.projector_type"] = Value(std::string("qwen3vl_merger"));
  tiny.keys["clip.use_gelu"] = Value(true);
  const std::pair<const char*, std::uint32_t> numbers[] = {
      {"image_size", 32u},     {"patch_size", 8u},  {"embedding_length", 16u},    {"feed_forward_length", 32u},
      {"projection_dim", 24u}, {"block_count", 2u}, {"attention.head_count", 2u}, {"spatial_merge_size", 2u}};
  for (const auto& [name, value] : numbers) tiny.keys[std::string("clip.vision.") + name] = Value(value);
  tiny.add("v.patch_embd.weight", {8, 8, 3, 16});
  tiny.add("v.patch_embd.bias", {16});
  tiny.add("v.position_embd.weight", {16, 9});
  const auto both = [&](const std::string& stem, std::int64_t cols, std::int64_t rows) {
    tiny.add(stem + ".weight", {cols, rows});
    tiny.add(stem + ".bias", {rows});
  };
  const auto norm = [&](const std::string& stem) {
    tiny.add(stem + ".weight", {16});
    tiny.add(stem + ".bias", {16});
  };
  for (const char* layer : {"v.blk.0.", "v.blk.1."}) {
    norm(layer + std::string("ln1"));
    both(layer + std::string("attn_qkv"), 16, 48);
    both(layer + std::string("attn_out"), 16, 16);
    norm(layer + std::string("ln2"));
    both(layer + std::string("ffn_up"), 16, 32);
    both(layer + std::string("ffn_down"), 32, 16);
  }
  norm("v.post_ln");
  both("mm.0", 64, 64);
  both("mm.2", 64, 24);
  return tiny;
}

std::string tower_refusal(const TinyModel& tiny) {
  const auto tower = load_tower(tiny.open("tower_test"), 1 << 20);
  EXPECT_FALSE(tower.ok());
  return tower.ok() ? std::string() : tower.status().message();
}

TEST(Tower, UsesEachWeightOnceInTheOrderOfItsUnits) {
  const auto tower = load_tower(qwen_tower().open("tower_test"), 1 << 20);
  ASSERT_TRUE(tower.ok()) << tower.status().message();
  EXPECT_EQ(tower->cols, 24);
  EXPECT_EQ(tower->table_side, 3);
  EXPECT_EQ(tower->tokens(24), 6);
  std::vector<WeightRef> expected;
  for (std::size_t unit = 0; unit < tower->units.units().size(); ++unit)
    for (std::size_t part = 0; part < tower->units.units()[unit].parts.size(); ++part)
      expected.push_back({static_cast<std::int32_t>(unit), static_cast<std::int32_t>(part)});
  EXPECT_EQ(tower->program.weights(), expected);
}

TEST(Tower, RefusesWhatItCannotCompute) {
  TinyModel tiny = qwen_tower();
  tiny.add("v.blk.1.attn_sinks", {2});
  EXPECT_NE(tower_refusal(tiny).find("v.blk.1.attn_sinks"), std::string::npos);
  tiny = qwen_tower();
  tiny.remove("v.blk.1.attn_out.weight");
  EXPECT_NE(tower_refusal(tiny).find("v.blk.1.attn_out.weight"), std::string::npos);
  tiny = qwen_tower();
  tiny.tensor("mm.2.weight").shape = {64, 16};
  EXPECT_NE(tower_refusal(tiny).find("mm.2.weight"), std::string::npos);
  tiny = qwen_tower();
  tiny.tensor("v.position_embd.weight").shape = {16, 10};
  EXPECT_NE(tower_refusal(tiny).find("v.position_embd.weight"), std::string::npos);
  tiny = qwen_tower();
  tiny.keys["clip.vision.attention.head_count"] = Value(std::uint32_t{4});
  EXPECT_NE(tower_refusal(tiny).find("heads of 4"), std::string::npos);
  tiny.keys["clip.vision.attention.head_count"] = Value(std::uint32_t{0});
  EXPECT_NE(tower_refusal(tiny).find("head_count"), std::string::npos);
  tiny = qwen_tower();
  tiny.keys["clip.projector_type"] = Value(std::string("cogvlm"));
  EXPECT_NE(tower_refusal(tiny).find("cogvlm"), std::string::npos);
}

/// One layer of Gemma 4's, of the same width: patches of 8 x 8 pixels, 3 x 3 of them a token, 5 columns and rows.
TinyModel gemma_tower() {
  TinyModel tiny;
  tiny.keys["general.architecture"] = Value(std::string("clip"));
  tiny.keys["clip.vision.projector_type"] = Value(std::string("gemma4v"));
  const std::pair<const char*, std::uint32_t> numbers[] = {{"patch_size", 8u},      {"embedding_length", 16u},
                                                           {"projection_dim", 24u}, {"feed_forward_length", 32u},
                                                           {"block_count", 1u},     {"attention.head_count", 2u}};
  for (const auto& [name, value] : numbers) tiny.keys[std::string("clip.vision.") + name] = Value(value);
  tiny.add("v.patch_embd.weight", {8, 8, 3, 16});
  tiny.add("v.position_embd.weight", {16, 5, 2});
  for (const char* norm : {"ln1", "ln2", "attn_post_norm", "ffn_post_norm"})
    tiny.add(std::string("v.blk.0.") + norm + ".weight", {16});
  for (const char* norm : {"attn_q_norm", "attn_k_norm"}) tiny.add(std::string("v.blk.0.") + norm + ".weight", {8});
  for (const char* product : {"attn_q", "attn_k", "attn_v", "attn_out"})
    tiny.add(std::string("v.blk.0.") + product + ".weight", {16, 16});
  for (const char* product : {"ffn_gate", "ffn_up"}) tiny.add(std::string("v.blk.0.") + product + ".weight", {16, 32});
  tiny.add("v.blk.0.ffn_down.weight", {32, 16});
  tiny.add("mm.input_projection.weight", {16, 24});
  return tiny;
}

TEST(Tower, RefusesBoundsAndPlacesThatAreNone) {
  const auto steps = [](const TinyModel& tiny) {
    const auto tower = load_tower(tiny.open("tower_test"), 1 << 20);
    EXPECT_TRUE(tower.ok()) << tower.status().message();
    return tower.ok() ? tower->program.steps.size() : 0;
  };
  TinyModel tiny = gemma_tower();
  const std::size_t without = steps(tiny);
  tiny.add("v.blk.0.ffn_down.input_max", {1});
  tiny.tensor("v.blk.0.ffn_down.input_max").values = {2.5f};
  EXPECT_EQ(steps(tiny), without + 2);  // a copy, clamped
  tiny.add("v.blk.0.ffn_down.input_min", {1});
  tiny.tensor("v.blk.0.ffn_down.input_min").values = {3.5f};
  EXPECT_NE(tower_refusal(tiny).find("ffn_down.input_min is 3.5, more than"), std::string::npos) << tower_refusal(tiny);
  tiny.tensor("v.blk.0.ffn_down.input_min").values = {std::nanf("")};
  EXPECT_NE(tower_refusal(tiny).find("ffn_down.input_min is no number"), std::string::npos);
  tiny = gemma_tower();
  tiny.add("v.blk.0.attn_q.output_max", {2});
  EXPECT_NE(tower_refusal(tiny).find("attn_q.output_max is no number"), std::string::npos);
  tiny = gemma_tower();
  tiny.tensor("v.position_embd.weight").shape = {16, 10};
  EXPECT_NE(tower_refusal(tiny).find("no two tables of places"), std::string::npos);
  tiny.remove("v.position_embd.weight");
  EXPECT_NE(tower_refusal(tiny).find("v.position_embd.weight"), std::string::npos);
  tiny = gemma_tower();
  tiny.add("v.std_bias", {16});
  EXPECT_NE(tower_refusal(tiny).find("v.std_scale"), std::string::npos);
  const modelfile::Model file = gemma_tower().open("tower_test");
  const auto tower = load_tower(file, 1 << 20);
  ASSERT_TRUE(tower.ok());
  vision::Patches patches;
  patches.rows = 3;
  patches.cols = 6;
  patches.dim = 3 * 8 * 8;
  patches.pixels.assign(static_cast<std::size_t>(18 * patches.dim), 0.5f);
  EXPECT_NE(tower_input(file, *tower, patches).status().message().find("places for 5 rows and columns"),
            std::string::npos);
}

/// One layer of InternVL's, of the same width: a class and 4 x 4 patches of 8 x 8 pixels, 2 x 2 of them a token.
TinyModel internvl_tower() {
  TinyModel tiny = qwen_tower();
  tiny.keys["clip.projector_type"] = Value(std::string("internvl"));
  tiny.keys["clip.vision.block_count"] = Value(std::uint32_t{1});
  for (const char* name : {"ln1", "attn_qkv", "attn_out", "ln2", "ffn_up", "ffn_down"})
    for (const char* ending : {".weight", ".bias"}) tiny.remove(std::string("v.blk.1.") + name + ending);
  for (const char* name : {"v.post_ln", "mm.0", "mm.2"})
    for (const char* ending : {".weight", ".bias"}) tiny.remove(std::string(name) + ending);
  tiny.tensor("v.position_embd.weight").shape = {16, 17, 1};
  tiny.add("v.class_embd", {16, 1, 1});
  for (const char* scale : {"ls1", "ls2"}) tiny.add(std::string("v.blk.0.") + scale + ".weight", {16});
  const std::tuple<const char*, std::int64_t, std::int64_t> products[] = {{"1", 64, 24}, {"3", 24, 24}};
  for (const auto& [name, cols, rows] : products) {
    tiny.add(std::string("mm.model.mlp.") + name + ".weight", {cols, rows});
    tiny.add(std::string("mm.model.mlp.") + name + ".bias", {rows});
  }
  tiny.add("mm.model.mlp.0.weight", {64});
  tiny.add("mm.model.mlp.0.bias", {64});
  return tiny;
}

TEST(Tower, AClassIsARowThatNothingIsMadeOf) {
  const modelfile::Model file = internvl_tower().open("tower_test");
  const auto tower = load_tower(file, 1 << 20);
  ASSERT_TRUE(tower.ok()) << tower.status().message();
  EXPECT_EQ(tower->table_side, 4);
  vision::Patches patches;
  patches.rows = patches.cols = 4;
  patches.dim = 3 * 8 * 8;
  patches.pixels.assign(static_cast<std::size_t>(16 * patches.dim), 0.5f);
  EXPECT_EQ(tower->rows(patches), 20);
  EXPECT_EQ(tower->tokens(16), 4);
  const auto input = tower_input(file, *tower, patches);
  ASSERT_TRUE(input.ok()) << input.status().message();
  EXPECT_EQ(std::ssize(*input), 20 * (patches.dim + 16));
  // All patches and the class are one segment; what makes a token of the class is another.
  const auto places = tower_places(*tower, patches);
  ASSERT_EQ(places.size(), 20u);
  for (std::int32_t i = 0; i < 20; ++i) EXPECT_EQ(places[static_cast<std::size_t>(i)].ahead, (i < 17 ? 16 : 19) - i);
  TinyModel tiny = internvl_tower();
  tiny.tensor("v.class_embd").shape = {8, 2, 1};
  const modelfile::Model torn = tiny.open("tower_test");
  const auto other = load_tower(torn, 1 << 20);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(tower_input(torn, *other, patches).status().message().find("v.class_embd is 8 x 2"), std::string::npos);
}

/// An audio tower's projector in the same file is nobody's here.
TEST(Tower, LeavesAudioAlone) {
  TinyModel tiny = qwen_tower();
  tiny.add("mm.a.mlp.0.weight", {16, 16});
  tiny.add("a.blk.0.ln1.weight", {16});
  EXPECT_TRUE(load_tower(tiny.open("tower_test"), 1 << 20).ok());
}

TEST(Tower, TakesPatchesThatAreItsOwn) {
  const modelfile::Model file = qwen_tower().open("tower_test");
  const auto tower = load_tower(file, 1 << 20);
  ASSERT_TRUE(tower.ok());
  vision::Patches patches;
  patches.rows = 4;
  patches.cols = 2;
  patches.dim = 3 * 8 * 8;
  patches.pixels.assign(static_cast<std::size_t>(8 * patches.dim), 0.5f);
  const auto input = tower_input(file, *tower, patches);
  ASSERT_TRUE(input.ok()) << input.status().message();
  EXPECT_EQ(std::ssize(*input), 8 * (patches.dim + 16));
  const auto places = tower_places(*tower, patches);
  // The second token's last patch is in row 3 and column 1.
  EXPECT_EQ(7 + places[7].shift[1], 3);
  EXPECT_EQ(7 + places[7].shift[2], 1);
  patches.cols = 3;
  EXPECT_EQ(tower_input(file, *tower, patches).status().code(), Code::invalid_argument);
  patches.cols = 2;
  patches.pixels.pop_back();
  EXPECT_EQ(tower_input(file, *tower, patches).status().code(), Code::invalid_argument);
}

/// Windows at the edges are smaller; each is a run of the pass.
TEST(Tower, OrdersTokensByWindows) {
  Tower tower;
  tower.spec.merge = 2;
  tower.window = 2;
  vision::Patches patches;
  patches.rows = 6;
  patches.cols = 6;
  EXPECT_EQ(tower_order(tower, patches), (std::vector<std::int64_t>{0, 1, 3, 4, 2, 5, 6, 7, 8}));
  std::vector<std::int64_t> windows;
  const auto places = tower_places(tower, patches);
  for (std::size_t i = 0; i < places.size(); i += static_cast<std::size_t>(places[i].ahead) + 1)
    windows.push_back(places[i].ahead + 1);
  EXPECT_EQ(windows, (std::vector<std::int64_t>{16, 8, 8, 4}));
}

TEST(RopeSections, DivideTheAnglesOrAreRefused) {
  TinyModel tiny = TinyModel::llama(true);
  const auto axes = [&](std::vector<std::int32_t> sections, RopeSections order) {
    tiny.set_of_layers("rope.dimension_sections", std::move(sections));
    return read_rope_axes(tiny.open("tower_test"), 16, order);
  };
  EXPECT_EQ(axes({4, 2, 2, 0}, RopeSections::apart).value(), (std::vector<std::uint8_t>{0, 0, 0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(axes({4, 2, 2, 0}, RopeSections::interleaved).value(), (std::vector<std::uint8_t>{0, 1, 2, 0, 1, 2, 0, 0}));
  EXPECT_EQ(axes({4, 2, 1, 0}, RopeSections::apart).status().code(), Code::corrupt);
  EXPECT_EQ(axes({4, 2, -2, 4}, RopeSections::apart).status().code(), Code::corrupt);
  EXPECT_EQ(axes({8}, RopeSections::apart).status().code(), Code::corrupt);
}

}  // namespace
}  // namespace millrace::model
