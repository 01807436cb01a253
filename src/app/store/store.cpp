#include "app/store/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "app/store/adapters.h"
#include "app/store/aliases.h"
#include "app/store/digest.h"
#include "app/store/files.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/file_info.h"
#include "base/os/folder.h"
#include "base/os/user_folders.h"
#include "base/words.h"
#include "modelfile/gguf.h"
#include "vision/beside.h"

namespace millrace::store {

namespace fs = std::filesystem;

namespace {

/// Bytes of a regular file, following links; nullopt if there is none.
std::optional<std::uint64_t> file_bytes(const std::string& path) {
  const auto info = os::file_info(path);
  if (!info.ok() || !info->is_regular()) return std::nullopt;
  return info->bytes;
}

bool looks_like_a_path(const std::string& given) {
  const fs::path path = given;
  const std::string text = path.generic_string();  // on Windows with / for \, and D:/ is absolute
  return path.is_absolute() || text.starts_with('/') || text.starts_with("./") || text.starts_with("../") ||
         text.ends_with(".gguf");
}

/// The files of a GGUF model where they lie, all splits.
Expected<std::vector<ModelFile>> files_at(const std::string& path) {
  modelfile::OpenOptions splits;  // what else it holds nobody asks here
  splits.outline = true;
  splits.wanted = [](std::string_view key) { return key.starts_with("split.") || key == "general.alignment"; };
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(path, splits));
  std::vector<ModelFile> files;
  for (const std::string& each : model.paths()) {
    ModelFile file;
    file.path = fs::absolute(each).lexically_normal().string();
    file.name = fs::path(each).filename().string();
    file.bytes = file_bytes(each).value_or(0);
    files.push_back(std::move(file));
  }
  return files;
}

/// A recipe's mmproj file is found where every other one is: in the model's folder. Errors: invalid_argument, and those
/// of vision::check_fits.
Status check_mmproj(const fs::path& model, const fs::path& mmproj) {
  const auto folder = [](const fs::path& path) { return fs::absolute(path).lexically_normal().parent_path(); };
  if (!file_bytes(model.string()) || folder(model) != folder(mmproj))
    return error(Code::invalid_argument, "FROM {}: the mmproj file must be in the folder of the model's file",
                 mmproj.string());
  return vision::check_fits(mmproj.string(), model.string()).with_context("FROM " + mmproj.string());
}

/// Settings of `base` that the recipe does not set stay.
void lay_over(Manifest& base, const Recipe& recipe) {
  for (const auto& [key, value] : recipe.parameters.items()) base.parameters[key] = value;
  if (!recipe.system.empty()) base.system = recipe.system;
  if (!recipe.chat_template.empty()) base.chat_template = recipe.chat_template;
  if (!recipe.license.empty()) base.license = recipe.license;
  if (recipe.messages.empty()) return;
  base.messages = nlohmann::json::array();
  for (const auto& message : recipe.messages)  // what else a client sends with them is not stored
    base.messages.push_back({{"role", message["role"]}, {"content", message["content"]}});
}

/// Links of what the name stood for before.
void remove_other_links(const fs::path& folder, const Manifest& manifest) {
  std::error_code failure;
  std::vector<fs::path> others;
  const Status ignored = os::for_each_name(folder.string(), [&](const std::string& name) {
    const auto is_this = [&](const ModelFile& file) { return file.path.empty() && file.name == name; };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), is_this)) others.push_back(folder / name);
  });
  for (const fs::path& other : others) fs::remove(other, failure);
}

/// The name of a model that is made here. A file's name is none: `resolve` would take it for the file.
Expected<Name> new_name(const std::string& text) {
  MR_ASSIGN_OR_RETURN(Name name, parse_name(text));
  if (looks_like_a_path(name.repo) || looks_like_a_path(name.tag))
    return error(Code::invalid_argument, "'{}' would be taken for a file; leave .gguf out of the name", name.text());
  return name;
}

std::vector<std::string> blobs_of(const std::vector<ModelFile>& files) {
  std::vector<std::string> blobs;
  for (const ModelFile& file : files)
    if (file.path.empty()) blobs.push_back(file.sha256);
  return blobs;
}

}  // namespace

std::string Store::default_root() {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (std::string root = variable("MILLRACE_MODELS"); !root.empty()) return root;
  const std::string data = os::user_folder(os::UserFolder::data);
  return (data.empty() ? "/var/lib" : data) + "/millrace/models";
}

std::string Store::partial_path(const Name& name) const {
  return root_ + "/partial/" + (name.user.empty() ? "-" : name.user) + "--" + name.repo + "--" + name.tag;
}

