#include "text/vocabulary.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/words.h"
#include "text/byte_alphabet.h"
#include "text/special_tokens.h"

namespace millrace::text {

namespace {

/// Reads the type of each token, stored as integers of any width; all are normal if the file has none.
Expected<std::vector<TokenType>> read_types(const modelfile::Model& model, std::size_t count) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  std::vector<TokenType> types(count, TokenType::normal);
  if (!model.has(kKey)) return types;
  MR_ASSIGN_OR_RETURN(const std::vector<std::int64_t> values, model.get_ints(kKey));
  if (values.size() != count) {
    return error(Code::corrupt, "{} has {} entries for {} tokens; the file is damaged, get it again", kKey,
                 values.size(), count);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] > static_cast<int>(TokenType::byte)) {
      return error(Code::corrupt, "{}: token {} has type {}, known are 0 to 6; the file is damaged, get it again", kKey,
                   i, values[i]);
    }
    types[i] = static_cast<TokenType>(values[i]);
  }
  return types;
}

/// Returns the tokens that the file marks as the end of a text, turn or message; "</s>" without any.
std::set<std::size_t> named_ends(const modelfile::Model& model, const std::vector<std::string>& tokens) {
  std::set<std::size_t> ends;
  for (const char* name : {"eos", "eot", "eom"}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    if (!model.has(key)) continue;
    const auto id = model.get_int(key);  // find_special_tokens() reports errors in it
    if (id.ok() && *id >= 0) ends.insert(static_cast<std::size_t>(*id));
  }
  if (!model.has("tokenizer.ggml.eos_token_id"))
    ends.insert(static_cast<std::size_t>(std::find(tokens.begin(), tokens.end(), "</s>") - tokens.begin()));
  return ends;
}

bool names_phi3(const modelfile::Model& model) {
  if (!model.has("general.name")) return false;
  const auto read = model.get_string("general.name");
  if (!read.ok()) return false;
  const std::string name = lower(*read);
  return name.find("phi-3") != std::string::npos || name.find("phi3") != std::string::npos;
}

}  // namespace

Expected<Vocabulary> Vocabulary::load(const modelfile::Model& model, Spelling spelling) {
  constexpr std::string_view kKey = "tokenizer.ggml.tokens";
  MR_ASSIGN_OR_RETURN(const std::vector<std::string>* tokens, metadata_array<std::string>(model, kKey));
  if (tokens == nullptr) {
    return error(Code::not_found, "the file has no vocabulary ({}); use a GGUF that was made with its tokenizer", kKey);
  }
  if (tokens->empty()) return error(Code::corrupt, "the vocabulary ({}) is empty; get the file again", kKey);
  std::uint64_t bytes = 0;
  for (const std::string& token : *tokens) bytes += token.size();
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int32_t>::max());
  if (bytes > kMost || tokens->size() > kMost) {
    return error(Code::corrupt,
                 "the vocabulary ({}) has {} tokens of {} bytes in all, which no model has; get the file again", kKey,
                 tokens->size(), bytes);
  }
  MR_ASSIGN_OR_RETURN(std::vector<TokenType> types, read_types(model, tokens->size()));

  const bool typed = model.has("tokenizer.ggml.token_type");
  const std::set<std::size_t> ends = named_ends(model, *tokens);
  // Gemma's vocabulary contains HTML tags; there, "</s>" is one of them.
  const bool html = std::find(tokens->begin(), tokens->end(), "</b>") != tokens->end();
  Vocabulary vocabulary;
  vocabulary.phi3_ = names_phi3(model);
  vocabulary.pool_.reserve(bytes);
  vocabulary.ends_.reserve(tokens->size());
  vocabulary.types_.reserve(tokens->size());
  vocabulary.unspellable_.reserve(tokens->size());
  for (std::size_t i = 0; i < tokens->size(); ++i) {
    const std::string& token = (*tokens)[i];
    TokenType type = types[i];
    if (type == TokenType::byte && !byte_value(token)) {
      return error(Code::corrupt, "token {} is a byte token but names no byte; the file is damaged, get it again", i);
    }
    // A normal token of that text comes from merges; a user-defined one is an end that the file failed to mark.
    const bool named = ends.contains(i);
    const bool unmarked = type == TokenType::user_defined && (token != "</s>" || named || !html);
    if ((unmarked || !typed) && is_end_text(token)) type = TokenType::control;
    if (named && type == TokenType::user_defined) type = TokenType::control;
    vocabulary.append(token, type, spelling);
  }
  vocabulary.pool_.shrink_to_fit();
  vocabulary.index(spelling);
  return vocabulary;
}

