#include "app/cli/help.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <memory>
#include <sstream>

namespace millrace::cli {
namespace {

struct Place {
  const char* group;
  bool rare = false;  // left out where a verb has many flags
};

/// The places of flags, by their longest name. A flag that is missing here belongs to its verb alone.
const std::map<std::string, Place>& places() {
  constexpr const char *model = "Model", *memory = "Memory", *compute = "Processors", *sampling = "Sampling",
                       *network = "Network", *service = "Service";
  static const std::map<std::string, Place> all = {
      {"--model", {model}},
      {"--cluster", {model, true}},
      {"--show-plan", {model, true}},
      {"--models", {model}},
      {"--draft", {model, true}},
      {"--mmproj", {model, true}},
      {"--lora", {model, true}},
      {"--control-vector", {model, true}},
      {"--control-vector-scaled", {model, true}},
      {"--control-vector-layer-range", {model, true}},
      {"--system", {model}},
      {"--think", {model}},
      {"--think-budget", {model, true}},
      {"--raw", {model, true}},
      {"--local", {model, true}},
      {"--keep-alive", {model}},
      {"--ram", {memory}},
      {"--vram", {memory}},
      {"--ctx", {memory}},
      {"--kv", {memory, true}},
      {"--kv-tokens", {memory, true}},
      {"--prompt-cache", {memory, true}},
      {"--prompt-cache-size", {memory, true}},
      {"--prompt-cache-after", {memory, true}},
      {"--pin", {memory, true}},
      {"--vram-experts", {memory, true}},
      {"--expert-slots", {memory, true}},
      {"--policy", {memory, true}},
      {"--pack", {memory, true}},
      {"--learn-experts", {memory, true}},
      {"--prefetch", {memory, true}},
      {"--tile", {memory, true}},
      {"--plan", {memory, true}},
      {"--device", {compute}},
      {"--threads", {compute}},
      {"--batch", {compute, true}},
      {"--stages", {compute, true}},
      {"--fetch-share", {compute, true}},
      {"--no-peer", {compute, true}},
      {"--cpu-share", {compute, true}},
      {"--isa", {compute, true}},
      {"--storage", {compute, true}},
      {"--speculate", {compute, true}},
      {"--rates", {compute, true}},
      {"--record-routing", {compute, true}},
      {"--parallel", {compute}},
      {"--temp", {sampling}},
      {"--top-k", {sampling, true}},
      {"--top-p", {sampling, true}},
      {"--min-p", {sampling, true}},
      {"--repeat-penalty", {sampling, true}},
      {"--presence-penalty", {sampling, true}},
      {"--frequency-penalty", {sampling, true}},
      {"--repeat-last-n", {sampling, true}},
      {"--seed", {sampling}},
      {"--max-tokens", {sampling}},
      {"--stop", {sampling, true}},
      {"--grammar", {sampling, true}},
      {"--schema", {sampling, true}},
      {"--regex", {sampling, true}},
      {"--host", {network}},
      {"--port", {network}},
      {"--api-key", {network}},
      {"--allow-host", {network}},
      {"--image-urls", {network, true}},
      {"--allow-origin", {network, true}},
      {"--queue", {network, true}},
      {"--daemon", {service}},
      {"--drain", {service}},
      {"--pid-file", {service, true}},
      {"--log-file", {service, true}},
      {"--log-format", {service, true}},
      {"--config", {service, true}},
  };
  return all;
}

/// Verbs, in the groups of `millrace --help`.
const std::map<std::string, std::string>& verb_groups() {
  static const std::map<std::string, std::string> all = {
      {"run", "Ask"},
      {"batch", "Ask"},
      {"embed", "Ask"},
      {"pull", "Models"},
      {"list", "Models"},
      {"show", "Models"},
      {"rm", "Models"},
      {"cp", "Models"},
      {"create", "Models"},
      {"inspect", "Models"},
      {"convert", "Models"},
      {"export", "Models"},
      {"export-lora", "Models"},
      {"quantize", "Models"},
      {"split", "Models"},
      {"merge", "Models"},
      {"verify", "Models"},
      {"pack", "Models"},
      {"tokenize", "Models"},
      {"serve", "Server"},
      {"ps", "Server"},
      {"stop", "Server"},
      {"plan", "This machine"},
      {"calibrate", "This machine"},
      {"doctor", "This machine"},
      {"bench", "This machine"},
  };
  return all;
}

/// What people type most, by command ("": of the program), with what it does; lines fit 80 columns.
const std::map<std::string, std::string>& examples() {
  static const std::map<std::string, std::string> all = {
      {"",
       "  millrace doctor                    what this machine runs well\n"
       "  millrace plan qwen3:30b --ram 12G  where it would go, and how fast\n"
       "  millrace run qwen3:30b --ram 12G   chat; fetches it first\n"
       "  millrace serve                     APIs, and a page for the browser\n"},
      {"run",
       "  millrace run qwen3:8b                          chat\n"
       "  millrace run qwen3:8b \"Why is the sky blue?\"   one answer\n"
       "  cat FILE | millrace run qwen3:8b \"Summarise\"   a pipe\n"
       "  millrace run model.gguf --vram 8G --ram 16G    under limits\n"},
      {"batch",
       "  millrace batch prompts.txt answers.jsonl qwen3:8b     a prompt a line\n"
       "  millrace batch requests.jsonl answers.jsonl qwen3:8b  OpenAI's format\n"},
      {"embed",
       "  millrace embed bge-m3.gguf \"a text\" \"another text\"\n"
       "  millrace embed bge-m3.gguf <lines.txt >vectors.jsonl\n"},
      {"pull",
       "  millrace pull qwen3:8b                   a short name\n"
       "  millrace pull hf.co/USER/REPO:Q4_K_M     any GGUF repository\n"},
      {"list", "  millrace list\n"},
      {"show", "  millrace show qwen3:8b    licence, size, context, what it can do\n"},
      {"rm", "  millrace rm qwen3:8b\n"},
      {"cp", "  millrace cp qwen3:8b coder    then: millrace run coder\n"},
      {"create", "  millrace create NAME -f Modelfile\n"},
      {"inspect",
       "  millrace inspect model.gguf              hyperparameters and sizes\n"
       "  millrace inspect model.gguf --tensors    every tensor\n"},
      {"convert",
       "  millrace convert FOLDER -o model.gguf             a checkpoint on the disk\n"
       "  millrace convert hf.co/USER/REPO -o model.gguf    one from the hub\n"},
      {"export", "  millrace export model.gguf FOLDER\n"},
      {"export-lora", "  millrace export-lora base.gguf --lora adapter.gguf -o merged.gguf\n"},
      {"quantize",
       "  millrace quantize f16.gguf out.gguf Q4_K_M        a usual type\n"
       "  millrace quantize f16.gguf out.gguf --bytes 12G   the best file of 12 GB\n"},
      {"pack", "  millrace pack mixture.gguf    run and serve then read the pack\n"},
      {"split", "  millrace split model.gguf parts.gguf --max-size 4G\n"},
      {"merge", "  millrace merge parts-00001-of-00003.gguf model.gguf\n"},
      {"verify",
       "  millrace verify model.gguf                   are all weights numbers?\n"
       "  millrace verify q8.gguf --against f16.gguf   how far apart are they?\n"},
      {"tokenize",
       "  millrace tokenize qwen3:8b \"a text\"           its token ids\n"
       "  echo 1 2 3 | millrace tokenize qwen3:8b --ids  the text of these ids\n"},
      {"serve",
       "  millrace serve                                 models on demand, and a page\n"
       "  millrace serve qwen3:8b --ctx 32768            one model, loaded at once\n"
       "  millrace serve --host 0.0.0.0 --api-key KEY    for a network\n"},
      {"ps", "  millrace ps\n"},
      {"stop",
       "  millrace stop qwen3:8b    unload a model\n"
       "  millrace stop --server    end a server that --daemon started\n"},
      {"plan",
       "  millrace plan qwen3:30b                       before a download\n"
       "  millrace plan qwen3:30b --vram 12G --ram 24G  under limits\n"
       "  millrace plan f16.gguf --as Q4_K_M            as quantize would write it\n"},
      {"calibrate",
       "  millrace calibrate                 this folder's disk, RAM, CPU and GPU\n"
       "  millrace calibrate /mnt/models     another disk\n"},
      {"doctor", "  millrace doctor    what runs well here, what limits it, what to do\n"},
      {"bench", "  millrace bench model.gguf --explain    prediction beside measurement\n"},
      {"eval", "  millrace eval model.gguf questions.jsonl\n"},
      {"imatrix", "  millrace imatrix f16.gguf -f TEXT -o imatrix.gguf\n"},
      {"sensitivity", "  millrace sensitivity f16.gguf -f TEXT -o sensitivity.json\n"},
      {"completion", "  millrace completion bash >~/.bash_completion\n"},
      {"perplexity",
       "  millrace perplexity f16.gguf -f TEXT --save-logits f16.logits\n"
       "  millrace perplexity q4.gguf -f TEXT --against f16.logits\n"},
  };
  return all;
}

/// Short: a value's kind without its bounds, which a message names where they are passed.
class ShortFormatter final : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_opts(option);
    if (!option->get_option_text().empty()) {  // CLI11 leaves out what it says of others
      if (!option->get_default_str().empty() && !is_long(*option)) text += "=" + option->get_default_str();
      if (option->get_required()) text += " REQUIRED";
    }
    const auto bounds = text.rfind(':', text.find(" in ["));
    if (text.find(" in [") == std::string::npos || bounds == std::string::npos) return text;
    const auto end = text.find(']', bounds);
    return end == std::string::npos ? text : text.erase(bounds, end + 1 - bounds);
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = CLI::Formatter::make_option_desc(option);
    if (!is_long(*option)) return text;
    std::string all;
    for (const char c : option->get_default_str())
      if (c != '[' && c != ']') all += c == ',' ? ", " : std::string(1, c);
    return fmt::format("{} (default: {})", text, all);
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return fit(CLI::Formatter::make_help(app, std::move(name), mode));
  }
  /// With examples, which come before the flags.
  std::string make_usage(const CLI::App* app, std::string name) const override {
    const auto found = examples().find(app->get_parent() == nullptr ? "" : app->get_name());
    const std::string usage = CLI::Formatter::make_usage(app, std::move(name));
    return found == examples().end() ? usage : usage + "\nExamples:\n" + found->second;
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    return option->get_option_text().empty() ? CLI::Formatter::make_option_usage(option) : option->get_option_text();
  }