std::string Store::file_path(const Name& model, const ModelFile& file) const {
  return file.path.empty() ? root_ + "/models/" + model.folder() + "/" + file.name : file.path;
}

namespace {

/// What reading a manifest takes for each byte of its text at most: as values, with the copies on the way; and as an
/// outline. Measured with messages of a few letters, which take most.
constexpr std::uint64_t kBytesAByte = 24, kOutlineBytesAByte = 4;

Status take_memory(const std::string& path, const Name& name, std::uint64_t bytes_a_byte, WorkGrant* grant) {
  const std::uint64_t wanted = std::min(file_bytes(path).value_or(0), kMostManifestBytes) * bytes_a_byte;
  if (grant == nullptr || grant->take(wanted)) return {};
  return error(Code::out_of_budget, "model '{}': what is stored with it takes {} of memory, which is not free",
               name.text(), format_bytes(wanted));
}

}  // namespace

Expected<Manifest> Store::read(const Name& name, WorkGrant* grant) const {
  const std::string path = manifest_path(name);
  MR_RETURN_IF_ERROR(take_memory(path, name, kBytesAByte, grant));
  MR_ASSIGN_OR_RETURN(const std::string text, read_whole(path, kMostManifestBytes));
  auto manifest = parse_manifest(text, name);
  if (!manifest.ok()) return manifest.status().with_context(path);
  return manifest;
}

Expected<ManifestOutline> Store::outline(const Name& name, WorkGrant* grant) const {
  const std::string path = manifest_path(name);
  MR_RETURN_IF_ERROR(take_memory(path, name, kOutlineBytesAByte, grant));
  const auto text = read_whole(path, kMostManifestBytes);
  auto outline = text.ok() ? outline_of(*text) : Expected<ManifestOutline>(text.status());
  if (grant != nullptr) grant->give_back(file_bytes(path).value_or(0) * kOutlineBytesAByte);
  if (!outline.ok()) return outline.status().with_context(path);
  return outline;
}

Expected<std::vector<Name>> Store::names() const {
  std::vector<Name> all;
  const std::string top = root_ + "/manifests";
  Name name;
  const auto add = [&](const std::string& file) {
    if (fs::path(file).extension() != ".json") return;
    name.tag = fs::path(file).stem().string();
    if (is_safe_part(name.tag)) all.push_back(name);
  };
  const Status read = os::for_each_name(top, [&](const std::string& user) {
    name.user = user == "-" ? std::string() : user;
    if (!name.user.empty() && !is_safe_part(user)) return;
    const Status users = os::for_each_name(fmt::format("{}/{}", top, user), [&](const std::string& repo) {
      name.repo = repo;
      if (is_safe_part(repo)) const Status files = os::for_each_name(fmt::format("{}/{}/{}", top, user, repo), add);
    });
  });
  if (!read.ok() && read.code() != Code::not_found)
    return error(Code::io_error, "{}: cannot read this folder: {}", top, read.message());
  return all;
}

Expected<std::vector<Manifest>> Store::list() const {
  MR_ASSIGN_OR_RETURN(const std::vector<Name> all, names());
  std::vector<Manifest> models;
  for (const Name& name : all) {
    auto manifest = read(name);
    if (manifest.ok()) {
      models.push_back(std::move(*manifest));
    } else if (manifest.status().code() != Code::not_found) {
      log::warn("{}", manifest.status().message());
    }
  }
  std::sort(models.begin(), models.end(), [](const Manifest& a, const Manifest& b) {
    return a.modified != b.modified ? a.modified > b.modified : a.name.text() < b.name.text();
  });
  return models;
}

/// The name of a model that is here. Errors: as find().
Expected<Name> Store::locate(const Name& wanted) const {
  MR_ASSIGN_OR_RETURN(const std::vector<Name> all, names());
  std::vector<Name> same_repo;
  for (const Name& name : all) {
    if (!same_word(name.user, wanted.user) || !same_word(name.repo, wanted.repo)) continue;
    if (same_word(name.tag, wanted.tag)) return name;
    same_repo.push_back(name);
  }
  if (!wanted.tag_given && same_repo.size() == 1) return same_repo.front();
  if (!wanted.tag_given && !same_repo.empty()) {
    std::string choices;
    for (const Name& name : same_repo) choices += (choices.empty() ? "" : ", ") + name.text();
    return error(Code::not_found, "model '{}' has several variants; name one: {}", wanted.text(), choices);
  }
  return error(Code::not_found, "model '{}' not found; {}", wanted.text(),
               wanted.user.empty() ? std::string("'millrace list' shows what is here")
                                   : fmt::format("fetch it with 'millrace pull {}'", wanted.text()));
}

