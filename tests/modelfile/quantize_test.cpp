#include "modelfile/quantize.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "fresh_folder.h"
#include "modelfile/gguf_writer.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"

namespace millrace::modelfile {
namespace {

namespace fs = std::filesystem;

const std::string kQuantizedDraft = MILLRACE_TEST_DATA "/demo-draft-f16.gguf";
const std::string kBundled = MILLRACE_SOURCE_DIR "/models/demo-moe-q4_k_m.gguf";

std::string file_bytes(const std::string& path, std::uint64_t offset = 0, std::uint64_t bytes = UINT64_MAX) {
  std::error_code absent;
  const std::uint64_t size = fs::exists(path, absent) ? fs::file_size(path) : 0;
  std::string text(std::min(bytes, size - std::min(offset, size)), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(offset));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

std::vector<float> weights(const Model& model, std::string_view name) {
  const TensorInfo* tensor = model.find(name);
  if (tensor == nullptr) return {};
  const std::string& path = model.paths()[static_cast<std::size_t>(tensor->file)];
  const std::string bytes = file_bytes(path, tensor->offset, tensor->bytes);
  std::vector<float> out(static_cast<std::size_t>(tensor->cols() * tensor->rows()));
  decode_row(tensor->dtype, reinterpret_cast<const std::byte*>(bytes.data()), static_cast<std::int64_t>(out.size()),
             out.data());
  return out;
}

double relative_error(const std::vector<float>& x, const std::vector<float>& y) {
  if (x.size() != y.size()) return INFINITY;
  double error = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    error += std::pow(static_cast<double>(x[i]) - y[i], 2);
    squares += std::pow(static_cast<double>(x[i]), 2);
  }
  return std::sqrt(error / squares);
}

struct Given {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
};

// A folder of its own for each test, gone afterwards.
class Quantize : public testing::Test {
 protected:
  Quantize() { folder_ = millrace::test::fresh_folder("quantize"); }
  ~Quantize() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  std::set<std::string> files() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) names.insert(entry.path().filename().string());
    return names;
  }

  // A model of gaussian weights; `poison` replaces one weight of the last tensor.
  std::string make(const std::string& name, const std::vector<Given>& tensors, float poison = 0,
                   WriteOptions options = {}) const {
    Writer writer(path(name), options);
    EXPECT_TRUE(writer.add("general.architecture", Value(std::string("llama"))).ok());
    EXPECT_TRUE(writer.add("general.file_type", Value(std::uint32_t{1})).ok());
    EXPECT_TRUE(writer.add("tokenizer.ggml.tokens", array_value(std::vector<std::string>{"a", "", "\xff"})).ok());
    for (const Given& tensor : tensors) EXPECT_TRUE(writer.declare(tensor.name, tensor.dtype, tensor.shape).ok());
    EXPECT_TRUE(writer.begin().ok());
    std::mt19937 random(9);
    std::normal_distribution<float> normal(0, 0.02f);
    for (const Given& tensor : tensors) {
      std::int64_t elements = 1;
      for (const std::int64_t dim : tensor.shape) elements *= dim;
      std::vector<float> x(static_cast<std::size_t>(elements));
      for (float& value : x) value = normal(random);
      if (poison != 0 && &tensor == &tensors.back()) x[x.size() / 2] = poison;
      std::vector<std::byte> bytes(static_cast<std::size_t>(row_bytes(tensor.dtype, elements)), std::byte{7});
      if (can_encode(tensor.dtype)) encode_row(tensor.dtype, x.data(), elements, bytes.data());
      EXPECT_TRUE(writer.write_tensor_data(bytes).ok());
    }
    EXPECT_TRUE(writer.finish().ok());
    return writer.paths().front();
  }

  fs::path folder_;
};