void Vocabulary::append(std::string_view text, TokenType type, Spelling spelling) {
  const bool spelled = type == TokenType::normal || type == TokenType::unused || type == TokenType::undefined;
  bool spellable = true;
  if (spelling == Spelling::byte_alphabet && spelled) {
    spellable = append_alphabet_bytes(text, pool_);
    if (!spellable) pool_.append(text);
  } else {
    pool_.append(text);
  }
  ends_.push_back(static_cast<std::uint32_t>(pool_.size()));
  types_.push_back(type);
  unspellable_.push_back(!spellable);
}

void Vocabulary::index(Spelling spelling) {
  std::size_t capacity = 16;
  while (capacity * 2 < types_.size() * 3) capacity *= 2;
  slots_.assign(capacity, 0);
  std::size_t doubles = 0, empties = 0;
  for (TokenId id = 0; id < size(); ++id) {
    const TokenType kind = type(id);
    const std::string_view bytes = text(id);
    if (bytes.empty()) {
      ++empties;
      continue;
    }
    if (hidden(id) || kind == TokenType::user_defined) specials_.push_back(id);
    const bool reachable = !hidden(id) && kind != TokenType::byte && !unspellable_[static_cast<std::size_t>(id)] &&
                           (kind != TokenType::user_defined || spelling == Spelling::plain);
    if (!reachable) continue;
    std::size_t slot = hash(bytes) & (capacity - 1);
    while (slots_[slot] != 0 && text(static_cast<TokenId>(slots_[slot] - 1)) != bytes)
      slot = (slot + 1) & (capacity - 1);
    if (slots_[slot] != 0) {
      ++doubles;  // text becomes the first of them
      continue;
    }
    slots_[slot] = static_cast<std::uint32_t>(id) + 1;
    longest_token_ = std::max(longest_token_, bytes.size());
  }
  std::stable_sort(specials_.begin(), specials_.end(), [&](TokenId a, TokenId b) { return text(a) < text(b); });
  for (const TokenId id : specials_) begins_special_[static_cast<unsigned char>(text(id)[0])] = true;
  if (empties > 0) log::warn("the vocabulary holds {} empty tokens; text never becomes one of them", empties);
  if (doubles > 0) log::warn("the vocabulary holds {} tokens twice; text becomes the first of each", doubles);
}

std::string_view Vocabulary::text(TokenId id) const {
  const auto i = static_cast<std::size_t>(id);
  const std::uint32_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::string_view(pool_).substr(begin, ends_[i] - begin);
}

std::uint64_t Vocabulary::hash(std::string_view bytes) {
  constexpr std::uint64_t kMultiplier = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
  std::uint64_t state = bytes.size() * kMultiplier;
  const auto mix = [&](std::uint64_t word) {
    state = (state ^ word) * kMultiplier;
    state ^= state >> 29;
  };
  while (bytes.size() >= 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    mix(word);
    bytes.remove_prefix(8);
  }
  std::uint64_t rest = 0;
  if (!bytes.empty()) std::memcpy(&rest, bytes.data(), bytes.size());
  mix(rest);
  return state ^ (state >> 32);
}

TokenId Vocabulary::find(std::string_view bytes) const {
  if (bytes.empty() || bytes.size() > longest_token_) return -1;
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash(bytes) & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    const auto id = static_cast<TokenId>(slots_[slot] - 1);
    if (text(id) == bytes) return id;
  }
  return -1;
}

