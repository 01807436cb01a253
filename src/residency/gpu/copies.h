// Copies to the device for a thread that must never wait for the driver.
//
// A busy driver (one that loads a kernel or frees memory) may block callers until the running work on the device has
// ended, and that work may itself wait for the calling thread (exec/gpu/exchange.h): a deadlock. So callers only
// enqueue copies here, and a thread of this object, which the device never waits for, starts them. Thread-safety: one
// thread at a time calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/status.h"
#include "device/device.h"

namespace millrace::residency {

class CopyQueue {
 public:
  /// Copies go on `stream`, which outlives the object, of the device that is current.
  static Expected<std::unique_ptr<CopyQueue>> create(device::StreamRef stream);
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Enqueues a copy of host memory to the device, in the order of the calls.
  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes);
  /// Enqueues the recording of an event after the earlier copies; the event must outlive that. Returns its number.
  std::uint64_t record(device::EventRef event);
  /// Whether the event of that number is recorded on the stream. 0 always is.
  bool recorded(std::uint64_t number) const { return recorded_.load(std::memory_order_acquire) >= number; }
  /// Waits until everything enqueued is on the stream. Must not be called by a thread that the device waits for.
  /// Errors: the first error of the driver, in every later call, too.
  Status drain();

 private:
  /// A copy, or an event to be recorded.
  struct Order {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    std::uint64_t bytes = 0;
    device::EventRef event;
  };

  explicit CopyQueue(device::StreamRef stream) : stream_(stream) {}
  void add(const Order& order);
  void run();
  Status start(const Order& order) const;

  const device::StreamRef stream_;
  std::uint64_t ordered_ = 0;  // events
  std::atomic<std::uint64_t> recorded_{0};
  Mutex mutex_;
  CondVar changed_;
  std::deque<Order> orders_ MR_GUARDED_BY(mutex_);  // the first is being started
  Status status_ MR_GUARDED_BY(mutex_);
  bool ending_ MR_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace millrace::residency
