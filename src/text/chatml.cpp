#include "text/chatml.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace millrace::text {

namespace {

constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";
constexpr std::string_view kThoughtEnd = "</think>";

bool contains(std::string_view text, std::string_view word) { return text.find(word) != std::string_view::npos; }

std::string_view trim(std::string_view text, std::string_view spaces = " \t\r\n\f\v") {
  const std::size_t begin = text.find_first_not_of(spaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(spaces) - begin + 1);
}

/// The literal text of a template from `at` up to the end of its string (or, outside of strings, up to the next tag),
/// escapes resolved. `before` is the character before the literal began: its quote, if it stands in a string.
std::string read_literal(std::string_view jinja, std::size_t at, char before) {
  const bool quoted = before == '\'' || before == '"';
  std::string literal;
  for (; at < jinja.size(); ++at) {
    const char c = jinja[at];
    if (quoted ? c == before : (c == '{' && at + 1 < jinja.size() && (jinja[at + 1] == '{' || jinja[at + 1] == '%'))) {
      break;
    }
    if (quoted && c == '\\' && at + 1 < jinja.size()) {
      const char escaped = jinja[++at];
      literal += escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped;
    } else {
      literal += c;
    }
  }
  return literal;
}

/// What follows `opening` in each literal after `from` that begins with it.
std::vector<std::string> find_literals(std::string_view jinja, std::string_view opening, std::size_t from) {
  std::vector<std::string> found;
  for (auto at = jinja.find(kStart, from); at != std::string_view::npos; at = jinja.find(kStart, at + 1)) {
    const std::string literal = read_literal(jinja, at, at == 0 ? '\0' : jinja[at - 1]);
    if (literal.compare(0, opening.size(), opening) == 0) found.push_back(literal.substr(opening.size()));
  }
  return found;
}

/// A system message that the template speaks by itself: a whole turn in one literal. Empty if there is none.
std::string find_default_system(std::string_view jinja) {
  for (const std::string& said : find_literals(jinja, "<|im_start|>system\n", 0)) {
    const std::size_t end = said.find(kEnd);
    if (end != std::string::npos) return said.substr(0, end);
  }
  return {};
}

Status refuse(std::string_view what) {
  return error(Code::unsupported,
               "the model's chat template {}; templates beyond ChatML come with a later version: use --raw", what);
}

}  // namespace

Expected<ChatMlForm> read_chatml(std::string_view jinja) {
  constexpr std::array<std::string_view, 5> kForeign = {"<|im_sep|>", "<|im_middle|>", "<|im_user|>", "strftime_now",
                                                        "raise_exception('System"};
  if (!contains(jinja, kStart) || !contains(jinja, kEnd)) return refuse("is not ChatML");
  for (const std::string_view word : kForeign) {
    if (contains(jinja, word)) return refuse(fmt::format("has '{}', which plain ChatML has not", word));
  }
  ChatMlForm form;
  form.trims = contains(jinja, "content'] | trim") || contains(jinja, "content | trim") ||
               contains(jinja, "content']|trim") || contains(jinja, "content|trim");
  form.drops_thoughts = contains(jinja, "split('</think>')");
  form.default_system = find_default_system(jinja);
  const std::size_t prompt = jinja.rfind("add_generation_prompt");
  if (prompt == std::string_view::npos) return form;
  const std::string_view tail = jinja.substr(prompt);
  if (contains(tail, "enable_thinking") && contains(tail, "else"))
    return refuse("chooses how the model begins to think");
  for (const std::string& opening : find_literals(jinja, "<|im_start|>assistant\n", prompt)) {
    form.answer_opening = opening;
  }
  return form;
}

std::string ChatMl::content(const Message& message, bool answered) const {
  std::string_view text = message.content;
  if (form_.drops_thoughts && answered && message.role == "assistant") {
    if (const auto end = text.rfind(kThoughtEnd); end != std::string_view::npos) {
      text.remove_prefix(end + kThoughtEnd.size());
      text.remove_prefix(std::min(text.size(), text.find_first_not_of('\n')));
    }
  }
  return std::string(form_.trims ? trim(text) : text);
}

Expected<std::vector<TokenId>> ChatMl::render(const Tokenizer& tokenizer, const std::vector<Message>& messages,
                                              bool add_generation_prompt) const {
  const std::optional<TokenId> start = tokenizer.special(kStart), end = tokenizer.special(kEnd);
  if (!start || !end) {
    return error(Code::corrupt, "the chat template speaks ChatML but the vocabulary has no {} or {}; use --raw", kStart,
                 kEnd);
  }
  std::vector<TokenId> ids;
  const auto append = [&](const std::string& text) {
    const std::vector<TokenId> more = tokenizer.encode(text, Specials::as_text);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const auto say = [&](const std::string& role, const std::string& text) {
    ids.push_back(*start);
    append(role + "\n" + text);
    ids.push_back(*end);
    append("\n");
  };
  if (tokenizer.adds_bos() && tokenizer.bos()) ids.push_back(*tokenizer.bos());
  if (!form_.default_system.empty() && (messages.empty() || messages[0].role != "system")) {
    say("system", form_.default_system);
  }
  const auto last_question =
      std::find_if(messages.rbegin(), messages.rend(), [](const Message& message) { return message.role == "user"; });
  const auto questions_end = static_cast<std::size_t>(messages.rend() - last_question);
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return error(Code::invalid_argument, "a message has the role '{}'; use system, user or assistant", role);
    }
    say(role, content(messages[i], i < questions_end));
  }
  if (add_generation_prompt) {
    ids.push_back(*start);
    append("assistant\n" + form_.answer_opening);
  }
  return ids;
}

}  // namespace millrace::text
