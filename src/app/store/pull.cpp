#include "app/store/pull.h"

#include <cstdlib>
#include <filesystem>
#include <memory>

#include "app/store/aliases.h"
#include "app/store/arrival.h"
#include "app/store/checkpoint.h"
#include "app/store/digest.h"
#include "app/store/files.h"
#include "app/store/hub.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/folder.h"
#include "base/words.h"
#include "base/work_grant.h"
#include "engine/machine_rates.h"
#include "model/tower.h"
#include "modelfile/gguf.h"
#include "vision/beside.h"

namespace millrace::store {

namespace fs = std::filesystem;

namespace {

/// Whether the model sees by this mmproj file, of which the header is there. Errors: unsupported, invalid_argument (it
/// is another model's), corrupt, not_found (a key or a tensor).
Status check_tower(const std::string& mmproj, const std::string& model) {
  constexpr std::uint64_t kMostHeader = 4 * kMiB, kAnyTile = 1 * kMiB;
  MR_RETURN_IF_ERROR(vision::check_fits(mmproj, model));
  GrantedBytes memory(kMostHeader, nullptr);
  modelfile::OpenOptions bounded;
  bounded.memory = &memory;
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, modelfile::Model::open(mmproj, bounded));
  return model::load_tower(file, kAnyTile).status();
}

/// One model on its way.
class Pull {
 public:
  Pull(Store& store, Name name, const PullOptions& options)
      : store_(store), name_(std::move(name)), options_(options) {}

  Expected<Manifest> run() {
    say("pulling manifest");
    auto found = list_files(options_.endpoint, name_.repository(), options_.revision, options_.download);
    if (found.status().code() == Code::not_found)
      return error(Code::not_found, "{} has no repository {}; check the name, or search the hub for it",
                   options_.endpoint, name_.repository());
    MR_ASSIGN_OR_RETURN(const std::vector<HubFile> listed, std::move(found));
    const std::vector<Variant> variants = variants_of(listed);
    if (variants.empty() && is_checkpoint(listed)) return pull_checkpoint(store_, name_, listed, options_);
    if (options_.type)
      return error(Code::invalid_argument,
                   "{} holds GGUF files, which are not converted: write the type behind a colon", name_.repository());
    MR_ASSIGN_OR_RETURN(variant_, choose_variant(variants, name_));
    MR_ASSIGN_OR_RETURN(files_, arrivals_of(variant_, name_, options_));
    MR_RETURN_IF_ERROR(add_mmproj(mmproj_of(listed, variant_)));
    folder_ = store_.partial_path(name_);
    std::error_code ignored;
    const bool begun = fs::exists(folder_, ignored);
    MR_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::take(folder_, false));
    MR_RETURN_IF_ERROR(open_parts());
    if (!options_.fit_only) MR_RETURN_IF_ERROR(check_disk());
    MR_RETURN_IF_ERROR(fetch_headers(files_, folder_, options_));
    MR_RETURN_IF_ERROR(check_mmproj());
    MR_RETURN_IF_ERROR(check_fit(lock));
    if (options_.fit_only) {
      if (!begun) remove(lock);
      return Manifest();
    }
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(fetch(file));
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(keep(file));
    say("writing manifest");
    MR_ASSIGN_OR_RETURN(Manifest manifest, publish());
    remove(lock);
    say("success");
    return manifest;
  }

 private:
  void say(const std::string& status) const { store::say(options_, status); }

  Status add_mmproj(const HubFile* file) {
    if (file == nullptr) return {};
    if (!options_.mmproj) {
      say(fmt::format("{} is left out, so that the model sees no pictures", fs::path(file->path).filename().string()));
      return {};
    }
    MR_ASSIGN_OR_RETURN(Arrival mmproj, arrival_of(*file, name_, options_));
    files_.push_back(std::move(mmproj));
    has_mmproj_ = true;
    return {};
  }

  /// Leaves the mmproj file out where the model would see nothing by it. Errors: of the hub and the disk alone.
  Status check_mmproj() {
    if (!has_mmproj_) return {};
    Arrival& mmproj = files_.back();
    Status fits = fetch_header(mmproj, folder_, options_);
    if (!fits.ok() && fits.code() != Code::corrupt && fits.code() != Code::unsupported) return fits;
    if (fits.ok()) fits = check_tower(folder_ + "/" + mmproj.name, folder_ + "/" + files_.front().name);
    if (fits.code() == Code::io_error || fits.code() == Code::cancelled) return fits;
    if (fits.ok()) {
      say(fmt::format("with {} ({}), by which the model sees pictures", mmproj.name, format_bytes(mmproj.hub.bytes)));
      return {};
    }
    say(fmt::format("{} is left out, so that the model sees no pictures: {}", mmproj.name,
                    replaced(fits.message(), folder_ + "/", "")));  // a server's clients read it, too
    if (mmproj.part) mmproj.part->discard();
    std::error_code ignored;
    fs::remove(folder_ + "/" + mmproj.name, ignored);
    files_.pop_back();
    return {};
  }

