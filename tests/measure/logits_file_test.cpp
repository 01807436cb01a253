// Files of saved logits: what comes back, and what is refused.
#include "app/measure/logits_file.h"

#include <cmath>
#include <random>

#include "measure/support.h"

namespace millrace::measure {
namespace {

using namespace test;

constexpr std::int64_t kVocab = 1001, kRows = 6;

LogitsShape shape() {
  return {.vocabulary = kVocab,
          .context = 8,
          .stride = 0,
          .windows = 2,
          .rows = kRows,
          .tokens_hash = 1,
          .vocabulary_hash = 2,
          .model = "a model"};
}

std::vector<float> logits_of(std::int64_t row) {
  std::mt19937 random(static_cast<unsigned>(row));
  std::normal_distribution<float> normal(0, 5);
  std::vector<float> logits(kVocab);
  for (float& logit : logits) logit = normal(random);
  logits[7] = -200;  // beyond what a code reaches
  return logits;
}

void write_all(const std::string& path) {
  Distributions math(nullptr);
  auto writer = LogitsWriter::create(path, shape());
  ASSERT_TRUE(writer.ok()) << writer.status().message();
  for (std::int64_t row = kRows - 1; row >= 0; --row) {
    const std::vector<float> logits = logits_of(row);
    const Status status = writer->write(row, logits, math.log_sum(logits), static_cast<TokenId>(row));
    ASSERT_TRUE(status.ok()) << status.message();
  }
  ASSERT_TRUE(writer->finish().ok());
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(LogitsFile, KeepsWhatMattersOfADistribution) {
  const Folder folder;
  const std::string path = folder / "logits";
  write_all(path);
  EXPECT_EQ(std::filesystem::file_size(path), shape().file_bytes());
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  auto reader = LogitsReader::open(path);
  ASSERT_TRUE(reader.ok()) << reader.status().message();
  EXPECT_EQ(reader->shape().model, "a model");
  EXPECT_TRUE(reader->check_like(shape()).ok());
  Distributions math(nullptr);
  std::vector<float> log_p(kVocab);
  for (std::int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> logits = logits_of(row);
    const LogSum sum = math.log_sum(logits);
    float right = 0;
    ASSERT_TRUE(reader->read(row, log_p, right).ok());
    EXPECT_FLOAT_EQ(right, static_cast<float>(sum.log_probability(logits[static_cast<std::size_t>(row)])));
    for (std::size_t i = 0; i < logits.size(); ++i) {
      const double expected = sum.log_probability(logits[i]), gap = sum.largest - logits[i];
      if (gap > 40) {
        EXPECT_NEAR(log_p[i], -sum.log_sum - 40, 1e-4);
      } else {
        // Half a step, whose length grows with the distance from the top.
        EXPECT_NEAR(log_p[i], expected, std::sqrt(gap * 40) / 65535 + 4e-6) << i;
      }
    }
    EXPECT_LT(math.divergence(log_p, logits, sum), 1e-8);
  }
}

TEST(LogitsFile, RefusesWhatIsDamaged) {
  const Folder folder;
  const std::string path = folder / "logits", bad = folder / "bad";
  write_all(path);
  const std::string good = bytes_of(path);
  const auto expect_refused = [&](const std::string& bytes, const std::string& says) {
    put(bad, bytes);
    const auto opened = LogitsReader::open(bad);
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.status().message().find(says), std::string::npos) << opened.status().message();
  };
  expect_refused("", "no file of saved logits");
  expect_refused(std::string(300, 'x'), "no file of saved logits");
  expect_refused(good.substr(0, good.size() - 1), "save the logits again");
  expect_refused(good + "x", "save the logits again");
  for (const std::size_t at : {8u, 17u, 40u, 60u, 100u, 255u}) {
    std::string changed = good;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    expect_refused(changed, "header is damaged");
  }
  std::string later = good;
  later[7] = '2';
  expect_refused(later, "another version");
  EXPECT_EQ(LogitsReader::open(folder / "absent").status().code(), Code::not_found);

  std::string changed = good;
  changed[256 + shape().row_bytes() * 2 + 100] ^= 1;
  put(bad, changed);
  auto reader = LogitsReader::open(bad);
  ASSERT_TRUE(reader.ok());
  std::vector<float> log_p(kVocab);
  float right = 0;
  EXPECT_TRUE(reader->read(1, log_p, right).ok());
  EXPECT_EQ(reader->read(2, log_p, right).code(), Code::corrupt);
  EXPECT_FALSE(reader->read(kRows, log_p, right).ok());
}

TEST(LogitsFile, NamesWhatDiffers) {
  const Folder folder;
  const std::string path = folder / "logits";
  write_all(path);
  const auto reader = LogitsReader::open(path);
  ASSERT_TRUE(reader.ok());
  const auto expect = [&](const std::function<void(LogitsShape&)>& change, const std::string& says) {
    LogitsShape other = shape();
    change(other);
    const Status status = reader->check_like(other);
    EXPECT_NE(status.message().find(says), std::string::npos) << status.message();
  };
  expect([](LogitsShape& s) { s.vocabulary = 5; }, "another vocabulary");
  expect([](LogitsShape& s) { s.vocabulary_hash = 5; }, "another vocabulary");
  expect([](LogitsShape& s) { s.context = 16; }, "windows of 8 tokens");
  expect([](LogitsShape& s) { s.stride = 3; }, "3 apart");
  expect([](LogitsShape& s) { s.windows = 1; }, "2 windows");
  expect([](LogitsShape& s) { s.tokens_hash = 9; }, "another text");
}

TEST(LogitsFile, LeavesNothingHalf) {
  const Folder folder;
  const std::string path = folder / "logits";
  put(path, "what was there");
  {
    auto writer = LogitsWriter::create(path, shape());
    ASSERT_TRUE(writer.ok());
    EXPECT_EQ(writer->finish().code(), Code::invalid_argument);
  }
  EXPECT_FALSE(std::filesystem::exists(path + ".partial"));
  EXPECT_EQ(bytes_of(path), "what was there");
  LogitsShape none = shape();
  none.rows = none.windows = 0;
  EXPECT_FALSE(LogitsWriter::create(path, none).ok());
}

}  // namespace
}  // namespace millrace::measure
