// What tests of pictures share: the files of tests/data/pictures (tools/picture-fixtures) and a grant that counts.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/work_grant.h"
#include "image/image.h"

namespace millrace::image {

inline std::string picture_path(const std::string& name) {
  return std::string(MILLRACE_TEST_DATA) + "/pictures/" + name;
}

inline std::vector<std::byte> picture_file(const std::string& name) {
  std::ifstream file(picture_path(name), std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<std::byte> result(bytes.size());
  std::transform(bytes.begin(), bytes.end(), result.begin(), [](char c) { return static_cast<std::byte>(c); });
  return result;
}

inline const nlohmann::json& goldens() {
  static const nlohmann::json all = nlohmann::json::parse(std::ifstream(picture_path("goldens.json")));
  return all;
}

/// The picture that tools/picture-fixtures makes of these sides.
inline Image formula(std::int64_t width, std::int64_t height) {
  Image image{.width = width, .height = height, .rgb = {}, .memory = {}};
  for (std::int64_t y = 0; y < height; ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      for (std::int64_t c = 0; c < 3; ++c) {
        image.rgb.push_back(static_cast<std::uint8_t>((x * 7 + y * 13 + c * 29 + x * y % 251) & 255));
      }
    }
  }
  return image;
}

/// Adler-32, by which goldens are compared.
class Adler {
 public:
  void add(std::uint8_t byte) {
    low_ = (low_ + byte) % 65521;
    high_ = (high_ + low_) % 65521;
  }
  std::string text() const { return fmt::format("{:08x}", high_ << 16 | low_); }

 private:
  std::uint32_t low_ = 1, high_ = 0;
};

/// Grants up to `most` bytes, counts what is out, and can end the work after so many questions.
struct CountingGrant : WorkGrant {
  std::uint64_t most = UINT64_MAX, used = 0, peak = 0;
  mutable int questions_left = -1;  // -1: the work is never cancelled
  bool take(std::uint64_t bytes) override {
    if (bytes > most - used) return false;
    used += bytes;
    peak = std::max(peak, used);
    return true;
  }
  void give_back(std::uint64_t bytes) noexcept override { used -= bytes; }
  bool cancelled() const override { return questions_left == 0 || (questions_left > 0 && --questions_left == 0); }
};

}  // namespace millrace::image
