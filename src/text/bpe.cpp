#include "text/bpe.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "modelfile/escape.h"
#include "text/byte_alphabet.h"
#include "text/normal_form.h"
#include "text/utf8.h"

namespace millrace::text {

struct BpeTokenizer::Scratch {
  std::vector<std::uint32_t> ends;
  std::vector<Symbol> symbols;
  Merger merger;
};

Expected<std::shared_ptr<const Tokenizer>> BpeTokenizer::make(const modelfile::Model& model) {
  constexpr std::string_view kKey = "tokenizer.ggml.pre";
  std::string name = "default";
  if (model.has(kKey)) {
    MR_ASSIGN_OR_RETURN(name, model.get_string(kKey));
  } else {
    log::warn("the file names no pre-tokenizer ({}): the default one is used, and tokens may not be the model's own",
              kKey);
  }
  const PreTokenizerFamily* family = find_pretokenizer(name);
  if (family == nullptr) {
    return error(Code::unsupported, "the pre-tokenizer '{}' ({}) is not known to this version; known are {}",
                 modelfile::escape(name, 80), kKey, known_pretokenizers());
  }
  MR_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::load(model, Spelling::byte_alphabet));
  MR_ASSIGN_OR_RETURN(MergeTable merges, MergeTable::load(model, vocabulary, Spelling::byte_alphabet));
  MR_ASSIGN_OR_RETURN(const SpecialTokens specials, find_special_tokens(model, vocabulary));
  MR_ASSIGN_OR_RETURN(PreTokenizer pretokenizer, PreTokenizer::make(*family));
  std::shared_ptr<BpeTokenizer> made(
      new BpeTokenizer(std::move(vocabulary), std::move(merges), std::move(pretokenizer), *family, specials));
  MR_RETURN_IF_ERROR(made->read_flags(model, family->habits.adds_bos));
  return std::shared_ptr<const Tokenizer>(std::move(made));
}

BpeTokenizer::BpeTokenizer(Vocabulary vocabulary, MergeTable merges, PreTokenizer pretokenizer,
                           const PreTokenizerFamily& family, const SpecialTokens& specials)
    : vocabulary_(std::move(vocabulary)),
      merges_(std::move(merges)),
      pretokenizer_(std::move(pretokenizer)),
      habits_(family.habits),
      unknown_(specials.unknown) {
  vocab_size_ = vocabulary_.size();
  bos_ = specials.bos;
  eos_ = specials.eos;
  end_ids_ = specials.ends;
  fill_ = specials.fill;
  std::size_t missing = 0;
  for (std::size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    const char character = static_cast<char>(byte);
    byte_ids_[byte] = vocabulary_.find(std::string_view(&character, 1));
    // UTF-8 never contains the bytes C0, C1 and F5 to FF, so some vocabularies omit them.
    if (byte_ids_[byte] < 0 && byte != 0xC0 && byte != 0xC1 && byte < 0xF5) ++missing;
  }
  if (missing > 0) log::warn("{} of 256 bytes have no token; text that holds them is changed", missing);
}

std::vector<TokenId> BpeTokenizer::encode(std::string_view utf8, Specials specials) const {
  return encode_parts(vocabulary_.split(utf8, specials));
}

std::vector<TokenId> BpeTokenizer::encode(const MarkedText& text) const {
  return encode_parts(vocabulary_.split(text));
}

std::vector<TokenId> BpeTokenizer::encode_parts(const std::vector<TextPart>& parts) const {
  std::vector<TokenId> ids;
  Scratch scratch;
  for (const TextPart& part : parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else if (habits_.composes && may_be_decomposed(part.text)) {
      encode_text(compose(part.text), scratch, ids);
    } else {
      encode_text(part.text, scratch, ids);
    }
  }
  return ids;
}

void BpeTokenizer::encode_text(std::string_view text, Scratch& scratch, std::vector<TokenId>& ids) const {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // offsets have 32 bits
  while (!text.empty()) {
    const std::string_view part = text.substr(0, kMostAtOnce);
    text.remove_prefix(part.size());
    pretokenizer_.split(part, scratch.ends);
    std::uint32_t begin = 0;
    for (const std::uint32_t end : scratch.ends) {
      encode_word(part.substr(begin, end - begin), scratch, ids);
      begin = end;
    }
  }
}

void BpeTokenizer::encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& ids) const {
  if (habits_.whole_words_first) {
    if (const TokenId id = vocabulary_.find(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  std::vector<Symbol>& symbols = scratch.symbols;
  symbols.clear();
  for (std::size_t i = 0; i < word.size(); ++i) {
    symbols.push_back({static_cast<std::uint32_t>(i), 1, byte_ids_[static_cast<unsigned char>(word[i])]});
  }
  scratch.merger.run(symbols, [&](const Symbol& left, const Symbol& right) { return merges_.find(left.id, right.id); });
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
    } else {
      push_missing_byte(ids);
    }
  }
}

void BpeTokenizer::push_missing_byte(std::vector<TokenId>& ids) const {
  if (unknown_) {
    ids.push_back(*unknown_);
    return;
  }
  for (const char c : kReplacementCharacter) {
    if (const TokenId id = byte_ids_[static_cast<unsigned char>(c)]; id >= 0) ids.push_back(id);
  }
}

std::string BpeTokenizer::token_bytes(TokenId id, bool with_specials) const {
  if (!vocabulary_.contains(id) || (vocabulary_.hidden(id) && !with_specials)) return {};
  const std::string_view text = vocabulary_.text(id);
  if (vocabulary_.type(id) == TokenType::byte) return std::string(1, static_cast<char>(*Vocabulary::byte_value(text)));
  return std::string(text);
}

}  // namespace millrace::text
