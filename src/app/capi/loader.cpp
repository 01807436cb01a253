// The loader's half of the C API: one file behind a storage backend, reads by number.
#include "app/capi/loader.h"

#include <cstdint>
#include <memory>
#include <new>
#include <string_view>

#include "app/capi/common.h"
#include "base/os/file_info.h"
#ifdef MILLRACE_HAS_GPU
#include "base/log.h"
#include "device/device.h"
#include "device/gpu.h"
#include "residency/gpu/bounce.h"
#include "storage/cufile.h"
#endif

using namespace millrace;  // NOLINT: the whole file is the border to C

namespace {

/// Memory for the whole blocks around a read. Throws std::bad_alloc.
capi::Block allocate_around(const storage::Widened& wide) {
  return capi::Block(static_cast<std::byte*>(::operator new (wide.bytes, std::align_val_t{storage::kMaxAlignment})));
}

Expected<capi::DeviceReads> device_reads_from_name(const char* name) {
  const std::string_view wanted = name == nullptr ? "auto" : name;
  if (wanted == "auto") return capi::DeviceReads::automatic;
  if (wanted == "cufile") return capi::DeviceReads::cufile;
  if (wanted == "ring") return capi::DeviceReads::ring;
  return error(Code::invalid_argument, "options.device_reads: use auto, cufile or ring");
}

#ifdef MILLRACE_HAS_GPU
/// The device that is present on the calling thread.
Expected<int> present_device() {
  MR_RETURN_IF_ERROR(device::gpus().status());
  return device::present_gpu();
}

Expected<std::unique_ptr<storage::Backend>> open_to_device(millrace_loader& loader, int device) {
  const auto ring = [&]() -> Expected<std::unique_ptr<storage::Backend>> {
    MR_ASSIGN_OR_RETURN(auto backend, residency::BounceBackend::create(*loader.backend));
    return std::unique_ptr<storage::Backend>(std::move(backend));
  };
  if (loader.device_reads == capi::DeviceReads::ring) return ring();
  const storage::CuFileOptions options{.device = device};
  if (loader.device_reads == capi::DeviceReads::cufile) return storage::open_cufile({loader.path}, options);
  const auto way = storage::cufile_available(loader.path, options);
  if (way.ok() && way->direct) return storage::open_cufile({loader.path}, options);
  if (!way.ok() && way.status().code() != Code::unsupported) return way.status();
  log::info("storage: reads into device memory go through page-locked memory; cuFile: {}",
            way.ok() ? way->reason : way.status().message());
  return ring();
}
#endif

millrace_loader_options default_options() {
  millrace_loader_options options{};
  options.struct_size = sizeof(options);
  return options;
}

Status check_range(const millrace_loader& loader, std::uint64_t offset, std::uint64_t bytes) {
  if (bytes == 0) return error(Code::invalid_argument, "a read of no bytes");
  if (offset > loader.file_bytes || bytes > loader.file_bytes - offset) {
    return error(Code::invalid_argument, "a read of {} bytes at {} passes the file's end at {}", bytes, offset,
                 loader.file_bytes);
  }
  return {};
}

void keep(millrace_loader& loader, std::shared_ptr<capi::Planned> planned, std::uint64_t* read) {
  const MutexLock lock(loader.mutex);
  *read = loader.next++;
  loader.reads.emplace(*read, std::move(planned));
}

Expected<std::shared_ptr<capi::Planned>> find(millrace_loader& loader, std::uint64_t read) {
  const MutexLock lock(loader.mutex);
  const auto found = loader.reads.find(read);
  if (found == loader.reads.end()) return error(Code::not_found, "there is no read {}", read);
  if (!found->second->submitted) {
    return error(Code::invalid_argument, "read {} is not submitted yet: call millrace_loader_submit", read);
  }
  return found->second;
}

Status open_loader(const char* path, const millrace_loader_options* given, millrace_loader** out) {
  millrace_loader_options options = default_options();
  if (given != nullptr) {
    MR_ASSIGN_OR_RETURN(options, capi::read_struct(given, default_options(), "options"));
  }
  storage::OpenOptions made;
  if (options.backend != nullptr) {
    MR_ASSIGN_OR_RETURN(made.kind, storage::backend_from_name(options.backend));
  }
  if (options.queue_depth < 0 || options.queue_depth > 4096) {
    return error(Code::invalid_argument, "options.queue_depth: from 1 to 4096, or 0");
  }
  if (options.queue_depth > 0) made.queue_depth = options.queue_depth;
  if (options.request_bytes > 0) made.request_bytes = std::max<std::uint64_t>(4096, options.request_bytes);
  auto loader = std::make_unique<millrace_loader>();
  loader->path = path;
  MR_ASSIGN_OR_RETURN(loader->device_reads, device_reads_from_name(options.device_reads));
  MR_ASSIGN_OR_RETURN(loader->backend, storage::open_backend({path}, made));
  const auto info = os::file_info(path);
  if (!info.ok()) return error(Code::io_error, "{}: cannot be examined", path);
  loader->file_bytes = info->bytes;
  *out = loader.release();
  return {};
}

Status plan_host_read(millrace_loader& loader, std::uint64_t offset, std::uint64_t bytes, void* destination,
                      bool whole_blocks, std::uint64_t* read) {
  MR_RETURN_IF_ERROR(check_range(loader, offset, bytes));
  auto planned = std::make_shared<capi::Planned>();
  planned->backend = loader.backend.get();
  planned->read = {0, offset, bytes, static_cast<std::byte*>(destination)};
  const auto place = reinterpret_cast<std::uintptr_t>(destination);
  const bool congruent = place % storage::kMaxAlignment == offset % storage::kMaxAlignment;
  const bool direct = congruent && (whole_blocks || loader.backend->traits().alignment <= 1);
  if (!direct) {
    const storage::Widened wide = storage::widened(offset, bytes, storage::kMaxAlignment);
    planned->around = allocate_around(wide);
    planned->read.destination = planned->around.get() + wide.lead;
    planned->destination = destination;
  }
  keep(loader, std::move(planned), read);
  return {};
}

Status plan_device_read(millrace_loader& loader, std::uint64_t offset, std::uint64_t bytes, void* destination,
                        std::uint64_t* read) {
  MR_RETURN_IF_ERROR(check_range(loader, offset, bytes));
  auto planned = std::make_shared<capi::Planned>();
  MR_ASSIGN_OR_RETURN(planned->backend, loader.to_device());
  planned->read = {0, offset, bytes, static_cast<std::byte*>(destination)};
  keep(loader, std::move(planned), read);
  return {};
}

Status wait_for(millrace_loader& loader, std::uint64_t read) {
  MR_ASSIGN_OR_RETURN(const std::shared_ptr<capi::Planned> planned, find(loader, read));
  Status status = planned->completion.wait();
  if (status.ok()) status = planned->backend->health();
  {
    const MutexLock lock(loader.mutex);
    loader.reads.erase(read);
  }
  if (!status.ok() || planned->destination == nullptr) return status;
  std::memcpy(planned->destination, planned->read.destination, planned->read.bytes);
  return {};
}

}  // namespace

