// Rewrites conversations into the form that a template accepts: see chat_dialect.h.
#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/words.h"
#include "text/chat_dialect.h"
#include "text/past_arguments.h"

namespace millrace::text {

namespace {

using Json = Conversation::Json;

std::string role_of(const Json& message) { return message.value("role", std::string()); }
bool is_system(const Json& message) { return role_of(message) == "system" || role_of(message) == "developer"; }
bool is_result(const Json& message) { return role_of(message) == "tool"; }
bool has_calls(const Json& message) { return message.contains("tool_calls"); }

/// Returns a string field of the message; empty without one. While messages are adapted, content is a string.
std::string text_of(const Json& message, const char* name) {
  const auto found = message.find(name);
  return found != message.end() && found->is_string() ? found->get<std::string>() : std::string();
}

Json plain(const char* role, std::string content) { return {{"role", role}, {"content", std::move(content)}}; }

/// Appends a paragraph in place, so that merging many messages takes linear time.
void add_paragraph(std::string& to, const std::string& text) {
  if (!to.empty() && !text.empty()) to += "\n\n";
  to += text;
}
void add_paragraph(Json& message, const char* name, const std::string& text) {
  Json& to = message[name];
  if (!to.is_string()) to = "";
  add_paragraph(to.get_ref<std::string&>(), text);
}

/// Concatenates the text of all parts.
std::string joined_parts(const Json& parts) {
  std::string text;
  for (const Json& part : parts)
    if (part.is_object()) text += text_of(part, "text");
  return text;
}

std::string dump(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

// --- A message alone ---

Json& function_of(Json& call) {
  return call.contains("function") && call["function"].is_object() ? call["function"] : call;
}

void adapt_arguments(const ChatDialect& dialect, Json& call) {
  if (!call.is_object()) return;
  Json& function = function_of(call);
  const Json given = function.contains("arguments") ? function["arguments"] : Json();
  Json object = past_arguments(given);
  if (!dialect.argument_text) {
    function["arguments"] = std::move(object);
  } else {
    // Text that encodes an object keeps its spelling, so that the prompts of a session share their beginning.
    const bool kept = given.is_string() && object.size() == 1 && object.value("arguments", Json()) == given;
    const bool same = given.is_string() && !kept && object == Json::parse(given.get<std::string>(), nullptr, false);
    function["arguments"] = same ? given.get<std::string>() : dump(object);
  }
}

/// Renames roles, thoughts and names to the words that templates use, and turns content into a string.
void settle(const ChatDialect& dialect, Json& message) {
  const std::string role = role_of(message);
  if (role == "developer" && !dialect.developer) message["role"] = "system";
  if (role == "function") message["role"] = "tool";
  if (message.contains("thinking") && !message.contains("reasoning_content"))
    message["reasoning_content"] = message["thinking"];
  if (message.contains("tool_name") && !message.contains("name")) message["name"] = message["tool_name"];
  const Json content = message.contains("content") ? message["content"] : Json();
  message["content"] = content.is_array()    ? joined_parts(content)
                       : content.is_string() ? content.get<std::string>()
                                             : "";
  const auto calls = message.find("tool_calls");
  if (calls != message.end() && (!calls->is_array() || calls->empty())) message.erase("tool_calls");
}

// --- System messages ---

/// A system message after the first turn becomes a user's message in place: moving it to the front would change the
/// beginning of the prompt and invalidate its KV cache. Between a call and its results, it moves behind the results.
void move_late_systems(std::size_t first, Json& messages) {
  Json out = Json::array();
  std::string said;
  const auto flush = [&] {
    if (!said.empty()) out.push_back(plain("user", std::exchange(said, {})));
  };
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (i >= first && is_system(messages[i])) {
      add_paragraph(said, text_of(messages[i], "content"));
      continue;
    }
    if (!is_result(messages[i])) flush();
    out.push_back(std::move(messages[i]));
  }
  flush();
  messages = std::move(out);
}

/// Merges the first `count` messages into one.
void merge_first(std::size_t count, Json& messages) {
  for (std::size_t i = 1; i < count; ++i) add_paragraph(messages[0], "content", text_of(messages[i], "content"));
  messages.erase(messages.begin() + 1, messages.begin() + static_cast<std::ptrdiff_t>(count));
}

void settle_systems(const ChatDialect& dialect, Json& messages) {
  std::size_t count = 0;
  while (count < messages.size() && is_system(messages[count])) ++count;
  if (!dialect.late_system) move_late_systems(count, messages);
  if (count == 0) return;
  const bool stays = dialect.system && (dialect.no_user || messages.size() > count);
  if (count > 1 && (!dialect.systems || !stays)) merge_first(count, messages);
  if (stays) return;
  // The merged text precedes the first question, or becomes the question if there is none.
  const auto is_user = [](const Json& one) { return role_of(one) == "user"; };
  const auto user = std::find_if(messages.begin(), messages.end(), is_user);
  std::string said = text_of(messages[0], "content");
  if (user == messages.end()) {
    messages[0] = plain("user", std::move(said));
    return;
  }
  add_paragraph(said, text_of(*user, "content"));
  (*user)["content"] = std::move(said);
  messages.erase(messages.begin());
}

// --- Calls and their results ---

/// Writes a call as text, in the format that models are asked for whose template does not support tools.
std::string call_words(Json call) {
  adapt_arguments({}, call);
  return "\n<tool_call>\n" + dump(call.is_object() ? function_of(call) : call) + "\n</tool_call>";
}

void calls_in_words(Json& message) {
  std::string content = text_of(message, "content");
  for (const Json& call : message["tool_calls"]) content += call_words(call);
  message["content"] = std::move(content);
  message.erase("tool_calls");
}

Json result_in_words(const Json& message) {
  return plain("user", "<tool_response>\n" + text_of(message, "content") + "\n</tool_response>");
}

/// Returns true if the template drops the content of this message both beside its calls and in front of them.
bool must_speak(const ChatDialect& dialect, const Json& message) {
  return !dialect.words_beside_calls && !dialect.words_before_calls && !trim(text_of(message, "content")).empty();
}

void put_in_words(const ChatDialect& dialect, Json& messages) {
  bool called = false;  // an earlier message has a call that was not turned into text
  for (Json& message : messages) {
    if (has_calls(message)) {
      called = dialect.calls && !must_speak(dialect, message);
      if (!called) calls_in_words(message);
    } else if (is_result(message)) {
      if (!dialect.calls || (!called && !dialect.lone_result)) message = result_in_words(message);
    } else if (role_of(message) == "assistant") {
      called = false;
    }
  }
}

/// Gives an id to calls without one, of nine letters and digits where the template refuses others. Each result gets
/// the id and the name of their call.
class CallIds {
 public:
  explicit CallIds(bool any) : any_(any) {}

