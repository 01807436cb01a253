#include "app/store/recipe.h"

#include <charconv>
#include <cmath>
#include <map>

#include "app/store/name.h"
#include "base/log.h"
#include "base/words.h"
#include "modelfile/escape.h"
#include "text/chat_template.h"
#include "vision/beside.h"

namespace millrace::store {
namespace {

using nlohmann::json;

enum class Kind { integer, number, boolean, text };

struct Rule {
  Kind kind;
  double least = 0, most = 0;  // of numbers
};

constexpr double kAny = 1e9;

const std::map<std::string, Rule, std::less<>>& rules() {
  static const std::map<std::string, Rule, std::less<>> all = {{"num_keep", {Kind::integer, -1, kAny}},
                                                               {"seed", {Kind::integer, -9e15, 9e15}},
                                                               {"num_predict", {Kind::integer, -2, kAny}},
                                                               {"top_k", {Kind::integer, 0, kAny}},
                                                               {"top_p", {Kind::number, 0, 1}},
                                                               {"min_p", {Kind::number, 0, 1}},
                                                               {"typical_p", {Kind::number, 0, 1}},
                                                               {"repeat_last_n", {Kind::integer, -1, kAny}},
                                                               {"temperature", {Kind::number, 0, 100}},
                                                               {"repeat_penalty", {Kind::number, 0.01, 100}},
                                                               {"presence_penalty", {Kind::number, -100, 100}},
                                                               {"frequency_penalty", {Kind::number, -100, 100}},
                                                               {"stop", {Kind::text}},
                                                               {"num_ctx", {Kind::integer, 0, kAny}},
                                                               {"num_batch", {Kind::integer, 0, kAny}},
                                                               {"num_gpu", {Kind::integer, -1, kAny}},
                                                               {"num_thread", {Kind::integer, 0, kAny}},
                                                               {"use_mmap", {Kind::boolean}},
                                                               {"penalize_newline", {Kind::boolean}},
                                                               {"mirostat", {Kind::integer, 0, 2}},
                                                               {"mirostat_tau", {Kind::number, 0, kAny}},
                                                               {"mirostat_eta", {Kind::number, 0, kAny}},
                                                               {"tfs_z", {Kind::number, 0, kAny}},
                                                               {"main_gpu", {Kind::integer, 0, kAny}},
                                                               {"use_mlock", {Kind::boolean}},
                                                               {"num_gqa", {Kind::integer, 0, kAny}}};
  return all;
}

Expected<Rule> rule_of(std::string_view name) {
  const auto found = rules().find(name);
  if (found == rules().end())
    return error(Code::invalid_argument, "'{}' is no parameter; temperature, top_k, top_p, num_ctx, stop and so on are",
                 name.substr(0, 60));
  return found->second;
}

Status out_of_bounds(std::string_view name, const Rule& rule, std::string_view given) {
  return error(Code::invalid_argument, "parameter {} wants {} from {} to {}, not '{}'", name,
               rule.kind == Kind::integer ? "a whole number" : "a number", rule.least, rule.most, given.substr(0, 60));
}

/// Walks the text instruction by instruction.
class Reader {
 public:
  explicit Reader(std::string_view text) : rest_(text) {}

