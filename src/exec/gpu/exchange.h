// The queue between a GPU's stream and the processor: for each job the GPU hands out its input, goes on with work of
// its own, and takes the processor's results in when their flag says so (kernels/gpu/exchange.h). Who computes what is
// the derived class's affair.
//
// Jobs are queued as the launches are made; a thread of its own runs them in order, so that launches are made far ahead
// and nobody waits for one. Every queued job is run or abandoned: the stream waits for its flag.
//
// The exchange's thread never calls the driver, nor may compute() or settle(). A driver that is busy (it loads a kernel
// at its first launch, it frees memory for another model) may let callers wait for the device, which waits for them.
// Thread-safety: one thread calls; compute() runs on the exchange's own.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>

#include "base/mutex.h"
#include "device/device.h"

namespace millrace::exec {

class HostExchange {
 public:
  HostExchange() = default;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;
  virtual ~HostExchange() = default;

  /// For the launches: number of the next job, and where the device sees the flags.
  std::uint32_t next_number() { return ++last_number_; }
  std::uint32_t* device_input_flag() const { return device_at<std::uint32_t>(0); }
  const std::uint32_t* device_output_flag() const { return device_at<std::uint32_t>(kFlagBytes); }
  std::uint32_t* arrived() const { return reinterpret_cast<std::uint32_t*>(words_.data()); }
  std::uint32_t* seen() const { return reinterpret_cast<std::uint32_t*>(words_.data() + kFlagBytes); }

  /// Waits until all that were queued are done. Errors: io_error (the device is lost), and what compute() returned;
  /// then abandon() is due.
  Status finish();
  /// Sets the flags of all jobs that have numbers without computing more: the pass has failed.
  void abandon();

  // --- Other devices take the same results in, without handing out ---

  /// The number of the last job. Between passes.
  std::uint32_t last_number() const { return last_number_; }
  /// Whether the present device sees the memory of the exchange where this one's does. Errors: unsupported.
  Status check_seen() const;
  /// A pass has failed behind abandon(): whoever still waits for any job does so no longer. Until they have gone;
  /// then the flag is that of last_number() again.
  void let_others_go() { done(last_number_ + kFarAhead); }
  void others_have_gone() { done(last_number_); }

 protected:
  static constexpr std::uint64_t kFlagBytes = 256;                // each flag on lines of its own
  static constexpr std::uint64_t kPayload = 2 * kFlagBytes;       // where page-locked memory is the derived class's
  static constexpr std::uint32_t kFarAhead = 1u << 30;            // jobs
  static constexpr std::size_t kMostQueued = 16, kFewQueued = 6;  // launches are made so far ahead

  /// Page-locked memory, the flags and `payload` bytes behind them, and the thread. REQUIRES: the derived object is
  /// whole; it calls stop() before it goes. for_all: other devices take results in, too. Errors: out_of_budget,
  /// io_error.
  Status start(std::uint64_t payload, bool for_all = false);
  void stop();

  /// Keeps the job in its place of `jobs`, which compute() will name, and queues it. Its hand-out and take-in are on
  /// `stream`.
  template <typename Job>
  void enqueue(std::array<Job, kMostQueued>& jobs, const Job& job, device::StreamRef stream) {
    const std::size_t place = claim();
    if (place == kMostQueued) return;
    jobs[place] = job;
    queue(job.number, stream);
  }

  /// Runs on the exchange's thread, once the job's input is there. What it fails with ends the pass.
  virtual Status compute(std::size_t place) = 0;
  /// Behind it, while the GPU already goes on: what need not be waited for.
  virtual void settle() {}
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  template <typename T>
  T* host_at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(shared_.data() + offset);
  }
  template <typename T>
  T* device_at(std::uint64_t offset) const {
    return reinterpret_cast<T*>(device_shared_ + offset);
  }

 private:
  /// A place for the next job; waits while many are queued: a thread that waits for the
  /// device's queue of launches would do so on a processor that is needed. kMostQueued: there is none, because a job
  /// has failed; finish() says so, and abandon() sets this job's flag too.
  std::size_t claim();
  /// The job in the claimed place is whole. Its hand-out and take-in are on `stream`.
  void queue(std::uint32_t number, device::StreamRef stream);
  void run_jobs();
  template <typename Ready>
  void await(Ready ready) MR_REQUIRES(mutex_);
  bool handed_out(std::uint32_t number) const;
  bool await_input(std::uint32_t number) const;
  void fail(Status status);
  void done(std::uint32_t number);

  device::PinnedBuffer shared_;
  std::byte* device_shared_ = nullptr;
  device::DeviceBuffer words_;
  std::uint32_t last_number_ = 0;

  struct Queued {
    std::uint32_t number = 0;
    device::StreamRef stream;
  };
  Mutex mutex_;
  CondVar changed_;
  std::array<Queued, kMostQueued> queue_ MR_GUARDED_BY(mutex_);                     // a ring of `queued_`
  std::size_t first_ MR_GUARDED_BY(mutex_) = 0, queued_ MR_GUARDED_BY(mutex_) = 0;  // the first is being computed
  Status status_ MR_GUARDED_BY(mutex_);  // the first failure since the last finish() or abandon()
  bool ending_ MR_GUARDED_BY(mutex_) = false;
  std::atomic<bool> abandoned_{false};
  std::thread thread_;
};

}  // namespace millrace::exec