const std::vector<Given> kSmallMoe = {
    {"token_embd.weight", DType::f16, {512, 700}},
    {"blk.0.attn_norm.weight", DType::f16, {512}},
    {"blk.0.attn_v.weight", DType::bf16, {512, 64}},
    {"blk.0.attn_v.bias", DType::f32, {64}},
    {"blk.0.ffn_gate_inp.weight", DType::f32, {512, 4}},
    {"blk.0.ffn_gate_exps.weight", DType::f16, {512, 96, 4}},
    {"blk.0.ffn_down_exps.weight", DType::f32, {96, 512, 4}},
    {"blk.0.ffn_down_exps.bias", DType::f32, {512, 4}},
    {"blk.1.attn_v.weight", DType::q8_0, {512, 64}},
    {"blk.1.odd.weight", DType::f32, {50, 3}},
    {"output.weight", DType::f16, {512, 700}},
    {"table.weight", DType::i32, {512, 2}},
};

TEST(QuantizeMixture, BundledModelHasTheTypesWeWouldChoose) {
  // llama.cpp's own quantizer made that file.
  const Expected<Model> model = Model::open(kBundled);
  ASSERT_TRUE(model.ok()) << model.status().message();
  const MixtureContext context{.layers = 6, .tied_head = true};
  int super_blocks = 0;
  for (const TensorInfo& tensor : model->tensors()) {
    TensorInfo source = tensor;
    source.dtype = DType::f16;
    EXPECT_EQ(info(choose_dtype(QuantizeType::q4_k_m, source, context)).name, info(tensor.dtype).name) << tensor.name;
    super_blocks += tensor.dtype == DType::q4_k || tensor.dtype == DType::q6_k;
  }
  EXPECT_GT(super_blocks, 30);
}

TEST(QuantizeMixture, FavouredLayers) {
  const MixtureContext context{.layers = 32, .tied_head = false};
  const std::set<int> favoured = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
  for (int layer = 0; layer < 32; ++layer) {
    for (const char* part : {"attn_v", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "ffn_up", "attn_output"}) {
      const std::string name = "blk." + std::to_string(layer) + "." + part + ".weight";
      const TensorInfo tensor{name, DType::f16, {4096, 1024}, 0, 0, 0};
      const bool sensitive = name.find("attn_v") != name.npos || name.find("ffn_down") != name.npos;
      const bool more = sensitive && favoured.count(layer) > 0;
      EXPECT_EQ(choose_dtype(QuantizeType::q4_k_m, tensor, context), more ? DType::q6_k : DType::q4_k) << name;
      EXPECT_EQ(choose_dtype(QuantizeType::q4_k, tensor, context), DType::q4_k) << name;
      EXPECT_EQ(choose_dtype(QuantizeType::q8_0, tensor, context), DType::q8_0) << name;
    }
  }
}

TEST(QuantizeMixture, HeadIsTheOutputOrTheTiedEmbedding) {
  const TensorInfo embedding{"token_embd.weight", DType::f16, {256, 1000}, 0, 0, 0};
  const TensorInfo output{"output.weight", DType::f16, {256, 1000}, 0, 0, 0};
  const MixtureContext tied{.layers = 4, .tied_head = true}, untied{.layers = 4, .tied_head = false};
  EXPECT_EQ(choose_dtype(QuantizeType::q4_k_m, embedding, tied), DType::q6_k);
  EXPECT_EQ(choose_dtype(QuantizeType::q4_k_m, embedding, untied), DType::q4_k);
  EXPECT_EQ(choose_dtype(QuantizeType::q4_k_m, output, untied), DType::q6_k);
  EXPECT_EQ(choose_dtype(QuantizeType::q4_0, output, untied), DType::q6_k);
  EXPECT_EQ(choose_dtype(QuantizeType::f16, output, untied), DType::f16);
}

TEST(QuantizeMixture, TypeNames) {
  for (const QuantizeTypeInfo& row : quantize_types()) EXPECT_EQ(*quantize_type_from_name(row.name), row.type);
  EXPECT_EQ(*quantize_type_from_name("q4_k_m"), QuantizeType::q4_k_m);
  EXPECT_EQ(*quantize_type_from_name("Q5_K"), QuantizeType::q5_k_m);
  const Status status = quantize_type_from_name("q9_k").status();
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("q9_k"), std::string::npos);
  EXPECT_NE(status.message().find("Q4_K_M"), std::string::npos);
}

