// A backend whose reads are done by a pool of threads from one shared queue, so that the pieces of one large read run
// side by side; files on several disks have threads for each. What a thread does with a request is the derived class's:
// pread, or a copy from a map.
#pragma once

#include <memory>
#include <vector>

#include "base/mutex.h"
#include "base/os/thread.h"
#include "storage/disk_queues.h"
#include "storage/request.h"

namespace millrace::storage {

class PoolBackend : public Backend {
 public:
  const BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const Read> reads, Completion& completion) override;
  Status health() const override { return files_.health(); }
  Counters counters() const override { return meter_.counters(); }

 protected:
  PoolBackend(FileSet files, std::string name, bool bypasses_page_cache, std::uint64_t request_bytes)
      : files_(std::move(files)),
        traits_{std::move(name), files_.alignment(), bypasses_page_cache},
        request_bytes_(request_bytes) {}
  PoolBackend(FileSet files, BackendTraits traits, std::uint64_t request_bytes)
      : files_(std::move(files)), traits_(std::move(traits)), request_bytes_(request_bytes) {}

  /// Derived constructors' callers start the pool once the object stands; derived destructors stop it.
  /// threads: for each disk.
  Status start(int threads, std::size_t stack_bytes = os::Thread::kStackBytes);
  void stop();

  /// One attempt at the rest of the request: bytes that arrived at request.next(), or -errno.
  virtual std::int64_t attempt(const Request& request) = 0;

  // What a backend may do its own way.
  /// Once on each of the pool's threads, before its first request; an error fails every request that this thread takes.
  virtual Status enter_thread() { return {}; }
  /// Adds the requests that make up the reads. Called with the queue locked.
  virtual void cut(std::span<const Read> reads, Completion& completion, Fifo<Request>& out) {
    cut_reads(reads, files_, request_bytes_, completion, out);
  }
  /// Says what attempt()'s errors mean; see settle().
  virtual std::string (*cause() const)(int) { return system_cause; }

  std::uint64_t request_bytes() const { return request_bytes_; }

  const FileSet files_;

 private:
  void work();
  Status finish(Request& request);

  const BackendTraits traits_;
  const std::uint64_t request_bytes_;
  Meter meter_;
  Mutex mutex_;
  CondVar wake_;
  std::unique_ptr<DiskQueues> queue_ MR_PT_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  std::vector<os::Thread> threads_;
};

}  // namespace millrace::storage
