// A folder of KV blocks, a file each (prompt_file.h), under a cap on their bytes. The time a file was changed is the
// time it was last used; the least recently used go first. A prompt's later blocks are of no use without its earlier
// ones, so callers give the earlier ones the later time of use.
//
// The files contain users' prompts: only the owner can access the folder and its files, and a folder that others may
// write to is refused. A file is written under a temporary name and then renamed, so that several processes may share a
// folder. Only files with this store's names are counted or removed. Damaged or foreign files of these names are
// removed, with a line in the log. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "base/os/folder.h"
#include "base/status.h"
#include "kv/prompt_file.h"

namespace millrace::kv {

class PromptStore {
 public:
  using Time = std::chrono::system_clock::time_point;
  struct Options {
    std::string folder;
    std::uint64_t most_bytes = 4'000'000'000;
    std::uint64_t least_free_bytes = 256'000'000;  // of the disk, left to others
  };
  struct Counters {
    std::uint64_t files = 0, bytes = 0;  // in the folder, as last seen
    std::uint64_t read_bytes = 0, written_bytes = 0, removed_files = 0, damaged_files = 0;
  };

  /// Creates the folder if it is missing. Errors: io_error; invalid_argument (others may write to it).
  static Expected<std::unique_ptr<PromptStore>> open(Options options);

  /// Sets the time of use; false: there is no such block.
  bool refresh(const PromptKey& key, Time used);
  /// Errors: not_found (says nothing more); corrupt (the file was removed); io_error. `payload` is undefined then.
  Status load(const PromptBlock& block, std::byte* payload);
  /// Errors: out_of_budget (the disk is full), io_error.
  Status save(const PromptBlock& block, const std::byte* payload, Time used);
  /// Removes the least recently used files, and only those last used before `spared`, until `bytes` more fit; returns
  /// how many of these bytes fit. Errors: io_error.
  Expected<std::uint64_t> make_room(std::uint64_t bytes, Time spared);

  Counters counters() const;
  const std::string& folder() const { return options_.folder; }

 private:
  struct Scan;
  PromptStore(Options options, os::Folder folder) : options_(std::move(options)), folder_(std::move(folder)) {}
  Expected<Scan> scan();
  Status read_file(const PromptBlock& block, const os::File& file, std::byte* payload);
  Status remove_damaged(const std::string& name, const Status& why);

  const Options options_;
  const os::Folder folder_;
  mutable Mutex mutex_;
  Counters counters_ MR_GUARDED_BY(mutex_);
  std::uint64_t writes_ MR_GUARDED_BY(mutex_) = 0;  // so that no two are written under one name
};

}  // namespace millrace::kv