TEST(QuantizeMixture, MoreBitsWhereMixturesHaveThem) {
  const MixtureContext context{.layers = 32, .tied_head = false, .kv_sharing = 4};
  const auto types = [&](QuantizeType type, const std::string& part) {
    std::vector<std::pair<int, std::string_view>> runs;  // {layers in a row, type}
    for (int layer = 0; layer < 32; ++layer) {
      const TensorInfo tensor{
          "blk." + std::to_string(layer) + "." + part + ".weight", DType::f16, {4096, 1024}, 0, 0, 0};
      const std::string_view name = info(choose_dtype(type, tensor, context)).name;
      if (runs.empty() || runs.back().second != name) runs.emplace_back(0, name);
      ++runs.back().first;
    }
    return runs;
  };
  using Runs = std::vector<std::pair<int, std::string_view>>;
  EXPECT_EQ(types(QuantizeType::q2_k, "attn_v"), (Runs{{32, "Q4_K"}}));
  EXPECT_EQ(types(QuantizeType::q2_k, "ffn_down_exps"), (Runs{{32, "Q3_K"}}));
  EXPECT_EQ(types(QuantizeType::q2_k_s, "ffn_down"), (Runs{{4, "Q4_K"}, {28, "Q2_K"}}));
  EXPECT_EQ(types(QuantizeType::q3_k_s, "ffn_down"), (Runs{{32, "Q3_K"}}));
  EXPECT_EQ(types(QuantizeType::q3_k_m, "attn_v"), (Runs{{2, "Q5_K"}, {30, "Q4_K"}}));
  EXPECT_EQ(types(QuantizeType::q3_k_l, "attn_output"), (Runs{{32, "Q5_K"}}));
  EXPECT_EQ(types(QuantizeType::q4_k_s, "attn_v"), (Runs{{4, "Q5_K"}, {28, "Q4_K"}}));
  EXPECT_EQ(types(QuantizeType::q4_k_s, "ffn_down"), (Runs{{4, "Q5_K"}, {28, "Q4_K"}}));
  EXPECT_EQ(types(QuantizeType::iq4_xs, "ffn_down"), (Runs{{4, "Q5_K"}, {28, "IQ4_XS"}}));
  EXPECT_EQ(types(QuantizeType::q5_k_m, "attn_qkv"), (Runs{{32, "Q6_K"}}));
  EXPECT_EQ(types(QuantizeType::mxfp4_moe, "ffn_up_exps"), (Runs{{32, "MXFP4"}}));
  EXPECT_EQ(types(QuantizeType::mxfp4_moe, "attn_v"), (Runs{{32, "Q8_0"}}));
  EXPECT_EQ(types(QuantizeType::nvfp4, "attn_v"), (Runs{{32, "NVFP4"}}));
  EXPECT_EQ(types(QuantizeType::nvfp4, "ffn_down_exps"), (Runs{{32, "NVFP4"}}));
  EXPECT_EQ(types(QuantizeType::q4_1, "ffn_up"), (Runs{{32, "Q4_1"}}));
  EXPECT_EQ(types(QuantizeType::iq1_s, "attn_output"), (Runs{{32, "IQ2_XXS"}}));
  EXPECT_EQ(types(QuantizeType::iq2_xxs, "ffn_down"), (Runs{{4, "Q2_K"}, {28, "IQ2_XXS"}}));
  EXPECT_EQ(types(QuantizeType::iq2_m, "attn_output"), (Runs{{32, "IQ3_S"}}));
  EXPECT_EQ(types(QuantizeType::iq2_s, "ffn_up"), (Runs{{32, "IQ2_XS"}}));
  EXPECT_EQ(types(QuantizeType::iq3_xxs, "attn_k"), (Runs{{32, "IQ2_S"}}));
  EXPECT_EQ(types(QuantizeType::iq3_xs, "ffn_gate"), (Runs{{4, "IQ3_S"}, {24, "IQ3_XXS"}, {4, "IQ3_S"}}));
  EXPECT_EQ(types(QuantizeType::iq3_m, "attn_v"), (Runs{{32, "Q4_K"}}));
  EXPECT_EQ(types(QuantizeType::tq2_0, "ffn_up"), (Runs{{32, "TQ2_0"}}));
  const TensorInfo embedding{"token_embd.weight", DType::f16, {4096, 1000}, 0, 0, 0};
  const TensorInfo output{"output.weight", DType::f16, {4096, 1000}, 0, 0, 0};
  EXPECT_EQ(choose_dtype(QuantizeType::iq2_xxs, embedding, context), DType::q2_k);
  EXPECT_EQ(choose_dtype(QuantizeType::iq2_xxs, output, context), DType::q5_k);
  EXPECT_EQ(choose_dtype(QuantizeType::tq1_0, embedding, context), DType::q4_k);
  EXPECT_EQ(choose_dtype(QuantizeType::nvfp4, embedding, context), DType::q6_k);
}

