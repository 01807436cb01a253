// Shared by backends: splitting reads into requests, the rule of exact lengths, and counters.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "storage/file_set.h"
#include "storage/storage.h"

namespace millrace::storage {

/// A read as it is passed to the kernel: whole blocks of the backend's alignment.
struct Request {
  int file = 0;
  std::uint64_t offset = 0;          // a multiple of the alignment
  std::uint64_t bytes = 0;           // a multiple of the alignment
  std::byte* destination = nullptr;  // for the byte at `offset`
  std::uint64_t lead = 0;            // the caller asked for bytes [lead, needed) of these
  std::uint64_t needed = 0;
  std::uint64_t got = 0;  // [0, got) have arrived
  int retries = 0;        // attempts without progress
  Completion* completion = nullptr;

  /// Where the next attempt starts: after the bytes that arrived, at a block boundary.
  std::uint64_t next(std::uint64_t alignment) const { return got / alignment * alignment; }
};

/// A queue that stops allocating once it has reached its working size.
template <typename T>
class Fifo {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  void push(T item) {
    if (count_ == items_.size()) grow();
    items_[(first_ + count_++) % items_.size()] = std::move(item);
  }
  T pop() {
    T item = std::move(items_[first_]);
    first_ = (first_ + 1) % items_.size();
    --count_;
    return item;
  }

 private:
  void grow() {
    std::vector<T> larger(items_.empty() ? 64 : items_.size() * 2);
    const std::size_t count = count_;
    for (std::size_t i = 0; i < count; ++i) larger[i] = pop();
    items_ = std::move(larger);
    first_ = 0;
    count_ = count;
  }
  std::vector<T> items_;
  std::size_t first_ = 0, count_ = 0;
};

/// Widens the reads to the files' alignment, splits them into requests of at most about `request_bytes`, and registers
/// each with the Completion. All but a read's last request are multiples of `granule`. Invalid reads (FileSet::check;
/// for device memory check_range) end at once with their error.
void cut_reads(std::span<const Read> reads, const FileSet& files, std::uint64_t request_bytes, Completion& completion,
               Fifo<Request>& out, std::uint64_t granule = kMaxAlignment, Memory memory = Memory::host);

/// For backends whose destinations need no alignment and which write nothing around them: splits the reads so that all
/// but their first and last bytes are whole, aligned blocks of kMaxAlignment in the file, in requests of at most about
/// `request_bytes`. A small read (64 KiB) is not split.
void cut_reads_exactly(std::span<const Read> reads, const FileSet& files, std::uint64_t request_bytes,
                       Completion& completion, Fifo<Request>& out);

/// Keeps a Completion from ending while a batch is still being submitted.
class Hold {
 public:
  explicit Hold(Completion& completion) : completion_(completion) { completion_.expect(1); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { completion_.finish_one(Status()); }

 private:
  Completion& completion_;
};

enum class Outcome { done, again };

/// strerror.
std::string system_cause(int code);

/// Evaluates an attempt's result (bytes read, or -errno). This is the only place that handles short reads, EINTR,
/// EAGAIN and the end of the file. `again`: another attempt at request.next() is due. `cause` describes error numbers
/// that are not the system's. Errors: io_error.
Expected<Outcome> settle(Request& request, std::int64_t result, const FileSet& files,
                         std::string (*cause)(int) = system_cause);

/// Counts requests, bytes, and the time during which any request is in flight. Thread-safe.
class Meter {
 public:
  void started(std::uint64_t requests);
  /// A started request was passed to the kernel once.
  void attempted();
  /// A started request ended and delivered `bytes` of the bytes asked for.
  void finished(std::uint64_t bytes);
  Counters counters() const;

 private:
  using Clock = std::chrono::steady_clock;
  mutable Mutex mutex_;
  Counters counters_ MR_GUARDED_BY(mutex_);
  std::uint64_t in_flight_ MR_GUARDED_BY(mutex_) = 0;
  Clock::time_point since_ MR_GUARDED_BY(mutex_);  // start of the current busy period
};

}  // namespace millrace::storage
