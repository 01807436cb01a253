#include "convert/tokenizer.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/words.h"
#include "convert/pretokenizer_match.h"
#include "convert/tokenizer_reader.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace millrace::convert {

namespace fs = std::filesystem;
using modelfile::Value;
using nlohmann::json;
using text::TokenType;

namespace {

constexpr std::int64_t kMostTokens = 1 << 24;

/// Added tokens that are special although their file does not mark them.
bool looks_special(std::string_view text) {
  const auto between = [&](std::string_view front, std::string_view back) {
    return text.size() >= front.size() + back.size() && text.starts_with(front) && text.ends_with(back);
  };
  return between("<|", "|>") || between("<\xef\xbd\x9c", "\xef\xbd\x9c>") ||  // U+FF5C
         between("<unused", ">") || text == "<pad>" || text == "<mask>" || text == "<2mass>" || text == "[@BOS@]";
}

bool is_byte_piece(std::string_view text) { return text::Vocabulary::byte_value(text).has_value(); }

/// The vocabulary's texts (owned by the JSON) and ids, from a map or from a list with scores.
using Numbered = std::vector<std::pair<std::string_view, std::int64_t>>;
Expected<Numbered> numbered(const json& vocabulary) {
  Numbered all;
  if (vocabulary.is_object()) {
    for (const auto& [text, id] : vocabulary.get_ref<const json::object_t&>()) {
      if (!id.is_number_integer()) return error(Code::corrupt, "token '{}' has no number", modelfile::escape(text, 40));
      all.emplace_back(text, id.get<std::int64_t>());
    }
  } else if (vocabulary.is_array()) {
    for (const json& entry : vocabulary) {
      if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number())
        return error(Code::corrupt, "token {} is no pair of a text and a score", all.size());
      all.emplace_back(entry[0].get_ref<const std::string&>(), std::ssize(all));
    }
  }
  if (all.empty()) return error(Code::corrupt, "it has no vocabulary; download the file again");
  return all;
}

}  // namespace

Status TokenizerReader::run() {
  MR_ASSIGN_OR_RETURN(tokenizer_, read_json(path("tokenizer.json")));
  MR_ASSIGN_OR_RETURN(settings_, read_optional("tokenizer_config.json"));
  MR_ASSIGN_OR_RETURN(generation_, read_optional("generation_config.json"));
  const Status read = read_all();
  return read.with_context(modelfile::escape(path("tokenizer.json")));
}

std::string TokenizerReader::path(const char* name) const { return (fs::path(folder_) / name).string(); }

Expected<json> TokenizerReader::read_optional(const char* name) const {
  std::error_code ignored;
  if (!fs::exists(path(name), ignored)) return json::object();
  return read_json(path(name));
}

Status TokenizerReader::read_all() {
  const json& model = member(tokenizer_, "model");
  const std::string type = text_of(model, "type");
  // The oldest files lack it.
  if (type == "WordPiece") return read_word_pieces(model);
  if (type == "Unigram") return read_unigram(model);
  if (type != "BPE" && !(type.empty() && model.contains("merges")))
    return error(Code::unsupported,
                 "this version does not know the tokenizer '{}'; it knows BPE, WordPiece and Unigram",
                 modelfile::escape(type, 40));
  MR_RETURN_IF_ERROR(read_words(model));
  MR_RETURN_IF_ERROR(read_merges(model));
  if (flag_of(model, "byte_fallback") && !has_byte_level()) {
    MR_RETURN_IF_ERROR(set_pieces(model));
  } else {
    MR_ASSIGN_OR_RETURN(const std::string name, match_pretokenizer(tokenizer_, pre_));
    set("ggml.model", Value(std::string("gpt2")));
    set("ggml.pre", Value(name));
    set("ggml.merges", modelfile::array_value(std::move(merges_)));
  }
  MR_RETURN_IF_ERROR(set_specials());
  if (pre_ == "roberta-bpe" || pre_ == "modern-bert") set_pairs();
  set_arrays();
  set_sampling();
  return set_template();
}

