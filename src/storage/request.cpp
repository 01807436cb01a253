#include "storage/request.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace millrace::storage {
namespace {

constexpr int kMaxRetries = 1000;
constexpr std::uint64_t kSmallRead = 64u << 10;  // costs less in one request than in two or three

std::uint64_t nanoseconds(std::chrono::steady_clock::duration time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

/// The size of the pieces of a read of `bytes`. Pieces are about equal, because a small last one would take as long as
/// a large one.
std::uint64_t piece_bytes(std::uint64_t bytes, std::uint64_t request_bytes, std::uint64_t granule = kMaxAlignment) {
  const std::uint64_t limit = std::max(round_down(request_bytes, granule), granule);
  const std::uint64_t pieces = std::max<std::uint64_t>((bytes + limit - 1) / limit, 1);
  return std::clamp(round_up((bytes + pieces - 1) / pieces, granule), granule, limit);
}

}  // namespace

void cut_reads(std::span<const Read> reads, const FileSet& files, std::uint64_t request_bytes, Completion& completion,
               Fifo<Request>& out, std::uint64_t granule, Memory memory) {
  for (const Read& read : reads) {
    const Status status = memory == Memory::host ? files.check(read) : files.check_range(read);
    if (!status.ok() || read.bytes == 0) {
      completion.expect(1);
      completion.finish_one(status);
      continue;
    }
    const Widened wide = widened(read.offset, read.bytes, files.alignment());
    const std::uint64_t piece = piece_bytes(wide.bytes, request_bytes, granule);
    MR_ASSERT(piece > 0);
    completion.expect(static_cast<std::uint32_t>((wide.bytes + piece - 1) / piece));
    for (std::uint64_t at = 0; at < wide.bytes; at += piece) {
      Request request;
      request.file = read.file;
      request.offset = wide.offset + at;
      request.bytes = std::min(piece, wide.bytes - at);
      request.destination = read.destination - wide.lead + at;
      request.lead = at == 0 ? wide.lead : 0;
      request.needed = std::min(request.bytes, wide.lead + read.bytes - at);
      request.completion = &completion;
      out.push(request);
    }
  }
}

void cut_reads_exactly(std::span<const Read> reads, const FileSet& files, std::uint64_t request_bytes,
                       Completion& completion, Fifo<Request>& out) {
  for (const Read& read : reads) {
    const Status status = files.check_range(read);
    if (!status.ok() || read.bytes == 0) {
      completion.expect(1);
      completion.finish_one(status);
      continue;
    }
    const std::uint64_t into_block = read.offset % kMaxAlignment;
    const bool small = read.bytes <= kSmallRead;
    const std::uint64_t head = small || into_block == 0 ? 0 : kMaxAlignment - into_block;
    const std::uint64_t middle = small ? 0 : round_down(read.bytes - head, kMaxAlignment);
    const std::uint64_t piece = piece_bytes(middle, request_bytes);
    const auto push = [&](std::uint64_t at, std::uint64_t bytes) {
      Request request;
      request.file = read.file;
      request.offset = read.offset + at;
      request.bytes = request.needed = bytes;
      request.destination = read.destination + at;
      request.completion = &completion;
      completion.expect(1);
      out.push(request);
    };
    // The middle first: it takes longest.
    for (std::uint64_t at = 0; at < middle; at += piece) push(head + at, std::min(piece, middle - at));
    if (head > 0) push(0, head);
    if (head + middle < read.bytes) push(head + middle, read.bytes - head - middle);
  }
}

std::string system_cause(int code) { return std::strerror(code); }

Expected<Outcome> settle(Request& request, std::int64_t result, const FileSet& files, std::string (*cause)(int)) {
  const std::string& path = files.path(request.file);
  if (result < 0) {
    // io_uring cancels queued requests of a thread that ends; the read can be repeated.
    const bool transient = result == -EINTR || result == -EAGAIN || result == -ECANCELED;
    if (transient && request.retries++ < kMaxRetries) return Outcome::again;
    return error(Code::io_error, "reading {} bytes at {} of {} failed: {}", request.bytes, request.offset, path,
                 cause(static_cast<int>(-result)));
  }
  const std::uint64_t end = request.next(files.alignment()) + static_cast<std::uint64_t>(result);
  if (end >= request.needed) {
    request.got = end;
    return Outcome::done;
  }
  // A short read without progress is at the end of the file: only there does O_DIRECT return part of a block.
  if (end <= request.got) {
    return ends_early(path, request.offset + end, request.offset + request.lead, request.needed - request.lead);
  }
  request.got = end;
  request.retries = 0;
  return Outcome::again;
}

void Meter::started(std::uint64_t requests) {
  if (requests == 0) return;
  const MutexLock lock(mutex_);
  if (in_flight_ == 0) since_ = Clock::now();
  in_flight_ += requests;
}

void Meter::attempted() {
  const MutexLock lock(mutex_);
  ++counters_.reads;
}

void Meter::finished(std::uint64_t bytes) {
  const MutexLock lock(mutex_);
  counters_.bytes += bytes;
  if (--in_flight_ == 0) counters_.busy_ns += nanoseconds(Clock::now() - since_);
}

Counters Meter::counters() const {
  const MutexLock lock(mutex_);
  Counters now = counters_;
  if (in_flight_ > 0) now.busy_ns += nanoseconds(Clock::now() - since_);
  return now;
}

}  // namespace millrace::storage
