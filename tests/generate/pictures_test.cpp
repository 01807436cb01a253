#include "app/generate/pictures.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "app/openai/response.h"
#include "base/base64.h"

namespace millrace::generate {
namespace {

std::string file_of(const std::string& name) {
  std::ifstream file(std::string(MILLRACE_TEST_DATA) + "/pictures/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Picture picture(const std::string& name) { return {"image", "messages.0", file_of(name), {}}; }

vision::Spec qwen() {
  return {.projector = vision::Projector::qwen3vl,
          .patch = 16,
          .merge = 2,
          .resize = vision::Resize::smart,
          .least_pixels = 4096,
          .most_pixels = 65536,
          .mean = {},
          .deviation = {1, 1, 1}};
}

Json said(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

TEST(Base64, IsReadWithAndWithoutPaddingAndInLines) {
  EXPECT_EQ(from_base64("TWlsbHJhY2U="), "Millrace");
  EXPECT_EQ(from_base64("TWlsbHJhY2U"), "Millrace");
  EXPECT_EQ(from_base64("TWls\r\nbHJh\nY2U=\r\n"), "Millrace");
  EXPECT_EQ(from_base64(""), "");
  std::string bytes;
  for (int i = 0; i < 300; ++i) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
    bytes += static_cast<char>(7 * i);
  }
  EXPECT_EQ(to_base64("Millrace"), "TWlsbHJhY2U=");
  EXPECT_EQ(to_base64("\xff\xfe\xfd"), "//79");
  EXPECT_FALSE(from_base64("TWls*HJh"));
  EXPECT_FALSE(from_base64("TW=sbHJh"));
}

TEST(Pictures, ComeFromDataUrlsAlone) {
  const std::string bytes = file_of("grey.png"), text = openai::base64(bytes.data(), bytes.size());
  EXPECT_EQ(picture_of_url("image_url", "messages", "data:image/png;base64," + text).file, bytes);
  EXPECT_EQ(picture_of_url("image_url", "messages", "DATA:;base64," + text).file, bytes);
  EXPECT_EQ(picture_of_base64("image", "images", text).file, bytes);
  EXPECT_EQ(picture_of_base64("image", "images", "data:image/png;base64," + text).file, bytes);
  const auto problem = [](std::string_view url) {
    const Picture made = picture_of_url("image_url", "messages", url);
    EXPECT_TRUE(made.file.empty());
    return made.problem.message();
  };
  for (const char* url : {"http://127.0.0.1/a.png", "https://example.com/a.png", "file:///etc/passwd", "a.png"}) {
    EXPECT_EQ(problem(url),
              "this server fetches no pictures from URLs; send the picture itself, as data:image/png;base64,...");
  }
  EXPECT_EQ(problem(""), "it has no data");
  EXPECT_EQ(problem("data:image/png,abc"), "its data URL is not in base64; send data:image/png;base64,...");
  EXPECT_EQ(problem("data:image/png;base64"), "its data URL is not in base64; send data:image/png;base64,...");
  EXPECT_EQ(problem("data:image/png;base64,!"), "its data is not base64");
  EXPECT_EQ(problem("data:image/png;base64," + std::string(28'000'000, 'A')),
            "image exceeds 20 MB maximum: 21000000 bytes > 20971520 bytes");
}

TEST(Pictures, OfAModelThatReadsTextBecomeNotes) {
  Pictures pictures;
  const std::string old = pictures.add(picture("grey.png")), shown = pictures.add(picture("grey.png"));
  Json messages = {said("user", "Look: " + old + "."), said("assistant", "Yes."), said("tool", shown),
                   said("user", "And?")};
  const auto seen = settle_pictures(nullptr, pictures, messages);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(messages[0]["content"], "Look: [image: this model reads text only].");
  EXPECT_EQ(messages[2]["content"], "[image: this model reads text only]");
  EXPECT_TRUE(seen->inserts.empty());
  messages.push_back(said("user", old));
  EXPECT_EQ(settle_pictures(nullptr, pictures, messages).status().message(),
            "messages.0: this model reads text only; leave the image out, or serve the model with the mmproj file that "
            "belongs to it (--mmproj)");
}

TEST(Pictures, ThatAModelSeesKeepTheirPlaces) {
  Pictures pictures;
  const std::string first = pictures.add(picture("grey.png")), second = pictures.add(picture("baseline.jpg"));
  Json messages = {said("user", first + " or " + second + "?")};
  const Json before = messages;
  const vision::Spec spec = qwen();
  const auto seen = settle_pictures(&spec, pictures, messages);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(messages, before);
  EXPECT_EQ(seen->inserts, (std::vector<std::string>{"<|vision_start|><|image_pad|><|vision_end|>",
                                                     "<|vision_start|><|image_pad|><|vision_end|>"}));
  EXPECT_EQ(seen->grids[0], (std::vector<vision::Grid>{{.rows = 2, .cols = 3}}));
}

TEST(Pictures, BecomeSeveralViewsWhereATowerSeesTiles) {
  Pictures pictures;
  Json messages = {said("user", pictures.add(picture("baseline.jpg")))};
  vision::Spec spec = vision::usual_spec(vision::Projector::internvl);
  spec.least_tiles = 2;
  const auto seen = settle_pictures(&spec, pictures, messages);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(seen->inserts[0],
            "<img><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT><IMG_CONTEXT></img>\n");
  EXPECT_EQ(seen->grids[0], (std::vector<vision::Grid>(7, {.rows = 16, .cols = 16})));
}

TEST(Pictures, ThatCannotBeReadAreRefusedWhenNewAndNotedWhenOld) {
  Pictures pictures;
  Picture bad{"image", "messages.2.content.0.image.source.base64", "no picture", {}};
  const std::string marker = pictures.add(bad), good = pictures.add(picture("grey.png"));
  const vision::Spec spec = qwen();
  Json messages = {said("user", "a" + marker + "b" + good), said("assistant", "What?"), said("tool", marker)};
  const auto seen = settle_pictures(&spec, pictures, messages);
  ASSERT_TRUE(seen.ok()) << seen.status().message();
  EXPECT_EQ(messages[0]["content"], "a[image: it cannot be read]b" + good);
  EXPECT_EQ(messages[2]["content"], "[image: it cannot be read]");
  messages.push_back(said("user", marker));
  EXPECT_EQ(settle_pictures(&spec, pictures, messages).status().message(),
            "messages.2.content.0.image.source.base64: Could not process image: the bytes are no picture of a kind "
            "that is read; send a JPEG, PNG or WebP file");
}

TEST(Pictures, MarkersAreDrawnAndNotGuessed) {
  Pictures one, other;
  const std::string marker = one.add(picture("grey.png")), strange = other.add(picture("grey.png"));
  EXPECT_NE(marker, strange);
  const vision::Spec spec = qwen();
  Json messages = {said("user", strange + marker)};
  ASSERT_TRUE(settle_pictures(&spec, one, messages).ok());
  EXPECT_EQ(one.markers().find(strange + marker)->begin, strange.size());
  EXPECT_FALSE(text::Markers().find(marker));
}

}  // namespace
}  // namespace millrace::generate
