// A backend whose reads are executed by a pool of threads with a shared queue, so that the parts of a large read run in
// parallel. Each disk has its own threads. A derived class executes a request: by pread, or by a copy from a map.
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

  /// start() is called after the derived object is constructed; derived destructors call stop().
  /// threads: per disk.
  Status start(int threads, std::size_t stack_bytes = os::Thread::kStackBytes);
  void stop();

  /// Attempts the rest of the request. Returns the bytes that arrived at request.next(), or -errno.
  virtual std::int64_t attempt(const Request& request) = 0;

  // Overridable steps.
  /// Runs once on each thread before its first request. An error fails every request that the thread takes.
  virtual Status enter_thread() { return {}; }
  /// Splits the reads into requests. Called with the queue locked.
  virtual void cut(std::span<const Read> reads, Completion& completion, Fifo<Request>& out) {
    cut_reads(reads, files_, request_bytes_, completion, out);
  }
  /// Describes attempt()'s errors; see settle().
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