TEST(QuantizeMixture, RowsThatAreNotWholeBlocks) {
  const std::pair<DType, DType> places[] = {
      {DType::q2_k, DType::iq4_nl}, {DType::q3_k, DType::iq4_nl},  {DType::q4_k, DType::q5_0},
      {DType::q5_k, DType::q5_1},   {DType::q6_k, DType::q8_0},    {DType::iq4_xs, DType::iq4_nl},
      {DType::q5_0, DType::q5_0},   {DType::iq2_s, DType::iq4_nl}, {DType::tq1_0, DType::q4_0}};
  EXPECT_EQ(fitting_dtype(DType::nvfp4, 320), DType::nvfp4);
  EXPECT_EQ(fitting_dtype(DType::nvfp4, 96), DType::iq4_nl);
  for (const auto& [wanted, got] : places) {
    EXPECT_EQ(fitting_dtype(wanted, 2880), got) << info(wanted).name;
    EXPECT_EQ(fitting_dtype(wanted, 2816), wanted) << info(wanted).name;
    EXPECT_EQ(fitting_dtype(wanted, 50), DType::f16) << info(wanted).name;
  }
}

/// What counts most is nearest to what it was, in each matrix of a tensor by its own importance.
TEST_F(Quantize, ErrorsCountByImportance) {
  const std::string in = make("in.gguf", {{"blk.0.ffn_up_exps.weight", DType::f32, {256, 40, 2}},
                                          {"blk.0.attn_q.weight", DType::f32, {256, 24}}});
  ImportanceMatrix matrix;
  ImportanceEntry& entry = matrix.entries["blk.0.ffn_up_exps.weight"];
  entry.counts = {10, 10};
  entry.sums.assign(512, 1.0f);
  for (std::size_t col = 0; col < 256; col += 8) entry.sums[col] = entry.sums[256 + col + 3] = 2000.0f;
  ASSERT_TRUE(quantize(in, path("alike.gguf"), {.type = QuantizeType::q4_k}).ok());
  ASSERT_TRUE(quantize(in, path("weighed.gguf"), {.type = QuantizeType::q4_k, .importance = &matrix}).ok());
  const Model before = Model::open(in).value(), alike = Model::open(path("alike.gguf")).value(),
              weighed = Model::open(path("weighed.gguf")).value();
  const auto errors = [&](const Model& model, int col_of_eight, int expert) {
    const std::vector<float> x = weights(before, "blk.0.ffn_up_exps.weight"),
                             y = weights(model, "blk.0.ffn_up_exps.weight");
    double sum = 0;
    for (std::size_t i = static_cast<std::size_t>(expert) * 40 * 256;
         i < static_cast<std::size_t>(expert + 1) * 40 * 256; ++i)
      if (static_cast<int>(i % 8) == col_of_eight) sum += std::pow(static_cast<double>(x[i]) - y[i], 2);
    return sum;
  };
  for (const int expert : {0, 1}) {
    const int favoured = expert == 0 ? 0 : 3;
    EXPECT_LT(errors(weighed, favoured, expert), 0.35 * errors(alike, favoured, expert)) << expert;
    EXPECT_GT(errors(weighed, favoured + 1, expert), 0.9 * errors(alike, favoured + 1, expert)) << expert;
  }
  // Of the other tensor it says nothing.
  EXPECT_EQ(weights(weighed, "blk.0.attn_q.weight"), weights(alike, "blk.0.attn_q.weight"));

  entry.sums.resize(500);
  entry.counts = {10};
  const Status status = quantize(in, path("other.gguf"), {.type = QuantizeType::q4_k, .importance = &matrix});
  EXPECT_EQ(status.code(), Code::invalid_argument);
  EXPECT_NE(status.message().find("blk.0.ffn_up_exps.weight"), std::string::npos) << status.message();
  EXPECT_FALSE(fs::exists(path("other.gguf")));
}

