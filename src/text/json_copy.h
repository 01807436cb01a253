// Values copied as JSON while they come, byte by byte: what a model writes of a call's arguments can be passed on at
// once. How the text is cut changes nothing.
// Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// What stands between the quotes of a JSON string. Bytes past ASCII stay as they are.
std::string json_escaped(std::string_view text);

/// One JSON value, white space between its tokens left out. Line breaks and backslashes that JSON would have escaped
/// in a string are; a value that is no JSON otherwise is copied as it is, up to where its brackets close.
class JsonCopy {
 public:
  enum class Taken {
    more,
    last,  // the value is whole with this byte
    none,  // the value was whole before this byte, or none begins with it
  };
  Taken take(char c, std::string& out);
  bool begun() const { return begun_; }

 private:
  void in_string(char c, std::string& out);

  bool begun_ = false, string_ = false, escaped_ = false, scalar_ = false;
  int depth_ = 0;
};

/// Arguments in the manner of Python's calls, (key=value, ...), or of Gemma's {key: value, ...} with `quote` around
/// strings, as a JSON object. REQUIRES: the text begins with the bracket that opens them.
class LooseCopy {
 public:
  /// `quote` empty: Python's strings.
  explicit LooseCopy(std::string_view quote) : quote_(quote) {}
  /// Takes from the front of `text` what can be told now, and returns how many bytes that is.
  std::size_t take(std::string_view text, bool last, std::string& out);
  bool done() const { return done_; }

 private:
  bool take_one(std::string_view text, bool last, std::size_t& taken, std::string& out);
  std::size_t in_string(std::string_view text, bool last, std::string& out);
  std::size_t escape(std::string_view text, bool last, std::string& out);
  void end_word(bool key, std::string& out);
  void open(char bracket, char closing, std::string& out);

  const std::string_view quote_;
  std::vector<char> closers_;
  std::string word_;    // a bare word on its way
  char delimiter_ = 0;  // of Python's string that is open; 'q' for `quote_`
  bool raw_ = false;    // r"..."
  bool done_ = false;
};

}  // namespace millrace::text
