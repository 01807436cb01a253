#include "text/jinja/write.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "text/jinja/strings.h"

namespace millrace::text::jinja {

namespace {

std::string escape_number(const char* form, unsigned value) {
  char buffer[16];
  std::snprintf(buffer, sizeof(buffer), form, value);
  return buffer;
}

void write_quoted(Builder& out, const MarkedText& text) {
  const std::string& bytes = text.bytes();
  const char quote = bytes.find('\'') != std::string::npos && bytes.find('"') == std::string::npos ? '"' : '\'';
  out.append(std::string_view(&quote, 1));
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t next = next_character(bytes, at);
    const char32_t c = code_point(bytes, at);
    const bool trusted = text.trusted_at(at);
    if (c == static_cast<unsigned char>(quote) || c == '\\') {
      out.append("\\", trusted);
      out.append(text, at, next);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out.append(c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", trusted);
    } else if (!is_printable(c)) {
      out.append(escape_number(c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c), trusted);
    } else {
      out.append(text, at, next);
    }
    at = next;
  }
  out.append(std::string_view(&quote, 1));
}

void write_json_string(Builder& out, const MarkedText& text, bool ascii) {
  const std::string& bytes = text.bytes();
  out.append("\"");
  std::size_t plain = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t next = next_character(bytes, at);
    const char32_t c = code_point(bytes, at);
    const char* short_form = c == '"'    ? "\\\""
                             : c == '\\' ? "\\\\"
                             : c == '\n' ? "\\n"
                             : c == '\r' ? "\\r"
                             : c == '\t' ? "\\t"
                             : c == '\f' ? "\\f"
                             : c == '\b' ? "\\b"
                                         : nullptr;
    if (short_form != nullptr || c < 0x20 || (ascii && c >= 0x7F)) {
      out.append(text, plain, at);
      plain = next;
      std::string escaped;
      if (short_form != nullptr) {
        escaped = short_form;
      } else if (c < 0x10000) {
        escaped = escape_number("\\u%04x", c);
      } else {
        escaped = escape_number("\\u%04x", 0xD800 + ((c - 0x10000) >> 10));
        escaped += escape_number("\\u%04x", 0xDC00 + ((c - 0x10000) & 0x3FF));
      }
      out.append(escaped, text.trusted_at(at));
    }
    at = next;
  }
  out.append(text, plain, bytes.size());
  out.append("\"");
}

class JsonWriter {
 public:
  JsonWriter(Builder& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value) {
    out_.meter().step();
    switch (value.kind()) {
      case Kind::none:
        return out_.append("null");
      case Kind::boolean:
        return out_.append(value.truth() ? "true" : "false");
      case Kind::integer:
        return out_.append(whole_text(value.whole()));
      case Kind::real:
        return out_.append(number(value.real()));
      case Kind::string:
        return write_json_string(out_, value.text(), style_.ascii);
      case Kind::list:
        return write_items(value.list().items.size(), "[]", [&](std::size_t i) { write(value.list().items[i]); });
      case Kind::dict:
        return write_dict(value.dict());
      default:
        require_defined(value);
        fail("a {} cannot be written as JSON", value.type_name());
    }
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    return std::isinf(value) ? (value < 0 ? "-Infinity" : "Infinity") : float_text(value);
  }

  template <typename Item>
  void write_items(std::size_t count, const char* brackets, const Item& item) {
    out_.append(std::string_view(brackets, 1));
    ++depth_;
    for (std::size_t i = 0; i < count; ++i) {
      if (i > 0) out_.append(style_.item_separator);
      new_line();
      item(i);
    }
    --depth_;
    if (count > 0) new_line();
    out_.append(std::string_view(brackets + 1, 1));
  }

  void write_dict(const Dict& dict) {
    Vector<std::size_t> order(dict.entries.size(), out_.meter());
    std::iota(order.begin(), order.end(), 0);
    if (style_.sort_keys) {
      const Held for_sorting(&out_.meter(), order.size() * sizeof(std::size_t));
      std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
        return compare(out_.meter(), dict.entries[a].first, dict.entries[b].first) < 0;
      });
    }
    write_items(order.size(), "{}", [&](std::size_t i) {
      const auto& [key, value] = dict.entries[order[i]];
      if (key.is_string()) {
        write_json_string(out_, key.text(), style_.ascii);
      } else {
        if (!key.is_number() && !key.is_none()) fail("a {} cannot be a key in JSON", key.type_name());
        out_.append("\"");
        write(key);
        out_.append("\"");
      }
      out_.append(style_.key_separator);
      write(value);
    });
  }

  void new_line() {
    if (!style_.indent) return;
    out_.append("\n");
    for (int i = 0; i < depth_; ++i) out_.append(*style_.indent);
  }

  Builder& out_;
  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const auto made = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string scientific(buffer, made.ptr);
  const std::size_t e = scientific.find('e');
  const int exponent = std::atoi(scientific.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  std::string digits;
  for (const char c : scientific.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  std::string text = value < 0 || std::signbit(value) ? "-" : "";
  if (exponent < 0) return text + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() < whole) digits.append(whole - digits.size(), '0');
  text += digits.substr(0, whole) + ".";
  return text + (digits.size() > whole ? digits.substr(whole) : "0");
}

std::string fixed_text(double value, int precision) {
  char buffer[512];
  const int length = std::snprintf(buffer, sizeof(buffer), "%.*f", std::clamp(precision, 0, 100), value);
  return {buffer, static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(sizeof(buffer)) - 1))};
}

std::string whole_text(Whole value) { return fmt::format("{}", value); }

std::optional<Whole> read_whole(std::string_view digits, int base) {
  Whole value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 10
                      : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                             : 36;
    if (digit >= base) return std::nullopt;
    if (__builtin_mul_overflow(value, base, &value) || __builtin_add_overflow(value, digit, &value)) {
      fail("a number is too large");
    }
  }
  return digits.empty() ? std::nullopt : std::optional(value);
}

void write_str(Builder& out, const Value& value) {
  if (value.is_string()) {
    out.append(value.text());
  } else if (!value.is_undefined()) {
    write_repr(out, value);
  }
}

void write_repr(Builder& out, const Value& value) {
  out.meter().step();
  switch (value.kind()) {
    case Kind::undefined:
      return out.append("Undefined");
    case Kind::none:
      return out.append("None");
    case Kind::boolean:
      return out.append(value.truth() ? "True" : "False");
    case Kind::integer:
      return out.append(whole_text(value.whole()));
    case Kind::real:
      return out.append(float_text(value.real()));
    case Kind::string:
      return write_quoted(out, value.text());
    case Kind::object:
      return out.append(value.object().describe());
    case Kind::list: {
      const auto& items = value.list().items;
      out.append(value.is_tuple() ? "(" : "[");
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.append(", ");
        write_repr(out, items[i]);
      }
      out.append(!value.is_tuple() ? "]" : items.size() == 1 ? ",)" : ")");
      return;
    }
    case Kind::dict: {
      out.append("{");
      bool first = true;
      for (const auto& [key, item] : value.dict().entries) {
        if (!std::exchange(first, false)) out.append(", ");
        write_repr(out, key);
        out.append(": ");
        write_repr(out, item);
      }
      out.append("}");
      return;
    }
  }
}

Value to_str(Meter& meter, const Value& value) {
  if (value.is_string()) return value;
  Builder out(meter);
  write_str(out, value);
  return out.finish();
}

void write_json(Builder& out, const Value& value, const JsonStyle& style) { JsonWriter(out, style).write(value); }

}  // namespace millrace::text::jinja
