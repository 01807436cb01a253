// Requests that wait for their disk. Each disk has its own queue and its own limit on requests in flight, so that a
// slow disk does not delay the others, and files on several disks (splits of a model, stripes of a pack) are read from
// all of them in parallel. Not thread-safe: a backend's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/request.h"

namespace millrace::storage {

class DiskQueues {
 public:
  /// `files` outlives the object. A disk gets another request while it has fewer than this many requests and fewer than
  /// this many bytes in flight.
  DiskQueues(const FileSet& files, std::size_t most_requests, std::uint64_t most_bytes);

  /// Queues the requests that cut(Fifo<Request>&) makes of reads (cut_reads, cut_reads_exactly). Returns their number.
  template <typename Cut>
  std::size_t add(const Cut& cut) {
    cut(added_);
    const std::size_t added = added_.size();
    while (!added_.empty()) push(added_.pop());
    return added;
  }

  bool empty() const { return waiting_ == 0; }
  /// True if a request waits for a disk that has room for it.
  bool ready() const;
  /// The next request, which is in flight from now on; disks take turns. REQUIRES: ready().
  Request take();
  /// A request that was taken has ended.
  void ended(const Request& request) {
    --of(request).requests;
    of(request).bytes -= request.bytes;
  }
  /// Removes a request that will not start. REQUIRES: not empty().
  Request remove();

 private:
  struct Disk {
    Fifo<Request> queue;
    std::size_t requests = 0;  // in flight
    std::uint64_t bytes = 0;   // of these
  };
  void push(const Request& request);
  Request pop(Disk& disk);
  bool ready(const Disk& disk) const {
    return !disk.queue.empty() && disk.requests < most_requests_ && disk.bytes < most_bytes_;
  }
  Disk& of(const Request& request) { return disks_[static_cast<std::size_t>(files_.disk(request.file))]; }

  const FileSet& files_;
  const std::size_t most_requests_;
  const std::uint64_t most_bytes_;
  std::vector<Disk> disks_;
  std::size_t next_ = 0;  // the disk to serve next
  std::size_t waiting_ = 0;
  Fifo<Request> added_;  // empty between calls
};

}  // namespace millrace::storage
