// From token ids to the text a user may see: whole characters, up to the first stop string, which may lie across token
// borders. Text that could still turn out to begin a stop string waits.
// Thread-safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace millrace::engine {

/// Finds the first of several strings in text that comes in pieces.
class StopMatcher {
 public:
  /// Empty strings never match.
  explicit StopMatcher(std::vector<std::string> stops);

  /// Takes more text; returns what can be shown now. Once matched() nothing more comes out.
  std::string push(std::string_view text);
  /// What still waits, at the end.
  std::string flush();
  bool matched() const { return matched_; }
  /// The stop string that was found; empty: none was.
  const std::string& match() const { return match_; }

 private:
  std::vector<std::string> stops_;
  std::string held_, match_;
  bool matched_ = false;
};

class TextStream {
 public:
  struct Piece {
    std::string text;
    std::vector<text::TokenId> tokens;  // since the last piece that had text
    bool empty() const { return text.empty() && tokens.empty(); }
  };

  /// `shown`: control tokens that are shown, ascending.
  TextStream(std::shared_ptr<const text::Tokenizer> tokenizer, std::vector<std::string> stops,
             std::vector<text::TokenId> shown = {});

  /// What a token adds; empty while its text waits.
  Piece push(text::TokenId id);
  /// The end of the answer: what waited.
  Piece finish();
  bool stopped() const { return stops_.matched(); }
  /// The stop string that ended the answer; empty: none did.
  const std::string& stop() const { return stops_.match(); }

 private:
  Piece piece(std::string text);

  text::Detokenizer detokenizer_;
  StopMatcher stops_;
  std::vector<text::TokenId> waiting_;
};

}  // namespace millrace::engine
