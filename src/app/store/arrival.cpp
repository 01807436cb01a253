#include "app/store/arrival.h"

#include <algorithm>
#include <numeric>

#include "app/store/digest.h"
#include "app/store/download.h"
#include "app/store/files.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/words.h"
#include "modelfile/escape.h"
#include "modelfile/gguf.h"

namespace millrace::store {
namespace {

constexpr std::uint64_t kMostHeaderBytes = 256 * kMiB;  // of a GGUF file: metadata and tensor table

}  // namespace

Expected<Arrival> arrival_of(const HubFile& file, const Name& repository, const PullOptions& options) {
  Arrival arrival;
  arrival.hub = file;
  arrival.name = file.path.substr(file.path.rfind('/') + 1);
  if (!is_safe_file_name(arrival.name))
    return error(Code::unsupported, "{}: the store keeps no file of such a name", modelfile::escape(arrival.name));
  arrival.url = fmt::format("{}/{}/resolve/{}/{}", options.endpoint, escape_path(repository.repository()),
                            escape_path(options.revision), escape_path(file.path));
  return arrival;
}

Status open_part(Arrival& arrival, const std::string& folder) {
  const HubFile& hub = arrival.hub;
  const std::string& hash = hub.sha256.empty() ? hub.git_sha1 : hub.sha256;
  MR_ASSIGN_OR_RETURN(arrival.part, PartFile::open(folder + "/" + arrival.name, hub.bytes, hash.empty() ? "-" : hash));
  return {};
}

Expected<std::vector<Arrival>> arrivals_of(const Variant& variant, Name& name, const PullOptions& options) {
  const bool asked_by_file = name.tag_given && !same_word(name.tag, "latest") && !same_word(name.tag, variant.quant);
  const std::string tag = asked_by_file ? variant.stem : variant.quant;
  name.tag = is_safe_part(tag) ? tag : "latest";
  std::vector<Arrival> files;
  for (const HubFile& hub : variant.files) {
    MR_ASSIGN_OR_RETURN(Arrival file, arrival_of(hub, name, options));
    files.push_back(std::move(file));
  }
  return files;
}

Status fetch_chunks(Arrival& arrival, const std::vector<std::size_t>& chunks, const PullOptions& options) {
  const HubFile& hub = arrival.hub;
  const std::string status = "pulling " + (hub.sha256.empty() ? arrival.name : hub.sha256.substr(0, 12));
  const auto tell = [&](std::uint64_t completed) {
    if (options.on_event) options.on_event({status, "sha256:" + hub.sha256, hub.bytes, completed});
  };
  tell(arrival.part->done_bytes());
  MR_RETURN_IF_ERROR(download(arrival.url, *arrival.part, chunks, options.download, tell));
  tell(arrival.part->done_bytes());
  return {};
}

Status fetch_chunks(Arrival& arrival, std::size_t chunks, const PullOptions& options) {
  std::vector<std::size_t> first(std::min(chunks, arrival.part->chunks()));
  std::iota(first.begin(), first.end(), std::size_t{0});
  return fetch_chunks(arrival, first, options);
}

Status fetch_headers(std::vector<Arrival>& files, const std::string& folder, const PullOptions& options) {
  for (Arrival& file : files)
    if (file.part) MR_RETURN_IF_ERROR(fetch_chunks(file, std::size_t{1}, options));
  return fetch_header(files.front(), folder, options);
}

Status fetch_header(Arrival& file, const std::string& folder, const PullOptions& options) {
  modelfile::OpenOptions splits;  // what else it holds nobody asks here
  splits.outline = true;
  splits.wanted = [](std::string_view key) { return key.starts_with("split.") || key == "general.alignment"; };
  const std::string path = folder + "/" + file.name;
  for (std::size_t chunks = 2;; chunks *= 2) {
    const auto model = modelfile::Model::open(path, splits);
    if (model.ok()) return {};
    PartFile* const part = file.part.get();
    if (part == nullptr || part->complete() || part->chunk_begin(chunks / 2) >= kMostHeaderBytes) {
      if (part != nullptr && model.status().code() == Code::corrupt) part->discard();
      return model.status();
    }
    MR_RETURN_IF_ERROR(fetch_chunks(file, chunks, options));
  }
}

Status verify(Arrival& arrival, const PullOptions& options) {
  HubFile& hub = arrival.hub;
  const bool by_git = hub.sha256.empty() && !hub.git_sha1.empty();
  const std::string wanted = by_git ? hub.git_sha1 : hub.sha256;
  std::string found;
  if (by_git) {
    MR_ASSIGN_OR_RETURN(found, git_sha1_of_file(arrival.part->path()));
  } else {
    MR_ASSIGN_OR_RETURN(found, sha256_of_file(arrival.part->path(), {}, options.download.http.cancel));
  }
  if (wanted.empty()) {
    log::warn("{}: the hub gives no hash for this file, so its bytes could not be verified", arrival.name);
    hub.sha256 = found;
    return {};
  }
  if (found == wanted) return {};
  arrival.part->discard();
  return error(Code::corrupt, "{}: its {} is {}..., the hub promised {}...; the download was removed, pull again",
               arrival.name, by_git ? "hash in git" : "SHA-256", found.substr(0, 12), wanted.substr(0, 12));
}

Status check_disk(const Store& store, const std::string& what, std::uint64_t needed) {
  constexpr std::uint64_t kReserve = 64 * kMiB;  // left free
  MR_ASSIGN_OR_RETURN(const std::uint64_t free, free_bytes(store.root()));
  if (needed == 0 || needed + kReserve <= free) return {};
  return error(Code::out_of_budget,
               "{} needs {} more on the disk, {} are free in {}; make room, or set MILLRACE_MODELS to another disk",
               what, format_bytes(needed), format_bytes(free), store.root());
}

void say(const PullOptions& options, const std::string& status) {
  if (options.on_event) options.on_event({status, "", 0, 0});
}

}  // namespace millrace::store
