// `millrace completion SHELL`: what bash, zsh and fish need to complete verbs, flags and models, read off the parser
// itself.
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "app/cli/command.h"

namespace millrace::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  // "-m", "--model"
  std::string description;         // its first sentence
  bool takes_value = false;
  std::vector<std::string> values;  // words that it takes; empty: any
  bool takes_path = false;          // beside them
};

struct Verb {
  std::string name, description;
  std::vector<Flag> flags;
};

/// Without what shells or their completion systems would read as their own.
std::string plain(std::string text) {
  for (char& c : text)
    if (c == '\'' || c == '"' || c == '`' || c == '$' || c == '\\' || c == '[' || c == ']' || c == ':' || c == '\n')
      c = ' ';
  return text;
}

bool is_word(std::string_view text) {
  return !text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-';
  });
}

/// The words of a flag as its help lists them, "Kernels: auto, plain, avx2" or "TEXT:{off,auto,on}", as far as they are
/// words: "or a number" is none.
void find_values(const CLI::Option& option, Flag& flag) {
  static const std::regex aside(" *\\([^()]*\\)"), border(", or |[,;] | or |: ");
  const std::string& type = option.get_type_name();
  std::string list = option.get_description();
  if (const auto brace = type.find('{'); brace != std::string::npos) {
    list = std::regex_replace(type.substr(brace + 1, type.find('}') - brace - 1), std::regex(","), ", ");
  } else {
    list = std::regex_replace(list, aside, "");
    const auto colon = list.find(": ");
    list = colon == std::string::npos ? "" : list.substr(colon + 2);
  }
  for (std::sregex_token_iterator item(list.begin(), list.end(), border, -1), end; item != end; ++item) {
    const std::string word = *item;
    flag.takes_path = flag.takes_path || word == "a file" || word == "a folder";
    if (!is_word(word)) break;
    flag.values.push_back(word);
  }
  if (flag.values.size() < 2) flag.values.clear();
}

std::vector<Flag> flags_of(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    Flag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (flag.names.empty() || option->get_group().empty()) continue;  // a positional; what help hides, too
    const std::string description = option->get_description();
    flag.description = plain(description.substr(0, description.find_first_of(";(")));
    flag.takes_value = option->get_items_expected_max() > 0;
    if (flag.takes_value) find_values(*option, flag);
    flags.push_back(std::move(flag));
  }
  return flags;
}

std::vector<Verb> verbs_of(const CLI::App& app) {
  std::vector<Verb> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (verb->get_name().empty()) continue;
    verbs.push_back({verb->get_name(), plain(verb->get_description()), flags_of(*verb)});
    for (const Flag& global : flags_of(app))
      if (global.names.back() != "--help" && global.names.back() != "--version") verbs.back().flags.push_back(global);
  }
  return verbs;
}

std::string words_of(const std::vector<Flag>& flags) {
  std::string words;
  for (const Flag& flag : flags)
    for (const std::string& name : flag.names) words += (words.empty() ? "" : " ") + name;
  return words;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  return fmt::format("{}", fmt::join(words, between));
}

/// Lines of bash's `case` on a verb and the flag before the cursor.
std::string values_in_bash(const std::vector<Verb>& verbs) {
  std::string cases;
  for (const Verb& verb : verbs) {
    for (const Flag& flag : verb.flags) {
      if (flag.values.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : flag.names) patterns.push_back(verb.name + "/" + name);
      cases += fmt::format("    {}) values='{}' ;;\n", joined(patterns, "|"), joined(flag.values, " "));
    }
  }
  return cases;
}

std::string value_in_zsh(const Flag& flag) {
  if (!flag.takes_value) return "";
  return flag.values.empty() || flag.takes_path ? ":value:_files" : ":value:(" + joined(flag.values, " ") + ")";
}

/// Names of models, where a word is no flag: files are completed beside them.
constexpr const char* kModels = "millrace list 2>/dev/null | awk 'NR > 1 { print $1 }'";