 private:
  static constexpr std::size_t kColumns = 80;

  /// Whether the default takes too much room beside the flag.
  static bool is_long(const CLI::Option& option) { return option.get_default_str().size() > 40; }

  /// Breaks long lines between words; what goes on with an option's description stands two columns further in.
  std::string fit(const std::string& text) const {
    std::string out;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const std::string indent(line.starts_with("  ") ? get_column_width() + 2 : 0, ' ');
      while (line.size() > kColumns) {
        std::size_t end = line.rfind(' ', kColumns);
        const std::size_t begin = line.find_first_not_of(' ');
        if (end == std::string::npos || end <= std::max(begin, indent.size())) end = line.find(' ', kColumns);
        if (end == std::string::npos || line.find_first_not_of(' ', end) == std::string::npos) break;
        out += line.substr(0, end) + "\n";
        line = indent + line.substr(line.find_first_not_of(' ', end));
      }
      if (!line.empty() || !out.ends_with("\n\n")) out += line + "\n";
    }
    return out;
  }
};

}  // namespace

void arrange_help(CLI::App& app, std::vector<std::string>& words) {
  const auto said = [&](const char* word) { return std::find(words.begin(), words.end(), word) != words.end(); };
  // Only then: messages about a flag that is hidden could not name it.
  const bool short_one = !said("--help-all") && (said("--help") || said("-h"));
  std::replace(words.begin(), words.end(), std::string("--help-all"), std::string("--help"));
  constexpr std::size_t many = 24;
  const auto formatter = std::make_shared<ShortFormatter>();
  formatter->column_width(28);
  app.formatter(formatter);
  for (CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    const auto group = verb_groups().find(verb->get_name());
    verb->group(group == verb_groups().end() ? "More" : group->second);
    verb->formatter(formatter);
    const std::vector<CLI::Option*> options = verb->get_options([](const CLI::Option*) { return true; });
    int left_out = 0;
    for (CLI::Option* option : options) {
      if (option->get_group().empty() || option->get_lnames().empty()) continue;  // hidden, or a positional
      const auto place = places().find("--" + option->get_lnames().back());
      if (place == places().end()) continue;
      const bool hide = place->second.rare && short_one && options.size() > many;
      left_out += hide ? 1 : 0;
      option->group(hide ? "" : place->second.group);
    }
    if (left_out > 0) verb->footer(fmt::format("{} more: millrace {} --help-all", left_out, verb->get_name()));
  }
}

}  // namespace millrace::cli
