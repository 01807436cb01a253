// A client's request in the form that all APIs are parsed into and that a Run executes. Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/generate/json.h"
#include "app/generate/pictures.h"
#include "base/status.h"
#include "base/work_grant.h"
#include "engine/sampler.h"
#include "kv/sequence.h"
#include "text/constraint/written_grammar.h"
#include "text/thinking.h"

namespace millrace::generate {

enum class Format { text, json, schema, grammar };
enum class ToolChoice { automatic, none, required, named };

/// A tool of OpenAI's responses API whose name differs from the one used here.
struct ClientTool {
  std::string name, name_space;  // name_space empty: none
  bool custom = false;           // takes a text instead of JSON: "input" of its arguments
  std::string runs = {};         // "shell", "local_shell" or "apply_patch": OpenAI's own, which the client runs
  std::string syntax, grammar;   // of a custom one: what its text keeps (see text::grammar_syntax); empty: any text
};

struct Job {
  std::string model;

  /// A conversation: each message has "role" and "content" (a string), an assistant's maybe "tool_calls"
  /// [{"id", "type": "function", "function": {"name", "arguments": object}}] and "reasoning_content", a tool's "name"
  /// or "tool_call_id".
  bool chat = true;
  Json messages = Json::array();
  Pictures pictures;           // the messages' texts contain their markers
  Json tools = Json::array();  // [{"type": "function", "function": {"name", "description", "parameters"}}]
  std::map<std::string, ClientTool> client_tools;  // by the name in `tools`; missing: the client knows it by that, too
  ToolChoice tool_choice = ToolChoice::automatic;
  std::string tool_name;                     // when named
  text::Thinking thinking;                   // empty: the template's default
  Json template_variables = Json::object();  // further ones of the chat template
  std::string chat_template;                 // instead of the file's; empty: the file's
  std::vector<text::TokenId> before;         // tokens of an earlier conversation, placed before this one
  /// A text to continue, instead of a conversation.
  std::string prompt;
  std::vector<text::TokenId> prompt_tokens;  // instead of `prompt`
  bool raw = true;                           // special tokens in `prompt` are parsed, BOS goes first where there is one

  /// Fills the gap between `prompt` and the text after it. Other files may precede the prompt.
  struct Fill {
    struct File {
      std::string name, text;
    };
    std::string suffix, begun;  // begun: the beginning of the filling
    std::vector<File> files;
  };
  std::optional<Fill> fill;

  engine::SamplerOptions sampler;
  std::int64_t max_tokens = -1;  // -1: to the end of the context
  std::int64_t context = 0;      // tokens of prompt and answer together; 0: what the model was loaded with
  bool truncate = false;         // drops the oldest messages if not all of them fit
  std::vector<std::string> stop;
  int n = 1;
  Format format = Format::text;
  Json schema;
  bool strict = true;  // false: a schema that cannot be kept is none (see form.cpp); tools say so themselves
  text::GrammarSyntax syntax = text::GrammarSyntax::gbnf;
  std::string grammar;
  bool logprobs = false;
  int top_logprobs = 0;
  std::map<text::TokenId, float> logit_bias;
  int prompt_logprobs = -1;       // likeliest tokens at each place of the prompt; -1: the prompt's are not wanted
  int told_prompt_logprobs = -1;  // of them those that the answer has apart from its echo
  std::int64_t min_tokens = 0;
  std::vector<text::TokenId> stop_tokens;
  std::vector<std::string> bad_words;     // texts that the answer never has
  std::vector<std::string> dry_breakers;  // texts that no repetition reaches across
  bool parallel_calls = true;             // false: the first call of a tool ends the answer
  bool echo = false;
  bool ignore_end = false;   // ignores the model's end-of-text tokens
  bool progress = false;     // reports prompt progress
  bool keep_tokens = false;  // fills Meter::tokens
  /// The adapters of the answer by index, with their scales; nullopt: those that the server applies to all.
  std::optional<kv::AdapterMix> adapters;
  std::string adapter;  // or the adapter that the model's name has after a colon
  bool stream = false, include_usage = false;
  int priority = 0;
  /// The API whose wording a prompt-too-long error must have, because clients match it.
  enum class Words { openai, responses, anthropic, ollama } words = Words::openai;
  bool any_length = false;  // the prompt is counted, not answered
};

/// What a Modelfile adds to every conversation of its model.
struct Defaults {
  std::string system, chat_template;  // empty: none
  Json messages = Json::array();      // turns that go before the first one
};
/// Adds these defaults to a conversation that has no system message or template. Completions do not change.
void lay_under(const Defaults& defaults, Job& job);

/// Who asks the grant for the work on a body's texts (rendered, cut into tokens), which takes more than all their
/// copies. Pictures in base64 are texts of a body, and none of its prompt: where they may come, make_prompt() asks.
enum class WorkOnTexts { granted_with_the_body, granted_with_the_prompt };

/// A JSON object from a request's body. `grant` (may be null) is asked, before anything is made, for the most that the
/// JSON and what is made of it may take. Errors: invalid_argument (not JSON, not an object, nested too deep),
/// out_of_budget.
Expected<Json> parse_object(std::string_view body, WorkGrant* grant = nullptr,
                            WorkOnTexts work = WorkOnTexts::granted_with_the_body);

/// The most memory that processing a job's texts takes at once.
std::uint64_t work_on_texts_bytes(const Job& job);

}  // namespace millrace::generate