std::optional<TokenId> Vocabulary::special(std::string_view wanted) const {
  const auto found = std::lower_bound(specials_.begin(), specials_.end(), wanted,
                                      [&](TokenId id, std::string_view sought) { return text(id) < sought; });
  if (found == specials_.end() || text(*found) != wanted) return std::nullopt;
  return *found;
}

bool Vocabulary::strips_right(TokenId id) const {
  const std::string_view word = text(id);
  return phi3_ && word != "<unk>" && word != "<s>" && word != "<|endoftext|>";
}

/// Finds the longest special token at `begin` of `whole` that counts, or -1. `counts(id, begin, end)` decides whether
/// the token found at [begin, end) does.
template <typename Counts>
TokenId Vocabulary::special_at(std::string_view whole, std::size_t begin, const Counts& counts) const {
  const std::string_view rest = whole.substr(begin);
  TokenId longest = -1;
  // The candidates share their first `length` bytes with `rest`; those that end there come first.
  auto low = specials_.begin();
  auto high = specials_.end();
  for (std::size_t length = 0; low != high; ++length) {
    for (bool taken = false; low != high && text(*low).size() == length; ++low) {
      if (taken || !counts(*low, begin, begin + length)) continue;  // the first of two equal texts counts
      longest = *low;
      taken = true;
    }
    if (length == rest.size()) break;
    const auto next = static_cast<unsigned char>(rest[length]);
    const auto byte = [&](TokenId id) { return static_cast<unsigned char>(text(id)[length]); };
    low = std::lower_bound(low, high, next, [&](TokenId id, unsigned char wanted) { return byte(id) < wanted; });
    high = std::upper_bound(low, high, next, [&](unsigned char wanted, TokenId id) { return wanted < byte(id); });
  }
  return longest;
}

template <typename Counts>
std::vector<TextPart> Vocabulary::split_where(std::string_view whole, const Counts& counts) const {
  std::vector<TextPart> parts;
  std::size_t done = 0;
  for (std::size_t at = 0; at < whole.size();) {
    const TokenId id =
        begins_special_[static_cast<unsigned char>(whole[at])] ? special_at(whole, at, counts) : TokenId{-1};
    if (id < 0) {
      ++at;
      continue;
    }
    if (at > done) parts.push_back({-1, whole.substr(done, at - done)});
    parts.push_back({id, whole.substr(at, text(id).size())});
    at += text(id).size();
    while (strips_right(id) && at < whole.size() && std::isspace(static_cast<unsigned char>(whole[at]))) ++at;
    done = at;
  }
  if (done < whole.size()) parts.push_back({-1, whole.substr(done)});
  return parts;
}

std::vector<TextPart> Vocabulary::split(std::string_view whole, Specials specials) const {
  return split_where(whole,
                     [&](TokenId id, std::size_t, std::size_t) { return specials == Specials::parse || !hidden(id); });
}

std::vector<TextPart> Vocabulary::split(const MarkedText& text) const {
  return split_where(text.bytes(), [&](TokenId id, std::size_t begin, std::size_t end) {
    return !hidden(id) || text.trusted(begin, end);
  });
}

std::optional<unsigned char> Vocabulary::byte_value(std::string_view text) {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return std::nullopt;
  unsigned value = 0;
  for (const char c : text.substr(3, 2)) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
    value = value * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
  }
  return static_cast<unsigned char>(value);
}

Expected<const std::vector<float>*> token_scores(const modelfile::Model& model, std::int64_t count) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  MR_ASSIGN_OR_RETURN(const std::vector<float>* scores, metadata_array<float>(model, kKey));
  if (scores == nullptr)
    return error(Code::not_found, "the file has no token scores ({}); use a GGUF that was made with its tokenizer",
                 kKey);
  if (std::ssize(*scores) != count)
    return error(Code::corrupt, "{} has {} entries for {} tokens; the file is damaged, get it again", kKey,
                 scores->size(), count);
  return scores;
}

}  // namespace millrace::text
