#include "app/store/download.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>
#include <vector>

#include "base/bytes.h"
#include "base/carry_on.h"
#include "base/log.h"
#include "base/mutex.h"

namespace millrace::store {
namespace {

constexpr int kLongestPauseMs = 16'000;

bool is_set(const std::atomic<bool>* flag) { return flag != nullptr && flag->load(std::memory_order_relaxed); }

/// Whether an attempt brought enough that its failure does not count: so few bytes each time would go on for ever.
bool helped(std::uint64_t got, std::uint64_t asked) { return got > 0 && got >= std::min(asked / 8, 64 * kKiB); }

/// Counts attempts and pauses between them.
class Patience {
 public:
  Patience(const DownloadOptions& options, const std::atomic<bool>* stop) : options_(options), stop_(stop) {}

  /// After a failure; false: there is no point in trying again (too often, or stopped).
  bool wait(const Reply& reply, bool helped) {
    failures_ = helped ? 1 : failures_ + 1;
    if (failures_ >= options_.attempts) return false;
    const int doubled = options_.retry_ms << std::min(failures_ - 1, 10);
    const int pause = std::max(std::min(doubled, kLongestPauseMs), reply.retry_after_seconds * 1000);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(pause);
    while (std::chrono::steady_clock::now() < until) {
      if (is_set(stop_)) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(std::min(pause, 20)));
    }
    return !is_set(stop_);
  }

 private:
  const DownloadOptions& options_;
  const std::atomic<bool>* stop_;
  int failures_ = 0;
};

class Download {
 public:
  Download(const std::string& url, PartFile& part, const DownloadOptions& options)
      : url_(url), part_(part), options_(options) {
    http_ = options.http;
    http_.cancel = &stop_;
  }

