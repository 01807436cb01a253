#include "text/spm.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/log.h"
#include "base/words.h"
#include "text/utf8.h"

namespace millrace::text {

namespace {

/// Ranks of the scores, best first: merging compares integers then. Errors: not_found, corrupt.
Expected<std::vector<std::uint32_t>> read_ranks(const modelfile::Model& model, std::size_t count) {
  MR_ASSIGN_OR_RETURN(const std::vector<float>* scores, token_scores(model, static_cast<std::int64_t>(count)));
  std::vector<std::uint32_t> order(count);
  for (std::uint32_t i = 0; i < count; ++i) {
    if (std::isnan((*scores)[i])) {
      return error(Code::corrupt,
                   "tokenizer.ggml.scores: the score of token {} is not a number; the file is damaged, get it again",
                   i);
    }
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return (*scores)[a] > (*scores)[b]; });
  std::vector<std::uint32_t> ranks(count);
  std::uint32_t rank = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0 && (*scores)[order[i]] != (*scores)[order[i - 1]]) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

}  // namespace

struct SpmTokenizer::Scratch {
  std::vector<Symbol> symbols;
  Merger merger;
};

Expected<std::shared_ptr<const Tokenizer>> SpmTokenizer::make(const modelfile::Model& model, Order order) {
  MR_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::load(model, Spelling::plain));
  MR_ASSIGN_OR_RETURN(const SpecialTokens specials, find_special_tokens(model, vocabulary));
  std::shared_ptr<SpmTokenizer> made(new SpmTokenizer(std::move(vocabulary), specials));
  const bool scored = order == Order::scores;
  if (scored) {
    MR_ASSIGN_OR_RETURN(made->ranks_, read_ranks(model, static_cast<std::size_t>(made->vocab_size_)));
  } else {
    MR_ASSIGN_OR_RETURN(made->merges_, MergeTable::load(model, made->vocabulary_, Spelling::plain));
  }
  MR_RETURN_IF_ERROR(made->read_flags(model, true));
  // Early files with merges turn the BOS token off although their models need it.
  if (!scored && made->bos_) made->add_bos_ = true;
  MR_ASSIGN_OR_RETURN(made->strip_leading_space_, model.get_bool_or("tokenizer.ggml.add_space_prefix", scored));
  return std::shared_ptr<const Tokenizer>(std::move(made));
}

SpmTokenizer::SpmTokenizer(Vocabulary vocabulary, const SpecialTokens& specials)
    : vocabulary_(std::move(vocabulary)), borders_(vocabulary_), unknown_(specials.unknown) {
  vocab_size_ = vocabulary_.size();
  bos_ = specials.bos;
  eos_ = specials.eos;
  end_ids_ = specials.ends;
  fill_ = specials.fill;
  find_byte_tokens();
}

void SpmTokenizer::find_byte_tokens() {
  byte_ids_.fill(-1);
  for (TokenId id = 0; id < vocab_size_; ++id) {
    if (vocabulary_.type(id) != TokenType::byte) continue;
    TokenId& place = byte_ids_[*Vocabulary::byte_value(vocabulary_.text(id))];
    if (place < 0) place = id;
  }
  std::size_t missing = 0;
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char character = static_cast<char>(byte);
    if (byte_ids_[byte] < 0) byte_ids_[byte] = vocabulary_.find(std::string_view(&character, 1));
    if (byte_ids_[byte] < 0) ++missing;
  }
  if (missing > 0 && !unknown_) {
    log::warn("{} of 256 bytes have no token and there is no unknown token; text that needs them is left out", missing);
  }
}

std::vector<TokenId> SpmTokenizer::encode(std::string_view utf8, Specials specials) const {
  return encode_parts(vocabulary_.split(utf8, specials));
}

std::vector<TokenId> SpmTokenizer::encode(const MarkedText& text) const {
  return encode_parts(vocabulary_.split(text));
}

std::vector<TokenId> SpmTokenizer::encode_parts(const std::vector<TextPart>& parts) const {
  std::vector<TokenId> ids;
  Scratch scratch;
  bool after_special = true;
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else if (part.text.find(kSpaceMark) == std::string_view::npos) {
      encode_plain(part.text, after_special, scratch, ids);
    } else {
      // U+2581 in the text also means a space, and can complete runs of spaces that are user-defined tokens.
      const std::string text = replaced(part.text, kSpaceMark, " ");
      for (const TextPart& part : vocabulary_.split(text, Specials::as_text)) {
        if (part.id >= 0) {
          ids.push_back(part.id);
        } else {
          encode_plain(part.text, after_special, scratch, ids);
        }
        after_special = part.id >= 0;
      }
    }
    after_special = part.id >= 0;
  }
  return ids;
}

void SpmTokenizer::encode_plain(std::string_view text, bool space_before, Scratch& scratch,
                                std::vector<TokenId>& ids) const {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 28;  // offsets have 32 bits, and a space becomes three bytes
  for (; !text.empty(); space_before = false) {
    std::string escaped(strip_leading_space_ && space_before ? 1 : 0, ' ');
    escaped += text.substr(0, kMostAtOnce);
    text.remove_prefix(std::min(text.size(), kMostAtOnce));
    encode_text(replaced(escaped, " ", kSpaceMark), scratch, ids);
  }
}

void SpmTokenizer::encode_text(std::string_view escaped, Scratch& scratch, std::vector<TokenId>& ids) const {
  while (!escaped.empty()) {
    const std::string_view run = escaped.substr(0, borders_.next(escaped));
    encode_run(run, scratch, ids);
    escaped.remove_prefix(run.size());
  }
}

void SpmTokenizer::encode_run(std::string_view run, Scratch& scratch, std::vector<TokenId>& ids) const {
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  for (std::size_t at = 0; at < run.size(); at += symbols.back().bytes) {
    const std::string_view character = first_character(run.substr(at));
    symbols.push_back(
        {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(character.size()), vocabulary_.find(character)});
  }
  if (merges_) {
    scratch.merger.run(symbols,
                       [&](const Symbol& left, const Symbol& right) { return merges_->find(left.id, right.id); });
  } else {
    scratch.merger.run(symbols, [&](const Symbol& left, const Symbol& right) -> Merge {
      const TokenId id = vocabulary_.find(run.substr(left.begin, left.bytes + right.bytes));
      if (id < 0) return {kNoMerge, -1};
      return {ranks_[static_cast<std::size_t>(id)], id};
    });
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
    } else {
      push_bytes(run.substr(symbol.begin, symbol.bytes), ids);
    }
  }
}

void SpmTokenizer::push_bytes(std::string_view bytes, std::vector<TokenId>& ids) const {
  for (const char byte : bytes) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(byte)];
    if (id >= 0) {
      ids.push_back(id);
    } else if (unknown_) {
      ids.push_back(*unknown_);
      return;  // one unknown token for the whole character
    }
  }
}

std::string SpmTokenizer::token_bytes(TokenId id, bool with_specials) const {
  if (!vocabulary_.contains(id) || (vocabulary_.hidden(id) && !with_specials)) return {};
  const std::string_view text = vocabulary_.text(id);
  if (vocabulary_.type(id) == TokenType::byte) return std::string(1, static_cast<char>(*Vocabulary::byte_value(text)));
  return vocabulary_.hidden(id) ? std::string(text) : replaced(text, kSpaceMark, " ");
}

}  // namespace millrace::text
