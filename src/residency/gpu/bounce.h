// Reads files into device memory through page-locked memory: a backend whose destinations are the GPU's, for files and
// machines that cuFile does not serve (storage/cufile.h). A thread takes the reads in order, cuts them into chunks that
// land in a small ring, and copies each from there; a read has ended when its bytes are in device memory, for every
// stream's launches from then on. Destinations need no alignment, and nothing around them is written.
// Thread-safety: any thread submits. `host` outlives the object; destroying ends what was submitted first.
#pragma once

#include <deque>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "base/os/thread.h"
#include "device/device.h"
#include "residency/chunk_ring.h"
#include "storage/storage.h"

namespace millrace::residency {

class BounceBackend final : public storage::Backend {
 public:
  /// To the device that is present on the calling thread. Takes kLoadingBytes of page-locked memory. Errors:
  /// out_of_budget, io_error.
  static Expected<std::unique_ptr<BounceBackend>> create(storage::Backend& host);
  ~BounceBackend() override;

  const storage::BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const storage::Read> reads, storage::Completion& completion) override;
  Status health() const override { return host_.health(); }
  storage::Counters counters() const override { return host_.counters(); }

 private:
  struct Job {
    storage::Read read;
    storage::Completion* completion = nullptr;
    std::uint64_t asked = 0, landed = 0;  // bytes whose reads were started; that are in device memory
    Status status;
  };

  BounceBackend(storage::Backend& host, int device);
  Status open();
  void work();
  bool take_jobs(bool wait);
  void start_chunks();
  void land_oldest();
  Status copy(const std::byte* from, std::byte* to, std::uint64_t bytes, std::size_t slot);

  storage::Backend& host_;
  const int device_;
  const storage::BackendTraits traits_;
  device::PinnedBuffer memory_;
  device::Stream stream_;
  std::unique_ptr<device::Event[]> copied_;  // by place in the ring
  std::unique_ptr<ChunkRing> ring_;

  // The thread's.
  std::deque<Job> jobs_;              // under way, in order
  std::size_t next_ = 0;              // the first of jobs_ that has chunks to start
  std::deque<std::uint64_t> chunks_;  // bytes of those in the ring, in order

  Mutex mutex_;
  CondVar wake_;
  std::deque<Job> submitted_ MR_GUARDED_BY(mutex_);
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  os::Thread thread_;
};

}  // namespace millrace::residency