Expected<storage::Backend*> millrace_loader::to_device() {
#ifdef MILLRACE_HAS_GPU
  MR_ASSIGN_OR_RETURN(const int device, present_device());
  const MutexLock lock(mutex);
  std::unique_ptr<storage::Backend>& made = to_devices[device];
  if (made == nullptr) {
    MR_ASSIGN_OR_RETURN(made, open_to_device(*this, device));
  }
  return made.get();
#else
  return error(Code::unsupported, "this library was built without CUDA: it cannot read into device memory");
#endif
}

const storage::Backend* millrace_loader::to_device_if_made() const {
#ifdef MILLRACE_HAS_GPU
  if (const auto device = present_device(); device.ok()) {
    const MutexLock lock(mutex);
    if (const auto made = to_devices.find(*device); made != to_devices.end()) return made->second.get();
  }
#endif
  return nullptr;
}

extern "C" {

void millrace_loader_options_init_sized(millrace_loader_options* options, size_t size) {
  capi::init_struct(options, size, default_options());
}

millrace_status millrace_loader_open(const char* path, const millrace_loader_options* options,
                                     millrace_loader** loader) {
  return capi::guarded([&]() -> Status {
    if (path == nullptr || loader == nullptr) return capi::refuse_null("path and loader");
    return open_loader(path, options, loader);
  });
}

void millrace_loader_close(millrace_loader* loader) { delete loader; }

const char* millrace_loader_backend(const millrace_loader* loader) {
  return loader != nullptr ? loader->backend->traits().name.c_str() : "";
}

const char* millrace_loader_device_backend(const millrace_loader* loader) {
  const storage::Backend* const made = loader != nullptr ? loader->to_device_if_made() : nullptr;
  return made != nullptr ? made->traits().name.c_str() : "";
}

uint64_t millrace_loader_file_bytes(const millrace_loader* loader) {
  return loader != nullptr ? loader->file_bytes : 0;
}

millrace_status millrace_loader_enqueue(millrace_loader* loader, uint64_t offset, uint64_t bytes, void* destination,
                                        int whole_blocks, uint64_t* read) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr || destination == nullptr || read == nullptr)
      return capi::refuse_null("loader, destination, read");
    return plan_host_read(*loader, offset, bytes, destination, whole_blocks != 0, read);
  });
}

millrace_status millrace_loader_enqueue_device(millrace_loader* loader, uint64_t offset, uint64_t bytes,
                                               void* device_destination, uint64_t* read) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr || device_destination == nullptr || read == nullptr) {
      return capi::refuse_null("loader, device_destination, read");
    }
    return plan_device_read(*loader, offset, bytes, device_destination, read);
  });
}

millrace_status millrace_loader_submit(millrace_loader* loader) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr) return capi::refuse_null("loader");
    const MutexLock lock(loader->mutex);
    for (const auto& [number, planned] : loader->reads) {
      if (planned->submitted) continue;
      planned->submitted = true;
      planned->backend->submit(std::span(&planned->read, 1), planned->completion);
    }
    return {};
  });
}

millrace_status millrace_loader_poll(millrace_loader* loader, uint64_t read, int* done) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr || done == nullptr) return capi::refuse_null("loader and done");
    MR_ASSIGN_OR_RETURN(const std::shared_ptr<capi::Planned> planned, find(*loader, read));
    *done = planned->completion.done() ? 1 : 0;
    return {};
  });
}

millrace_status millrace_loader_wait(millrace_loader* loader, uint64_t read) {
  return capi::guarded([&]() -> Status {
    if (loader == nullptr) return capi::refuse_null("loader");
    return wait_for(*loader, read);
  });
}

millrace_status millrace_loader_allocate(uint64_t offset, uint64_t bytes, void** block, void** begin) {
  return capi::guarded([&]() -> Status {
    if (block == nullptr || begin == nullptr) return capi::refuse_null("block and begin");
    if (bytes == 0 || bytes > UINT64_MAX / 4 || offset > UINT64_MAX / 4) {
      return error(Code::invalid_argument, "no block for {} bytes at {}", bytes, offset);
    }
    const storage::Widened wide = storage::widened(offset, bytes, storage::kMaxAlignment);
    capi::Block made = allocate_around(wide);
    *begin = made.get() + wide.lead;
    *block = made.release();
    return {};
  });
}

}  // extern "C"