TEST_F(Quantize, EveryTensorGetsItsTypeAndItsWeights) {
  const std::string in = make("in.gguf", kSmallMoe), out = path("out.gguf");
  ASSERT_TRUE(quantize(in, out).ok());
  const Model before = Model::open(in).value(), after = Model::open(out).value();
  const std::vector<std::pair<std::string, DType>> wanted = {{"token_embd.weight", DType::q4_k},
                                                             {"blk.0.attn_norm.weight", DType::f32},
                                                             {"blk.0.attn_v.weight", DType::q4_k},
                                                             {"blk.0.attn_v.bias", DType::f32},
                                                             {"blk.0.ffn_gate_inp.weight", DType::f32},
                                                             {"blk.0.ffn_gate_exps.weight", DType::q4_k},
                                                             {"blk.0.ffn_down_exps.weight", DType::q5_0},  // rows of 96
                                                             {"blk.0.ffn_down_exps.bias", DType::f32},
                                                             {"blk.1.attn_v.weight", DType::q6_k},
                                                             {"blk.1.odd.weight", DType::f16},  // rows of 50
                                                             {"output.weight", DType::q6_k},
                                                             {"table.weight", DType::i32}};
  ASSERT_EQ(after.tensors().size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto& [name, dtype] = wanted[i];
    const TensorInfo& tensor = after.tensors()[i];
    EXPECT_EQ(tensor.name, name);
    EXPECT_EQ(info(tensor.dtype).name, info(dtype).name) << name;
    EXPECT_EQ(tensor.shape, before.find(name)->shape) << name;
    if (!info(dtype).computable) continue;
    const double bound = dtype == DType::f32    ? 0
                         : dtype == DType::q4_k ? 0.073
                         : dtype == DType::q6_k ? 0.019
                         : dtype == DType::q5_0 ? 0.042
                                                : 0.006;
    EXPECT_LE(relative_error(weights(before, name), weights(after, name)), bound) << name;
  }
  const TensorInfo* table = after.find("table.weight");
  EXPECT_EQ(file_bytes(out, table->offset, table->bytes), std::string(4096, 7));
  EXPECT_EQ(*after.get_int("general.file_type"), 15);
  EXPECT_EQ(*after.get_int("general.quantization_version"), 2);
  EXPECT_EQ(*after.get_strings("tokenizer.ggml.tokens"), *before.get_strings("tokenizer.ggml.tokens"));
  EXPECT_EQ(files(), (std::set<std::string>{"in.gguf", "out.gguf"}));
}

