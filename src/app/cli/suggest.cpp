#include "app/cli/suggest.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <system_error>

namespace millrace::cli {
namespace {

/// Options of llama.cpp, Ollama and vLLM: ours that do the same, or the sentence to print. What begins with "--" is an
/// option, perhaps with a value.
const std::map<std::string_view, std::string_view>& foreign_options() {
  constexpr std::string_view vram = "--vram SIZE, which caps GPU memory; layers and experts are placed by themselves";
  constexpr std::string_view ram = "--ram SIZE, which caps memory; weights are read from the disk as they are needed";
  static const std::map<std::string_view, std::string_view> all = {
      {"--temperature", "--temp"},
      {"-ngl", vram},
      {"--ngl", vram},
      {"--n-gpu-layers", vram},
      {"--gpu-layers", vram},
      {"--num-gpu", vram},
      {"--gpu-memory-utilization", vram},
      {"--cpu-offload-gb", vram},
      {"--n-cpu-moe", vram},
      {"--cpu-moe", vram},
      {"-ncmoe", vram},
      {"-ot", vram},
      {"--override-tensor", vram},
      {"--mlock", ram},
      {"--no-mmap", ram},
      {"--num-ctx", "--ctx"},
      {"--ctx-size", "--ctx"},
      {"--context-length", "--ctx"},
      {"--max-model-len", "--ctx"},
      {"--n-ctx", "--ctx"},
      {"--n-predict", "--max-tokens"},
      {"--predict", "--max-tokens"},
      {"--num-predict", "--max-tokens"},
      {"--max-new-tokens", "--max-tokens"},
      {"--num-thread", "--threads"},
      {"--n-threads", "--threads"},
      {"--threads-batch", "--threads"},
      {"--batch-size", "--batch"},
      {"--ubatch-size", "--batch"},
      {"--num-batch", "--batch"},
      {"--repetition-penalty", "--repeat-penalty"},
      {"--cache-type-k", "--kv"},
      {"--cache-type-v", "--kv"},
      {"-ctk", "--kv"},
      {"-ctv", "--kv"},
      {"--kv-cache-dtype", "--kv"},
      {"-fa", "leave it out: attention is always computed block by block"},
      {"--flash-attn", "leave it out: attention is always computed block by block"},
      {"--jinja", "leave it out: a model's chat template is always used"},
      {"-cnv", "give no prompt: then `millrace run MODEL` chats"},
      {"--conversation", "give no prompt: then `millrace run MODEL` chats"},
      {"--interactive", "give no prompt: then `millrace run MODEL` chats"},
      {"-sys", "--system"},
      {"--system-prompt", "--system"},
      {"--chat-template", "use TEMPLATE in a Modelfile (`millrace create`)"},
      {"--json-schema", "--schema"},
      {"--json-schema-file", "--schema"},
      {"--format", "--schema"},
      {"--grammar-file", "--grammar"},
      {"-md", "--draft"},
      {"--model-draft", "--draft"},
      {"--draft-model", "--draft"},
      {"--speculative-model", "--draft"},
      {"--draft-max", "--speculate"},
      {"--no-mmproj", "--mmproj off"},
      {"--images", "--image"},
      {"--main-gpu", "--device cuda:N"},
      {"--split-mode", "--device cuda:0,1"},
      {"--tensor-split", "--device cuda:0,1"},
      {"--tensor-parallel-size", "--device cuda:0,1"},
      {"-hf", "use a name: millrace run hf.co/USER/REPO:QUANT"},
      {"--hf-repo", "use a name: millrace run hf.co/USER/REPO:QUANT"},
      {"--max-num-seqs", "--parallel"},
      {"-np", "--parallel"},
      {"--keepalive", "--keep-alive"},
      {"--hidethinking", "--no-think"},
      {"--reasoning-budget", "--think-budget"},
      {"--log-disable", "--quiet"},
      {"--list-devices", "use `millrace doctor`"},
  };
  return all;
}

/// Commands of other programs.
const std::map<std::string_view, std::string_view>& foreign_commands() {
  static const std::map<std::string_view, std::string_view> all = {
      {"chat", "run"},      {"generate", "run"}, {"complete", "run"}, {"server", "serve"},   {"start", "serve"},
      {"download", "pull"}, {"get", "pull"},     {"install", "pull"}, {"delete", "rm"},      {"remove", "rm"},
      {"models", "list"},   {"info", "show"},    {"copy", "cp"},      {"rename", "cp"},      {"benchmark", "bench"},
      {"unload", "stop"},   {"kill", "stop"},    {"status", "ps"},    {"devices", "doctor"}, {"embeddings", "embed"},
  };
  return all;
}

/// What a slip of the fingers may cost: a letter in words of up to three, one more for each three letters.
int most_cost(const std::string& word) { return word.size() <= 3 ? 3 : 2 * static_cast<int>((word.size() + 2) / 3); }

/// The nearest of `names`; empty: none is near. A beginning of exactly one name is near.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
  std::string found;
  int best = most_cost(word) + 1, begins = 0;
  for (const std::string& name : names) {
    // Among equals the one with the same first letter, which fingers seldom miss.
    const int cost = 2 * edit_cost(word, name) + (name[0] == word[0] ? 0 : 1);
    if (cost < 2 * best) {
      best = (cost + 1) / 2;
      found = name;
    }
  }
  if (!found.empty() || word.size() < 3) return found;
  for (const std::string& name : names)
    if (name.starts_with(word) && ++begins == 1) found = name;
  return begins == 1 ? found : "";
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back(name);
  return names;
}

std::string command_words(const CLI::App& command) {
  return command.get_parent() == nullptr ? "millrace" : "millrace " + command.get_name();
}

/// `-n,--max-tokens` for "--max-tokens", as the help shows it.
std::string full_name(const CLI::App& command, const std::string& flag) {
  for (const CLI::App* app = &command; app != nullptr; app = app->get_parent())
    if (const CLI::Option* option = app->get_option_no_throw(flag); option != nullptr)
      return option->get_name(false, true);
  return flag;
}

}  // namespace

