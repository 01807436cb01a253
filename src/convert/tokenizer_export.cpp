#include <algorithm>
#include <filesystem>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "convert/json_file.h"
#include "convert/pretokenizer_match.h"
#include "convert/tokenizer.h"
#include "modelfile/escape.h"
#include "text/pretokenizer.h"
#include "text/utf8.h"
#include "text/vocabulary.h"

namespace millrace::convert {

namespace fs = std::filesystem;
using nlohmann::json;
using text::TokenType;

namespace {

constexpr std::string_view kByteLevel = "ByteLevel";

class TokenizerWriter {
 public:
  TokenizerWriter(const Metadata& metadata, std::string folder) : metadata_(metadata), folder_(std::move(folder)) {}

  Status run() {
    const std::vector<std::string>* tokens = array<std::string>("ggml.tokens");
    if (tokens == nullptr || tokens->empty())
      return error(Code::not_found, "the file has no vocabulary (tokenizer.ggml.tokens)");
    tokens_ = *tokens;
    if (const auto* types = array<std::int32_t>("ggml.token_type")) types_ = *types;
    types_.resize(tokens_.size(), static_cast<std::int32_t>(TokenType::normal));
    const std::string kind = text("ggml.model");
    if (kind == "gpt2") {
      MR_RETURN_IF_ERROR(write_byte_level());
    } else if (kind == "llama") {
      MR_RETURN_IF_ERROR(write_pieces());
    } else {
      return error(Code::unsupported, "tokenizers of kind '{}' are not exported", modelfile::escape(kind, 40));
    }
    MR_RETURN_IF_ERROR(write_json(path("tokenizer.json"), tokenizer_));
    MR_RETURN_IF_ERROR(write_json(path("tokenizer_config.json"), settings()));
    return write_json(path("generation_config.json"), generation());
  }

 private:
  std::string path(const char* name) const { return (fs::path(folder_) / name).string(); }
  const modelfile::Value* find(const std::string& key) const {
    const auto found = metadata_.find("tokenizer." + key);
    return found == metadata_.end() ? nullptr : &found->second;
  }
  std::string text(const std::string& key) const {
    const modelfile::Value* value = find(key);
    const auto* held = value == nullptr ? nullptr : std::get_if<std::string>(value);
    return held == nullptr ? "" : *held;
  }
  template <typename T>
  const std::vector<T>* array(const std::string& key) const {
    const modelfile::Value* value = find(key);
    const auto* held = value == nullptr ? nullptr : std::get_if<std::shared_ptr<const modelfile::Array>>(value);
    return held == nullptr || *held == nullptr ? nullptr : std::get_if<std::vector<T>>(&(*held)->elements);
  }
  /// -1: the file names none, or an id outside the vocabulary.
  std::int64_t id(const std::string& key) const {
    const modelfile::Value* value = find(key);
    const auto* held = value == nullptr ? nullptr : std::get_if<std::uint32_t>(value);
    return held == nullptr || *held >= tokens_.size() ? -1 : static_cast<std::int64_t>(*held);
  }
  bool flag(const std::string& key, bool fallback) const {
    const modelfile::Value* value = find(key);
    const auto* held = value == nullptr ? nullptr : std::get_if<bool>(value);
    return held == nullptr ? fallback : *held;
  }
  TokenType type(std::size_t id) const { return static_cast<TokenType>(types_[id]); }
  static bool is_added(TokenType type) { return type == TokenType::control || type == TokenType::user_defined; }

  json vocabulary() const;
  json added() const;
  Status write_byte_level();
  Status write_pieces();
  std::vector<std::pair<std::string, std::string>> merges_of_pieces(const std::vector<float>& scores) const;
  json settings() const;
  json generation() const;

