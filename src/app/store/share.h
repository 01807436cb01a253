// A rank's part of a model that a hub has: a sparse file of the model's length, in which its header is, and what some
// layers need; beside it the journal of which bytes are there (part_file.h). What came is not held to a hash, which a
// hub has of whole files alone: the transport's checks must do. Every rank of a cluster fetches its own.
//
// Shares lie in the store below shares/, a folder a model and process: two ranks of one host have one each. A folder is
// locked while its Share lives. Thread-safety: one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/store/arrival.h"
#include "app/store/files.h"
#include "app/store/pull.h"
#include "app/store/store.h"
#include "base/status.h"
#include "residency/unit.h"

namespace millrace::store {

class Share {
 public:
  /// `name`: as for pull(). A model that the store has as a whole is taken as it is; of another the header is fetched,
  /// if it is not there. A rank's folder is its own as long as no other process has it. Errors: those of pull();
  /// unsupported (a repository of safetensors; the hub tells no hashes).
  static Expected<std::shared_ptr<Share>> open(const Store& store, const std::string& name, int rank,
                                               PullOptions options);

  /// Of the (first) file to open.
  const std::string& path() const { return path_; }
  /// The hub's hashes of all files: what the ranks' shares of one model have in common.
  const std::string& identity() const { return identity_; }
  /// Brings what of these units is not there. Errors: those of download(); out_of_budget (the disk).
  Status fetch(const residency::UnitTable& units);

 private:
  Share(std::string root, PullOptions options) : store_(std::move(root)), options_(std::move(options)) {}
  Status open_folder(const std::string& folder, int rank);

  const Store store_;
  const PullOptions options_;
  std::string path_, identity_;
  std::vector<Arrival> files_;        // empty: all bytes are there
  std::unique_ptr<FolderLock> lock_;  // of their folder
};

}  // namespace millrace::store
