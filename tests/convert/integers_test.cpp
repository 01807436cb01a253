// Checkpoints of integers: each family's reference file is exported, its matrices are replaced by integers with scales
// as MLX, GPTQ, AWQ and compressed-tensors lay them out, and once more by the floats that the formula gives. Both are
// converted, and give the same weights, whatever the family does with their rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "base/json.h"
#include "convert/convert.h"
#include "convert/export.h"
#include "convert/folder.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "modelfile/safetensors.h"
#include "modelfile/safetensors_writer.h"
#include "tensor/codec.h"

namespace millrace::convert {
namespace {

using modelfile::Checkpoint;
using modelfile::CheckpointTensor;
using modelfile::CheckpointWriter;
using modelfile::Element;
using modelfile::Model;
using nlohmann::json;

constexpr std::int64_t kGroup = 32;

struct Blob {
  std::string name;
  Element element;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

/// Numbers, scales and zeros of a matrix, drawn.
struct Drawn {
  std::int64_t rows = 0, cols = 0;
  std::vector<int> q, zeros;  // [rows, cols], [rows, groups]
  std::vector<float> scales;  // [rows, groups]: of 5 bits, so that float16 holds their products with a zero

  std::int64_t groups = 0;
  float weight(std::int64_t r, std::int64_t c) const {
    const auto g = static_cast<std::size_t>(r * groups + c / (cols / groups));
    return scales[g] * static_cast<float>(q[static_cast<std::size_t>(r * cols + c)] - zeros[g]);
  }
};

Drawn draw(std::mt19937& random, std::int64_t rows, std::int64_t cols, int bits, std::int64_t groups, bool symmetric) {
  Drawn drawn;
  drawn.rows = rows;
  drawn.cols = cols;
  drawn.groups = groups;
  for (std::int64_t i = 0; i < rows * cols; ++i) drawn.q.push_back(static_cast<int>(random() % (1U << bits)));
  for (std::int64_t i = 0; i < rows * groups; ++i) {
    drawn.scales.push_back(std::ldexp(static_cast<float>(16 + random() % 16), -13));
    // GPTQ's first format cannot store a zero of 0 that later readers agree on.
    drawn.zeros.push_back(symmetric ? 1 << (bits - 1) : static_cast<int>(1 + random() % ((1U << bits) - 1)));
  }
  return drawn;
}

/// Words of 32 bits: number(word, i) is the i-th from the low end.
template <typename Number>
std::vector<std::byte> words(std::int64_t count, int bits, const Number& number) {
  std::vector<std::uint32_t> packed;
  for (std::int64_t w = 0; w < count; ++w) {
    std::uint32_t word = 0;
    for (int i = 0; i < 32 / bits; ++i) word |= static_cast<std::uint32_t>(number(w, i)) << (bits * i);
    packed.push_back(word);
  }
  return bytes_of(packed);
}

std::vector<std::byte> halves(const std::vector<float>& floats) {
  std::vector<std::uint16_t> bits;
  for (const float x : floats) bits.push_back(f32_to_f16(x));
  return bytes_of(bits);
}

std::vector<float> turned(const std::vector<float>& matrix, std::int64_t rows, std::int64_t cols) {
  std::vector<float> out;
  for (std::int64_t c = 0; c < cols; ++c)
    for (std::int64_t r = 0; r < rows; ++r) out.push_back(matrix[static_cast<std::size_t>(r * cols + c)]);
  return out;
}

enum class Layout : std::uint8_t {
  mlx4,
  mlx8,
  gptq4,
  gptq4_symmetric,
  gptq8_symmetric,
  awq,
  packed4,
  packed4_zeros,
  int8
};

struct LayoutFacts {
  std::string name, config;
  int bits;
  bool symmetric, one_group, flat;  // flat: matrices alone, not several in one tensor
  DType dtype;
};

const LayoutFacts& facts(Layout layout) {
  static const std::map<Layout, LayoutFacts> all = {
      {Layout::mlx4,
       {"mlx4", R"({"quantization": {"group_size": 32, "bits": 4}})", 4, false, false, false, DType::q4_1}},
      {Layout::mlx8,
       {"mlx8", R"({"quantization": {"group_size": 32, "bits": 8}})", 8, false, false, false, DType::q8_0}},
      {Layout::gptq4,
       {"gptq4", R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": false}})", 4,
        false, false, true, DType::q4_1}},
      {Layout::gptq4_symmetric,
       {"gptq4_symmetric",
        R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true}})", 4, true,
        false, true, DType::q4_0}},
      {Layout::gptq8_symmetric,
       {"gptq8_symmetric",
        R"({"quantization_config": {"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq_v2"}})", 8, true,
        false, true, DType::q8_0}},
      {Layout::awq,
       {"awq", R"({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemm"}})", 4, false, false,
        true, DType::q4_1}},
      {Layout::packed4,
       {"packed4", R"({"quantization_config": {"quant_method": "compressed-tensors"}})", 4, true, false, true,
        DType::q4_0}},
      {Layout::packed4_zeros,
       {"packed4_zeros", R"({"quantization_config": {"quant_method": "compressed-tensors"}})", 4, false, false, true,
        DType::q4_1}},
      {Layout::int8,
       {"int8", R"({"quantization_config": {"quant_method": "compressed-tensors"}})", 8, true, true, true,
        DType::q8_0}},
  };
  return all.at(layout);
}