Expected<Name> Store::locate(const std::string& name) const {
  MR_ASSIGN_OR_RETURN(const Name parsed, parse_name(name));
  auto here = locate(parsed);
  const bool missing = here.status().code() == Code::not_found && parsed.user.empty();
  const std::string target = missing ? alias_of(name, root_) : "";
  if (target.empty()) return here;
  MR_ASSIGN_OR_RETURN(const Name stands_for, parse_name(target));
  here = locate(stands_for);
  if (!here.ok())
    return error(Code::not_found, "model '{0}' not found; fetch it with 'millrace pull {0}' (hf.co/{1})", name, target);
  return here;
}

Expected<Manifest> Store::find(const std::string& name, WorkGrant* grant) const {
  MR_ASSIGN_OR_RETURN(const Name here, locate(name));
  return read(here, grant);
}

Status Store::check_files(const Manifest& manifest) const {
  for (const ModelFile& file : manifest.files) {
    const std::string path = file_path(manifest.name, file);
    const auto bytes = file_bytes(path);
    if (!bytes)
      return error(Code::corrupt, "model '{}': its file {} is gone; {} the model again", manifest.name.text(), path,
                   file.path.empty() ? "pull" : "create");
    if (*bytes != file.bytes)
      return error(Code::corrupt, "model '{}': its file {} has {} bytes instead of {}; {} the model again",
                   manifest.name.text(), path, *bytes, file.bytes, file.path.empty() ? "pull" : "create");
  }
  return {};
}

Expected<Resolved> Store::resolve(const std::string& name_or_path) const {
  Resolved resolved;
  if (!is_hub_address(name_or_path) && (looks_like_a_path(name_or_path) || file_bytes(name_or_path))) {
    resolved.path = name_or_path;
    return resolved;
  }
  MR_ASSIGN_OR_RETURN(resolved.manifest, find(name_or_path));
  MR_RETURN_IF_ERROR(check_files(resolved.manifest));
  resolved.named = true;
  resolved.path = file_path(resolved.manifest.name, resolved.manifest.files.front());
  return resolved;
}

/// REQUIRES: the lock of the root is held. The links come first: a manifest never names what is not there.
Status Store::write_model(const Manifest& manifest) {
  const fs::path folder = root_ + "/models/" + manifest.name.folder();
  const fs::path target = manifest_path(manifest.name);
  MR_RETURN_IF_ERROR(make_folders(folder.string()));
  MR_RETURN_IF_ERROR(make_folders(target.parent_path().string()));
  for (const ModelFile& file : manifest.files) {
    if (!file.path.empty()) continue;
    const fs::path link = folder / file.name, fresh = folder / (".new-" + file.name);
    std::error_code ignored;
    fs::remove(fresh, ignored);
    Status linked = os::link_file("../../../../blobs/sha256-" + file.sha256, fresh.string());
    if (linked.ok()) linked = os::replace_file(fresh.string(), link.string());
    MR_RETURN_IF_ERROR(named(link.string(), "link the model's file", linked));
  }
  remove_other_links(folder, manifest);
  MR_RETURN_IF_ERROR(sync_folder(folder.string()));
  return write_whole(target.string(), to_json(manifest));
}

Status Store::publish(const Manifest& manifest) {
  MR_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(root_, true));
  for (const ModelFile& file : manifest.files)
    if (file.path.empty() && file_bytes(blob_path(file.sha256)) != file.bytes)
      return error(Code::io_error, "{} is not whole; pull the model again", blob_path(file.sha256));
  std::vector<std::string> old_blobs;
  if (const auto old = outline(manifest.name); old.ok()) old_blobs = blobs_of(old->files);
  MR_RETURN_IF_ERROR(write_model(manifest));
  collect_garbage(old_blobs);
  return {};
}

/// REQUIRES: the lock of the root is held. Blobs among the candidates that no manifest names are removed; a manifest
/// that cannot be read might name any, so that nothing is removed then.
void Store::collect_garbage(const std::vector<std::string>& candidates) {
  const auto all = names();
  if (!all.ok()) return;
  std::set<std::string> used;
  for (const Name& name : *all) {
    const auto manifest = outline(name);
    if (!manifest.ok()) return;
    for (const std::string& blob : blobs_of(manifest->files)) used.insert(blob);
  }
  std::error_code ignored;
  for (const std::string& blob : candidates)
    if (!used.contains(blob)) fs::remove(blob_path(blob), ignored);
}

