#include "storage/pool_backend.h"

#include <algorithm>

namespace millrace::storage {

Status PoolBackend::start(int threads, std::size_t stack_bytes) {
  for (int i = 0; i < std::max(threads, 1); ++i) {
    MR_ASSIGN_OR_RETURN(SmallThread thread, SmallThread::start(
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
    const std::size_t before = queue_.size();
    cut(reads, completion, queue_);
    added = queue_.size() - before;
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
      wake_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      request = queue_.pop();
      cancelled = stopping_;
    }
    const Status status = cancelled     ? error(Code::cancelled, "the storage was closed")
                          : !ready.ok() ? ready
                                        : finish(request);
    meter_.finished(status.ok() ? request.needed - request.lead : 0);
    request.completion->finish_one(status);
  }
}

}  // namespace millrace::storage
