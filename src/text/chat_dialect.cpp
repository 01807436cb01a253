#include "text/chat_dialect.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/log.h"

namespace millrace::text {

namespace {

using Json = Conversation::Json;

constexpr const char* kSystem = "system-probe";
constexpr const char* kUser = "user-probe";
constexpr const char* kAnswer = "answer-probe";
constexpr const char* kOther = "second-probe";
constexpr const char* kArgument = "argument-probe";
constexpr const char* kResult = "result-probe";

/// Returns the rendered probe; empty if the template fails.
std::string rendered(const jinja::Template& jinja, const ChatDialect& dialect, Json messages) {
  Json values = {
      {"messages", adapt_messages(dialect, std::move(messages))}, {"add_generation_prompt", true}, {"tools", nullptr}};
  jinja::Inputs inputs;
  inputs.values = &values;
  inputs.trusted = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  inputs.now = 0;
  jinja::Limits limits;
  limits.steps = 500'000;
  limits.live_bytes = 8u << 20;
  const auto text = jinja.render(inputs, limits);
  return text.ok() ? text->bytes() : std::string();
}

bool holds(const std::string& text, const char* word) { return text.find(word) != std::string::npos; }

Json user(const char* content) { return {{"role", "user"}, {"content", content}}; }

Json assistant(const char* content) { return {{"role", "assistant"}, {"content", content}}; }
Json system_message(const char* content) { return {{"role", "system"}, {"content", content}}; }

Json call(const char* id, const char* name, const char* argument) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", {{"key", argument}}}}}};
}
Json calls(Json list, const char* content = "") {
  return {{"role", "assistant"}, {"content", content}, {"tool_calls", std::move(list)}};
}
Json result(const char* id, const char* content) {
  return {{"role", "tool"}, {"tool_call_id", id}, {"name", "name_probe"}, {"content", content}};
}

/// Probes a template, using what earlier probes found.
class Prober {
 public:
  Prober(const jinja::Template& jinja, ChatDialect& dialect) : jinja_(jinja), dialect_(dialect) {}

  /// Renders these messages, with only content and arguments converted; true if the output contains all of `words`.
  bool takes(Json messages, std::initializer_list<const char*> words) const {
    const std::string text = rendered(jinja_, dialect_, std::move(messages));
    return std::all_of(words.begin(), words.end(), [&](const char* word) { return holds(text, word); });
  }
  /// Clears the flag if the template fails.
  void find(bool ChatDialect::*flag, Json messages, std::initializer_list<const char*> words) {
    dialect_.*flag = true;
    dialect_.*flag = takes(std::move(messages), words);
  }

