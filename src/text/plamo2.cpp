#include "text/plamo2.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/special_tokens.h"
#include "text/utf8.h"

namespace millrace::text {
namespace {

// Of the published tokenizer: what a character without a token costs, and a score from which on a token is none.
constexpr std::int64_t kUnknownCost = 10'000'000;
constexpr double kLeastScore = -2000, kUnits = 1e4;
constexpr double kMostScore = 1e5;  // so that costs are 32-bit numbers
constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

Expected<std::shared_ptr<const Tokenizer>> Plamo2Tokenizer::make(const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::load(model, Spelling::plain));
  MR_ASSIGN_OR_RETURN(const SpecialTokens specials, find_special_tokens(model, vocabulary));
  std::shared_ptr<Plamo2Tokenizer> made(new Plamo2Tokenizer(std::move(vocabulary)));
  made->vocab_size_ = made->vocabulary_.size();
  made->bos_ = specials.bos;
  made->eos_ = specials.eos;
  made->end_ids_ = specials.ends;
  MR_RETURN_IF_ERROR(made->read_costs(model));
  MR_RETURN_IF_ERROR(made->find_bytes());
  MR_RETURN_IF_ERROR(made->read_flags(model, false));
  return std::shared_ptr<const Tokenizer>(std::move(made));
}

Status Plamo2Tokenizer::read_costs(const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(const std::vector<float>* scores, token_scores(model, vocab_size_));
  for (TokenId id = 0; id < vocab_size_; ++id) {
    const double score = double{(*scores)[static_cast<std::size_t>(id)]};
    if (!std::isfinite(score) || score > kMostScore)
      return error(Code::corrupt,
                   "tokenizer.ggml.scores: the score of token {} cannot be; the file is damaged, get it again", id);
    costs_.push_back(score <= kLeastScore ? kNever : static_cast<std::int32_t>(-std::round(score * kUnits)));
  }
  return {};
}

Status Plamo2Tokenizer::find_bytes() {
  bytes_.fill(-1);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (vocabulary_.type(id) != TokenType::byte) continue;
    if (const auto byte = Vocabulary::byte_value(vocabulary_.text(id))) bytes_[*byte] = id;
  }
  const auto none = std::find(bytes_.begin(), bytes_.end(), -1);
  if (none == bytes_.end()) return {};
  return error(Code::corrupt,
               "tokenizer.ggml.tokens: byte {} has no token, and this tokenizer has one for each; the file is damaged, "
               "get it again",
               none - bytes_.begin());
}

std::vector<TokenId> Plamo2Tokenizer::encode(std::string_view utf8, Specials specials) const {
  return encode_parts(vocabulary_.split(utf8, specials));
}

std::vector<TokenId> Plamo2Tokenizer::encode(const MarkedText& text) const {
  return encode_parts(vocabulary_.split(text));
}

std::vector<TokenId> Plamo2Tokenizer::encode_parts(const std::vector<TextPart>& parts) const {
  std::vector<TokenId> ids;
  for (const TextPart& part : parts) {
    if (part.id >= 0)
      ids.push_back(part.id);
    else
      encode_text(part.text, ids);
  }
  return ids;
}

/// Finds the best segmentation from each position on; of equal ones, the one whose first token is longest.
void Plamo2Tokenizer::encode_text(std::string_view text, std::vector<TokenId>& ids) const {
  struct Best {
    std::int64_t cost = 0;
    std::size_t bytes = 0;  // of the first token
    TokenId id = -1;        // -1: a character's bytes
  };
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  std::vector<std::size_t> begins;  // of characters
  for (std::size_t at = 0; at < text.size(); at += std::max<std::size_t>(1, next_utf8(text.substr(at)).bytes))
    begins.push_back(at);
  begins.push_back(text.size());
  std::vector<Best> best(text.size() + 1);  // of what begins there
  for (std::size_t i = begins.size() - 1; i-- > 0;) {
    const std::size_t at = begins[i];
    Best& own = best[at];
    own = {best[begins[i + 1]].cost + kUnknownCost, begins[i + 1] - at, -1};
    for (std::size_t j = i + 1; j < begins.size() && begins[j] - at <= vocabulary_.longest_token(); ++j) {
      const TokenId id = vocabulary_.find(text.substr(at, begins[j] - at));
      if (id < 0 || costs_[static_cast<std::size_t>(id)] == kNever) continue;
      const std::int64_t cost = best[begins[j]].cost + costs_[static_cast<std::size_t>(id)];
      if (cost <= own.cost) own = {cost, begins[j] - at, id};
    }
  }
  for (std::size_t at = 0; at < text.size(); at += best[at].bytes) {
    if (best[at].id >= 0) {
      ids.push_back(best[at].id);
      continue;
    }
    for (const char byte : text.substr(at, best[at].bytes)) ids.push_back(bytes_[static_cast<unsigned char>(byte)]);
  }
}

std::string Plamo2Tokenizer::token_bytes(TokenId id, bool with_specials) const {
  if (!vocabulary_.contains(id) || (vocabulary_.hidden(id) && !with_specials)) return {};
  if (vocabulary_.type(id) == TokenType::byte)
    if (const auto byte = Vocabulary::byte_value(vocabulary_.text(id))) return std::string(1, static_cast<char>(*byte));
  return std::string(vocabulary_.text(id));
}

}  // namespace millrace::text
