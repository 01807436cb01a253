#include "residency/ram_fill.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>

#include "base/bytes.h"
#include "base/log.h"
#include "residency/chunk_ring.h"

namespace millrace::residency {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kAskAfter{50};

}  // namespace

Status read_in_order(storage::Backend& backend, std::span<const storage::Read> reads,
                     const std::function<Status(std::size_t)>& landed) {
  std::array<storage::Completion, kChunks> completions;
  Status status;
  std::size_t started = 0;
  for (std::size_t next = 0; next < reads.size(); ++next) {
    for (; started < reads.size() && started < next + kChunks && status.ok(); ++started)
      backend.submit({&reads[started], 1}, completions[started % kChunks]);
    if (next == started) break;
    Status read = completions[next % kChunks].wait();
    if (status.ok()) status = std::move(read);
    if (status.ok()) status = landed(next);
  }
  return status;
}

RamFill::RamFill(std::vector<storage::Read> reads, std::vector<std::size_t> ends, storage::Backend& backend)
    : backend_(backend), reads_(std::move(reads)), ends_(std::move(ends)) {
  for (const storage::Read& read : reads_) total_bytes_ += read.bytes;
  groups_ = complete_groups();
}

/// As many groups as the reads that have come complete.
std::size_t RamFill::complete_groups() const {
  std::size_t groups = groups_.load(std::memory_order_relaxed);
  while (groups < ends_.size() && ends_[groups] <= landed_) ++groups;
  return groups;
}

Expected<std::unique_ptr<RamFill>> RamFill::start(std::vector<storage::Read> reads, std::vector<std::size_t> ends,
                                                  storage::Backend& backend, Budget& ram) {
  MR_ASSERT(!ends.empty() && ends.back() == reads.size() && std::is_sorted(ends.begin(), ends.end()));
  MR_ASSERT(std::all_of(reads.begin(), reads.end(), [](const auto& read) { return read.bytes <= kChunkBytes; }));
  std::unique_ptr<RamFill> fill(new RamFill(std::move(reads), std::move(ends), backend));
  if (!fill->reads_.empty()) {
    MR_ASSIGN_OR_RETURN(fill->staging_, ram.reserve("staging", kChunkRingBytes));
    MR_ASSIGN_OR_RETURN(fill->ring_, device::HostBuffer::reserve(kChunkRingBytes, device::Pages::huge));
  }
  MR_ASSIGN_OR_RETURN(fill->thread_, os::Thread::start("millrace-fill", [made = fill.get()] { made->work(); }));
  return fill;
}

RamFill::~RamFill() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_ = os::Thread();
}

/// The next read has come: it goes where it belongs, and what it completes is told. An error where the thread is to
/// stop.
Status RamFill::land(const std::byte* bytes) {
  const storage::Read& read = reads_[landed_];
  std::memcpy(read.destination, bytes, read.bytes);
  ++landed_;
  if (landed_ == reads_.size()) {
    ring_ = device::HostBuffer();
    staging_ = Reservation();
  }
  read_bytes_.fetch_add(read.bytes, std::memory_order_relaxed);
  const std::size_t groups = complete_groups();
  const MutexLock lock(mutex_);
  if (groups_.exchange(groups, std::memory_order_release) != groups) changed_.notify_all();
  return stopping_ ? error(Code::cancelled, "the model is being unloaded") : Status();
}

/// From the first read that has not come to the last. When it returns, none is under way.
Status RamFill::read_on() {
  ChunkRing ring(backend_, ring_.data(), kChunks);
  for (std::size_t next = landed_; landed_ < reads_.size();) {
    for (; next < reads_.size() && ring.under_way() < kChunks; ++next) ring.start(reads_[next]);
    MR_ASSIGN_OR_RETURN(const std::byte* const bytes, ring.take());
    MR_RETURN_IF_ERROR(land(bytes));
  }
  return {};
}

void RamFill::work() {
  double seconds = 0;
  MutexLock lock(mutex_);
  while (!stopping_ && landed_ < reads_.size()) {
    lock.unlock();
    const Clock::time_point begin = Clock::now();
    Status status = read_on();
    seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    lock.lock();
    if (status.ok() || stopping_) continue;
    log::info("RAM: {} of {} read, then: {}; the request that needs the rest is told, and the next one reads on",
              format_bytes(read_bytes()), format_bytes(total_bytes_), status.message());
    failure_ = std::move(status);
    told_ = false;
    changed_.notify_all();
    changed_.wait(mutex_, [this]() MR_REQUIRES(mutex_) { return stopping_ || failure_.ok(); });
  }
  if (landed_ < reads_.size()) return;
  lock.unlock();
  reads_ = std::vector<storage::Read>();
  log::info("RAM filled: {} in {:.1f} s, {}/s", format_bytes(total_bytes_), seconds,
            format_bytes(static_cast<std::uint64_t>(static_cast<double>(total_bytes_) / std::max(seconds, 1e-6))));
}

Status RamFill::wait(std::size_t group, const std::function<Status()>& meanwhile) {
  while (!has(group)) {
    MR_RETURN_IF_ERROR(meanwhile());
    MutexLock lock(mutex_);
    if (!failure_.ok()) {
      if (!told_) {
        told_ = true;
        return failure_;
      }
      failure_ = {};
      changed_.notify_all();
    }
    changed_.wait_for(mutex_, kAskAfter, [&]() MR_REQUIRES(mutex_) { return has(group) || !failure_.ok(); });
  }
  return {};
}

}  // namespace millrace::residency
