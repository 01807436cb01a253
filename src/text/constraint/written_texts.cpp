#include "text/constraint/written_texts.h"

#include <algorithm>

namespace millrace::text {
namespace {

constexpr std::uint64_t kTextBytes = 96;  // what a text that is kept takes beside its letters, about

}  // namespace

const WrittenTexts::Level* WrittenTexts::level(Depth depth) const {
  for (auto each = levels_.rbegin(); each != levels_.rend(); ++each)
    if (each->depth == depth) return &*each;
  return nullptr;
}

/// To the items that are being written above this depth.
void WrittenTexts::append(std::uint8_t byte, Depth below) {
  for (Level& each : levels_) {
    if (each.depth >= below) break;
    if (!each.collects) continue;
    each.text += static_cast<char>(byte);
    if (!each.free) find_free(each);
  }
}

void WrittenTexts::find_free(Level& level) {
  const auto begins_so = [&](const std::string& each) { return each.starts_with(level.text); };
  const auto next = level.kept->lower_bound(level.text);
  level.free = (next == level.kept->end() || !begins_so(*next)) &&
               std::none_of(level.fresh.begin(), level.fresh.end(), begins_so);
}

void WrittenTexts::end_text(Level& level) {
  if (!level.collects) return;
  level.fresh.push_back(std::move(level.text));
  level.text.clear();
  level.collects = false;
  level.free = true;
}

void WrittenTexts::mark() {
  if (!levels_.empty() && levels_.back().depth == depth_) return;
  levels_.emplace_back().depth = depth_;
  levels_.back().kept = std::make_shared<std::set<std::string, std::less<>>>();
}

void WrittenTexts::take(std::uint8_t byte) {
  if (in_string_) {
    append(byte, depth_ + 1);
    in_string_ = escaped_ || byte != '"';
    escaped_ = !escaped_ && byte == '\\';
    return;
  }
  Level* const here = !levels_.empty() && levels_.back().depth == depth_ ? &levels_.back() : nullptr;
  switch (byte) {
    case '[':
    case '{':
      append(byte, depth_ + 1);
      ++depth_;
      return;
    case ']':
    case '}':
      if (here != nullptr) levels_.pop_back();
      if (depth_ > 0) --depth_;
      append(byte, depth_ + 1);
      return;
    case ',':
    case ':':
      append(byte, depth_);
      if (here == nullptr) return;
      end_text(*here);
      here->collects = byte == ',';
      if (here->collects) find_free(*here);
      return;
    case ' ':
    case '\t':
    case '\n':
    case '\r':
      append(byte, depth_);
      return;
    default:
      in_string_ = byte == '"';
      append(byte, depth_ + 1);
  }
}

bool WrittenTexts::is_free(Depth depth) const {
  const Level* const found = level(depth);
  return found == nullptr || found->free;
}

bool WrittenTexts::is_free() const {
  return std::all_of(levels_.begin(), levels_.end(), [](const Level& each) { return each.free; });
}

bool WrittenTexts::is_before_text() const {
  if (levels_.empty() || in_string_) return false;
  const Level& here = levels_.back();
  return here.depth == depth_ && here.collects && here.text.empty() && !here.free;
}

bool WrittenTexts::has_come(Depth depth) const {
  const Level* const found = level(depth);
  if (found == nullptr || found->free) return false;
  return found->kept->contains(found->text) ||
         std::find(found->fresh.begin(), found->fresh.end(), found->text) != found->fresh.end();
}

void WrittenTexts::add_next_bytes(Depth depth, std::bitset<256>& bytes) const {
  const Level* const found = level(depth);
  if (found == nullptr || found->free) return;
  const std::string& text = found->text;
  const auto add = [&](const std::string& each) {
    if (each.size() > text.size() && each.starts_with(text)) bytes.set(static_cast<std::uint8_t>(each[text.size()]));
  };
  std::for_each(found->fresh.begin(), found->fresh.end(), add);
  // From one letter behind the text to the next that comes.
  for (auto next = found->kept->upper_bound(text); next != found->kept->end() && next->starts_with(text);) {
    add(*next);
    std::string beyond = text + (*next)[text.size()];
    while (!beyond.empty() && static_cast<std::uint8_t>(beyond.back()) == 0xFF) beyond.pop_back();
    if (beyond.size() <= text.size()) return;
    beyond.back() = static_cast<char>(static_cast<std::uint8_t>(beyond.back()) + 1);
    next = found->kept->lower_bound(beyond);
  }
}

void WrittenTexts::keep() {
  kept_bytes_ = 0;
  for (Level& each : levels_) {
    for (std::string& text : each.fresh) {
      each.kept_bytes += kTextBytes + text.size();
      each.kept->insert(std::move(text));
    }
    each.fresh.clear();
    kept_bytes_ += each.kept_bytes + each.text.capacity() + sizeof(Level);
  }
}

WrittenTexts WrittenTexts::deep_copy() const {
  WrittenTexts copy = *this;
  for (Level& each : copy.levels_) each.kept = std::make_shared<std::set<std::string, std::less<>>>(*each.kept);
  return copy;
}

}  // namespace millrace::text
