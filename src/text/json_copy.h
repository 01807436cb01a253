// Copies values as JSON byte by byte while they arrive, so that a call's arguments are passed on at once. The
// boundaries of the input do not matter. Thread-safety: one thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::text {

/// The text between the quotes of a JSON string. Non-ASCII bytes are kept.
std::string json_escaped(std::string_view text);

/// Copies one JSON value without white space between tokens. Escapes line breaks and backslashes that JSON requires to
/// be escaped in strings. Text that is not JSON otherwise is copied up to the bracket that closes it.
class JsonCopy {
 public:
  enum class Taken {
    more,
    last,  // this byte completes the value
    none,  // the value was complete before this byte, or no value begins with it
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
  std::string word_;    // a bare word, incomplete
  char delimiter_ = 0;  // of the open Python string; 'q' for `quote_`
  bool raw_ = false;    // r"..."
  bool done_ = false;
};

}  // namespace millrace::text
