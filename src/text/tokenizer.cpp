#include "text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "modelfile/escape.h"
#include "text/bpe.h"
#include "text/plamo2.h"
#include "text/spm.h"
#include "text/unigram.h"
#include "text/utf8.h"
#include "text/word_piece.h"

namespace millrace::text {

Expected<std::shared_ptr<const Tokenizer>> Tokenizer::from_model(const modelfile::Model& model) {
  constexpr std::string_view kKey = "tokenizer.ggml.model";
  if (!model.has(kKey)) {
    return error(Code::not_found, "the file has no tokenizer ({}); use a GGUF that was made with its tokenizer", kKey);
  }
  MR_ASSIGN_OR_RETURN(const std::string kind, model.get_string(kKey));
  if (kind == "gpt2") return BpeTokenizer::make(model);
  if (kind == "llama") return SpmTokenizer::make(model, SpmTokenizer::Order::scores);
  if (kind == "gemma4") return SpmTokenizer::make(model, SpmTokenizer::Order::merges);
  if (kind == "bert") return WordPieceTokenizer::make(model);
  if (kind == "t5") return UnigramTokenizer::make(model);
  if (kind == "plamo2") return Plamo2Tokenizer::make(model);
  return error(
      Code::unsupported,
      "tokenizers of kind '{}' ({}) are not known to this version; known are gpt2, llama, gemma4, bert, t5, plamo2",
      modelfile::escape(kind, 80), kKey);
}

Status Tokenizer::read_flags(const modelfile::Model& model, bool add_bos) {
  MR_ASSIGN_OR_RETURN(add_bos_, model.get_bool_or("tokenizer.ggml.add_bos_token", add_bos));
  MR_ASSIGN_OR_RETURN(add_eos_, model.get_bool_or("tokenizer.ggml.add_eos_token", false));
  MR_RETURN_IF_ERROR(read_pair_flag(model));
  if (add_bos_ && !bos_) {
    log::warn("the tokenizer wants a beginning-of-text token but names none; prompts begin without it");
    add_bos_ = false;
  }
  if (add_eos_ && !eos_) {
    log::warn("the tokenizer wants an end-of-text token but names none; it is left out");
    add_eos_ = false;
  }
  return {};
}

/// Files older than the key come from RoBERTa or XLM-RoBERTa if they have that tokenizer.
Status Tokenizer::read_pair_flag(const modelfile::Model& model) {
  const auto word = [&](const char* key) {
    const Expected<std::string> found = model.get_string(key);
    return found.ok() ? *found : std::string();
  };
  const std::string pre = word("tokenizer.ggml.pre");
  const bool usual = word("tokenizer.ggml.model") == "t5" || pre == "roberta-bpe" || pre.starts_with("jina-v");
  MR_ASSIGN_OR_RETURN(parts_pairs_twice_, model.get_bool_or("tokenizer.ggml.add_sep_token", usual));
  return {};
}

std::string Tokenizer::decode(const std::vector<TokenId>& ids, bool with_specials) const {
  std::string text;
  bool first = strip_leading_space_;
  for (const TokenId id : ids) {
    const std::string bytes = token_bytes(id, with_specials);
    const bool strip = first && !bytes.empty() && bytes[0] == ' ';
    if (!bytes.empty()) first = false;
    text.append(bytes, strip ? 1 : 0);
  }
  return text;
}

bool Tokenizer::ends_generation(TokenId id) const { return std::binary_search(end_ids_.begin(), end_ids_.end(), id); }

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool continues_text, std::vector<TokenId> shown)
    : tokenizer_(std::move(tokenizer)),
      shown_(std::move(shown)),
      first_(!continues_text && tokenizer_->strips_leading_space()) {}

std::string Detokenizer::push(TokenId id) {
  const std::string bytes = tokenizer_->token_bytes(id, std::binary_search(shown_.begin(), shown_.end(), id));
  const bool strip = first_ && !bytes.empty() && bytes[0] == ' ';
  if (!bytes.empty()) first_ = false;
  pending_.append(bytes, strip ? 1 : 0);
  return take(false);
}

std::string Detokenizer::flush() { return take(true); }

std::string Detokenizer::take(bool all) {
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = next_utf8(rest);
    if (step.kind == Utf8Kind::incomplete && !all) break;
    out += step.kind == Utf8Kind::character ? rest.substr(0, step.bytes) : kReplacementCharacter;
    rest.remove_prefix(step.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

}  // namespace millrace::text
