#include "app/server/catalog.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

#include "app/server/file_identity.h"
#include "base/os/file_info.h"
#include "modelfile/gguf.h"
#include "tensor/dtype.h"

namespace millrace::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string short_count(double count) {
  if (count >= 1e9) return fmt::format("{:.1f}B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}K", count / 1e3);
}

/// The type that holds most of the weights; a K type's mixture is what published files call it.
std::string quantization_of(const modelfile::Model& file) {
  std::map<std::string, std::uint64_t> bytes;
  for (const auto& tensor : file.tensors()) bytes[std::string(info(tensor.dtype).name)] += tensor.bytes;
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most == bytes.end()) return "unknown";
  std::string name = most->first;
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  if (name == "Q4_K" || name == "Q5_K") name += "_M";
  return name;
}

Json json_of(const modelfile::Value& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::shared_ptr<const modelfile::Array>>)
          return nullptr;
        else
          return held;
      },
      value);
}

}  // namespace

std::string name_of_file(const std::string& path) {
  std::string name = fs::path(path).stem().string();
  if (const auto part = name.find("-00001-of-"); part != std::string::npos) name.resize(part);
  return name;
}

std::vector<std::string> Catalog::files() const {
  std::vector<std::string> files;
  for (const std::string& path : paths_) {
    std::error_code ignored;
    if (!fs::is_directory(path, ignored)) {
      files.push_back(path);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(path, ignored)) {
      const std::string name = entry.path().filename().string();
      const bool later_part = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
      if (entry.path().extension() == ".gguf" && !later_part) files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

/// Null where the file cannot be read.
const ModelInfo* Catalog::describe(const std::string& path) {
  const auto status = os::file_info(path);
  if (!status.ok()) return nullptr;
  const std::chrono::nanoseconds since_epoch(status->modified_ns);
  const std::string digest = file_identity(path);
  if (const auto found = known_.find(path); found != known_.end() && found->second.digest == digest)
    return &found->second;
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  const auto file = modelfile::Model::open(path, no_words);
  if (!file.ok()) return nullptr;
  ModelInfo info;
  info.name = name_of_file(path) + ":latest";
  info.path = path;
  info.digest = digest;
  info.bytes = file->file_bytes();
  info.modified = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(since_epoch));
  const auto architecture = file->get_string("general.architecture");
  if (architecture.ok()) info.architecture = *architecture;
  double parameters = 0;
  for (const auto& tensor : file->tensors()) parameters += static_cast<double>(tensor.rows() * tensor.cols());
  info.parameter_size = short_count(parameters);
  info.quantization = quantization_of(*file);
  if (const auto length = file->get_int(info.architecture + ".context_length"); length.ok())
    info.context_length = *length;
  if (const auto text = file->get_string("tokenizer.chat_template"); text.ok()) info.chat_template = *text;
  info.metadata = Json::object();
  for (const auto& [key, value] : file->metadata())
    if (key != "tokenizer.chat_template") info.metadata[key] = json_of(value);
  info.metadata["general.parameter_count"] = static_cast<std::uint64_t>(parameters);
  return &(known_[path] = std::move(info));
}

Expected<ModelInfo> Catalog::describe_stored(const store::Manifest& manifest) {
  const ModelInfo* const file = describe(store_.file_path(manifest, manifest.files.front()));
  if (file == nullptr) return error(Code::corrupt, "model '{}' cannot be read; pull it again", manifest.name.text());
  ModelInfo info = *file;
  info.name = manifest.name.text();
  info.digest = manifest.digest();
  info.parameters = Json::parse(manifest.parameters.dump());
  info.messages = Json::parse(manifest.messages.dump());
  info.system = manifest.system;
  info.license = manifest.license;
  info.stored = true;
  info.own_template = !manifest.chat_template.empty();
  if (info.own_template) info.chat_template = manifest.chat_template;
  return info;
}

std::vector<ModelInfo> Catalog::list() {
  const MutexLock lock(mutex_);
  std::vector<ModelInfo> all;
  const auto is_new = [&](const std::string& name) {
    return std::none_of(all.begin(), all.end(), [&](const ModelInfo& info) { return info.name == name; });
  };
  // Of two with one name find() takes the same one.
  for (const std::string& path : files())
    if (const ModelInfo* info = describe(path); info != nullptr && is_new(info->name)) all.push_back(*info);
  if (const auto stored = store_.list(); stored.ok())
    for (const store::Manifest& manifest : *stored)
      if (is_new(manifest.name.text()))
        if (auto info = describe_stored(manifest); info.ok()) all.push_back(std::move(*info));
  return all;
}

Expected<ModelInfo> Catalog::find_given(const std::string& name_or_path) {
  {
    const MutexLock lock(mutex_);
    for (const std::string& path : files())
      if (path == name_or_path)
        if (const ModelInfo* info = describe(path); info != nullptr) return *info;
  }
  return find(name_or_path);
}

Expected<ModelInfo> Catalog::find(const std::string& name) {
  const std::string full = name.find(':') == std::string::npos ? name + ":latest" : name;
  const MutexLock lock(mutex_);
  for (const std::string& path : files()) {
    const std::string found = name_of_file(path);
    if (found + ":latest" != full && found + ".gguf" != name) continue;
    if (const ModelInfo* info = describe(path); info != nullptr) return *info;
  }
  const auto manifest = store_.find(name);
  if (manifest.ok()) return describe_stored(*manifest);
  if (manifest.status().code() == Code::corrupt) return manifest.status();
  return error(Code::not_found, "model '{}' not found", name);
}

}  // namespace millrace::server
