#include "residency/gpu/copies.h"

#include <utility>

namespace millrace::residency {

Expected<std::unique_ptr<CopyQueue>> CopyQueue::create(device::StreamRef stream) {
  MR_ASSIGN_OR_RETURN(const int device, device::present_gpu());
  std::unique_ptr<CopyQueue> queue(new CopyQueue(stream));
  queue->thread_ = std::thread([raw = queue.get(), device] {
    const device::OnGpu on(device);
    raw->run();
  });
  return queue;
}

CopyQueue::~CopyQueue() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CopyQueue::copy(std::byte* to, const std::byte* from, std::uint64_t bytes) { add({to, from, bytes, {}}); }

std::uint64_t CopyQueue::record(device::EventRef event) {
  add({nullptr, nullptr, 0, event});
  return ++ordered_;
}

void CopyQueue::add(const Order& order) {
  {
    const MutexLock lock(mutex_);
    orders_.push_back(order);
  }
  changed_.notify_all();
}

Status CopyQueue::drain() {
  const MutexLock lock(mutex_);
  changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return orders_.empty(); });
  return status_;
}

/// Behind an order that failed nothing more is started: its event is never said to be recorded.
void CopyQueue::run() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return ending_ || !orders_.empty(); });
    if (ending_) return;
    const Order order = orders_.front();
    if (status_.ok()) {
      lock.unlock();
      Status status = start(order);
      lock.lock();
      if (status.ok() && !order.event.none()) recorded_.fetch_add(1, std::memory_order_release);
      status_ = std::move(status);
    }
    orders_.pop_front();
    if (orders_.empty()) changed_.notify_all();
  }
}

Status CopyQueue::start(const Order& order) const {
  return order.event.none() ? device::copy_to_device(order.to, order.from, order.bytes, stream_)
                            : device::record(order.event, stream_);
}

}  // namespace millrace::residency
