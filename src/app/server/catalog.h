// Which models a server knows: by name, with what clients are told about them.
// Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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
  std::string system;                                                    // a Modelfile's
};

class Catalog {
 public:
  /// `paths`: GGUF files, or folders that hold some.
  explicit Catalog(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  std::vector<ModelInfo> list();
  /// `name` with or without ":latest". Errors: not_found.
  Expected<ModelInfo> find(const std::string& name);

 private:
  std::vector<std::string> files() const;
  const ModelInfo* describe(const std::string& path);

  const std::vector<std::string> paths_;
  std::mutex mutex_;
  std::map<std::string, ModelInfo> known_;  // GUARDED_BY mutex_: by path, as of its size and time
};

}  // namespace millrace::server