  /// The next line that says something; false at the end.
  bool next_line(std::string_view& line) {
    while (!rest_.empty()) {
      const auto end = rest_.find('\n');
      line = trim(rest_.substr(0, end));
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
  return {line.substr(0, end), trim(line.substr(end))};
}

template <typename T>
Expected<json> number_value(std::string_view name, std::string_view text, const Rule& rule) {
  T value{};
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  const auto number = static_cast<double>(value);
  // Written so that it is false for NaN.
  const bool inside = number >= rule.least && number <= rule.most;
  if (failure != std::errc() || end != text.data() + text.size() || !inside) return out_of_bounds(name, rule, text);
  return json(value);
}

/// One value of a parameter, as a client's JSON has it.
Expected<json> checked_value(std::string_view name, const Rule& rule, const json& value) {
  switch (rule.kind) {
    case Kind::integer:
    case Kind::number: {
      const double number = value.is_number() ? value.get<double>() : std::nan("");
      const bool whole = rule.kind == Kind::number || std::floor(number) == number;
      if (!(number >= rule.least && number <= rule.most) || !whole) return out_of_bounds(name, rule, value.dump());
      return rule.kind == Kind::integer ? json(static_cast<std::int64_t>(number)) : json(number);
    }
    case Kind::boolean:
      if (!value.is_boolean()) return error(Code::invalid_argument, "parameter {} wants true or false", name);
      return value;
    case Kind::text:
      break;
  }
  if (!value.is_string()) return error(Code::invalid_argument, "parameter {} wants a text, or a list of them", name);
  return value;
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

Status check_role(const std::string& role) {
  if (role == "system" || role == "user" || role == "assistant") return {};
  return error(Code::invalid_argument, "the role is system, user or assistant, not '{}'", role.substr(0, 60));
}

Status add_message(Recipe& recipe, const std::string& role, std::string content) {
  MR_RETURN_IF_ERROR(check_role(role).with_context("MESSAGE"));
  recipe.messages.push_back({{"role", role}, {"content", std::move(content)}});
  return {};
}

/// What newer Modelfiles say to Ollama alone: which of its programs renders prompts and reads answers, and its version.
bool is_ollamas_own(std::string_view instruction) {
  return same_word(instruction, "RENDERER") || same_word(instruction, "PARSER") || same_word(instruction, "REQUIRES");
}

Status apply(Recipe& recipe, std::string_view instruction, std::string_view rest, Reader& reader) {
  if (same_word(instruction, "PARAMETER") || same_word(instruction, "MESSAGE")) {
    const auto [word, tail] = first_word(rest);
    MR_ASSIGN_OR_RETURN(std::string value, reader.value(tail));
    return same_word(instruction, "PARAMETER") ? add_parameter(recipe, std::string(word), value)
                                               : add_message(recipe, std::string(word), std::move(value));
  }
  MR_ASSIGN_OR_RETURN(std::string value, reader.value(rest));
  if (same_word(instruction, "FROM")) {
    std::string& place = value.ends_with(".gguf") && vision::is_mmproj_name(value) ? recipe.mmproj : recipe.from;
    if (!place.empty())
      return error(Code::invalid_argument, "FROM {} comes after FROM {}; give one model, and maybe its mmproj file",
                   modelfile::escape(value, 100), modelfile::escape(place, 100));
    place = std::move(value);
  } else if (same_word(instruction, "ADAPTER")) {
    if (value.empty()) return error(Code::invalid_argument, "ADAPTER: name a GGUF file or a folder that PEFT saved");
    recipe.adapters.push_back({.path = std::move(value)});
  } else if (same_word(instruction, "SYSTEM")) {
    recipe.system = std::move(value);
  } else if (same_word(instruction, "TEMPLATE")) {
    MR_RETURN_IF_ERROR(check_template(value));
    recipe.chat_template = std::move(value);
  } else if (same_word(instruction, "LICENSE")) {
    recipe.license = std::move(value);
  } else if (is_ollamas_own(instruction)) {
    log::warn("Modelfile: {} {} has no effect: the chat template decides how prompts and answers are written",
              modelfile::escape(instruction, 20), modelfile::escape(value, 60));
  } else {
    return error(Code::invalid_argument,
                 "'{}' is no instruction; use FROM, ADAPTER, PARAMETER, SYSTEM, TEMPLATE, LICENSE or MESSAGE",
                 instruction.substr(0, 60));
  }
  return {};
}

std::string quoted(const std::string& text) { return "\"\"\"" + text + "\"\"\""; }

}  // namespace

Expected<json> parameter_value(std::string_view name, std::string_view text) {
  MR_ASSIGN_OR_RETURN(const Rule rule, rule_of(name));
  switch (rule.kind) {
    case Kind::integer:
      return number_value<std::int64_t>(name, text, rule);
    case Kind::number:
      return number_value<double>(name, text, rule);
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
  if (text.empty()) return {};
  const auto read = text::ChatTemplate::from_text(std::string(text));
  return read.ok() ? Status() : read.status().with_context("TEMPLATE");
}

Expected<json> check_parameters(const json& parameters) {
  if (!parameters.is_object()) return error(Code::invalid_argument, "parameters: must be an object");
  json out = json::object();
  for (const auto& [name, value] : parameters.items()) {
    MR_ASSIGN_OR_RETURN(const Rule rule, rule_of(name));
    if (rule.kind != Kind::text) {
      MR_ASSIGN_OR_RETURN(out[name], checked_value(name, rule, value));
      continue;
    }
    json& list = out[name] = json::array();
    for (const json& one : value.is_array() ? value : json::array({value})) {
      MR_ASSIGN_OR_RETURN(json text, checked_value(name, rule, one));
      list.push_back(std::move(text));
    }
  }
  return out;
}

Status check_messages(const json& messages) {
  if (!messages.is_array()) return error(Code::invalid_argument, "messages: must be a list");
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto is_text = [&message = messages[i]](const char* field) {
      const auto found = message.is_object() ? message.find(field) : message.end();
      return found != message.end() && found->is_string();
    };
    if (!is_text("role") || !is_text("content"))
      return error(Code::invalid_argument, "messages[{}]: wants role and content, both of them texts", i);
    MR_RETURN_IF_ERROR(check_role(messages[i]["role"].get<std::string>()).with_context(fmt::format("messages[{}]", i)));
  }
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
  for (const AdapterSource& adapter : recipe.adapters) out += "ADAPTER " + adapter.path + "\n";
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
