// What the store knows of a model: a small JSON file. A model exists exactly when its manifest does.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "app/store/name.h"
#include "base/json.h"
#include "base/status.h"

namespace millrace::store {

/// A name that does not lead out of its folder and is not hidden.
bool is_safe_file_name(const std::string& name);

struct ModelFile {
  std::string name;         // "model-00001-of-00002.gguf": safe as the name of a file
  std::uint64_t bytes = 0;  // of the whole file
  std::string sha256;       // the blob's name; empty for a file that lies elsewhere
  std::string path = {};    // of a file outside the store; empty for a blob
  bool adapter = false;     // a LoRA adapter (GGUF) that the model is loaded with; never the first file
};

struct Manifest {
  Name name;
  std::string format = "gguf";
  std::vector<ModelFile> files;  // the first one is what is opened
  std::string modified;          // RFC 3339, UTC
  std::string from;              // what it was made of: "hf.co/user/repo:Q4_K_M", a path, a name
  nlohmann::json parameters = nlohmann::json::object();  // Ollama's names; "stop" is an array of strings
  std::string system;                                    // empty: none
  std::string chat_template;                             // Jinja; empty: the file's own
  std::string license;                                   // empty: none given
  nlohmann::json messages = nlohmann::json::array();     // {role, content}: turns a chat begins with

  std::uint64_t bytes() const;
  /// outline_of(to_json(*this)).digest: SHA-256 of what the model is, whatever it is called and whenever it was made.
  std::string digest() const;
};

/// What a list needs of a manifest, read without building its texts.
struct ManifestOutline {
  std::vector<ModelFile> files;
  std::string modified, digest;  // as of Manifest
};

std::string to_json(const Manifest& manifest);
/// Takes a few times the text's bytes at most. Errors: corrupt.
Expected<ManifestOutline> outline_of(std::string_view json);
/// Errors: corrupt (says what is missing or of the wrong kind).
Expected<Manifest> parse_manifest(std::string_view json, const Name& name);

/// Now, as "2026-01-31T12:34:56Z".
std::string now_rfc3339();

}  // namespace millrace::store
