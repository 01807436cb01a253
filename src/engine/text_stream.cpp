#include "engine/text_stream.h"

#include <algorithm>
#include <utility>

namespace millrace::engine {

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

std::string StopMatcher::push(std::string_view text) {
  if (matched_) return {};
  held_ += text;
  std::size_t match = std::string::npos;
  for (const std::string& stop : stops_) {
    const std::size_t place = held_.find(stop);
    if (place >= match) continue;
    match = place;
    match_ = stop;
  }
  if (match != std::string::npos) {
    matched_ = true;
    held_.resize(match);
    return std::exchange(held_, {});
  }
  std::size_t wait = 0;  // bytes at the end that a stop string begins with
  for (const std::string& stop : stops_)
    for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > wait; --n)
      if (held_.ends_with(std::string_view(stop).substr(0, n))) wait = n;
  std::string ready = held_.substr(0, held_.size() - wait);
  held_.erase(0, ready.size());
  return ready;
}

std::string StopMatcher::flush() { return std::exchange(held_, {}); }

TextStream::TextStream(std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<std::string> stops,
                       std::vector<text::TokenId> shown)
    : detokenizer_(std::move(tokenizer), false, std::move(shown)), stops_(std::move(stops)) {}

TextStream::Piece TextStream::push(text::TokenId id) {
  waiting_.push_back(id);
  return piece(stops_.push(detokenizer_.push(id)));
}

TextStream::Piece TextStream::finish() {
  std::string text = stops_.push(detokenizer_.flush());
  text += stops_.flush();
  Piece last = piece(std::move(text));
  if (last.tokens.empty()) last.tokens = std::exchange(waiting_, {});
  return last;
}

TextStream::Piece TextStream::piece(std::string text) {
  if (text.empty()) return {};
  return {std::move(text), std::exchange(waiting_, {})};
}

}  // namespace millrace::engine
