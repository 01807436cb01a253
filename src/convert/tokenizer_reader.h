// The implementation of read_tokenizer(): steps that all kinds of tokenizers share, and those of each kind.
// Thread-safety: one thread calls.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "convert/config.h"
#include "convert/header.h"
#include "convert/json_members.h"
#include "modelfile/gguf_writer.h"
#include "text/vocabulary.h"

namespace millrace::convert {

struct Words {
  std::vector<std::string> tokens;
  std::vector<std::int32_t> types;
  std::optional<std::int64_t> id_of(std::string_view text) const {
    const auto found = ids.find(std::string(text));
    return found == ids.end() ? std::nullopt : std::optional<std::int64_t>(found->second);
  }
  std::unordered_map<std::string, std::int64_t> ids;
};

class TokenizerReader {
 public:
  TokenizerReader(std::string folder, const Config& config, std::int64_t rows, std::string_view pre, Metadata& metadata)
      : folder_(std::move(folder)), config_(config), rows_(rows), pre_(pre), metadata_(metadata) {}

  Status run();

 private:
  std::string path(const char* name) const;
  Expected<nlohmann::json> read_optional(const char* name) const;
  void set(const char* key, modelfile::Value value) { metadata_["tokenizer." + std::string(key)] = std::move(value); }
  void set_id(const char* key, std::int64_t id) { set(key, modelfile::Value(static_cast<std::uint32_t>(id))); }

  Status read_all();
  Status read_word_pieces(const nlohmann::json& model);
  Status set_normalizer();
  Status read_unigram(const nlohmann::json& model);
  Status set_unigram_normalizer();
  void set_arrays();
  void set_pairs();
  std::int64_t token_types() const;
  Status read_words(const nlohmann::json& model);
  Status read_merges(const nlohmann::json& model);
  Status set_pieces(const nlohmann::json& model);
  Status set_specials();
  void set_ends(std::int64_t eos);
  Status set_template();
  void set_sampling();
  bool has_byte_level() const { return holds_type(member(tokenizer_, "pre_tokenizer"), "ByteLevel", 0); }
  static bool holds_type(const nlohmann::json& step, const char* type, int depth);
  Status put(std::int64_t id, std::string text, text::TokenType type);
  std::string special_text(const char* key) const;
  std::optional<bool> adds(const char* key, std::optional<std::int64_t> token, bool front) const;
  Expected<bool> space_before() const;

  const std::string folder_;
  const Config& config_;
  const std::int64_t rows_;
  const std::string_view pre_;
  Metadata& metadata_;
  nlohmann::json tokenizer_, settings_, generation_;
  Words words_;
  std::vector<std::string> merges_;
  std::optional<std::int64_t> bos_, eos_;
};

}  // namespace millrace::convert
