#include "storage/pool_backend.h"

#include <algorithm>
#include <memory>

#include "base/carry_on.h"

namespace millrace::storage {

Status PoolBackend::start(int threads, std::size_t stack_bytes) {
  threads = std::max(threads, 1);
  queue_ = std::make_unique<DiskQueues>(files_, static_cast<std::size_t>(threads), UINT64_MAX);
  for (int i = 0; i < threads * files_.disks(); ++i) {
    MR_ASSIGN_OR_RETURN(os::Thread thread, os::Thread::start(
                                               "millrace-read", [this] { work(); }, stack_bytes));
    threads_.push_back(std::move(thread));
  }
  return {};
}

void PoolBackend::stop() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  threads_.clear();
}

void PoolBackend::submit(std::span<const Read> reads, Completion& completion) {
  const Hold hold(completion);
  std::size_t added = 0;
  {
    const MutexLock lock(mutex_);
    added = queue_->add([&](Fifo<Request>& out) { cut(reads, completion, out); });
    meter_.started(added);
  }
  for (std::size_t i = 0; i < std::min(added, threads_.size()); ++i) wake_.notify_one();
}

Status PoolBackend::finish(Request& request) {
  while (true) {
    meter_.attempted();
    Expected<Outcome> outcome = settle(request, attempt(request), files_, cause());
    if (!outcome.ok()) return outcome.status();
    if (*outcome == Outcome::done) return {};
  }
}

void PoolBackend::work() {
  const Status ready = enter_thread();
  while (true) {
    Request request;
    bool cancelled = false;
    {
      const MutexLock lock(mutex_);
      wake_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return stopping_ || queue_->ready(); });
      cancelled = stopping_;
      if (cancelled && queue_->empty()) return;
      request = cancelled ? queue_->remove() : queue_->take();
    }
    Status status(Code::unavailable, "out of memory");
    carry_on("a read", [&] {
      status = cancelled ? error(Code::cancelled, "the storage was closed") : !ready.ok() ? ready : finish(request);
    });
    meter_.finished(status.ok() ? request.needed - request.lead : 0);
    if (!cancelled) {
      const MutexLock lock(mutex_);
      queue_->ended(request);
    }
    request.completion->finish_one(status);
  }
}

}  // namespace millrace::storage
