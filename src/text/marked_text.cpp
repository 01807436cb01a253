#include "text/marked_text.h"

#include <algorithm>

namespace millrace::text {

std::size_t MarkedText::flips_until(std::size_t at) const {
  return static_cast<std::size_t>(std::upper_bound(flips_.begin(), flips_.end(), at) - flips_.begin());
}

bool MarkedText::trusted_at(std::size_t at) const { return first_ != (flips_until(at) % 2 == 1); }

bool MarkedText::trusted(std::size_t begin, std::size_t end) const {
  const std::size_t before = flips_until(begin);
  return first_ != (before % 2 == 1) && (before == flips_.size() || flips_[before] >= end);
}

void MarkedText::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_ = trusted;
  } else if (last() != trusted) {
    flips_.push_back(bytes_.size());
  }
  bytes_ += bytes;
}

void MarkedText::append(const MarkedText& other, std::size_t begin, std::size_t end) {
  std::size_t flip = flips_.empty() && other.flips_.empty() ? 0 : other.flips_until(begin);
  while (begin < end) {
    const bool trusted = other.first_ != (flip % 2 == 1);
    const std::size_t stop = flip < other.flips_.size() ? std::min(end, other.flips_[flip]) : end;
    append(std::string_view(other.bytes_).substr(begin, stop - begin), trusted);
    begin = stop;
    ++flip;
  }
}

namespace {

/// Returns the capacity a container grows to; 0 if it has room.
template <typename Container>
std::size_t grown(const Container& container, std::size_t more) {
  if (more <= container.capacity() - container.size()) return 0;
  return std::max(2 * container.capacity(), container.size() + more);
}

}  // namespace

std::size_t MarkedText::bytes_of_reserve(std::size_t bytes, std::size_t flips) const {
  return grown(bytes_, bytes) + grown(flips_, flips) * sizeof(std::size_t);
}

void MarkedText::reserve_more(std::size_t bytes, std::size_t flips) {
  if (const std::size_t room = grown(bytes_, bytes); room > 0) bytes_.reserve(room);
  if (const std::size_t room = grown(flips_, flips); room > 0) flips_.reserve(room);
}

MarkedText MarkedText::cut(std::size_t begin, std::size_t end) const {
  MarkedText part;
  part.append(*this, begin, end);
  return part;
}

}  // namespace millrace::text
