#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "model/architectures.h"
#include "model/decoder.h"
#include "model/eagle3.h"
#include "model/gemma4_assistant.h"
#include "model/hyperparameters.h"
#include "model/model.h"
#include "modelfile/escape.h"

namespace millrace::model {
namespace {

struct Entry {
  std::string_view name;
  Expected<DecoderSpec> (*spec)(const modelfile::Model& file, const Hyperparameters& hp);
};

constexpr std::array kArchitectures{
    Entry{"afmoe", afmoe_spec},
    Entry{"apertus", apertus_spec},
    Entry{"arcee", arcee_spec},
    Entry{"baichuan", baichuan_spec},
    Entry{"bailingmoe", bailingmoe_spec},
    Entry{"bailingmoe2", dots1_spec},
    Entry{"bailingmoe3", bailingmoe3_spec},
    Entry{"bert", bert_spec},
    Entry{"bloom", bloom_spec},
    Entry{"chatglm", llama_spec},
    Entry{"codeshell", starcoder2_spec},
    Entry{"cohere2", cohere2_spec},
    Entry{"cohere2moe", cohere2moe_spec},
    Entry{"command-r", command_r_spec},
    Entry{"deepseek", deepseek_spec},
    Entry{"deepseek2", deepseek2_spec},
    Entry{"deepseek32", deepseek32_spec},
    Entry{"deepseek4", deepseek4_spec},
    Entry{"dots1", dots1_spec},
    Entry{"ernie4_5", llama_spec},
    Entry{"ernie4_5-moe", ernie4_5_moe_spec},
    Entry{"eurobert", eurobert_spec},
    Entry{"exaone", qwen2_spec},
    Entry{"exaone-moe", exaone_moe_spec},
    Entry{"exaone4", exaone4_spec},
    Entry{"falcon", falcon_spec},
    Entry{"falcon-h1", falcon_h1_spec},
    Entry{"gemma", gemma_spec},
    Entry{"gemma-embedding", gemma_embedding_spec},
    Entry{"gemma2", gemma2_spec},
    Entry{"gemma3", gemma3_spec},
    Entry{"gemma3n", gemma3n_spec},
    Entry{"gemma4", gemma4_spec},
    Entry{"glm-dsa", glm_dsa_spec},
    Entry{"glm4", glm4_spec},
    Entry{"glm4moe", glm4moe_spec},
    Entry{"gpt-oss", gpt_oss_spec},
    Entry{"gpt2", gpt2_spec},
    Entry{"gptneox", gptneox_spec},
    Entry{"granite", granite_spec},
    Entry{"granitehybrid", granitehybrid_spec},
    Entry{"granitemoe", granite_spec},
    Entry{"hunyuan-dense", hunyuan_dense_spec},
    Entry{"hunyuan-moe", hunyuan_moe_spec},
    Entry{"hy_v3", hy_v3_spec},
    Entry{"internlm2", llama_spec},
    Entry{"jais2", nemotron_spec},
    Entry{"jamba", jamba_spec},
    Entry{"jina-bert-v2", jina_bert_v2_spec},
    Entry{"jina-bert-v3", jina_bert_v3_spec},
    Entry{"kimi-linear", kimi_linear_spec},
    Entry{"laguna", laguna_spec},
    Entry{"lfm2", lfm2_spec},
    Entry{"lfm2moe", lfm2moe_spec},
    Entry{"llama", llama_spec},
    Entry{"llama4", llama4_spec},
    Entry{"mamba", mamba_spec},
    Entry{"mamba2", mamba2_spec},
    Entry{"mimo2", mimo2_spec},
    Entry{"minicpm", minicpm_spec},
    Entry{"minicpm3", minicpm3_spec},
    Entry{"minimax-m2", minimax_m2_spec},
    Entry{"minimax-m3", minimax_m3_spec},
    Entry{"mistral3", mistral3_spec},
    Entry{"mistral4", deepseek2_spec},
    Entry{"modern-bert", modern_bert_spec},
    Entry{"mpt", mpt_spec},
    Entry{"nemotron", nemotron_spec},
    Entry{"nemotron_h", nemotron_h_spec},
    Entry{"nemotron_h_moe", nemotron_h_moe_spec},
    Entry{"nomic-bert", nomic_bert_spec},
    Entry{"nomic-bert-moe", nomic_bert_moe_spec},
    Entry{"olmo2", olmo2_spec},
    Entry{"olmoe", olmoe_spec},
    Entry{"orion", orion_spec},
    Entry{"pangu-embedded", qwen2_spec},
    Entry{"phi2", phi2_spec},
    Entry{"phi3", phi3_spec},
    Entry{"phimoe", phimoe_spec},
    Entry{"plamo3", plamo3_spec},
    Entry{"qwen", qwen_spec},
    Entry{"qwen2", qwen2_spec},
    Entry{"qwen2moe", qwen2moe_spec},
    Entry{"qwen2vl", qwen2_spec},
    Entry{"qwen3", qwen3_spec},
    Entry{"qwen35", qwen35_spec},
    Entry{"qwen35moe", qwen35moe_spec},
    Entry{"qwen3moe", qwen3moe_spec},
    Entry{"qwen3next", qwen3next_spec},
    Entry{"qwen3vl", qwen3_spec},
    Entry{"qwen3vlmoe", qwen3moe_spec},
    Entry{"qwen4exp", qwen4exp_spec},
    Entry{"seed_oss", seed_oss_spec},
    Entry{"smollm3", smollm3_spec},
    Entry{"stablelm", stablelm_spec},
    Entry{"starcoder", gpt2_spec},
    Entry{"starcoder2", starcoder2_spec},
    Entry{"step35", step35_spec},
    Entry{"xverse", llama_spec},
};

std::size_t common_prefix(std::string_view a, std::string_view b) {
  std::size_t count = 0;
  while (count < std::min(a.size(), b.size()) && a[count] == b[count]) ++count;
  return count;
}

/// The known architecture whose name shares most letters with this one's front, the shortest of several. nullptr: none
/// shares three.
const Entry* nearest(std::string_view name) {
  constexpr std::size_t kLeast = 3;
  const Entry* best = nullptr;
  std::size_t shared = kLeast - 1;
  for (const Entry& entry : kArchitectures) {
    const std::size_t own = common_prefix(entry.name, name);
    if (own < shared || (own == shared && (best == nullptr || entry.name.size() >= best->name.size()))) continue;
    shared = own;
    best = &entry;
  }
  return best;
}

Expected<std::unique_ptr<Model>> load_as(const Entry& entry, const modelfile::Model& file, const LoadOptions& options) {
  MR_ASSIGN_OR_RETURN(Hyperparameters hp, read_hyperparameters(file, options.context_tokens));
  MR_ASSIGN_OR_RETURN(const DecoderSpec spec, entry.spec(file, hp));
  return make_decoder(file, options, std::move(hp), spec);
}

/// With the nearest architecture that is known, and what keeps the file from being read as that.
Status unknown(std::string_view name, const modelfile::Model& file, const LoadOptions& options) {
  const std::string shown = modelfile::escape(name, 80);
  const Entry* near = nearest(name);
  if (near == nullptr)
    return error(Code::unsupported,
                 "models of architecture '{}' are not supported, and none of those that this version runs "
                 "(docs/reference/models-and-file-types.md) has a name like it",
                 shown);
  const auto read = load_as(*near, file, options);
  return error(
      Code::unsupported,
      "models of architecture '{}' are not supported; the nearest one that this version runs is '{}', as which "
      "the file cannot be read: {}",
      shown, near->name,
      read.ok() ? "all of its tensors fit, but what the model computes with them was never compared"
                : read.status().message());
}

}  // namespace

Expected<std::unique_ptr<Model>> load(const modelfile::Model& file, const LoadOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const Entry& entry : kArchitectures)
    if (entry.name == name) return load_as(entry, file, options);
  if (is_eagle3(file))
    return error(Code::unsupported,
                 "this file is a head that guesses for a larger model (EAGLE-3) and writes nothing by itself; give it "
                 "to --draft beside that model");
  if (is_gemma4_assistant(file))
    return error(Code::unsupported,
                 "this file is an assistant that guesses for a larger Gemma 4 and writes nothing by itself; give it to "
                 "--draft beside that model");
  return unknown(name, file, options);
}

Status check_writes(const Hyperparameters& hp) {
  if (hp.causal) return {};
  return error(
      Code::unsupported,
      "this model ({}) embeds texts and writes none; ask /v1/embeddings, /api/embed or `millrace embed`, or take "
      "a model that writes",
      hp.architecture);
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kArchitectures) names.emplace_back(entry.name);
  return names;
}

}  // namespace millrace::model
