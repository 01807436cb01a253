#include <fmt/format.h>

#include <array>

#include "model/architectures.h"
#include "model/decoder.h"
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
    Entry{"deepseek2", deepseek2_spec},
    Entry{"gemma3", gemma3_spec},
    Entry{"gemma4", gemma4_spec},
    Entry{"glm4moe", glm4moe_spec},
    Entry{"gpt-oss", gpt_oss_spec},
    Entry{"granite", granite_spec},
    Entry{"granitehybrid", granitehybrid_spec},
    Entry{"lfm2", lfm2_spec},
    Entry{"lfm2moe", lfm2moe_spec},
    Entry{"llama", llama_spec},
    Entry{"mamba2", mamba2_spec},
    Entry{"minimax-m2", minimax_m2_spec},
    Entry{"mistral3", mistral3_spec},
    Entry{"nemotron_h", nemotron_h_spec},
    Entry{"nemotron_h_moe", nemotron_h_moe_spec},
    Entry{"phi3", phi3_spec},
    Entry{"qwen2", qwen2_spec},
    Entry{"qwen3", qwen3_spec},
    Entry{"qwen3moe", qwen3moe_spec},
    Entry{"qwen35", qwen35_spec},
    Entry{"qwen35moe", qwen35moe_spec},
    Entry{"qwen3next", qwen3next_spec},
};

}  // namespace

Expected<std::unique_ptr<Model>> load(const modelfile::Model& file, const LoadOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::string name, file.get_string("general.architecture"));
  for (const Entry& entry : kArchitectures) {
    if (entry.name != name) continue;
    MR_ASSIGN_OR_RETURN(Hyperparameters hp, read_hyperparameters(file, options.context_tokens));
    MR_ASSIGN_OR_RETURN(const DecoderSpec spec, entry.spec(file, hp));
    return make_decoder(file, options, std::move(hp), spec);
  }
  return error(Code::unsupported, "models of architecture '{}' are not supported; this version runs {}",
               modelfile::escape(name, 80), fmt::join(architectures(), ", "));
}

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  for (const Entry& entry : kArchitectures) names.emplace_back(entry.name);
  return names;
}

}  // namespace millrace::model