/// The tensors that a matrix is stored as. `shape`: of the matrix, perhaps with others in front.
std::vector<Blob> store(Layout layout, const std::string& name, const std::vector<std::int64_t>& shape,
                        const Drawn& m) {
  const std::string stem = name.substr(0, name.size() - std::string(".weight").size());
  const int bits = facts(layout).bits;
  const std::int64_t n = 32 / bits, rows = m.rows, cols = m.cols, groups = m.groups;
  const auto q = [&](std::int64_t r, std::int64_t c) { return m.q[static_cast<std::size_t>(r * cols + c)]; };
  const auto zero = [&](std::int64_t r, std::int64_t g) { return m.zeros[static_cast<std::size_t>(r * groups + g)]; };
  const auto by_row = [&](std::int64_t w, int i) { return q(w / (cols / n), w % (cols / n) * n + i); };
  std::vector<std::int64_t> in_words = shape, of_groups = shape;
  in_words.back() = cols / n;
  of_groups.back() = groups;
  switch (layout) {
    case Layout::mlx4:
    case Layout::mlx8: {
      std::vector<float> biases;
      for (std::size_t i = 0; i < m.scales.size(); ++i) biases.push_back(-m.scales[i] * static_cast<float>(m.zeros[i]));
      return {{name, Element::u32, in_words, words(rows * cols / n, bits, by_row)},
              {stem + ".scales", Element::f16, of_groups, halves(m.scales)},
              {stem + ".biases", Element::f16, of_groups, halves(biases)}};
    }
    case Layout::gptq4:
    case Layout::gptq4_symmetric:
    case Layout::gptq8_symmetric: {
      const int less = layout == Layout::gptq8_symmetric ? 0 : 1;
      std::vector<std::int32_t> g_idx;
      for (std::int64_t c = 0; c < cols; ++c) g_idx.push_back(static_cast<std::int32_t>(c / (cols / groups)));
      const auto by_col = [&](std::int64_t w, int i) { return q(w % rows, w / rows * n + i); };
      const auto zeros = [&](std::int64_t w, int i) { return zero(w % (rows / n) * n + i, w / (rows / n)) - less; };
      return {{stem + ".qweight", Element::i32, {cols / n, rows}, words(rows * cols / n, bits, by_col)},
              {stem + ".qzeros", Element::i32, {groups, rows / n}, words(groups * rows / n, bits, zeros)},
              {stem + ".scales", Element::f16, {groups, rows}, halves(turned(m.scales, rows, groups))},
              {stem + ".g_idx", Element::i32, {cols}, bytes_of(g_idx)}};
    }
    case Layout::awq: {
      constexpr int kOrder[] = {0, 2, 4, 6, 1, 3, 5, 7};
      const auto numbers = [&](std::int64_t w, int i) { return q(w % (rows / 8) * 8 + kOrder[i], w / (rows / 8)); };
      const auto zeros = [&](std::int64_t w, int i) { return zero(w % (rows / 8) * 8 + kOrder[i], w / (rows / 8)); };
      return {{stem + ".qweight", Element::i32, {cols, rows / 8}, words(rows * cols / 8, 4, numbers)},
              {stem + ".qzeros", Element::i32, {groups, rows / 8}, words(groups * rows / 8, 4, zeros)},
              {stem + ".scales", Element::f16, {groups, rows}, halves(turned(m.scales, rows, groups))}};
    }
    case Layout::packed4:
    case Layout::packed4_zeros: {
      std::vector<Blob> blobs = {
          {stem + ".weight_packed", Element::i32, {rows, cols / n}, words(rows * cols / n, bits, by_row)},
          {stem + ".weight_scale", Element::f16, {rows, groups}, halves(m.scales)},
          {stem + ".weight_shape", Element::i64, {2}, bytes_of(std::vector<std::int64_t>{rows, cols})}};
      const auto zeros = [&](std::int64_t w, int i) { return zero(w / groups * n + i, w % groups); };
      if (layout == Layout::packed4_zeros)
        blobs.push_back(
            {stem + ".weight_zero_point", Element::i32, {rows / n, groups}, words(rows / n * groups, 4, zeros)});
      return blobs;
    }
    case Layout::int8: {
      std::vector<std::int8_t> numbers;
      for (const int number : m.q) numbers.push_back(static_cast<std::int8_t>(number - 128));
      return {{name, Element::i8, {rows, cols}, bytes_of(numbers)},
              {stem + ".weight_scale", Element::f16, {rows, 1}, halves(m.scales)}};
    }
  }
  return {};
}

