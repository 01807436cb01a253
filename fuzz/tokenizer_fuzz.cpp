// Tokenizers from metadata that may hold anything, and any text through good ones.
// First byte: what to do with the rest.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../tests/text/gguf_image.h"
#include "base/log.h"
#include "text/byte_alphabet.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace {

using namespace millrace;
using namespace millrace::text;
using millrace::test::GgufImage;

void require(bool held) {
  if (!held) std::abort();
}

/// Takes bytes from the front of the input; zeros when it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}
  std::uint8_t byte() {
    if (rest_.empty()) return 0;
    const auto value = static_cast<std::uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    return value;
  }
  std::string_view bytes(std::size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }
  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

/// What every tokenizer must keep: ids of the vocabulary, no crash on ids outside of it.
void exercise(const std::shared_ptr<const Tokenizer>& tokenizer, std::string_view text) {
  for (const Specials specials : {Specials::as_text, Specials::parse}) {
    const std::vector<TokenId> ids = tokenizer->encode(text, specials);
    for (const TokenId id : ids) require(id >= 0 && id < tokenizer->vocab_size());
    (void)tokenizer->decode(ids, specials == Specials::parse);
  }
  for (const TokenId id : {-1, tokenizer->vocab_size(), 1 << 30}) require(tokenizer->token_bytes(id, true).empty());
}

void strange_metadata(Input input) {
  constexpr const char* kPre[] = {"gpt-2", "llama-bpe", "qwen35", "deepseek-llm", "falcon", "gpt-4o", "x", "kimi-k2"};
  GgufImage image;
  constexpr const char* kKinds[] = {"gpt2", "llama", "gemma4"};
  image.text("tokenizer.ggml.model", kKinds[input.byte() % 3]).text("tokenizer.ggml.pre", kPre[input.byte() % 8]);
  std::vector<std::string> tokens, merges;
  std::vector<std::int32_t> types;
  std::vector<float> scores;
  const std::size_t count = input.byte();
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint8_t shape = input.byte();
    tokens.emplace_back(input.bytes(shape % 16));
    types.push_back(shape / 16 % 8 == 7 ? 1 : shape / 16 % 8);
    scores.push_back(static_cast<float>(static_cast<std::int8_t>(input.byte())));
  }
  for (std::size_t i = input.byte(); i > 0; --i) merges.emplace_back(input.bytes(input.byte() % 16));
  const std::uint8_t wrong = input.byte();
  if ((wrong & 1) != 0) types.emplace_back(9);
  if ((wrong & 2) != 0) scores.emplace_back();
  image.texts("tokenizer.ggml.tokens", tokens).texts("tokenizer.ggml.merges", merges);
  if ((wrong & 4) == 0) image.integers("tokenizer.ggml.token_type", types);
  image.floats("tokenizer.ggml.scores", scores);
  if ((wrong & 8) != 0) image.number("tokenizer.ggml.eos_token_id", input.byte());
  if ((wrong & 16) != 0) image.text("general.name", "Phi-3");
  image.text("tokenizer.chat_template", input.bytes(input.byte()));
  const auto model = image.model();
  require(model.ok());
  const auto tokenizer = Tokenizer::from_model(*model);
  if (!tokenizer.ok()) return;
  exercise(*tokenizer, input.rest());
  if (const auto chat = ChatTemplate::from_model(*model); chat.ok()) {
    (void)(*chat)->render(**tokenizer, {{"user", std::string(input.rest())}}, true);
  }
}

std::shared_ptr<const Tokenizer> make_bytewise(const char* pre) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.push_back(alphabet_character(static_cast<unsigned char>(byte)));
  std::vector<std::int32_t> types(256, 1);
  for (const char* more : {"he", "ll", "hell", "hello", "aa", "aaaa", "\xC4\xA0h", "\xC3\x83\xC2\xA9"}) {
    tokens.emplace_back(more);
    types.push_back(1);
  }
  for (const char* special : {"<|im_start|>", "<|im_end|>", "<think>"}) {
    tokens.emplace_back(special);
    types.push_back(special[1] == '|' ? 3 : 4);
  }
  GgufImage image;
  image.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", pre).texts("tokenizer.ggml.tokens", tokens);
  image.integers("tokenizer.ggml.token_type", types);
  image.texts("tokenizer.ggml.merges",
              {"h e", "l l", "he ll", "hell o", "a a", "aa aa", "\xC4\xA0 h", "\xC3\x83 \xC2\xA9"});
  const auto model = image.model();
  require(model.ok());
  auto tokenizer = Tokenizer::from_model(*model);
  require(tokenizer.ok());
  return *tokenizer;
}

std::shared_ptr<const Tokenizer> make_plamo2() {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::vector<std::string> tokens;
  for (std::size_t byte = 0; byte < 256; ++byte)
    tokens.push_back(std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">");
  std::vector<std::int32_t> types(tokens.size(), 6);
  std::vector<float> scores(tokens.size(), 0);
  for (const char* piece : {"a", "aa", "he", "hell", "hello", " ", "\xC3\xA9"}) {
    tokens.emplace_back(piece);
    types.push_back(1);
    scores.push_back(-1.5F);
  }
  GgufImage image;
  image.text("tokenizer.ggml.model", "plamo2").texts("tokenizer.ggml.tokens", tokens);
  const auto model = image.integers("tokenizer.ggml.token_type", types).floats("tokenizer.ggml.scores", scores).model();
  require(model.ok());
  auto tokenizer = Tokenizer::from_model(*model);
  require(tokenizer.ok());
  return *tokenizer;
}

void any_text(Input input) {
  static const std::vector<std::shared_ptr<const Tokenizer>> tokenizers = {
      make_bytewise("gpt-2"),
      make_bytewise("llama-bpe"),
      make_bytewise("gpt-4o"),
      make_bytewise("deepseek-v3"),
      make_bytewise("kimi-k2"),
      make_bytewise("default"),
      make_plamo2(),
      make_bytewise("qwen35")};  // the last composes what it reads
  const auto& tokenizer = tokenizers[input.byte() % tokenizers.size()];
  const std::string text(input.rest());
  exercise(tokenizer, text);
  if (tokenizer == tokenizers.back() || text.starts_with("\xEF\xBB\xBF")) return;  // PLaMo's leaves such a mark out
  require(tokenizer->decode(tokenizer->encode(text, Specials::as_text)) == text);
  require(tokenizer->decode(tokenizer->encode(text, Specials::parse), true) == text);
}

void any_file(Input input) {
  const auto bytes = std::as_bytes(std::span(input.rest()));
  const auto model = modelfile::Model::parse(bytes, "fuzz.gguf");
  if (!model.ok()) return;
  if (const auto tokenizer = Tokenizer::from_model(*model); tokenizer.ok()) exercise(*tokenizer, "Hello <|im_end|> w");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  millrace::log::set_level(millrace::log::Level::off);
  Input input(data, size);
  switch (input.byte() % 3) {
    case 0:
      strange_metadata(input);
      break;
    case 1:
      any_text(input);
      break;
    default:
      any_file(input);
  }
  return 0;
}
