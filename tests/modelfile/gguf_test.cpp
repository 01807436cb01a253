#include "modelfile/gguf.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "modelfile/raw_gguf.h"

namespace millrace::modelfile {
namespace {

const std::string kDraft = MILLRACE_TEST_DATA "/demo-draft-f16.gguf";

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A folder of this test's own, gone afterwards.
class GgufFiles : public ::testing::Test {
 protected:
  GgufFiles() {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("millrace_gguf_{}", ::getpid());
    std::filesystem::create_directories(folder_);
  }
  ~GgufFiles() override { std::filesystem::remove_all(folder_); }
  std::string file(const std::string& name, const std::string& bytes) const {
    const std::string path = (folder_ / name).string();
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::filesystem::path folder_;
};

void expect_error(const Expected<Model>& model, Code code, std::string_view part) {
  ASSERT_FALSE(model.ok());
  const Status status = model.status();
  EXPECT_EQ(code_name(status.code()), code_name(code)) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message() << "\nlacks: " << part;
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  EXPECT_LT(status.message().size(), 600u);
}

TEST(Gguf, ReadsEveryField) {
  const std::string bytes = small_file().bytes();
  const auto model = Model::parse(as_span(bytes), "m.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->version(), 3u);
  EXPECT_EQ(model->file_bytes(), bytes.size());
  EXPECT_EQ(model->metadata().size(), 6u);
  EXPECT_EQ(model->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(model->get_strings("words").value(), (std::vector<std::string>{"a", "", "\xC3\xA9t\xC3\xA9"}));
  const auto& nested = std::get<std::shared_ptr<const Array>>(model->metadata().at("nested"));
  const auto& inner = std::get<std::vector<std::shared_ptr<const Array>>>(nested->elements);
  EXPECT_EQ(std::get<std::vector<std::int32_t>>(inner.at(0)->elements), (std::vector<std::int32_t>{-1, 7}));
  EXPECT_EQ(std::get<std::vector<std::uint8_t>>(inner.at(1)->elements), (std::vector<std::uint8_t>{255}));

  ASSERT_EQ(model->tensors().size(), 2u);
  const TensorInfo* b = model->find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::q4_0);
  EXPECT_EQ(b->bytes, 18u);
  EXPECT_EQ(b->offset, bytes.size() - 18);
  const TensorInfo* a = model->find("a");
  EXPECT_EQ(a->cols(), 4);
  EXPECT_EQ(a->rows(), 2);
  EXPECT_EQ(a->bytes, 32u);
  EXPECT_EQ(model->tensor_bytes(), 50u);
  EXPECT_EQ(model->find("c"), nullptr);
  EXPECT_EQ(model->require("c").status().code(), Code::not_found);
  EXPECT_NE(model->require("c").status().message().find("'c'"), std::string::npos);
}

TEST(Gguf, ReadsVersion2) {
  std::string bytes = small_file().bytes();
  bytes[4] = 2;
  const auto model = Model::parse(as_span(bytes), "m");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->version(), 2u);
}

TEST(Gguf, HonoursAlignment) {
  Raw raw;
  raw.head(2, 1).u32_pair("general.alignment", 128).tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 128).pad(128).zeros(132);
  const auto model = Model::parse(as_span(raw.bytes()), "m");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->find("a")->offset % 128, 0u);
  EXPECT_EQ(model->find("b")->offset, model->find("a")->offset + 128);
}

TEST(Gguf, NeedsNoDataForAVocabulary) {
  const Raw raw = Raw().head(0, 1).text_pair("general.architecture", "llama");
  const auto model = Model::parse(as_span(raw.bytes()), "m");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE(model->tensors().empty());
}

TEST(Gguf, ConvertsNumbersThatFitAndNamesWhatDoesNot) {
  Raw raw;
  raw.head(0, 9).string("i8").u32(1).number<std::int8_t>(-5).string("u16").u32(2).number<std::uint16_t>(65535);
  raw.string("u64").u32(10).u64(1ull << 63).string("f64").u32(12).number(0.25).string("whole").u32(4).u32(10000);
  raw.string("flag").u32(7).number<std::uint8_t>(0).string("text").u32(8).string("x");
  raw.string("floats").u32(9).u32(6).u64(2).number(1.5f).number(-2.0f).string("bytes").u32(9).u32(0).u64(1).plain(
      "\x07");
  const auto model = Model::parse(as_span(raw.bytes()), "m.gguf");
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->get_int("i8").value(), -5);
  EXPECT_EQ(model->get_int("u16").value(), 65535);
  EXPECT_EQ(model->get_float("f64").value(), 0.25);
  EXPECT_EQ(model->get_float("whole").value(), 10000);
  EXPECT_FALSE(model->get_bool("flag").value());
  EXPECT_EQ(model->get_floats("floats").value(), (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(model->get_ints("bytes").value(), (std::vector<std::int64_t>{7}));

  const auto wrong = [](const auto& result, Code code, std::string_view part) {
    EXPECT_EQ(result.status().code(), code);
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  };
  wrong(model->get_int("u64"), Code::corrupt, "'u64'");
  wrong(model->get_int("f64"), Code::corrupt, "is a float where an integer is expected");
  wrong(model->get_int("flag"), Code::corrupt, "a boolean");
  wrong(model->get_bool("i8"), Code::corrupt, "an integer where a boolean");
  wrong(model->get_string("floats"), Code::corrupt, "an array where a string");
  wrong(model->get_strings("floats"), Code::corrupt, "'floats'");
  wrong(model->get_floats("bytes"), Code::corrupt, "'bytes'");
  wrong(model->get_ints("floats"), Code::corrupt, "'floats'");
  wrong(model->get_float("text"), Code::corrupt, "a string where a float");
  wrong(model->get_int("absent"), Code::not_found, "'absent'");
  EXPECT_EQ(model->get_int_or("absent", 7).value(), 7);
  EXPECT_EQ(model->get_float_or("absent", 0.5).value(), 0.5);
  EXPECT_TRUE(model->get_bool_or("absent", true).value());
  EXPECT_FALSE(model->get_int_or("text", 7).ok());
}

struct BadInput {
  std::string_view name;
  std::string bytes;
  Code code;
  std::string_view part;
};

/// A file with one tensor entry and 64 bytes of data.
std::string with_tensor(const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
  return Raw().head(1, 0).tensor("w\x1b[31m", dims, type, offset).pad().zeros(64).bytes();
}

/// A file with one metadata pair, whose type and value follow the key.
std::string with_value(const Raw& value) { return Raw().head(0, 1).string("key").plain(value.bytes()).bytes(); }

std::vector<BadInput> bad_inputs() {
  const std::uint64_t huge = 1ull << 63;
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += Raw().u32(9).u64(1).bytes();
  return {
      {"empty", "", Code::corrupt, "empty"},
      {"one byte", "G", Code::corrupt, "ends after 1 bytes"},
      {"other bytes", "xyz", Code::corrupt, "not a GGUF"},
      {"web page", "<!DOCTYPE html>", Code::corrupt, "web page"},
      {"lfs pointer", "version https://git-lfs.github.com/spec/v1", Code::corrupt, "LFS"},
      {"zip", std::string("PK\3\4") + std::string(60, 'x'), Code::corrupt, "not a GGUF"},
      {"version 1", Raw().head(0, 0, 1).bytes(), Code::unsupported, "version 1"},
      {"version 4", Raw().head(0, 0, 4).bytes(), Code::unsupported, "version 4"},
      {"version 0", Raw().head(0, 0, 0).bytes(), Code::unsupported, "version 0"},
      {"big-endian", Raw().head(0, 0, 0x03000000).bytes(), Code::unsupported, "big-endian"},
      {"absurd tensors", Raw().head(huge, 0).bytes(), Code::corrupt, "9223372036854775808 tensors"},
      {"absurd keys", Raw().head(0, ~0ull).bytes(), Code::corrupt, "metadata keys"},
      {"key of 2^63", Raw().head(0, 1).u64(huge).zeros(40).bytes(), Code::corrupt, "metadata key 0"},
      {"empty key", Raw().head(0, 1).text_pair("", "x").bytes(), Code::corrupt, "key 0 is empty"},
      {"string of 2^63", with_value(Raw().u32(8).u64(huge).zeros(9)), Code::corrupt, "'key'"},
      {"string past the end", with_value(Raw().u32(8).u64(10).zeros(9)), Code::corrupt, "needs 10 bytes, but 9 remain"},
      {"value type 13", with_value(Raw().u32(13).zeros(9)), Code::corrupt, "value type 13"},
      {"element type 13", with_value(Raw().u32(9).u32(13).u64(1).zeros(9)), Code::corrupt, "element type 13"},
      {"array of 2^63", with_value(Raw().u32(9).u32(10).u64(huge).zeros(9)), Code::corrupt, "elements of"},
      {"array of 2^61 u64", with_value(Raw().u32(9).u32(10).u64(1ull << 61).zeros(9)), Code::corrupt, "elements of"},
      {"array past the end", with_value(Raw().u32(9).u32(4).u64(3).zeros(11)), Code::corrupt, "3 elements"},
      {"strings past the end", with_value(Raw().u32(9).u32(8).u64(1).u64(99)), Code::corrupt, "needs 99"},
      {"deep arrays", with_value(Raw().u32(9).plain(deep)), Code::unsupported, "nests"},
      {"boolean 2", with_value(Raw().u32(7).plain("\2")), Code::corrupt, "boolean with the value 2"},
      {"booleans 3", with_value(Raw().u32(9).u32(7).u64(2).plain("\1\3")), Code::corrupt, "boolean with the value 3"},
      {"key twice", Raw().head(0, 2).u32_pair("key", 1).u32_pair("key", 1).bytes(), Code::corrupt,
       "'key' occurs twice"},
      {"alignment 0", Raw().head(0, 1).u32_pair("general.alignment", 0).bytes(), Code::corrupt, "general.alignment"},
      {"alignment 12", Raw().head(0, 1).u32_pair("general.alignment", 12).bytes(), Code::corrupt, "general.alignment"},
      {"alignment a word", Raw().head(0, 1).text_pair("general.alignment", "x").bytes(), Code::corrupt,
       "a string where"},
      {"no dimensions", with_tensor({}, 0, 0), Code::corrupt, "0 dimensions"},
      {"5 dimensions", with_tensor({1, 1, 1, 1, 1}, 0, 0), Code::corrupt, "5 dimensions"},
      {"zero dimension", with_tensor({4, 0}, 0, 0), Code::corrupt, "dimension 1 is 0"},
      {"dimension 2^63", with_tensor({huge}, 0, 0), Code::corrupt, "impossibly large"},
      {"product 2^64", with_tensor({1ull << 32, 1ull << 32}, 0, 0), Code::corrupt, "impossibly large"},
      {"bytes 2^64", with_tensor({1ull << 62}, 0, 0), Code::corrupt, "impossibly large"},
      {"type 15", with_tensor({256}, 15, 0), Code::unsupported, "type 15 (Q8_K)"},
      {"type 999 names the tensor", with_tensor({256}, 999, 0), Code::unsupported, "'w\\x1b[31m' is of type 999"},
      {"half a block", with_tensor({48}, 2, 0), Code::corrupt, "Q4_0's block of 32"},
      {"odd offset", with_tensor({4}, 0, 8), Code::corrupt, "alignment 32"},
      {"offset near 2^64", with_tensor({4}, 0, ~0ull - 31), Code::corrupt, "impossibly large"},
      {"past the end", with_tensor({4}, 0, 64), Code::corrupt, "the data ends 16 bytes early"},
      {"larger than the file", with_tensor({17}, 0, 0), Code::corrupt, "4 bytes early"},
      {"overlap", Raw().head(2, 0).tensor("a", {9}, 0, 0).tensor("b", {4}, 0, 32).pad().zeros(64).bytes(),
       Code::corrupt, "'a' and 'b' overlap"},
      {"same place", Raw().head(2, 0).tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 0).pad().zeros(64).bytes(),
       Code::corrupt, "overlap"},
      {"tensor twice", Raw().head(2, 0).tensor("a", {1}, 0, 0).tensor("a", {1}, 0, 32).pad().zeros(64).bytes(),
       Code::corrupt, "'a' occurs twice"},
      {"tensor without name", Raw().head(1, 0).tensor("", {1}, 0, 0).pad().zeros(64).bytes(), Code::corrupt,
       "tensor 0"},
  };
}

TEST(Gguf, NamesWhatIsWrong) {
  for (const BadInput& bad : bad_inputs()) {
    SCOPED_TRACE(bad.name);
    const auto model = Model::parse(as_span(bad.bytes), "bad.gguf");
    expect_error(model, bad.code, bad.part);
    expect_error(model, bad.code, "bad.gguf: ");
  }
}

TEST_F(GgufFiles, NamesWhatIsWrongOnDiskToo) {
  for (const BadInput& bad : bad_inputs()) {
    SCOPED_TRACE(bad.name);
    expect_error(Model::open(file("bad.gguf", bad.bytes)), bad.code, bad.part);
  }
}

TEST(Gguf, RefusesEveryTruncation) {
  const std::string whole = small_file().bytes();
  ASSERT_TRUE(Model::parse(as_span(whole), "m").ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::string cut = whole.substr(0, size);
    SCOPED_TRACE(size);
    expect_error(Model::parse(as_span(cut), "cut.gguf"), Code::corrupt, "cut.gguf: ");
  }
}

TEST(Gguf, SaysHowMuchOfADownloadIsMissing) {
  const std::string whole = slurp(kDraft);
  ASSERT_GT(whole.size(), 1'000'000u);
  const std::string cut = whole.substr(0, 1'000'000);
  const auto model = Model::parse(as_span(cut), "draft.gguf");
  expect_error(model, Code::corrupt, fmt::format("the data ends {} bytes early", whole.size() - cut.size()));
  expect_error(model, Code::corrupt, "from 'blk.0.ffn_down.weight' on");
  expect_error(model, Code::corrupt, "download is likely incomplete");
}

TEST(Gguf, SurvivesAnyByte) {
  const std::string whole = small_file().bytes();
  std::mt19937 random(1);
  int accepted = 0, refused = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = whole;
    for (unsigned flips = random() % 4 + 1; flips > 0; --flips) {
      // Interesting values beside random ones: they sit at the edges of the checks.
      constexpr unsigned char edges[] = {0x00, 0x01, 0x7F, 0x80, 0xFF};
      const unsigned draw = random();
      bytes[draw % bytes.size()] = static_cast<char>((draw & 1) != 0 ? edges[random() % 5] : random());
    }
    const auto model = Model::parse(as_span(bytes), "m");
    ++(model.ok() ? accepted : refused);
    if (!model.ok()) continue;
    for (const TensorInfo& tensor : model->tensors()) {
      ASSERT_LE(tensor.offset, bytes.size());
      ASSERT_LE(tensor.bytes, bytes.size() - tensor.offset);
      ASSERT_EQ(tensor.bytes, static_cast<std::uint64_t>(tensor.rows() * row_bytes(tensor.dtype, tensor.cols())));
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

TEST_F(GgufFiles, ReadsARealModelFromDiskAsFromMemory) {
  const auto model = Model::open(kDraft);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->paths(), std::vector<std::string>{kDraft});
  EXPECT_EQ(model->get_string("general.architecture").value(), "llama");
  EXPECT_EQ(model->get_strings("tokenizer.ggml.tokens").value().size(), 2263u);
  EXPECT_EQ(model->require("token_embd.weight").value()->shape, (std::vector<std::int64_t>{128, 2263}));
  const TensorInfo& last = model->tensors().back();
  EXPECT_EQ(last.offset + last.bytes, model->file_bytes());

  const std::string bytes = slurp(kDraft);
  const auto parsed = Model::parse(as_span(bytes), kDraft);
  ASSERT_TRUE(parsed.ok());
  ASSERT_EQ(parsed->tensors().size(), model->tensors().size());
  for (std::size_t i = 0; i < parsed->tensors().size(); ++i) {
    EXPECT_EQ(parsed->tensors()[i].offset, model->tensors()[i].offset);
  }
  EXPECT_EQ(parsed->get_strings("tokenizer.ggml.merges").value(), model->get_strings("tokenizer.ggml.merges").value());
}

TEST(Gguf, LeavesTheVocabularyOutWhenAsked) {
  const auto whole = Model::open(kDraft);
  const auto model = Model::open(kDraft, {.skip_vocabulary = true});
  ASSERT_TRUE(whole.ok() && model.ok());
  for (const char* key : {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"}) {
    EXPECT_TRUE(whole->has(key)) << key;
    EXPECT_FALSE(model->has(key)) << key;
  }
  EXPECT_EQ(model->metadata().size() + 3, whole->metadata().size());
  EXPECT_EQ(model->tensors().back().offset, whole->tensors().back().offset);
}

TEST_F(GgufFiles, RefusesWhatIsNoFile) {
  expect_error(Model::open((folder_ / "nowhere.gguf").string()), Code::not_found, "nowhere.gguf: no such file");
  expect_error(Model::open(folder_.string()), Code::invalid_argument, "is a directory");
  expect_error(Model::open("/dev/null"), Code::invalid_argument, "not a regular file");
  const std::string path = file("secret.gguf", small_file().bytes());
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (!std::ifstream(path))
    expect_error(Model::open(path), Code::io_error, "permissions");  // else it is the administrator
  std::filesystem::permissions(path,
                               std::filesystem::perms::owner_all);  // Windows removes no file that may not be written
}

/// Split `number` (from 1) of `count`, with one tensor called `tensor`.
std::string split(std::uint16_t number, std::uint16_t count, std::string_view tensor, std::int32_t total) {
  Raw raw;
  raw.head(1, 3).string("split.no").u32(2).number<std::uint16_t>(static_cast<std::uint16_t>(number - 1));
  raw.string("split.count").u32(2).number(count).string("split.tensors.count").u32(5).number(total);
  return raw.tensor(tensor, {8}, 0, 0).pad().zeros(32).bytes();
}

TEST_F(GgufFiles, SplitsMayLieInSeveralFoldersWithLinksInOne) {
  const std::string second = file("elsewhere.gguf", split(2, 2, "b", 2));
  const std::string first = file("l-00001-of-00002.gguf", split(1, 2, "a", 2));
  const auto folder = std::filesystem::path(first).parent_path();
  std::filesystem::create_directory(folder / "another disk");
  std::filesystem::rename(second, folder / "another disk" / "any name");
  std::filesystem::create_symlink(folder / "another disk" / "any name", folder / "l-00002-of-00002.gguf");
  const auto model = Model::open(first);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->find("b")->file, 1);
}

TEST_F(GgufFiles, OpensAllSplitsFromAnyOfThem) {
  std::vector<std::string> paths;
  for (const auto& [i, tensor] : {std::pair{1, "a"}, {2, "b"}, {3, "c"}}) {
    paths.push_back(file(fmt::format("m-{:05}-of-00003.gguf", i), split(static_cast<std::uint16_t>(i), 3, tensor, 3)));
  }
  for (const std::string& path : paths) {
    const auto model = Model::open(path);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->paths(), paths);
    ASSERT_EQ(model->tensors().size(), 3u);
    EXPECT_EQ(model->find("c")->file, 2);
    EXPECT_EQ(model->file_bytes(), 3 * std::filesystem::file_size(paths[0]));
  }
}

TEST_F(GgufFiles, NamesAMissingSplit) {
  const std::string first = file("m-00001-of-00003.gguf", split(1, 3, "a", 3));
  file("m-00003-of-00003.gguf", split(3, 3, "c", 3));
  expect_error(Model::open(first), Code::not_found, "m-00002-of-00003.gguf: split 2 of 3 is missing");
  // Without split keys the name alone tells.
  const std::string plain = file("n-00001-of-00002.gguf", small_file().bytes());
  expect_error(Model::open(plain), Code::not_found, "n-00002-of-00002.gguf: split 2 of 2 is missing");
  file("n-00002-of-00002.gguf", small_file().bytes());
  expect_error(Model::open(plain), Code::corrupt, "no split.count");
}

TEST_F(GgufFiles, RefusesSplitsThatDoNotBelongTogether) {
  expect_error(Model::open(file("renamed.gguf", split(1, 2, "a", 2))), Code::not_found, "original name");
  const std::string swapped = file("s-00001-of-00002.gguf", split(2, 2, "a", 2));
  expect_error(Model::open(swapped), Code::corrupt, "its header has split 2 of 2, but its name 1 of 2");
  const std::string twice = file("t-00001-of-00002.gguf", split(1, 2, "a", 2));
  file("t-00002-of-00002.gguf", split(2, 2, "a", 2));
  expect_error(Model::open(twice), Code::corrupt, "'a' occurs in another split");
  const std::string few = file("u-00001-of-00002.gguf", split(1, 2, "a", 3));
  file("u-00002-of-00002.gguf", split(2, 2, "b", 3));
  expect_error(Model::open(few), Code::corrupt, "3 tensors were promised");
  const std::string broken = file("v-00001-of-00002.gguf", split(1, 2, "a", 2));
  file("v-00002-of-00002.gguf", split(2, 2, "b", 2).substr(0, 100));
  expect_error(Model::open(broken), Code::corrupt, "v-00002-of-00002.gguf: ");
}

}  // namespace
}  // namespace millrace::modelfile
