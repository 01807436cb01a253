// Reads files straight into device memory by NVIDIA's cuFile (GPUDirect Storage). The library is optional: if it is
// missing, open_cufile() returns Code::unsupported and callers read another way.
//
// cuFile has two modes and chooses by file: DMA from an NVMe disk to the GPU, which needs nvidia-fs or PCI peer-to-peer
// DMA; or compatibility mode, in which the library reads to its own page-locked memory and copies from there.
// open_cufile() logs the mode, the reason, and what would enable DMA; traits().reason has the same text.
// Usage, in this order:
//   1. Make the memory that reads go to: device::DeviceBuffer, once.
//   2. open_cufile(paths, {.device = index}): a Backend like any other, with traits().memory == Memory::device. An
//   error
//      with Code::unsupported means "this way is closed": take pread or io_uring with a ring, and say so. Any other
//      error is about the files. The calling thread's device is `index` afterwards.
//   3. CuFileBuffer::make() for that memory, if it is read into again and again (a ring of slots, not an arena that is
//      filled once): cuFile keeps it mapped. Without it every read is as right, but may go through a buffer within the
//      GPU. Its error costs speed only: log it and go on.
//   4. For each read: wait on the HOST until nothing on the device uses the destination any more
//      (device::wait(), or is_reached(), of the event behind the last launch that did: cuFile is not ordered
//      with any stream), then submit({file, offset, bytes, destination}).
//   5. Completion::wait(): the bytes are in device memory, for every stream's launches from then on; no event is
//   needed.
//   6. Before memory is freed: all its reads waited for, then its CuFileBuffer gone.
//
// Destinations need no alignment, exactly the asked bytes are written, and nothing around them. A read is cut at blocks
// of 4 KiB of the file, and its first and last part of a block go through the page cache: so ask for a whole piece in
// one Read rather than for pieces of a piece. In direct mode, a destination congruent to the offset modulo 4096 saves a
// copy within the GPU. A read of several MiB is cut into requests that run side by side; submit several reads at once
// (two slots ahead) to keep the disk busy to the end.
//
// Each request is one cuFileRead() on a thread of a pool. The library's batches cut at its buffers' size (1 MiB) and
// fall back to compatibility mode above it, and its reads ordered by a stream run one after another a stream.
//
// The library writes cufile.log into the working directory (CUFILE_LOGFILE_PATH names another file), and must not be
// used in a process forked off afterwards.
// Thread-safety: a backend as storage.h says; make() and destruction of buffers from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "storage/cufile_library.h"
#include "storage/storage.h"

namespace millrace::storage {

struct CuFileOptions {
  int device = 0;                          // CUDA's index; -1: do not select a device (destinations in host memory)
  int threads = 8;                         // one request each
  std::uint64_t request_bytes = 4u << 20;  // below 8 MiB, because the library splits larger ones itself
  std::string library = "libcufile.so.0";
};

/// How cuFile would read a file: one line for people with the reason, and what would enable DMA.
struct CuFileWay {
  bool direct = false;  // an estimate: cuFile does not report it before a read
  std::string reason;
};

/// Asks the library: opens it and the file, and closes both. Creates a CUDA context and takes a moment; to choose a
/// backend, call open_cufile() instead. Errors: as open_cufile().
Expected<CuFileWay> cufile_available(const std::string& path, const CuFileOptions& options = {});

/// Errors: unsupported, with what is missing and what to do (no library, no GPU, a driver or file system that cuFile
/// does not support, no udev to ask about the disk); not_found, io_error and invalid_argument for the files.
Expected<std::unique_ptr<Backend>> open_cufile(const std::vector<std::string>& paths,
                                               const CuFileOptions& options = {});

/// Memory registered with cuFile for as long as this object lives. Move-only.
class CuFileBuffer {
 public:
  CuFileBuffer() = default;
  /// `memory`: a DeviceBuffer or a part of it that no other CuFileBuffer overlaps; mapped virtual
  /// memory only where it was made capable of GPUDirect RDMA. REQUIRES: the memory outlives
  /// the object, and no read into it is in flight when the object is destroyed. Errors: unsupported (no library),
  /// io_error (more than cuFile may pin, not device memory).
  static Expected<CuFileBuffer> make(std::span<std::byte> memory, const CuFileOptions& options = {});
  CuFileBuffer(CuFileBuffer&& other) noexcept
      : session_(std::move(other.session_)), data_(std::exchange(other.data_, nullptr)) {}
  CuFileBuffer& operator=(CuFileBuffer&& other) noexcept {
    std::swap(session_, other.session_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~CuFileBuffer();

 private:
  CuFileSession session_;
  std::byte* data_ = nullptr;
};

/// The facts that decide between the two modes.
struct CuFileFacts {
  bool nvidia_fs = false;      // the kernel module is loaded
  bool peer_to_peer = false;   // PCI peer-to-peer DMA, which needs no such module
  bool compat_allowed = true;  // cufile.json may forbid it
  std::string disk;            // "nvme0n1p2", "vda"; empty where the file system has no block device
  std::string file_system;     // "ext4"; empty where it is not known
  std::string device;          // "252:1"
  bool in_udev = false;        // udev has the device's file system
};
/// The mode that open_cufile() predicts from them. Pure.
CuFileWay cufile_way(const CuFileFacts& facts);
/// What to do if cuFile refused a file. One line. Pure.
std::string cufile_advice(int code, const CuFileFacts& facts);

}  // namespace millrace::storage
