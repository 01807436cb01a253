// The two ways Python puts values into a text: "..." % values, and "...".format(values).
// Source: the Python library reference, "printf-style String Formatting" and "Format Specification Mini-Language".
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/library.h"
#include "text/jinja/run.h"
#include "text/jinja/strings.h"
#include "text/jinja/write.h"
#include "text/utf8.h"

namespace millrace::text::jinja {

namespace {

/// What stands between % and a letter, or after the colon in {}.
struct Spec {
  std::string fill = " ";
  char align = 0;     // '<', '>', '^', '=' (between sign and digits); 0: as the kind of value has it
  char sign = '-';    // '+', '-' or ' '
  char grouping = 0;  // ',' or '_'
  char type = 0;
  bool alternate = false, zero = false;
  std::int64_t width = 0;
  int precision = -1;
};

bool is_one_of(char c, std::string_view letters) { return letters.find(c) != std::string_view::npos; }

std::int64_t read_digits(std::string_view text, std::size_t& at) {
  std::int64_t number = 0;
  for (; at < text.size() && text[at] >= '0' && text[at] <= '9'; ++at) {
    number = number * 10 + (text[at] - '0');
    if (number > 1'000'000) fail("a format asks for more than 1000000 characters");
  }
  return number;
}

/// A number in pieces: "-", "0x", "1234", ".5e+10".
struct Number {
  std::string sign, prefix, digits, tail;
};

std::string printed(const char* form, int precision, double value) {
  char buffer[512];
  const int length = std::snprintf(buffer, sizeof(buffer), form, precision, value);  // NOLINT: the callers' literals
  return {buffer, static_cast<std::size_t>(std::clamp(length, 0, static_cast<int>(sizeof(buffer)) - 1))};
}

/// Like 'g', with a digit behind the point for certain.
std::string general_text(double size, int precision) {
  const int digits = std::max(precision, 1);
  std::string text = printed("%.*e", digits - 1, size);
  const std::size_t e = text.find('e');
  if (e == std::string::npos) return text;  // inf, nan
  const int point = std::atoi(text.c_str() + e + 1) + 1;
  const bool scientific = point <= -4 || point > digits - 1;
  std::string tail = scientific ? text.substr(e) : "";
  text = scientific ? text.substr(0, e) : printed("%.*f", digits - point, size);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') text.pop_back();
  }
  if (!scientific && text.find('.') == std::string::npos) text += ".0";
  return text + tail;
}

std::string real_text(double size, const Spec& spec) {
  const int precision = std::clamp(spec.precision < 0 ? 6 : spec.precision, 0, 100);
  switch (spec.type) {
    case 'f':
    case 'F':
      return printed(spec.alternate ? "%#.*f" : "%.*f", precision, size);
    case 'e':
      return printed(spec.alternate ? "%#.*e" : "%.*e", precision, size);
    case 'E':
      return printed(spec.alternate ? "%#.*E" : "%.*E", precision, size);
    case 'G':
      return printed(spec.alternate ? "%#.*G" : "%.*G", precision, size);
    case '%':
      return printed("%.*f", precision, size * 100) + "%";
    case 0:
      return spec.precision < 0 ? float_text(size) : general_text(size, precision);
    default:  // g, n
      return printed(spec.alternate ? "%#.*g" : "%.*g", precision, size);
  }
}

Number number_of(const Value& value, const Spec& spec) {
  Number number;
  const bool as_real = value.kind() == Kind::real || is_one_of(spec.type, "eEfFgG%");
  bool negative = false;
  if (as_real && !is_one_of(spec.type, "bcdoxX")) {
    negative = std::signbit(value.real()) && !std::isnan(value.real());
    const std::string text = real_text(std::fabs(value.real()), spec);
    const std::size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
    number.digits = text.substr(0, end);
    number.tail = text.substr(end);
  } else {
    const Whole whole = value.whole();
    negative = whole < 0;
    __extension__ using Size = unsigned __int128;
    const Size size = negative ? Size{0} - static_cast<Size>(whole) : static_cast<Size>(whole);
    number.digits = spec.type == 'x'   ? fmt::format("{:x}", size)
                    : spec.type == 'X' ? fmt::format("{:X}", size)
                    : spec.type == 'o' ? fmt::format("{:o}", size)
                    : spec.type == 'b' ? fmt::format("{:b}", size)
                                       : fmt::format("{}", size);
    if (spec.alternate && is_one_of(spec.type, "xXob")) number.prefix = {'0', spec.type};
  }
  number.sign = negative ? "-" : spec.sign == '-' ? "" : std::string(1, spec.sign);
  return number;
}

std::string grouped(const std::string& digits, char separator, std::size_t group) {
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % group == 0) text += separator;
    text += digits[i];
  }
  return text;
}

