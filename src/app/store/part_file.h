// A file on its way: the bytes at their final places in a sparse file, and beside it a journal of the chunks that are
// on the disk, so that a download goes on after any kind of end.
//
// INVARIANT: a chunk stands in the journal only after its bytes were synced. A torn last line of the journal counts for
// nothing. Thread-safety: write() and mark_done() may be called from many threads, for chunks of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/os/file.h"
#include "base/status.h"

namespace millrace::store {

class PartFile {
 public:
  /// Goes on with what lies at `path`, if it is of the same file (`identity`, one line without spaces: its SHA-256),
  /// else begins anew. Errors: io_error, out_of_budget (disk full).
  static Expected<std::unique_ptr<PartFile>> open(const std::string& path, std::uint64_t bytes,
                                                  const std::string& identity);

  const std::string& path() const { return path_; }
  std::uint64_t bytes() const { return bytes_; }
  std::size_t chunks() const { return done_.size(); }
  std::uint64_t chunk_begin(std::size_t chunk) const { return chunk * chunk_bytes_; }
  std::uint64_t chunk_end(std::size_t chunk) const;
  std::size_t chunk_of(std::uint64_t offset) const { return static_cast<std::size_t>(offset / chunk_bytes_); }
  bool done(std::size_t chunk) const { return done_[chunk].load(std::memory_order_acquire) != 0; }
  bool complete() const { return done_bytes() == bytes_; }
  std::uint64_t done_bytes() const { return done_bytes_.load(std::memory_order_relaxed); }

  /// REQUIRES: inside the file. Errors: io_error, out_of_budget (disk full).
  Status write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  Status mark_done(std::size_t chunk);

  /// Removes file and journal: their bytes were wrong.
  void discard();
  /// The whole file under its final name. Removes the journal. Errors: io_error.
  Status move_to(const std::string& path);

 private:
  PartFile(std::string path, std::uint64_t bytes);
  Status read_journal(const std::string& identity);
  Status begin_journal(const std::string& identity);
  std::string head(const std::string& identity) const;
  std::string journal_path() const { return path_ + ".journal"; }

  const std::string path_;
  const std::uint64_t bytes_, chunk_bytes_;
  os::File data_, journal_;
  Mutex mutex_;  // held by who writes the journal
  std::uint64_t journal_bytes_ MR_GUARDED_BY(mutex_) = 0;
  std::vector<std::atomic<char>> done_;
  std::atomic<std::uint64_t> done_bytes_{0};
};

}  // namespace millrace::store
