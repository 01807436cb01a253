#include "exec/gpu/exchange.h"

#include <chrono>
#include <utility>

#include "base/spin.h"

namespace millrace::exec {
namespace {

constexpr std::chrono::milliseconds kAskAfter{20};  // of waiting: whether the device still lives

}  // namespace

Status HostExchange::start(std::uint64_t payload, bool for_all) {
  MR_ASSIGN_OR_RETURN(shared_, device::PinnedBuffer::allocate(kPayload + payload, for_all));
  MR_ASSIGN_OR_RETURN(device_shared_, device::seen_by_gpu(shared_.data()));
  MR_ASSIGN_OR_RETURN(words_, device::DeviceBuffer::allocate(2 * kFlagBytes));
  MR_RETURN_IF_ERROR(device::clear_device(words_));
  thread_ = std::thread([this] { run_jobs(); });
  return {};
}

Status HostExchange::check_seen() const {
  MR_ASSIGN_OR_RETURN(const std::byte* const seen, device::seen_by_gpu(shared_.data()));
  if (seen == device_shared_) return {};
  return error(Code::unsupported, "GPUs see the host's memory at different addresses, and experts flow to one alone");
}

void HostExchange::stop() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::size_t HostExchange::claim() {
  MutexLock lock(mutex_);
  if (queued_ == kMostQueued) await([&]() MR_REQUIRES(mutex_) { return queued_ <= kFewQueued || !status_.ok(); });
  return queued_ == kMostQueued ? kMostQueued : (first_ + queued_) % kMostQueued;
}

void HostExchange::queue(std::uint32_t number, device::StreamRef stream) {
  {
    const MutexLock lock(mutex_);
    queue_[(first_ + queued_++) % kMostQueued] = {number, stream};
  }
  changed_.notify_all();
}

/// Until it is ready or a job has failed; asks now and then whether the device still lives.
template <typename Ready>
void HostExchange::await(Ready ready) {
  while (!changed_.wait_for(mutex_, kAskAfter, ready)) {
    const Queued last = queue_[(first_ + queued_ - 1) % kMostQueued];
    const Expected<bool> idle = [&] {
      const MutexUnlock unlocked(mutex_);
      return device::is_idle(last.stream);
    }();
    if (!status_.ok() || (idle.ok() && (!*idle || handed_out(last.number)))) continue;
    status_ = idle.ok() ? error(Code::internal, "the GPU has ended without handing out input {}", last.number)
                        : idle.status();
    return;
  }
}

Status HostExchange::finish() {
  MutexLock lock(mutex_);
  await([&]() MR_REQUIRES(mutex_) { return queued_ == 0 || !status_.ok(); });
  return std::exchange(status_, Status());
}

void HostExchange::abandon() {
  abandoned_ = true;
  {
    MutexLock lock(mutex_);
    changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return queued_ == 0; });
    status_ = {};
  }
  done(last_number_);
  abandoned_ = false;
}

void HostExchange::run_jobs() {
  MutexLock lock(mutex_);
  while (true) {
    changed_.wait(mutex_, [&]() MR_REQUIRES(mutex_) { return ending_ || queued_ > 0; });
    if (ending_) return;
    const std::size_t place = first_;  // stays there: only this thread takes from the front
    const Queued next = queue_[place];
    const bool failed = !status_.ok();
    lock.unlock();
    if (!failed && await_input(next.number)) {
      Status status = compute(place);
      if (status.ok()) {
        done(next.number);
        settle();
      } else {
        fail(std::move(status));
      }
    }
    lock.lock();
    first_ = (first_ + 1) % kMostQueued;
    --queued_;
    if (queued_ == 0 || queued_ == kFewQueued) changed_.notify_all();
  }
}

void HostExchange::fail(Status status) {
  const MutexLock lock(mutex_);
  if (status_.ok()) status_ = std::move(status);
  changed_.notify_all();
}

void HostExchange::done(std::uint32_t number) {
  std::atomic_ref<std::uint32_t>(*host_at<std::uint32_t>(kFlagBytes)).store(number, std::memory_order_release);
}

bool HostExchange::handed_out(std::uint32_t number) const {
  const std::atomic_ref<std::uint32_t> flag(*host_at<std::uint32_t>(0));
  return static_cast<std::int32_t>(flag.load(std::memory_order_acquire) - number) >= 0;
}

/// False: the job is not to be computed, because the pass is abandoned.
bool HostExchange::await_input(std::uint32_t number) const {
  while (!handed_out(number) && !abandoned()) relax();
  return !abandoned();
}

}  // namespace millrace::exec
