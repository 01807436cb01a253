// Filters that make texts and numbers.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/library.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

/// The method of that name, of the value as a string.
Value by_method(Run& run, const char* name, const Value& value, const Arguments& given) {
  const Value text = to_str(run.meter(), value);
  return find_method(text, name)(run, text, given);
}

Arguments of_width_80(Run& run) {
  Arguments made(&run.meter());
  made.positional.push_back(Value::integer(80));
  return made;
}

/// Each word's first letter large, the others small; words end at white space, '-', '(', '{', '[' and '<'.
Value title(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters none("title", arguments, {});
  const Value input = to_str(run.meter(), value);
  const std::string& bytes = input.bytes();
  Builder out(run.meter());
  std::size_t begin = 0;
  const auto word = [&](std::size_t end) {
    if (begin < end) append_case(out, Value::cut(run.meter(), input.text(), begin, end).text(), Case::capital);
    begin = end;
  };
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t next = next_character(bytes, at);
    const char32_t c = code_point(bytes, at);
    if (is_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      word(at);
      out.append(input.text(), at, next);
      begin = next;
    }
    at = next;
  }
  word(bytes.size());
  return out.finish();
}

Value replace(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("replace", arguments, {"old", "new", "count"});
  const Value text = to_str(run.meter(), value), from = to_str(run.meter(), given.required(0)),
              to = to_str(run.meter(), given.required(1));
  Builder out(run.meter());
  append_replaced(out, text.text(), from.text(), to.text(), given.integer(2, -1));
  return out.finish();
}

Value indent(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("indent", arguments, {"width", "first", "blank"});
  const Value text = to_str(run.meter(), value);
  Builder spaces(run.meter());
  if (const Value* width = given.set(0); width != nullptr && width->is_string()) {
    spaces.append(width->text());
  } else {
    append_padded(spaces, {}, given.integer(0, 4), '<', " ");
  }
  const MarkedText indention = spaces.take();
  Builder out(run.meter());
  if (given.flag(1)) out.append(indention);
  std::size_t begin = 0;
  // As if a line end followed the text: a line end at its very end begins one more, empty line.
  Vector<Range> lines = split_lines(run.meter(), text.bytes(), false);
  if (text.text().empty() || (!lines.empty() && lines.back().end < text.text().size())) {
    lines.push_back({text.text().size(), text.text().size()});
  }
  for (const Range& line : lines) {
    if (begin++ > 0) {
      out.append("\n");
      if (given.flag(2) || line.begin < line.end) out.append(indention);
    }
    out.append(text.text(), line.begin, line.end);
  }
  return out.finish();
}

Value truncate(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("truncate", arguments, {"length", "killwords", "end", "leeway"});
  Value text = to_str(run.meter(), value);
  const std::int64_t most = given.integer(0, 255), leeway = given.integer(3, 5);
  const std::string end(given.string(2).value_or("..."));
  if (most < 0 || leeway < 0 || most > INT32_MAX || leeway > INT32_MAX) fail("truncate needs lengths of 0 or more");
  if (length(run.meter(), text) <= most + leeway) return text;
  const std::int64_t kept = most - static_cast<std::int64_t>(count_characters(end));
  if (kept < 0) fail("truncate's length is shorter than its end");
  const Value head = get_slice(run.meter(), text, Value::none(), Value::integer(kept), Value::none());
  std::size_t cut = head.text().size();
  if (!given.flag(1)) {
    if (const auto space = head.bytes().rfind(' '); space != std::string::npos) cut = space;
  }
  Builder out(run.meter());
  out.append(head.text(), 0, cut);
  given[2] != nullptr ? out.append(given[2]->text()) : out.append(end, true);
  return out.finish();
}

Value escape(Run& run, const Value& value, const Arguments&) {
  const Value text = to_str(run.meter(), value);
  Builder out(run.meter());
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.bytes().size(); ++i) {
    const char c = text.bytes()[i];
    const char* meant = c == '&'    ? "&amp;"
                        : c == '<'  ? "&lt;"
                        : c == '>'  ? "&gt;"
                        : c == '\'' ? "&#39;"
                        : c == '"'  ? "&#34;"
                                    : nullptr;
    if (meant == nullptr) continue;
    out.append(text.text(), plain, i);
    out.append(meant, text.text().trusted_at(i));
    plain = i + 1;
  }
  out.append(text.text(), plain, text.text().size());
  return out.finish();
}

