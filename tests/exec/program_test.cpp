// What is recorded, and what a recorded program says of itself: no processor needed.
#include "exec/program.h"

#include <gtest/gtest.h>

#include "exec/ops.h"
#include "exec/small_model.h"

namespace millrace::exec::test {
namespace {

TEST(Program, BlocksEndWhereTheNextBegins) {
  Ops ops;
  const Act x = ops.buffer("x", 8, Rows::whole), h = ops.buffer("h", 8);
  ops.embed(x, {0, 0});
  ops.begin_block();
  ops.begin_block();  // twice is once
  ops.rms_norm(h, x, {1, 0}, 1e-5f);
  ops.add(x, h);
  ops.begin_block();
  ops.rms_norm(h, x, {1, 1}, 1e-5f);
  ops.add(x, h);
  const Expected<Program> program = ops.finish();
  ASSERT_TRUE(program.ok()) << program.status().message();
  EXPECT_EQ(program->blocks, (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_EQ(program->block_end(0), 1u);
  EXPECT_EQ(program->block_end(1), 3u);
  EXPECT_EQ(program->block_end(3), 5u);
}

TEST(Program, ABlockThatReadsWhatAnotherLeftInWorkedRowsIsRefused) {
  Ops ops;
  const Act x = ops.buffer("x", 8, Rows::whole), h = ops.buffer("h", 8);
  ops.embed(x, {0, 0});
  ops.rms_norm(h, x, {1, 0}, 1e-5f);
  ops.begin_block();  // a window's h is overwritten by the next window's before this block comes
  ops.add(x, h);
  const Status status = ops.finish().status();
  EXPECT_EQ(status.code(), Code::internal);
  EXPECT_NE(status.message().find("step 2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("reads h"), std::string::npos) << status.message();
}

TEST(Program, WhatNobodyWroteIsRefused) {
  Ops ops;
  const Act x = ops.buffer("x", 8, Rows::whole);
  ops.add(x, x);
  EXPECT_EQ(ops.finish().status().code(), Code::internal);
}

TEST(Program, StreamsThatDoNotFitAreRefused) {
  const auto recorded = [](std::int64_t dim, std::int64_t weights, std::int64_t first) {
    Ops ops;
    const Act x = ops.buffer("x", 8, Rows::whole), streams = ops.buffer("streams", 24), by = ops.buffer("by", weights);
    ops.embed(x, {0, 0});
    ops.embed(streams, {0, 0});
    ops.embed(by, {0, 0});
    ops.add_streams(streams, x, by, dim, 1, first);
    return ops.finish().status();
  };
  EXPECT_TRUE(recorded(8, 3, 0).ok());
  EXPECT_TRUE(recorded(8, 2, 1).ok());
  EXPECT_TRUE(recorded(4, 12, 0).ok());
  EXPECT_EQ(recorded(8, 2, 0).code(), Code::internal);
  EXPECT_EQ(recorded(7, 3, 0).code(), Code::internal);
  EXPECT_EQ(recorded(8, 3, 3).code(), Code::internal);
  Ops ops;
  const Act x = ops.buffer("x", 8, Rows::whole), like = ops.buffer("like", 5);
  ops.embed(x, {0, 0});
  ops.embed(like, {0, 0});
  ops.match_rms(x, like, 1e-5f);
  EXPECT_EQ(ops.finish().status().code(), Code::internal);
}

TEST(Program, ChunksWithoutALengthAreRefused) {
  const auto recorded = [](std::int64_t window, bool whole_pictures) {
    const kv::LayerKv kept{kv::Keeps::attention, 1, 8, 8, window};
    Ops ops;
    ops.keep(kv::Layout(std::span(&kept, 1)));
    const Act x = ops.buffer("x", 8, Rows::whole);
    ops.embed(x, {0, 0});
    ops.store_kv(0, x, x);
    Attention attention;
    attention.heads = attention.kv_heads = 1;
    attention.head_dim = 8;
    attention.window = window;
    attention.whole_pictures = whole_pictures;
    attention.chunks = true;
    ops.attention(x, x, 0, attention);
    return ops.finish().status();
  };
  EXPECT_TRUE(recorded(16, false).ok());
  EXPECT_EQ(recorded(0, false).code(), Code::internal);
  EXPECT_EQ(recorded(16, true).code(), Code::internal);
}

TEST(Program, KeysThatAreNotKeptAsTheyAreReadAreRefused) {
  const auto recorded = [](std::int64_t kept_heads, std::int64_t kept_window, std::int64_t layer) {
    const kv::LayerKv kept{kv::Keeps::attention, kept_heads, 8, 8, kept_window};
    Ops ops;
    ops.keep(kv::Layout(std::span(&kept, 1)));
    const Act x = ops.buffer("x", 8, Rows::whole), h = ops.buffer("h", 8);
    ops.embed(x, {0, 0});
    ops.rms_norm(h, x, {}, 0);
    ops.store_kv(layer, h, h);
    Attention attention;
    attention.heads = attention.kv_heads = 1;
    attention.head_dim = 8;
    attention.window = 100;
    ops.attention(h, h, layer, attention);
    return ops.finish().status();
  };
  EXPECT_TRUE(recorded(1, 0, 0).ok());
  EXPECT_TRUE(recorded(1, 100, 0).ok());
  EXPECT_EQ(recorded(2, 0, 0).code(), Code::internal);
  EXPECT_EQ(recorded(1, 99, 0).code(), Code::internal) << "keys would be gone that are read";
  EXPECT_EQ(recorded(1, 0, 1).code(), Code::internal);
}

TEST(Program, BuffersOfOneNameAndWidthAreOne) {
  Ops ops;
  const Act narrow = ops.buffer("q", 8);
  EXPECT_EQ(ops.buffer("q", 8), narrow);
  EXPECT_FALSE(ops.buffer("q", 16) == narrow) << "layers may have heads of two sizes";
}

TEST(Program, StepsForStatesAreOfPassesThatWantThem) {
  const SmallModel model(SmallShape{});
  const Program whole = model.program(), plain = whole.of_passes(false), hidden = whole.of_passes(true);
  EXPECT_EQ(hidden.steps.size(), whole.steps.size());
  EXPECT_EQ(plain.steps.size() + 2, whole.steps.size());
  EXPECT_EQ(plain.blocks.size(), whole.blocks.size());
  EXPECT_TRUE(plain.check().ok());
  for (const Step& step : plain.steps) EXPECT_NE(step.kind, Step::Kind::hidden);
}

TEST(Program, ItsShapeIsTheMostOfAnyStep) {
  SmallShape small;
  small.experts = 6;
  small.expert_ff = 160;
  const SmallModel model(small);
  const PassShape shape = pass_shape(model.program(), model.units(), SmallModel::pass_limits(7, 90));
  EXPECT_EQ(shape.max_rows, 7);
  EXPECT_EQ(shape.max_positions, 90);
  EXPECT_EQ(shape.vocab, small.vocab);
  EXPECT_EQ(shape.heads, small.heads);
  EXPECT_EQ(shape.kv_heads, small.kv_heads);
  EXPECT_EQ(shape.head_dim, small.head_dim);
  EXPECT_EQ(shape.experts, 6);
  EXPECT_EQ(shape.top_k, small.top_k);
  EXPECT_EQ(shape.expert_ff, 160);
  EXPECT_EQ(shape.model_dim, small.dim);
  EXPECT_EQ(shape.widest_input, 160);
  EXPECT_EQ(shape.rotary, (std::vector<std::int64_t>{small.head_dim}));
  EXPECT_EQ(shape.kv_groups, 1);
  PassLimits few_bits = SmallModel::pass_limits(7, 90);
  few_bits.kv_dtype = DType::q3_k;
  EXPECT_EQ(pass_shape(model.program(), model.units(), few_bits).kv_groups, 2) << "with its plain group";
}

}  // namespace
}  // namespace millrace::exec::test
