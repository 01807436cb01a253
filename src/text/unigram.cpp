#include "text/unigram.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/words.h"
#include "text/special_tokens.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr double kUnknownPenalty = 10;

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> UnigramTokenizer::make(const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::load(model, Spelling::plain));
  MR_ASSIGN_OR_RETURN(const SpecialTokens specials, find_special_tokens(model, vocabulary));
  std::shared_ptr<UnigramTokenizer> made(new UnigramTokenizer(std::move(vocabulary)));
  made->vocab_size_ = made->vocabulary_.size();
  made->bos_ = specials.bos;
  made->eos_ = specials.eos;
  made->end_ids_ = specials.ends;
  if (specials.unknown) made->unknown_ = *specials.unknown;
  for (TokenId id = 0; id < made->vocab_size_ && made->unknown_ < 0; ++id)
    if (made->vocabulary_.type(id) == TokenType::unknown) made->unknown_ = id;
  if (made->unknown_ < 0)
    return error(Code::not_found, "the vocabulary has no token for what is unknown (tokenizer.ggml.unknown_token_id)");
  MR_RETURN_IF_ERROR(made->read_scores(model));
  MR_RETURN_IF_ERROR(made->read_flags(model, false));
  MR_ASSIGN_OR_RETURN(made->space_before_, model.get_bool_or("tokenizer.ggml.add_space_prefix", true));
  MR_ASSIGN_OR_RETURN(made->merges_spaces_, model.get_bool_or("tokenizer.ggml.remove_extra_whitespaces", true));
  made->strip_leading_space_ = made->space_before_;
  if (model.has("tokenizer.ggml.precompiled_charsmap")) {
    MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> bytes, model.get_ints("tokenizer.ggml.precompiled_charsmap"));
    MR_ASSIGN_OR_RETURN(made->charsmap_, Charsmap::make(bytes));
  }
  return std::shared_ptr<const Tokenizer>(std::move(made));
}

Status UnigramTokenizer::read_scores(const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(const std::vector<float>* scores, token_scores(model, vocab_size_));
  scores_ = *scores;
  double least = std::numeric_limits<double>::max();
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (!std::isfinite(scores_[static_cast<std::size_t>(id)]))
      return error(Code::corrupt,
                   "tokenizer.ggml.scores: the score of token {} is not a number; the file is damaged, get it again",
                   id);
    const TokenType type = vocabulary_.type(id);
    if (type != TokenType::normal && type != TokenType::user_defined) continue;
    if (type == TokenType::normal) least = std::min(least, double{scores_[static_cast<std::size_t>(id)]});
    if (vocabulary_.text(id).find(kSpaceMark, 1) != std::string_view::npos) cuts_at_spaces_ = false;
  }
  unknown_score_ = (least == std::numeric_limits<double>::max() ? 0 : least) - kUnknownPenalty;
  return {};
}

std::vector<TokenId> UnigramTokenizer::encode(std::string_view utf8, Specials specials) const {
  return encode_parts(vocabulary_.split(utf8, specials));
}

std::vector<TokenId> UnigramTokenizer::encode(const MarkedText& text) const {
  return encode_parts(vocabulary_.split(text));
}

std::vector<TokenId> UnigramTokenizer::encode_parts(const std::vector<TextPart>& parts) const {
  std::vector<TokenId> ids;
  Normal normal{{}, false, space_before_};
  for (const TextPart& part : parts) {
    if (part.id < 0) {
      normalize(part.text, normal);
      continue;
    }
    // A user-defined token is part of the text and is not normalised; any other special token ends one text and begins
    // the next.
    const bool inside = vocabulary_.type(part.id) == TokenType::user_defined;
    if (inside && normal.owes_space) normal.text += kSpaceMark;
    encode_normal(normal.text, ids);
    ids.push_back(part.id);
    normal = {{}, inside, !inside && space_before_};
  }
  encode_normal(normal.text, ids);
  return ids;
}

void UnigramTokenizer::encode_normal(std::string_view text, std::vector<TokenId>& ids) const {
  while (!text.empty()) {
    const std::string_view run = text.substr(0, cuts_at_spaces_ ? text.find(kSpaceMark, 1) : std::string_view::npos);
    encode_run(run, ids);
    text.remove_prefix(run.size());
  }
}

/// Applies the replacement map and writes spaces as U+2581; merges runs and trims the ends if the file asks for it.
void UnigramTokenizer::normalize(std::string_view text, Normal& normal) const {
  const auto take = [&](std::string_view piece) {
    for (const char c : piece) {
      if (c == ' ' && merges_spaces_) {
        normal.owes_space = normal.owes_space || normal.begun;
        continue;
      }
      if (normal.owes_space) normal.text += kSpaceMark;
      normal.owes_space = false;
      normal.begun = true;
      if (c == ' ')
        normal.text += kSpaceMark;
      else
        normal.text += c;
    }
  };
  while (!text.empty()) {
    const Charsmap::Match match = charsmap_.longest(text);
    const Utf8Step step = next_utf8(text);
    const bool whole = step.kind == Utf8Kind::character;
    if (match.bytes > 0)
      take(match.by);
    else
      take(whole ? text.substr(0, step.bytes) : kReplacementCharacter);
    text.remove_prefix(match.bytes > 0 ? match.bytes : whole ? step.bytes : 1);
  }
}

/// -infinity for a token that text never produces.
double UnigramTokenizer::score(TokenId id) const {
  const TokenType type = vocabulary_.type(id);
  if (type == TokenType::user_defined) return 0;
  if (type != TokenType::normal) return -std::numeric_limits<double>::infinity();
  return double{scores_[static_cast<std::size_t>(id)]};
}

/// Finds the best segmentation up to each position; of equal ones, the one whose last token begins first.
void UnigramTokenizer::encode_run(std::string_view run, std::vector<TokenId>& ids) const {
  struct Best {
    double score = -std::numeric_limits<double>::infinity();
    std::size_t from = 0;
    TokenId id = -1;
  };
  std::vector<Best> best(run.size() + 1);
  best[0].score = 0;
  const auto offer = [&](std::size_t from, std::size_t to, TokenId id, double of) {
    if (const double sum = best[from].score + of; sum > best[to].score) best[to] = {sum, from, id};
  };
  for (std::size_t at = 0; at < run.size();) {
    const std::string_view rest = run.substr(at);
    const Utf8Step step = next_utf8(rest);
    bool alone = false;  // this single character is a token
    for (std::size_t bytes = step.bytes; bytes <= std::min(rest.size(), vocabulary_.longest_token());
         bytes += bytes < rest.size() ? next_utf8(rest.substr(bytes)).bytes : 1) {
      const TokenId id = vocabulary_.find(rest.substr(0, bytes));
      if (id < 0 || std::isinf(score(id))) continue;
      alone = alone || bytes == step.bytes;
      offer(at, at + bytes, id, score(id));
    }
    if (!alone) offer(at, at + step.bytes, unknown_, unknown_score_);
    at += step.bytes;
  }
  const auto first = static_cast<std::ptrdiff_t>(ids.size());
  for (std::size_t at = run.size(); at > 0; at = best[at].from)
    if (best[at].id != unknown_ || std::ssize(ids) == first || ids.back() != unknown_) ids.push_back(best[at].id);
  std::reverse(ids.begin() + first, ids.end());
}

std::string UnigramTokenizer::token_bytes(TokenId id, bool with_specials) const {
  if (!vocabulary_.contains(id) || (vocabulary_.hidden(id) && !with_specials)) return {};
  return replaced(vocabulary_.text(id), kSpaceMark, " ");
}

}  // namespace millrace::text
