#include "app/store/recipe.h"

#include <charconv>
#include <map>

#include "app/store/name.h"

namespace millrace::store {
namespace {

using nlohmann::json;

enum class Kind { integer, number, boolean, text };

const std::map<std::string, Kind, std::less<>>& kinds() {
  static const std::map<std::string, Kind, std::less<>> all = {{"num_keep", Kind::integer},
                                                               {"seed", Kind::integer},
                                                               {"num_predict", Kind::integer},
                                                               {"top_k", Kind::integer},
                                                               {"top_p", Kind::number},
                                                               {"min_p", Kind::number},
                                                               {"typical_p", Kind::number},
                                                               {"repeat_last_n", Kind::integer},
                                                               {"temperature", Kind::number},
                                                               {"repeat_penalty", Kind::number},
                                                               {"presence_penalty", Kind::number},
                                                               {"frequency_penalty", Kind::number},
                                                               {"stop", Kind::text},
                                                               {"num_ctx", Kind::integer},
                                                               {"num_batch", Kind::integer},
                                                               {"num_gpu", Kind::integer},
                                                               {"num_thread", Kind::integer},
                                                               {"use_mmap", Kind::boolean},
                                                               {"penalize_newline", Kind::boolean},
                                                               {"mirostat", Kind::integer},
                                                               {"mirostat_tau", Kind::number},
                                                               {"mirostat_eta", Kind::number},
                                                               {"tfs_z", Kind::number},
                                                               {"main_gpu", Kind::integer},
                                                               {"use_mlock", Kind::boolean},
                                                               {"num_gqa", Kind::integer}};
  return all;
}

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

/// Walks the text instruction by instruction.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  /// The next line that says something; false at the end.
  bool next_line(std::string_view& line) {
    while (!rest_.empty()) {
      const auto end = rest_.find('\n');
      line = trimmed(rest_.substr(0, end));
      rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
      ++number_;
      if (!line.empty() && line.front() != '#') return true;
    }
    return false;
  }

  /// What `text`, the rest of the current line, stands for: quotes are taken off, triple quotes read on.
  Expected<std::string> value(std::string_view text) {
    constexpr std::string_view fence = "\"\"\"";
    if (text.starts_with(fence)) return fenced(text.substr(fence.size()));
    if (text.size() >= 2 && text.front() == '"' && text.back() == '"')
      return std::string(text.substr(1, text.size() - 2));
    return std::string(text);
  }
  int number() const { return number_; }

 private:
  Expected<std::string> fenced(std::string_view head) {
    constexpr std::string_view fence = "\"\"\"";
    if (const auto end = head.find(fence); end != std::string_view::npos) return std::string(head.substr(0, end));
    const auto end = rest_.find(fence);
    if (end == std::string_view::npos)
      return error(Code::invalid_argument, "the text in \"\"\" has no end; close it with \"\"\"");
    std::string whole = std::string(head) + (head.empty() ? "" : "\n") + std::string(rest_.substr(0, end));
    for (const char c : rest_.substr(0, end)) number_ += c == '\n' ? 1 : 0;
    const auto line_end = rest_.find('\n', end);
    rest_ = line_end == std::string_view::npos ? std::string_view() : rest_.substr(line_end + 1);
    ++number_;
    return whole;
  }

  std::string_view rest_;
  int number_ = 0;
};

/// "name rest" cut at the first white space.
std::pair<std::string_view, std::string_view> first_word(std::string_view line) {
  const auto end = line.find_first_of(" \t");
  if (end == std::string_view::npos) return {line, {}};
  return {line.substr(0, end), trimmed(line.substr(end))};
}

template <typename T>
Expected<json> number_value(std::string_view name, std::string_view text, const char* kind) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size())
    return error(Code::invalid_argument, "parameter {} wants {}, not '{}'", name, kind, text);
  return json(value);
}

Status add_parameter(Recipe& recipe, const std::string& name, const std::string& text) {
  MR_ASSIGN_OR_RETURN(json value, parameter_value(name, text));
  if (name == "stop") {
    recipe.parameters["stop"].push_back(std::move(value));
  } else {
    recipe.parameters[name] = std::move(value);
  }
  return {};
}

Status add_message(Recipe& recipe, const std::string& role, std::string content) {
  if (role != "system" && role != "user" && role != "assistant")
    return error(Code::invalid_argument, "MESSAGE wants system, user or assistant, not '{}'", role);
  recipe.messages.push_back({{"role", role}, {"content", std::move(content)}});
  return {};
}

