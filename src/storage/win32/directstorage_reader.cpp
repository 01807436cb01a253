#include "storage/win32/directstorage_reader.h"

#include <algorithm>
#include <array>
#include <utility>

namespace millrace::storage {
namespace {

constexpr DWORD kLookAtDeviceMs = 1000;  // a lost device may end no request
constexpr DWORD kPollMs = 1;             // where the library sets no event

std::size_t ring_size(const FileSet& files, const DirectStorageOptions& options) {
  // Each request is followed by an entry of the status array and an event, and half of the queue is submitted by the
  // library itself: so the queue holds twice three of each.
  constexpr std::size_t kMost = dstorage::kMostCapacity / 6;
  return std::clamp<std::size_t>(
      static_cast<std::size_t>(std::max(options.queue_depth, 1)) * static_cast<std::size_t>(files.disks()), 1, kMost);
}

}  // namespace

DirectStorageReader::DirectStorageReader(DirectStorageSession session, const FileSet& files,
                                         std::unique_ptr<ReadTarget> target, const DirectStorageOptions& options)
    : session_(std::move(session)),
      files_(files),
      target_(std::move(target)),
      ring_(ring_size(files, options)),
      waiting_(files, static_cast<std::size_t>(std::max(options.queue_depth, 1)), options.bytes_in_flight) {}

Expected<std::unique_ptr<DirectStorageReader>> DirectStorageReader::start(DirectStorageSession session,
                                                                          const FileSet& files,
                                                                          std::unique_ptr<ReadTarget> target,
                                                                          const DirectStorageOptions& options) {
  std::unique_ptr<DirectStorageReader> reader(
      new DirectStorageReader(std::move(session), files, std::move(target), options));
  MR_RETURN_IF_ERROR(reader->open(options));
  return reader;
}

Status DirectStorageReader::open(const DirectStorageOptions& /*options*/) {
  dstorage::Factory& factory = session_->factory();
  for (int i = 0; i < files_.count(); ++i) {
    dstorage::Reference<dstorage::File> file;
    const std::string what = "DirectStorage cannot open " + files_.path(i);
    MR_RETURN_IF_ERROR(
        result_status(factory.OpenFile(wide_path(files_.path(i)).c_str(), dstorage::kFileId, file.out()), what));
    // The path may name another file by now.
    BY_HANDLE_FILE_INFORMATION info{};
    MR_RETURN_IF_ERROR(result_status(file->GetFileInformation(&info), what));
    if ((static_cast<std::uint64_t>(info.nFileSizeHigh) << 32 | info.nFileSizeLow) != files_.bytes(i))
      return error(Code::io_error, "{} changed while it was being opened: start again", files_.path(i));
    opened_.push_back(std::move(file));
  }
  const auto capacity = std::clamp<std::size_t>(ring_.size() * 6, dstorage::kLeastCapacity, dstorage::kMostCapacity);
  const dstorage::QueueDescription description{.source = dstorage::kSourceFile,
                                               .capacity = static_cast<std::uint16_t>(capacity),
                                               .priority = 0,
                                               .name = "millrace",
                                               .device = target_->device()};
  MR_RETURN_IF_ERROR(result_status(factory.CreateQueue(&description, dstorage::kQueueId, queue_.out()),
                                   "DirectStorage makes no queue"));
  if (FAILED(queue_->QueryInterface(dstorage::kQueue1Id, queue1_.out()))) queue1_ = {};
  MR_RETURN_IF_ERROR(result_status(
      factory.CreateStatusArray(static_cast<UINT32>(ring_.size()), "millrace", dstorage::kStatusArrayId, status_.out()),
      "DirectStorage makes no status array"));
  MR_ASSIGN_OR_RETURN(wake_, ScopedEvent::make(true));
  MR_ASSIGN_OR_RETURN(arrived_, ScopedEvent::make(true));
  MR_ASSIGN_OR_RETURN(thread_, os::Thread::start("millrace-read", [this] { run(); }));
  return {};
}

DirectStorageReader::~DirectStorageReader() {
  if (wake_.get() != nullptr) {
    stopping_.store(true, std::memory_order_release);
    wake_.set();
    thread_ = {};
  }
  if (queue_) queue_->Close();
  for (const auto& file : opened_) file->Close();
}

void DirectStorageReader::run() {
  while (true) {
    retire();
    if (const Status status = over(); !status.ok()) {
      drain(status);
      if (oldest_ == next_ && stopping_.load(std::memory_order_acquire)) return;
    } else if (fill()) {
      queue_->Submit();
    }
    wait_for_more();
  }
}

Status DirectStorageReader::over() {
  if (stopping_.load(std::memory_order_acquire)) return error(Code::cancelled, "the storage was closed");
  return lost_;
}

void DirectStorageReader::wait_for_more() {
  const bool under_way = oldest_ != next_;
  // A request that failed before it was enqueued has no event.
  if (under_way && !ring_[oldest_ % ring_.size()].enqueued) return;
  const DWORD patience = !under_way                     ? INFINITE
                         : !queue1_                     ? kPollMs
                         : target_->device() != nullptr ? kLookAtDeviceMs
                                                        : INFINITE;
  const std::array<HANDLE, 2> events = {wake_.get(), arrived_.get()};
  WaitForMultipleObjects(static_cast<DWORD>(events.size()), events.data(), FALSE, patience);
}

/// Ends completed requests, oldest first: the library writes status entries in queue order.
void DirectStorageReader::retire() {
  ID3D12Device* const device = target_->device();
  for (; oldest_ != next_; ++oldest_) {
    const std::size_t slot = oldest_ % ring_.size();
    UnderWay& under_way = ring_[slot];
    Status status = under_way.failed;
    if (under_way.enqueued) {
      const bool complete = status_->IsComplete(static_cast<UINT32>(slot));
      if (const HRESULT removed = device != nullptr ? device->GetDeviceRemovedReason() : S_OK; FAILED(removed))
        lost_ = result_status(removed, "DirectStorage");
      // Host memory is written to until the library says otherwise; what a lost device would write to is gone with it.
      if (!complete && (lost_.ok() || device == nullptr)) return;
      const HRESULT result = complete ? status_->GetHResult(static_cast<UINT32>(slot)) : dstorage::kDeviceRemoved;
      if (result == dstorage::kDeviceRemoved || result == dstorage::kDeviceHung || result == dstorage::kDeviceReset)
        lost_ = result_status(result, "DirectStorage");
      status = cancelled_          ? error(Code::cancelled, "the storage was closed")
               : SUCCEEDED(result) ? target_->landed(under_way.request, slot)
                                   : failed(under_way.request, result);
    }
    target_->dropped(slot);
    end(under_way.request, status);
  }
}

Status DirectStorageReader::failed(const Request& request, HRESULT result) const {
  const Status why = result_status(result, "DirectStorage");
  return error(why.code(), "reading {} bytes at {} of {} failed: {}", request.bytes, request.offset,
               files_.path(request.file), why.message());
}

void DirectStorageReader::end(const Request& request, const Status& status) {
  meter_.finished(status.ok() ? request.needed - request.lead : 0);
  {
    const MutexLock lock(mutex_);
    waiting_.ended(request);
  }
  request.completion->finish_one(status);
}

/// Ends queued requests, and cancels those in flight.
void DirectStorageReader::drain(const Status& status) {
  if (!cancelled_ && stopping_.load(std::memory_order_acquire)) {
    // Every tag has no bit in common with the mask 0. A cancelled request counts as done, with or without its bytes.
    queue_->CancelRequestsWithTag(0, 0);
    cancelled_ = true;
  }
  if (held_) end(*std::exchange(held_, std::nullopt), status);
  while (true) {
    Request request;
    {
      const MutexLock lock(mutex_);
      if (waiting_.empty()) return;
      request = waiting_.remove();
    }
    meter_.finished(0);
    request.completion->finish_one(status);
  }
}

std::optional<Request> DirectStorageReader::take() {
  if (held_) return std::exchange(held_, std::nullopt);
  const MutexLock lock(mutex_);
  if (!waiting_.ready()) return std::nullopt;
  return waiting_.take();
}

/// Enqueues requests that fit. Returns true if there is something to submit.
bool DirectStorageReader::fill() {
  bool enqueued = false;
  while (next_ - oldest_ < ring_.size()) {
    const std::optional<Request> request = take();
    if (!request) break;
    const std::size_t slot = next_ % ring_.size();
    dstorage::Request words{};
    const Expected<bool> placed = target_->place(*request, slot, words);
    if (placed.ok() && !*placed) {
      held_ = request;
      break;
    }
    ring_[slot] = {.request = *request, .enqueued = placed.ok(), .failed = placed.status()};
    ++next_;
    if (!placed.ok()) continue;
    words.options.kinds |= dstorage::kSourceFile;
    words.source = {.file = opened_[static_cast<std::size_t>(request->file)].get(),
                    .offset = request->offset,
                    .bytes = static_cast<std::uint32_t>(request->bytes)};
    words.uncompressed_bytes = words.source.bytes;
    queue_->EnqueueRequest(&words);
    queue_->EnqueueStatus(status_.get(), static_cast<UINT32>(slot));
    if (queue1_) queue1_->EnqueueSetEvent(arrived_.get());
    meter_.attempted();
    enqueued = true;
  }
  return enqueued;
}

}  // namespace millrace::storage
