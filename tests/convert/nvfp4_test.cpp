// Which factors of whole matrices a tensor of NVFP4 can have beside it.
#include <gtest/gtest.h>

#include "convert/gather.h"

namespace millrace::convert {
namespace {

Source source_of(float factor, std::int64_t rows) {
  Source source;
  source.rows = rows;
  source.cols = 64;
  source.packing = Packing::nvfp4;
  source.dtype = DType::nvfp4;
  source.factor = factor;
  return source;
}

/// Of runs {source, rows}, each of a source's first rows.
Target target_of(const char* name, std::vector<std::int64_t> shape, std::span<const Source> sources,
                 const std::vector<std::pair<int, std::int64_t>>& runs) {
  Target target;
  target.name = name;
  target.shape = std::move(shape);
  target.cols = 64;
  for (const auto& [source, rows] : runs) {
    target.runs.push_back({source, 0, 1, rows});
    target.rows += rows;
  }
  EXPECT_TRUE(check_target(target, sources).ok());
  return target;
}

TEST(ConvertNvfp4, MatricesHaveAFactorEach) {
  const std::vector<Source> sources = {source_of(2, 4), source_of(3, 4), source_of(5, 12), source_of(1, 4)};
  using Factors = std::vector<float>;
  const auto factors = [&](const Target& target) {
    Factors found = factors_of(target, sources);
    EXPECT_EQ(is_copy(target, sources, DType::nvfp4), !found.empty());
    return found;
  };
  const char* const up = "blk.0.ffn_up.weight";
  const char* const experts = "blk.0.ffn_up_exps.weight";
  EXPECT_EQ(factors(target_of(up, {64, 4}, sources, {{1, 4}})), Factors{3});
  EXPECT_EQ(factors(target_of(up, {64, 4}, sources, {{0, 2}, {0, 2}})), Factors{2});
  EXPECT_EQ(factors(target_of(experts, {64, 4, 2}, sources, {{0, 4}, {1, 4}})), (Factors{2, 3}));
  EXPECT_EQ(factors(target_of(experts, {64, 4, 3}, sources, {{2, 12}})), (Factors{5, 5, 5}));
  EXPECT_EQ(factors(target_of(experts, {64, 4, 2}, sources, {{0, 2}, {0, 2}, {1, 4}})), (Factors{2, 3}));
  // Two that are not alike in one matrix; tensors whose products nothing multiplies.
  EXPECT_EQ(factors(target_of(up, {64, 8}, sources, {{0, 4}, {1, 4}})), Factors{});
  EXPECT_EQ(factors(target_of(experts, {64, 4, 2}, sources, {{0, 4}, {0, 2}, {1, 2}})), Factors{});
  EXPECT_EQ(factors(target_of("token_embd.weight", {64, 4}, sources, {{0, 4}})), Factors{});
  EXPECT_EQ(factors(target_of("blk.4.nextn.embed_tokens.weight", {64, 4}, sources, {{0, 4}})), Factors{});
  EXPECT_EQ(factors(target_of("blk.0.attn_kv_b.weight", {64, 4}, sources, {{0, 4}})), Factors{});
  // Of what nothing multiplies, one that is 1 is none.
  EXPECT_EQ(factors(target_of("token_embd.weight", {64, 4}, sources, {{3, 4}})), Factors{1});
}

}  // namespace
}  // namespace millrace::convert
