// Moves bytes of files to host memory, or (cufile.h) to device memory. Independent of tensors.
//
// A read is {file, offset, bytes, destination} and delivers exactly those bytes or an error, never fewer bytes
// silently. Reads are submitted in batches that share a Completion. submit() returns at once, and the bytes arrive
// later. Backends handle short reads, EINTR, EAGAIN and the end of a file, in one place.
//
// Alignment: a backend with alignment A > 1 (O_DIRECT) widens a read to whole blocks of A. To avoid a copy, the
// destination must be congruent to the file offset modulo A, and the memory of the whole blocks around it belongs to
// the read: widened(offset, bytes, A) returns its size. The content around the requested bytes is unspecified
// afterwards. Every backend accepts such destinations, so callers always allocate for kMaxAlignment.
//
// Thread-safety: all methods may be called from any thread once the files are open.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"

namespace millrace::storage {

constexpr std::uint64_t kMaxAlignment = 4096;

/// The blocks of `alignment` that cover [offset, offset + bytes).
struct Widened {
  std::uint64_t offset;  // rounded down
  std::uint64_t bytes;   // whole blocks
  std::uint64_t lead;    // asked offset - widened offset
};
Widened widened(std::uint64_t offset, std::uint64_t bytes, std::uint64_t alignment);

struct Read {
  int file = 0;              // index into the backend's files
  std::uint64_t offset = 0;  // in the file
  std::uint64_t bytes = 0;
  std::byte* destination = nullptr;  // in the memory that traits().memory names; congruent to offset modulo
                                     // kMaxAlignment (see above) unless that is device memory
};

/// Counts down a batch of reads and keeps its first error. It must outlive the batch, and may be destroyed as soon as
/// done() returns true or wait() returns, even while finish_one() is returning. Reusable once done: the first expect()
/// after a wait() clears the old error, and an error is kept until a wait() has returned it. Several submits may share
/// one Completion.
class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  bool done() const { return pending_.load(std::memory_order_acquire) == 0; }
  /// Blocks until every read of the batch has ended. Returns the first error, or ok.
  Status wait();

  // For backends:
  void expect(std::uint32_t reads);
  void finish_one(const Status& status);

 private:
  std::atomic<std::uint32_t> pending_{0};
  Mutex mutex_;
  Status status_ MR_GUARDED_BY(mutex_);
  bool reported_ MR_GUARDED_BY(mutex_) = false;  // a wait() returned status_
};

/// The only kind of memory that a backend reads into.
enum class Memory { host, device };

struct BackendTraits {
  std::string name;          // "io_uring+O_DIRECT", "pread+O_DIRECT", "pread", "mmap", "cuFile"
  std::uint64_t alignment;   // 1, or the alignment for O_DIRECT on this file system
  bool bypasses_page_cache;  // false: the page cache may hold the bytes, too
  Memory memory = Memory::host;
  std::string reason{};  // for backends with several modes: the mode, why, and what would change it
};

struct Counters {
  std::uint64_t reads = 0;    // requests given to the kernel
  std::uint64_t bytes = 0;    // asked for by callers and delivered
  std::uint64_t busy_ns = 0;  // time during which at least one read was in flight
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendTraits& traits() const = 0;

  /// Starts the reads. The Completion ends with the first error among them, including errors found at once.
  virtual void submit(std::span<const Read> reads, Completion& completion) = 0;

  /// The file's bytes in place (mmap), or nullptr. An unreadable page reads as zeros and makes health() fail.
  virtual const std::byte* in_place(int file, std::uint64_t offset, std::uint64_t bytes) const;

  /// Registers a range that reads will go into as long as the backend lives (io_uring fixed buffers). A hint: failure
  /// is logged and only costs speed. REQUIRES: the range stays mapped, and none of it is given back to the kernel
  /// (HostBuffer::release, munmap) while the backend lives: the kernel pins these pages, backs all of them now, and
  /// would continue to read into the old ones.
  virtual void register_memory(std::span<std::byte> range);

  /// Fails if the bytes read can no longer be trusted: a file was truncated or changed since it was opened, or a mapped
  /// page failed. Cheap (one fstat per file). The engine calls it after each pass, before it uses the pass's tokens.
  virtual Status health() const = 0;

  virtual Counters counters() const = 0;
};

/// pread_direct and pread_buffered read by threads, past the system's cache or through it: by pread, on Windows by
/// ReadFile.
enum class BackendKind { automatic, io_uring, pread_direct, pread_buffered, mmap, directstorage };
/// "auto", "io_uring", "pread-direct", "pread", "mmap", "directstorage"
std::string_view backend_name(BackendKind kind);
/// The kinds that this system may have, automatic first.
std::span<const BackendKind> backend_kinds();
/// Those that read past the system's cache, used to measure a disk.
std::span<const BackendKind> uncached_kinds();
/// All names, for messages: "auto, io_uring, pread-direct, pread, mmap".
std::string backend_names();
/// Errors: invalid_argument, which lists backend_kinds().
Expected<BackendKind> backend_from_name(std::string_view name);

struct OpenOptions {
  BackendKind kind = BackendKind::automatic;
  bool everything_fits = false;            // the whole model fits the budget with a margin: mmap may be chosen if
                                           // O_DIRECT is unavailable
  bool directstorage_faster = false;       // measured on this disk to be faster than reads past the cache: try it first
  int threads = 8;                         // of the pread pool, per disk
  int queue_depth = 32;                    // requests in flight, per disk
  std::uint64_t request_bytes = 1u << 20;  // large reads are split into requests of this size
  // io_uring: at most this many bytes in flight per disk, or one request; later requests wait. A disk serves its
  // requests in parallel, so without a bound the first of several reads would end hardly before the last.
  std::uint64_t bytes_in_flight = UINT64_MAX;
};

/// Opens the files (a model's splits, in order) with the given backend, or with the best one that this machine, kernel
/// and file system offer, and logs the choice and its reason. If a forced kind does not work, it fails; it is never
/// replaced silently. Errors: not_found, io_error, unsupported.
Expected<std::unique_ptr<Backend>> open_backend(const std::vector<std::string>& paths, const OpenOptions& options);

}  // namespace millrace::storage