Value urlencode(Run& run, const Value& value, const Arguments&) {
  const Value text = to_str(run.meter(), value);
  Builder out(run.meter());
  for (std::size_t i = 0; i < text.bytes().size(); ++i) {
    const char c = text.bytes()[i];
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) || std::string_view("_.-~/").find(c) != std::string_view::npos) {
      out.append(text.text(), i, i + 1);
    } else {
      out.append(fmt::format("%{:02X}", byte));
    }
  }
  return out.finish();
}

Value to_json(Run& run, const Value& value, const Arguments& arguments) {
  const Parameters given("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ascii = given.flag(0);
  style.sort_keys = given.flag(3);
  if (const Value* wanted = given.set(1); wanted != nullptr) {
    style.indent.emplace();
    if (wanted->is_string()) {
      *style.indent = wanted->bytes();
    } else {
      style.indent->assign(static_cast<std::size_t>(std::clamp<std::int64_t>(given.integer(1, 0), 0, 100)), ' ');
    }
    style.item_separator.assign(1, ',');
  }
  if (const Value* separators = given.set(2); separators != nullptr) {
    const Value both = elements(run.meter(), *separators);
    const auto& items = both.list().items;
    if (items.size() != 2 || !items[0].is_string() || !items[1].is_string()) {
      fail("tojson's separators must be two strings");
    }
    style.item_separator = items[0].bytes();
    style.key_separator = items[1].bytes();
  }
  Builder out(run.meter());
  write_json(out, value, style);
  return out.finish();
}

Value format(Run& run, const Value& value, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes values by position or by name, not both");
  }
  const Value text = to_str(run.meter(), value);
  Builder out(run.meter());
  write_printf(out, text.text(), arguments.positional, arguments.named);
  return out.finish();
}

/// Without white space around it and without the underscores that Python lets stand between digits.
std::string number_word(std::string_view text) {
  const Range kept = strip(text, std::nullopt, true, true);
  std::string word;
  const auto digit = [&](std::size_t at) {
    return at < kept.end && std::isalnum(static_cast<unsigned char>(text[at]));
  };
  for (std::size_t at = kept.begin; at < kept.end; ++at) {
    const bool between = text[at] == '_' && at > kept.begin && digit(at - 1) && digit(at + 1);
    if (!between) word += text[at];
  }
  return word;
}

