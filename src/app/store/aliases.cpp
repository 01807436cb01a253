#include "app/store/aliases.h"

#include <map>
#include <sstream>

#include "app/store/files.h"
#include "base/words.h"

namespace millrace::store {
namespace {

/// Repositories without a quantization have one usual choice, or name it otherwise than others do.
const std::map<std::string_view, std::string_view>& known() {
  static const std::map<std::string_view, std::string_view> all = {
      {"deepseek-r1:7b", "bartowski/DeepSeek-R1-Distill-Qwen-7B-GGUF:Q4_K_M"},
      {"gemma3", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"},
      {"gemma3:12b", "ggml-org/gemma-3-12b-it-GGUF:Q4_K_M"},
      {"gemma3:1b", "ggml-org/gemma-3-1b-it-GGUF:Q4_K_M"},
      {"gemma3:4b", "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"},
      {"gemma4", "unsloth/gemma-4-E2B-it-GGUF"},
      {"gemma4:31b", "unsloth/gemma-4-31B-it-GGUF"},
      {"gemma4:e2b", "unsloth/gemma-4-E2B-it-GGUF"},
      {"glm-4.7-flash", "unsloth/GLM-4.7-Flash-GGUF:UD-Q4_K_XL"},
      {"gpt-oss", "ggml-org/gpt-oss-20b-GGUF"},
      {"gpt-oss:120b", "ggml-org/gpt-oss-120b-GGUF"},
      {"gpt-oss:20b", "ggml-org/gpt-oss-20b-GGUF"},
      {"llama3.1", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"},
      {"llama3.1:8b", "bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"},
      {"llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"},
      {"llama3.2:1b", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"},
      {"llama3.2:3b", "bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"},
      {"llama3.3", "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"},
      {"llama3.3:70b", "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"},
      {"mistral", "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M"},
      {"mistral:7b", "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M"},
      {"phi4", "bartowski/phi-4-GGUF:Q4_K_M"},
      {"qwen2.5", "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"},
      {"qwen2.5:0.5b", "Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M"},
      {"qwen2.5:7b", "Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M"},
      {"qwen3", "Qwen/Qwen3-8B-GGUF:Q4_K_M"},
      {"qwen3-coder", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M"},
      {"qwen3-coder:30b", "unsloth/Qwen3-Coder-30B-A3B-Instruct-GGUF:Q4_K_M"},
      {"qwen3.5", "unsloth/Qwen3.5-9B-GGUF"},
      {"qwen3.5:0.8b", "unsloth/Qwen3.5-0.8B-GGUF"},
      {"qwen3.5:35b", "unsloth/Qwen3.5-35B-A3B-GGUF:Q4_K_M"},
      {"qwen3.5:4b", "unsloth/Qwen3.5-4B-GGUF:Q4_K_M"},
      {"qwen3.5:9b", "unsloth/Qwen3.5-9B-GGUF"},
      {"qwen3.6", "unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL"},
      {"qwen3.6:35b", "unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL"},
      {"qwen3:0.6b", "Qwen/Qwen3-0.6B-GGUF"},
      {"qwen3:30b", "Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M"},
      {"qwen3:8b", "Qwen/Qwen3-8B-GGUF:Q4_K_M"},
      {"smollm2", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"},
      {"smollm2:1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct-GGUF:Q4_K_M"},
  };
  return all;
}

}  // namespace

std::string alias_of(std::string_view name, const std::string& root) {
  std::string wanted = lower(name);
  constexpr std::string_view latest = ":latest";
  if (wanted.ends_with(latest)) wanted.resize(wanted.size() - latest.size());
  if (const auto own = read_whole(root + "/aliases"); own.ok()) {
    std::istringstream lines(*own);
    for (std::string line; std::getline(lines, line);) {
      std::istringstream words(line);
      std::string alias, target;
      words >> alias >> target;
      if (!alias.starts_with('#') && !target.empty() && same_word(alias, wanted)) return target;
    }
  }
  const auto found = known().find(wanted);
  return found == known().end() ? std::string() : std::string(found->second);
}

bool names_hub_model(std::string_view name, const std::string& root) {
  return name.find('/') != std::string_view::npos || !alias_of(name, root).empty();
}

}  // namespace millrace::store
