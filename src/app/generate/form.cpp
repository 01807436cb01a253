#include "app/generate/form.h"

#include <algorithm>
#include <chrono>

#include "app/generate/prompt.h"
#include "app/generate/schema.h"
#include "base/mutex.h"
#include "base/words.h"
#include "text/constraint/grammar_constraint.h"
#include "text/constraint/input_constraint.h"
#include "text/constraint/schema.h"
#include "text/constraint/thought_budget.h"

namespace millrace::generate {
namespace {

/// Of a schema that cannot be kept, where its author said that it need not be (`strict` is false): the type alone.
Json type_of(const Json& schema) {
  const Json type = schema.is_object() ? schema.value("type", Json()) : Json();
  return type.is_string() ? Json{{"type", type}} : Json::object();
}

/// Builds a form with every schema; where one of them cannot be kept, once more without those that need not be.
template <typename Make>
Expected<std::shared_ptr<const text::Grammar>> kept_or_loose(bool may_be_loose, Make make) {
  auto made = make(false);
  return made.ok() || !may_be_loose || made.status().code() != Code::unsupported ? std::move(made) : make(true);
}

bool is_strict(const Json& function) { return function.value("strict", Json()) != false; }

/// One of the tools' calls, {"name", "arguments"}.
Json call_schema(const Job& job, bool loose) {
  Json branches = Json::array(), definitions = Json::object();
  for (const Json& tool : job.tools) {
    const Json& function = tool["function"];
    if (job.tool_choice == ToolChoice::named && function["name"] != job.tool_name) continue;
    const auto parameters = function.find("parameters");
    const bool some = parameters != function.end() && parameters->is_object() && !parameters->empty();
    const std::string key = fmt::format("tool{}", branches.size());
    Json arguments = some ? *parameters : Json{{"type", "object"}, {"properties", Json::object()}};
    if (loose && !is_strict(function)) arguments = {{"type", "object"}};
    if (!arguments.contains("$id")) arguments["$id"] = key;  // references within it begin there
    const auto client = job.client_tools.find(function["name"].get<std::string>());
    if (client != job.client_tools.end() && !client->second.grammar.empty())
      arguments["properties"]["input"] = {
          {"type", "string"},
          {text::kGrammarOfString, {{"syntax", client->second.syntax}, {"definition", client->second.grammar}}}};
    definitions[key] = std::move(arguments);
    branches.push_back(
        {{"type", "object"},
         {"properties", {{"name", {{"const", function["name"]}}}, {"arguments", {{"$ref", "#/$defs/" + key}}}}},
         {"required", {"name", "arguments"}},
         {"additionalProperties", false}});
  }
  return Json{{"anyOf", std::move(branches)}, {"$defs", std::move(definitions)}};
}

/// What all requests of a model share; it goes some time after its tokenizer.
std::shared_ptr<const text::TokenTrie> trie_of(const std::shared_ptr<const text::Tokenizer>& tokenizer) {
  struct Known {
    std::weak_ptr<const text::Tokenizer> tokenizer;
    std::shared_ptr<const text::TokenTrie> trie;
  };
  static Mutex mutex;
  static std::vector<Known> all MR_GUARDED_BY(mutex);
  const MutexLock lock(mutex);
  std::erase_if(all, [](const Known& known) { return known.tokenizer.expired(); });
  for (const Known& known : all)
    if (known.tokenizer.lock() == tokenizer) return known.trie;
  all.push_back({tokenizer, text::TokenTrie::make(*tokenizer)});
  return all.back().trie;
}

Status charge(const text::Grammar& grammar, WorkGrant* grant) {
  if (grant == nullptr || grant->take(grammar.bytes())) return {};
  return error(Code::out_of_budget, "the form takes more memory than requests may hold together");
}

/// Compiling a schema looks its names up one among the others.
Status check_width(const Json& schema) {
  if (!is_wide(schema)) return {};
  return error(Code::unsupported, "an object of it has more than {} members", kMostMembers);
}

using Grammar = Expected<std::shared_ptr<const text::Grammar>>;

/// The grammar of a schema. Limits that make it too large are clamped to what an answer can reach.
Grammar grammar_of(Json schema, const text::BuildLimits& limits) {
  MR_RETURN_IF_ERROR(check_width(schema));
  tidy_schema(schema);
  clamp_limits(schema, 0);
  Grammar made = text::schema_grammar(schema.dump(), limits);
  const auto is_too_large = [&] {
    const std::string words(made.status().message());
    return words.find("too large") != std::string::npos || words.find(" states ") != std::string::npos;
  };
  for (int step = 1; is_too_large() && clamp_limits(schema, step); ++step)
    made = text::schema_grammar(schema.dump(), limits);
  return made;
}

/// An error is told after so long at most, whether or not what is wrong was found.
constexpr auto kPatience = std::chrono::milliseconds(500);

/// What of a schema cannot be kept: " PROPERTY" where one of its properties alone cannot, else nothing.
std::string property_at_fault(const Json& schema, const text::BuildLimits& limits) {
  constexpr std::size_t kMostLookedAt = 256;
  const Json properties = schema.is_object() ? schema.value("properties", Json()) : Json();
  if (!properties.is_object() || properties.size() > kMostLookedAt) return "";
  Json rest = schema;
  for (const char* key : {"required", "properties"}) rest.erase(key);
  const auto begin = std::chrono::steady_clock::now();
  for (const auto& [name, property] : properties.items()) {
    if (std::chrono::steady_clock::now() - begin > kPatience) return "";
    Json alone = rest;
    alone["properties"] = {{name, property}};
    if (!grammar_of(std::move(alone), limits).ok()) return name;
  }
  return "";
}

/// An error of all tools together, with the name of the one that alone has it, too.
Status name_tool(const Status& status, const Job& job, const text::BuildLimits& limits) {
  const bool names_one = status.code() == Code::unsupported || status.code() == Code::invalid_argument;
  const auto begin = std::chrono::steady_clock::now();
  for (const Json& tool : job.tools) {
    if (!names_one || std::chrono::steady_clock::now() - begin > kPatience) break;
    Job alone;
    alone.tools = Json::array({tool});
    alone.client_tools = job.client_tools;
    if (grammar_of(call_schema(alone, false), limits).ok()) continue;
    const Json& function = tool["function"];
    const std::string property = property_at_fault(function.value("parameters", Json()), limits);
    return status.with_context(
        fmt::format("tools: {}{}{}", word(function, "name"), property.empty() ? "" : ": property ", property));
  }
  return status.with_context("tools");
}

/// What the whole answer has to be. REQUIRES: the job asks for something.
Expected<std::shared_ptr<const text::Grammar>> answer_grammar(const Job& job, WorkGrant* grant) {
  text::BuildLimits limits;
  limits.grant = grant;
  if (must_call_tool(job)) {
    const bool may_be_loose =
        std::any_of(job.tools.begin(), job.tools.end(), [](const Json& tool) { return !is_strict(tool["function"]); });
    auto made =
        kept_or_loose(may_be_loose, [&](bool loose) -> Grammar { return grammar_of(call_schema(job, loose), limits); });
    return made.ok() ? std::move(made) : name_tool(made.status(), job, limits);
  }
  if (job.format == Format::schema) {
    auto made = kept_or_loose(!job.strict, [&](bool loose) -> Grammar {
      return grammar_of(loose ? type_of(job.schema) : job.schema, limits);
    });
    if (made.ok()) return made;
    const std::string property = property_at_fault(job.schema, limits);
    return made.status().with_context(property.empty() ? "schema" : fmt::format("schema: property {}", property));
  }
  if (job.format == Format::grammar) {
    auto made = text::written_grammar(job.syntax, job.grammar, limits);
    return made.ok() ? std::move(made) : made.status().with_context("grammar");
  }
  return text::json_object_grammar();
}

/// Where the model is free to call tools, the texts of those that have a grammar keep it. Null: no tool has one.
Expected<std::shared_ptr<text::Constraint>> inputs_constraint(const Job& job, const text::Prompt& prompt,
                                                              const std::shared_ptr<const text::Tokenizer>& tokenizer,
                                                              WorkGrant* grant) {
  const text::TagStyle* const tags = prompt.format.calls != nullptr ? prompt.format.calls->tags : nullptr;
  std::vector<text::BoundInput> inputs;
  for (const Json& tool : job.tools) {
    const std::string name = tool["function"]["name"];
    const auto client = job.client_tools.find(name);
    if (client == job.client_tools.end() || client->second.grammar.empty()) continue;
    MR_ASSIGN_OR_RETURN(const text::GrammarSyntax syntax, text::grammar_syntax(client->second.syntax));
    text::BuildLimits limits;
    limits.grant = grant;
    auto input = text::bound_input(name, syntax, client->second.grammar, tags, limits);
    if (!input.ok()) return input.status().with_context(fmt::format("tools: the grammar of {}", name));
    MR_RETURN_IF_ERROR(charge(*input->in_json, grant));
    if (input->in_tags != nullptr) MR_RETURN_IF_ERROR(charge(*input->in_tags, grant));
    inputs.push_back(std::move(*input));
  }
  if (inputs.empty()) return std::shared_ptr<text::Constraint>();
  return text::make_input_constraint(std::move(inputs), tags, trie_of(tokenizer), tokenizer);
}

/// Whether the prompt ends with a thought that is closed: the model is not to think.
bool ends_thought(const text::Tokenizer& tokenizer, const text::Prompt& prompt, std::string_view mark) {
  std::string tail;
  for (std::size_t i = prompt.ids.size(); i-- > 0 && tail.size() < mark.size() + 8;)
    tail.insert(0, tokenizer.token_bytes(prompt.ids[i], true));
  return trim(tail).ends_with(trim(mark));
}

// Parts of harmony's messages.
constexpr std::string_view kThoughtMessage = "<|channel|>analysis<|message|>", kEndOfMessage = "<|end|>",
                           kNextMessage = "<|start|>assistant<|channel|>", kAnswer = "final<|message|>";

/// What may stand before the text that keeps the form: a thought that the prompt has opened, or one that the model
/// opens, as its template shows.
text::ThoughtBefore thought_before(const engine::Engine& engine, const Job& job, const text::Prompt& prompt) {
  text::ThoughtBefore thought;
  if (!job.chat || prompt.format.thoughts == nullptr) return thought;
  const text::Tokenizer& tokenizer = engine.tokenizer();
  const auto encode = [&](std::string_view text) { return tokenizer.encode(text, text::Specials::parse); };
  const bool begun = !begun_answer(job).empty();
  if (prompt.format.calls != nullptr && prompt.format.calls->channels) {
    if (begun) return thought;
    thought.begin = encode(kThoughtMessage);
    thought.end = kEndOfMessage;
    thought.header = encode(fmt::format("<|channel|>{}", kAnswer));
    thought.header_after = encode(fmt::format("{}{}", kNextMessage, kAnswer));
    return thought;
  }
  const text::ThoughtMarks& marks = *prompt.format.thoughts;
  thought.end = marks.end;
  thought.opened = prompt.in_thought;
  if (thought.opened || begun || job.thinking.on == false || job.thinking.effort == "none" ||
      ends_thought(tokenizer, prompt, marks.end))
    return thought;
  const text::ChatTemplate* const own = engine.chat_template();
  const std::string& jinja = !job.chat_template.empty() || own == nullptr ? job.chat_template : own->source();
  if (jinja.find(marks.begin) != std::string::npos || jinja.find(marks.end) != std::string::npos)
    thought.begin = encode(marks.begin);
  return thought;
}

/// The constraint of the form alone, without a thinking budget. Null: the job asks for no form.
Expected<std::shared_ptr<text::Constraint>> form_constraint(const engine::Engine& engine, const Job& job,
                                                            const text::Prompt& prompt, WorkGrant* grant) {
  const std::shared_ptr<const text::Tokenizer> tokenizer = engine.shared_tokenizer();
  if (job.format == Format::text && !must_call_tool(job)) {
    if (job.tool_choice == ToolChoice::none) return std::shared_ptr<text::Constraint>();
    return inputs_constraint(job, prompt, tokenizer, grant);
  }
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const text::Grammar> grammar, answer_grammar(job, grant));
  MR_RETURN_IF_ERROR(charge(*grammar, grant));
  auto constraint = text::make_constraint(std::move(grammar), trie_of(tokenizer));
  for (const text::TokenId id : tokenizer->encode(begun_answer(job), text::Specials::as_text))
    if (!constraint->accept(id).ok())
      return error(Code::invalid_argument, "messages: what the assistant has begun does not keep the form asked for");
  text::ThoughtBefore thought = thought_before(engine, job, prompt);
  if (!thought.opened && thought.begin.empty() && thought.header.empty()) return constraint;
  return text::make_constraint_after(std::move(thought), std::move(constraint), trie_of(tokenizer), tokenizer);
}

/// Adds the job's thinking budget to `form`, which may be null.
std::shared_ptr<text::Constraint> within_budget(const engine::Engine& engine, const Job& job,
                                                const text::Prompt& prompt, std::shared_ptr<text::Constraint> form) {
  if (!job.thinking.budget || !job.chat || prompt.format.thoughts == nullptr) return form;
  const std::shared_ptr<const text::Tokenizer> tokenizer = engine.shared_tokenizer();
  const auto encode = [&](std::string_view text) { return tokenizer->encode(text, text::Specials::parse); };
  text::BoundThought thought;
  thought.tokens = *job.thinking.budget;
  thought.opened = prompt.in_thought;
  if (prompt.format.calls != nullptr && prompt.format.calls->channels) {
    // A form's constraint writes the header of the next message. If that may be a call, only the channel of thoughts is
    // excluded.
    const bool has_form = job.format != Format::text || must_call_tool(job);
    const bool may_call = !job.tools.empty() && job.tool_choice != ToolChoice::none;
    thought.begin = kThoughtMessage;
    thought.end = kEndOfMessage;
    thought.closing =
        encode(fmt::format("{}{}{}", kEndOfMessage, has_form ? "" : kNextMessage, has_form || may_call ? "" : kAnswer));
    if (!has_form && may_call) thought.not_again = encode("analysis").front();
  } else {
    thought.begin = prompt.format.thoughts->begin;
    thought.end = prompt.format.thoughts->end;
    thought.closing = encode(thought.end);
    const auto begin = encode(thought.begin);
    if (begin.size() == 1) thought.not_again = begin.front();
  }
  return text::make_thought_budget(std::move(thought), std::move(form), tokenizer);
}

}  // namespace

Expected<std::shared_ptr<text::Constraint>> make_constraint(const engine::Engine& engine, const Job& job,
                                                            const text::Prompt& prompt, WorkGrant* grant) {
  MR_ASSIGN_OR_RETURN(std::shared_ptr<text::Constraint> form, form_constraint(engine, job, prompt, grant));
  return within_budget(engine, job, prompt, std::move(form));
}

}  // namespace millrace::generate
