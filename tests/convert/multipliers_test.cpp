// Falcon-H1's multipliers: config.json has them, and in a GGUF file they are factors of the tensors.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/convert.h"
#include "convert/export.h"
#include "convert/folder.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "tensor/codec.h"

namespace millrace::convert {
namespace {

using modelfile::Model;

/// The reference as a checkpoint whose config.json is changed.
void export_with(const std::string& name, const std::string& checkpoint,
                 const std::function<void(nlohmann::json&)>& change) {
  const auto exported = export_checkpoint(reference(name), checkpoint, {});
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  const std::string path = checkpoint + "/config.json";
  auto config = nlohmann::json::parse(std::ifstream(path));
  change(config);
  std::ofstream(path) << config.dump();
}

std::vector<float> numbers(const Model& model, const std::string& name) {
  const modelfile::TensorInfo* tensor = model.find(name);
  EXPECT_NE(tensor, nullptr) << name;
  if (tensor == nullptr) return {};
  const auto files = modelfile::open_files(model.paths());
  std::vector<std::byte> bytes(tensor->bytes);
  EXPECT_TRUE(files->front().read_at(tensor->offset, bytes).ok());
  std::vector<float> floats(static_cast<std::size_t>(tensor->rows() * tensor->cols()));
  decode_row(tensor->dtype, bytes.data(), std::ssize(floats), floats.data());
  return floats;
}

std::vector<float> times(std::vector<float> numbers, float factor) {
  for (float& number : numbers) number *= factor;
  return numbers;
}

void set_powers(nlohmann::json& config) {
  float power = 2;
  for (const char* key : {"embedding_multiplier", "lm_head_multiplier", "attention_in_multiplier", "key_multiplier",
                          "attention_out_multiplier", "ssm_in_multiplier", "ssm_out_multiplier"})
    config[key] = power *= 2;  // 4 to 256
  config["ssm_multipliers"] = {1, 2, 4, 8, 16};
  config["mlp_multipliers"] = {2, 8};
}

TEST(Multipliers, BecomeFactorsOfTensors) {
  const Folder folder;
  ASSERT_NO_FATAL_FAILURE(export_with("falcon-h1", folder.file("checkpoint"), set_powers));
  const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  const Model before = Model::open(reference("falcon-h1")).value(),
              after = Model::open(folder.file("again.gguf")).value();
  ASSERT_EQ(before.tensors().size(), after.tensors().size());
  for (const modelfile::TensorInfo& tensor : before.tensors()) {
    const auto ends = [&](const char* ending) { return tensor.name.ends_with(ending); };
    if (ends("ssm_in.weight")) continue;
    const float factor = ends("token_embd.weight")                        ? 4
                         : tensor.name == "output.weight"                 ? 8
                         : ends("attn_q.weight") || ends("attn_v.weight") ? 16
                         : ends("attn_k.weight")                          ? 16 * 32
                         : ends("attn_output.weight")                     ? 64
                         : ends("ssm_out.weight")                         ? 256
                         : ends("ffn_gate.weight")                        ? 2
                         : ends("ffn_down.weight")                        ? 8
                                                                          : 1;
    EXPECT_EQ(numbers(after, tensor.name), times(numbers(before, tensor.name), factor)) << tensor.name;
  }
  std::vector<float> scan = numbers(before, "blk.1.ssm_in.weight");
  constexpr std::size_t kWidth = 32, kRows[] = {64, 64, 64, 64, 4};  // gate, values, what writes, what reads, steps
  std::size_t at = 0;
  for (std::size_t section = 0; section < 5; ++section)
    for (std::size_t i = 0; i < kRows[section] * kWidth; ++i) scan.at(at++) *= 128 * static_cast<float>(1 << section);
  EXPECT_EQ(at, scan.size());
  EXPECT_EQ(numbers(after, "blk.1.ssm_in.weight"), scan);
}

/// A tied head becomes a tensor where it has another factor than the embedding.
TEST(Multipliers, UntieAHead) {
  for (const float head : {4.0F, 8.0F}) {
    const Folder folder;
    ASSERT_NO_FATAL_FAILURE(export_with("falcon-h1-norm", folder.file("checkpoint"), [&](nlohmann::json& config) {
      ASSERT_EQ(config.at("tie_word_embeddings"), true);
      config["embedding_multiplier"] = 4;
      config["lm_head_multiplier"] = head;
    }));
    const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
    ASSERT_TRUE(converted.ok()) << converted.status().message();
    const Model before = Model::open(reference("falcon-h1-norm")).value(),
                after = Model::open(folder.file("again.gguf")).value();
    const std::vector<float> table = numbers(before, "token_embd.weight");
    EXPECT_EQ(numbers(after, "token_embd.weight"), times(table, 4));
    EXPECT_EQ(after.find("output.weight") != nullptr, head != 4);
    if (head != 4) {
      EXPECT_EQ(numbers(after, "output.weight"), times(table, head));
    }
  }
}

TEST(Multipliers, WhatAFileCannotHoldIsRefused) {
  for (const auto& [key, value] : {std::pair<const char*, nlohmann::json>("mamba_norm_before_gate", true),
                                   {"ssm_multipliers", {1, 2}},
                                   {"mlp_multipliers", {1, 2, 3}},
                                   {"mamba_d_head", 32},
                                   {"mlp_bias", true},
                                   {"projectors_bias", true},
                                   {"time_step_limit", {0.0, 0.1}},
                                   {"mamba_d_state", 16}}) {
    const Folder folder;
    ASSERT_NO_FATAL_FAILURE(
        export_with("falcon-h1-norm", folder.file("checkpoint"), [&](nlohmann::json& config) { config[key] = value; }));
    const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
    EXPECT_FALSE(converted.ok()) << key;
  }
}

}  // namespace
}  // namespace millrace::convert
