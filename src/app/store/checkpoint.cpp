#include "app/store/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "app/store/arrival.h"
#include "app/store/digest.h"
#include "base/bytes.h"
#include "base/os/folder.h"
#include "base/words.h"
#include "convert/mmproj.h"
#include "modelfile/file_io.h"

namespace millrace::store {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostTensorsHeaderBytes = 256 * kMiB;  // of a safetensors file

/// One checkpoint on its way.
class Fetch {
 public:
  Fetch(Store& store, Name name, const std::vector<HubFile>& listed, const PullOptions& options, double kept)
      : store_(store), name_(std::move(name)), listed_(listed), options_(options), kept_(kept) {}

  Expected<FetchedCheckpoint> run() {
    MR_ASSIGN_OR_RETURN(const std::vector<HubFile> texts, checkpoint_texts(listed_, name_));
    Name folder = name_;
    folder.tag = "safetensors";
    folder_ = store_.partial_path(folder);
    MR_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::take(folder_, false));
    remove_others();
    MR_RETURN_IF_ERROR(open(texts));
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(fetch(file));
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(verify(file, options_));
    MR_RETURN_IF_ERROR(convert::check_model_type(folder_));
    files_.clear();
    MR_ASSIGN_OR_RETURN(const std::string index, index_text());
    MR_ASSIGN_OR_RETURN(const std::vector<HubFile> weights, checkpoint_weights(listed_, index, name_));
    MR_RETURN_IF_ERROR(open(weights));
    MR_RETURN_IF_ERROR(check_room());
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(fetch_header(file));
    MR_RETURN_IF_ERROR(check_header(lock));
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(fetch(file));
    say(options_, "verifying sha256 digest");
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(verify(file, options_));
    return FetchedCheckpoint{std::move(lock), folder_, bytes_};
  }

 private:
  /// What lies in the folder of an older revision, or of a conversion that was killed.
  void remove_others() const {
    std::set<std::string> wanted = {".lock"};
    for (const HubFile& file : listed_) wanted.insert({file.path, file.path + ".journal"});
    std::vector<fs::path> others;
    std::error_code failure;
    const Status ignored = os::for_each_name(folder_, [&](const std::string& name) {
      if (!wanted.contains(name)) others.push_back(fs::path(folder_) / name);
    });
    for (const fs::path& other : others) fs::remove(other, failure);
  }

  Status open(const std::vector<HubFile>& hub_files) {
    for (const HubFile& hub : hub_files) {
      MR_ASSIGN_OR_RETURN(Arrival file, arrival_of(hub, name_, options_));
      MR_RETURN_IF_ERROR(open_part(file, folder_));
      bytes_ += hub.bytes;
      files_.push_back(std::move(file));
    }
    return {};
  }

  Expected<std::string> index_text() const {
    const std::string path = folder_ + "/" + std::string(kCheckpointIndex);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) return std::string();
    return read_whole(path);
  }

  Status check_room() const {
    std::uint64_t missing = 0;
    for (const Arrival& file : files_) missing += file.hub.bytes - file.part->done_bytes();
    return check_disk(store_, name_.repository(),
                      missing + static_cast<std::uint64_t>(static_cast<double>(bytes_) * kept_));
  }

  Status fetch(Arrival& file) const { return fetch_chunks(file, SIZE_MAX, options_); }

  /// Its length and its table of tensors.
  Status fetch_header(Arrival& file) const {
    std::uint64_t length = 0;
    MR_RETURN_IF_ERROR(fetch_chunks(file, 1, options_));
    if (file.hub.bytes < sizeof length) return {};
    MR_ASSIGN_OR_RETURN(const modelfile::File bytes, modelfile::File::open_read(file.part->path()));
    MR_RETURN_IF_ERROR(bytes.read_at(0, std::as_writable_bytes(std::span(&length, 1))));
    if (length > kMostTensorsHeaderBytes || length + sizeof length > file.hub.bytes)
      return {};  // it is told of when read
    return fetch_chunks(file, file.part->chunk_of(length + sizeof length) + 1, options_);
  }

  /// The model's header, from the tables alone. What its numbers would say, which are not here yet, is no trouble now.
  Status check_header(FolderLock& lock) {
    convert::ConvertOptions options;
    options.type = options_.type;
    bool shown = false;
    options.header_only = [&](const std::string& path) -> Status {
      shown = true;
      if (!options_.fit) return {};
      auto fits = options_.fit(path);
      if (fits.ok()) say(options_, *fits);
      return fits.status();
    };
    Status checked = convert::convert(folder_, folder_ + "/header.gguf", options).status();
    if (checked.ok() || (!shown && (checked.code() == Code::corrupt || checked.code() == Code::io_error))) return {};
    if (shown && checked.code() != Code::cancelled) {
      files_.clear();
      (void)lock.remove();
      return checked.with_context(fmt::format("{} ({}) would not run here", name_.repository(), format_bytes(bytes_)));
    }
    return checked;
  }

  Store& store_;
  const Name name_;
  const std::vector<HubFile>& listed_;
  const PullOptions& options_;
  const double kept_;
  std::string folder_;
  std::vector<Arrival> files_;
  std::uint64_t bytes_ = 0;
};

/// What the tag says that matrices become; "latest" and none say nothing.
Status take_type(const Name& name, PullOptions& options) {
  if (!name.tag_given || same_word(name.tag, "latest")) return {};
  const auto type = modelfile::quantize_type_from_name(name.tag);
  if (!type.ok())
    return error(Code::not_found, "{} holds safetensors and no GGUF file, so no {}; {}", name.repository(), name.tag,
                 type.status().message());
  if (options.type && *options.type != *type)
    return error(Code::invalid_argument, "--dtype {} and :{} ask for two types", modelfile::info(*options.type).name,
                 name.tag);
  options.type = *type;
  return {};
}