  const Metadata& metadata_;
  const std::string folder_;
  std::vector<std::string> tokens_;
  std::vector<std::int32_t> types_;
  json tokenizer_ = {{"version", "1.0"}, {"truncation", nullptr}, {"padding", nullptr}, {"post_processor", nullptr}};
};

json TokenizerWriter::vocabulary() const {
  json vocabulary = json::object();
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (!is_added(type(id)) && type(id) != TokenType::unused) vocabulary[tokens_[id]] = id;
  return vocabulary;
}

json TokenizerWriter::added() const {
  json list = json::array();
  for (std::size_t id = 0; id < tokens_.size(); ++id)
    if (is_added(type(id)) || type(id) == TokenType::unknown)
      list.push_back({{"id", id},
                      {"content", tokens_[id]},
                      {"single_word", false},
                      {"lstrip", false},
                      {"rstrip", false},
                      {"normalized", false},
                      {"special", type(id) != TokenType::user_defined}});
  return list;
}

Status TokenizerWriter::write_byte_level() {
  const std::string name = text("ggml.pre");
  MR_ASSIGN_OR_RETURN(tokenizer_["pre_tokenizer"], pretokenizer_json(name));
  const text::PreTokenizerFamily* family = text::find_pretokenizer(name);
  tokenizer_["normalizer"] = family->habits.composes ? json{{"type", "NFC"}} : json(nullptr);
  tokenizer_["added_tokens"] = added();
  tokenizer_["decoder"] = {
      {"type", kByteLevel}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
  const std::vector<std::string>* merges = array<std::string>("ggml.merges");
  tokenizer_["model"] = {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", nullptr},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", false},
                         {"byte_fallback", false},
                         {"ignore_merges", family->habits.whole_words_first},
                         {"vocab", vocabulary()},
                         {"merges", merges == nullptr ? json::array() : json(*merges)}};
  return {};
}

/// All merges of two pieces into a third, ordered by the result's score.
std::vector<std::pair<std::string, std::string>> TokenizerWriter::merges_of_pieces(
    const std::vector<float>& scores) const {
  std::unordered_set<std::string_view> pieces;
  std::vector<std::size_t> order;
  for (std::size_t id = 0; id < tokens_.size(); ++id) {
    if (type(id) != TokenType::normal) continue;
    pieces.insert(tokens_[id]);
    order.push_back(id);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  std::vector<std::pair<std::string, std::string>> merges;
  for (const std::size_t id : order) {
    const std::string_view whole = tokens_[id];
    for (std::size_t at = 1; at < whole.size(); ++at)
      if (pieces.contains(whole.substr(0, at)) && pieces.contains(whole.substr(at)))
        merges.emplace_back(whole.substr(0, at), whole.substr(at));
  }
  return merges;
}

Status TokenizerWriter::write_pieces() {
  const std::vector<float>* scores = array<float>("ggml.scores");
  if (scores == nullptr || scores->size() != tokens_.size())
    return error(Code::corrupt, "tokenizer.ggml.scores does not have one score a token; download the file again");
  json merges = json::array();
  for (const auto& [left, right] : merges_of_pieces(*scores)) merges.push_back({left, right});
  const json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", text::kSpaceMark}};
  const bool space = flag("ggml.add_space_prefix", true);
  const json prepend = {{"type", "Prepend"}, {"prepend", text::kSpaceMark}};
  tokenizer_["normalizer"] = space ? json{{"type", "Sequence"}, {"normalizers", {prepend, replace}}} : replace;
  tokenizer_["pre_tokenizer"] = nullptr;
  tokenizer_["added_tokens"] = added();
  json decoders = {{{"type", "Replace"}, {"pattern", {{"String", text::kSpaceMark}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}};
  if (space) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  tokenizer_["decoder"] = {{"type", "Sequence"}, {"decoders", decoders}};
  json vocab = vocabulary();
  for (std::size_t id = 0; id < tokens_.size(); ++id)  // the algorithm wants what it falls back to in its vocabulary
    if (type(id) == TokenType::control) vocab[tokens_[id]] = id;
  const std::int64_t unknown = id("ggml.unknown_token_id");
  tokenizer_["model"] = {{"type", "BPE"},
                         {"dropout", nullptr},
                         {"unk_token", unknown < 0 ? json(nullptr) : json(tokens_[static_cast<std::size_t>(unknown)])},
                         {"continuing_subword_prefix", nullptr},
                         {"end_of_word_suffix", nullptr},
                         {"fuse_unk", true},
                         {"byte_fallback", true},
                         {"ignore_merges", false},
                         {"vocab", vocab},
                         {"merges", merges}};
  return {};
}

json TokenizerWriter::settings() const {
  json settings = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (const auto& [key, name] :
       {std::pair("ggml.bos_token_id", "bos_token"), std::pair("ggml.eos_token_id", "eos_token"),
        std::pair("ggml.unknown_token_id", "unk_token"), std::pair("ggml.padding_token_id", "pad_token")})
    if (const std::int64_t token = id(key); token >= 0) settings[name] = tokens_[static_cast<std::size_t>(token)];
  settings["add_bos_token"] = flag("ggml.add_bos_token", false);
  settings["add_eos_token"] = flag("ggml.add_eos_token", false);
  const std::string whole = text("chat_template");
  const std::vector<std::string>* names = array<std::string>("chat_templates");
  if (names == nullptr) {
    if (!whole.empty()) settings["chat_template"] = whole;
    return settings;
  }
  json templates = {{{"name", "default"}, {"template", whole}}};
  for (const std::string& name : *names)
    templates.push_back({{"name", name}, {"template", text("chat_template." + name)}});
  settings["chat_template"] = templates;
  return settings;
}

json TokenizerWriter::generation() const {
  json generation = json::object();
  if (const std::int64_t bos = id("ggml.bos_token_id"); bos >= 0) generation["bos_token_id"] = bos;
  if (const std::int64_t pad = id("ggml.padding_token_id"); pad >= 0) generation["pad_token_id"] = pad;
  json ends = json::array();
  for (const char* key : {"ggml.eos_token_id", "ggml.eot_token_id", "ggml.eom_token_id"})
    if (const std::int64_t end = id(key); end >= 0) ends.push_back(end);
  if (!ends.empty()) generation["eos_token_id"] = ends.size() == 1 ? ends.front() : ends;
  const auto setting = [&](const char* ours, const char* theirs) {
    const auto found = metadata_.find("general.sampling." + std::string(ours));
    if (found == metadata_.end()) return;
    if (const auto* number = std::get_if<float>(&found->second))
      generation[theirs] = json::parse(fmt::format("{}", *number));
    if (const auto* whole = std::get_if<std::int32_t>(&found->second)) generation[theirs] = *whole;
  };
  setting("temp", "temperature");
  setting("top_k", "top_k");
  setting("top_p", "top_p");
  setting("min_p", "min_p");
  setting("penalty_repeat", "repetition_penalty");
  return generation;
}

}  // namespace

Status write_tokenizer(const Metadata& metadata, const std::string& folder) {
  return TokenizerWriter(metadata, folder).run();
}

}  // namespace millrace::convert
