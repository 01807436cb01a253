#include "text/go_template.h"

#include <array>
#include <cctype>
#include <optional>
#include <utility>
#include <vector>

#include "base/words.h"

namespace millrace::text {

namespace {

constexpr std::array<std::string_view, 6> kKeywords = {"if", "range", "end", "else", "with", "/*"};

/// Quotes `text` as a Jinja string.
std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "'";
}

std::string output(const std::string& expression) { return "{{- " + expression + " -}}"; }
std::string statement(const std::string& words) { return "{%- " + words + " -%}"; }

Status unknown(std::string_view what) {
  return error(Code::unsupported,
               "the template uses {} of Go's template language, which is not supported; write it in Jinja, or leave it "
               "out for the model's own",
               what);
}

/// Splits an action into words: names, strings, parentheses.
Expected<std::vector<std::string>> words_of_action(std::string_view action) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < action.size();) {
    const char c = action[i];
    if (kSpaces.find(c) != std::string_view::npos) {
      ++i;
    } else if (c == '(' || c == ')') {
      words.emplace_back(1, c);
      ++i;
    } else if (c == '"' || c == '`') {
      std::size_t end = i + 1;
      while (end < action.size() && action[end] != c) end += c == '"' && action[end] == '\\' ? 2 : 1;
      if (end >= action.size()) return unknown("a string without an end");
      words.emplace_back(action.substr(i, end + 1 - i));
      i = end + 1;
    } else {
      const std::size_t end = std::min(action.find_first_of(" \t\r\n()\"`", i), action.size());
      words.emplace_back(action.substr(i, end - i));
      i = end;
    }
  }
  return words;
}

class Converter {
 public:
  explicit Converter(std::string_view text) : text_(text) {}

  Expected<std::string> convert() {
    MR_ASSIGN_OR_RETURN(std::string body, block());
    if (at_ < text_.size() || !open_.empty()) return unknown("an end, or an if or range without one,");
    if (uses_messages_) return system_ + body;
    if (!has_response_) body += response();
    return turns(body);
  }

 private:
  enum class Kind { condition, range };

  /// Translates the whole template.
  Expected<std::string> block() {
    std::string out;
    bool trims = false;
    while (at_ < text_.size()) {
      const std::size_t open = std::min(text_.find("{{", at_), text_.size());
      std::string_view plain = text_.substr(at_, open - at_);
      if (trims) plain.remove_prefix(spaces(plain));
      const bool trims_before = text_.substr(open).starts_with("{{-");
      if (trims_before) plain = plain.substr(0, plain.find_last_not_of(kSpaces) + 1);
      if (!plain.empty()) out += after_response(output(quoted(plain)));
      if (open == text_.size()) {
        at_ = open;
        break;
      }
      const std::size_t close = text_.find("}}", open);
      if (close == std::string_view::npos) return unknown("{{ without }}");
      std::string_view action = text_.substr(open + 2, close - open - 2);
      at_ = close + 2;
      if (trims_before) action.remove_prefix(1);
      trims = action.ends_with('-');
      if (trims) action.remove_suffix(1);
      MR_ASSIGN_OR_RETURN(const std::string made, take(trim(action)));
      out += made;
    }
    return out;
  }

  Expected<std::string> take(std::string_view action) {
    if (action.starts_with("/*")) return std::string();
    MR_ASSIGN_OR_RETURN(std::vector<std::string> words, words_of_action(action));
    if (words.empty()) return unknown("an empty action");
    const std::string first = words[0];
    if (first == "if") {
      open_.push_back(Kind::condition);
      MR_ASSIGN_OR_RETURN(const std::string condition, expression(words, 1));
      return statement("if " + condition);
    }
    if (first == "else" && words.size() == 1) return statement("else");
    if (first == "else" && words[1] == "if") {
      MR_ASSIGN_OR_RETURN(const std::string condition, expression(words, 2));
      return statement("elif " + condition);
    }
    if (first == "end" && words.size() == 1) {
      if (open_.empty()) return unknown("an end of nothing");
      const Kind kind = open_.back();
      open_.pop_back();
      in_range_ = in_range_ && kind != Kind::range;
      return statement(kind == Kind::range ? "endfor" : "endif");
    }
    if (first == "range") return range(words);
    if (first == ".Response" && words.size() == 1) {
      if (in_range_) return unknown(".Response inside of range");
      has_response_ = true;
      return response();
    }
    MR_ASSIGN_OR_RETURN(const std::string value, expression(words, 0));
    return after_response(output(value));
  }

  Expected<std::string> range(const std::vector<std::string>& words) {
    const bool messages = words.size() == 2 && (words[1] == ".Messages" || words[1] == "$.Messages");
    if (!messages) return unknown("range over anything but .Messages");
    if (in_range_) return unknown("range inside of range");
    uses_messages_ = in_range_ = true;
    open_.push_back(Kind::range);
    return statement("for m in messages");
  }

  /// Parses the remaining words as one expression.
  Expected<std::string> expression(const std::vector<std::string>& words, std::size_t at) {
    MR_ASSIGN_OR_RETURN(std::string made, call(words, at));
    if (at < words.size()) return unknown(words[at]);
    return made;
  }