bool TokenizerReader::holds_type(const json& step, const char* type, int depth) {
  if (text_of(step, "type") == type) return true;
  if (depth > 3 || !step.is_object() || !step.contains("pretokenizers")) return false;
  return std::any_of(step["pretokenizers"].begin(), step["pretokenizers"].end(),
                     [&](const json& inner) { return holds_type(inner, type, depth + 1); });
}

Status TokenizerReader::put(std::int64_t id, std::string text, TokenType type) {
  if (id < 0 || id >= rows_)
    return error(Code::corrupt, "token '{}' has id {}, but the model's embedding has {} rows",
                 modelfile::escape(text, 40), id, rows_);
  words_.ids[text] = id;
  words_.tokens[static_cast<std::size_t>(id)] = std::move(text);
  words_.types[static_cast<std::size_t>(id)] = static_cast<std::int32_t>(type);
  return {};
}

/// Added tokens that are or look special become control tokens. Others become user-defined, with plain spaces.
Status TokenizerReader::read_words(const json& model) {
  if (rows_ > kMostTokens) return error(Code::corrupt, "an embedding of {} rows, which no model has", rows_);
  MR_ASSIGN_OR_RETURN(const Numbered vocabulary, numbered(member(model, "vocab")));
  words_.tokens.resize(static_cast<std::size_t>(rows_));
  words_.types.assign(static_cast<std::size_t>(rows_), static_cast<std::int32_t>(TokenType::undefined));
  const bool bytes = flag_of(model, "byte_fallback");
  std::string unknown = text_of(model, "unk_token");
  if (const json& id = member(model, "unk_id"); id.is_number_integer())
    for (const auto& [text, number] : vocabulary)
      if (number == id.get<std::int64_t>()) unknown = text;
  for (const auto& [text, id] : vocabulary) {
    const TokenType type = bytes && is_byte_piece(text)          ? TokenType::byte
                           : !unknown.empty() && text == unknown ? TokenType::unknown
                                                                 : TokenType::normal;
    MR_RETURN_IF_ERROR(put(id, std::string(text), type));
  }
  for (const json& added : member(tokenizer_, "added_tokens")) {
    const std::string text = text_of(added, "content");
    if (!added.is_object() || !added.contains("id") || !added["id"].is_number_integer() || text.empty())
      return error(Code::corrupt, "an added token has no number or no text");
    const auto id = added["id"].get<std::int64_t>();
    const bool control = flag_of(added, "special") || looks_special(text);
    if (text == unknown) continue;  // already typed
    MR_RETURN_IF_ERROR(put(id, control ? text : replaced(text, text::kSpaceMark, " "),
                           control ? TokenType::control : TokenType::user_defined));
  }
  for (std::size_t id = 0; id < words_.tokens.size(); ++id) {
    if (words_.types[id] != static_cast<std::int32_t>(TokenType::undefined)) continue;
    words_.tokens[id] = "[PAD" + std::to_string(id) + "]";
    words_.types[id] = static_cast<std::int32_t>(TokenType::unused);
  }
  return {};
}

Status TokenizerReader::read_merges(const json& model) {
  for (const json& merge : member(model, "merges")) {
    if (merge.is_string()) {
      merges_.push_back(merge.get<std::string>());
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      merges_.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
    } else {
      return error(Code::corrupt, "merge {} is no pair of texts", merges_.size());
    }
  }
  return {};
}

void TokenizerReader::set_arrays() {
  set("ggml.tokens", modelfile::array_value(std::move(words_.tokens)));
  set("ggml.token_type", modelfile::array_value(std::move(words_.types)));
}

/// True if the tokenizer adds a space before the text. Errors: unsupported (any other change of the text).
Expected<bool> TokenizerReader::space_before() const {
  bool space = false;
  const json& normalizer = member(tokenizer_, "normalizer");
  const bool several = text_of(normalizer, "type") == "Sequence" && normalizer.contains("normalizers");
  json steps = json::array();
  if (normalizer.is_object()) steps.push_back(normalizer);
  if (several) steps = json(normalizer["normalizers"]);
  for (const json& step : steps) {
    const std::string type = text_of(step, "type");
    if (type == "Prepend" && text_of(step, "prepend") == text::kSpaceMark)
      space = true;
    else if (type != "Replace" || text_of(step, "content") != text::kSpaceMark)
      return error(Code::unsupported, "this version does not know the normalizer '{}'", modelfile::escape(type, 40));
  }
  const json& before = member(tokenizer_, "pre_tokenizer");
  const std::string type = text_of(before, "type");
  if (type == "Metaspace")
    space |= before.contains("prepend_scheme") ? text_of(before, "prepend_scheme") != "never"
                                               : flag_of(before, "add_prefix_space", true);
  else if (!type.empty() && type != "Split")  // at spaces, of which the normalizer left none
    return error(Code::unsupported, "this version does not know the pre-tokenizer '{}'", modelfile::escape(type, 40));
  return space;
}

