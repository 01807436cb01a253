// The engine's own bits come from the C library in few places: frequencies and angles of RoPE, gates' references, what
// a conversion computes. Each computes in doubles and rounds to a float. C libraries differ in the last bits of a
// double, which a float does not have: the floats are the same on every system. Functions of floats differ, and nothing
// that is compared between systems may use them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>

namespace millrace {
namespace {

class Hash {
 public:
  void add(double value) {
    const auto rounded = static_cast<float>(value);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &rounded, sizeof(bits));
    hash_ = (hash_ ^ bits) * 1'099'511'628'211u;
    hash_ ^= hash_ >> 29;
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 1'469'598'103'934'665'603u;
};

TEST(LibraryFunctions, FrequenciesOfRope) {
  Hash hash;
  for (const double theta : {1e4, 1.5e5, 2.5e5, 5e5, 1e6, 8e6, 1e7})
    for (const int rotary : {32, 64, 80, 96, 128, 256})
      for (int i = 0; i < rotary / 2; ++i) hash.add(std::pow(theta, -2.0 * i / rotary));
  EXPECT_EQ(hash.value(), 0x93af7edb6696ae2bu);
}

TEST(LibraryFunctions, AnglesOfRope) {
  Hash hash;
  for (const double theta : {1e4, 5e5}) {
    for (int i = 0; i < 64; i += 4) {
      const auto frequency = static_cast<float>(std::pow(theta, -2.0 * i / 128));
      for (int position = 0; position < 131'072; ++position) {
        hash.add(std::cos(static_cast<double>(position) * frequency));
        hash.add(std::sin(static_cast<double>(position) * frequency));
      }
    }
  }
  EXPECT_EQ(hash.value(), 0x0c04ceb7018813a7u);
}

TEST(LibraryFunctions, Exponentials) {
  std::mt19937_64 random(1);
  Hash exp, log, erf, softplus, tanh;
  for (int i = 0; i < 300'000; ++i) {
    const double x = (static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * 60;
    exp.add(std::exp(x));
    log.add(std::log(std::abs(x)));
    erf.add(std::erf(x / 10));
    softplus.add(std::log1p(std::exp(-std::abs(x))));
    tanh.add(std::tanh(x / 10));
  }
  EXPECT_EQ(exp.value(), 0x81d2e5f8a401b1f8u);
  EXPECT_EQ(log.value(), 0x56a408c326b47bd2u);
  EXPECT_EQ(erf.value(), 0xa174dabeeed69590u);
  EXPECT_EQ(softplus.value(), 0xb9191365db5cf18eu);
  EXPECT_EQ(tanh.value(), 0x600154877fce35a2u);
}

TEST(LibraryFunctions, SlopesOfAlibi) {
  Hash hash;
  for (const int heads : {4, 8, 12, 16, 20, 24, 32, 40, 64})
    for (int i = 1; i <= heads; ++i) hash.add(std::exp2(-8.0f * static_cast<float>(i) / static_cast<float>(heads)));
  EXPECT_EQ(hash.value(), 0x8696b4297ba61125u);
}

}  // namespace
}  // namespace millrace