TEST_F(Quantize, RealModelInEveryType) {
  const Model before = Model::open(kQuantizedDraft).value();
  struct Row {
    const char* name;
    int file_type;
    double bound;
  };
  // Rows of 128 and 384 leave the super-block types no place: they have blocks of 32. Trained weights have outliers.
  for (const Row& row :
       {Row{"F16", 1, 0}, Row{"BF16", 32, 0.002}, Row{"Q8_0", 7, 0.009}, Row{"Q4_0", 2, 0.13}, Row{"Q6_K", 18, 0.009},
        Row{"Q4_K", 14, 0.06}, Row{"Q4_K_M", 15, 0.06}, Row{"Q5_K_M", 17, 0.06}, Row{"Q3_K_L", 13, 0.12},
        Row{"IQ4_NL", 25, 0.12}, Row{"Q4_1", 3, 0.12}}) {
    const QuantizeOptions options{.type = *quantize_type_from_name(row.name)};
    const Status status = quantize(kQuantizedDraft, path("draft.gguf"), options);
    ASSERT_TRUE(status.ok()) << status.message();
    const Model after = Model::open(path("draft.gguf")).value();
    EXPECT_EQ(*after.get_int("general.file_type"), row.file_type);
    EXPECT_EQ(*after.get_strings("tokenizer.ggml.merges"), *before.get_strings("tokenizer.ggml.merges"));
    for (const TensorInfo& tensor : before.tensors()) {
      EXPECT_LE(relative_error(weights(before, tensor.name), weights(after, tensor.name)), row.bound) << tensor.name;
    }
  }
}

/// The largest scale that a block of each matrix has, of so many matrices.
std::vector<int> largest_scales(const Model& model, std::string_view name, std::size_t matrices) {
  const TensorInfo* tensor = model.find(name);
  const std::string bytes = file_bytes(model.paths().front(), tensor->offset, tensor->bytes);
  std::vector<int> largest(matrices, 0);
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(BlockNVFP4)) {
    BlockNVFP4 block;
    std::memcpy(&block, bytes.data() + at, sizeof block);
    int& most = largest[at * matrices / bytes.size()];
    most = std::max<int>(most, *std::max_element(std::begin(block.d), std::end(block.d)));
  }
  return largest;
}

/// Small weights, whose blocks' scales would be where those of NVFP4 have few steps.
TEST_F(Quantize, MatricesOfNvfp4HaveAScaleBesideThem) {
  const std::string in = make("in.gguf", kSmallMoe), out = path("out.gguf");
  ASSERT_TRUE(quantize(in, out, {.type = QuantizeType::nvfp4, .threads = 3}).ok());
  const Model before = Model::open(in).value(), after = Model::open(out).value();
  std::set<std::string> scales;
  for (const TensorInfo& tensor : after.tensors())
    if (tensor.name.ends_with(".scale")) scales.insert(tensor.name);
  EXPECT_EQ(scales, (std::set<std::string>{"blk.0.attn_v.scale", "blk.0.ffn_gate_exps.scale", "blk.1.attn_v.scale"}))
      << "what is read by rows, or of another type, has none";
  constexpr int kLargest = 0x7e;  // 448
  for (const auto& [stem, matrices] :
       {std::pair<std::string, std::size_t>("blk.0.attn_v", 1), {"blk.1.attn_v", 1}, {"blk.0.ffn_gate_exps", 4}}) {
    EXPECT_EQ(after.find(stem + ".weight")->dtype, DType::nvfp4);
    const std::vector<float> x = weights(before, stem + ".weight"), factors = weights(after, stem + ".scale");
    std::vector<float> y = weights(after, stem + ".weight");
    ASSERT_EQ(factors.size(), matrices) << stem;
    EXPECT_EQ(after.find(stem + ".scale")->shape, std::vector<std::int64_t>{static_cast<std::int64_t>(matrices)});
    const std::size_t each = x.size() / matrices;
    for (std::size_t m = 0; m < matrices; ++m) {
      float largest = 0;
      for (std::size_t i = m * each; i < (m + 1) * each; ++i) largest = std::max(largest, std::fabs(x[i]));
      EXPECT_EQ(factors[m], largest / (6 * 448)) << stem;
      for (std::size_t i = m * each; i < (m + 1) * each; ++i) y[i] *= factors[m];
    }
    EXPECT_LE(relative_error(x, y), 0.083) << stem;
    for (const int scale : largest_scales(after, stem + ".weight", matrices)) EXPECT_GE(scale, kLargest - 1) << stem;
  }
  ASSERT_TRUE(quantize(in, path("one.gguf"), {.type = QuantizeType::nvfp4, .threads = 1}).ok());
  EXPECT_EQ(file_bytes(out), file_bytes(path("one.gguf")));
  // Written again, they are copied with their scales.
  ASSERT_TRUE(quantize(out, path("again.gguf"), {.type = QuantizeType::nvfp4}).ok());
  const Model again = Model::open(path("again.gguf")).value();
  EXPECT_EQ(again.tensors().size(), after.tensors().size());
  EXPECT_EQ(weights(again, "blk.0.ffn_gate_exps.scale"), weights(after, "blk.0.ffn_gate_exps.scale"));
  EXPECT_EQ(weights(again, "blk.0.ffn_gate_exps.weight"), weights(after, "blk.0.ffn_gate_exps.weight"));
}

