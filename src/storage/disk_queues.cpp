#include "storage/disk_queues.h"

#include <algorithm>

namespace millrace::storage {

DiskQueues::DiskQueues(const FileSet& files, std::size_t most_requests, std::uint64_t most_bytes)
    : files_(files),
      most_requests_(most_requests),
      most_bytes_(most_bytes),
      disks_(static_cast<std::size_t>(files.disks())) {}

void DiskQueues::push(const Request& request) {
  of(request).queue.push(request);
  ++waiting_;
}

Request DiskQueues::pop(Disk& disk) {
  --waiting_;
  return disk.queue.pop();
}

bool DiskQueues::ready() const {
  return std::any_of(disks_.begin(), disks_.end(), [this](const Disk& disk) { return ready(disk); });
}

Request DiskQueues::take() {
  while (!ready(disks_[next_])) next_ = (next_ + 1) % disks_.size();
  Disk& disk = disks_[next_];
  next_ = (next_ + 1) % disks_.size();
  const Request request = pop(disk);
  ++disk.requests;
  disk.bytes += request.bytes;
  return request;
}

Request DiskQueues::remove() {
  const auto waits = std::find_if(disks_.begin(), disks_.end(), [](const Disk& disk) { return !disk.queue.empty(); });
  return pop(*waits);
}

}  // namespace millrace::storage
