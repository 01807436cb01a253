// Which models a server knows: those of the store and those given by path, by name, with what clients are told about
// them.
// Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "app/generate/job.h"
#include "app/store/store.h"
#include "base/mutex.h"
#include "base/status.h"

namespace millrace::server {

struct ModelInfo {
  std::string name;    // "demo-moe-q4_k_m:latest"
  std::string path;    // of the GGUF file (the first part)
  std::string digest;  // 64 hex digits
  std::uint64_t bytes = 0;
  std::chrono::system_clock::time_point modified;
  std::string architecture, parameter_size, quantization;  // "qwen3moe", "12.3M", "Q4_K_M"
  std::string chat_template;
  std::int64_t context_length = 0;
  nlohmann::ordered_json metadata;                                       // of the file, without its arrays
  nlohmann::ordered_json parameters = nlohmann::ordered_json::object();  // defaults of a Modelfile
  std::string system, license;                                           // a Modelfile's
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();     // a Modelfile's: a chat begins with them
  bool own_template = false;  // chat_template is a Modelfile's, not the file's
  bool stored = false;        // of the store: may be removed

  /// What the Modelfile gives every conversation.
  generate::Defaults defaults() const { return {system, own_template ? chat_template : std::string(), messages}; }
};

/// What a GGUF file is called: its name without ".gguf" and the number of a part.
std::string name_of_file(const std::string& path);

class Catalog {
 public:
  /// `paths`: GGUF files, or folders that hold some.
  Catalog(std::vector<std::string> paths, std::string store_root)
      : paths_(std::move(paths)), store_(std::move(store_root)) {}

  std::vector<ModelInfo> list();
  /// `name` with or without ":latest". A path is no name: a client of the network learns nothing of the files here.
  /// Errors: not_found, corrupt.
  Expected<ModelInfo> find(const std::string& name);
  /// The same for who started the server: the path of a file it was given, or a name.
  Expected<ModelInfo> find_given(const std::string& name_or_path);
  store::Store& store() { return store_; }

 private:
  Expected<ModelInfo> describe_stored(const store::Manifest& manifest) MR_REQUIRES(mutex_);
  std::vector<std::string> files() const;
  const ModelInfo* describe(const std::string& path) MR_REQUIRES(mutex_);

  const std::vector<std::string> paths_;
  store::Store store_;
  Mutex mutex_;
  std::map<std::string, ModelInfo> known_ MR_GUARDED_BY(mutex_);  // by path, as of its size and time
};

}  // namespace millrace::server
