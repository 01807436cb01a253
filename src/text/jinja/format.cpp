// The two ways Python puts values into a text: "..." % values, and "...".format(values).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/strings.h"
#include "text/jinja/write.h"

namespace millrace::text::jinja {

namespace {

/// What stands between % and a letter, or after the colon in {}.
struct Spec {
  bool left = false, zero = false, plus = false, space = false;
  char align = 0, type = 0;
  std::string fill = " ";
  std::int64_t width = 0;
  int precision = -1;
};

std::int64_t read_digits(const std::string& text, std::size_t& at) {
  std::int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > 1'000'000) fail("a format asks for more than 1000000 characters");
  }
  return number;
}

std::string number_text(const Value& value, const Spec& spec) {
  if (!value.is_number()) fail("a format wants a number, not {}", value.type_name());
  const char type = spec.type;
  char buffer[512];
  const int precision = std::clamp(spec.precision < 0 ? 6 : spec.precision, 0, 100);
  if (type == 'f' || type == 'F' || type == 'e' || type == 'g') {
    const char form[] = {'%', '.', '*', type, '\0'};
    std::snprintf(buffer, sizeof(buffer), form, precision, value.real());  // NOLINT: the form is one of four
    return buffer;
  }
  if (value.kind() == Kind::real && !(std::fabs(value.real()) < 9e18)) fail("a number is too large for its format");
  const std::int64_t whole = value.kind() == Kind::real ? static_cast<std::int64_t>(value.real()) : value.integer();
  const auto size = whole < 0 ? 0 - static_cast<std::uint64_t>(whole) : static_cast<std::uint64_t>(whole);
  const char* form = type == 'x' ? "%lx" : type == 'X' ? "%lX" : type == 'o' ? "%lo" : "%lu";
  std::snprintf(buffer, sizeof(buffer), form, static_cast<unsigned long>(size));  // NOLINT: one of four
  return fmt::format("{}{}", whole < 0 ? "-" : "", buffer);
}

void write_number(Builder& out, const Value& value, const Spec& spec) {
  std::string text = number_text(value, spec);
  if (text[0] != '-' && spec.plus) text.insert(text.begin(), '+');
  if (text[0] != '-' && !spec.plus && spec.space) text.insert(text.begin(), ' ');
  const auto width = static_cast<std::size_t>(spec.width);
  if (spec.zero && !spec.left && text.size() < width) {
    const std::size_t sign = text[0] == '-' || text[0] == '+' || text[0] == ' ' ? 1 : 0;
    out.meter().touch(width);
    text.insert(sign, width - text.size(), '0');
  }
  append_padded(out, MarkedText(text, false), spec.width,
                spec.align != 0 ? spec.align
                : spec.left     ? '<'
                                : '>',
                spec.fill);
}

void write_text(Builder& out, const MarkedText& text, const Spec& spec) {
  std::size_t end = 0;
  for (int i = 0; end < text.size() && (spec.precision < 0 || i < spec.precision); ++i) {
    end = next_character(text.bytes(), end);
  }
  append_padded(out, text.cut(0, end), spec.width, spec.align, spec.fill);
}

}  // namespace

void write_printf(Builder& out, const MarkedText& format, const std::vector<Value>& positional,
                  const std::vector<std::pair<std::string, Value>>& named) {
  const std::string& form = format.bytes();
  std::size_t used = 0;
  for (std::size_t at = 0; at < form.size();) {
    const std::size_t percent = std::min(form.find('%', at), form.size());
    out.append(format, at, percent);
    if (percent == form.size()) break;
    at = percent + 1;
    std::string name;
    if (at < form.size() && form[at] == '(') {
      const std::size_t close = form.find(')', at);
      if (close == std::string::npos) fail("a format's '%(' has no ')'");
      name = form.substr(at + 1, close - at - 1);
      at = close + 1;
    }
    Spec spec;
    for (; at < form.size() && std::string_view("-0+ #").find(form[at]) != std::string_view::npos; ++at) {
      spec.left |= form[at] == '-';
      spec.zero |= form[at] == '0';
      spec.plus |= form[at] == '+';
      spec.space |= form[at] == ' ';
    }
    spec.width = read_digits(form, at);
    if (at < form.size() && form[at] == '.') spec.precision = static_cast<int>(read_digits(form, ++at));
    if (at == form.size()) fail("a format ends inside of a %");
    spec.type = form[at++];
    if (spec.type == '%') {
      out.append("%", format.trusted_at(at - 1));
      continue;
    }
    const Value* value = nullptr;
    if (name.empty()) {
      if (used >= positional.size()) fail("a format has more places than there are values");
      value = &positional[used++];
    } else {
      for (const auto& [own, item] : named) value = own == name ? &item : value;
      if (value == nullptr) fail("a format names '{}', which is not given", name);
    }
    if (spec.type == 's' || spec.type == 'r') {
      spec.align = spec.left ? '<' : '>';
      Builder text(out.meter());
      spec.type == 's' ? write_str(text, *value) : write_repr(text, *value);
      write_text(out, text.take(), spec);
    } else if (std::string_view("dixXofFeg").find(spec.type) != std::string_view::npos) {
      write_number(out, *value, spec);
    } else {
      fail("a format has '%{}', which is not known", spec.type);
    }
  }
  if (named.empty() && used < positional.size()) fail("a format has fewer places than there are values");
}