int edit_cost(const std::string& typed, const std::string& meant) {
  constexpr int gap = 2, wrong = 3, swapped = 2;
  const std::size_t columns = meant.size() + 1;
  std::vector<int> costs((typed.size() + 1) * columns);  // [typed + 1, meant + 1]
  const auto at = [&](std::size_t i, std::size_t j) -> int& { return costs[i * columns + j]; };
  for (std::size_t i = 0; i <= typed.size(); ++i)
    for (std::size_t j = 0; j <= meant.size(); ++j) {
      if (i == 0 || j == 0) {
        at(i, j) = gap * static_cast<int>(i + j);
        continue;
      }
      const int replaced = at(i - 1, j - 1) + (typed[i - 1] == meant[j - 1] ? 0 : wrong);
      at(i, j) = std::min({replaced, at(i - 1, j) + gap, at(i, j - 1) + gap});
      if (i > 1 && j > 1 && typed[i - 1] == meant[j - 2] && typed[i - 2] == meant[j - 1])
        at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + swapped);
    }
  return costs.back();
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  std::error_code ignored;
  std::string hint = "'millrace --help' lists the commands";
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(verb->get_name());
  const auto foreign = foreign_commands().find(word);
  if (word.size() > 64) return fmt::format("error: unknown command '{}...'; {}\n", word.substr(0, 64), hint);
  if (foreign != foreign_commands().end())
    hint = fmt::format("use 'millrace {}'", foreign->second);
  else if (word.ends_with(".gguf") || word.find('/') != std::string::npos || std::filesystem::exists(word, ignored))
    hint = fmt::format("did you mean 'millrace run {}'?", word);
  else if (const std::string closest = nearest(word, names); !closest.empty())
    hint = fmt::format("did you mean 'millrace {}'?", closest);
  return fmt::format("error: unknown command '{}'; {}\n", word, hint);
}

std::string unknown_argument(const CLI::App& command, const std::string& word) {
  const std::string help = fmt::format("'{} --help' lists the options", command_words(command));
  if (!word.starts_with('-') || word == "-")
    return fmt::format("error: unexpected argument '{}'; {}\n", word.substr(0, 200), help);
  std::string name = word.substr(0, word.find('='));
  if (name.size() > 64) return fmt::format("error: unknown option {}...; {}\n", name.substr(0, 64), help);
  if (name.starts_with("--")) std::replace(name.begin(), name.end(), '_', '-');
  const auto foreign = foreign_options().find(name);
  const std::vector<std::string> names = option_names(command);
  if (foreign != foreign_options().end()) {
    const std::string instead(foreign->second);
    if (!instead.starts_with("--")) return fmt::format("error: unknown option {}; {}\n", name, instead);
    // Not every command has every option.
    const std::string flag = instead.substr(2, instead.find_first_of(" ,") - 2);
    if (std::find(names.begin(), names.end(), flag) != names.end())
      return fmt::format("error: unknown option {}; use {}\n", name, instead);
    return fmt::format("error: unknown option {}, and {} has no --{} either; {}\n", name, command_words(command), flag,
                       help);
  }
  const std::string bare =
      name.substr(name.find_first_not_of('-') == std::string::npos ? name.size() : name.find_first_not_of('-'));
  const std::string closest = bare.size() < 2 ? "" : nearest(bare, names);
  return closest.empty() ? fmt::format("error: unknown option {}; {}\n", name, help)
                         : fmt::format("error: unknown option {}; did you mean --{}?\n", name, closest);
}

std::string foreign_short_option(const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") break;
    std::string name = word.substr(0, word.find('='));
    if (name.size() > 2 && name[0] == '-' && name[1] != '-' && foreign_options().contains(name)) return name;
  }
  return {};
}

std::string plain_message(const CLI::App& command, const CLI::Error& wrong) {
  std::string message = wrong.what();
  const std::string help = fmt::format("'{} --help' lists the options", command_words(command));
  const auto colon = message.find(": ");
  const std::string name = message.substr(0, std::min(colon, message.find(' ')));
  if (message.find(": At Most 1 required but received") != std::string::npos) {
    if (name == "--model" || name == "model")
      return "error: the model is given twice; name it once, as the first word or by -m\n";
    return fmt::format("error: {} is given more than once; give it once\n", full_name(command, name));
  }
  if (const auto at = message.find(" required "); at != std::string::npos && message.ends_with(" missing"))
    return fmt::format(
        "error: {} needs a value: {} {}\n", full_name(command, name), name,
        message.substr(at + 10, std::min(message.find_first_of(": ", at + 10), message.size()) - at - 10));
  if (message.starts_with("A subcommand")) return fmt::format("error: millrace needs a command; {}\n", help);
  if (message.ends_with(" is required"))
    return fmt::format("error: {} needs {}; {}\n", command_words(command),
                       name == "model" || name == "--model" ? "a model" : name, help);
  if (const auto at = message.find("--"); at != std::string::npos) {
    const auto end = std::min(message.find_first_of(": =", at), message.size());
    const std::string flag = message.substr(at, end - at);
    message.replace(at, flag.size(), full_name(command, flag));
  }
  return fmt::format("error: {}; {}\n", message, help);
}

}  // namespace millrace::cli
