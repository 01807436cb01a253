#include "app/store/share.h"

#include <algorithm>
#include <set>

#include "base/bytes.h"
#include "base/log.h"
#include "vision/beside.h"

namespace millrace::store {
namespace {

constexpr int kTries = 64;  // of folders

bool is_beside(const HubFile& file) { return vision::is_mmproj_name(file.path); }
bool is_beside(const ModelFile& file) { return file.adapter || vision::is_mmproj_name(file.name); }

/// Hashes of all files of a model, which an mmproj file and adapters beside it are none of; empty: one is not known.
template <typename Files>
std::string hashes_of(const Files& files) {
  std::string hashes;
  for (const auto& file : files) {
    if (&file != &files.front() && is_beside(file)) continue;
    if (file.sha256.empty()) return "";
    hashes += (hashes.empty() ? "" : " ") + file.sha256;
  }
  return hashes;
}

}  // namespace

Expected<std::shared_ptr<Share>> Share::open(const Store& store, const std::string& text, int rank,
                                             PullOptions options) {
  MR_ASSIGN_OR_RETURN(Name name, parse_name(text));
  std::shared_ptr<Share> share(new Share(store.root(), std::move(options)));
  const PullOptions& how = share->options_;
  if (const auto whole = store.resolve(text); whole.ok() && whole->named && !hashes_of(whole->manifest.files).empty()) {
    share->path_ = whole->path;
    share->identity_ = hashes_of(whole->manifest.files);
    return share;
  }
  if (name.user.empty())
    return error(Code::not_found, "'{}' names no repository, which --fetch-share needs; write hf.co/user/repo:QUANT",
                 text);
  MR_ASSIGN_OR_RETURN(const std::vector<HubFile> listed,
                      list_files(how.endpoint, name.repository(), how.revision, how.download));
  const std::vector<Variant> variants = variants_of(listed);
  if (variants.empty() && is_checkpoint(listed))
    return error(Code::unsupported, "{} holds safetensors, of which no part can be fetched; pull and convert it",
                 name.repository());
  MR_ASSIGN_OR_RETURN(const Variant variant, choose_variant(variants, name));
  share->identity_ = hashes_of(variant.files);
  if (share->identity_.empty())
    return error(Code::unsupported, "the hub gives no hashes for {}, by which ranks know that they have one model",
                 name.text());
  MR_ASSIGN_OR_RETURN(share->files_, arrivals_of(variant, name, how));
  MR_RETURN_IF_ERROR(share->open_folder(store.share_path(name), rank));
  return share;
}

/// The rank's folder, or the next one that no other process has.
Status Share::open_folder(const std::string& folder, int rank) {
  for (int number = rank; number < rank + kTries; ++number) {
    const std::string own = fmt::format("{}.{}", folder, number);
    MR_RETURN_IF_ERROR(make_folders(own));
    auto lock = FolderLock::take(own, false);
    if (!lock.ok()) continue;
    lock_ = std::make_unique<FolderLock>(std::move(*lock));
    for (Arrival& file : files_) MR_RETURN_IF_ERROR(open_part(file, own));
    path_ = own + "/" + files_.front().name;
    return fetch_headers(files_, own, options_);
  }
  return error(Code::io_error, "{}: other processes have all folders of this model's shares", folder);
}

Status Share::fetch(const residency::UnitTable& units) {
  std::vector<std::set<std::size_t>> wanted(files_.size());
  for (const residency::Unit& unit : units.units()) {
    for (const residency::Part& part : unit.parts) {
      const auto file = static_cast<std::size_t>(part.file);
      if (part.bytes() == 0 || file >= files_.size()) continue;
      const PartFile& chunks = *files_[file].part;
      for (std::size_t c = chunks.chunk_of(part.offset); c <= chunks.chunk_of(part.offset + part.bytes() - 1); ++c)
        if (!chunks.done(c)) wanted[file].insert(c);
    }
  }
  std::uint64_t bytes = 0;
  for (std::size_t file = 0; file < files_.size(); ++file)
    for (const std::size_t c : wanted[file])
      bytes += files_[file].part->chunk_end(c) - files_[file].part->chunk_begin(c);
  if (bytes == 0) return {};
  MR_RETURN_IF_ERROR(check_disk(store_, "this share", bytes));
  log::info("fetching {} of {}", format_bytes(bytes), path_);
  for (std::size_t file = 0; file < files_.size(); ++file)
    MR_RETURN_IF_ERROR(fetch_chunks(files_[file], {wanted[file].begin(), wanted[file].end()}, options_));
  return {};
}

}  // namespace millrace::store
