#include "image/decode.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "image/pictures.h"

namespace millrace::image {
namespace {

/// A .ppm of Pillow's: "P6 width height 255\n", then the pixels.
Image expected(const std::string& name) {
  const std::vector<std::byte> file = picture_file(name + ".ppm");
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  Image image;
  int begin = 0;
  std::sscanf(text.c_str(), "P6 %ld %ld 255%n", &image.width, &image.height, &begin);
  const auto* const pixels = reinterpret_cast<const std::uint8_t*>(file.data()) + begin + 1;
  image.rgb.assign(pixels, pixels + image.width * image.height * 3);
  return image;
}

std::vector<std::string> pictures() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(picture_path(""))) {
    if (entry.path().extension() == ".ppm") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Decode, PixelsArePillows) {
  ASSERT_GE(pictures().size(), 30U);
  for (const std::string& name : pictures()) {
    SCOPED_TRACE(name);
    const auto file = picture_file(name);
    CountingGrant grant;
    const auto header = read_header(file);
    ASSERT_TRUE(header.ok()) << header.status().message();
    {
      const auto image = decode(file, &grant);
      ASSERT_TRUE(image.ok()) << image.status().message();
      const Image golden = expected(name);
      EXPECT_EQ(image->width, golden.width);
      EXPECT_EQ(image->height, golden.height);
      EXPECT_EQ(header->width, golden.width);
      EXPECT_EQ(header->height, golden.height);
      ASSERT_EQ(image->rgb.size(), golden.rgb.size());
      int most = 0;
      for (std::size_t i = 0; i < golden.rgb.size(); ++i)
        most = std::max(most, std::abs(image->rgb[i] - golden.rgb[i]));
      // Versions of libjpeg and libwebp may round a colour conversion otherwise; PNG and lossless WebP leave no choice.
      const bool lossy = name.ends_with(".jpg") || name.starts_with("lossy");
      EXPECT_LE(most, lossy ? 2 : 0);
      EXPECT_GE(grant.used, image->rgb.size());
    }
    EXPECT_EQ(grant.used, 0U);
  }
}

TEST(Decode, TellsWhatIsNotRead) {
  const auto message = [](const std::string& name) {
    const auto image = decode(picture_file(name), nullptr);
    EXPECT_FALSE(image.ok());
    EXPECT_EQ(image.status().code(), Code::unsupported);
    return image.status().message();
  };
  EXPECT_EQ(message("still.gif"), "the picture is a GIF, which is not read; send a JPEG, PNG or WebP file");
  EXPECT_EQ(message("moving.webp"), "the WebP is animated, which is not read; send one frame of it");
  EXPECT_EQ(message("goldens.json"), "the bytes are no picture of a kind that is read; send a JPEG, PNG or WebP file");
  EXPECT_EQ(message("absent"), "the picture has no bytes; send a JPEG, PNG or WebP file");
}

TEST(Decode, AnAreaPastTheLimitTakesNoMemory) {
  const auto file = picture_file("bomb.png");
  ASSERT_LT(file.size(), 20'000U);
  CountingGrant grant;
  for (const Status& refused : {decode(file, &grant).status(), read_header(file).status()}) {
    EXPECT_EQ(refused.code(), Code::invalid_argument);
    EXPECT_EQ(
        refused.message(),
        "the picture is 60000 x 60000 pixels; up to 64 million pixels and 65535 a side are read: send it smaller");
  }
  EXPECT_EQ(grant.peak, 0U);
}

TEST(Decode, MemoryIsAskedForBeforeItIsTaken) {
  for (const std::string name : {"progressive.jpg", "inks.jpg", "turned6.jpg", "interlaced_alpha.png", "alpha.webp"}) {
    SCOPED_TRACE(name);
    const auto file = picture_file(name);
    CountingGrant whole;
    ASSERT_TRUE(decode(file, &whole).ok());
    for (std::uint64_t most = 0; most < whole.peak; most += 1 + whole.peak / 97) {
      CountingGrant grant;
      grant.most = most;
      const auto image = decode(file, &grant);
      ASSERT_FALSE(image.ok());
      EXPECT_EQ(image.status().code(), Code::out_of_budget) << image.status().message();
      EXPECT_EQ(grant.used, 0U);
    }
  }
}

TEST(Decode, EndsWhenNobodyWaits) {
  for (const std::string name : {"progressive.jpg", "interlaced.png"}) {
    CountingGrant grant;
    grant.questions_left = 1;
    const auto image = decode(picture_file(name), &grant);
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.status().code(), Code::cancelled) << image.status().message();
    EXPECT_EQ(grant.used, 0U);
  }
}

TEST(Decode, FilesThatEndEarlyAreRefused) {
  for (const std::string& name : pictures()) {
    SCOPED_TRACE(name);
    const auto file = picture_file(name);
    for (std::size_t size = 0; size < file.size() / 2; size += 1 + file.size() / 61) {
      CountingGrant grant;
      const auto image = decode(std::span(file).first(size), &grant);
      EXPECT_FALSE(image.ok()) << size;
      EXPECT_EQ(grant.used, 0U);
    }
  }
}

TEST(Decode, DamagedFilesYieldAPictureOrWords) {
  std::mt19937 random(51);
  int refused = 0, read = 0;
  for (const std::string& name : pictures()) {
    SCOPED_TRACE(name);
    const auto whole = picture_file(name);
    for (int i = 0; i < 30; ++i) {
      auto file = whole;
      const std::size_t changes = 1 + random() % 8;
      for (std::size_t k = 0; k < changes; ++k) file[random() % file.size()] = static_cast<std::byte>(random() & 255);
      CountingGrant grant;
      grant.most = 64u << 20;
      {
        const auto image = decode(file, &grant);
        if (image.ok()) {
          ++read;
          EXPECT_EQ(image->rgb.size(), static_cast<std::size_t>(image->width * image->height * 3));
        } else {
          ++refused;
          EXPECT_EQ(image.status().message().find('\n'), std::string::npos);
          EXPECT_FALSE(image.status().message().empty());
        }
      }
      EXPECT_EQ(grant.used, 0U);
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 100);
}

TEST(Decode, AProgressiveFileOfManyScansIsRefused) {
  // The last scan once more, and again: each costs a pass over all pixels, and none has to cost a byte more than this.
  auto file = picture_file("progressive.jpg");
  std::size_t scan = 0;
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    if (file[i] == std::byte{0xFF} && file[i + 1] == std::byte{0xDA}) scan = i;
  }
  const std::vector<std::byte> last(file.begin() + static_cast<std::ptrdiff_t>(scan), file.end() - 2);
  file.resize(file.size() - 2);
  for (int i = 0; i < 200; ++i) file.insert(file.end(), last.begin(), last.end());
  file.insert(file.end(), {std::byte{0xFF}, std::byte{0xD9}});
  const auto image = decode(file, nullptr);
  ASSERT_FALSE(image.ok());
  EXPECT_EQ(image.status().message(), "the JPEG is damaged: it has more than 100 scans");
}

}  // namespace
}  // namespace millrace::image
