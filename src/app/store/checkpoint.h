// A repository of safetensors: fetched into a folder of the store and converted there. A fetch that ends in any way
// goes on where it was when it is asked for again. Thread-safety: functions without shared state; two fetches of one
// repository do not work at once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/store/files.h"
#include "app/store/hub.h"
#include "app/store/pull.h"
#include "app/store/store.h"
#include "base/status.h"
#include "convert/convert.h"

namespace millrace::store {

/// A checkpoint that is here, whole and checked.
struct FetchedCheckpoint {
  FolderLock lock;
  std::string folder;
  std::uint64_t bytes = 0;
  void remove();
};

/// Refuses a model that cannot be converted, or that options.fit says would not run, before its weights come.
/// `kept`: of what is made, how much stays on the disk of the store beside the parts, per byte of them.
/// Errors: those of pull() and convert().
Expected<FetchedCheckpoint> fetch_checkpoint(Store& store, const Name& name, const std::vector<HubFile>& listed,
                                             const PullOptions& options, double kept);
/// The same by name, for who converts it to a file elsewhere. Errors: also invalid_argument (no name of a repository,
/// or one with a tag), not_found (it holds no safetensors).
Expected<FetchedCheckpoint> fetch_checkpoint(Store& store, const std::string& name, const PullOptions& options);

/// As pull() does it: fetched, converted into the store, and the parts deleted.
Expected<Manifest> pull_checkpoint(Store& store, Name name, const std::vector<HubFile>& listed,
                                   const PullOptions& options);

}  // namespace millrace::store
