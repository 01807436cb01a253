// A Modelfile: FROM, ADAPTER, PARAMETER, SYSTEM, TEMPLATE, LICENSE, MESSAGE, one instruction a line; a value may stand
// in quotes or over many lines in triple quotes; '#' begins a comment line. Source: Ollama's documentation of the
// format. Thread-safety: values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "app/store/manifest.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::store {

/// A LoRA adapter that becomes part of a model: a GGUF file, or what PEFT saved.
struct AdapterSource {
  std::string path = {};                 // the file, or PEFT's folder
  std::vector<ModelFile> uploaded = {};  // or blobs by name: one GGUF file, or both of PEFT's files
};

struct Recipe {
  std::string from = {};
  nlohmann::json parameters = nlohmann::json::object();
  std::string system = {}, chat_template = {}, license = {};
  nlohmann::json messages = nlohmann::json::array();
  std::string mmproj = {};  // of another FROM, whose file is called like an mmproj file; empty: none
  std::vector<AdapterSource> adapters = {};
};

/// Errors: invalid_argument with the line's number (also of a FROM too many); unsupported (a template in Go's
/// language).
Expected<Recipe> parse_recipe(std::string_view text);

/// A parameter's text as its JSON value, by the parameter's kind ("temperature" is a number, "stop" a string).
/// Errors: invalid_argument (unknown name, a value of another kind, or one out of its bounds).
Expected<nlohmann::json> parameter_value(std::string_view name, std::string_view text);

/// Parameters as a client's JSON has them, with whole numbers as such and "stop" as a list. Errors: invalid_argument
/// (no object, an unknown name, a value of another kind or out of bounds: NaN and infinities are).
Expected<nlohmann::json> check_parameters(const nlohmann::json& parameters);

/// Refuses what is not a list of {role, content} of texts. Errors: invalid_argument.
Status check_messages(const nlohmann::json& messages);

/// Refuses a chat template that is not Jinja, or that cannot be read. Errors: unsupported.
Status check_template(std::string_view chat_template);

/// The Modelfile that would make the same model again.
std::string to_text(const Recipe& recipe);

}  // namespace millrace::store