  Status open_parts() {
    MR_RETURN_IF_ERROR(make_folders(store_.root() + "/blobs"));
    for (Arrival& file : files_) {
      const std::string path = folder_ + "/" + file.name, blob = store_.blob_path(file.hub.sha256);
      std::error_code failure;
      const bool have = !file.hub.sha256.empty() && fs::file_size(blob, failure) == file.hub.bytes && !failure;
      if (have || fs::is_symlink(path, failure)) fs::remove(path, failure);
      if (have)
        (void)os::link_file(blob, path);  // for the plan, which wants all splits side by side
      else
        MR_RETURN_IF_ERROR(open_part(file, folder_));
    }
    return {};
  }

  Status check_disk() const {
    std::uint64_t needed = 0;
    for (const Arrival& file : files_)
      if (file.part) needed += file.hub.bytes - file.part->done_bytes();
    return store::check_disk(store_, name_.text(), needed);
  }

  /// Ends the download, of which nothing stays.
  void remove(FolderLock& lock) {
    files_.clear();
    (void)lock.remove();
  }

  Status check_fit(FolderLock& lock) {
    if (!options_.fit) return {};
    auto fits = options_.fit(folder_ + "/" + files_.front().name);
    if (!fits.ok()) {
      if (fits.status().code() != Code::cancelled) remove(lock);
      return fits.status().with_context(
          fmt::format("{} ({}) would not run here", name_.text(), format_bytes(variant_.bytes())));
    }
    if (!fits->empty()) say(*fits);
    return {};
  }

  Status fetch(Arrival& file) const { return file.part ? fetch_chunks(file, SIZE_MAX, options_) : Status(); }

  Status keep(Arrival& file) const {
    if (!file.part) return {};
    say("verifying sha256 digest");
    MR_RETURN_IF_ERROR(verify(file, options_));
    if (file.hub.sha256.empty()) {
      MR_ASSIGN_OR_RETURN(file.hub.sha256, sha256_of_file(file.part->path(), {}, options_.download.http.cancel));
    }
    return file.part->move_to(store_.blob_path(file.hub.sha256));
  }

  Expected<Manifest> publish() {
    Manifest manifest;
    manifest.name = name_;
    manifest.from = "hf.co/" + name_.text();
    manifest.modified = now_rfc3339();
    for (const Arrival& file : files_) manifest.files.push_back({file.name, file.hub.bytes, file.hub.sha256, ""});
    MR_RETURN_IF_ERROR(store_.publish(manifest));
    return manifest;
  }

  Store& store_;
  Name name_;
  const PullOptions& options_;
  Variant variant_;
  std::string folder_;
  std::vector<Arrival> files_;
  bool has_mmproj_ = false;  // the last of files_, until its header is known
};

std::string without_slash(std::string url) {
  while (!url.empty() && url.back() == '/') url.pop_back();
  return url;
}

}  // namespace

PullOptions pull_options_from_environment() {
  PullOptions options;
  if (const char* endpoint = std::getenv("HF_ENDPOINT"); endpoint != nullptr && *endpoint != '\0')
    options.endpoint = without_slash(endpoint);
  if (const char* token = std::getenv("HF_TOKEN"); token != nullptr) options.download.http.token = token;
  return options;
}

Expected<std::string> describe_fit(const engine::EngineOptions& asked) {
  // Little of the model is there yet: the plan goes by rates that are kept, and nothing is measured.
  engine::EngineOptions options = engine::with_kept_rates(asked);
  options.planning.find_rates = false;
  MR_ASSIGN_OR_RETURN(const engine::Planned planned, engine::plan_only(options));
  std::string places;
  for (const auto& row : planned.plan.rows)
    places += fmt::format("{}{} {} in {}", places.empty() ? "" : ", ", format_bytes(row.bytes), row.what, row.tier);
  const double speed = planned.plan.predicted_decode_tokens_per_second;
  return fmt::format("fits: {}{}", places,
                     speed > 0 ? fmt::format("; about {:.1f} tok/s", speed)
                               : std::string("; its speed is measured when it first runs"));
}

Expected<Manifest> pull(Store& store, const std::string& text, const PullOptions& options) {
  MR_ASSIGN_OR_RETURN(Name name, parse_name(text));
  if (const std::string target = name.user.empty() ? alias_of(text, store.root()) : ""; !target.empty()) {
    MR_ASSIGN_OR_RETURN(name, parse_name(target));
  }
  if (name.user.empty()) return error(Code::not_found, "'{}' names no repository; write hf.co/user/repo:QUANT", text);
  return Pull(store, std::move(name), options).run();
}

}  // namespace millrace::store
