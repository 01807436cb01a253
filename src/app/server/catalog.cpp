#include "app/server/catalog.h"

#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <set>

#include "app/server/file_identity.h"
#include "app/store/adapters.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/calendar.h"
#include "base/os/file_info.h"
#include "base/os/folder.h"
#include "modelfile/gguf.h"
#include "modelfile/mixtures.h"
#include "tensor/dtype.h"
#include "vision/beside.h"

namespace millrace::server {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string short_count(double count) {
  if (count >= 1e9) return fmt::format("{:.1f}B", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.1f}M", count / 1e6);
  return fmt::format("{:.1f}K", count / 1e3);
}

/// What the file calls itself; where it does not say, the type that holds most of the weights.
std::string quantization_of(const modelfile::Model& file) {
  if (const auto type = file.get_int("general.file_type"); type.ok())
    if (const std::string_view name = modelfile::file_type_name(*type); !name.empty()) return std::string(name);
  const auto bytes = file.bytes_by_type();
  const auto most = std::max_element(bytes.begin(), bytes.end(),
                                     [](const auto& one, const auto& other) { return one.second < other.second; });
  if (most == bytes.end()) return "unknown";
  std::string name(info(most->first).name);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return name;
}

constexpr std::uint64_t kMostOutlineBytes = 256 << 10;  // of a header, while a file is described
constexpr std::size_t kMostKnown = 1024;                // files and manifests that are remembered
constexpr std::uint64_t kBytesAModel = 3 << 10;         // in a list and in the answer made of it
constexpr std::uint64_t kCopiesOfTexts = 5;  // of a file: as read, as JSON, as the answer's text, which grows

bool is_outline_key(std::string_view key) {
  return key == "general.architecture" || key == "general.file_type" || key == "general.alignment" ||
         key.starts_with("split.") || key.ends_with(".context_length") || key.ends_with(".pooling_type") ||
         key.ends_with(".attention.causal");
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
    const Status unread = os::for_each_name(path, [&](const std::string& name) {
      const bool later_part = name.find("-of-") != std::string::npos && name.find("-00001-of-") == std::string::npos;
      if (fs::path(name).extension() == ".gguf" && !later_part && !vision::is_mmproj_name(name))
        files.push_back((fs::path(path) / name).string());
    });
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

std::optional<std::optional<ModelInfo>> Catalog::known(const std::string& path, const std::string& identity) {
  const MutexLock lock(mutex_);
  const auto found = known_.find(path);
  if (found == known_.end() || found->second.identity != identity) return std::nullopt;
  return found->second.info;
}

void Catalog::know(const std::string& path, const std::string& identity, const std::optional<ModelInfo>& info) {
  const MutexLock lock(mutex_);
  if (known_.size() >= kMostKnown) known_.clear();
  known_[path] = {identity, info};
}

namespace {

Expected<ModelInfo> read_outline(const std::string& path) {
  const auto status = os::file_info(path);
  if (!status.ok()) return error(Code::not_found, "{}: there is no such file", path);
  const std::chrono::nanoseconds since_epoch(status->modified_ns);
  GrantedBytes memory(kMostOutlineBytes, nullptr);
  modelfile::OpenOptions outline;
  outline.outline = true;
  outline.wanted = is_outline_key;
  outline.memory = &memory;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(path, outline));
  ModelInfo info;
  info.name = name_of_file(path) + ":latest";
  info.path = path;
  info.bytes = file.file_bytes();
  info.modified = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(since_epoch));
  if (const auto architecture = file.get_string("general.architecture"); architecture.ok())
    info.architecture = architecture->substr(0, 64);
  info.parameter_count = file.elements();
  info.parameter_size = short_count(static_cast<double>(info.parameter_count));
  info.quantization = quantization_of(file);
  const auto causal = file.get_bool_or(info.architecture + ".attention.causal", true);
  info.embeds = file.has(info.architecture + ".pooling_type") || (causal.ok() && !*causal);
  if (const auto length = file.get_int(info.architecture + ".context_length"); length.ok())
    info.context_length = *length;
  return info;
}

}  // namespace

/// Nothing where the file cannot be read.
std::optional<ModelInfo> Catalog::describe(const std::string& path) {
  const std::string identity = file_identity(path);
  if (identity.empty()) return std::nullopt;
  if (const auto before = known(path, identity)) return *before;
  std::optional<ModelInfo> info;
  auto read = read_outline(path);
  if (!read.ok()) log::warn("{} is not listed: {}", path, read.status().message());
  if (read.ok()) {
    info = std::move(*read);
    info->digest = identity;
  }
  know(path, identity, info);
  return info;
}

/// As its file, by another name.
std::optional<ModelInfo> Catalog::describe_stored(const store::Name& name, const store::ManifestOutline& outline) {
  std::optional<ModelInfo> info = describe(store_.file_path(name, outline.files.front()));
  if (!info) return info;
  info->name = name.text();
  for (const store::ModelFile& file : outline.files) {
    if (&file != &outline.files.front() && vision::is_mmproj_name(file.name)) info->mmproj_bytes += file.bytes;
    if (file.adapter) info->adapter_bytes += file.bytes;
  }
  info->adapters = store::adapters_of(store_, name, outline.files);
  info->digest = outline.digest;
  info->stored = true;
  if (const auto modified = os::parse_utc(outline.modified); modified)
    info->modified = std::chrono::system_clock::from_time_t(*modified);
  return info;
}

