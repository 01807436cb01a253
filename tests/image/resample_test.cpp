#include "image/resample.h"

#include <gtest/gtest.h>

#include "image/pictures.h"

namespace millrace::image {
namespace {

TEST(Resample, BytesArePillows) {
  ASSERT_GE(goldens()["resampled"].size(), 30U);
  for (const auto& one : goldens()["resampled"]) {
    SCOPED_TRACE(one.dump());
    const std::string name = one["filter"];
    const Filter filter = name == "bilinear" ? Filter::bilinear : name == "bicubic" ? Filter::bicubic : Filter::lanczos;
    CountingGrant grant;
    {
      const auto image = resample(formula(one["from"][0], one["from"][1]), one["to"][0], one["to"][1], filter, &grant);
      ASSERT_TRUE(image.ok()) << image.status().message();
      Adler adler;
      for (const std::uint8_t byte : image->rgb) adler.add(byte);
      EXPECT_EQ(adler.text(), one["adler"].get<std::string>());
      EXPECT_EQ(grant.used, image->rgb.size());
    }
    EXPECT_EQ(grant.used, 0U);
  }
}

TEST(Resample, MemoryIsAskedForAndTheWorkEndsWhenNobodyWaits) {
  const Image picture = formula(37, 23);
  CountingGrant whole;
  ASSERT_TRUE(resample(picture, 20, 11, Filter::bicubic, &whole).ok());
  for (std::uint64_t most = 0; most < whole.peak; most += 101) {
    CountingGrant grant;
    grant.most = most;
    const auto image = resample(picture, 20, 11, Filter::bicubic, &grant);
    ASSERT_FALSE(image.ok());
    EXPECT_EQ(image.status().code(), Code::out_of_budget);
    EXPECT_EQ(grant.used, 0U);
  }
  CountingGrant grant;
  grant.questions_left = 30;  // in the second pass
  EXPECT_EQ(resample(picture, 20, 11, Filter::bicubic, &grant).status().code(), Code::cancelled);
  EXPECT_EQ(grant.used, 0U);
}

}  // namespace
}  // namespace millrace::image