/// For SentencePiece models, a piece's score is the rank of the first merge that produces it.
Status TokenizerReader::set_pieces(const json&) {
  MR_ASSIGN_OR_RETURN(const bool space, space_before());
  constexpr float kNever = -1e6F;
  std::vector<float> scores(words_.tokens.size(), kNever);
  std::vector<bool> made(scores.size(), false);
  for (std::size_t rank = 0; rank < merges_.size(); ++rank) {
    const std::size_t gap = merges_[rank].find(' ', 1);
    if (gap == std::string::npos) continue;
    const auto id = words_.id_of(merges_[rank].substr(0, gap) + merges_[rank].substr(gap + 1));
    if (!id || made[static_cast<std::size_t>(*id)]) continue;
    made[static_cast<std::size_t>(*id)] = true;
    scores[static_cast<std::size_t>(*id)] = -static_cast<float>(rank);
  }
  set("ggml.model", Value(std::string("llama")));
  set("ggml.pre", Value(std::string("default")));
  set("ggml.scores", modelfile::array_value(std::move(scores)));
  set("ggml.add_space_prefix", Value(space));
  return {};
}

/// A token of tokenizer_config.json: a string, or an object with its content.
std::string TokenizerReader::special_text(const char* key) const {
  const std::string plain = text_of(settings_, key);
  return plain.empty() && settings_.contains(key) ? text_of(settings_[key], "content") : plain;
}

/// From tokenizer_config.json, or else from the post-processor; nullopt: neither has it.
std::optional<bool> TokenizerReader::adds(const char* key, std::optional<std::int64_t> token, bool front) const {
  if (settings_.contains(key) && settings_[key].is_boolean()) return settings_[key].get<bool>();
  json processors = json::array({member(tokenizer_, "post_processor")});
  if (processors[0].is_object() && processors[0].contains("processors")) processors = json(processors[0]["processors"]);
  for (const json& processor : processors) {
    const std::string type = text_of(processor, "type");
    if (type == "BertProcessing" || type == "RobertaProcessing") {
      const json& pair = member(processor, front ? "cls" : "sep");
      return token && pair.is_array() && pair.size() == 2 && pair[1] == *token;
    }
    const json& single = member(processor, "single");
    if (type != "TemplateProcessing" || !single.is_array() || single.empty()) continue;
    const json& part = front ? single.front() : single.back();
    return token && part.is_object() && words_.id_of(text_of(member(part, "SpecialToken"), "id")) == token;
  }
  return std::nullopt;
}

void TokenizerReader::set_ends(std::int64_t eos) {
  constexpr std::array kKeys = {"ggml.eot_token_id", "ggml.eom_token_id"};
  const json& ends = member(generation_, "eos_token_id");
  if (!ends.is_array()) return;
  std::size_t more = 0;
  for (const json& end : ends) {
    if (!end.is_number_integer() || end.get<std::int64_t>() == eos || end.get<std::int64_t>() < 0 ||
        end.get<std::int64_t>() >= rows_)
      continue;
    if (more < kKeys.size()) set_id(kKeys[more], end.get<std::int64_t>());
    ++more;
  }
  if (more > kKeys.size())
    log::warn("generation_config.json names {} tokens that end a text; GGUF has keys for 3 of them", more + 1);
}

