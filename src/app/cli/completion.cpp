// `millrace completion SHELL`: what bash, zsh and fish need to complete verbs, flags and models, read off the parser
// itself.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "app/cli/command.h"

namespace millrace::cli {
namespace {

struct Flag {
  std::vector<std::string> names;  // "-m", "--model"
  std::string description;         // its first sentence
  bool takes_value = false;
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

std::vector<Flag> flags_of(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    Flag flag;
    for (const std::string& name : option->get_snames()) flag.names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) flag.names.push_back("--" + name);
    if (flag.names.empty()) continue;  // a positional
    const std::string description = option->get_description();
    flag.description = plain(description.substr(0, description.find_first_of(";(")));
    flag.takes_value = option->get_items_expected_max() > 0;
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

/// Names of models, where a word is no flag: files are completed beside them.
constexpr const char* kModels = "millrace list 2>/dev/null | awk 'NR > 1 { print $1 }'";

std::string for_bash(const CLI::App& app) {
  std::string names, cases;
  for (const Verb& verb : verbs_of(app)) {
    names += (names.empty() ? "" : " ") + verb.name;
    cases += fmt::format("    {}) flags='{}' ;;\n", verb.name, words_of(verb.flags));
  }
  return fmt::format(R"sh(_millrace() {{
  local cur prev words cword i verb= flags=
  if declare -F _get_comp_words_by_ref >/dev/null; then _get_comp_words_by_ref -n : cur prev words cword
  else cur=${{COMP_WORDS[COMP_CWORD]}} words=("${{COMP_WORDS[@]}}") cword=$COMP_CWORD; fi
  for ((i = 1; i < cword; ++i)); do [[ ${{words[i]}} == -* ]] || {{ verb=${{words[i]}}; break; }}; done
  case $verb in
    '') flags='{} {}' ;;
{}  esac
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
                     names, words_of(flags_of(app)), cases, kModels);
}

std::string for_zsh(const CLI::App& app) {
  std::string names, cases;
  for (const Verb& verb : verbs_of(app)) {
    names += fmt::format("    '{}:{}'\n", verb.name, verb.description);
    cases += fmt::format("    {}) _arguments '*:model or file:_millrace_models'", verb.name);
    for (const Flag& flag : verb.flags)
      for (const std::string& name : flag.names)
        cases += fmt::format(" \\\n      '*{}[{}]{}'", name, flag.description, flag.takes_value ? ":value:_files" : "");
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
      text += fmt::format("{} -d '{}'\n", flag.takes_value ? " -r" : "", flag.description);
    }
  }
  return text;
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* command = app.add_subcommand("completion", "Print what a shell needs to complete verbs, flags and models");
  command->add_option("shell", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->callback([shell, &app] {
    fmt::print("{}", *shell == "bash" ? for_bash(app) : *shell == "zsh" ? for_zsh(app) : for_fish(app));
  });
}

}  // namespace millrace::cli