/// What the model's links lead to: known even where its manifest cannot be read.
std::vector<std::string> Store::linked_blobs(const Name& name) const {
  constexpr std::string_view prefix = "sha256-";
  std::set<std::pair<std::uint64_t, std::uint64_t>> linked;  // volume, number: a link may be symbolic or hard
  std::vector<std::string> blobs;
  const std::string links = root_ + "/models/" + name.folder(), all = root_ + "/blobs";
  Status ignored = os::for_each_name(links, [&](const std::string& link) {
    if (const auto info = os::file_info((fs::path(links) / link).string()); info.ok())
      linked.emplace(info->volume, info->number);
  });
  ignored = os::for_each_name(all, [&](const std::string& blob) {
    if (!blob.starts_with(prefix) || !is_sha256(blob.substr(prefix.size()))) return;
    if (const auto info = os::file_info((fs::path(all) / blob).string());
        info.ok() && linked.contains({info->volume, info->number}))
      blobs.push_back(blob.substr(prefix.size()));
  });
  return blobs;
}

std::string Store::share_path(const Name& name) const {
  return fmt::format("{}/shares/{}--{}--{}", root_, name.user, name.repo, name.tag);
}

std::vector<StoredShares> Store::shares() const {
  std::map<std::string, StoredShares> found;
  const fs::path top = root_ + "/shares";
  Status ignored = os::for_each_name(top.string(), [&](const std::string& numbered) {
    const fs::path folder = top / numbered;
    const std::string name = folder.stem().string();  // without the number
    const auto repo = name.find("--"), tag = name.rfind("--");
    std::error_code failure;
    if (!fs::is_directory(folder, failure) || repo == std::string::npos || tag == repo) return;
    StoredShares& share = found[name];
    share.name =
        fmt::format("{}/{}:{}", name.substr(0, repo), name.substr(repo + 2, tag - repo - 2), name.substr(tag + 2));
    ++share.folders;
    const Status unread = os::for_each_name(folder.string(), [&](const std::string& file) {
      if (const auto info = os::file_info((folder / file).string()); info.ok()) share.bytes += info->disk_bytes;
    });
  });
  std::vector<StoredShares> all;
  for (auto& [folder, share] : found) all.push_back(std::move(share));
  return all;
}

/// Whether there were any. Errors: io_error.
Expected<bool> Store::remove_shares(const Name& name) {
  const fs::path base = share_path(name);
  std::vector<fs::path> folders;
  const Status ignored = os::for_each_name(base.parent_path().string(), [&](const std::string& found) {
    if (fs::path(found).stem() == base.filename()) folders.push_back(base.parent_path() / found);
  });
  for (const fs::path& folder : folders) {
    auto lock = FolderLock::take(folder.string(), false);
    if (!lock.ok()) return lock.status().with_context("a process of a cluster uses a part of " + name.text());
    MR_RETURN_IF_ERROR(lock->remove());
  }
  return !folders.empty();
}

Status Store::remove(const std::string& text) {
  MR_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(root_, true));
  MR_ASSIGN_OR_RETURN(const Name wanted, parse_name(text));
  MR_ASSIGN_OR_RETURN(const bool had_shares, remove_shares(wanted));
  const auto located = locate(wanted);
  if (!located.ok()) return had_shares ? Status() : located.status();
  const Name& name = *located;
  const auto manifest = outline(name);
  const std::vector<std::string> blobs = manifest.ok() ? blobs_of(manifest->files) : linked_blobs(name);
  const fs::path path = manifest_path(name);
  std::error_code failure;
  fs::remove(path, failure);
  if (failure) return error(Code::io_error, "{}: cannot remove it: {}", path.string(), failure.message());
  MR_RETURN_IF_ERROR(sync_folder(path.parent_path().string()));
  fs::remove_all(root_ + "/models/" + name.folder(), failure);
  collect_garbage(blobs);
  fs::remove(path.parent_path(), failure);  // folders that are empty now
  fs::remove(path.parent_path().parent_path(), failure);
  return {};
}

Status Store::copy(const std::string& from, const std::string& to) {
  MR_ASSIGN_OR_RETURN(const Name target, new_name(to));
  MR_ASSIGN_OR_RETURN(Manifest manifest, find(from));
  manifest.name = target;
  manifest.modified = now_rfc3339();
  return publish(manifest);
}

Expected<Manifest> Store::create(const std::string& name, const Recipe& recipe, const std::string& folder) {
  const fs::path beside = fs::path(folder) / recipe.from;
  if (!recipe.mmproj.empty()) MR_RETURN_IF_ERROR(check_mmproj(beside, fs::path(folder) / recipe.mmproj));
  Recipe located = recipe;
  for (AdapterSource& adapter : located.adapters) adapter.path = (fs::path(folder) / adapter.path).string();
  return looks_like_a_path(recipe.from) || file_bytes(beside.string())
             ? create_from_file(name, located, beside.lexically_normal().string())
             : create_from_name(name, located, recipe.from);
}

