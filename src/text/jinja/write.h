// Values as text: Python's str and repr, json.dumps, printf-style and str.format formatting.
// Thread-safety: pure functions.
#pragma once

#include <optional>
#include <string>

#include "text/jinja/value.h"

namespace millrace::text::jinja {

/// Python's repr of a float: the shortest digits that read back as the same number.
std::string float_text(double value);
/// `precision` digits after the point, as Python's '%.*f'.
std::string fixed_text(double value, int precision);

/// A number in decimal digits; and digits of base 2 to 36 without sign as a number, nullopt where they are none. Fails
/// past 128 bits.
std::string whole_text(Whole value);
std::optional<Whole> read_whole(std::string_view digits, int base);

void write_str(Builder& out, const Value& value);
void write_repr(Builder& out, const Value& value);
/// str(value) as a string value; a string is itself.
Value to_str(Meter& meter, const Value& value);

/// json.dumps' keywords, with the defaults of the tojson that chat templates are rendered with.
struct JsonStyle {
  std::optional<std::string> indent;  // of one level; nullopt: all in one line
  std::string item_separator = ", ", key_separator = ": ";
  bool ascii = false, sort_keys = false;
};
/// Fails for what JSON cannot say.
void write_json(Builder& out, const Value& value, const JsonStyle& style);

/// "format % arguments"; of `named`, those with strings as keys.
void write_printf(Builder& out, const MarkedText& format, const Values& positional, const Entries& named);
/// format.format(arguments): {}, {0}, {name}, {name.attribute[item]!r}, with Python's format specifications of numbers
/// and strings. Source: the Python library reference, "Format Specification Mini-Language".
void write_format(Run& run, Builder& out, const MarkedText& format, const Arguments& arguments);

}  // namespace millrace::text::jinja
