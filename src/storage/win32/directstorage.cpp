#include "storage/win32/directstorage.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "device/win32/backing.h"
#include "storage/win32/directstorage_reader.h"
#include "storage/win32/heap_ring.h"

namespace millrace::storage {
namespace {

/// Destinations in host memory.
class HostTarget final : public ReadTarget {
 public:
  Expected<bool> place(const Request& request, std::size_t /*slot*/, dstorage::Request& out) override {
    MR_RETURN_IF_ERROR(device::back_memory(request.destination, request.bytes));
    out.options.kinds = dstorage::kToMemory << 1;
    out.destination.memory = {.data = request.destination, .bytes = static_cast<std::uint32_t>(request.bytes)};
    return true;
  }
  Status landed(const Request& /*request*/, std::size_t /*slot*/) override { return {}; }
  void dropped(std::size_t /*slot*/) override {}
};

/// Destinations in a device's memory, by way of the ring's buffers.
class DeviceTarget final : public ReadTarget {
 public:
  explicit DeviceTarget(std::unique_ptr<HeapRing> ring) : ring_(std::move(ring)) {}
  ID3D12Device* device() const override { return ring_->device(); }
  Expected<bool> place(const Request& request, std::size_t slot, dstorage::Request& out) override {
    ID3D12Resource* const buffer = ring_->take(slot);
    if (buffer == nullptr) return false;
    out.options.kinds = dstorage::kToBuffer << 1;
    out.destination.buffer = {.resource = buffer, .offset = 0, .bytes = static_cast<std::uint32_t>(request.bytes)};
    return true;
  }
  Status landed(const Request& request, std::size_t slot) override {
    return ring_->copy_out(slot, request.destination, request.bytes);
  }
  void dropped(std::size_t slot) override { ring_->give_back(slot); }

 private:
  const std::unique_ptr<HeapRing> ring_;
};

class DirectStorageBackend final : public Backend {
 public:
  DirectStorageBackend(FileSet files, std::uint64_t request_bytes, Memory memory, std::string reason)
      : files_(std::move(files)),
        request_bytes_(request_bytes),
        traits_{.name = "DirectStorage",
                .alignment = 1,
                .bypasses_page_cache = true,
                .memory = memory,
                .reason = std::move(reason)} {}
  Status start(DirectStorageSession session, std::unique_ptr<ReadTarget> target, const DirectStorageOptions& options) {
    MR_ASSIGN_OR_RETURN(reader_, DirectStorageReader::start(std::move(session), files_, std::move(target), options));
    return {};
  }

  const BackendTraits& traits() const override { return traits_; }
  void submit(std::span<const Read> reads, Completion& completion) override {
    const Hold hold(completion);
    reader_->submit([&](Fifo<Request>& out) {
      cut_reads(reads, files_, request_bytes_, completion, out, kMaxAlignment, traits_.memory);
    });
  }
  Status health() const override { return files_.health(); }
  Counters counters() const override { return reader_->counters(); }

 private:
  const FileSet files_;
  const std::uint64_t request_bytes_;
  const BackendTraits traits_;
  std::unique_ptr<DirectStorageReader> reader_;
};

/// The most that a request may have: what was asked for, or what goes through the staging buffer in one piece.
std::uint64_t request_limit(const DirectStorageSession& session, const DirectStorageOptions& options) {
  return std::max(round_down(std::min<std::uint64_t>(options.request_bytes, session->staging_bytes()), kMaxAlignment),
                  kMaxAlignment);
}

std::string staging_words(std::uint64_t bytes) { return fmt::format("staging buffer {}", format_bytes(bytes)); }

}  // namespace

Expected<std::string> find_directstorage(const DirectStorageOptions& options) {
  MR_ASSIGN_OR_RETURN(const DirectStorageLibrary* const library, DirectStorageLibrary::load(options.folder));
  return "dstorage.dll, " + staging_words(library->staging_bytes());
}

Expected<std::unique_ptr<Backend>> open_directstorage(const std::vector<std::string>& paths,
                                                      const DirectStorageOptions& options) {
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, FileSet::Access::buffered));
  MR_ASSIGN_OR_RETURN(DirectStorageSession session, DirectStorageSession::open(options.folder, options.staging_bytes));
  auto backend = std::make_unique<DirectStorageBackend>(std::move(files), request_limit(session, options), Memory::host,
                                                        "to RAM; " + staging_words(session->staging_bytes()));
  MR_RETURN_IF_ERROR(backend->start(std::move(session), std::make_unique<HostTarget>(), options));
  return std::unique_ptr<Backend>(std::move(backend));
}

Expected<std::unique_ptr<Backend>> open_directstorage_to_device(const std::vector<std::string>& paths,
                                                                std::unique_ptr<device::HeapImporter> importer,
                                                                const DirectStorageOptions& options,
                                                                const DeviceRing& ring) {
  MR_ASSIGN_OR_RETURN(FileSet files, FileSet::open(paths, FileSet::Access::buffered));
  MR_ASSIGN_OR_RETURN(DirectStorageSession session, DirectStorageSession::open(options.folder, options.staging_bytes));
  const std::uint64_t slot_bytes = std::min(ring.slot_bytes, request_limit(session, options));
  MR_ASSIGN_OR_RETURN(std::unique_ptr<HeapRing> heaps, HeapRing::make(std::move(importer), slot_bytes, ring));
  const std::string reason = fmt::format("to {} through {} heaps of {}; {}", heaps->adapter_name(), ring.slots,
                                         format_bytes(slot_bytes), staging_words(session->staging_bytes()));
  auto backend = std::make_unique<DirectStorageBackend>(std::move(files), slot_bytes, Memory::device, reason);
  MR_RETURN_IF_ERROR(backend->start(std::move(session), std::make_unique<DeviceTarget>(std::move(heaps)), options));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace millrace::storage