namespace {

Spec read_spec(const std::string& text, std::size_t at, std::size_t end) {
  Spec spec;
  if (at == end) return spec;
  const auto aligns = [&](std::size_t i) { return i < end && (text[i] == '<' || text[i] == '>' || text[i] == '^'); };
  const std::size_t second = next_character(text, at);
  if (aligns(second)) {
    spec.fill = text.substr(at, second - at);
    spec.align = text[second];
    at = second + 1;
  } else if (aligns(at)) {
    spec.align = text[at++];
  }
  if (at < end && text[at] == '+') spec.plus = (++at, true);
  if (at < end && text[at] == '0') spec.zero = (++at, true);
  spec.width = read_digits(text, at);
  if (at < end && text[at] == '.') spec.precision = static_cast<int>(read_digits(text, ++at));
  if (at < end) spec.type = text[at++];
  if (at != end) fail("the format '{}' is not known", text.substr(0, 40));
  return spec;
}

const Value& find_argument(const std::string& name, std::size_t& next, const Arguments& arguments) {
  std::size_t index = 0;
  if (name.empty()) {
    index = next++;
  } else if (name.find_first_not_of("0123456789") == std::string::npos) {
    std::size_t at = 0;
    index = static_cast<std::size_t>(read_digits(name, at));
  } else {
    for (const auto& [own, value] : arguments.named) {
      if (own == name) return value;
    }
    fail("a format names '{}', which is not given", name);
  }
  if (index >= arguments.positional.size()) fail("a format has more places than there are values");
  return arguments.positional[index];
}

}  // namespace

void write_format(Builder& out, const MarkedText& format, const Arguments& arguments) {
  const std::string& form = format.bytes();
  std::size_t next = 0;
  for (std::size_t at = 0; at < form.size();) {
    const std::size_t brace = std::min(form.find_first_of("{}", at), form.size());
    out.append(format, at, brace);
    if (brace == form.size()) break;
    at = brace + 1;
    if (at < form.size() && form[at] == form[brace]) {
      out.append(format, brace, at++);
      continue;
    }
    const std::size_t close = form[brace] == '{' ? form.find('}', at) : std::string::npos;
    if (close == std::string::npos) fail("a format has a single '{}'", form[brace]);
    const std::size_t colon = std::min(form.find(':', at), close);
    const Value& value = find_argument(form.substr(at, colon - at), next, arguments);
    const Spec spec = read_spec(form, std::min(colon + 1, close), close);
    at = close + 1;
    if (value.is_number() && value.kind() != Kind::boolean && (spec.type != 0 || spec.width > 0)) {
      if (value.kind() == Kind::real && spec.type == 0) {
        append_padded(out, MarkedText(float_text(value.real()), false), spec.width, spec.align ? spec.align : '>',
                      spec.fill);
      } else {
        write_number(out, value, spec);
      }
      continue;
    }
    if (spec.type != 0 && spec.type != 's') fail("a format wants a number, not {}", value.type_name());
    Builder text(out.meter());
    write_str(text, value);
    Spec of_text = spec;
    if (of_text.align == 0) of_text.align = '<';
    write_text(out, text.take(), of_text);
  }
}

}  // namespace millrace::text::jinja
