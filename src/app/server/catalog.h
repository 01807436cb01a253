// Which models a server knows: those of the store and those given by path, by name, with what clients are told about
// them. Files are read without a lock, and what they hold is charged to whoever asks.
// Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "app/generate/job.h"
#include "app/store/store.h"
#include "base/json.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/work_grant.h"
#include "engine/model_manager.h"

namespace millrace::server {

/// Small: list() makes one of each model.
struct ModelInfo {
  std::string name;    // "demo-moe-q4_k_m:latest"
  std::string path;    // of the GGUF file (the first part)
  std::string digest;  // 64 hex digits
  std::uint64_t bytes = 0;
  std::uint64_t mmproj_bytes = 0;  // of the mmproj file that the store keeps with it
  std::uint64_t adapter_bytes = 0;
  std::vector<engine::AdapterOptions> adapters;  // that are part of it
  std::chrono::system_clock::time_point modified;
  std::string architecture, parameter_size, quantization;  // "qwen3moe", "12.3M", "Q4_K_M"
  std::int64_t context_length = 0;
  std::uint64_t parameter_count = 0;
  bool embeds = false;  // its file names a pooling, or is an encoder's
  bool stored = false;  // of the store: may be removed
  std::string adapter;  // of model_meant() alone: the one that the name which was asked for has behind a colon

  // Of a Modelfile; only find() reads them.
  nlohmann::ordered_json parameters = nlohmann::ordered_json::object();  // defaults
  std::string system, license, chat_template;
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();  // a chat begins with them

  engine::ModelManager::Source source() const { return {name, path, adapters}; }
  /// What the Modelfile gives every conversation.
  generate::Defaults defaults() const { return {system, chat_template, messages}; }
};

/// What a model's file says of itself.
struct FileTexts {
  nlohmann::ordered_json metadata;  // without its arrays and its chat template
  std::string chat_template;
};

/// What a GGUF file is called: its name without ".gguf" and the number of a part.
std::string name_of_file(const std::string& path);

class Catalog {
 public:
  /// `paths`: GGUF files, or folders that hold some.
  Catalog(std::vector<std::string> paths, std::string store_root)
      : paths_(std::move(paths)), store_(std::move(store_root)) {}

  /// Files that cannot be read are logged and left out. `memory` is charged for the list and for an answer made of it.
  /// Errors: out_of_budget.
  Expected<std::vector<ModelInfo>> list(WorkGrant* memory);
  /// `name` with or without ":latest". A path is no name: a client of the network learns nothing of the files here.
  /// `memory` is charged for what the store keeps with the model. Errors: not_found, corrupt, out_of_budget.
  Expected<ModelInfo> find(const std::string& name, WorkGrant* memory);
  /// As find(), without what a Modelfile gives. Errors: not_found, corrupt.
  Expected<ModelInfo> find_outline(const std::string& name);
  /// The same for who started the server: the path of a file it was given, or a name.
  Expected<ModelInfo> find_given(const std::string& name_or_path);
  /// Reads the model's file. `memory` is charged for the texts and for an answer made of them. Errors: those of
  /// Model::open.
  Expected<FileTexts> texts(const ModelInfo& model, WorkGrant& memory);
  store::Store& store() { return store_; }

 private:
  std::vector<std::string> files() const;
  std::optional<ModelInfo> given_file(const std::string& name);
  std::optional<ModelInfo> describe(const std::string& path);
  std::optional<ModelInfo> describe_stored(const store::Name& name, const store::ManifestOutline& outline);
  Expected<ModelInfo> outline_stored(const store::Name& name, WorkGrant* memory);
  std::optional<std::optional<ModelInfo>> known(const std::string& path, const std::string& identity);
  void know(const std::string& path, const std::string& identity, const std::optional<ModelInfo>& info);

  struct Known {
    std::string identity;           // of the file as it was read
    std::optional<ModelInfo> info;  // none: it cannot be read
  };
  const std::vector<std::string> paths_;
  store::Store store_;
  Mutex mutex_;                                               // never held while a file is read
  std::map<std::string, Known> known_ MR_GUARDED_BY(mutex_);  // by the path of a GGUF file or a manifest
};

}  // namespace millrace::server
