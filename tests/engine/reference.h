// Logits against an independent implementation (PyTorch, float32): tests/data/reference/README.md has the format.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ostream>
#include <tuple>

#include "engine/support.h"

namespace millrace::engine::test {

struct Reference {
  std::string text;  // empty: the tokens have none
  std::vector<TokenId> tokens;
  std::vector<float> logits;  // [tokens, vocab]
  std::size_t vocab = 0;
};

inline std::vector<Reference> read_references(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char magic[8] = {};
  std::uint32_t version = 0, prompts = 0;
  const auto number = [&](std::uint32_t& value) { file.read(reinterpret_cast<char*>(&value), 4); };
  file.read(magic, 8);
  number(version);
  number(prompts);
  EXPECT_EQ(std::string(magic, 8), "MRLOGITS") << path;
  EXPECT_EQ(version, 1u);
  std::vector<Reference> references(file.good() ? prompts : 0);
  for (Reference& reference : references) {
    std::uint32_t bytes = 0, tokens = 0, vocab = 0;
    number(bytes), number(tokens), number(vocab);
    reference.text.resize((bytes + 3) / 4 * 4);
    file.read(reference.text.data(), static_cast<std::streamsize>(reference.text.size()));
    reference.text.resize(bytes);
    reference.tokens.resize(tokens);
    file.read(reinterpret_cast<char*>(reference.tokens.data()), tokens * std::streamsize{4});
    reference.vocab = vocab;
    reference.logits.resize(std::size_t{tokens} * vocab);
    file.read(reinterpret_cast<char*>(reference.logits.data()),
              static_cast<std::streamsize>(reference.logits.size() * 4));
  }
  EXPECT_TRUE(file.good()) << path;
  return references;
}

struct Agreement {
  double relative_l2 = 0;  // over all logits
  double same_argmax = 0;  // share of rows
};

/// Of an engine's logits with the reference's, for each prompt's first `shares` of its tokens, all in one batch.
inline Agreement agreement(const EngineOptions& options, const std::string& reference_path,
                           const std::vector<double>& shares = {1}) {
  const auto engine = make(options);
  if (engine == nullptr) return {1, 0};
  double difference = 0, norm = 0;
  std::size_t rows = 0, same = 0;
  for (const Reference& reference : read_references(reference_path)) {
    if (!reference.text.empty()) {
      EXPECT_EQ(engine->tokenizer().encode(reference.text, text::Specials::parse), reference.tokens);
    }
    std::vector<std::vector<float>> logits(shares.size());
    std::vector<Engine::Id> ids;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const auto count = static_cast<std::ptrdiff_t>(shares[i] * static_cast<double>(reference.tokens.size()));
      Request request = greedy({reference.tokens.begin(), reference.tokens.begin() + count}, 1);
      keep_logits(request, logits[i]);
      const Expected<Engine::Id> id = engine->submit(std::move(request));
      EXPECT_TRUE(id.ok()) << id.status().message();
      if (id.ok()) ids.push_back(*id);
    }
    drain(*engine);
    for (const Engine::Id id : ids) EXPECT_EQ(engine->take(id).status.message(), "");
    for (std::size_t i = 0; i < shares.size(); ++i) {
      const auto tokens = static_cast<std::size_t>(shares[i] * static_cast<double>(reference.tokens.size()));
      EXPECT_EQ(logits[i].size(), tokens * reference.vocab);
      if (logits[i].size() != tokens * reference.vocab) return {1, 0};
      for (std::size_t at = 0; at < logits[i].size(); ++at) {
        difference += std::pow(double{logits[i][at]} - double{reference.logits[at]}, 2);
        norm += std::pow(double{reference.logits[at]}, 2);
      }
      for (std::size_t row = 0; row < tokens; ++row, ++rows) {
        const auto argmax = [&](const std::vector<float>& all) {
          const auto first = all.begin() + static_cast<std::ptrdiff_t>(row * reference.vocab);
          return std::max_element(first, first + static_cast<std::ptrdiff_t>(reference.vocab)) - first;
        };
        same += argmax(logits[i]) == argmax(reference.logits) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(rows, 30u);
  const Agreement found{std::sqrt(difference / norm), static_cast<double>(same) / static_cast<double>(rows)};
  std::printf("relative L2 %.2e, same argmax in %zu of %zu rows\n", found.relative_l2, same, rows);
  return found;
}

/// Who computes, and where the weights lie: the columns of the table in docs/reference/models-and-file-types.md.
enum class Place { cpu_ram, cpu_disk, gpu_vram, gpu_ram };

struct PlaceName {
  Place place;
  const char* test;
  const char* heading;
};
constexpr PlaceName kPlaces[] = {{Place::cpu_ram, "on_the_cpu", "CPU, in RAM"},
                                 {Place::cpu_disk, "from_the_disk", "CPU, from the disk"},
                                 {Place::gpu_vram, "on_the_gpu", "GPU, in VRAM"},
                                 {Place::gpu_ram, "from_ram_to_the_gpu", "GPU, layers or experts from RAM"}};

/// A tiny random checkpoint of tools/reference-models: NAME.gguf, and what transformers answers with it, NAME.bin or
/// ANSWERS.bin. A row of the table in docs/reference/models-and-file-types.md.
struct Checkpoint {
  const char* name;
  const char* family;  // as people call the models
  bool mixture = false;
  const char* answers = name;
  std::int64_t context = 256;
  DType kv = DType::f16;  // f32 where the rounding of f16 alone is more than the tolerance
  bool gpu = true;        // the GPU part has its steps
  // Relative L2 with KV in q8_0, at most: more where f16 is too coarse for the tolerance already, and where eight bits
  // change the experts of two rows in 80.
  double most_q8 = kv == DType::f32 ? 0.2 : 0.1;

  std::string model() const { return std::string(MILLRACE_TEST_DATA "/reference/") + name + ".gguf"; }
  std::string logits() const { return std::string(MILLRACE_TEST_DATA "/reference/") + answers + ".bin"; }
  /// Whether it answers there as transformers does. Elsewhere an engine is refused with Code::unsupported.
  constexpr bool runs(Place place) const { return gpu || place == Place::cpu_ram || place == Place::cpu_disk; }
};
inline void PrintTo(const Checkpoint& checkpoint, std::ostream* out) { *out << checkpoint.name; }

/// A mixture whose layers keep latents.
constexpr Checkpoint latents(const char* name, const char* family, const char* answers = nullptr) {
  return {name, family, true, answers != nullptr ? answers : name};
}

/// One for whose layers the GPU part has no steps.
constexpr Checkpoint on_cpus(const char* name, const char* family, bool mixture = false) {
  return {name, family, mixture, name, 256, DType::f16, false};
}

/// Every architecture, and each way in which its files may differ. After a change: `make models-table`.
constexpr Checkpoint kCheckpoints[] = {
    {"llama", "Llama 2, Mistral 7B"},
    {"llama3", "Llama 3"},
    {"mistral-nemo", "Mistral Nemo"},
    {"llama4", "Llama 4 Scout, Maverick (text)", true, "llama4", 256, DType::f16, true, 0.2},
    {"mixtral", "Mixtral", true},
    {"qwen2", "Qwen2, Qwen2.5"},
    {"qwen3", "Qwen3"},
    {"qwen3moe", "Qwen3 mixtures", true},
    {"qwen3next", "Qwen3-Next", true},
    {"qwen35", "Qwen3.5, Qwen3.6"},
    {"qwen35moe", "Qwen3.5 and Qwen3.6 mixtures", true},
    on_cpus("qwen4exp", "Qwen3.8-Flash-Next", true),
    {"lfm2", "LFM2"},
    {"lfm2moe", "LFM2 mixtures", true},
    on_cpus("mamba", "Mamba"),
    on_cpus("falcon-mamba", "Falcon-Mamba"),
    on_cpus("jamba", "Jamba", true),
    {"mamba2", "Mamba-2, Codestral Mamba"},
    {"granitehybrid", "Granite 4 H", true},
    {"falcon-h1", "Falcon-H1"},
    {"falcon-h1-norm", "Falcon-H1, with a norm behind the scan", false, "falcon-h1-norm", 256, DType::f32},
    {"nemotron-h", "Nemotron-H"},
    {"nemotron-h-moe", "Nemotron 3 Nano", true},
    {"nemotron-h-latent", "Nemotron 3 Super", true},
    {"plamo3", "PLaMo 3"},
    {"gemma3", "Gemma 3 (text)"},
    {"gemma4-moe", "Gemma 4 26B-A4B (text)", true},
    {"gemma4", "Gemma 4 E2B, E4B (text)", false, "gemma4", 256, DType::f32},
    {"gemma3n", "Gemma 3n E2B, E4B (text)", false, "gemma3n", 256, DType::f32, false},
    {"glm4moe", "GLM-4.5 to 4.7", true},
    {"gpt-oss-f16", "gpt-oss", true, "gpt-oss"},
    {"granite", "Granite 3"},
    {"minimax-m2", "MiniMax-M2", true},
    {"mistral3", "Ministral 3"},
    {"step35", "Step-3.5 Flash, Step-3.7 Flash", true, "step35", 256, DType::f16, true, 0.2},
    {"mimo2", "MiMo-V2 Flash", true},
    {"phi3", "Phi-3, Phi-4 mini"},
    {"phi3", "Phi-3, Phi-4 mini, long contexts", false, "phi3-long", 512},
    {"qwen2vl", "Qwen2-VL, Qwen2.5-VL (text)"},
    {"qwen3vl", "Qwen3-VL (text)"},
    {"qwen3vlmoe", "Qwen3-VL mixtures (text)", true},
    {"qwen2moe", "Qwen1.5 and Qwen2 mixtures", true},
    {"seed-oss", "Seed-OSS"},
    {"smollm3", "SmolLM3"},
    {"internlm2", "InternLM 2"},
    {"exaone", "EXAONE 3, EXAONE Deep"},
    {"arcee", "AFM-4.5B"},
    {"minicpm", "MiniCPM"},
    {"granitemoe", "Granite 3 mixtures", true},
    {"ernie4-5", "ERNIE 4.5"},
    {"ernie4-5-moe", "ERNIE 4.5 mixtures", true},
    {"glm4", "GLM-4-0414"},
    {"glm4v", "GLM-4.1V, GLM-4.6V Flash (text)"},
    {"gemma", "Gemma"},
    {"olmoe", "OLMoE", true},
    {"deepseek", "DeepSeek mixtures of 2024", true},
    {"bailingmoe", "Ling", true},
    {"bailingmoe2", "Ling 2, Ring 2", true},
    {"dots1", "dots.llm1", true},
    {"hunyuan-dense", "Hunyuan, dense"},
    {"hunyuan-moe", "Hunyuan A13B", true},
    {"hy-v3", "Hunyuan 3 (HY3)", true},
    {"exaone-moe", "K-EXAONE", true},
    {"exaone4", "EXAONE 4"},
    {"olmo2", "OLMo 2"},
    {"olmo3", "OLMo 3"},
    {"gemma2", "Gemma 2"},
    {"gpt2", "GPT-2, Cerebras-GPT"},
    {"starcoder", "StarCoder, SantaCoder"},
    {"gptneox", "GPT-NeoX, Pythia"},
    {"gptneox-sequential", "GPT-NeoX, layers one after the other"},
    {"falcon", "Falcon 7B"},
    {"falcon-40b", "Falcon 40B, 180B and Falcon 2"},
    {"bloom", "BLOOM, BLOOMZ"},
    {"mpt", "MPT"},
    {"jais2", "Jais 2"},
    {"codeshell", "CodeShell"},
    {"apertus", "Apertus"},
    {"minicpm3", "MiniCPM 3"},
    {"phimoe", "Phi-3.5-MoE", true},
    {"cohere2moe", "Command A mixtures", true},
    {"qwen", "Qwen of 2023"},
    {"pangu-embedded", "openPangu Embedded"},
    {"chatglm", "GLM-4-9B of 2024"},
    {"command-r", "Command R, Aya Expanse 8B"},
    {"cohere2", "Command R7B, Command A"},
    {"stablelm", "StableLM 2"},
    {"stablelm-parallel", "StableLM, parallel layers"},
    {"starcoder2", "StarCoder 2"},
    {"nemotron", "Nemotron-4, Minitron"},
    {"phi2", "Phi-1, Phi-1.5, Phi-2"},
    {"orion", "Orion"},
    {"xverse", "XVERSE"},
    {"baichuan", "Baichuan 7B, Baichuan 2 7B"},
    {"afmoe", "Trinity (AFMoE)", true},
    on_cpus("laguna", "Laguna XS, S", true),
    on_cpus("laguna-channels", "Laguna M.1", true),
    latents("deepseek-v2-lite", "DeepSeek V2 Lite"),
    latents("deepseek-v2-lite-unsplit", "DeepSeek V2 Lite, files of 2024", "deepseek-v2-lite"),
    latents("deepseek-v3", "DeepSeek V3, R1, Kimi K2"),
    latents("glm-4.7-flash", "GLM-4.7-Flash"),
    latents("mistral4", "Mistral Small 4"),
    latents("kimi-linear", "Kimi Linear"),
    latents("bailingmoe3", "Ling 3"),
    {"minimax-m3", "MiniMax-M3", true, "minimax-m3", 512, DType::f32, false},
    latents("deepseek-v3.2", "DeepSeek V3.2"),
    on_cpus("deepseek-v4", "DeepSeek V4", true),
    {"glm-dsa", "GLM-5", true, "glm-dsa", 256, DType::f32}};

/// A cell of that table.
using Cell = std::tuple<Checkpoint, PlaceName>;

inline std::string test_name(const testing::TestParamInfo<Cell>& info) {
  const Checkpoint& checkpoint = std::get<0>(info.param);
  const bool unsplit = std::string_view(checkpoint.name).ends_with("-unsplit");
  std::string name = std::string(unsplit ? checkpoint.name : checkpoint.answers) + "_" + std::get<1>(info.param).test;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

/// The whole prompt in a pass, in chunks, token by token, and in a batch of three lengths.
inline void expect_the_reference(const EngineOptions& options, const Checkpoint& checkpoint) {
  struct Way {
    const char* name;
    std::int64_t batch_tokens;
    std::vector<double> shares;
  };
  for (const Way& way : {Way{"whole", 0, {1}}, Way{"chunks of 7", 7, {1}}, Way{"chunks of 64", 64, {1}},
                         Way{"token by token", 1, {1}}, Way{"a batch", 0, {1, 0.6, 0.21}}}) {
    SCOPED_TRACE(way.name);
    EngineOptions changed = options;
    changed.demand.batch_tokens = way.batch_tokens;
    changed.demand.max_sequences = static_cast<std::int64_t>(way.shares.size());
    changed.demand.context_tokens = checkpoint.context;
    changed.kv.dtype = checkpoint.kv;
    const Agreement found = agreement(changed, checkpoint.logits(), way.shares);
    EXPECT_LE(found.relative_l2, 2e-3);
    EXPECT_EQ(found.same_argmax, 1);
  }
}

/// With keys and values that are rotated, in eight and in four bits: whoever rotates must rotate back.
inline void expect_near_with_rotated_kv(const EngineOptions& options, const Checkpoint& checkpoint) {
  struct Format {
    DType dtype;
    double most;  // relative; a router or an indexer that chooses otherwise counts in full
  };
  for (const Format& format : {Format{DType::q8_0, checkpoint.most_q8}, Format{DType::q4_0, 0.8}}) {
    SCOPED_TRACE(info(format.dtype).name);
    EngineOptions changed = options;
    changed.demand.context_tokens = checkpoint.context;
    changed.kv.dtype = format.dtype;
    const auto engine = Engine::create(changed);
    if (!engine.ok()) {
      EXPECT_EQ(engine.status().code(), Code::unsupported) << engine.status().message();
      EXPECT_NE(engine.status().message().find("use --kv"), std::string::npos) << engine.status().message();
      continue;
    }
    for (const std::int64_t batch : {0, 7}) {
      changed.demand.batch_tokens = batch;
      EXPECT_LE(agreement(changed, checkpoint.logits()).relative_l2, format.most);
    }
  }
}

/// What README says of a cell.
inline void expect_the_cell(const EngineOptions& options, const Cell& cell) {
  const auto& [checkpoint, place] = cell;
  if (checkpoint.runs(place.place)) return expect_the_reference(options, checkpoint);
  EngineOptions changed = options;
  changed.demand.context_tokens = 256;
  const auto engine = Engine::create(changed);
  ASSERT_FALSE(engine.ok()) << "it runs: tell README";
  EXPECT_EQ(engine.status().code(), Code::unsupported) << engine.status().message();
}

}  // namespace millrace::engine::test