Expected<ModelInfo> Catalog::outline_stored(const store::Name& name, WorkGrant* memory) {
  const std::string manifest = store_.manifest_path(name), identity = file_identity(manifest);
  // What is known of a manifest is as old as its file, which may be written anew below it.
  store::ManifestOutline outline;
  if (const auto before = known(manifest, identity); before && *before) {
    if (const auto file = describe((*before)->path); file && file->bytes == (*before)->bytes) return **before;
  }
  MR_ASSIGN_OR_RETURN(outline, store_.outline(name, memory));
  const std::optional<ModelInfo> info = describe_stored(name, outline);
  if (!info) return error(Code::corrupt, "model '{}' cannot be read; pull it again", name.text());
  know(manifest, identity, info);
  return *info;
}

Expected<std::vector<ModelInfo>> Catalog::list(WorkGrant* memory) {
  std::vector<ModelInfo> all;
  std::set<std::string> names;  // of two models with one name find() takes the same one
  const auto add = [&](ModelInfo info) -> Status {
    if (!names.insert(info.name).second) return {};
    if (memory != nullptr && !memory->take(kBytesAModel))
      return error(Code::out_of_budget, "the list of models takes more memory than is free; try again later");
    all.push_back(std::move(info));
    return {};
  };
  for (const std::string& path : files())
    if (std::optional<ModelInfo> info = describe(path)) MR_RETURN_IF_ERROR(add(std::move(*info)));
  const auto stored = store_.names();
  if (!stored.ok()) {
    log::warn("{}", stored.status().message());
    return all;
  }
  const auto files_end = static_cast<std::ptrdiff_t>(all.size());
  for (const store::Name& name : *stored) {
    auto info = outline_stored(name, memory);
    if (!info.ok() && info.status().code() == Code::out_of_budget) return info.status();
    if (!info.ok()) log::warn("{}", info.status().message());
    if (info.ok()) MR_RETURN_IF_ERROR(add(std::move(*info)));
  }
  std::sort(all.begin() + files_end, all.end(), [](const ModelInfo& a, const ModelInfo& b) {
    return a.modified != b.modified ? a.modified > b.modified : a.name < b.name;
  });
  return all;
}

Expected<ModelInfo> Catalog::find_given(const std::string& name_or_path) {
  for (const std::string& path : files())
    if (path == name_or_path)
      if (std::optional<ModelInfo> info = describe(path)) return std::move(*info);
  return find_outline(name_or_path);
}

/// A file that the server was given, by its name.
std::optional<ModelInfo> Catalog::given_file(const std::string& name) {
  const std::string full = name.find(':') == std::string::npos ? name + ":latest" : name;
  for (const std::string& path : files()) {
    const std::string found = name_of_file(path);
    if (found + ":latest" != full && found + ".gguf" != name) continue;
    if (std::optional<ModelInfo> info = describe(path)) return info;
  }
  return std::nullopt;
}

namespace {

Status not_found(const std::string& name, const Status& status) {
  if (status.code() == Code::corrupt || status.code() == Code::out_of_budget) return status;
  return error(Code::not_found, "model '{}' not found", name);
}

}  // namespace

Expected<ModelInfo> Catalog::find_outline(const std::string& name) {
  if (std::optional<ModelInfo> info = given_file(name)) return std::move(*info);
  const auto located = store_.locate(name);
  auto info = located.ok() ? outline_stored(*located, nullptr) : Expected<ModelInfo>(located.status());
  return info.ok() ? info : not_found(name, info.status());
}

Expected<ModelInfo> Catalog::find(const std::string& name, WorkGrant* memory) {
  auto info = find_outline(name);
  if (!info.ok() || !info->stored) return info;
  auto manifest = store_.find(info->name, memory);
  if (!manifest.ok()) return not_found(name, manifest.status());
  info->parameters = Json::parse(manifest->parameters.dump());
  info->messages = Json::parse(manifest->messages.dump());
  info->system = std::move(manifest->system);
  info->license = std::move(manifest->license);
  info->chat_template = std::move(manifest->chat_template);
  return info;
}

Expected<FileTexts> Catalog::texts(const ModelInfo& model, WorkGrant& memory) {
  GrantedBytes held(UINT64_MAX, &memory);
  modelfile::OpenOptions options;
  options.outline = true;
  options.memory = &held;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(model.path, options));
  // The grant of what was read ends with it; what is made of it is charged until the request is answered.
  if (!memory.take(held.used() * kCopiesOfTexts))
    return error(Code::out_of_budget, "model '{}': its metadata takes {} of memory, which is not free", model.name,
                 format_bytes(held.used() * kCopiesOfTexts));
  FileTexts texts;
  if (const auto text = file.get_string("tokenizer.chat_template"); text.ok()) texts.chat_template = *text;
  Json::object_t members;  // keys of a file occur once: none is looked up among the others
  for (const auto& [key, value] : file.metadata())
    if (key != "tokenizer.chat_template") members.emplace_back(key, json_of(value));
  members.emplace_back("general.parameter_count", model.parameter_count);
  texts.metadata = std::move(members);
  return texts;
}

}  // namespace millrace::server