std::optional<double> read_real(std::string_view text) {
  const std::string word = number_word(text);
  if (word.empty() || word.find_first_of("xXpP") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  return end == word.c_str() + word.size() ? std::optional(value) : std::nullopt;
}

std::optional<Whole> read_integer(std::string_view written, int base) {
  const std::string word = number_word(written);
  std::string_view text = word;
  const bool negative = text.starts_with('-');
  if (negative || text.starts_with('+')) text.remove_prefix(1);
  const char* const prefix = base == 16 ? "xX" : base == 8 ? "oO" : base == 2 ? "bB" : "";
  if (text.size() > 2 && text[0] == '0' && std::string_view(prefix).find(text[1]) != std::string_view::npos) {
    text.remove_prefix(2);
  }
  const std::optional<Whole> size = read_whole(text, base);
  return size && negative ? std::optional(-*size) : size;
}

Value to_integer(Run&, const Value& value, const Arguments& arguments) {
  const Parameters given("int", arguments, {"default", "base"});
  const auto base = static_cast<int>(std::clamp<std::int64_t>(given.integer(1, 10), 2, 36));
  if (value.is_string()) {
    if (const auto whole = read_integer(value.bytes(), base)) return Value::integer(*whole);
  }
  std::optional<double> real;
  if (value.is_integral()) return Value::integer(value.whole());
  if (value.is_number()) real = value.real();
  if (value.is_string()) real = read_real(value.bytes());
  if (real && std::fabs(*real) < 0x1p127) return Value::integer(static_cast<Whole>(*real));
  if (real && std::isfinite(*real)) fail("a number is too large");
  return given[0] != nullptr ? *given[0] : Value::integer(0);
}

Value to_real(Run&, const Value& value, const Arguments& arguments) {
  const Parameters given("float", arguments, {"default"});
  if (value.is_number()) return Value::real(value.real());
  if (value.is_string()) {
    if (const auto real = read_real(value.bytes())) return Value::real(*real);
  }
  return given[0] != nullptr ? *given[0] : Value::real(0);
}

Value absolute(Run&, const Value& value, const Arguments&) {
  require_defined(value);
  if (!value.is_number()) fail("abs needs a number, not a {}", value.type_name());
  if (value.kind() == Kind::real) return Value::real(std::fabs(value.real()));
  if (value.whole() == static_cast<Whole>(1) << 127) fail("a number is too large");
  return Value::integer(value.whole() < 0 ? -value.whole() : value.whole());
}

/// To a multiple of 10^-precision, halves to the even one.
Whole round_whole(Whole value, int precision) {
  Whole unit = 1;
  for (int i = 0; i > precision; --i) {
    if (__builtin_mul_overflow(unit, 10, &unit)) return 0;
  }
  const Whole rest = value % unit, size = rest < 0 ? -rest : rest, half = unit / 2;
  const bool tie = unit > 1 && size == half;
  Whole rounded = value - rest;
  const bool away = size > half || (tie && (rounded / unit) % 2 != 0);
  if (away && __builtin_add_overflow(rounded, value < 0 ? -unit : unit, &rounded)) fail("a number is too large");
  return rounded;
}

Value rounded(Run&, const Value& value, const Arguments& arguments) {
  const Parameters given("round", arguments, {"precision", "method"});
  require_defined(value);
  if (!value.is_number()) fail("round needs a number, not a {}", value.type_name());
  const auto precision = static_cast<int>(std::clamp<std::int64_t>(given.integer(0, 0), -30, 30));
  const std::string_view method = given.string(1).value_or("common");
  if (method == "common") {
    if (value.is_integral()) return Value::integer(round_whole(value.whole(), precision));
    if (precision >= 0) return Value::real(std::strtod(fixed_text(value.real(), precision).c_str(), nullptr));
  }
  // Up to 10^22 powers are exact, and their reciprocals rounded once. Windows' pow rounds negative powers otherwise.
  const bool reciprocal = precision < 0 && precision >= -22;
  const double scale = reciprocal ? 1 / std::pow(10.0, -precision) : std::pow(10.0, precision);
  const double scaled = value.real() * scale;
  if (method == "common") return Value::real(std::nearbyint(scaled) / scale);
  if (method != "ceil" && method != "floor") fail("round's method is 'common', 'ceil' or 'floor'");
  return Value::real((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value word_count(Run& run, const Value& value, const Arguments&) {
  const Value text = to_str(run.meter(), value);
  std::int64_t words = 0;
  bool inside = false;
  for (std::size_t at = 0; at < text.bytes().size(); at = next_character(text.bytes(), at)) {
    const char32_t c = code_point(text.bytes(), at);
    const bool in_word = is_letter(c) || is_digit(c) || c == '_';
    words += in_word && !inside ? 1 : 0;
    inside = in_word;
  }
  return Value::integer(words);
}

#define MR_FILTER [](Run & run, const Value& value, const Arguments& given) -> Value

constexpr std::array<std::pair<std::string_view, Filter>, 23> kTextFilters = {
    {{"trim", MR_FILTER{return by_method(run, "strip", value, given);
}  // namespace
}  // namespace millrace::text::jinja
, {"upper", MR_FILTER{return by_method(run, "upper", value, given);
}
}
, {"lower", MR_FILTER{return by_method(run, "lower", value, given);
}
}
, {"capitalize", MR_FILTER{return by_method(run, "capitalize", value, given);
}
}
, {"center",
   MR_FILTER{return given.positional.empty() && given.named.empty() ? by_method(run, "center", value, of_width_80(run))
                                                                    : by_method(run, "center", value, given);
}
}
, {"title", title}, {"replace", replace}, {"indent", indent}, {"truncate", truncate}, {"e", escape}, {"escape", escape},
    {"forceescape", escape}, {"safe", MR_FILTER{return (void)given, to_str(run.meter(), value);
}
}
, {"string", MR_FILTER{return (void)given, to_str(run.meter(), value);
}
}
, {"urlencode", urlencode}, {"tojson", to_json}, {"format", format}, {"int", to_integer}, {"float", to_real},
    {"abs", absolute}, {"round", rounded}, {"wordcount", word_count}, {"pprint", MR_FILTER{(void)given;
Builder out(run.meter());
write_repr(out, value);
return out.finish();
}
}
,
}
}
;

#undef MR_FILTER

}  // namespace

Filter find_text_filter(std::string_view name) {
  for (const auto& [own, filter] : kTextFilters) {
    if (own == name) return filter;
  }
  return nullptr;
}

}  // namespace millrace::text::jinja
