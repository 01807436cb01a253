// The texts written so far in lists and objects of a JSON text whose items or names must differ. Values are compared by
// their spelling: the grammar allows only one spelling for such items and names, and no white space within them.
//
// A list or object is tracked from mark(), which announces that its next item or name may have to differ, until it
// ends. Thread-safety: one thread.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace millrace::text {

/// Copies share what was kept and have what came since for themselves.
class WrittenTexts {
 public:
  using Depth = std::uint32_t;  // lists and objects that are open

  void take(std::uint8_t byte);
  /// An item or a name that may have to differ begins behind the last byte, in the innermost list or object.
  void mark();
  Depth depth() const { return depth_; }
  bool in_string() const { return in_string_; }
  /// Whatever ends now or later, it is none of those that came: no text of theirs begins so.
  bool is_free(Depth depth) const;
  bool is_free() const;
  /// Nothing was written yet of an item or name behind a comma, and there are some that it may repeat.
  bool is_before_text() const;
  /// What was written of the item at this depth is one of those that came.
  bool has_come(Depth depth) const;
  /// The bytes that go on as one of those that came does.
  void add_next_bytes(Depth depth, std::bitset<256>& bytes) const;
  /// Keeps what came; copies made before see it, too, and must not be used any more.
  void keep();
  WrittenTexts deep_copy() const;
  std::uint64_t bytes() const { return kept_bytes_; }  // of memory, at the last keep()

 private:
  struct Level {
    Depth depth = 0;
    bool collects = true;  // an item or name is being written
    bool free = true;
    std::string text;                // of it
    std::vector<std::string> fresh;  // came since keep()
    std::shared_ptr<std::set<std::string, std::less<>>> kept;
    std::uint64_t kept_bytes = 0;
  };

  const Level* level(Depth depth) const;
  void append(std::uint8_t byte, Depth below);
  static void end_text(Level& level);
  static void find_free(Level& level);

  std::vector<Level> levels_;  // ascending depth
  Depth depth_ = 0;
  std::uint64_t kept_bytes_ = 0;
  bool in_string_ = false, escaped_ = false;
};

}  // namespace millrace::text