  Status run(const std::vector<std::size_t>& chunks, const std::function<void(std::uint64_t)>& on_bytes) {
    std::deque<std::size_t> queue;
    for (const std::size_t chunk : chunks)
      if (!part_.done(chunk)) queue.push_back(chunk);
    if (queue.empty()) return {};
    const std::size_t workers = std::min<std::size_t>(queue.size(), std::max(1, options_.connections));
    in_flight_ = std::vector<std::atomic<std::uint64_t>>(workers);
    {
      const MutexLock lock(mutex_);
      queue_ = std::move(queue);
      running_ = workers;
    }
    std::vector<std::thread> threads;
    threads.reserve(workers);
    for (std::size_t worker = 0; worker < workers; ++worker)
      if (!carry_on("a download", [&] { threads.emplace_back([this, worker] { work(worker); }); })) end_worker({});
    if (threads.empty()) return error(Code::unavailable, "no thread can begin; try again later");
    watch(on_bytes);
    for (std::thread& thread : threads) thread.join();
    if (is_set(options_.http.cancel)) return error(Code::cancelled, "stopped; pull again to go on where it stopped");
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  /// Reports, and passes the caller's wish to stop on, until all workers have ended.
  void watch(const std::function<void(std::uint64_t)>& on_bytes) {
    MutexLock lock(mutex_);
    while (running_ > 0) {
      ended_.wait_for(mutex_, std::chrono::milliseconds(100));
      if (is_set(options_.http.cancel)) stop_ = true;
      std::uint64_t bytes = part_.done_bytes();
      for (const auto& more : in_flight_) bytes += more.load(std::memory_order_relaxed);
      lock.unlock();
      if (on_bytes) on_bytes(std::min(bytes, part_.bytes()));
      lock.lock();
    }
  }

  void work(std::size_t worker) {
    Status status(Code::unavailable, "out of memory");
    carry_on("a download", [&] { status = fetch(worker); });
    end_worker(std::move(status));
  }

  Status fetch(std::size_t worker) {
    Connection connection(http_);
    Status status;
    while (status.ok() && !stop_) {
      std::size_t chunk = 0;
      {
        const MutexLock lock(mutex_);
        if (queue_.empty() || no_ranges_) break;
        chunk = queue_.front();
        queue_.pop_front();
      }
      status = fetch_chunk(connection, chunk, in_flight_[worker]);
    }
    // One of them, the first to learn of it, does the whole job where the server knows no ranges.
    if (status.code() == Code::unsupported)
      status = become_single() ? fetch_whole(connection, in_flight_[worker]) : Status();
    return status;
  }

  void end_worker(Status status) {
    const MutexLock lock(mutex_);
    if (!status.ok() && status.code() != Code::cancelled && failure_.ok()) {
      failure_ = std::move(status);
      stop_ = true;
    }
    --running_;
    ended_.notify_all();
  }

  bool become_single() {
    const MutexLock lock(mutex_);
    if (no_ranges_) return false;
    no_ranges_ = true;
    log::info("{}: the server ignores ranges; reading the file in one piece", url_);
    return true;
  }

  /// The length the server has for the file must be the one its list told.
  Status check_length(std::uint64_t bytes) const {
    if (bytes == part_.bytes()) return {};
    return error(Code::corrupt, "{}: the server sends a file of {} bytes, but its list has {}; try again later", url_,
                 bytes, part_.bytes());
  }

  Status fetch_chunk(Connection& connection, std::size_t chunk, std::atomic<std::uint64_t>& in_flight) {
    const std::uint64_t begin = part_.chunk_begin(chunk), end = part_.chunk_end(chunk);
    std::uint64_t position = begin;
    Patience patience(options_, &stop_);
    Connection::Sink sink;
    sink.begin = [&](const Reply& head) -> Status {
      const bool whole_file = head.code == 200 && position == 0 && end == part_.bytes();
      if (whole_file) return head.length ? check_length(*head.length) : Status();
      if (head.code != 206 || !head.range) return error(Code::unsupported, "no ranges");
      MR_RETURN_IF_ERROR(check_length(head.range->total));
      if (head.range->first == position) return {};
      return error(Code::corrupt, "{}: the server sends another range than the one asked for; try again later", url_);
    };
    sink.add = [&](std::span<const std::byte> bytes) -> Status {
      if (bytes.size() > end - position)
        return error(Code::corrupt, "{}: the server sends more than was asked for; try again later", url_);
      MR_RETURN_IF_ERROR(part_.write(position, bytes));
      position += bytes.size();
      in_flight = position - begin;
      return {};
    };
    while (position < end) {
      const std::uint64_t before = position;
      const Reply reply = connection.get_range(url_, before, end - before, sink);
      if (position == end) break;
      if (!reply.ok() && !reply.retriable) return reply.status(url_);
      if (patience.wait(reply, helped(position - before, end - before))) continue;
      return reply.ok() ? error(Code::io_error, "{}: the server sends too little; try again later", url_)
                        : reply.status(url_);
    }
    Status status = part_.mark_done(chunk);
    in_flight = 0;
    return status;
  }

  /// The whole file from its beginning, as often as it takes; chunks that are there are read past.
  Status fetch_whole(Connection& connection, std::atomic<std::uint64_t>& in_flight) {
    Patience patience(options_, &stop_);
    std::uint64_t position = 0;
    Connection::Sink sink;
    sink.begin = [&](const Reply& head) { return head.length ? check_length(*head.length) : Status(); };
    sink.add = [&](std::span<const std::byte> bytes) { return add_in_order(bytes, position, in_flight); };
    while (!part_.complete()) {
      const std::uint64_t before = part_.done_bytes();
      position = 0;
      const Reply reply = connection.get_range(url_, 0, part_.bytes(), sink);
      if (part_.complete()) break;
      if (!reply.ok() && !reply.retriable) return reply.status(url_);
      if (patience.wait(reply, part_.done_bytes() > before)) continue;
      return reply.ok() ? error(Code::io_error, "{}: the server sends too little; try again later", url_)
                        : reply.status(url_);
    }
    return {};
  }

  Status add_in_order(std::span<const std::byte> bytes, std::uint64_t& position,
                      std::atomic<std::uint64_t>& in_flight) {
    if (bytes.size() > part_.bytes() - position)
      return error(Code::corrupt, "{}: the server sends more bytes than its list has; try again later", url_);
    while (!bytes.empty()) {
      const std::size_t chunk = part_.chunk_of(position);
      const std::uint64_t end = part_.chunk_end(chunk);
      const auto piece = bytes.first(static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), end - position)));
      if (!part_.done(chunk)) {
        MR_RETURN_IF_ERROR(part_.write(position, piece));
        in_flight = position + piece.size() - part_.chunk_begin(chunk);
      }
      position += piece.size();
      bytes = bytes.subspan(piece.size());
      if (position == end && !part_.done(chunk)) {
        MR_RETURN_IF_ERROR(part_.mark_done(chunk));
        in_flight = 0;
      }
    }
    return {};
  }

  const std::string& url_;
  PartFile& part_;
  const DownloadOptions& options_;
  HttpOptions http_;
  std::atomic<bool> stop_{false};
  std::vector<std::atomic<std::uint64_t>> in_flight_;  // by worker: bytes of its chunk so far
  Mutex mutex_;
  CondVar ended_;
  std::deque<std::size_t> queue_ MR_GUARDED_BY(mutex_);
  std::size_t running_ MR_GUARDED_BY(mutex_) = 0;
  bool no_ranges_ MR_GUARDED_BY(mutex_) = false;
  Status failure_ MR_GUARDED_BY(mutex_);
};

}  // namespace

Status download(const std::string& url, PartFile& part, const std::vector<std::size_t>& chunks,
                const DownloadOptions& options, const std::function<void(std::uint64_t)>& on_bytes) {
  return Download(url, part, options).run(chunks, on_bytes);
}

Expected<Reply> get_patiently(const std::string& url, std::uint64_t max_bytes, const DownloadOptions& options) {
  Connection connection(options.http);
  Patience patience(options, options.http.cancel);
  int unreachable = 0;
  while (true) {
    Reply reply = connection.get(url, max_bytes);
    if (reply.ok()) return reply;
    // Where nothing answers at all, waiting longer helps nobody: whoever is offline should hear it.
    if (reply.unreachable && ++unreachable > 1) return reply.status(url);
    if (!reply.retriable || !patience.wait(reply, false)) {
      if (is_set(options.http.cancel)) return error(Code::cancelled, "stopped");
      return reply.status(url);
    }
  }
}

}  // namespace millrace::store
