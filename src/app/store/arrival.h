// A file of a repository on its way into a folder of the store: its chunks, its hash, and what is told of it.
// Thread-safety: one thread has an Arrival.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/store/hub.h"
#include "app/store/part_file.h"
#include "app/store/pull.h"
#include "base/status.h"

namespace millrace::store {

struct Arrival {
  HubFile hub;
  std::string name;  // "model-00001-of-00002.gguf"
  std::string url;
  std::unique_ptr<PartFile> part;  // nullptr: the bytes are there already, elsewhere
};

/// Without its part. Errors: unsupported (a name that the store keeps none of).
Expected<Arrival> arrival_of(const HubFile& file, const Name& repository, const PullOptions& options);
/// Goes on with what lies in the folder. Errors: those of PartFile::open.
Status open_part(Arrival& arrival, const std::string& folder);

/// All files of a variant, likewise. The name's tag becomes the variant's, whatever was asked for.
Expected<std::vector<Arrival>> arrivals_of(const Variant& variant, Name& name, const PullOptions& options);

/// The first `chunks` chunks that are not there yet. Errors: those of download().
Status fetch_chunks(Arrival& arrival, std::size_t chunks, const PullOptions& options);
/// Those of these chunks, likewise. A server that ignores ranges sends the whole file.
Status fetch_chunks(Arrival& arrival, const std::vector<std::size_t>& chunks, const PullOptions& options);
/// Every file's first chunk, and of the first file as many as its header takes. The parts lie in `folder`, open.
/// Errors: those of download(), and of Model::open where there is all that a header may take.
Status fetch_headers(std::vector<Arrival>& files, const std::string& folder, const PullOptions& options);
/// The same of one file, which is whole in itself or the first split; of the others the first chunk is there.
Status fetch_header(Arrival& file, const std::string& folder, const PullOptions& options);

/// Holds the bytes to the hub's hash, of whichever kind it tells; where it tells none, that is said, and the SHA-256 is
/// what it is. Errors: corrupt (the part was removed), io_error, cancelled.
Status verify(Arrival& arrival, const PullOptions& options);

/// Errors: out_of_budget (so many bytes more do not go onto the disk of the store).
Status check_disk(const Store& store, const std::string& what, std::uint64_t needed);

void say(const PullOptions& options, const std::string& status);

}  // namespace millrace::store