void write_number(Builder& out, Number number, const Spec& spec) {
  const std::size_t group = is_one_of(spec.type, "xXob") && spec.type != 0 ? 4 : 3;
  const auto width = static_cast<std::size_t>(spec.width);
  const std::size_t beside = number.sign.size() + number.prefix.size() + number.tail.size();
  if (spec.align == '=' && spec.fill == "0") {  // zeros are digits: they are grouped, too
    out.meter().touch(width);
    const auto length = [&](std::size_t digits) {
      return beside + digits + (spec.grouping != 0 && digits > 0 ? (digits - 1) / group : 0);
    };
    std::size_t digits = number.digits.size();
    while (length(digits) < width) ++digits;
    number.digits.insert(0, digits - number.digits.size(), '0');
  }
  if (spec.grouping != 0) number.digits = grouped(number.digits, spec.grouping, group);
  if (spec.align == '=') {
    out.append(number.sign + number.prefix);
    append_padded(out, MarkedText(number.digits + number.tail, false),
                  spec.width - static_cast<std::int64_t>(number.sign.size() + number.prefix.size()), '>', spec.fill);
    return;
  }
  append_padded(out, MarkedText(number.sign + number.prefix + number.digits + number.tail, false), spec.width,
                spec.align != 0 ? spec.align : '>', spec.fill);
}

void write_text(Builder& out, const MarkedText& text, const Spec& spec) {
  std::size_t end = text.size();
  if (spec.precision >= 0) end = place_of_character(text.bytes(), static_cast<std::size_t>(spec.precision));
  Builder head(out.meter());
  head.append(text, 0, end);
  append_padded(out, head.text(), spec.width, spec.align, spec.fill);
}

MarkedText character_of(const Value& value) {
  std::string text;
  const Whole code = value.whole();
  if (code < 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) fail("a format's number is no character");
  append_utf8(static_cast<char32_t>(code), text);
  return {text, false};
}

/// '%' and its value; `at` stands behind the '%'.
class Printf {
 public:
  Printf(Builder& out, const MarkedText& format, const Values& positional, const Entries& named)
      : out_(out), format_(format), form_(format.bytes()), positional_(positional), named_(named) {}

  void write() {
    for (std::size_t at = 0; at < form_.size();) {
      const std::size_t percent = std::min(form_.find('%', at), form_.size());
      out_.append(format_, at, percent);
      if (percent == form_.size()) break;
      at = percent + 1;
      place(at);
    }
    if (named_.empty() && used_ < positional_.size()) fail("a format has fewer places than there are values");
  }

 private:
  void place(std::size_t& at) {
    std::string name;
    const bool has_name = at < form_.size() && form_[at] == '(';
    if (has_name) {
      const std::size_t close = form_.find(')', at);
      if (close == std::string::npos) fail("a format's '%(' has no ')'");
      name = form_.substr(at + 1, close - at - 1);
      at = close + 1;
    }
    Spec spec;
    for (; at < form_.size() && is_one_of(form_[at], "-0+ #"); ++at) {
      if (form_[at] == '-') spec.align = '<';
      if (form_[at] == '+' || (form_[at] == ' ' && spec.sign == '-')) spec.sign = form_[at];
      spec.zero |= form_[at] == '0';
      spec.alternate |= form_[at] == '#';
    }
    spec.width = read_digits(form_, at);
    if (at < form_.size() && form_[at] == '.') spec.precision = static_cast<int>(read_digits(form_, ++at));
    if (at == form_.size()) fail("a format ends inside of a %");
    spec.type = form_[at++];
    if (spec.type == '%') return out_.append("%", format_.trusted_at(at - 1));
    convert(has_name ? find(name) : next(), spec);
  }

  const Value& find(const std::string& name) const {
    for (const auto& [own, item] : named_) {
      if (own.is_string() && own.bytes() == name) return item;
    }
    fail("a format names '{}', which is not given", name.substr(0, 80));
  }
  const Value& next() {
    if (used_ >= positional_.size()) fail("a format has more places than there are values");
    return positional_[used_++];
  }

