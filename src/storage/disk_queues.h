// Requests that wait for their disk. Each disk has a queue of its own and so much under way at once, so that a slow one
// does not keep the others waiting, and files that lie on several disks (splits of a model, stripes of a pack) are read
// from all of them side by side. Not thread-safe: a backend's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/request.h"

namespace millrace::storage {

class DiskQueues {
 public:
  /// `files` outlives the object. A disk with so many requests under way, or so many bytes of them, gets no more; one
  /// that has less of both gets one more.
  DiskQueues(const FileSet& files, std::size_t most_requests, std::uint64_t most_bytes);

  /// Cuts reads (cut_reads, cut_reads_exactly) into the queues: cut(Fifo<Request>&). How many requests there are more.
  template <typename Cut>
  std::size_t add(const Cut& cut) {
    cut(added_);
    const std::size_t added = added_.size();
    while (!added_.empty()) push(added_.pop());
    return added;
  }

  bool empty() const { return waiting_ == 0; }
  /// Whether one can be taken: one waits for a disk that has room for it.
  bool ready() const;
  /// The next one, which is under way from here on; of several disks in turns. REQUIRES: ready().
  Request take();
  /// One that was taken has ended.
  void ended(const Request& request) {
    --of(request).requests;
    of(request).bytes -= request.bytes;
  }
  /// One that will never be under way. REQUIRES: not empty().
  Request remove();

 private:
  struct Disk {
    Fifo<Request> queue;
    std::size_t requests = 0;  // under way
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
  std::size_t next_ = 0;  // the disk whose turn it is
  std::size_t waiting_ = 0;
  Fifo<Request> added_;  // empty between calls
};

}  // namespace millrace::storage
