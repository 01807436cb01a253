#include "text/word_piece.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "text/utf8.h"

namespace millrace::text {
namespace {

constexpr std::string_view kWordStart = kSpaceMark;
constexpr std::size_t kMostCharacters = 100;  // in a word; longer words are unknown

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_control(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return false;
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CS:
      return true;
    default:
      return false;
  }
}

bool is_space(char32_t c) {
  if (c == '\t' || c == '\n' || c == '\r') return true;
  const utf8proc_category_t kind = category(c);
  return kind == UTF8PROC_CATEGORY_ZS || kind == UTF8PROC_CATEGORY_ZL || kind == UTF8PROC_CATEGORY_ZP;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
  const utf8proc_category_t kind = category(c);
  return kind >= UTF8PROC_CATEGORY_PC && kind <= UTF8PROC_CATEGORY_PO;
}

/// CJK ideographs, each of which is a word.
bool is_ideograph(char32_t c) {
  constexpr std::array<std::array<char32_t, 2>, 8> kRanges = {{{0x4E00, 0x9FFF},
                                                               {0x3400, 0x4DBF},
                                                               {0x20000, 0x2A6DF},
                                                               {0x2A700, 0x2B73F},
                                                               {0x2B740, 0x2B81F},
                                                               {0x2B920, 0x2CEAF},
                                                               {0xF900, 0xFAFF},
                                                               {0x2F800, 0x2FA1F}}};
  return std::any_of(kRanges.begin(), kRanges.end(), [c](const auto& range) { return c >= range[0] && c <= range[1]; });
}

}  // namespace

/// Consumes the characters of a text and passes on its normalised words.
class WordPieceTokenizer::Words {
 public:
  Words(const WordPieceTokenizer& tokenizer, std::vector<TokenId>& ids) : tokenizer_(tokenizer), ids_(ids) {}

  void take(char32_t c) {
    if (c == 0 || c == 0xFFFD || is_control(c)) return;
    if (is_space(c)) return end();
    if (!is_ideograph(c)) return normalize(c);
    end();
    normalize(c);
    end();
  }

  void end() {
    if (characters_ > 0) tokenizer_.encode_word(characters_ > kMostCharacters ? std::string_view() : word_, ids_);
    word_.clear();
    characters_ = 0;
  }

 private:
  void normalize(char32_t c) {
    if (!tokenizer_.normalizer_.strip_accents) return lower(c);
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const auto count =
        utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), parts.data(), parts.size(),
                                static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    if (count < 1 || count > std::ssize(parts)) return lower(c);
    for (utf8proc_ssize_t i = 0; i < count; ++i)
      if (const auto part = static_cast<char32_t>(parts[static_cast<std::size_t>(i)]);
          category(part) != UTF8PROC_CATEGORY_MN)
        lower(part);
  }

  void lower(char32_t c) {
    constexpr char32_t kDottedI = 0x130, kDot = 0x307;
    if (!tokenizer_.normalizer_.lower_case) return add(c);
    if (c != kDottedI) return add(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))));
    add('i');
    add(kDot);
  }

  void add(char32_t c) {
    const bool alone = is_punctuation(c);
    if (alone) end();
    if (characters_ <= kMostCharacters) append_utf8(c, word_);
    ++characters_;
    if (alone) end();
  }

  const WordPieceTokenizer& tokenizer_;
  std::vector<TokenId>& ids_;
  std::string word_;
  std::size_t characters_ = 0;
};

Expected<std::shared_ptr<const Tokenizer>> WordPieceTokenizer::make(const modelfile::Model& model) {
  MR_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::load(model, Spelling::plain));
  std::shared_ptr<WordPieceTokenizer> made(new WordPieceTokenizer(std::move(vocabulary)));
  made->vocab_size_ = made->vocabulary_.size();
  made->strip_leading_space_ = true;
  MR_RETURN_IF_ERROR(made->read_specials(model));
  MR_RETURN_IF_ERROR(made->read_normalizer(model));
  return std::shared_ptr<const Tokenizer>(std::move(made));
}

