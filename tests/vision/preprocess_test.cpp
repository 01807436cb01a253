#include "vision/preprocess.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "image/pictures.h"
#include "text/gguf_image.h"

namespace millrace::vision {
namespace {

Spec spec_named(const std::string& projector) {
  test::GgufImage file;
  file.text("clip.projector_type", projector);
  if (projector == "pixtral") {
    file.number("clip.vision.image_size", 1540).number("clip.vision.patch_size", 14);
    file.number("clip.vision.spatial_merge_size", 2);
  }
  if (projector == "internvl") file.number("clip.vision.image_size", 56);
  if (projector == "idefics3") {
    file.number("clip.vision.image_size", 50).number("clip.vision.patch_size", 12);
    file.number("clip.vision.preproc_image_size", 200);
  }
  return *read_spec(*file.model());
}

/// Levels of all pixels, and the largest distance from a whole one.
std::pair<std::string, float> levels_of(const Patches& patches, const Spec& spec) {
  const auto channel_values = static_cast<std::size_t>(spec.patch * spec.patch);
  image::Adler adler;
  float most_off = 0;
  for (std::size_t i = 0; i < patches.pixels.size(); ++i) {
    const std::size_t c = i / channel_values % 3;
    const float level = (patches.pixels[i] * spec.deviation[c] + spec.mean[c]) * 255;
    most_off = std::max(most_off, std::abs(level - std::round(level)));
    adler.add(static_cast<std::uint8_t>(std::lround(level)));
  }
  return {adler.text(), most_off};
}

TEST(Preprocess, PatchesAreThoseOfThePublishedProcessors) {
  ASSERT_GE(image::goldens()["patches"].size(), 600U);
  std::vector<Patches> views;
  for (const auto& one : image::goldens()["patches"]) {
    SCOPED_TRACE(one.dump());
    const Spec spec = spec_named(one["projector"]);
    image::CountingGrant grant;
    {
      const std::size_t index = one.value("view", std::size_t{0});
      if (index == 0) {
        auto made = preprocess(spec, image::formula(one["from"][0], one["from"][1]), &grant);
        ASSERT_TRUE(made.ok()) << made.status().message();
        std::uint64_t bytes = 0;
        for (const Patches& view : *made) bytes += view.pixels.size() * sizeof(float);
        EXPECT_EQ(grant.used, bytes);
        for (Patches& view : *made) view.memory = {};
        views = std::move(*made);
      }
      ASSERT_EQ(views.size(), one.value("views", std::size_t{1}));
      const Patches& patches = views[index];
      EXPECT_EQ(patches.cols, one["patches"][0]);
      EXPECT_EQ(patches.rows, one["patches"][1]);
      EXPECT_EQ(patches.dim, 3 * spec.patch * spec.patch);
      ASSERT_EQ(patches.pixels.size(), static_cast<std::size_t>(patches.rows * patches.cols * patches.dim));
      const auto [adler, most_off] = levels_of(patches, spec);
      EXPECT_LT(most_off, 0.01F);
      EXPECT_EQ(adler, one["adler"].get<std::string>());
    }
    EXPECT_EQ(grant.used, 0U);
  }
}

TEST(Preprocess, PatchesOfATokenAreNeighbours) {
  const Spec spec = spec_named("qwen3vl_merger");
  const Grid tokens = {.rows = 2, .cols = 3};
  std::vector<std::pair<std::int64_t, std::int64_t>> places;
  for (std::int64_t i = 0; i < 24; ++i) {
    const Place place = patch_place(spec, tokens, i);
    places.emplace_back(place.row, place.col);
  }
  const std::vector<std::pair<std::int64_t, std::int64_t>> first = {{0, 0}, {0, 1}, {1, 0}, {1, 1}, {0, 2}, {0, 3}};
  EXPECT_TRUE(std::equal(first.begin(), first.end(), places.begin()));
  EXPECT_EQ(places[12], std::make_pair(std::int64_t{2}, std::int64_t{0}));
  EXPECT_EQ(places[23], std::make_pair(std::int64_t{3}, std::int64_t{5}));
}

TEST(Preprocess, MemoryIsAskedForBeforeItIsTaken) {
  for (const char* projector : {"gemma4v", "idefics3"}) {
    const Spec spec = spec_named(projector);
    const image::Image picture = image::formula(64, 48);
    image::CountingGrant whole;
    ASSERT_TRUE(preprocess(spec, picture, &whole).ok());
    for (std::uint64_t most = 0; most < whole.peak; most += 1 + whole.peak / 23) {
      image::CountingGrant grant;
      grant.most = most;
      const auto patches = preprocess(spec, picture, &grant);
      ASSERT_FALSE(patches.ok());
      EXPECT_EQ(patches.status().code(), Code::out_of_budget);
      EXPECT_EQ(grant.used, 0U);
    }
  }
}

}  // namespace
}  // namespace millrace::vision
