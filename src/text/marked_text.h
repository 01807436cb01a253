// Text in which each byte is marked as trusted (from a template's author) or untrusted (from a user, a tool, a
// request). Special tokens are only recognised in trusted text, so that no message can inject one. Plain text is
// encoded across marks, so that marks never change how words are split. Thread-safety: a value.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace millrace::text {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string bytes, bool trusted) : bytes_(std::move(bytes)), first_(trusted) {}

  const std::string& bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  /// REQUIRES: at < size().
  bool trusted_at(std::size_t at) const;
  /// True if all of [begin, end) is trusted. REQUIRES: begin < end <= size().
  bool trusted(std::size_t begin, std::size_t end) const;

  void append(std::string_view bytes, bool trusted);
  /// REQUIRES: begin <= end <= other.size(); `other` is another object.
  void append(const MarkedText& other, std::size_t begin, std::size_t end);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  MarkedText cut(std::size_t begin, std::size_t end) const;

  /// An upper bound on the changes of the mark in (begin, end]. REQUIRES: begin <= end <= size().
  std::size_t flips_between(std::size_t begin, std::size_t end) const {
    return flips_.empty() ? 0 : flips_until(end) - flips_until(begin);
  }
  /// True if appending needs no more memory.
  bool has_room(std::size_t bytes, std::size_t flips) const {
    return bytes <= bytes_.capacity() - bytes_.size() && flips <= flips_.capacity() - flips_.size();
  }
  /// True if appending bytes with that mark adds a change.
  bool would_flip(bool trusted) const { return !bytes_.empty() && last() != trusted; }
  /// Takes memory for so much more, at least as much again as there is, so that appending takes linear time; and the
  /// bytes that it takes anew while the old ones are still there.
  void reserve_more(std::size_t bytes, std::size_t flips);
  std::size_t bytes_of_reserve(std::size_t bytes, std::size_t flips) const;

  /// The memory of the text, approximately.
  std::size_t memory_bytes() const { return bytes_.capacity() + flips_.capacity() * sizeof(std::size_t); }

 private:
  bool last() const { return first_ != (flips_.size() % 2 == 1); }
  /// The number of changes at or before `at`.
  std::size_t flips_until(std::size_t at) const;

  std::string bytes_;
  // Positions where the mark changes, ascending, each in (0, size()). Most texts have one mark, and no changes.
  std::vector<std::size_t> flips_;
  bool first_ = false;  // the mark of byte 0
};

}  // namespace millrace::text