Status TokenizerReader::set_specials() {
  struct Special {
    const char *text, *id, *key;
    const char* instead = "";  // the encoders' counterpart
  };
  constexpr Special kSpecials[] = {{"bos_token", "bos_token_id", "ggml.bos_token_id", "cls_token"},
                                   {"eos_token", "eos_token_id", "ggml.eos_token_id", "sep_token"},
                                   {"unk_token", "unk_token_id", "ggml.unknown_token_id"},
                                   {"pad_token", "pad_token_id", "ggml.padding_token_id"},
                                   {"sep_token", "sep_token_id", "ggml.seperator_token_id"}};
  for (const Special& special : kSpecials) {
    std::optional<std::int64_t> id;
    if (const std::string text = special_text(special.text); !text.empty()) id = words_.id_of(text);
    const json* const sources[] = {config_.find(special.id),
                                   generation_.contains(special.id) ? &generation_[special.id] : nullptr};
    for (const json* from : sources) {
      if (id || from == nullptr) continue;
      const json& one = from->is_array() && !from->empty() ? from->front() : *from;
      if (one.is_number_integer()) id = one.get<std::int64_t>();
    }
    if (!id) id = words_.id_of(special_text(special.instead));
    if (!id) continue;
    if (*id < 0 || *id >= rows_)
      return error(Code::corrupt, "{} is {}, but there are {} tokens", special.id, *id, rows_);
    set_id(special.key, *id);
    if (special.text == std::string_view("bos_token")) bos_ = id;
    if (special.text == std::string_view("eos_token")) set_ends(*(eos_ = id));
  }
  set("ggml.add_bos_token", Value(adds("add_bos_token", bos_, true).value_or(false)));
  if (const auto eos = adds("add_eos_token", eos_, false)) set("ggml.add_eos_token", Value(*eos));
  return {};
}

/// chat_template.jinja, or else tokenizer_config.json's (one template, or several with names), or else
/// chat_template.json's, where processors of models with pictures kept it.
Status TokenizerReader::set_template() {
  std::error_code ignored;
  if (const std::string file = path("chat_template.jinja"); fs::exists(file, ignored)) {
    MR_ASSIGN_OR_RETURN(const modelfile::File opened, modelfile::File::open_read(file));
    MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, opened.size());
    if (bytes > kMostJsonBytes) return error(Code::corrupt, "chat_template.jinja has {} bytes", bytes);
    std::string text(static_cast<std::size_t>(bytes), '\0');
    MR_RETURN_IF_ERROR(opened.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
    set("chat_template", Value(text));
    return {};
  }
  const json& own = member(settings_, "chat_template");
  json processors;
  if (own.is_null()) {
    MR_ASSIGN_OR_RETURN(processors, read_optional("chat_template.json"));
  }
  const json& found = own.is_null() ? member(processors, "chat_template") : own;
  if (found.is_string()) set("chat_template", Value(found.get<std::string>()));
  if (!found.is_array()) return {};
  std::vector<std::string> names;
  for (const json& one : found) {
    const std::string name = text_of(one, "name"), text = text_of(one, "template");
    if (name == "default") {
      set("chat_template", Value(text));
    } else if (!name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") == std::string::npos) {
      set(("chat_template." + name).c_str(), Value(text));
      names.push_back(name);
    }
  }
  if (!names.empty()) set("chat_templates", modelfile::array_value(std::move(names)));
  return {};
}

void TokenizerReader::set_sampling() {
  struct Setting {
    const char *theirs, *ours;
    bool whole = false;
  };
  constexpr Setting kSettings[] = {{"temperature", "temp"},
                                   {"top_k", "top_k", true},
                                   {"top_p", "top_p"},
                                   {"min_p", "min_p"},
                                   {"repetition_penalty", "penalty_repeat"}};
  for (const Setting& setting : kSettings) {
    if (!generation_.contains(setting.theirs) || !generation_[setting.theirs].is_number()) continue;
    const double number = generation_[setting.theirs].get<double>();
    if (!(number >= 0 && number < 1e9)) continue;
    metadata_["general.sampling." + std::string(setting.ours)] =
        setting.whole ? Value(static_cast<std::int32_t>(number)) : Value(static_cast<float>(number));
  }
}

Status read_tokenizer(const std::string& folder, const Config& config, std::int64_t rows, std::string_view pre,
                      Metadata& metadata) {
  return TokenizerReader(folder, config, rows, pre, metadata).run();
}

}  // namespace millrace::convert
