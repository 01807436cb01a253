#include "app/store/store.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "app/store/files.h"
#include "base/log.h"
#include "modelfile/gguf.h"

namespace millrace::store {

namespace fs = std::filesystem;

namespace {

/// Bytes of a regular file, following links; nullopt if there is none.
std::optional<std::uint64_t> file_bytes(const std::string& path) {
  struct stat information = {};
  if (stat(path.c_str(), &information) != 0 || !S_ISREG(information.st_mode)) return std::nullopt;
  return static_cast<std::uint64_t>(information.st_size);
}

bool looks_like_a_path(const std::string& text) {
  return text.starts_with('/') || text.starts_with("./") || text.starts_with("../") || text.ends_with(".gguf");
}

/// The files of a GGUF model where they lie, all splits.
Expected<std::vector<ModelFile>> files_at(const std::string& path) {
  modelfile::OpenOptions no_words;
  no_words.skip_vocabulary = true;
  MR_ASSIGN_OR_RETURN(const modelfile::Model model, modelfile::Model::open(path, no_words));
  std::vector<ModelFile> files;
  for (const std::string& each : model.paths()) {
    ModelFile file;
    file.path = fs::absolute(each).lexically_normal();
    file.name = fs::path(each).filename();
    file.bytes = file_bytes(each).value_or(0);
    files.push_back(std::move(file));
  }
  return files;
}

/// Settings of `base` that the recipe does not set stay.
void lay_over(Manifest& base, const Recipe& recipe) {
  for (const auto& [key, value] : recipe.parameters.items()) base.parameters[key] = value;
  if (!recipe.system.empty()) base.system = recipe.system;
  if (!recipe.chat_template.empty()) base.chat_template = recipe.chat_template;
  if (!recipe.license.empty()) base.license = recipe.license;
  if (!recipe.messages.empty()) base.messages = recipe.messages;
}

/// Links of what the name stood for before.
void remove_other_links(const fs::path& folder, const Manifest& manifest) {
  std::error_code failure;
  std::vector<fs::path> others;
  for (fs::directory_iterator it(folder, failure), end; !failure && it != end; it.increment(failure)) {
    const auto is_this = [&](const ModelFile& file) { return file.path.empty() && file.name == it->path().filename(); };
    if (std::none_of(manifest.files.begin(), manifest.files.end(), is_this)) others.push_back(it->path());
  }
  for (const fs::path& other : others) fs::remove(other, failure);
}

std::vector<std::string> blobs_of(const Manifest& manifest) {
  std::vector<std::string> blobs;
  for (const ModelFile& file : manifest.files)
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
  if (const std::string data = variable("XDG_DATA_HOME"); !data.empty()) return data + "/millrace/models";
  const std::string home = variable("HOME");
  return (home.empty() ? "/var/lib" : home + "/.local/share") + "/millrace/models";
}

std::string Store::partial_path(const Name& name) const {
  return root_ + "/partial/" + (name.user.empty() ? "-" : name.user) + "--" + name.repo + "--" + name.tag;
}

std::string Store::file_path(const Manifest& manifest, const ModelFile& file) const {
  return file.path.empty() ? root_ + "/models/" + manifest.name.folder() + "/" + file.name : file.path;
}

Expected<Manifest> Store::read(const Name& name) const {
  const std::string path = manifest_path(name);
  MR_ASSIGN_OR_RETURN(const std::string text, read_whole(path));
  auto manifest = parse_manifest(text, name);
  if (!manifest.ok()) return manifest.status().with_context(path);
  return manifest;
}

Expected<std::vector<Name>> Store::names() const {
  std::vector<Name> all;
  const fs::path top = root_ + "/manifests";
  std::error_code failure;
  for (fs::recursive_directory_iterator it(top, failure), end; !failure && it != end; it.increment(failure)) {
    const fs::path below = it->path().lexically_relative(top);
    if (it.depth() != 2 || below.extension() != ".json") continue;
    auto part = below.begin();
    Name name;
    name.user = *part++;
    name.repo = *part;
    name.tag = below.stem();
    if (name.user == "-") name.user.clear();
    const bool safe =
        (name.user.empty() || is_safe_part(name.user)) && is_safe_part(name.repo) && is_safe_part(name.tag);
    if (safe) all.push_back(std::move(name));
  }
  if (failure && failure != std::errc::no_such_file_or_directory)
    return error(Code::io_error, "{}: cannot read this folder: {}", top.string(), failure.message());
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

Expected<Manifest> Store::find(const Name& wanted) const {
  MR_ASSIGN_OR_RETURN(const std::vector<Name> all, names());
  std::vector<Name> same_repo;
  for (const Name& name : all) {
    if (!same_word(name.user, wanted.user) || !same_word(name.repo, wanted.repo)) continue;
    if (same_word(name.tag, wanted.tag)) return read(name);
    same_repo.push_back(name);
  }
  if (!wanted.tag_given && same_repo.size() == 1) return read(same_repo.front());
  if (!wanted.tag_given && !same_repo.empty()) {
    std::string choices;
    for (const Name& name : same_repo) choices += (choices.empty() ? "" : ", ") + name.text();
    return error(Code::not_found, "model '{}' has several variants; name one: {}", wanted.text(), choices);
  }
  return error(Code::not_found, "model '{}' not found; {}", wanted.text(),
               wanted.user.empty() ? std::string("'millrace list' shows what is here")
                                   : fmt::format("fetch it with 'millrace pull {}'", wanted.text()));
}

Expected<Manifest> Store::find(const std::string& name) const {
  MR_ASSIGN_OR_RETURN(const Name parsed, parse_name(name));
  return find(parsed);
}

Status Store::check_files(const Manifest& manifest) const {
  for (const ModelFile& file : manifest.files) {
    const std::string path = file_path(manifest, file);
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
  if (looks_like_a_path(name_or_path) || file_bytes(name_or_path)) {
    resolved.path = name_or_path;
    return resolved;
  }
  MR_ASSIGN_OR_RETURN(resolved.manifest, find(name_or_path));
  MR_RETURN_IF_ERROR(check_files(resolved.manifest));
  resolved.named = true;
  resolved.path = file_path(resolved.manifest, resolved.manifest.files.front());
  return resolved;
}

/// REQUIRES: the lock of the root is held. The links come first: a manifest never names what is not there.
Status Store::write_model(const Manifest& manifest) {
  const fs::path folder = root_ + "/models/" + manifest.name.folder();
  const fs::path target = manifest_path(manifest.name);
  MR_RETURN_IF_ERROR(make_folders(folder));
  MR_RETURN_IF_ERROR(make_folders(target.parent_path()));
  for (const ModelFile& file : manifest.files) {
    if (!file.path.empty()) continue;
    const fs::path link = folder / file.name, fresh = folder / (".new-" + file.name);
    std::error_code failure;
    fs::remove(fresh, failure);
    fs::create_symlink(fs::path("../../../../blobs/sha256-" + file.sha256), fresh, failure);
    if (!failure) fs::rename(fresh, link, failure);
    if (failure) return error(Code::io_error, "{}: cannot link the model's file: {}", link.string(), failure.message());
  }
  remove_other_links(folder, manifest);
  MR_RETURN_IF_ERROR(sync_folder(folder));
  return write_whole(target, to_json(manifest));
}

Status Store::publish(const Manifest& manifest) {
  MR_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(root_, true));
  for (const ModelFile& file : manifest.files)
    if (file.path.empty() && file_bytes(blob_path(file.sha256)) != file.bytes)
      return error(Code::io_error, "{} is not whole; pull the model again", blob_path(file.sha256));
  std::vector<std::string> old_blobs;
  if (const auto old = read(manifest.name); old.ok()) old_blobs = blobs_of(*old);
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
    const auto manifest = read(name);
    if (!manifest.ok()) return;
    for (const std::string& blob : blobs_of(*manifest)) used.insert(blob);
  }
  std::error_code ignored;
  for (const std::string& blob : candidates)
    if (!used.contains(blob)) fs::remove(blob_path(blob), ignored);
}

Status Store::remove(const std::string& text) {
  MR_ASSIGN_OR_RETURN(const FolderLock lock, FolderLock::take(root_, true));
  MR_ASSIGN_OR_RETURN(const Manifest manifest, find(text));
  const fs::path path = manifest_path(manifest.name);
  std::error_code failure;
  fs::remove(path, failure);
  if (failure) return error(Code::io_error, "{}: cannot remove it: {}", path.string(), failure.message());
  MR_RETURN_IF_ERROR(sync_folder(path.parent_path()));
  fs::remove_all(root_ + "/models/" + manifest.name.folder(), failure);
  collect_garbage(blobs_of(manifest));
  fs::remove(path.parent_path(), failure);  // folders that are empty now
  fs::remove(path.parent_path().parent_path(), failure);
  return {};
}

Status Store::copy(const std::string& from, const std::string& to) {
  MR_ASSIGN_OR_RETURN(const Name target, parse_name(to));
  MR_ASSIGN_OR_RETURN(Manifest manifest, find(from));
  manifest.name = target;
  manifest.modified = now_rfc3339();
  return publish(manifest);
}

Expected<Manifest> Store::create(const std::string& text, const Recipe& recipe, const std::string& folder) {
  MR_ASSIGN_OR_RETURN(const Name name, parse_name(text));
  MR_RETURN_IF_ERROR(check_template(recipe.chat_template));
  const fs::path beside = fs::path(folder) / recipe.from;
  const bool is_path = looks_like_a_path(recipe.from) || file_bytes(beside);
  Manifest manifest;
  if (is_path) {
    MR_ASSIGN_OR_RETURN(manifest.files, files_at(beside.lexically_normal()));
  } else {
    MR_ASSIGN_OR_RETURN(manifest, find(recipe.from));
    MR_RETURN_IF_ERROR(check_files(manifest));
  }
  lay_over(manifest, recipe);
  manifest.from = is_path ? manifest.files.front().path : manifest.name.text();
  manifest.name = name;
  manifest.modified = now_rfc3339();
  MR_RETURN_IF_ERROR(publish(manifest));
  return manifest;
}

}  // namespace millrace::store
