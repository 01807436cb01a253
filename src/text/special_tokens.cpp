#include "text/special_tokens.h"

#include <algorithm>
#include <array>

namespace millrace::text {

namespace {

// Texts at which some family of models ends a turn, a message or a file.
constexpr std::array<std::string_view, 25> kEndTexts = {
    "</s>",
    "<eos>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<turn|>",
    "<|tool_response>",
    "[e~[",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
};

constexpr std::array<std::string_view, 6> kEndKeys = {
    "tokenizer.ggml.eos_token_id",     "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
    "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id", "tokenizer.ggml.fim_sep_token_id",
};

/// Prefix, suffix and middle by their texts: Qwen, StarCoder, DeepSeek, Granite and Codestral, CodeLlama, CodeGemma.
constexpr std::array<std::array<std::string_view, 3>, 6> kFillTexts = {{
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},
    {"<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "begin\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81hole\xEF\xBD\x9C>",
     "<\xEF\xBD\x9C"
     "fim\xE2\x96\x81"
     "end\xEF\xBD\x9C>"},
    {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"},
    {"\xE2\x96\x81<PRE>", "\xE2\x96\x81<SUF>", "\xE2\x96\x81<MID>"},
}};

/// Returns the id at `key`, if present.
Expected<std::optional<TokenId>> read_id(const modelfile::Model& model, const Vocabulary& vocabulary,
                                         std::string_view key) {
  if (!model.has(key)) return std::optional<TokenId>();
  MR_ASSIGN_OR_RETURN(const std::int64_t id, model.get_int(key));
  if (!vocabulary.contains(id)) {
    return error(Code::corrupt, "{} is {}, but the vocabulary has {} tokens; the file is damaged, get it again", key,
                 id, vocabulary.size());
  }
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

/// Errors: corrupt.
Expected<std::optional<FillTokens>> find_fill_tokens(const modelfile::Model& model, const Vocabulary& vocabulary) {
  std::optional<TokenId> three[3];
  constexpr const char* keys[3] = {"tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.fim_suf_token_id",
                                   "tokenizer.ggml.fim_mid_token_id"};
  for (std::size_t i = 0; i < 3; ++i) {
    MR_ASSIGN_OR_RETURN(three[i], read_id(model, vocabulary, keys[i]));
  }
  for (const auto& texts : kFillTexts) {
    if (three[0] && three[1] && three[2]) break;
    for (std::size_t i = 0; i < 3; ++i) three[i] = vocabulary.special(texts[i]);
  }
  if (!three[0] || !three[1] || !three[2]) return std::optional<FillTokens>();
  FillTokens found{*three[0], *three[1], *three[2], {}, {}};
  MR_ASSIGN_OR_RETURN(found.repository, read_id(model, vocabulary, "tokenizer.ggml.fim_rep_token_id"));
  MR_ASSIGN_OR_RETURN(found.file, read_id(model, vocabulary, "tokenizer.ggml.fim_sep_token_id"));
  if (!found.repository) found.repository = vocabulary.special("<|repo_name|>");
  if (!found.file) found.file = vocabulary.special("<|file_sep|>");
  return std::optional<FillTokens>(found);
}

}  // namespace

bool is_end_text(std::string_view text) {
  if (text.size() < 4 || (text[0] != '<' && text[0] != '[' && text[0] != '_')) return false;
  return std::find(kEndTexts.begin(), kEndTexts.end(), text) != kEndTexts.end();
}

Expected<SpecialTokens> find_special_tokens(const modelfile::Model& model, const Vocabulary& vocabulary) {
  SpecialTokens found;
  MR_ASSIGN_OR_RETURN(found.bos, read_id(model, vocabulary, "tokenizer.ggml.bos_token_id"));
  MR_ASSIGN_OR_RETURN(found.eos, read_id(model, vocabulary, "tokenizer.ggml.eos_token_id"));
  MR_ASSIGN_OR_RETURN(found.unknown, read_id(model, vocabulary, "tokenizer.ggml.unknown_token_id"));
  if (!found.bos) found.bos = vocabulary.special("<s>");
  if (!found.eos) found.eos = vocabulary.special("</s>");
  if (!found.unknown) found.unknown = vocabulary.special("<unk>");
  for (const std::string_view key : kEndKeys) {
    MR_ASSIGN_OR_RETURN(const std::optional<TokenId> id, read_id(model, vocabulary, key));
    if (id) found.ends.push_back(*id);
  }
  MR_ASSIGN_OR_RETURN(found.fill, find_fill_tokens(model, vocabulary));
  // In the harmony format <|end|> closes a message and <|return|> the whole answer; Solar's format does the same.
  const bool harmony = (vocabulary.special("<|return|>") && vocabulary.special("<|call|>")) ||
                       (vocabulary.special("<|flush|>") && vocabulary.special("<|calls|>"));
  for (const std::string_view text : kEndTexts) {
    if (harmony && text == "<|end|>") continue;
    if (const auto id = vocabulary.special(text); id && vocabulary.hidden(*id)) found.ends.push_back(*id);
  }
  if (found.eos) found.ends.push_back(*found.eos);
  std::sort(found.ends.begin(), found.ends.end());
  found.ends.erase(std::unique(found.ends.begin(), found.ends.end()), found.ends.end());
  return found;
}

}  // namespace millrace::text