/// Looks special tokens up by the file's ids, otherwise by their texts.
Status WordPieceTokenizer::read_specials(const modelfile::Model& model) {
  const auto find = [&](std::initializer_list<std::string_view> keys,
                        std::string_view text) -> Expected<std::optional<TokenId>> {
    for (const std::string_view key : keys) {
      if (!model.has(key)) continue;
      MR_ASSIGN_OR_RETURN(const std::int64_t id, model.get_int(key));
      if (!vocabulary_.contains(id))
        return error(Code::corrupt, "{} is {}, but the vocabulary has {} tokens; get the file again", key, id,
                     vocab_size_);
      return std::optional(static_cast<TokenId>(id));
    }
    for (TokenId id = 0; id < vocab_size_; ++id)
      if (vocabulary_.text(id) == text) return std::optional(id);
    return std::optional<TokenId>();
  };
  MR_ASSIGN_OR_RETURN(bos_, find({"tokenizer.ggml.cls_token_id", "tokenizer.ggml.bos_token_id"}, "[CLS]"));
  // The spelling of llama.cpp's converter.
  MR_ASSIGN_OR_RETURN(eos_, find({"tokenizer.ggml.seperator_token_id", "tokenizer.ggml.separator_token_id",
                                  "tokenizer.ggml.eos_token_id"},
                                 "[SEP]"));
  MR_ASSIGN_OR_RETURN(const std::optional<TokenId> unknown, find({"tokenizer.ggml.unknown_token_id"}, "[UNK]"));
  if (!unknown) return error(Code::not_found, "the vocabulary has no unknown token ([UNK]); get the file again");
  unknown_ = *unknown;
  if (eos_) end_ids_ = {*eos_};
  MR_ASSIGN_OR_RETURN(add_bos_, model.get_bool_or("tokenizer.ggml.add_bos_token", true));
  MR_ASSIGN_OR_RETURN(add_eos_, model.get_bool_or("tokenizer.ggml.add_eos_token", true));
  MR_RETURN_IF_ERROR(read_pair_flag(model));
  add_bos_ = add_bos_ && bos_;
  add_eos_ = add_eos_ && eos_;
  return {};
}

/// Older files lack the key: a vocabulary with a capital letter is case-sensitive.
Status WordPieceTokenizer::read_normalizer(const modelfile::Model& model) {
  bool capitals = false;
  for (TokenId id = 0; id < vocab_size_ && !capitals; ++id) {
    const std::string_view text = vocabulary_.text(id);
    if (!text.starts_with(kWordStart) || vocabulary_.hidden(id)) continue;
    capitals = std::any_of(text.begin(), text.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
  }
  MR_ASSIGN_OR_RETURN(normalizer_.lower_case, model.get_bool_or("tokenizer.ggml.normalizer.lowercase", !capitals));
  MR_ASSIGN_OR_RETURN(normalizer_.strip_accents,
                      model.get_bool_or("tokenizer.ggml.normalizer.strip_accents", normalizer_.lower_case));
  return {};
}

std::vector<TokenId> WordPieceTokenizer::encode(std::string_view utf8, Specials specials) const {
  return encode_parts(vocabulary_.split(utf8, specials));
}

std::vector<TokenId> WordPieceTokenizer::encode(const MarkedText& text) const {
  return encode_parts(vocabulary_.split(text));
}

std::vector<TokenId> WordPieceTokenizer::encode_parts(const std::vector<TextPart>& parts) const {
  std::vector<TokenId> ids;
  Words words(*this, ids);
  for (const TextPart& part : parts) {
    for (std::string_view rest = part.id >= 0 ? std::string_view() : part.text; !rest.empty();) {
      const Utf8Step step = next_utf8(rest);
      if (step.kind == Utf8Kind::character) words.take(decode_utf8(rest.substr(0, step.bytes)));
      rest.remove_prefix(step.bytes);
    }
    words.end();
    if (part.id >= 0) ids.push_back(part.id);
  }
  return ids;
}

/// Returns an empty word if it is too long.
void WordPieceTokenizer::encode_word(std::string_view word, std::vector<TokenId>& ids) const {
  const std::size_t before = ids.size();
  bool known = !word.empty();
  for (std::string_view start = kWordStart; known && !word.empty(); start = {}) {
    const TokenId id = longest(word, start);
    known = id >= 0;
    if (!known) break;
    ids.push_back(id);
    word.remove_prefix(vocabulary_.text(id).size() - start.size());
  }
  if (known) return;
  ids.resize(before);
  ids.push_back(unknown_);
}

/// Returns the token for the longest prefix of `before` + `text`; -1 if there is none.
TokenId WordPieceTokenizer::longest(std::string_view text, std::string_view before) const {
  std::string candidate(before);
  const std::size_t most = std::max(vocabulary_.longest_token(), before.size()) - before.size();
  candidate += text.substr(0, most);
  // Inside a word, U+2581 is an ordinary character; no token begins with it except the one that consists of it.
  if (before.empty() && text.starts_with(kWordStart)) candidate = kWordStart;
  for (; candidate.size() > before.size(); candidate.pop_back())
    if (const TokenId id = vocabulary_.find(candidate); id >= 0) return id;
  return -1;
}

std::string WordPieceTokenizer::token_bytes(TokenId id, bool with_specials) const {
  if (!vocabulary_.contains(id) || (vocabulary_.hidden(id) && !with_specials)) return {};
  const std::string_view text = vocabulary_.text(id);
  if (!text.starts_with(kWordStart)) return std::string(text);
  return " " + std::string(text.substr(kWordStart.size()));
}

}  // namespace millrace::text