  void settle(Json& message) {
    if (has_calls(message)) {
      open_.clear();
      for (Json& call : message["tool_calls"]) {
        if (!call.is_object()) continue;
        const std::string given = text_of(call, "id");
        const std::string id = any_ && !given.empty() ? given : short_id();
        call["id"] = id;
        open_.emplace(given, std::pair(id, text_of(function_of(call), "name")));
      }
    } else if (is_result(message)) {
      const std::string given = text_of(message, "tool_call_id");
      auto found = open_.find(given);
      if (found == open_.end() && given.empty()) found = open_.begin();
      if (found == open_.end()) {
        if (!any_ || given.empty()) message["tool_call_id"] = short_id();
        return;
      }
      message["tool_call_id"] = found->second.first;
      if (!message.contains("name") && !found->second.second.empty()) message["name"] = found->second.second;
      open_.erase(found);
    }
  }

 private:
  std::string short_id() { return fmt::format("call{:05}", count_++ % 100'000); }

  const bool any_;
  std::size_t count_ = 0;
  std::multimap<std::string, std::pair<std::string, std::string>> open_;  // the last message's: given id; id, name
};

/// Splits a message with several calls into one message per call, each followed by its result.
void split_calls(Json& message, std::vector<Json> results, Json& out) {
  std::multimap<std::string, std::size_t> by_id;
  for (std::size_t i = 0; i < results.size(); ++i) by_id.emplace(text_of(results[i], "tool_call_id"), i);
  const Json calls = std::move(message["tool_calls"]);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Json one = i == 0 ? message : plain("assistant", "");
    one["tool_calls"] = Json::array({calls[i]});
    out.push_back(std::move(one));
    const auto found = by_id.find(calls[i].is_object() ? text_of(calls[i], "id") : "");
    if (found == by_id.end()) continue;
    out.push_back(std::move(results[found->second]));
    by_id.erase(found);
  }
  std::vector<std::size_t> rest;
  for (const auto& [id, i] : by_id) rest.push_back(i);
  std::sort(rest.begin(), rest.end());
  for (const std::size_t i : rest) out.push_back(std::move(results[i]));
}

/// Results take the order of their calls, because most templates write no ids, by which a model could tell them apart.
void sort_results(Json& messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (!has_calls(messages[i])) continue;
    std::map<std::string, std::size_t> order;
    for (const Json& call : messages[i]["tool_calls"])
      if (call.is_object()) order.emplace(text_of(call, "id"), order.size());
    const auto place = [&](const Json& result) {
      const auto found = order.find(text_of(result, "tool_call_id"));
      return found == order.end() ? order.size() : found->second;
    };
    const std::size_t begin = i + 1;
    while (i + 1 < messages.size() && is_result(messages[i + 1])) ++i;
    std::stable_sort(messages.begin() + static_cast<std::ptrdiff_t>(begin),
                     messages.begin() + static_cast<std::ptrdiff_t>(i + 1),
                     [&](const Json& a, const Json& b) { return place(a) < place(b); });
  }
}

void settle_calls(const ChatDialect& dialect, Json& messages) {
  Json out = Json::array();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    Json& message = messages[i];
    if (!has_calls(message)) {
      out.push_back(std::move(message));
      continue;
    }
    const std::string content = text_of(message, "content");
    if (!trim(content).empty() && !dialect.words_beside_calls) {
      Json said = plain("assistant", content);
      if (message.contains("reasoning_content")) said["reasoning_content"] = message["reasoning_content"];
      message.erase("reasoning_content");
      message["content"] = "";
      out.push_back(std::move(said));
    } else if (!content.empty() && !dialect.thought_beside_words && message.contains("reasoning_content")) {
      add_paragraph(message, "reasoning_content", content);
      message["content"] = "";
    }
    if (dialect.parallel_calls || message["tool_calls"].size() < 2) {
      out.push_back(std::move(message));
      continue;
    }
    std::vector<Json> results;
    while (i + 1 < messages.size() && is_result(messages[i + 1])) results.push_back(std::move(messages[++i]));
    split_calls(message, std::move(results), out);
  }
  messages = std::move(out);
}

// --- Turns ---

bool same_turn(const ChatDialect& dialect, const Json& a, const Json& b) {
  const std::string role = role_of(a);
  if (role != role_of(b)) return false;
  if (role == "user") return !dialect.user_twice;
  // Calls in a separate message belong to the assistant's preceding text.
  return role == "assistant" && (!dialect.assistant_twice || has_calls(b));
}

void merge(Json& a, Json& b) {
  add_paragraph(a, "content", text_of(b, "content"));
  const std::string thought = text_of(b, "reasoning_content");
  if (!thought.empty()) add_paragraph(a, "reasoning_content", thought);
  if (!has_calls(b)) return;
  if (!has_calls(a)) a["tool_calls"] = Json::array();
  for (Json& call : b["tool_calls"]) a["tool_calls"].push_back(std::move(call));
}

void merge_turns(const ChatDialect& dialect, Json& messages) {
  Json out = Json::array();
  for (Json& message : messages) {
    if (!out.empty() && same_turn(dialect, out.back(), message))
      merge(out.back(), message);
    else
      out.push_back(std::move(message));
  }
  messages = std::move(out);
}

/// Inserts a question where the template requires one first, and an answer between a result and the next question.
void fill_turns(const ChatDialect& dialect, Json& messages) {
  const auto is_user = [](const Json& one) { return role_of(one) == "user"; };
  const auto first = std::find_if(messages.begin(), messages.end(), [](const Json& one) { return !is_system(one); });
  const bool none = !dialect.no_user && std::none_of(messages.begin(), messages.end(), is_user);
  const bool late = !dialect.assistant_first && first != messages.end() && !is_user(*first);
  if (!messages.empty() && (none || late)) messages.insert(first, plain("user", ""));
  if (dialect.user_after_result) return;
  Json out = Json::array();
  for (Json& message : messages) {
    if (!out.empty() && is_user(message) && is_result(out.back())) {
      if (!dialect.answer_before_user) {
        add_paragraph(out.back(), "content", text_of(message, "content"));
        continue;
      }
      out.push_back(plain("assistant", ""));
    }
    out.push_back(std::move(message));
  }
  messages = std::move(out);
}

/// Converts content, thoughts and arguments to the types that the template accepts.
void finish(const ChatDialect& dialect, Json& message) {
  const bool calls = has_calls(message);
  if (calls)
    for (Json& call : message["tool_calls"]) adapt_arguments(dialect, call);
  if (message.contains("reasoning_content")) message["thinking"] = message["reasoning_content"];
  Json& content = message["content"];
  if (calls && dialect.null_content && content == "") content = nullptr;
  if (dialect.parts && content.is_string())
    content = Json::array({{{"type", "text"}, {"text", content.get<std::string>()}}});
}

}  // namespace

ChatDialect strictest(ChatDialect dialect) {
  dialect.systems = dialect.late_system = dialect.no_user = false;
  dialect.user_twice = dialect.assistant_twice = dialect.assistant_first = false;
  dialect.calls = dialect.lone_result = false;
  return dialect;
}

Conversation::Json adapt_messages(const ChatDialect& dialect, Conversation::Json messages) {
  for (Json& message : messages) settle(dialect, message);
  settle_systems(dialect, messages);
  merge_turns(dialect, messages);
  CallIds ids(dialect.any_call_id);
  for (Json& message : messages) ids.settle(message);
  sort_results(messages);
  put_in_words(dialect, messages);
  merge_turns(dialect, messages);  // including what became text above
  settle_calls(dialect, messages);
  fill_turns(dialect, messages);
  for (Json& message : messages) finish(dialect, message);
  return messages;
}

}  // namespace millrace::text