std::vector<std::byte> read_tensor(const Checkpoint& checkpoint, const CheckpointTensor& tensor) {
  const auto file = modelfile::File::open_read(checkpoint.paths()[static_cast<std::size_t>(tensor.file)]);
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  EXPECT_TRUE(file.ok() && file->read_at(tensor.offset, bytes).ok());
  return bytes;
}

/// A checkpoint with the texts of `from` and other tensors; what `changes` has is put into config.json.
void write_checkpoint(const std::string& from, const std::string& to, const std::vector<Blob>& blobs,
                      const std::string& changes) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().extension() == ".json" || entry.path().extension() == ".jinja")
      fs::copy(entry.path(), fs::path(to) / entry.path().filename());
  json config = json::parse(std::ifstream(from + "/config.json"));
  const json changed = json::parse(changes);
  for (const auto& [key, value] : changed.items()) config[key] = value;
  fs::remove(to + "/config.json");
  std::ofstream(to + "/config.json") << config.dump();
  CheckpointWriter writer(to, std::uint64_t{1} << 40);
  for (const Blob& blob : blobs) ASSERT_TRUE(writer.declare(blob.name, blob.element, blob.shape).ok()) << blob.name;
  ASSERT_TRUE(writer.begin().ok());
  for (std::size_t i = 0; i < blobs.size(); ++i) ASSERT_TRUE(writer.write(i, 0, blobs[i].bytes).ok());
  ASSERT_TRUE(writer.finish().ok());
}

bool is_matrix(const CheckpointTensor& tensor, bool flat) {
  const auto& shape = tensor.shape;
  const bool floats =
      tensor.element == Element::f32 || tensor.element == Element::f16 || tensor.element == Element::bf16;
  return floats && tensor.name.ends_with(".weight") && shape.size() >= 2 && (!flat || shape.size() == 2) &&
         shape.back() % kGroup == 0 && shape[shape.size() - 2] % 8 == 0 &&
         tensor.name.find("conv") == std::string::npos;
}

std::vector<float> floats_of(const Model& model, const modelfile::TensorInfo& tensor) {
  const auto file = modelfile::File::open_read(model.paths().front());
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  EXPECT_TRUE(file.ok() && file->read_at(tensor.offset, bytes).ok());
  std::vector<float> floats(static_cast<std::size_t>(tensor.rows() * tensor.cols()));
  if (tensor.dtype == DType::i32) {
    std::vector<std::int32_t> numbers(floats.size());
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return {numbers.begin(), numbers.end()};
  }
  decode_row(tensor.dtype, bytes.data(), tensor.rows() * tensor.cols(), floats.data());
  return floats;
}

/// The same weights; of those that Q8_0 holds only nearly, half a step of their block apart, and what its scale rounds.
void expect_same_weights(const Model& integers, const Model& plain, const std::set<DType>& exact) {
  ASSERT_EQ(integers.tensors().size(), plain.tensors().size());
  for (const modelfile::TensorInfo& tensor : integers.tensors()) {
    const modelfile::TensorInfo* other = plain.find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    ASSERT_EQ(tensor.shape, other->shape) << tensor.name;
    const std::vector<float> got = floats_of(integers, tensor), wanted = floats_of(plain, *other);
    const bool near = tensor.dtype == DType::q8_0 && !exact.contains(DType::q8_0);
    for (std::size_t i = 0; i < got.size(); ++i) {
      float largest = 0;
      for (std::size_t j = i / 32 * 32; near && j < i / 32 * 32 + 32; ++j)
        largest = std::max(largest, std::abs(wanted[j]));
      ASSERT_NEAR(got[i], wanted[i], largest / 127 * 0.57F) << tensor.name << " " << i;
    }
  }
}

