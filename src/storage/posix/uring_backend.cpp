// io_uring with O_DIRECT: many requests in flight without a thread each. Submitting threads write requests to the ring
// under a lock. A reaper thread takes completions and refills the ring from the queue of requests that did not fit.
#include <liburing.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "base/bytes.h"
#include "base/log.h"
#include "base/mutex.h"
#include "base/os/thread.h"
#include "storage/backends.h"
#include "storage/disk_queues.h"
#include "storage/request.h"

namespace millrace::storage {
namespace {

constexpr std::uint64_t kStop = UINT64_MAX;  // user data that ends the reaper; others are slot numbers
constexpr unsigned kMaxRegions = 64;         // table of registered memory
constexpr std::uint64_t kMaxRegionBytes = std::uint64_t{1} << 30;  // the kernel's limit for one registered buffer
constexpr int kMaxDepth = 1024;

/// Owns an io_uring.
class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (made_) io_uring_queue_exit(&ring_);
  }
  /// Errors: unsupported if the kernel, a container's filter or a limit refuses a ring.
  Status make(unsigned entries) {
    const int code = io_uring_queue_init(entries, &ring_, 0);
    if (code < 0) {
      const char* hint = code == -EPERM    ? ", a container's filter or kernel.io_uring_disabled forbids it"
                         : code == -ENOMEM ? ", raise the limit on locked memory (ulimit -l)"
                                           : "";
      return error(Code::unsupported, "io_uring is not available here ({}{})", std::strerror(-code), hint);
    }
    made_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool reads = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) != 0;
    io_uring_free_probe(probe);
    if (!reads) return error(Code::unsupported, "this kernel's io_uring is too old to read (Linux 5.6 is needed)");
    return {};
  }
  io_uring* get() { return &ring_; }
  bool made() const { return made_; }

 private:
  io_uring ring_{};
  bool made_ = false;
};

class UringBackend final : public Backend {
 public:
  UringBackend(FileSet files, const OpenOptions& options)
      : files_(std::move(files)),
        traits_{.name = "io_uring+O_DIRECT", .alignment = files_.alignment(), .bypasses_page_cache = true},
        request_bytes_(options.request_bytes),
        queue_(files_, static_cast<std::size_t>(std::max(options.queue_depth, 1)), options.bytes_in_flight),
        slots_(static_cast<std::size_t>(std::clamp(options.queue_depth * files_.disks(), 1, kMaxDepth))) {
    for (std::size_t i = slots_.size(); i > 0; --i) free_slots_.push_back(static_cast<std::uint32_t>(i - 1));
    regions_.reserve(kMaxRegions);
  }
  ~UringBackend() override;
  Status start();

  const BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const Read> reads, Completion& completion) override;
  void register_memory(std::span<std::byte> range) override;
  Status health() const override { return files_.health(); }
  Counters counters() const override { return meter_.counters(); }

 private:
  struct Region {
    std::uintptr_t begin, end;
  };
  struct Ended {
    Completion* completion = nullptr;
    Status status;
  };
  static constexpr unsigned kReapedAtOnce = 16;

  void register_files();
  /// The index of the registered region that holds the whole range, or -1.
  int region_of(const std::byte* data, std::uint64_t bytes) const MR_REQUIRES(mutex_);
  void put(std::uint32_t slot) MR_REQUIRES(mutex_);
  void fill() MR_REQUIRES(mutex_);
  void flush() MR_REQUIRES(mutex_);
  void reap();
  /// Evaluates a completed slot; true if its request has ended, with the result in `ended`.
  bool take(std::uint32_t slot, int result, Ended& ended);

  const FileSet files_;
  const BackendTraits traits_;
  const std::uint64_t request_bytes_;
  Meter meter_;
  Ring ring_;  // only the reaper uses the completion side; the submission side needs mutex_
  bool fixed_files_ = false;
  bool fixed_memory_ = false;

  Mutex mutex_;
  DiskQueues queue_ MR_GUARDED_BY(mutex_);  // wait for a slot
  std::vector<Request> slots_;              // in flight; a used slot belongs to the kernel, then to the reaper
  std::vector<std::uint32_t> free_slots_ MR_GUARDED_BY(mutex_);
  std::vector<Region> regions_ MR_GUARDED_BY(mutex_);  // index = index in the kernel's table
  bool stopping_ MR_GUARDED_BY(mutex_) = false;
  os::Thread reaper_;
};

Status UringBackend::start() {
  MR_RETURN_IF_ERROR(ring_.make(static_cast<unsigned>(std::max<std::size_t>(slots_.size(), 8))));
  register_files();
  fixed_memory_ = io_uring_register_buffers_sparse(ring_.get(), kMaxRegions) == 0;
  MR_ASSIGN_OR_RETURN(reaper_, os::Thread::start("millrace-reap", [this] { reap(); }));
  return {};
}

void UringBackend::register_files() {
  std::vector<int> fds(static_cast<std::size_t>(files_.count()));
  for (int i = 0; i < files_.count(); ++i) fds[static_cast<std::size_t>(i)] = static_cast<int>(files_.handle(i));
  const int code = io_uring_register_files(ring_.get(), fds.data(), static_cast<unsigned>(fds.size()));
  fixed_files_ = code == 0;
  if (!fixed_files_)
    log::info("storage: files not registered with io_uring ({}); a little slower", std::strerror(-code));
}

UringBackend::~UringBackend() {
  if (!ring_.made()) return;
  Fifo<Request> cancelled;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    while (!queue_.empty()) cancelled.push(queue_.remove());
    if (io_uring_sqe* sqe = io_uring_get_sqe(ring_.get()); sqe != nullptr) {
      io_uring_prep_nop(sqe);
      io_uring_sqe_set_data64(sqe, kStop);
      flush();
    }
  }
  while (!cancelled.empty()) {
    const Request request = cancelled.pop();
    meter_.finished(0);
    request.completion->finish_one(error(Code::cancelled, "the storage was closed"));
  }
  reaper_ = os::Thread();
}