TEST_F(Quantize, AMatrixKeepsTheScaleThatItHas) {
  const std::string in =
      make("in.gguf", {{"blk.0.attn_q.weight", DType::f32, {256, 33}}, {"blk.0.attn_q.scale", DType::f32, {1}}});
  ASSERT_TRUE(quantize(in, path("out.gguf"), {.type = QuantizeType::nvfp4}).ok());
  const Model before = Model::open(in).value(), after = Model::open(path("out.gguf")).value();
  EXPECT_EQ(after.tensors().size(), 2U);
  EXPECT_EQ(weights(before, "blk.0.attn_q.scale"), weights(after, "blk.0.attn_q.scale"));
  EXPECT_LE(relative_error(weights(before, "blk.0.attn_q.weight"), weights(after, "blk.0.attn_q.weight")), 0.1);
}

TEST_F(Quantize, QuantizedInputIsDecodedFirst) {
  const std::string in = make("in.gguf", {{"blk.0.attn_q.weight", DType::q4_k, {256, 33}}});
  ASSERT_TRUE(quantize(in, path("out.gguf"), {.type = QuantizeType::f16}).ok());
  const std::vector<float> exact = weights(*Model::open(in), "blk.0.attn_q.weight");
  EXPECT_LT(relative_error(exact, weights(*Model::open(path("out.gguf")), "blk.0.attn_q.weight")), 3e-4);
  // Its own type again: the bytes are copied, not coded a second time.
  ASSERT_TRUE(quantize(in, path("same.gguf"), {.type = QuantizeType::q4_k}).ok());
  EXPECT_EQ(weights(*Model::open(path("same.gguf")), "blk.0.attn_q.weight"), exact);
}

TEST_F(Quantize, ThreadsAndPiecesDoNotChangeAByte) {
  // 700 x 512 elements are more than one piece, and the last piece is a short one.
  const std::string in = make("in.gguf", kSmallMoe);
  ASSERT_TRUE(quantize(in, path("one.gguf"), {.threads = 1}).ok());
  ASSERT_TRUE(quantize(in, path("many.gguf"), {.threads = 5}).ok());
  EXPECT_EQ(file_bytes(path("one.gguf")), file_bytes(path("many.gguf")));
}

TEST_F(Quantize, SplitInputBecomesOneFile) {
  const std::string in = make("in.gguf", kSmallMoe),
                    split = make("parts.gguf", kSmallMoe, 0, {.max_file_bytes = 500000});
  ASSERT_NE(split, path("parts.gguf"));
  ASSERT_TRUE(quantize(in, path("a.gguf")).ok());
  ASSERT_TRUE(quantize(split, path("b.gguf")).ok());
  EXPECT_EQ(file_bytes(path("a.gguf")), file_bytes(path("b.gguf")));
  // And no part of the input may be the output.
  EXPECT_EQ(quantize(split, Model::open(split)->paths()[1]).code(), Code::invalid_argument);
}

