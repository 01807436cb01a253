#include "modelfile/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "modelfile/safetensors_header.h"

namespace millrace::modelfile {
namespace {

namespace fs = std::filesystem;

std::string packed(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, '\1');
}

Expected<Checkpoint> parse(const std::string& file) {
  return Checkpoint::parse(std::as_bytes(std::span(file.data(), file.size())), "test");
}

void expect_refused(const std::string& header, std::size_t data_bytes, const std::string& says) {
  const auto read = parse(packed(header, data_bytes));
  ASSERT_FALSE(read.ok()) << header;
  EXPECT_NE(read.status().message().find(says), std::string::npos) << read.status().message();
  EXPECT_EQ(read.status().message().find('\n'), std::string::npos);
}

TEST(Safetensors, ReadsItsTable) {
  const std::string header =
      R"({"__metadata__": {"format": "pt", "more": "x"}, "b": {"dtype": "F8_E4M3", "shape": [3], "data_offsets": [24, 27]},)"
      R"( "a": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24], "new": {"deep": [[1, {}]]}},)"
      R"( "one": {"dtype": "F32", "shape": [], "data_offsets": [27, 31]}, "none": {"dtype": "I64", "shape": [0, 4], "data_offsets": [0, 0]}})";
  const auto read = parse(packed(header, 31));
  ASSERT_TRUE(read.ok()) << read.status().message();
  ASSERT_EQ(read->tensors().size(), 4U);
  const CheckpointTensor* a = read->find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(a->element, Element::bf16);
  EXPECT_EQ(a->offset, 8 + header.size());
  EXPECT_EQ(read->find("one")->elements(), 1);
  EXPECT_EQ(read->find("none")->elements(), 0);
  EXPECT_EQ(read->find("c"), nullptr);
  EXPECT_EQ(read->tensor_bytes(), 31U);
}

TEST(Safetensors, RefusesWhatLies) {
  const auto tensor = [](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"({"a": {"dtype": ")" + dtype + R"(", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}";
  };
  expect_refused(tensor("F32", "[2]", "[0, 8]"), 7, "truncated");
  expect_refused(tensor("F32", "[2]", "[8, 0]"), 8, "truncated");
  expect_refused(tensor("F32", "[2]", "[0, 4]"), 8, "its shape takes 8");
  expect_refused(tensor("F32", "[4294967296, 4294967296, 4294967296]", "[0, 8]"), 8, "no number holds");
  expect_refused(tensor("F32", "[18446744073709551615]", "[0, 8]"), 8, "no number holds");
  expect_refused(tensor("F32", "[-1]", "[0, 8]"), 8, "negative");
  expect_refused(tensor("F32", "[1.5]", "[0, 8]"), 8, "fraction");
  expect_refused(tensor("F32", "[[2]]", "[0, 8]"), 8, "list");
  expect_refused(tensor("F32", "2", "[0, 8]"), 8, "number");
  expect_refused(tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 8]"), 8, "more than 8");
  expect_refused(tensor("Q9", "[2]", "[0, 8]"), 8, "'Q9'");
  expect_refused(R"({"a": {"shape": [2], "data_offsets": [0, 8]}})", 8, "lacks");
  expect_refused(R"({"a": {"dtype": "F32", "data_offsets": [0, 4]}})", 8, "lacks");
  expect_refused(R"({"a": 1})", 8, "'a'");
  expect_refused("[]", 8, "not a JSON object");
  expect_refused("{\"a\": ", 8, "not JSON");
  expect_refused(
      R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]}})",
      8, "twice");
  expect_refused(
      R"({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "b": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}})",
      8, "overlap");
}

TEST(Safetensors, RefusesHeadersThatCannotBe) {
  for (const std::uint64_t length :
       {std::uint64_t{0}, std::uint64_t{1}, kMostHeaderBytes + 1, UINT64_MAX, std::uint64_t{40}}) {
    std::string file(24, '{');
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_FALSE(parse(file).ok()) << length;
  }
  EXPECT_FALSE(parse("").ok());
  EXPECT_FALSE(parse("short").ok());
}

class SafetensorsFolder : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  static std::string shard(const std::string& tensor) {
    return packed(R"({")" + tensor + R"(": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}})", 2);
  }
  std::string refusal() const {
    const auto read = Checkpoint::open(folder_.string());
    return read.ok() ? "" : read.status().message();
  }
  fs::path folder_ = fs::temp_directory_path() / ("millrace-safetensors-" + std::to_string(::getpid()));
};

TEST_F(SafetensorsFolder, IsOneOfShards) {
  write("x-1.safetensors", shard("a"));
  write("x-2.safetensors", shard("b"));
  write("model.safetensors.index.json",
        R"({"metadata": {"total_size": 4}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}})");
  const auto read = Checkpoint::open(folder_.string());
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->tensors().size(), 2U);
  EXPECT_EQ(read->paths().size(), 2U);
  EXPECT_EQ(read->folder(), folder_);
}

TEST_F(SafetensorsFolder, NamesWhatIsMissingOrWrong) {
  EXPECT_NE(refusal().find("no .safetensors"), std::string::npos);
  write("pytorch_model.bin", "x");
  EXPECT_NE(refusal().find("PyTorch"), std::string::npos);
  write("x-1.safetensors", shard("a"));
  write("model.safetensors.index.json", R"({"weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}})");
  EXPECT_NE(refusal().find("x-2.safetensors: is missing"), std::string::npos) << refusal();
  write("x-2.safetensors", shard("a"));
  EXPECT_NE(refusal().find("'a' is also in another file"), std::string::npos) << refusal();
  write("x-2.safetensors", shard("c"));
  EXPECT_NE(refusal().find("'b' is to be in x-2.safetensors"), std::string::npos) << refusal();
  for (const char* bad : {R"({"weight_map": {"a": "../x"}})", R"({"weight_map": {"a": 1}})", R"({"weight_map": []})",
                          R"({"weight_map": {}})", "{}", "", R"({"weight_map": {"a": {}}})"}) {
    write("model.safetensors.index.json", bad);
    EXPECT_NE(refusal(), "") << bad;
  }
}

}  // namespace
}  // namespace millrace::modelfile