 private:
  const jinja::Template& jinja_;
  ChatDialect& dialect_;
};

/// Finds the types in which the template accepts tool calls; false if it renders them in none.
bool find_call_form(const jinja::Template& jinja, ChatDialect& dialect) {
  const Json messages = {user(kUser), calls({call("call00001", "name_probe", kArgument)}),
                         result("call00001", kResult)};
  ChatDialect tried = dialect;
  for (const auto& [null_content, argument_text] :
       std::array<std::pair<bool, bool>, 4>{{{false, false}, {true, false}, {false, true}, {true, true}}}) {
    tried.null_content = null_content;
    tried.argument_text = argument_text;
    const std::string text = rendered(jinja, tried, messages);
    // Arguments given as text to a template that writes JSON would come out quoted a second time, and an object given
    // to one that takes text, as Python writes a dict.
    const bool garbled = holds(text, "\\\"") || holds(text, "'key'");
    if (holds(text, "name_probe") && holds(text, kArgument) && holds(text, kResult) && !garbled) {
      dialect = tried;
      return true;
    }
  }
  return false;
}

/// Probes which orders of user, assistant and system messages the template accepts.
void find_turns(Prober& prober, ChatDialect& dialect) {
  const Json system = dialect.system ? Json::array({system_message(kSystem)}) : Json::array();
  const auto after_system = [&](std::initializer_list<Json> more) {
    Json all = system;
    for (const Json& one : more) all.push_back(one);
    return all;
  };
  prober.find(&ChatDialect::user_twice, after_system({user(kUser), user(kOther)}), {kUser, kOther});
  prober.find(&ChatDialect::assistant_twice,
              after_system({user(kUser), assistant(kAnswer), assistant(kOther), user("?")}), {kUser, kAnswer, kOther});
  prober.find(&ChatDialect::assistant_first, after_system({assistant(kAnswer), user(kUser)}), {kAnswer, kUser});
  if (dialect.assistant_first) {
    prober.find(&ChatDialect::no_user, after_system({assistant(kAnswer)}), {kAnswer});
    if (dialect.system && dialect.no_user) prober.find(&ChatDialect::no_user, system, {kSystem});
  } else {
    dialect.no_user = false;
  }
  if (!dialect.system) {
    dialect.systems = dialect.late_system = false;
    return;
  }
  prober.find(&ChatDialect::systems, {system_message(kSystem), system_message(kOther), user(kUser)},
              {kSystem, kOther, kUser});
  prober.find(&ChatDialect::late_system,
              {system_message(kSystem), user(kUser), assistant(kAnswer), user("?"), system_message(kOther)},
              {kSystem, kUser, kAnswer, kOther});
}

/// Probes the rules for tools. REQUIRES: the template renders calls and results.
void find_tools(Prober& prober, ChatDialect& dialect) {
  const Json one = call("call00001", "name_probe", kArgument), other = call("call00002", "other_probe", kOther);
  const Json question = user(kUser), answer = result("call00001", kResult);
  prober.find(&ChatDialect::any_call_id,
              {question, calls({call("call_0123456789abcdef", "name_probe", kArgument)}),
               result("call_0123456789abcdef", kResult)},
              {kArgument, kResult});
  prober.find(&ChatDialect::parallel_calls, {question, calls({one, other}), answer, result("call00002", kAnswer)},
              {"name_probe", kArgument, "other_probe", kOther, kResult, kAnswer});
  prober.find(&ChatDialect::lone_result, {question, answer, assistant(kAnswer)}, {kResult, kAnswer});
  prober.find(&ChatDialect::words_beside_calls, {question, calls({one}, kAnswer), answer},
              {kAnswer, kArgument, kResult});
  dialect.words_before_calls = dialect.words_beside_calls;
  if (!dialect.words_beside_calls)
    prober.find(&ChatDialect::words_before_calls, {question, calls({one}, kAnswer), answer},
                {kAnswer, kArgument, kResult});
  Json thought = calls({one}, kAnswer);
  thought["reasoning_content"] = kOther;
  if (dialect.words_beside_calls)
    prober.find(&ChatDialect::thought_beside_words, {question, thought, answer}, {kAnswer, kArgument, kResult});
  // Some templates write the system message only in front of the last message, if that is a user's.
  if (dialect.system)
    prober.find(&ChatDialect::system, {system_message(kSystem), question, calls({one}), answer}, {kSystem, kResult});
  const Json next = {question, calls({one}), answer, user(kOther)};
  prober.find(&ChatDialect::user_after_result, next, {kArgument, kResult, kOther});
  if (!dialect.user_after_result) {
    prober.find(&ChatDialect::answer_before_user, next, {kArgument, kResult, kOther});
  }
}

/// Finds the accepted forms of content and of the system message; false if no probe renders.
bool find_content_form(Prober& prober, ChatDialect& dialect) {
  const Json question = Json::array({user(kUser)});
  if (!prober.takes(question, {kUser})) {
    dialect.parts = true;
    if (!prober.takes(question, {kUser})) {
      dialect.parts = false;
      return false;
    }
  }
  const Json with_system = Json::array({system_message(kSystem), user(kUser)});
  if (prober.takes(with_system, {kSystem, kUser})) return true;
  dialect.system = false;
  log::info("the chat template knows no system role: system messages go before the user's first one");
  return true;
}

}  // namespace

ChatDialect find_dialect(const jinja::Template& jinja, std::string_view source) {
  ChatDialect dialect;
  Prober prober(jinja, dialect);
  if (!find_content_form(prober, dialect)) return dialect;  // conversations are passed on unchanged
  if (source.find("developer") != std::string_view::npos) {
    dialect.developer = true;
    dialect.developer = prober.takes({{{"role", "developer"}, {"content", kSystem}}, user(kUser)}, {kSystem, kUser});
  }
  find_turns(prober, dialect);
  dialect.calls = source.find("tool_calls") != std::string_view::npos && find_call_form(jinja, dialect);
  if (dialect.calls) find_tools(prober, dialect);
  return dialect;
}

}  // namespace millrace::text
