#include "kv/layout.h"

#include <gtest/gtest.h>

#include "kv/small_layout.h"

namespace millrace::kv {
namespace {

TEST(Layout, LayersThatKeepAlikeShareAGroup) {
  const Layout layout = with_window(100);
  ASSERT_EQ(layout.groups().size(), 2u);
  EXPECT_EQ(layout.groups()[0].layers, 3);
  EXPECT_EQ(layout.groups()[0].window, 100);
  EXPECT_EQ(layout.groups()[1].layers, 1);
  EXPECT_EQ(layout.layers(), 4);
  EXPECT_EQ(layout.place(2), (Place{1, 0}));
  EXPECT_EQ(layout.place(3), (Place{0, 2}));
  EXPECT_EQ(layout.describe(), "3 layers x 1 heads x 8 F16, window 100; 1 layers x 2 heads x 16 F16");
}

TEST(Layout, HeadsFollowOneAnotherAndFillTheBlock) {
  for (const DType dtype : {DType::f16, DType::f32, DType::q8_0, DType::q4_0}) {
    const LayerKv layer{Keeps::attention, 2, 64, 32};
    const LayerKv layers[] = {layer, layer, layer};
    const Layout layout = Layout(layers).with(dtype, kOnHost);
    std::int64_t at = 0;
    for (std::int64_t l = 0; l < 3; ++l) {
      for (std::int64_t head = 0; head < 2; ++head, at += 64 * row_bytes(dtype, 64))
        EXPECT_EQ(layout.offset(l, Part::k, head), at);
      for (std::int64_t head = 0; head < 2; ++head, at += 64 * row_bytes(dtype, 32))
        EXPECT_EQ(layout.offset(l, Part::v, head), at);
    }
    EXPECT_EQ(layout.groups()[0].block_bytes(), at);
    EXPECT_EQ(layout.bytes_per_token(), at / 64);
  }
}

TEST(Layout, ALayerMayReadWhatAnEarlierOneKeeps) {
  const LayerKv keeps{Keeps::attention, 1, 8, 8}, reads{Keeps::attention, 1, 8, 8, 0, 1};
  const LayerKv layers[] = {keeps, keeps, reads, keeps, reads};
  const Layout layout(layers);
  ASSERT_EQ(layout.groups().size(), 1u);
  EXPECT_EQ(layout.groups()[0].layers, 3);
  EXPECT_EQ(layout.layers(), 5);
  EXPECT_EQ(layout.place(2), layout.place(1));
  EXPECT_EQ(layout.place(4), layout.place(1));
  EXPECT_EQ(layout.offset(3, Part::k, 0), 2 * layout.groups()[0].layer_bytes());
}

TEST(Layout, KeysAndValuesMayHaveOtherSizes) {
  const LayerKv uneven{Keeps::attention, 2, 8, 16}, layers[] = {uneven, uneven};
  const Layout layout(layers);
  EXPECT_EQ(layout.bytes_per_token(), 2 * 2 * (8 + 16) * 2);
  EXPECT_EQ(layout.offset(0, Part::k, 1), 8 * 2 * kBlockTokens);
  EXPECT_EQ(layout.offset(0, Part::v, 1), (2 * 8 + 16) * 2 * kBlockTokens);
  EXPECT_NE(layout.describe().find("8+16"), std::string::npos);
}

TEST(Layout, IndexKeysLieBehindWhatTheyAreOf) {
  LayerKv latent{Keeps::latent, 1, 0, 96}, indexed = latent;
  indexed.index_dim = 64;
  const LayerKv layers[] = {indexed, latent, indexed};
  for (const DType dtype : {DType::f16, DType::f32, DType::q8_0}) {
    const Layout layout = Layout(layers).with(dtype, kOnHost);
    ASSERT_EQ(layout.groups().size(), 2u);
    const std::int64_t of_latent = row_bytes(dtype, 96) * kBlockTokens;
    const std::int64_t of_index = 64 * (dtype == DType::f32 ? 4 : 2) * kBlockTokens;  // they lose no bits
    EXPECT_EQ(layout.group_of(0).layer_bytes(), of_latent + of_index);
    EXPECT_EQ(layout.group_of(1).layer_bytes(), of_latent);
    EXPECT_EQ(layout.offset(2, Part::index, 0), 2 * of_latent + of_index);
    EXPECT_EQ(layout.bytes_per_token(), (3 * of_latent + 2 * of_index) / kBlockTokens);
  }
  EXPECT_NE(Layout(layers).describe().find("index keys of 64"), std::string::npos);
}

TEST(Layout, ALatentLiesAsAValueDoes) {
  const LayerKv latent{Keeps::latent, 1, 0, 576}, layers[] = {latent, latent};
  const Layout layout = Layout(layers).with(DType::q8_0, kOnHost);
  EXPECT_EQ(layout.bytes_per_token(), 2 * row_bytes(DType::q8_0, 576));
  EXPECT_EQ(layout.offset(1, Part::v, 0), 64 * row_bytes(DType::q8_0, 576));
  EXPECT_EQ(layout.describe(), "2 layers x latents of 576 Q8_0");
}

TEST(Layout, FewBitsAreOfRotatedKeysAndValues) {
  const LayerKv layers[] = {{Keeps::attention, 2, 96, 96}};
  const Layout plain(layers);
  EXPECT_EQ(plain.with(DType::q4_0, kOnHost).groups()[0].rotation(), 32);
  EXPECT_EQ(plain.with(DType::q4_0, kOnHost).describe(), "1 layers x 2 heads x 96 Q4_0 rotated");
  EXPECT_EQ(plain.with(DType::q4_0, kOnHost, Rotation::never).groups()[0].rotation(), 0);
  EXPECT_EQ(plain.with(DType::q8_0, kOnHost).groups()[0].rotation(), 32);
  EXPECT_EQ(plain.with(DType::q8_0, kOnHost, Rotation::never).groups()[0].rotation(), 0);
  EXPECT_EQ(plain.with(DType::f16, kOnHost).groups()[0].rotation(), 0);
  const Layout few = plain.with(DType::q2_0, kOnHost);
  EXPECT_EQ(few.describe(),
            "1 layers x 2 heads x 96 Q2_0 rotated; 1 layers x 2 heads x 96 F16 rotated, first and last block");
  EXPECT_EQ(few.bytes_per_token(), 2 * 2 * 30) << "what a token takes when others have come";
  EXPECT_EQ(few.plain_group(0), 1U);
  EXPECT_EQ(few.plain_offset(0, Part::v, 1), 64 * 96 * 2 * 3);
  EXPECT_EQ(plain.with(DType::q4_0, kOnHost).plain_group(0), Place::kNowhere);
  const Layout on_gpu = plain.with(DType::q2_0, 0);
  EXPECT_EQ(on_gpu.describe(),
            "1 layers x 2 heads x 96 Q2_0 rotated; 1 layers x 2 heads x 96 Q8_0 rotated, first and last block");
  EXPECT_EQ(on_gpu.plain_offset(0, Part::v, 1), 64 * 102 * 3);
  EXPECT_EQ(on_gpu.groups()[1].block_bytes(), 64 * 102 * 4);
  EXPECT_EQ(on_gpu.groups()[1].rotation(), 32);
  EXPECT_EQ(on_gpu.bytes_per_token(), few.bytes_per_token());
  EXPECT_EQ(few.groups()[0].dtype, DType::q2_0);
  EXPECT_TRUE(few.groups()[0].keeps_all());
  EXPECT_FALSE(few.groups()[1].keeps_all());
}

TEST(Layout, AWindowSeesItsOwnKeyAndThoseBefore) {
  const Group group = with_window(100).groups()[0];
  EXPECT_EQ(group.first_seen(0), 0);
  EXPECT_EQ(group.first_seen(99), 0);
  EXPECT_EQ(group.first_seen(100), 1);
  EXPECT_EQ(with_window(100).groups()[1].first_seen(100'000), 0);
}

}  // namespace
}  // namespace millrace::kv