  void convert(const Value& value, Spec spec) {
    const bool text = spec.type == 's' || spec.type == 'r' || (spec.type == 'c' && value.is_string());
    if (text || spec.type == 'c') {
      if (spec.align == 0) spec.align = '>';
      Builder whole(out_.meter());
      if (!text) {
        whole.append(character_of(value));
      } else if (spec.type == 'r') {
        write_repr(whole, value);
      } else {
        write_str(whole, value);
      }
      if (spec.type == 'c' && count_characters(whole.text().bytes()) != 1) fail("'%c' needs one character");
      return write_text(out_, whole.text(), spec);
    }
    if (!is_one_of(spec.type, "diuxXoeEfFgG")) fail("a format has '%{}', which is not known", spec.type);
    if (!value.is_number()) fail("a format wants a number, not {}", value.type_name());
    if (spec.zero && spec.align == 0) {
      spec.align = '=';
      spec.fill = "0";
    }
    if (is_one_of(spec.type, "diu")) {
      spec.type = 'd';
      if (value.kind() == Kind::real && !(std::fabs(value.real()) < 0x1p126))
        fail("a number is too large for a format");
    }
    const bool cut = spec.type == 'd' && value.kind() == Kind::real;
    if (is_one_of(spec.type, "xXo") && value.kind() == Kind::real) fail("'%{}' needs a whole number", spec.type);
    Number number = number_of(cut ? Value::integer(static_cast<Whole>(value.real())) : value, spec);
    const auto least = static_cast<std::size_t>(std::max(spec.precision, 0));
    if (is_one_of(spec.type, "dxXo") && number.digits.size() < least) {
      out_.meter().touch(least);
      number.digits.insert(0, least - number.digits.size(), '0');
    }
    write_number(out_, std::move(number), spec);
  }

  Builder& out_;
  const MarkedText& format_;
  const std::string& form_;
  const Values& positional_;
  const Entries& named_;
  std::size_t used_ = 0;
};

Spec read_spec(std::string_view text) {
  Spec spec;
  std::size_t at = 0;
  const auto aligns = [&](std::size_t i) { return i < text.size() && is_one_of(text[i], "<>^="); };
  const std::size_t second = text.empty() ? 0 : next_character(text, 0);
  bool filled = true;
  if (!text.empty() && aligns(second)) {
    spec.fill = text.substr(0, second);
    spec.align = text[second];
    at = second + 1;
  } else {
    filled = false;
    if (aligns(0)) spec.align = text[at++];
  }
  const auto eat = [&](std::string_view letters) {
    return at < text.size() && is_one_of(text[at], letters) ? text[at++] : '\0';
  };
  if (const char sign = eat("+- ")) spec.sign = sign;
  spec.alternate = eat("#") != 0;
  spec.zero = eat("0") != 0;
  if (spec.zero && !filled) spec.fill = "0";
  spec.width = read_digits(text, at);
  spec.grouping = eat(",_");
  if (eat(".") != 0) {
    if (at == text.size() || text[at] < '0' || text[at] > '9') fail("a format has a '.' without a precision");
    spec.precision = static_cast<int>(read_digits(text, at));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at != text.size()) fail("the format '{}' is not known", text.substr(0, 40));
  return spec;
}

class Format {
 public:
  Format(Run& run, const Arguments& arguments) : run_(run), arguments_(arguments) {}

  void write(Builder& out, const MarkedText& format, int depth) {
    const std::string& form = format.bytes();
    if (depth > 1) fail("a format nests too deeply");
    for (std::size_t at = 0; at < form.size();) {
      const std::size_t brace = std::min(form.find_first_of("{}", at), form.size());
      out.append(format, at, brace);
      if (brace == form.size()) break;
      at = brace + 1;
      if (at < form.size() && form[at] == form[brace]) {
        out.append(format, brace, at++);
        continue;
      }
      const std::size_t close = form[brace] == '{' ? closing(form, at) : std::string::npos;
      if (close == std::string::npos) fail("a format has a single '{}'", form[brace]);
      field(out, format, at, close, depth);
      at = close + 1;
    }
  }

 private:
  static std::size_t closing(const std::string& form, std::size_t at) {
    int open = 1;
    for (; at < form.size(); ++at) {
      open += form[at] == '{' ? 1 : form[at] == '}' ? -1 : 0;
      if (open == 0) return at;
    }
    return std::string::npos;
  }

