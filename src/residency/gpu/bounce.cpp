#include "residency/gpu/bounce.h"

#include <utility>

#include "residency/placement.h"

namespace millrace::residency {
namespace {

constexpr std::size_t kStackBytes = 8u << 20;  // the usual one: what the driver needs of it is not ours to know

}  // namespace

BounceBackend::BounceBackend(storage::Backend& host, int device)
    : host_(host),
      device_(device),
      traits_{.name = host.traits().name + " to page-locked memory",
              .alignment = 1,
              .bypasses_page_cache = host.traits().bypasses_page_cache,
              .memory = storage::Memory::device} {}

Expected<std::unique_ptr<BounceBackend>> BounceBackend::create(storage::Backend& host) {
  MR_ASSIGN_OR_RETURN(const int device, device::present_gpu());
  std::unique_ptr<BounceBackend> backend(new BounceBackend(host, device));
  MR_RETURN_IF_ERROR(backend->open());
  return backend;
}

Status BounceBackend::open() {
  MR_RETURN_IF_ERROR(device::use_gpu(device_));
  MR_ASSIGN_OR_RETURN(memory_, device::PinnedBuffer::allocate(kLoadingBytes));
  MR_ASSIGN_OR_RETURN(stream_, device::Stream::create());
  copied_ = std::make_unique<device::Event[]>(kLoadingChunks);
  for (std::size_t i = 0; i < kLoadingChunks; ++i) {
    MR_ASSIGN_OR_RETURN(copied_[i], device::Event::create());
  }
  ring_ = std::make_unique<ChunkRing>(host_, memory_.data(), kLoadingChunks);
  MR_ASSIGN_OR_RETURN(thread_, os::Thread::start(
                                   "mr-bounce", [this] { work(); }, kStackBytes));
  return {};
}

BounceBackend::~BounceBackend() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_ = os::Thread();  // joins
}

void BounceBackend::submit(std::span<const storage::Read> reads, storage::Completion& completion) {
  completion.expect(static_cast<std::uint32_t>(reads.size()));
  {
    const MutexLock lock(mutex_);
    for (const storage::Read& read : reads) submitted_.push_back({read, &completion, 0, 0, {}});
  }
  wake_.notify_one();
}

void BounceBackend::work() {
  const Status entered = device::use_gpu(device_);
  while (take_jobs(ring_->under_way() == 0)) {
    if (!entered.ok()) {
      for (const Job& job : std::exchange(jobs_, {})) job.completion->finish_one(entered);
      continue;
    }
    start_chunks();
    if (ring_->under_way() > 0) land_oldest();
  }
}

/// False: there is nothing more to do.
bool BounceBackend::take_jobs(bool wait) {
  const MutexLock lock(mutex_);
  while (wait && submitted_.empty() && !stopping_) wake_.wait(mutex_);
  const bool ends = wait && submitted_.empty();
  for (Job& job : submitted_) jobs_.push_back(std::move(job));
  submitted_.clear();
  return !ends;
}

void BounceBackend::start_chunks() {
  while (next_ < jobs_.size() && ring_->under_way() < kChunks) {
    Job& job = jobs_[next_];
    // What lies in the place may still be on its way from there; a copy that failed is told by its own job.
    if (ring_->started() >= kLoadingChunks) (void)device::wait(copied_[ring_->next_slot()]);
    const std::uint64_t at = job.read.offset + job.asked, end = job.read.offset + job.read.bytes;
    const std::uint64_t bytes = chunk_end(at, end) - at;
    ring_->start({job.read.file, at, bytes, nullptr});
    chunks_.push_back(bytes);
    job.asked += bytes;
    if (job.asked == job.read.bytes) ++next_;
  }
}

/// The oldest chunk is the first job's.
void BounceBackend::land_oldest() {
  Job& job = jobs_.front();
  const std::size_t slot = ring_->oldest_slot();
  const std::uint64_t bytes = chunks_.front();
  chunks_.pop_front();
  const Expected<const std::byte*> came = ring_->take();
  if (job.status.ok())
    job.status = came.ok() ? copy(*came, job.read.destination + job.landed, bytes, slot) : came.status();
  job.landed += bytes;
  if (job.landed < job.read.bytes) return;
  if (job.status.ok()) job.status = stream_.synchronise();  // the disk has more to do meanwhile
  job.completion->finish_one(job.status);
  jobs_.pop_front();
  --next_;
}

Status BounceBackend::copy(const std::byte* from, std::byte* to, std::uint64_t bytes, std::size_t slot) {
  MR_RETURN_IF_ERROR(device::copy_to_device(to, from, bytes, stream_));
  MR_RETURN_IF_ERROR(device::record(copied_[slot], stream_));
  return {};
}

}  // namespace millrace::residency
