// The form that an answer keeps: response_format, and what other servers have for it.
#include <string_view>

#include "app/generate/fields.h"
#include "app/openai/request.h"

namespace millrace::openai {

using generate::Fields;
using generate::Format;

namespace {

/// GBNF where rules are written with ::=, else Lark.
void take_grammar(const std::string& grammar, Job& job) {
  job.format = Format::grammar;
  job.grammar = grammar;
  job.syntax = grammar.find("::=") != std::string::npos ? text::GrammarSyntax::gbnf : text::GrammarSyntax::lark;
}

/// One of these texts, as a regular expression.
Status take_choices(const char* field, const Json& choices, Job& job) {
  bool good = choices.is_array() && !choices.empty();
  if (good)
    for (const Json& one : choices) good = good && one.is_string();
  if (!good) return error(Code::invalid_argument, "{}: must be a list of texts", field);
  job.format = Format::grammar;
  job.syntax = text::GrammarSyntax::regex;
  job.grammar.clear();
  for (const Json& one : choices) {
    if (!job.grammar.empty()) job.grammar += '|';
    for (const char c : one.get<std::string>()) {
      if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) job.grammar += '\\';
      job.grammar += c;
    }
  }
  return {};
}

Status take_schema(const char* field, const Json& schema, Job& job) {
  job.format = Format::schema;
  job.schema = schema.is_string() ? generate::parse_json(schema.get_ref<const std::string&>()) : schema;
  if (job.schema.is_discarded()) return error(Code::invalid_argument, "{}: is no JSON, or nested too deep", field);
  return {};
}

/// A form as huggingface_hub's clients and TGI send it: the type, and the schema or expression as "value". A schema may
/// stand in there with a name. None: the format is not spelled that way.
Expected<bool> take_value(const char* field, const Json& format, Job& job) {
  if (!format.is_object() || !format.contains("value") || format["value"].is_null()) return false;
  const std::string type = word(format, "type");
  const Json& value = format["value"];
  if (type == "regex" || type == "regexp") {
    if (!value.is_string()) return error(Code::invalid_argument, "{}: value must be a text", field);
    take_grammar(value.get<std::string>(), job);
    job.syntax = text::GrammarSyntax::regex;
    return true;
  }
  if (type != "json" && type != "json_object" && type != "json_schema")
    return error(Code::invalid_argument, "{}: a value goes with the types json, json_object, json_schema and regex",
                 field);
  const bool named = value.is_object() && value.contains("schema") && value.contains("name");
  MR_RETURN_IF_ERROR(take_schema(field, named ? value["schema"] : value, job));
  return true;
}

/// A form by the name that llama-server, vLLM or sglang has for it.
Status take_form(const char* field, std::string_view kind, const Json& value, Job& job) {
  if (kind == "json") return take_schema(field, value, job);
  if (kind == "choice") return take_choices(field, value, job);
  if (kind == "object") {
    if (value == true) job.format = Format::json;
    return value.is_boolean() ? Status() : error(Code::invalid_argument, "{}: json_object must be true", field);
  }
  MR_ASSIGN_OR_RETURN(const bool taken, take_value(field, value, job));
  if (taken) return {};
  if (!value.is_string()) return error(Code::invalid_argument, "{}: must be a text", field);
  take_grammar(value.get<std::string>(), job);
  if (kind == "gbnf") job.syntax = text::GrammarSyntax::gbnf;
  if (kind == "regex") job.syntax = text::GrammarSyntax::regex;
  return {};
}

/// response_format.
Status take_response_format(const Json& format, Job& job) {
  const std::string type = word(format, "type");
  if (type == "text") return {};
  MR_ASSIGN_OR_RETURN(const bool taken, take_value("response_format", format, job));
  if (taken) return {};
  if (type == "regex" && format.contains("pattern"))  // Together's
    return take_form("response_format", "regex", format["pattern"], job);
  if (type == "json_object") {
    job.format = format.contains("schema") ? Format::schema : Format::json;  // llama-server has schemas there, too
    if (job.format == Format::schema) job.schema = format["schema"];
    return {};
  }
  if (type == "grammar") {
    if (word(format, "grammar").empty())
      return error(Code::invalid_argument, "response_format: grammar must be a string");
    take_grammar(word(format, "grammar"), job);
    return {};
  }
  if (type != "json_schema")
    return error(Code::invalid_argument,
                 "response_format: type must be text, json_object, json_schema, json, regex or grammar");
  // Chat completions put the schema below json_schema, responses beside the type.
  const Json& holder = format.contains("json_schema") ? format["json_schema"] : format;
  if (!holder.is_object() || !holder.contains("schema"))
    return error(Code::invalid_argument, "response_format: json_schema needs a schema");
  job.format = Format::schema;
  job.schema = holder["schema"];
  job.strict = holder.value("strict", Json()) != false;
  return {};
}

}  // namespace

Status parse_form(const Fields& fields, Job& job) {
  struct Form {
    const char* field;
    const char* kind;
  };
  static constexpr Form forms[] = {{"grammar", "gbnf"},       {"json_schema", "json"},
                                   {"ebnf", "gbnf"},          {"regex", "regex"},  // sglang's
                                   {"guided_json", "json"},   {"guided_grammar", "grammar"},
                                   {"guided_regex", "regex"}, {"guided_choice", "choice"}};
  static constexpr Form outputs_forms[] = {
      {"grammar", "grammar"}, {"json", "json"}, {"regex", "regex"}, {"choice", "choice"}, {"json_object", "object"}};
  if (const Json* format = fields.find("response_format")) MR_RETURN_IF_ERROR(take_response_format(*format, job));
  int taken = job.format == Format::text ? 0 : 1;
  for (const Form& form : forms) {
    const Json* const value = fields.find(form.field);
    if (value == nullptr || *value == "") continue;  // clients of llama-server send an empty grammar for none
    MR_RETURN_IF_ERROR(take_form(form.field, form.kind, *value, job));
    ++taken;
  }
  if (const Json* outputs = fields.find("structured_outputs"); outputs != nullptr) {
    const int before = taken;
    for (const Form& form : outputs_forms) {
      if (!outputs->is_object() || !outputs->contains(form.field) || (*outputs)[form.field].is_null()) continue;
      MR_RETURN_IF_ERROR(take_form("structured_outputs", form.kind, (*outputs)[form.field], job));
      ++taken;
    }
    if (taken == before)
      return error(Code::unsupported,
                   "structured_outputs: only json, json_object, grammar, regex and choice are supported");
  }
  if (taken > 1) return error(Code::invalid_argument, "grammar: several forms are asked for; send one");
  return {};
}

}  // namespace millrace::openai
