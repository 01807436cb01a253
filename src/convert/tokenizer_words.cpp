// WordPiece and unigram tokenizers, for encoders.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/base64.h"
#include "convert/tokenizer_reader.h"
#include "modelfile/escape.h"
#include "modelfile/gguf_writer.h"
#include "text/utf8.h"

namespace millrace::convert {

using modelfile::Value;
using nlohmann::json;
using text::TokenType;

/// WordPiece tokens: GGUF writes U+2581 before tokens that begin a word, and removes "##" from those that continue one.
Status TokenizerReader::read_word_pieces(const json& model) {
  const std::string mark = text_of(model, "continuing_subword_prefix");
  const json& most = member(model, "max_input_chars_per_word");
  if (mark != "##" || (most.is_number() && most != 100))
    return error(Code::unsupported,
                 "its words go on behind '{}' and have {} characters at most; this version knows "
                 "'##' and 100",
                 modelfile::escape(mark, 20), modelfile::escape(most.dump(), 20));
  MR_RETURN_IF_ERROR(read_words(model));
  MR_RETURN_IF_ERROR(set_normalizer());
  struct Special {
    const char *text, *usual;
    std::vector<const char*> keys;
  };
  const Special specials[] = {{"cls_token", "[CLS]", {"ggml.cls_token_id", "ggml.bos_token_id"}},
                              {"sep_token", "[SEP]", {"ggml.seperator_token_id", "ggml.eos_token_id"}},
                              {"unk_token", "[UNK]", {"ggml.unknown_token_id"}},
                              {"pad_token", "[PAD]", {"ggml.padding_token_id"}},
                              {"mask_token", "[MASK]", {"ggml.mask_token_id"}}};
  for (const Special& special : specials) {
    const std::string named = special_text(special.text);
    const auto id = words_.id_of(named.empty() ? special.usual : named);
    for (const char* key : special.keys)
      if (id) set_id(key, *id);
  }
  for (std::size_t id = 0; id < words_.tokens.size(); ++id) {
    std::string& word = words_.tokens[id];
    const auto type = static_cast<TokenType>(words_.types[id]);
    if (type != TokenType::normal || (word.starts_with('[') && word.ends_with(']') && word.size() > 1)) continue;
    word = word.starts_with(mark) ? word.substr(mark.size()) : std::string(text::kSpaceMark) + word;
  }
  set("ggml.model", Value(std::string("bert")));
  set("ggml.pre", Value(std::string("default")));
  set("ggml.add_bos_token", Value(true));
  set("ggml.add_eos_token", Value(true));
  set("ggml.token_type_count", Value(static_cast<std::uint32_t>(token_types())));
  set_arrays();
  return {};
}

/// True if two separators stand between the texts of a pair.
void TokenizerReader::set_pairs() {
  const json& post = member(tokenizer_, "post_processor");
  bool twice = text_of(post, "type") == "RobertaProcessing";
  const json* before = nullptr;
  for (const json& part : member(post, "pair")) {
    const bool special = part.is_object() && part.contains("SpecialToken");
    if (special && before != nullptr) twice = true;
    before = special ? &part : nullptr;
  }
  set("ggml.add_sep_token", Value(twice));
}

/// The number of token types; BERT's distinguish the two texts of a pair.
std::int64_t TokenizerReader::token_types() const {
  const json* count = config_.find("type_vocab_size");
  return count != nullptr && count->is_number_integer() ? std::clamp(count->get<std::int64_t>(), std::int64_t{1}, rows_)
                                                        : 1;
}

Status TokenizerReader::set_normalizer() {
  const json& normalizer = member(tokenizer_, "normalizer");
  const std::string before = text_of(member(tokenizer_, "pre_tokenizer"), "type");
  if (text_of(normalizer, "type") != "BertNormalizer" || before != "BertPreTokenizer")
    return error(Code::unsupported,
                 "its words are normalised by '{}' and cut by '{}'; this version knows "
                 "BertNormalizer and BertPreTokenizer",
                 modelfile::escape(text_of(normalizer, "type"), 40), modelfile::escape(before, 40));
  for (const char* flag : {"clean_text", "handle_chinese_chars"})
    if (!flag_of(normalizer, flag, true))
      return error(Code::unsupported, "its normalizer has {} off, which this version does not know", flag);
  const bool lower_case = flag_of(normalizer, "lowercase", true);
  set("ggml.normalizer.lowercase", Value(lower_case));
  set("ggml.normalizer.strip_accents", Value(flag_of(normalizer, "strip_accents", lower_case)));
  return {};
}

/// SentencePiece's unigram models: pieces with scores, and a character map.
Status TokenizerReader::read_unigram(const json& model) {
  MR_RETURN_IF_ERROR(read_words(model));
  if (flag_of(model, "byte_fallback"))
    return error(Code::unsupported, "its unknown characters become bytes, which no unigram tokenizer of GGUF has");
  std::vector<float> scores(words_.tokens.size(), 0);
  const json& pieces = member(model, "vocab");
  for (std::size_t id = 0; id < pieces.size(); ++id) scores[id] = pieces[id][1].get<float>();
  MR_RETURN_IF_ERROR(set_unigram_normalizer());
  MR_RETURN_IF_ERROR(set_specials());
  set_pairs();
  if (const json& id = member(model, "unk_id"); id.is_number_integer() && id.get<std::int64_t>() >= 0)
    set_id("ggml.unknown_token_id", id.get<std::int64_t>());
  set("ggml.model", Value(std::string("t5")));
  set("ggml.pre", Value(std::string("default")));
  set("ggml.scores", modelfile::array_value(std::move(scores)));
  set("ggml.token_type_count", Value(static_cast<std::uint32_t>(token_types())));
  set_arrays();
  return {};
}

/// Accepts the normalizers that GGUF can express: a character map, merging spaces, and U+2581 for spaces and before the
/// text.
Status TokenizerReader::set_unigram_normalizer() {
  json steps = json::array();
  if (const json& normalizer = member(tokenizer_, "normalizer"); text_of(normalizer, "type") == "Sequence")
    steps = json(member(normalizer, "normalizers"));
  else if (normalizer.is_object())
    steps.push_back(normalizer);
  bool merges_spaces = false;
  for (const json& step : steps) {
    const std::string type = text_of(step, "type");
    if (type == "Precompiled") {
      const auto map = from_base64(text_of(step, "precompiled_charsmap"));
      if (!map) return error(Code::corrupt, "its precompiled_charsmap is not base64; download the file again");
      set("ggml.precompiled_charsmap", modelfile::array_value(std::vector<std::uint8_t>(map->begin(), map->end())));
    } else if (type == "Replace" && text_of(member(step, "pattern"), "Regex") == " {2,}") {
      merges_spaces = true;
    } else if (type != "Strip") {
      return error(Code::unsupported, "this version does not know the normalizer '{}'", modelfile::escape(type, 40));
    }
  }
  const json& before = member(tokenizer_, "pre_tokenizer");
  json cuts = json::array({before});
  if (text_of(before, "type") == "Sequence") cuts = json(member(before, "pretokenizers"));
  bool space = false;
  for (const json& cut : cuts) {
    const std::string type = text_of(cut, "type");
    if (type == "WhitespaceSplit") {
      merges_spaces = true;
    } else if (type == "Metaspace") {
      space = cut.contains("prepend_scheme") ? text_of(cut, "prepend_scheme") != "never"
                                             : flag_of(cut, "add_prefix_space", true);
    } else {
      return error(Code::unsupported, "this version does not know the pre-tokenizer '{}'", modelfile::escape(type, 40));
    }
  }
  set("ggml.add_space_prefix", Value(space));
  set("ggml.remove_extra_whitespaces", Value(merges_spaces));
  return {};
}

}  // namespace millrace::convert