TEST_F(Quantize, RefusesToOverwriteItsInput) {
  const std::string in = make("in.gguf", kSmallMoe), before = file_bytes(in);
  fs::create_symlink(in, path("soft.gguf"));
  fs::create_hard_link(in, path("hard.gguf"));
  fs::create_hard_link(in, path("next.gguf.partial"));  // what the writer would use for next.gguf
  for (const std::string& out : {in, path("soft.gguf"), path("hard.gguf"), path("./in.gguf"), path("next.gguf")}) {
    const Status status = quantize(in, out);
    EXPECT_EQ(status.code(), Code::invalid_argument) << out;
    EXPECT_NE(status.message().find("is read by this command"), std::string::npos) << status.message();
  }
  EXPECT_EQ(file_bytes(in), before);
}

TEST_F(Quantize, BadWeightsAreNamedAndLeaveNoFile) {
  const std::vector<Given> tensors = {{"blk.0.attn_q.weight", DType::f32, {256, 4}},
                                      {"blk.0.attn_k.weight", DType::f32, {256, 2000}}};
  const std::string old = make("out.gguf", {tensors[0]}), old_bytes = file_bytes(old);
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    const std::string in = make("in.gguf", tensors, poison);
    for (const QuantizeType type : {QuantizeType::q4_k_m, QuantizeType::nvfp4, QuantizeType::f16}) {
      const Status status = quantize(in, old, {.type = type, .threads = 3});
      EXPECT_EQ(status.code(), Code::corrupt);
      EXPECT_NE(status.message().find("blk.0.attn_k.weight"), std::string::npos) << status.message();
    }
  }
  const std::string large = make("in.gguf", tensors, 70000.0f);
  const Status status = quantize(large, old, {.type = QuantizeType::f16});
  EXPECT_EQ(status.code(), Code::unsupported);
  EXPECT_NE(status.message().find("BF16"), std::string::npos) << status.message();
  EXPECT_EQ(file_bytes(old), old_bytes);  // an older file of that name is still whole
  EXPECT_TRUE(quantize(large, old, {.type = QuantizeType::bf16}).ok());
  EXPECT_EQ(files(), (std::set<std::string>{"in.gguf", "out.gguf"}));
}

TEST_F(Quantize, MissingInputAndFolder) {
  EXPECT_EQ(quantize(path("none.gguf"), path("out.gguf")).code(), Code::not_found);
  EXPECT_EQ(quantize(kQuantizedDraft, path("no/such/folder.gguf")).code(), Code::io_error);
  EXPECT_TRUE(files().empty());
}

TEST_F(Quantize, ProgressRisesToTheTotal) {
  std::uint64_t last = 0, total = 0;
  bool rising = true;
  QuantizeOptions options{.threads = 2};
  options.progress = [&](std::uint64_t done, std::uint64_t all) {
    rising &= done >= last && done <= all && (total == 0 || all == total);
    last = done;
    total = all;
  };
  ASSERT_TRUE(quantize(kQuantizedDraft, path("out.gguf"), options).ok());
  EXPECT_TRUE(rising);
  EXPECT_EQ(last, total);
  EXPECT_EQ(total, Model::open(kQuantizedDraft)->tensor_bytes());
}

TEST_F(Quantize, CancelLeavesNoFile) {
  std::atomic<bool> cancel = false;
  QuantizeOptions options{.threads = 2};
  options.cancel = &cancel;
  options.progress = [&](std::uint64_t, std::uint64_t) { cancel = true; };
  EXPECT_EQ(quantize(kQuantizedDraft, path("out.gguf"), options).code(), Code::cancelled);
  EXPECT_TRUE(files().empty());
}

}  // namespace
}  // namespace millrace::modelfile
