// Moves file bytes to host memory, or (cufile.h) to device memory. Knows no tensors.
//
// A read is {file, offset, bytes, destination} and delivers exactly those bytes or an error, never fewer in silence.
// Reads are submitted in batches that share one Completion; submit() returns at once and the bytes arrive behind it.
// Short reads, EINTR, EAGAIN and end of file are handled inside a backend, in one place.
//
// Alignment: a backend with alignment A > 1 (O_DIRECT) widens a read to whole blocks of A. So that this costs no copy,
// the destination must be congruent to the file offset modulo A, and the bytes of the whole blocks around it belong to
// the read: widened(offset, bytes, A) says how much memory that is. What lies around the asked bytes afterwards is
// unspecified. Every backend accepts such destinations, so callers always allocate for kMaxAlignment.
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

/// Counts down a batch of reads and keeps its first error. Must outlive the batch; may be destroyed as soon as done()
/// or wait() says so, even while finish_one() is returning. Reusable once done: the first expect() after a wait()
/// forgets the old error, and no error is forgotten before a wait() has told it. Several submits may share one
/// Completion.
class Completion {
 public:
  Completion() = default;
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  bool done() const { return pending_.load(std::memory_order_acquire) == 0; }
  /// Blocks until every read of the batch has ended; the first error, or ok.
  Status wait();

  // For backends:
  void expect(std::uint32_t reads);
  void finish_one(const Status& status);

 private:
  std::atomic<std::uint32_t> pending_{0};
  Mutex mutex_;
  Status status_ MR_GUARDED_BY(mutex_);
  bool reported_ MR_GUARDED_BY(mutex_) = false;  // a wait() has returned status_
};

/// What kind of memory a backend's destinations are: it reads into this kind and no other.
enum class Memory { host, device };

struct BackendTraits {
  std::string name;          // "io_uring+O_DIRECT", "pread+O_DIRECT", "pread", "mmap", "cuFile"
  std::uint64_t alignment;   // 1, or what O_DIRECT asks for on this file system
  bool bypasses_page_cache;  // false: its bytes may also be held by the page cache
  Memory memory = Memory::host;
  std::string reason{};  // which way it goes and why, where it has several, and what would change that
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

  /// Starts the reads. The Completion ends with the first error among them. Errors met at once are delivered through
  /// the Completion too.
  virtual void submit(std::span<const Read> reads, Completion& completion) = 0;

  /// Where the file's bytes can be used in place (mmap), else nullptr. A page that turns out unreadable reads as zeros
  /// and makes health() fail.
  virtual const std::byte* in_place(int file, std::uint64_t offset, std::uint64_t bytes) const;

  /// Tells the backend that reads will go into this range for as long as the backend lives (io_uring fixed buffers).
  /// A hint: failure is logged and costs speed only.
  /// REQUIRES: the range stays mapped, and none of it is given back to the kernel (HostBuffer::release, munmap) while
  /// the backend lives: the kernel pins these very pages, backs all of them now, and would go on reading into the old
  /// ones.
  virtual void register_memory(std::span<std::byte> range);

  /// Error when what was read can no longer be trusted: a file was truncated or changed since open, or a mapped page
  /// failed. Cheap (one fstat a file); the engine asks after each pass and before it believes the pass's tokens.
  virtual Status health() const = 0;

  virtual Counters counters() const = 0;
};

/// pread_direct and pread_buffered read by threads, past the system's cache or through it: by pread, on Windows by
/// ReadFile.
enum class BackendKind { automatic, io_uring, pread_direct, pread_buffered, mmap, directstorage };
/// "auto", "io_uring", "pread-direct", "pread", "mmap", "directstorage"
std::string_view backend_name(BackendKind kind);
/// Those that this system may have, automatic first.
std::span<const BackendKind> backend_kinds();
/// Those of them that read past the system's cache: what a disk is measured with.
std::span<const BackendKind> uncached_kinds();
/// The names of all, for people: "auto, io_uring, pread-direct, pread, mmap".
std::string backend_names();
/// Errors: invalid_argument, which names those of backend_kinds().
Expected<BackendKind> backend_from_name(std::string_view name);

struct OpenOptions {
  BackendKind kind = BackendKind::automatic;
  bool everything_fits = false;            // the whole model fits the budget with room to spare: mmap may be
                                           // chosen where O_DIRECT is not to be had
  bool directstorage_faster = false;       // as measured on this disk, than reads past the cache: it is taken first
  int threads = 8;                         // of the pread pool, for each disk that files lie on
  int queue_depth = 32;                    // requests in flight, of each disk
  std::uint64_t request_bytes = 1u << 20;  // large reads are cut into requests of this size
  // io_uring: a disk has at most so much at once, or one request; what was asked for later waits. A disk serves
  // what it has side by side, so without a bound the first of several reads ends hardly before the last.
  std::uint64_t bytes_in_flight = UINT64_MAX;
};

/// Opens the files (a model's splits, in order) with the backend asked for, or with the best one this machine, kernel
/// and file system offer; logs the choice and its reason. A forced kind that does not work is an error, never a
/// silent substitute. Errors: not_found, io_error, unsupported.
Expected<std::unique_ptr<Backend>> open_backend(const std::vector<std::string>& paths, const OpenOptions& options);

}  // namespace millrace::storage
