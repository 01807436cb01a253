#include "convert/config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/json_nesting.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"

namespace millrace::convert {

using nlohmann::json;

namespace {

std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "a list" : "an object";
  return modelfile::escape(value.dump(-1, ' ', false, json::error_handler_t::replace), 40);
}

/// Python writes infinities and NaN as bare words; they become what transformers 5 writes, {"__float__": "Infinity"}.
void tag_infinities(std::string& text) {
  std::string out;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = std::string_view(text).substr(i);
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) out += text[i++];
    std::string_view word;
    for (const std::string_view known : {"-Infinity", "Infinity", "NaN"})
      if (!quoted && rest.starts_with(known)) word = known;
    if (word.empty()) {
      out += text[i];
      continue;
    }
    out += fmt::format("{{\"__float__\": \"{}\"}}", word);
    i += word.size() - 1;
  }
  text = std::move(out);
}

}  // namespace

const ConfigClass* config_class(std::string_view model_type) {
  for (const ConfigClass& known : config_classes())
    if (known.model_type == model_type) return &known;
  return nullptr;
}

Expected<json> read_json(const std::string& path, JsonKind kind) {
  MR_ASSIGN_OR_RETURN(const modelfile::File file, modelfile::File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, file.size());
  const std::string name = modelfile::escape(path);
  if (bytes > kMostJsonBytes) return error(Code::corrupt, "{}: has {} bytes, which no such file has", name, bytes);
  std::string text(static_cast<std::size_t>(bytes), '\0');
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  if (nests_too_deep(text)) return error(Code::corrupt, "{}: it nests too deep; download the file again", name);
  tag_infinities(text);
  json parsed = json::parse(text, nullptr, false);
  const bool list = kind == JsonKind::list;
  if (list ? !parsed.is_array() : !parsed.is_object())
    return error(Code::corrupt, "{}: is no JSON {}; download the file again", name, list ? "list" : "object");
  return parsed;
}

Config::Config(json read, const ConfigClass* known)
    : json_(known == nullptr ? json::object() : json::parse(known->defaults)), known_(known) {
  if (!read.is_object()) return;
  const json aliases = known == nullptr ? json::object() : json::parse(known->aliases);
  if (known != nullptr)
    for (const auto& [alias, name] : aliases.items())
      if (const std::string& field = name.get_ref<const std::string&>(); read.contains(alias) && !read.contains(field))
        read[field] = read[alias];
  // null is a value, except for RoPE parameters, where it means the class's default.
  for (auto& [key, value] : read.items())
    if (!value.is_null() || key != "rope_parameters") json_[key] = std::move(value);
}

const json* Config::find(std::string_view key) const& {
  read_.emplace(key);
  const auto found = json_.find(std::string(key));
  return found == json_.end() || found->is_null() ? nullptr : &*found;
}

void Config::set(std::string_view key, json value) { json_[std::string(key)] = std::move(value); }

void Config::drop(std::string_view key) {
  read_.emplace(key);
  json_.erase(std::string(key));
}

void Config::disregard(std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) read_.emplace(key);
}

void Config::refuse_the_rest() {
  if (known_ == nullptr) return;
  // These change which tensors exist; a tensor that the family does not know is refused by name.
  static constexpr std::string_view kByTensors[] = {
      "attention_bias",  "mlp_bias",        "use_bias",        "use_conv_bias",    "use_qk_norm",        "vocab_size",
      "mamba_conv_bias", "mamba_proj_bias", "moe_latent_size", "n_shared_experts", "tie_word_embeddings"};
  const json defaults = json::parse(known_->defaults), felt = json::parse(known_->felt);
  for (const json& field : felt) {
    const std::string& name = field.get_ref<const std::string&>();
    if (read_.contains(name) || std::find(std::begin(kByTensors), std::end(kByTensors), name) != std::end(kByTensors))
      continue;
    const auto value = json_.find(name);
    const json given = value == json_.end() ? json() : *value, usual = defaults.value(name, json());
    if (given != usual)
      fail(error(Code::unsupported, "{} in config.json is {}: this version has such models with {} alone", name,
                 shown(given), shown(usual)));
  }
}

void Config::wrong(std::string_view key, std::string_view wanted) {
  const json* value = find(key);
  if (value == nullptr)
    fail(error(Code::not_found, "config.json lacks {}; download the file again", key));
  else
    fail(error(Code::corrupt, "{} in config.json is {}, but {} is expected", key, shown(*value), wanted));
}

std::int64_t Config::required(std::string_view key, std::int64_t least, std::int64_t most) {
  const json* value = find(key);
  if (value != nullptr && value->is_number_integer() &&
      (!value->is_number_unsigned() || value->get<std::uint64_t>() <= INT64_MAX)) {
    const auto number = value->get<std::int64_t>();
    if (number >= least && number <= most) return number;
  }
  wrong(key, fmt::format("a whole number from {} to {}", least, most));
  return least;
}

std::int64_t Config::optional(std::string_view key, std::int64_t fallback, std::int64_t least, std::int64_t most) {
  return has(key) ? required(key, least, most) : fallback;
}

double Config::number(std::string_view key, double fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  wrong(key, "a number");
  return fallback;
}

bool Config::flag(std::string_view key, bool fallback) {
  const json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  wrong(key, "true or false");
  return fallback;
}

std::string Config::text(std::string_view key, std::string_view fallback) {
  const json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  wrong(key, "a text");
  return std::string(fallback);
}

std::vector<double> Config::numbers(std::string_view key) {
  std::vector<double> list;
  const json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) wrong(key, "a list of numbers");
  for (const json& element : *value) {
    if (!element.is_number()) {
      wrong(key, "a list of numbers");
      return {};
    }
    list.push_back(element.get<double>());
  }
  return list;
}

std::vector<std::string> Config::texts(std::string_view key) {
  std::vector<std::string> list;
  const json* value = find(key);
  if (value == nullptr) return list;
  if (!value->is_array()) wrong(key, "a list of texts");
  for (const json& element : *value) {
    if (!element.is_string()) {
      wrong(key, "a list of texts");
      return {};
    }
    list.push_back(element.get<std::string>());
  }
  return list;
}

Config Config::within(std::string_view key) const {
  const json* value = find(key);
  return Config(value == nullptr || !value->is_object() ? json::object() : *value);
}

void Config::expect(std::string_view key, const json& wanted) {
  const json* value = find(key);
  if (value != nullptr && *value != wanted)
    fail(error(Code::unsupported, "{} in config.json is {}: this version has such models with {} alone", key,
               shown(*value), shown(wanted)));
}

}  // namespace millrace::convert
