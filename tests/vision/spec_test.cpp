#include "vision/spec.h"

#include <gtest/gtest.h>

#include "image/pictures.h"
#include "text/gguf_image.h"
#include "vision/markup.h"

namespace millrace::vision {
namespace {

Expected<Spec> spec_of(const test::GgufImage& file) {
  const auto model = file.model();
  EXPECT_TRUE(model.ok()) << model.status().message();
  return read_spec(*model);
}

/// What the goldens were made with.
Spec golden_spec(const std::string& projector) {
  test::GgufImage file;
  file.text("clip.projector_type", projector);
  if (projector == "pixtral") {
    file.number("clip.vision.image_size", 1540).number("clip.vision.patch_size", 14);
    file.number("clip.vision.spatial_merge_size", 2);
  }
  return *spec_of(file);
}

TEST(Spec, SizesAreThoseOfThePublishedProcessors) {
  ASSERT_GE(image::goldens()["sizes"].size(), 80U);
  int refused = 0;
  for (const auto& one : image::goldens()["sizes"]) {
    SCOPED_TRACE(one.dump());
    const Spec spec = golden_spec(one["projector"]);
    const auto size = fitted(spec, {.height = one["from"][1], .width = one["from"][0]});
    if (one.contains("refused")) {
      ++refused;
      ASSERT_FALSE(size.ok());
      EXPECT_EQ(size.status().code(), Code::invalid_argument);
      continue;
    }
    ASSERT_TRUE(size.ok()) << size.status().message();
    EXPECT_EQ(size->width, one["to"][0]);
    EXPECT_EQ(size->height, one["to"][1]);
    const Grid tokens = grid(spec, *size);
    EXPECT_EQ(tokens.rows * spec.token_side(), size->height);
    EXPECT_EQ(tokens.cols * spec.token_side(), size->width);
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(fitted(golden_spec("qwen3vl_merger"), {.height = 7, .width = 3000}).status().message(),
            "the picture is 3000 x 7 pixels, a ratio of 429; this model takes up to 200: cut the picture");
}

TEST(Spec, TilesAreThoseOfThePublishedProcessors) {
  ASSERT_GE(image::goldens()["cuts"].size(), 60U);
  for (const auto& one : image::goldens()["cuts"]) {
    SCOPED_TRACE(one.dump());
    const Spec spec = golden_spec(one["projector"]);
    const auto made = cut(spec, {.height = one["from"][1], .width = one["from"][0]});
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(made->cols, one["tiles"][0]);
    EXPECT_EQ(made->rows, one["tiles"][1]);
    EXPECT_EQ(made->whole, (Size{.height = one["whole"][1], .width = one["whole"][0]}));
    const std::vector<Grid> views = grids(spec, *made);
    EXPECT_EQ(std::ssize(views), made->tiles() + 1);
    for (std::int64_t view = 0; view < made->tiles(); ++view)
      EXPECT_EQ(views[static_cast<std::size_t>(view)], grid(spec, made->tile));
  }
}

TEST(Spec, MarkupNamesEachTile) {
  const auto text = [](const std::string& projector, Size size) {
    const Spec spec = golden_spec(projector);
    return text_of(markup(spec.projector), *cut(spec, size));
  };
  EXPECT_EQ(text("qwen3vl_merger", {.height = 700, .width = 1500}), "<|vision_start|><|image_pad|><|vision_end|>");
  EXPECT_EQ(text("internvl", {.height = 448, .width = 896}), "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>\n");
  EXPECT_EQ(text("internvl", {.height = 60, .width = 60}), "<img><IMG_CONTEXT></img>\n");
  EXPECT_EQ(text("lfm2", {.height = 512, .width = 1024}), "<|image_start|><image><|image_end|>");
  EXPECT_EQ(text("lfm2", {.height = 600, .width = 1200}),
            "<|image_start|><|img_row_1_col_1|><image><|img_row_1_col_2|><image><|img_thumbnail|><image><|image_end|>");
  test::GgufImage small;
  small.text("clip.projector_type", "idefics3").number("clip.vision.preproc_image_size", 1024);
  const Spec spec = *spec_of(small);
  EXPECT_EQ(text_of(markup(spec.projector), *cut(spec, {.height = 500, .width = 1000})),
            "<fake_token_around_image><row_1_col_1><image><fake_token_around_image><row_1_col_2><image>\n"
            "\n<fake_token_around_image><global-img><image><fake_token_around_image>");
  const Spec one =
      *spec_of(test::GgufImage().text("clip.projector_type", "idefics3").number("clip.vision.preproc_image_size", 512));
  EXPECT_EQ(text_of(markup(one.projector), *cut(one, {.height = 500, .width = 1000})),
            "<fake_token_around_image><global-img><image><fake_token_around_image>");
  EXPECT_EQ(text("kimivl", {.height = 50, .width = 50}),
            "<|media_start|>image<|media_content|><|media_pad|><|media_end|>");
}

TEST(Spec, ScreenshotsBecomeThisManyTokens) {
  const auto tokens = [](const std::string& projector) {
    const Spec spec = golden_spec(projector);
    return grid(spec, *fitted(spec, {.height = 1080, .width = 1920})).tokens();
  };
  EXPECT_EQ(tokens("qwen3vl_merger"), 2040);
  EXPECT_EQ(tokens("qwen2.5vl_merger"), 2691);
  EXPECT_EQ(tokens("gemma3"), 256);
  EXPECT_EQ(tokens("gemma4v"), 264);
  EXPECT_EQ(tokens("gemma4uv"), 264);
  EXPECT_EQ(tokens("pixtral"), 1705);  // without the marks between the rows
  EXPECT_EQ(tokens("glm4v"), 2691);
  EXPECT_EQ(tokens("kimivl"), 1032);
}

TEST(Spec, TheFilesKeysCount) {
  const auto spec = spec_of(test::GgufImage()
                                .text("clip.vision.projector_type", "qwen3vl_merger")
                                .text("clip.projector_type", "of the sound")
                                .number("clip.vision.patch_size", 8)
                                .number("clip.vision.spatial_merge_size", 1)
                                .number("clip.vision.image_min_pixels", 64)
                                .number("clip.vision.image_max_pixels", 6400)
                                .floats("clip.vision.image_mean", {0, 0.25F, 1})
                                .floats("clip.vision.image_std", {1, 2, 3}));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->token_side(), 8);
  EXPECT_EQ(*fitted(*spec, {.height = 1000, .width = 1000}), (Size{.height = 80, .width = 80}));
  EXPECT_EQ(spec->mean[1], 0.25F);
  EXPECT_EQ(spec->deviation[2], 3);
}

TEST(Spec, FilesThatAreOffAreRefusedInWords) {
  const auto message = [](const test::GgufImage& file) {
    const auto spec = spec_of(file);
    EXPECT_FALSE(spec.ok());
    return spec.status().message();
  };
  EXPECT_EQ(message(test::GgufImage().text("general.architecture", "llama")),
            "image.gguf has no key clip.projector_type, so it is not a file for pictures; give --mmproj the mmproj "
            "file that belongs to the model");
  EXPECT_EQ(message(test::GgufImage().text("clip.projector_type", "cogvlm")),
            "pictures by the projector type 'cogvlm' are not supported yet; these are: qwen3vl_merger, "
            "qwen2.5vl_merger, qwen2vl_merger, gemma3, gemma4v, gemma4uv, pixtral, internvl, idefics3, lfm2, glm4v, "
            "kimivl");
  EXPECT_EQ(
      message(test::GgufImage().text("clip.projector_type", "internvl").number("clip.vision.preproc_min_tiles", 13)),
      "clip.vision.preproc_min_tiles is 13, more than preproc_max_tiles, 12");
  EXPECT_EQ(
      message(
          test::GgufImage().text("clip.projector_type", "idefics3").number("clip.vision.preproc_image_size", 16'000)),
      "clip.vision.preproc_image_size is 16000, more than 16 tiles of 512 pixels");
  const auto with = [](std::string_view key, std::uint32_t value) {
    return test::GgufImage().text("clip.projector_type", "qwen3vl_merger").number(key, value);
  };
  EXPECT_EQ(message(with("clip.vision.patch_size", 0)), "clip.vision.patch_size is 0; it has to lie between 1 and 256");
  EXPECT_EQ(message(with("clip.vision.image_min_pixels", 1U << 27)),
            "clip.vision.image_min_pixels is 134217728, more than image_max_pixels, 16777216");
  EXPECT_EQ(message(test::GgufImage().text("clip.projector_type", "gemma3").number("clip.vision.image_size", 900)),
            "clip.vision.image_size is 900, no multiple of a token's 56 pixels");
  EXPECT_EQ(message(test::GgufImage().text("clip.projector_type", "gemma3").floats("clip.vision.image_std", {1, 0, 1})),
            "clip.vision.image_std holds 0, by which no pixel can be normalized");
  EXPECT_EQ(message(test::GgufImage().text("clip.projector_type", "gemma3").floats("clip.vision.image_mean", {1})),
            "clip.vision.image_mean has 1 values; it takes 3, one a channel");
}

TEST(Spec, EachProjectorHasItsNameAndMarkup) {
  for (const Projector one : {Projector::qwen2vl, Projector::qwen25vl, Projector::qwen3vl, Projector::gemma3,
                              Projector::gemma4, Projector::gemma4u, Projector::pixtral, Projector::internvl,
                              Projector::idefics3, Projector::lfm2, Projector::glm4v, Projector::kimivl}) {
    EXPECT_EQ(golden_spec(std::string(projector_name(one))).projector, one);
    EXPECT_FALSE(markup(one).marker.empty());
    EXPECT_FALSE(markup(one).place.empty());
  }
}

}  // namespace
}  // namespace millrace::vision
