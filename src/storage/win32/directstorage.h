// Reads by Microsoft's DirectStorage: into host memory, or into the memory of a GPU through a ring of Direct3D 12's
// shared heaps that the GPU's driver imports (device/shared_heap.h). Its two DLLs come with Microsoft's DirectStorage
// package (SDK); Millrace does not ship them. Where they are missing, opening says so with Code::unsupported and
// another way is taken.
//
// What is tested and what is not: every rule below runs under Wine against a stand-in for the library (tests/storage/
// win32/fake_dstorage.cpp), with heaps of a software adapter. The real library, and heaps that CUDA imports, were never
// run: Wine 8 exports no heap (CreateSharedHandle), so the tests' importer is a double.
//
// Where the DLLs are looked for: in the folder of the program and in Windows' system folders, in no other, and never in
// the current folder, where anybody's file may lie.
//
// How it reads: reads are cut into requests of at most the library's staging buffer (32 MiB unless asked otherwise
// while nothing uses the library), every request has an entry of a status array behind it, and all that fit the depth
// are submitted at once by a thread of the backend, which then waits for the entries. Offsets, lengths and addresses
// need no alignment. A request that was cancelled counts as done for the library, so after a cancel no entry is
// believed. Thread-safety: backends as storage.h says; functions from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "device/shared_heap.h"
#include "storage/storage.h"

namespace millrace::storage {

struct DirectStorageOptions {
  int queue_depth = 32;                    // requests under way
  std::uint64_t request_bytes = 1u << 20;  // large reads are cut into requests of this size, or of the staging buffer's
  std::uint64_t bytes_in_flight = UINT64_MAX;
  std::uint32_t staging_bytes = 32u << 20;  // of the library's buffer, which all backends of the process share: the
                                            // first one decides, until the last one is closed
  std::string folder{};                     // of the two DLLs; empty: the program's, then the system's
};

/// "dstorage.dll, staging buffer 33.6 MB": what would be used. Loads the library. Errors: unsupported (why not).
Expected<std::string> find_directstorage(const DirectStorageOptions& options = {});

/// Reads into host memory. Errors: unsupported (no library, a volume or system that it does not take); not_found,
/// io_error and invalid_argument for the files.
Expected<std::unique_ptr<Backend>> open_directstorage(const std::vector<std::string>& paths,
                                                      const DirectStorageOptions& options = {});

struct DeviceRing {
  std::uint64_t slot_bytes = 4u << 20;  // of each buffer of the ring: whole 64 KiB, as heaps are; no request is larger
  int slots = 8;
  bool export_handles = true;  // false: for a double that imports the buffers themselves
};

/// Reads into memory of the device that `importer` copies to: traits().memory is Memory::device. The adapter is the one
/// whose LUID the importer names. Errors: as open_directstorage(), and unsupported where Direct3D 12 has no such
/// adapter or exports no heap.
Expected<std::unique_ptr<Backend>> open_directstorage_to_device(const std::vector<std::string>& paths,
                                                                std::unique_ptr<device::HeapImporter> importer,
                                                                const DirectStorageOptions& options = {},
                                                                const DeviceRing& ring = {});

}  // namespace millrace::storage