  /// "name!r:spec" between two braces.
  void field(Builder& out, const MarkedText& format, std::size_t begin, std::size_t end, int depth) {
    const std::string_view form = std::string_view(format.bytes()).substr(0, end);
    std::size_t name_end = begin;
    for (bool inside = false; name_end < end && (inside || !is_one_of(form[name_end], "!:")); ++name_end) {
      inside = form[name_end] == '[' || (inside && form[name_end] != ']');
    }
    Value value = find(form.substr(begin, name_end - begin));
    std::size_t at = name_end;
    if (at < end && form[at] == '!') {
      const char conversion = at + 1 < end ? form[at + 1] : '\0';
      if (conversion != 'r' && conversion != 's') fail("a format has '!{}', which is not known", conversion);
      Builder text(out.meter());
      conversion == 'r' ? write_repr(text, value) : write_str(text, value);
      value = text.finish();
      at += 2;
      if (at < end && form[at] != ':') fail("a format has more than a letter behind its '!'");
    }
    Builder spec(out.meter());
    if (at < end) {
      Builder written(out.meter());
      written.append(format, at + 1, end);
      write(spec, written.text(), depth + 1);
    }
    convert(out, value, read_spec(spec.text().bytes()), spec.text().empty());
  }

  static void convert(Builder& out, const Value& value, Spec spec, bool plain) {
    if (value.is_number() && !(plain && value.kind() == Kind::boolean)) return convert_number(out, value, spec);
    if (!plain && !value.is_string()) fail("a {} takes no format", value.type_name());
    if (spec.type != 0 && spec.type != 's') fail("a format wants a number, not {}", value.type_name());
    if (spec.align == '=' || spec.grouping != 0 || spec.sign != '-' || spec.alternate) {
      fail("a format asks of a string what numbers have");
    }
    if (spec.align == 0) spec.align = '<';
    Builder text(out.meter());
    write_str(text, value);
    write_text(out, text.text(), spec);
  }

  static void convert_number(Builder& out, const Value& value, Spec spec) {
    const bool real = value.kind() == Kind::real;
    const std::string_view known = real ? "eEfFgGn%" : "bcdoxXneEfFgG%";
    if (spec.type != 0 && !is_one_of(spec.type, known))
      fail("a format has '{}', which is not for this number", spec.type);
    if (!real && spec.precision >= 0 && !is_one_of(spec.type, "eEfFgG%")) fail("a whole number takes no precision");
    if (spec.grouping == ',' && is_one_of(spec.type, "boxX") && spec.type != 0)
      fail("',' does not go with '{}'", spec.type);
    if (spec.zero && spec.align == 0) spec.align = '=';
    if (spec.type == 'c') {
      if (spec.align == 0) spec.align = '<';
      return append_padded(out, character_of(value), spec.width, spec.align, spec.fill);
    }
    if (!real && spec.type == 'n') spec.type = 'd';
    write_number(out, number_of(value, spec), spec);
  }

  /// An argument by its place or name, and what is in it: "0.name[key]".
  Value find(std::string_view name) {
    const std::size_t first = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, first));
    for (std::size_t at = first; at < name.size();) {
      run_.meter().step();
      const bool item = name[at] == '[';
      const std::size_t end = std::min(item ? name.find(']', at) : name.find_first_of(".[", at + 1), name.size());
      const std::string part(name.substr(at + 1, end - at - 1));
      if (part.empty() || (item && end == name.size())) fail("a format has an empty or open name");
      const bool number = part.size() < 10 && part.find_first_not_of("0123456789") == std::string::npos;
      value = !item    ? get_attribute(run_, value, part)
              : number ? get_item(run_, value, Value::integer(std::stoll(part)))
                       : get_item(run_, value, run_.make_string(part));
      at = item ? end + 1 : end;
    }
    return value;
  }

  const Value& argument(std::string_view name) {
    std::size_t index = 0;
    if (name.empty()) {
      index = next_++;
    } else if (name.find_first_not_of("0123456789") == std::string_view::npos) {
      std::size_t at = 0;
      index = static_cast<std::size_t>(read_digits(name, at));
    } else {
      for (const auto& [own, value] : arguments_.named) {
        if (own.bytes() == name) return value;
      }
      fail("a format names '{}', which is not given", name.substr(0, 80));
    }
    if (index >= arguments_.positional.size()) fail("a format has more places than there are values");
    return arguments_.positional[index];
  }

  Run& run_;
  const Arguments& arguments_;
  std::size_t next_ = 0;
};

}  // namespace

void write_printf(Builder& out, const MarkedText& format, const Values& positional, const Entries& named) {
  Printf(out, format, positional, named).write();
}

void write_format(Run& run, Builder& out, const MarkedText& format, const Arguments& arguments) {
  Format(run, arguments).write(out, format, 0);
}

}  // namespace millrace::text::jinja
