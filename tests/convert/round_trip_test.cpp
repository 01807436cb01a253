// Each family there and back: the reference files of tests/data/reference, exported as checkpoints and converted again,
// give the same tensors bit for bit and the same keys.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/json.h"
#include "convert/convert.h"
#include "convert/export.h"
#include "convert/folder.h"
#include "engine/scaled_file.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "modelfile/safetensors.h"
#include "modelfile/safetensors_writer.h"
#include "modelfile/verify.h"

namespace millrace::convert {
namespace {

using modelfile::Model;

// What is refused, and the word that says so.
const std::map<std::string, std::string> kRefused = {
    {"deepseek-v2-lite-unsplit", "attn_kv_b"},
    {"llama4", "not written in the form of a checkpoint"},
    {"bailingmoe", "not exported"},
    {"chatglm", "attn_qkv"},
    {"apertus", "not exported"},
    {"plamo3", "not exported"},
    {"baichuan", "not exported"},
    {"codeshell", "not exported"},
    {"minicpm3", "not exported"},
    {"falcon-40b", "not written in the form of a checkpoint"},
    {"pangu-embedded", "not exported"},
    {"qwen", "not exported"},
    {"exaone", "not exported"},
    {"internlm2", "not exported"},
    {"orion", "not exported"},
    {"xverse", "not exported"},
};

std::string value_text(const Model& model, const std::string& key) {
  if (const auto ints = model.get_ints(key); ints.ok()) {
    std::string text;
    for (const auto number : *ints) text += std::to_string(number) + " ";
    return text;
  }
  if (const auto number = model.get_int(key); number.ok()) return std::to_string(*number);
  if (const auto number = model.get_float(key); number.ok()) return std::to_string(static_cast<float>(*number));
  if (const auto flag = model.get_bool(key); flag.ok()) return *flag ? "true" : "false";
  if (const auto text = model.get_string(key); text.ok()) return *text;
  if (const auto texts = model.get_strings(key); texts.ok()) {
    std::string text;
    for (const auto& one : *texts) text += one + "\n";
    return text;
  }
  return "?";
}

/// Keys whose absence and presence mean the same.
bool may_be_absent(const std::string& key) {
  static const std::set<std::string> names = {"attention.temperature_scale", "expert_group_count",
                                              "expert_group_used_count"};
  return names.contains(key.substr(key.find('.') + 1));
}

void expect_same(const std::string& before, const std::string& after) {
  const auto a = Model::open(before), b = Model::open(after);
  ASSERT_TRUE(a.ok() && b.ok()) << b.status().message();
  const auto of_a = modelfile::verify(*a), of_b = modelfile::verify(*b);
  ASSERT_TRUE(of_a.ok() && of_b.ok());
  EXPECT_EQ(modelfile::differences(*a, *of_a, *b, *of_b), std::vector<std::string>{});
  for (const auto& [key, value] : a->metadata()) {
    if (key.starts_with("general.name") || key == "general.file_type" || key == "tokenizer.ggml.pre") continue;
    if (!b->has(key) && may_be_absent(key)) continue;
    EXPECT_TRUE(b->has(key)) << key;
    if (!b->has(key)) continue;
    EXPECT_EQ(value_text(*a, key), value_text(*b, key)) << key;
  }
}

class RoundTrip : public testing::TestWithParam<std::string> {};

TEST_P(RoundTrip, GivesTheSameTensorsAndKeys) {
  const Folder folder;
  const auto exported = export_checkpoint(reference(GetParam()), folder.file("checkpoint"), {});
  if (const auto refused = kRefused.find(GetParam()); refused != kRefused.end()) {
    ASSERT_FALSE(exported.ok());
    EXPECT_NE(exported.status().message().find(refused->second), std::string::npos) << exported.status().message();
    EXPECT_FALSE(fs::exists(folder.file("checkpoint")));
    EXPECT_FALSE(fs::exists(folder.file("checkpoint.partial")));
    return;
  }
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  expect_same(reference(GetParam()), folder.file("again.gguf"));
}

INSTANTIATE_TEST_SUITE_P(References, RoundTrip, testing::ValuesIn(all_references()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
});

class RoundTripOfNvfp4 : public testing::TestWithParam<std::string> {};

/// Matrices of NVFP4 with a scale beside each, of experts one each.
TEST_P(RoundTripOfNvfp4, GivesTheSameBytesAndScales) {
  const Folder folder;
  const engine::test::ScaledFile file(reference(GetParam()), {DType::nvfp4});
  ASSERT_GT(file.scales(), 0);
  const auto exported = export_checkpoint(file.path(), folder.file("checkpoint"), {});
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  EXPECT_EQ(exported->decoded, 0U);
  const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  expect_same(file.path(), folder.file("again.gguf"));
}

INSTANTIATE_TEST_SUITE_P(References, RoundTripOfNvfp4,
                         testing::Values("llama3", "qwen2", "qwen3", "qwen3moe", "mixtral", "deepseek-v3"));

TEST(RoundTripOfShards, GivesTheSameTensors) {
  const Folder folder;
  ExportOptions options;
  options.max_shard_bytes = 50'000;
  const auto exported = export_checkpoint(reference("qwen3moe"), folder.file("checkpoint"), options);
  ASSERT_TRUE(exported.ok()) << exported.status().message();
  EXPECT_GT(exported->shards, 2U);
  const auto converted = convert(folder.file("checkpoint"), folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  expect_same(reference("qwen3moe"), folder.file("again.gguf"));
}

/// What GGUF has no key for: another reach of SparseMixer, and a magnitude for each set of rotation factors.
TEST(RoundTripOfPhiMoe, RefusesWhatTheFileCannotHold) {
  const Folder folder;
  const std::string checkpoint = folder.file("checkpoint"), path = checkpoint + "/config.json";
  ASSERT_TRUE(export_checkpoint(reference("phimoe"), checkpoint, {}).ok());
  const auto config = nlohmann::json::parse(std::ifstream(path));
  for (const auto& [pointer, word] : {std::pair("/router_jitter_noise", "router_jitter_noise"),
                                      std::pair("/rope_scaling/long_mscale", "long_mscale")}) {
    nlohmann::json changed = config;
    changed.at(nlohmann::json::json_pointer(pointer)) = 0.5;
    std::ofstream(path) << changed.dump();
    const auto converted = convert(checkpoint, folder.file("again.gguf"), {});
    ASSERT_FALSE(converted.ok()) << word;
    EXPECT_NE(converted.status().message().find(word), std::string::npos) << converted.status().message();
  }
}

/// Writes the checkpoint's tensors anew, each as what `pieces` has for it: names, each with a part of its rows.
using Pieces = std::vector<std::pair<std::string, std::int64_t>>;
void rewrite(const std::string& folder, const std::function<Pieces(const modelfile::CheckpointTensor&)>& pieces) {
  const auto checkpoint = modelfile::Checkpoint::open(folder);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto files = modelfile::open_files(checkpoint->paths());
  ASSERT_TRUE(files.ok());
  const std::string other = folder + ".rewritten";
  fs::create_directories(other);
  modelfile::CheckpointWriter writer(other, UINT64_MAX);
  std::vector<std::vector<std::byte>> blobs;
  for (const modelfile::CheckpointTensor& tensor : checkpoint->tensors()) {
    std::uint64_t offset = tensor.offset;
    for (const auto& [name, rows] : pieces(tensor)) {
      std::vector<std::int64_t> shape = tensor.shape;
      shape.front() = rows;
      ASSERT_TRUE(writer.declare(name, tensor.element, shape).ok()) << name;
      blobs.emplace_back(tensor.bytes / static_cast<std::uint64_t>(tensor.shape.front()) *
                         static_cast<std::uint64_t>(rows));
      ASSERT_TRUE((*files)[static_cast<std::size_t>(tensor.file)].read_at(offset, blobs.back()).ok());
      offset += blobs.back().size();
    }
  }
  ASSERT_TRUE(writer.begin().ok());
  for (std::size_t i = 0; i < blobs.size(); ++i) ASSERT_TRUE(writer.write(i, 0, blobs[i]).ok());
  ASSERT_TRUE(writer.finish().ok());
  for (const std::string& path : checkpoint->paths()) fs::remove(path);
  for (const auto& entry : fs::directory_iterator(other))
    fs::rename(entry.path(), fs::path(folder) / entry.path().filename());
}

/// As published: the table in pieces, a block that guesses, and what the hashes multiply by in the config alone.
TEST(RoundTripOfQwen4Exp, TakesTheTableInPiecesAndNumbersFromTheConfig) {
  const Folder folder;
  const std::string checkpoint = folder.file("checkpoint");
  ASSERT_TRUE(export_checkpoint(reference("qwen4exp"), checkpoint, {}).ok());
  std::set<std::string> left_out;
  const auto publish = [&](const modelfile::CheckpointTensor& tensor) -> Pieces {
    const std::int64_t rows = tensor.shape.front();
    const std::string& name = tensor.name;
    if (name.ends_with("layer_multipliers") || name.find("ngram_heads_") != std::string::npos) {
      left_out.insert(name);
      return {};
    }
    if (name == "model.norm.weight" || name.ends_with("hyper_connection_mixer.hc_norm.weight"))
      return {{name, rows}, {"mtp.norm.weight", rows}};
    const std::size_t at = name.find("shard_0");
    if (at == std::string::npos) return {{name, rows}};
    const std::string stem = name.substr(0, at + std::string("shard_").size());
    return {{stem + "0.weight", 100}, {stem + "1.weight", 100}, {stem + "2.weight", rows - 200}};
  };
  rewrite(checkpoint, publish);
  EXPECT_EQ(left_out.size(), 3U);
  const auto converted = convert(checkpoint, folder.file("again.gguf"), {});
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  EXPECT_EQ(converted->left_out.size(), 1U);
  expect_same(reference("qwen4exp"), folder.file("again.gguf"));

  rewrite(checkpoint, [](const modelfile::CheckpointTensor& tensor) -> Pieces {
    if (tensor.name.find("shard_1") != std::string::npos) return {};
    return {{tensor.name, tensor.shape.front()}};
  });
  const auto lacking = convert(checkpoint, folder.file("lacking.gguf"), {});
  ASSERT_FALSE(lacking.ok());
  EXPECT_NE(lacking.status().message().find("shard_1"), std::string::npos) << lacking.status().message();
}

TEST(RoundTripOfQwen4Exp, RefusesWhatThisVersionDoesNotCompute) {
  const Folder folder;
  const std::string checkpoint = folder.file("checkpoint"), path = checkpoint + "/config.json";
  ASSERT_TRUE(export_checkpoint(reference("qwen4exp"), checkpoint, {}).ok());
  const auto config = nlohmann::json::parse(std::ifstream(path));
  const std::pair<const char*, nlohmann::json> changes[] = {
      {"output_gate_type", "silu"}, {"output_gate_type", nullptr}, {"ple_layer_ids", {1, 2}},
      {"ple_layer_ids", {9}},       {"ple_embed_dim", 65},         {"indexer_kv_heads", 2},
      {"eos_token_id", "end"},      {"indexer_compress_ratio", 0}, {"layer_types", {"full_attention", "x", "y"}}};
  for (const auto& [key, value] : changes) {
    nlohmann::json changed = config;
    changed[key] = value;
    std::ofstream(path) << changed.dump();
    const auto converted = convert(checkpoint, folder.file("again.gguf"), {});
    ASSERT_FALSE(converted.ok()) << key;
    EXPECT_NE(converted.status().message().find(key), std::string::npos) << converted.status().message();
  }
}

}  // namespace
}  // namespace millrace::convert