Expected<Manifest> Store::create_from_name(const std::string& text, const Recipe& recipe, const std::string& base,
                                           WorkGrant* memory) {
  MR_ASSIGN_OR_RETURN(const Name name, new_name(text));
  MR_ASSIGN_OR_RETURN(Manifest manifest, find(base));
  MR_RETURN_IF_ERROR(check_files(manifest));
  manifest.from = manifest.name.text();
  return create(name, recipe, std::move(manifest), memory);
}

Expected<Manifest> Store::create_from_file(const std::string& text, const Recipe& recipe, const std::string& path,
                                           WorkGrant* memory) {
  MR_ASSIGN_OR_RETURN(const Name name, new_name(text));
  Manifest manifest;
  MR_ASSIGN_OR_RETURN(manifest.files, files_at(path));
  manifest.from = manifest.files.front().path;
  return create(name, recipe, std::move(manifest), memory);
}

namespace {

/// Whether a GGUF file holds a vision tower, not a model. Errors: those of Model::open.
Expected<bool> holds_tower(const std::string& path) {
  modelfile::OpenOptions outline;
  outline.outline = true;
  outline.wanted = [](std::string_view key) { return key == "general.architecture" || key.starts_with("split."); };
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(path, outline));
  const auto architecture = model.get_string("general.architecture");
  return architecture.ok() && *architecture == "clip";
}

}  // namespace

Expected<Manifest> Store::create_from_blobs(const std::string& text, const Recipe& recipe, std::vector<ModelFile> files,
                                            WorkGrant* memory) {
  MR_ASSIGN_OR_RETURN(const Name name, new_name(text));
  Manifest manifest;
  std::optional<ModelFile> mmproj;
  for (ModelFile& file : files) {
    const std::string path = blob_path(file.sha256);
    const auto bytes = file_bytes(path);
    if (!bytes) return error(Code::not_found, "there is no blob sha256:{}; upload it first", file.sha256);
    file.bytes = *bytes;
    MR_ASSIGN_OR_RETURN(const bool is_tower, holds_tower(path));
    if (is_tower && !vision::is_mmproj_name(file.name)) file.name = "mmproj-" + file.name;
    if (is_tower && files.size() > 1)
      mmproj = std::move(file);
    else
      manifest.files.push_back(std::move(file));
  }
  if (manifest.files.size() != 1)
    return error(Code::invalid_argument,
                 "files: wants one GGUF file, and maybe its mmproj file; 'millrace merge' makes one of several parts");
  const std::string model_path = blob_path(manifest.files.front().sha256);
  if (const auto opened = files_at(model_path); !opened.ok()) return opened.status();
  manifest.from = manifest.files.front().name;
  if (mmproj) MR_RETURN_IF_ERROR(vision::check_fits(blob_path(mmproj->sha256), model_path).with_context(mmproj->name));
  if (mmproj) manifest.files.push_back(std::move(*mmproj));
  return create(name, recipe, std::move(manifest), memory);
}

/// Nothing is stored that could not be read again.
Expected<Manifest> Store::create(const Name& name, const Recipe& recipe, Manifest manifest, WorkGrant* memory) {
  MR_RETURN_IF_ERROR(check_template(recipe.chat_template));
  MR_RETURN_IF_ERROR(check_messages(recipe.messages));
  Recipe checked = recipe;
  MR_ASSIGN_OR_RETURN(checked.parameters, check_parameters(recipe.parameters));
  lay_over(manifest, checked);
  const ModelFile& model = manifest.files.front();
  const std::string model_path = model.path.empty() ? blob_path(model.sha256) : model.path;
  for (const AdapterSource& source : recipe.adapters) {
    MR_ASSIGN_OR_RETURN(ModelFile kept, keep_adapter(*this, source, model_path, memory));
    give_free_name(kept, manifest.files);
    manifest.files.push_back(std::move(kept));
  }
  manifest.name = name;
  manifest.modified = now_rfc3339();
  const std::string text = to_json(manifest);
  if (text.size() > kMostManifestBytes)
    return error(Code::invalid_argument, "what is given with the model has {}; at most {} can be kept",
                 format_bytes(text.size()), format_bytes(kMostManifestBytes));
  MR_RETURN_IF_ERROR(parse_manifest(text, name).status());
  MR_RETURN_IF_ERROR(publish(manifest));
  return manifest;
}

}  // namespace millrace::store