  /// Parses a function and its operands, up to the end or a closing parenthesis.
  Expected<std::string> call(const std::vector<std::string>& words, std::size_t& at) {
    if (at >= words.size()) return unknown("an empty condition");
    const std::string& name = words[at];
    const bool joins = name == "and" || name == "or", compares = name == "eq" || name == "ne";
    if (!joins && !compares && name != "not") return operand(words, at);
    ++at;
    std::vector<std::string> operands;
    while (at < words.size() && words[at] != ")") {
      MR_ASSIGN_OR_RETURN(operands.emplace_back(), operand(words, at));
    }
    if (operands.size() < (name == "not" ? 1u : 2u)) return unknown(name + " with too few operands");
    if (name == "not") return "(not " + operands[0] + ")";
    std::string out = "(" + operands[0];
    if (compares && operands.size() == 2) return out + (name == "eq" ? " == " : " != ") + operands[1] + ")";
    if (name == "ne") return unknown("ne with more than two operands");
    if (name == "eq") {
      out += " in [";
      for (std::size_t i = 1; i < operands.size(); ++i) out += operands[i] + ",";
      return out + "])";
    }
    for (std::size_t i = 1; i < operands.size(); ++i) out += " " + name + " " + operands[i];
    return out + ")";
  }

  Expected<std::string> operand(const std::vector<std::string>& words, std::size_t& at) {
    const std::string& word = words[at++];
    if (word == "(") {
      MR_ASSIGN_OR_RETURN(std::string inner, call(words, at));
      if (at >= words.size() || words[at] != ")") return unknown("a parenthesis without its other half");
      ++at;
      return inner;
    }
    if (word.starts_with('"') || word.starts_with('`')) {
      if (word.find('\\') != std::string::npos) return unknown("an escape in a string");
      return quoted(std::string_view(word).substr(1, word.size() - 2));
    }
    if (in_range_ && word == ".Role") return std::string("m.role");
    if (in_range_ && word == ".Content") return std::string("m.content");
    if (word == "$.System" || (!in_range_ && word == ".System")) return system_value();
    if (!in_range_ && word == ".Prompt") return std::string("turn.prompt");
    if (!in_range_ && word == ".Messages") {
      uses_messages_ = true;
      return std::string("messages");
    }
    return unknown(word);
  }

  /// Outside a range, .System is the text of all system messages; inside a turn, that turn's.
  std::string system_value() {
    if (text_.find(".Messages") == std::string_view::npos) return "turn.system";
    system_ =
        "{%- set said = namespace(system='') -%}{%- for m in messages -%}{%- if m.role == 'system' -%}"
        "{%- set said.system = said.system + ('\\n\\n' if said.system else '') + m.content -%}{%- endif -%}{%- endfor "
        "-%}";
    return "said.system";
  }

  std::string response() {
    has_response_ = true;
    return "{%- if not last -%}{{- turn.response -}}{%- endif -%}";
  }
  /// The text after the response closes a turn; the last turn stays open, so it is left out there.
  std::string after_response(const std::string& made) const {
    return has_response_ ? "{%- if not last -%}" + made + "{%- endif -%}" : made;
  }

  static std::string turns(const std::string& body) {
    const std::string clear = "{%- set turn.system = '' -%}{%- set turn.prompt = '' -%}{%- set turn.response = '' -%}";
    return "{%- set turn = namespace(system='', prompt='', response='') -%}{%- set last = false -%}"
           "{%- for m in messages -%}{%- set role = 'user' if m.role == 'tool' else m.role -%}"
           "{%- if turn.response and role != 'assistant' or role == 'system' and turn.prompt -%}" +
           body + clear +
           "{%- endif -%}"
           "{%- set text = m.content or '' -%}"
           "{%- if role == 'system' -%}{%- set turn.system = turn.system + ('\\n\\n' if turn.system else '') + text -%}"
           "{%- elif role == 'user' -%}{%- set turn.prompt = turn.prompt + ('\\n\\n' if turn.prompt else '') + text -%}"
           "{%- else -%}{%- set turn.response = turn.response + text -%}{%- endif -%}{%- endfor -%}"
           "{%- if turn.response -%}" +
           body + clear +
           "{%- endif -%}"
           "{%- set last = add_generation_prompt -%}{%- if last or turn.prompt or turn.system -%}" +
           body + "{%- endif -%}";
  }

  const std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Kind> open_;
  bool in_range_ = false, uses_messages_ = false, has_response_ = false;
  std::string system_;  // expression for the text of the system messages
};

}  // namespace

bool is_go_template(std::string_view text) {
  for (std::size_t at = text.find("{{"); at != std::string_view::npos; at = text.find("{{", at + 2)) {
    std::string_view action = text.substr(at + 2);
    if (action.starts_with('-')) action.remove_prefix(1);
    action.remove_prefix(spaces(action));
    if (action.starts_with('.') || action.starts_with('$')) return true;
    for (const std::string_view word : kKeywords) {
      const bool whole =
          action.size() <= word.size() || std::isalnum(static_cast<unsigned char>(action[word.size()])) == 0;
      if (action.starts_with(word) && (whole || word == "/*")) return true;
    }
  }
  return false;
}

Expected<std::string> jinja_of_go(std::string_view text) { return Converter(text).convert(); }

}  // namespace millrace::text
