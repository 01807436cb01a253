// What a C caller's millrace_loader is: one file behind a storage backend, and the reads that were planned.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "app/capi/common.h"
#include "base/mutex.h"
#include "storage/storage.h"

namespace millrace::capi {

struct Freed {
  void operator()(std::byte* memory) const { ::operator delete (memory, std::align_val_t{storage::kMaxAlignment}); }
};
using Block = std::unique_ptr<std::byte, Freed>;

/// A read that was planned, and maybe started.
struct Planned {
  storage::Read read;
  storage::Backend* backend = nullptr;
  void* destination = nullptr;  // where the bytes go once they are in `around`; null: they went there at once
  Block around;
  bool submitted = false;
  storage::Completion completion;
};

/// How a loader reads into device memory: by cuFile where the disk then writes there itself, by cuFile or not at all,
/// or through page-locked memory.
enum class DeviceReads { automatic, cufile, ring };

}  // namespace millrace::capi

struct millrace_loader {
  std::string path;
  std::unique_ptr<millrace::storage::Backend> backend;
  std::uint64_t file_bytes = 0;
  millrace::capi::DeviceReads device_reads = millrace::capi::DeviceReads::automatic;
  mutable millrace::Mutex mutex;
  // By CUDA's number of the device, made when first asked for; they may read through `backend`.
  std::map<int, std::unique_ptr<millrace::storage::Backend>> to_devices MR_GUARDED_BY(mutex);
  std::map<std::uint64_t, std::shared_ptr<millrace::capi::Planned>> reads MR_GUARDED_BY(mutex);
  std::uint64_t next MR_GUARDED_BY(mutex) = 1;

  ~millrace_loader() {
    for (const auto& [number, planned] : reads) {
      if (planned->submitted) (void)planned->completion.wait();
    }
  }
  /// What reads into memory of the device that is present on the calling thread. Errors: unsupported (no CUDA, no GPU;
  /// no cuFile where it was asked for), out_of_budget, and those of the file.
  millrace::Expected<millrace::storage::Backend*> to_device();
  /// The same where it has been made; null where not.
  const millrace::storage::Backend* to_device_if_made() const;
};