convert::ConvertOptions convert_options(const Name& name, const PullOptions& options) {
  convert::ConvertOptions how;
  how.type = options.type;
  how.name = name.repo;
  how.work.threads = options.threads;
  how.work.cancel = options.download.http.cancel;
  how.work.progress = [&options, said = std::uint64_t{0}](std::uint64_t done, std::uint64_t total) mutable {
    if (!options.on_event || (done < total && done < said + total / 200)) return;
    said = done;
    options.on_event({"converting", "", total, done});
  };
  return how;
}

/// What was made, among the store's blobs and the manifest's files.
Status keep_made(const Store& store, const std::string& made, const std::string& name, std::uint64_t bytes,
                 const PullOptions& options, Manifest& manifest) {
  MR_ASSIGN_OR_RETURN(const std::string hash, sha256_of_file(made, {}, options.download.http.cancel));
  MR_RETURN_IF_ERROR(make_folders(store.root() + "/blobs"));
  MR_RETURN_IF_ERROR(move_file(made, store.blob_path(hash)));
  manifest.files.push_back({name, bytes, hash, ""});
  return {};
}

/// What sees in the checkpoint becomes an mmproj file. What this version does not compute is left out, and named.
Status convert_sight(const Store& store, const FetchedCheckpoint& checkpoint, const std::string& model,
                     const PullOptions& options, Manifest& manifest) {
  if (!options.mmproj) return {};
  const auto report = convert::convert_mmproj(checkpoint.folder, model, convert_options(manifest.name, options));
  if (!report.ok()) return report.status().with_context("its vision tower ('--no-mmproj' leaves it out)");
  if (!report->left_out.empty()) say(options, "left out: " + report->left_out);
  if (report->path.empty()) return {};
  const std::string name = fmt::format("mmproj-{}-{}.gguf", manifest.name.repo, report->type);
  say(options, fmt::format("with {} ({}), by which the model sees pictures", name, format_bytes(report->bytes)));
  return keep_made(store, report->path, name, report->bytes, options, manifest);
}

}  // namespace

void FetchedCheckpoint::remove() { (void)lock.remove(); }

Expected<FetchedCheckpoint> fetch_checkpoint(Store& store, const Name& name, const std::vector<HubFile>& listed,
                                             const PullOptions& options, double kept) {
  return Fetch(store, name, listed, options, kept).run();
}

Expected<FetchedCheckpoint> fetch_checkpoint(Store& store, const std::string& text, const PullOptions& options) {
  MR_ASSIGN_OR_RETURN(const Name name, parse_name(text));
  if (name.user.empty() || name.tag_given)
    return error(Code::invalid_argument, "'{}' names no repository of safetensors; write hf.co/user/repo", text);
  MR_ASSIGN_OR_RETURN(const std::vector<HubFile> listed,
                      list_files(options.endpoint, name.repository(), options.revision, options.download));
  if (!is_checkpoint(listed))
    return error(Code::not_found, "{} holds no safetensors; 'millrace pull' fetches GGUF files", name.repository());
  return fetch_checkpoint(store, name, listed, options, 0);
}

Expected<Manifest> pull_checkpoint(Store& store, Name name, const std::vector<HubFile>& listed,
                                   const PullOptions& asked) {
  PullOptions options = asked;
  MR_RETURN_IF_ERROR(take_type(name, options));
  say(options, "no GGUF file: its safetensors are converted here and then deleted");
  // Half of the weights' bytes where they have fewer bits than most checkpoints', all of them where they are kept.
  MR_ASSIGN_OR_RETURN(FetchedCheckpoint checkpoint,
                      fetch_checkpoint(store, name, listed, options, options.type ? 0.5 : 1));
  if (WorkGrant* const memory = options.download.http.memory; memory != nullptr) {
    // Its texts become values: the tokenizer's take most.
    constexpr std::uint64_t kBytesAByte = 12;
    std::uint64_t bytes = 0;
    for (const HubFile& file : listed)
      if (file.path.ends_with(".json") && file.path.find('/') == std::string::npos) bytes += file.bytes;
    if (!memory->take(bytes * kBytesAByte))
      return error(
          Code::out_of_budget,
          "{}: converting it takes {} of memory beside the models; run 'millrace pull' on this machine, or give "
          "the server more --ram",
          name.repository(), format_bytes(bytes * kBytesAByte));
  }
  const std::string made = checkpoint.folder + "/converted.gguf";
  MR_ASSIGN_OR_RETURN(const convert::ConvertReport report,
                      convert::convert(checkpoint.folder, made, convert_options(name, options)));
  Manifest manifest;
  name.tag = report.type;
  manifest.name = name;
  manifest.from = "hf.co/" + name.repository();
  manifest.modified = now_rfc3339();
  MR_RETURN_IF_ERROR(keep_made(store, made, name.repo + "-" + report.type + ".gguf", report.bytes, options, manifest));
  MR_RETURN_IF_ERROR(convert_sight(store, checkpoint, made, options, manifest));
  say(options, "writing manifest");
  MR_RETURN_IF_ERROR(store.publish(manifest));
  checkpoint.remove();
  say(options,
      fmt::format("converted to {}; {} of safetensors are deleted", report.type, format_bytes(checkpoint.bytes)));
  say(options, "success");
  return manifest;
}

}  // namespace millrace::store