void UringBackend::submit(std::span<const Read> reads, Completion& completion) {
  const Hold hold(completion);
  const MutexLock lock(mutex_);
  meter_.started(queue_.add([&](Fifo<Request>& out) { cut_reads(reads, files_, request_bytes_, completion, out); }));
  fill();
}

void UringBackend::register_memory(std::span<std::byte> range) {
  const MutexLock lock(mutex_);
  int code = fixed_memory_ ? 0 : -EOPNOTSUPP;
  for (std::uint64_t at = 0; at < range.size() && code >= 0; at += kMaxRegionBytes) {
    iovec piece = {range.data() + at, std::min<std::size_t>(kMaxRegionBytes, range.size() - at)};
    code = regions_.size() == kMaxRegions ? -ENOSPC : 0;
    if (code == 0) {
      code =
          io_uring_register_buffers_update_tag(ring_.get(), static_cast<unsigned>(regions_.size()), &piece, nullptr, 1);
    }
    if (code < 0) break;
    const auto begin = reinterpret_cast<std::uintptr_t>(piece.iov_base);
    regions_.push_back({begin, begin + piece.iov_len});
  }
  if (code < 0) {
    log::info("storage: {} of memory not registered with io_uring ({}{}); reads go there the plain way",
              format_bytes(range.size()), std::strerror(-code),
              code == -ENOMEM ? "; the limit on locked memory, ulimit -l, is too low" : "");
  }
}

int UringBackend::region_of(const std::byte* data, std::uint64_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(data);
  for (std::size_t i = 0; i < regions_.size(); ++i) {
    if (begin >= regions_[i].begin && begin + bytes <= regions_[i].end) return static_cast<int>(i);
  }
  return -1;
}

/// Writes the rest of the slot's request to the ring. There is always room: entries >= slots, and flush() submits all.
void UringBackend::put(std::uint32_t slot) {
  const Request& request = slots_[slot];
  const std::uint64_t next = request.next(files_.alignment());
  std::byte* destination = request.destination + next;
  const auto bytes = static_cast<unsigned>(request.bytes - next);
  io_uring_sqe* sqe = io_uring_get_sqe(ring_.get());
  MR_ASSERT(sqe != nullptr);
  const int file = fixed_files_ ? request.file : static_cast<int>(files_.handle(request.file));
  const int region = region_of(destination, bytes);
  if (region >= 0) {
    io_uring_prep_read_fixed(sqe, file, destination, bytes, request.offset + next, region);
  } else {
    io_uring_prep_read(sqe, file, destination, bytes, request.offset + next);
  }
  if (fixed_files_) io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
  io_uring_sqe_set_data64(sqe, slot);
  meter_.attempted();
}

/// Moves requests from the queues to free slots, up to each disk's limit on bytes in flight, and submits them.
void UringBackend::fill() {
  bool any = false;
  while (!free_slots_.empty() && queue_.ready()) {
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    slots_[slot] = queue_.take();
    put(slot);
    any = true;
  }
  if (any) flush();
}

/// Submits all entries of the ring. EAGAIN and EBUSY mean that the kernel has no memory now: try again.
void UringBackend::flush() {
  while (io_uring_sq_ready(ring_.get()) > 0) {
    const int code = io_uring_submit(ring_.get());
    if (code < 0 && code != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool UringBackend::take(std::uint32_t slot, int result, Ended& ended) {
  Request& request = slots_[slot];
  const Expected<Outcome> outcome = settle(request, result, files_);
  if (outcome.ok() && *outcome == Outcome::again) return false;
  ended.completion = request.completion;
  ended.status = outcome.status();
  meter_.finished(outcome.ok() ? request.needed - request.lead : 0);
  return true;
}

void UringBackend::reap() {
  struct Result {
    std::uint64_t data;
    int value;
  };
  std::array<Result, kReapedAtOnce> results;
  std::array<io_uring_cqe*, kReapedAtOnce> cqes;
  std::array<Ended, kReapedAtOnce> ended;
  while (true) {
    io_uring_cqe* first = nullptr;
    if (io_uring_wait_cqe(ring_.get(), &first) < 0) continue;  // EINTR
    const unsigned count = io_uring_peek_batch_cqe(ring_.get(), cqes.data(), kReapedAtOnce);
    for (unsigned i = 0; i < count; ++i) results[i] = {io_uring_cqe_get_data64(cqes[i]), cqes[i]->res};
    io_uring_cq_advance(ring_.get(), count);

    unsigned ended_count = 0;
    bool finished = false;
    {
      const MutexLock lock(mutex_);
      for (unsigned i = 0; i < count; ++i) {
        if (results[i].data == kStop) continue;
        const auto slot = static_cast<std::uint32_t>(results[i].data);
        if (take(slot, results[i].value, ended[ended_count])) {
          ++ended_count;
          free_slots_.push_back(slot);
          queue_.ended(slots_[slot]);
        } else {
          put(slot);
        }
      }
      fill();
      flush();
      finished = stopping_ && free_slots_.size() == slots_.size();
    }
    for (unsigned i = 0; i < ended_count; ++i) ended[i].completion->finish_one(ended[i].status);
    if (finished) return;
  }
}

}  // namespace

Status try_uring() {
  Ring ring;
  return ring.make(8);
}

Opened open_uring(const std::vector<std::string>& paths, const OpenOptions& options) {
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, FileSet::Access::direct));
  auto backend = std::make_unique<UringBackend>(std::move(files), options);
  MR_RETURN_IF_ERROR(backend->start());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace::storage