Status apply(Recipe& recipe, std::string_view instruction, std::string_view rest, Reader& reader) {
  if (same_word(instruction, "PARAMETER") || same_word(instruction, "MESSAGE")) {
    const auto [word, tail] = first_word(rest);
    MR_ASSIGN_OR_RETURN(std::string value, reader.value(tail));
    return same_word(instruction, "PARAMETER") ? add_parameter(recipe, std::string(word), value)
                                               : add_message(recipe, std::string(word), std::move(value));
  }
  if (same_word(instruction, "ADAPTER"))
    return error(Code::unsupported, "ADAPTER: adapters are not supported; merge it into the model and use FROM alone");
  MR_ASSIGN_OR_RETURN(std::string value, reader.value(rest));
  if (same_word(instruction, "FROM")) {
    recipe.from = std::move(value);
  } else if (same_word(instruction, "SYSTEM")) {
    recipe.system = std::move(value);
  } else if (same_word(instruction, "TEMPLATE")) {
    MR_RETURN_IF_ERROR(check_template(value));
    recipe.chat_template = std::move(value);
  } else if (same_word(instruction, "LICENSE")) {
    recipe.license = std::move(value);
  } else {
    return error(Code::invalid_argument,
                 "'{}' is no instruction; use FROM, PARAMETER, SYSTEM, TEMPLATE, LICENSE or MESSAGE",
                 instruction.substr(0, 60));
  }
  return {};
}

std::string quoted(const std::string& text) { return "\"\"\"" + text + "\"\"\""; }

}  // namespace

Expected<json> parameter_value(std::string_view name, std::string_view text) {
  const auto found = kinds().find(name);
  if (found == kinds().end())
    return error(Code::invalid_argument, "'{}' is no parameter; temperature, top_k, top_p, num_ctx, stop and so on are",
                 name.substr(0, 60));
  switch (found->second) {
    case Kind::integer:
      return number_value<std::int64_t>(name, text, "a whole number");
    case Kind::number:
      return number_value<double>(name, text, "a number");
    case Kind::boolean:
      if (text != "true" && text != "false")
        return error(Code::invalid_argument, "parameter {} wants true or false, not '{}'", name, text);
      return json(text == "true");
    case Kind::text:
      break;
  }
  return json(std::string(text));
}

Status check_template(std::string_view text) {
  const bool go = text.find("{{ .") != std::string_view::npos || text.find("{{.") != std::string_view::npos ||
                  text.find("{{- ") != std::string_view::npos;
  const bool jinja = text.find("{%") != std::string_view::npos || text.find("messages") != std::string_view::npos;
  if (go && !jinja)
    return error(
        Code::unsupported,
        "TEMPLATE is written in Go's template language; write it in Jinja, or leave it out for the model's own");
  return {};
}

Expected<Recipe> parse_recipe(std::string_view text) {
  Recipe recipe;
  Reader reader(text);
  std::string_view line;
  while (reader.next_line(line)) {
    const int number = reader.number();
    const auto [instruction, rest] = first_word(line);
    if (Status status = apply(recipe, instruction, rest, reader); !status.ok())
      return status.with_context(fmt::format("line {}", number));
  }
  if (recipe.from.empty()) return error(Code::invalid_argument, "FROM is missing; name a GGUF file or a model");
  return recipe;
}

std::string to_text(const Recipe& recipe) {
  std::string out = "FROM " + recipe.from + "\n";
  const auto one = [&](const std::string& name, const json& value) {
    out += fmt::format("PARAMETER {} {}\n", name, value.is_string() ? quoted(value.get<std::string>()) : value.dump());
  };
  for (const auto& [name, value] : recipe.parameters.items()) {
    if (!value.is_array()) one(name, value);
    if (value.is_array())
      for (const json& each : value) one(name, each);
  }
  if (!recipe.system.empty()) out += "SYSTEM " + quoted(recipe.system) + "\n";
  if (!recipe.chat_template.empty()) out += "TEMPLATE " + quoted(recipe.chat_template) + "\n";
  if (!recipe.license.empty()) out += "LICENSE " + quoted(recipe.license) + "\n";
  for (const json& message : recipe.messages)
    out += fmt::format("MESSAGE {} {}\n", message.value("role", "user"), quoted(message.value("content", "")));
  return out;
}

}  // namespace millrace::store