class IntegersOfFamilies : public testing::TestWithParam<std::tuple<std::string, Layout>> {};

TEST_P(IntegersOfFamilies, AreTheWeightsOfTheirFloats) {
  const auto& [name, layout] = GetParam();
  const LayoutFacts& layout_facts = facts(layout);
  const Folder folder;
  const Status made = export_checkpoint(reference(name), folder.file("exported"), {}).status();
  if (made.code() == Code::unsupported) GTEST_SKIP() << made.message();
  ASSERT_TRUE(made.ok()) << made.message();
  const auto exported = Checkpoint::open(folder.file("exported"));
  ASSERT_TRUE(exported.ok());
  std::mt19937 random(7);
  std::vector<Blob> integers, plain;
  std::size_t matrices = 0;
  for (const CheckpointTensor& tensor : exported->tensors()) {
    if (!is_matrix(tensor, layout_facts.flat)) {
      integers.push_back({tensor.name, tensor.element, tensor.shape, read_tensor(*exported, tensor)});
      plain.push_back(integers.back());
      continue;
    }
    ++matrices;
    const std::int64_t cols = tensor.shape.back(), groups = layout_facts.one_group ? 1 : cols / kGroup;
    const Drawn drawn = draw(random, tensor.elements() / cols, cols, layout_facts.bits, groups, layout_facts.symmetric);
    for (Blob& blob : store(layout, tensor.name, tensor.shape, drawn)) integers.push_back(std::move(blob));
    std::vector<float> floats;
    for (std::int64_t r = 0; r < drawn.rows; ++r)
      for (std::int64_t c = 0; c < cols; ++c) floats.push_back(drawn.weight(r, c));
    plain.push_back({tensor.name, Element::f32, tensor.shape, bytes_of(floats)});
  }
  EXPECT_GT(matrices, 3U);
  write_checkpoint(folder.file("exported"), folder.file("integers"), integers, layout_facts.config);
  write_checkpoint(folder.file("exported"), folder.file("plain"), plain, "{}");
  const auto of_integers = convert(folder.file("integers"), folder.file("integers.gguf"), {});
  ASSERT_TRUE(of_integers.ok()) << of_integers.status().message();
  const auto of_floats = convert(folder.file("plain"), folder.file("plain.gguf"), {});
  ASSERT_TRUE(of_floats.ok()) << of_floats.status().message();
  const auto a = Model::open(folder.file("integers.gguf")), b = Model::open(folder.file("plain.gguf"));
  ASSERT_TRUE(a.ok() && b.ok());
  const bool exact = layout != Layout::mlx8;
  // Of latent attention keys are turned: no block of a row survives that.
  const bool latent = std::any_of(a->tensors().begin(), a->tensors().end(), [](const modelfile::TensorInfo& tensor) {
    return tensor.name.ends_with("attn_k_b.weight");
  });
  expect_same_weights(*a, *b, exact && !latent ? std::set{DType::q8_0} : std::set<DType>{});
  std::size_t kept = 0;
  for (const modelfile::TensorInfo& tensor : a->tensors()) kept += tensor.dtype == layout_facts.dtype ? 1 : 0;
  EXPECT_GT(kept, 3U);
}

