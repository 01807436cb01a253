// Functions that open each backend. choose.cpp chooses among them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace millrace::storage {

using Opened = Expected<std::unique_ptr<Backend>>;

// Implemented per system (posix/kinds.cpp, win32/kinds.cpp).
/// Opens a backend that only this system has. Errors: `unsupported` if this machine, kernel or file system does not
/// offer it (another backend may work); any other error concerns the files. REQUIRES: kind is one of backend_kinds().
Opened open_own_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options);
/// The backends that `automatic` tries, best first.
std::vector<BackendKind> best_first(const OpenOptions& options);
/// For `doctor`: the optional backend of this system, io_uring or DirectStorage.
struct SystemWay {
  std::string name;
  bool works = false;
  std::string found{};   // how it works, or why it is missing
  std::string change{};  // what would make it available
  bool expected = true;  // false: its absence is not known to cost speed
};
SystemWay system_way();

// All with the errors of open_own_kind().
Opened open_pread(const std::vector<std::string>& paths, const OpenOptions& options, bool direct);
Opened open_mmap(const std::vector<std::string>& paths, const OpenOptions& options);
// Linux only.
Opened open_uring(const std::vector<std::string>& paths, const OpenOptions& options);
/// Ok if the kernel gives this process a ring. Errors: unsupported (with the reason).
Status try_uring();

}  // namespace millrace::storage
