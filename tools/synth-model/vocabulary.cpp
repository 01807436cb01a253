#include "synth-model/vocabulary.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

namespace millrace::synth {
namespace {

using modelfile::array_value;
using modelfile::Value;
using modelfile::Writer;

constexpr std::string_view kConsonants = "bcdfghjklmnprstvwz", kVowels = "aeiou";
constexpr std::int32_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;  // tokenizer.ggml.token_type

constexpr std::string_view kChatMl =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::string utf8(std::uint32_t point) {
  if (point < 0x80) return {static_cast<char>(point)};
  return {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
}

/// Tokens without repetition, in order of their ids.
class Tokens {
 public:
  explicit Tokens(std::int64_t size) : size_(static_cast<std::size_t>(size)) {}
  /// False where the token is there already or the vocabulary is full.
  bool add(const std::string& token, std::int32_t type = kNormal) {
    if (full() || !seen_.insert(token).second) return false;
    tokens_.push_back(token);
    types_.push_back(type);
    return true;
  }
  void grow(std::int64_t size) { size_ = static_cast<std::size_t>(size); }
  bool full() const { return tokens_.size() == size_; }
  std::size_t count() const { return tokens_.size(); }
  Status write(Writer& writer) {
    MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.tokens", array_value(std::move(tokens_))));
    return writer.add("tokenizer.ggml.token_type", array_value(std::move(types_)));
  }

 private:
  std::size_t size_;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  std::unordered_set<std::string> seen_;
};

/// The n-th word of an endless list of pronounceable ones: "ba", "be", ..., "baba", ...
std::string word(std::uint64_t n) {
  constexpr std::uint64_t syllables = kConsonants.size() * kVowels.size();
  std::string text;
  for (++n; n > 0; n = (n - 1) / syllables) {
    const std::uint64_t syllable = (n - 1) % syllables;
    text.insert(0, std::string{kConsonants[syllable / kVowels.size()], kVowels[syllable % kVowels.size()]});
  }
  return text;
}

Status add_ids(Writer& writer, std::uint32_t bos, std::uint32_t eos, bool add_bos) {
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.bos_token_id", Value(bos)));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.eos_token_id", Value(eos)));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.add_bos_token", Value(add_bos)));
  return writer.add("tokenizer.ggml.add_eos_token", Value(false));
}

Status add_sentencepiece(const Shape& shape, Writer& writer) {
  const std::string space = "\xE2\x96\x81";  // U+2581, SentencePiece's space
  Tokens tokens(shape.vocab);
  tokens.add("<unk>", kUnknown);
  tokens.add("<s>", kControl);
  tokens.add("</s>", kControl);
  for (int byte = 0; byte < 256; ++byte) tokens.add(fmt::format("<0x{:02X}>", byte), kByte);
  tokens.add(space);
  for (char c = '!'; c <= '~'; ++c) tokens.add({c});
  for (const char c : kConsonants) tokens.add(space + c);
  for (std::uint64_t n = 0; !tokens.full(); ++n) {
    tokens.add(word(n));
    tokens.add(space + word(n));
  }
  // A piece's score falls with its id, so that earlier pieces are merged first.
  std::vector<float> scores(tokens.count());
  for (std::size_t i = 259; i < scores.size(); ++i) scores[i] = -static_cast<float>(i - 259);
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.model", Value(std::string("llama"))));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.pre", Value(std::string("default"))));
  MR_RETURN_IF_ERROR(tokens.write(writer));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.scores", array_value(std::move(scores))));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.unknown_token_id", Value(std::uint32_t{0})));
  return add_ids(writer, 1, 2, true);
}

/// The letter that byte-level BPE writes for a byte: itself where it prints, else one from U+0100 on (GPT-2's table).
std::string byte_letter(int byte) {
  const auto prints = [](int b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE; };
  if (prints(byte)) return utf8(static_cast<std::uint32_t>(byte));
  std::uint32_t hidden = 0;
  for (int b = 0; b < byte; ++b) hidden += prints(b) ? 0 : 1;
  return utf8(256 + hidden);
}

Status add_byte_level(const Shape& shape, Writer& writer) {
  const bool qwen = shape.architecture == "qwen3moe", gpt_oss = shape.architecture == "gpt-oss";
  const std::vector<std::string> specials =
      qwen      ? std::vector<std::string>{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
      : gpt_oss ? std::vector<std::string>{"<|startoftext|>", "<|endoftext|>", "<|return|>"}
                : std::vector<std::string>{"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"};
  Tokens tokens(shape.vocab - static_cast<std::int64_t>(specials.size()));
  std::vector<std::string> merges;
  const std::string space = byte_letter(' ');
  for (int byte = 0; byte < 256; ++byte) tokens.add(byte_letter(byte));
  const auto merge = [&](const std::string& left, const std::string& right) {
    if (tokens.add(left + right)) merges.push_back(left + " " + right);
  };
  for (const char c : kConsonants) {
    for (const char v : kVowels) merge({c}, {v});
  }
  for (const char c : kConsonants) {
    for (const char v : kVowels) merge(space, {c, v});
  }
  for (std::uint64_t n = 0; !tokens.full(); ++n) tokens.add(word(n));

  const auto first_special = static_cast<std::uint32_t>(tokens.count());
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.model", Value(std::string("gpt2"))));
  const char* pre = qwen ? "qwen2" : gpt_oss ? "gpt-4o" : "llama-bpe";
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.pre", Value(std::string(pre))));
  tokens.grow(shape.vocab);
  for (const std::string& special : specials) tokens.add(special, kControl);
  MR_RETURN_IF_ERROR(tokens.write(writer));
  MR_RETURN_IF_ERROR(writer.add("tokenizer.ggml.merges", array_value(std::move(merges))));
  if (qwen) {
    MR_RETURN_IF_ERROR(writer.add("tokenizer.chat_template", Value(std::string(kChatMl))));
  }
  // Qwen has no BOS; it names <|endoftext|> and adds none, and ends a turn with <|im_end|>.
  MR_RETURN_IF_ERROR(add_ids(writer, first_special, first_special + (qwen || gpt_oss ? 2 : 1), !qwen && !gpt_oss));
  return {};
}

}  // namespace

Status add_vocabulary(const Shape& shape, Writer& writer) {
  const bool sentencepiece = shape.architecture == "llama" && shape.vocab <= 32768;
  return sentencepiece ? add_sentencepiece(shape, writer) : add_byte_level(shape, writer);
}

}  // namespace millrace::synth
