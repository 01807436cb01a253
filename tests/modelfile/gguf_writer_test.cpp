#include "modelfile/gguf_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "file_limit.h"

namespace millrace::modelfile {
namespace {

namespace fs = std::filesystem;

class GgufWriter : public ::testing::Test {
 protected:
  GgufWriter() {
    folder_ = fs::temp_directory_path() / fmt::format("millrace_writer_{}", ::getpid());
    fs::create_directories(folder_);
  }
  ~GgufWriter() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  fs::path folder_;
};

#define ASSERT_OK(expression)                       \
  do {                                              \
    const Status status_ = (expression);            \
    ASSERT_TRUE(status_.ok()) << status_.message(); \
  } while (0)

void expect_write_error(const Status& status, Code code, std::string_view part) {
  EXPECT_EQ(code_name(status.code()), code_name(code)) << status.message();
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

std::vector<std::byte> pattern(std::size_t bytes, unsigned start) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((i * 7 + start) & 0xFF);
  return out;
}

std::vector<std::byte> bytes_of(const Model& model, const TensorInfo& tensor) {
  std::ifstream in(model.paths()[static_cast<std::size_t>(tensor.file)], std::ios::binary);
  in.seekg(static_cast<std::streamoff>(tensor.offset));
  std::vector<std::byte> out(tensor.bytes);
  in.read(reinterpret_cast<char*>(out.data()), static_cast<std::streamsize>(out.size()));
  EXPECT_TRUE(in.good());
  return out;
}

void expect_equal(const Value& a, const Value& b);

void expect_equal(const Array& a, const Array& b) {
  ASSERT_EQ(a.elements.index(), b.elements.index());
  ASSERT_EQ(a.size(), b.size());
  using Nested = std::vector<std::shared_ptr<const Array>>;
  if (const auto* nested = std::get_if<Nested>(&a.elements)) {
    for (std::size_t i = 0; i < nested->size(); ++i) expect_equal(*(*nested)[i], *std::get<Nested>(b.elements)[i]);
  } else {
    EXPECT_TRUE(a.elements == b.elements);
  }
}

void expect_equal(const Value& a, const Value& b) {
  ASSERT_EQ(a.index(), b.index());
  using Held = std::shared_ptr<const Array>;
  if (const auto* array = std::get_if<Held>(&a)) return expect_equal(**array, *std::get<Held>(b));
  EXPECT_TRUE(a == b);
}

template <typename T>
Value limits() {
  return Value(std::numeric_limits<T>::lowest());
}

TEST_F(GgufWriter, BringsEveryTypeBack) {
  const auto inner = std::get<std::shared_ptr<const Array>>(array_value(std::vector<std::string>{"x", "", "\n"}));
  const std::vector<std::pair<std::string, Value>> pairs = {
      {"u8", Value(std::uint8_t{200})},
      {"i8", limits<std::int8_t>()},
      {"u16", Value(std::uint16_t{65535})},
      {"i16", limits<std::int16_t>()},
      {"u32", Value(0xFFFFFFFFu)},
      {"i32", limits<std::int32_t>()},
      {"f32", Value(1.1754944e-38f)},
      {"yes", Value(true)},
      {"no", Value(false)},
      {"text", Value(std::string("a\0b", 3))},
      {"u64", Value(~std::uint64_t{0})},
      {"i64", limits<std::int64_t>()},
      {"f64", Value(0.1)},
      {"u8s", array_value(std::vector<std::uint8_t>{0, 255})},
      {"i8s", array_value(std::vector<std::int8_t>{-128, 127})},
      {"u16s", array_value(std::vector<std::uint16_t>{1, 65535})},
      {"i16s", array_value(std::vector<std::int16_t>{-32768})},
      {"u32s", array_value(std::vector<std::uint32_t>{7})},
      {"i32s", array_value(std::vector<std::int32_t>{-7, 7})},
      {"f32s", array_value(std::vector<float>{0.5f, -0.0f})},
      {"bools", array_value(std::vector<bool>{true, false, true})},
      {"strings", array_value(std::vector<std::string>{"", "\xE2\x96\x81the"})},
      {"u64s", array_value(std::vector<std::uint64_t>{~0ull})},
      {"i64s", array_value(std::vector<std::int64_t>{-1})},
      {"f64s", array_value(std::vector<double>{1e300})},
      {"empty", array_value(std::vector<float>{})},
      {"nested", array_value(std::vector<std::shared_ptr<const Array>>{inner, inner})},
  };
  Writer writer(path("types.gguf"));
  for (const auto& [key, value] : pairs) ASSERT_OK(writer.add(key, value));
  ASSERT_OK(writer.begin());
  ASSERT_OK(writer.finish());
  const auto model = Model::open(path("types.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->metadata().size(), pairs.size());
  for (const auto& [key, value] : pairs) {
    SCOPED_TRACE(key);
    const auto found = model->metadata().find(key);
    ASSERT_NE(found, model->metadata().end());
    expect_equal(found->second, value);
  }
}

TEST_F(GgufWriter, StreamsTensorsInPiecesOfAnySize) {
  for (const std::size_t piece : {1u, 5u, 4096u, 3u << 20}) {
    SCOPED_TRACE(piece);
    const auto a = pattern(4 * 3, 1), b = pattern(18 * 5, 2), c = pattern(2u << 20, 3);
    std::vector<std::byte> all;
    for (const auto& part : {a, b, c}) all.insert(all.end(), part.begin(), part.end());
    if (piece < 10) all.resize(a.size() + b.size());
    Writer writer(path("s.gguf"), {.alignment = 64});
    ASSERT_OK(writer.declare("a", DType::f32, {3}));
    ASSERT_OK(writer.declare("b", DType::q4_0, {32, 5}));
    if (piece >= 10) ASSERT_OK(writer.declare("c", DType::f16, {1024, 1024}));
    ASSERT_OK(writer.begin());
    for (std::size_t at = 0; at < all.size(); at += piece) {
      ASSERT_OK(writer.write_tensor_data(std::span(all).subspan(at, std::min(piece, all.size() - at))));
    }
    EXPECT_EQ(fs::exists(path("s.gguf")), piece > 1);  // the first round's file appears with its finish()
    ASSERT_OK(writer.finish());
    const auto model = Model::open(path("s.gguf"));
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->get_int("general.alignment").value(), 64);
    EXPECT_EQ(bytes_of(*model, *model->find("a")), a);
    EXPECT_EQ(bytes_of(*model, *model->find("b")), b);
    if (piece >= 10) {
      EXPECT_EQ(bytes_of(*model, *model->find("c")), c);
    }
    EXPECT_EQ(model->find("b")->offset % 64, 0u);
  }
  EXPECT_EQ(files(), 1u);
}

TEST_F(GgufWriter, WritesRangesDirectly) {
  Writer writer(path("r.gguf"), {.alignment = 4096, .direct = true});
  ASSERT_OK(writer.declare("a", DType::f32, {4096}));
  ASSERT_OK(writer.declare("b", DType::f32, {3}));
  ASSERT_OK(writer.begin());
  const TensorInfo a = writer.layout()[0], b = writer.layout()[1];
  EXPECT_EQ(a.offset, writer.data_begin()[0]);
  alignas(4096) static std::byte page[16384];
  const auto bytes = pattern(sizeof page, 9);
  std::copy(bytes.begin(), bytes.end(), page);
  ASSERT_OK(writer.write_range(0, a.offset, page));
  ASSERT_OK(writer.write_range(0, b.offset, std::span(page).first(12)));
  expect_write_error(writer.write_range(0, 0, page), Code::invalid_argument, "outside");
  expect_write_error(writer.write_range(1, a.offset, page), Code::invalid_argument, "outside");
  expect_write_error(writer.write_range(0, writer.file_bytes()[0], page), Code::invalid_argument, "outside");
  ASSERT_OK(writer.finish());
  const auto model = Model::open(path("r.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(bytes_of(*model, *model->find("a")), bytes);
  EXPECT_EQ(bytes_of(*model, *model->find("b")), pattern(12, 9));
}

TEST_F(GgufWriter, SplitsBetweenTensors) {
  const WriteOptions options{.max_file_bytes = 3000};
  Writer writer(path("m.gguf"), options);
  ASSERT_OK(writer.add("general.architecture", Value(std::string("llama"))));
  std::vector<std::byte> all;
  for (int i = 0; i < 5; ++i) {
    ASSERT_OK(writer.declare(fmt::format("t{}", i), DType::f32, {250}));
    const auto bytes = pattern(1000, static_cast<unsigned>(i));
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  ASSERT_OK(writer.declare("large", DType::f32, {2000}));
  all.resize(5000 + 8000);
  ASSERT_OK(writer.begin());
  ASSERT_OK(writer.write_tensor_data(all));
  ASSERT_OK(writer.finish());
  ASSERT_EQ(writer.paths().size(), 4u);  // 2 + 2 + 1 + the large one alone
  EXPECT_EQ(writer.paths()[1], path("m-00002-of-00004.gguf"));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_LE(fs::file_size(writer.paths()[i]), 3000u);

  const auto model = Model::open(writer.paths()[2]);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->paths(), writer.paths());
  EXPECT_EQ(model->get_string("general.architecture").value(), "llama");
  for (int i = 0; i < 5; ++i) {
    const TensorInfo* tensor = model->find(fmt::format("t{}", i));
    ASSERT_NE(tensor, nullptr);
    EXPECT_EQ(tensor->file, i / 2);
    EXPECT_EQ(bytes_of(*model, *tensor), pattern(1000, static_cast<unsigned>(i)));
  }
  EXPECT_EQ(files(), 4u);
  // A model's metadata can be copied key by key: split keys and alignment are the writer's own.
  Writer copy(path("copy.gguf"));
  for (const auto& [key, value] : model->metadata()) ASSERT_OK(copy.add(key, value));
  ASSERT_OK(copy.begin());
  ASSERT_OK(copy.finish());
  const auto again = Model::open(path("copy.gguf"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->metadata().size(), 1u);
}

TEST_F(GgufWriter, KeepsTheOldFileUntilTheNewIsWhole) {
  std::ofstream(path("old.gguf")) << "old";
  {
    Writer writer(path("old.gguf"));
    ASSERT_OK(writer.declare("a", DType::f32, {2}));
    ASSERT_OK(writer.begin());
    ASSERT_OK(writer.write_tensor_data(pattern(4, 0)));
    expect_write_error(writer.finish(), Code::invalid_argument, "'a' lacks 4 of its 8 bytes");
    EXPECT_EQ(fs::file_size(path("old.gguf")), 3u);
    Writer second(path("old.gguf"));
    expect_write_error(second.begin(), Code::io_error, "another process");
  }
  EXPECT_EQ(files(), 1u);  // the partial file is gone
}

TEST_F(GgufWriter, RefusesWhatCannotBeWritten) {
  Writer writer(path("x.gguf"));
  ASSERT_OK(writer.add("key", Value(1u)));
  expect_write_error(writer.add("key", Value(1u)), Code::invalid_argument, "'key' is given twice");
  expect_write_error(writer.add("", Value(1u)), Code::invalid_argument, "bytes");
  expect_write_error(writer.add("null", Value(std::shared_ptr<const Array>())), Code::invalid_argument, "no array");
  ASSERT_OK(writer.declare("a", DType::f32, {1}));
  expect_write_error(writer.declare("a", DType::f32, {1}), Code::invalid_argument, "'a' is declared twice");
  expect_write_error(writer.declare("b", DType::f32, {}), Code::invalid_argument, "1 to 4");
  expect_write_error(writer.declare("b", DType::f32, {1, 1, 1, 1, 1}), Code::invalid_argument, "1 to 4");
  expect_write_error(writer.declare("b", DType::f32, {4, -1}), Code::invalid_argument, "below 1");
  expect_write_error(writer.declare("b", DType::q4_k, {320}), Code::invalid_argument, "Q4_K's 256");
  expect_write_error(writer.declare("b", DType::f32, {1ll << 40, 1ll << 40}), Code::invalid_argument, "large");
  expect_write_error(writer.write_tensor_data(pattern(4, 0)), Code::invalid_argument, "begin()");
  ASSERT_OK(writer.begin());
  expect_write_error(writer.add("late", Value(1u)), Code::invalid_argument, "after begin()");
  expect_write_error(writer.begin(), Code::invalid_argument, "twice");
  expect_write_error(writer.write_tensor_data(pattern(5, 0)), Code::invalid_argument, "1 bytes more");
  Writer odd(path("y.gguf"), {.alignment = 12});
  expect_write_error(odd.begin(), Code::invalid_argument, "12");
  Writer nowhere(path("no/such/folder.gguf"));
  expect_write_error(nowhere.begin(), Code::io_error, "folder.gguf");
  Writer directory(folder_.string());
  expect_write_error(directory.begin(), Code::invalid_argument, "directory");
}

TEST_F(GgufWriter, ReportsADiskThatHasNoRoom) {
  {
    Writer writer(path("huge.gguf"));
    ASSERT_OK(writer.declare("a", DType::f32, {1ll << 30, 1ll << 29}));
    ASSERT_OK(writer.declare("b", DType::f32, {1ll << 30, 1ll << 29}));
    expect_write_error(writer.begin(), Code::io_error, "huge.gguf");
  }
  EXPECT_EQ(files(), 0u);
  if (!millrace::test::FileLimit::works) return;
  {
    const millrace::test::FileLimit limit(64 * 1024);
    Writer writer(path("full.gguf"));
    EXPECT_TRUE(writer.declare("a", DType::f32, {1 << 16}).ok());
    expect_write_error(writer.begin(), Code::io_error, "full.gguf");
  }
  EXPECT_EQ(files(), 0u);
}

}  // namespace
}  // namespace millrace::modelfile