std::string parameter_name(const testing::TestParamInfo<std::tuple<std::string, Layout>>& info) {
  std::string name = std::get<0>(info.param) + "_" + facts(std::get<1>(info.param)).name;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

/// But for those that are not exported, and those whose matrices are turned, of floats alone: GPT-2's, gpt-oss's
/// experts.
std::vector<std::string> exported_references() {
  std::vector<std::string> names = all_references();
  std::erase_if(names, [](const std::string& name) {
    return name == "deepseek-v2-lite-unsplit" || name == "gpt-oss-f16" || name == "gpt2";
  });
  return names;
}

INSTANTIATE_TEST_SUITE_P(Mlx, IntegersOfFamilies,
                         testing::Combine(testing::ValuesIn(exported_references()), testing::Values(Layout::mlx4)),
                         parameter_name);
INSTANTIATE_TEST_SUITE_P(Gptq, IntegersOfFamilies,
                         testing::Combine(testing::Values("llama", "qwen35", "qwen3next", "deepseek-v3", "phi3",
                                                          "mixtral", "granitehybrid"),
                                          testing::Values(Layout::gptq4)),
                         parameter_name);
INSTANTIATE_TEST_SUITE_P(Others, IntegersOfFamilies,
                         testing::Combine(testing::Values("llama", "qwen3moe"),
                                          testing::Values(Layout::mlx8, Layout::gptq4_symmetric,
                                                          Layout::gptq8_symmetric, Layout::awq, Layout::packed4,
                                                          Layout::packed4_zeros, Layout::int8)),
                         parameter_name);

/// What MLX makes of names and shapes before it quantizes: experts in one tensor, convolutions with their taps in the
/// middle, and there norms with the 1 that others leave out.
std::vector<Blob> in_the_form_of_mlx(const Checkpoint& checkpoint) {
  std::vector<Blob> blobs;
  std::map<std::string, std::map<int, Blob>> experts;
  bool moved = false;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    Blob blob{tensor.name, tensor.element, tensor.shape, read_tensor(checkpoint, tensor)};
    if (const auto at = blob.name.find(".experts."); at != std::string::npos) {
      const std::size_t number = at + 9, rest = blob.name.find('.', number);
      std::string matrix = blob.name.substr(rest + 1);
      for (const auto& [old, plain] :
           std::map<std::string, std::string>{{"w1", "gate_proj"}, {"w2", "down_proj"}, {"w3", "up_proj"}})
        if (matrix.starts_with(old)) matrix = plain + ".weight";
      experts[blob.name.substr(0, at) + ".switch_mlp." + matrix].emplace(std::stoi(blob.name.substr(number)), blob);
      continue;
    }
    if (blob.name.ends_with("conv1d.weight")) {
      std::swap(blob.shape[1], blob.shape[2]);
      moved = true;
    }
    blobs.push_back(std::move(blob));
  }
  for (auto& [name, parts] : experts) {
    Blob joined{name, parts.at(0).element, parts.at(0).shape, {}};
    joined.shape.insert(joined.shape.begin(), static_cast<std::int64_t>(parts.size()));
    for (const auto& [number, part] : parts)
      joined.bytes.insert(joined.bytes.end(), part.bytes.begin(), part.bytes.end());
    blobs.push_back(std::move(joined));
  }
  for (Blob& blob : blobs) {
    const bool counts_from_one =
        blob.name.ends_with("norm.weight") && blob.name.find("linear_attn") == std::string::npos;
    if (!moved || !counts_from_one) continue;
    EXPECT_EQ(blob.element, Element::f32);
    std::vector<float> numbers(blob.bytes.size() / sizeof(float));
    std::memcpy(numbers.data(), blob.bytes.data(), blob.bytes.size());
    for (float& x : numbers) x += 1;
    blob.bytes = bytes_of(numbers);
  }
  return blobs;
}

class FormOfMlx : public testing::TestWithParam<std::string> {};

TEST_P(FormOfMlx, IsTheSameModel) {
  const Folder folder;
  ASSERT_TRUE(export_checkpoint(reference(GetParam()), folder.file("exported"), {}).ok());
  const auto exported = Checkpoint::open(folder.file("exported"));
  ASSERT_TRUE(exported.ok());
  std::vector<Blob> blobs = in_the_form_of_mlx(*exported);
  std::erase_if(blobs, [](const Blob& blob) { return blob.name.find("mtp.") != std::string::npos; });
  write_checkpoint(folder.file("exported"), folder.file("mlx"), blobs, "{}");
  const auto converted = convert(folder.file("mlx"), folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  const auto a = Model::open(folder.file("again.gguf")), b = Model::open(reference(GetParam()));
  ASSERT_TRUE(a.ok() && b.ok());
  for (const modelfile::TensorInfo& tensor : a->tensors()) {
    const modelfile::TensorInfo* other = b->find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(tensor.shape, other->shape) << tensor.name;
    EXPECT_EQ(floats_of(*a, tensor), floats_of(*b, *other)) << tensor.name;
  }
}

INSTANTIATE_TEST_SUITE_P(References, FormOfMlx,
                         testing::Values("qwen3moe", "qwen3next", "qwen35moe", "mixtral", "minimax-m2", "lfm2moe",
                                         "glm4moe"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace millrace::convert