std::string for_bash(const CLI::App& app) {
  std::string names, cases;
  for (const Verb& verb : verbs_of(app)) {
    names += (names.empty() ? "" : " ") + verb.name;
    cases += fmt::format("    {}) flags='{}' ;;\n", verb.name, words_of(verb.flags));
  }
  return fmt::format(R"sh(_millrace() {{
  local cur prev words cword i verb= flags= values=
  if declare -F _get_comp_words_by_ref >/dev/null; then _get_comp_words_by_ref -n : cur prev words cword
  else cur=${{COMP_WORDS[COMP_CWORD]}} words=("${{COMP_WORDS[@]}}") cword=$COMP_CWORD prev=${{COMP_WORDS[COMP_CWORD-1]}}; fi
  # --flag=value is three words here.
  if [[ $cur == = ]]; then cur= prev=${{words[cword-1]}}; elif [[ $prev == = ]]; then prev=${{words[cword-2]}}; fi
  for ((i = 1; i < cword; ++i)); do [[ ${{words[i]}} == -* ]] || {{ verb=${{words[i]}}; break; }}; done
  case $verb in
    '') flags='{} {}' ;;
{}  esac
  case $verb/$prev in
{}  esac
  if [[ -n $values ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
    [[ -n ${{COMPREPLY[*]}} ]] && return
  fi
  COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  [[ -z $verb || $cur == -* ]] && return
  COMPREPLY=($(compgen -W "$({})" -- "$cur"))
  if [[ -n ${{COMPREPLY[*]}} ]]; then
    declare -F __ltrim_colon_completions >/dev/null && __ltrim_colon_completions "$cur"
  else
    compopt -o filenames 2>/dev/null
    COMPREPLY=($(compgen -f -- "$cur"))
  fi
}}
complete -F _millrace millrace
)sh",
                     names, words_of(flags_of(app)), cases, values_in_bash(verbs_of(app)), kModels);
}

std::string for_zsh(const CLI::App& app) {
  std::string names, cases;
  for (const Verb& verb : verbs_of(app)) {
    names += fmt::format("    '{}:{}'\n", verb.name, verb.description);
    cases += fmt::format("    {}) _arguments '*:model or file:_millrace_models'", verb.name);
    for (const Flag& flag : verb.flags)
      for (const std::string& name : flag.names)
        cases += fmt::format(" \\\n      '*{}[{}]{}'", name, flag.description, value_in_zsh(flag));
    cases += " ;;\n";
  }
  return fmt::format(R"sh(#compdef millrace
_millrace_models() {{
  local -a models=(${{(f)"$({})"}})
  compadd -a models
  _files
}}
_millrace() {{
  local -a verbs=(
{}  )
  if (( CURRENT == 2 )); then _describe verb verbs; return; fi
  local verb=$words[2]
  shift words
  (( CURRENT-- ))
  case $verb in
{}  esac
}}
if [[ $funcstack[1] == _millrace ]]; then _millrace "$@"; else compdef _millrace millrace; fi
)sh",
                     kModels, names, cases);
}

std::string for_fish(const CLI::App& app) {
  std::string text = "complete -c millrace -n __fish_use_subcommand -f\n";
  for (const Verb& verb : verbs_of(app)) {
    text += fmt::format("complete -c millrace -n __fish_use_subcommand -a {} -d '{}'\n", verb.name, verb.description);
    const std::string seen = fmt::format("complete -c millrace -n '__fish_seen_subcommand_from {}'", verb.name);
    text += fmt::format("{} -a \"({})\"\n", seen, "millrace list 2>/dev/null | awk 'NR > 1 { print \\$1 }'");
    for (const Flag& flag : verb.flags) {
      text += seen;
      for (const std::string& name : flag.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (flag.takes_value) text += flag.values.empty() || flag.takes_path ? " -r" : " -x";
      if (!flag.values.empty()) text += fmt::format(" -a '{}'", joined(flag.values, " "));
      text += fmt::format(" -d '{}'\n", flag.description);
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print a shell's completions of commands, options and models");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &app] {
    fmt::print("{}", *shell == "bash" ? for_bash(app) : *shell == "zsh" ? for_zsh(app) : for_fish(app));
  });
}

}  // namespace millrace::cli
