// The backends, each tried by name. choose.cpp decides between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace millrace::storage {

using Opened = Expected<std::unique_ptr<Backend>>;

// What each system brings (posix/kinds.cpp, win32/kinds.cpp).
/// Opens with the one that this system alone has. Errors: `unsupported` where this machine, kernel or file system does
/// not offer it (another backend may do); everything else is about the files. REQUIRES: kind is one of backend_kinds().
Opened open_own_kind(BackendKind kind, const std::vector<std::string>& paths, const OpenOptions& options);
/// What `automatic` tries, best first.
std::vector<BackendKind> best_first(const OpenOptions& options);
/// The way to read that not every machine with this system has, for `doctor`: io_uring or DirectStorage.
struct SystemWay {
  std::string name;
  bool works = false;
  std::string found{};   // how it works, or why it does not
  std::string change{};  // what would make it work
  bool expected = true;  // false: without it nothing is known to be slower
};
SystemWay system_way();

// Each with the errors of open_own_kind().
Opened open_pread(const std::vector<std::string>& paths, const OpenOptions& options, bool direct);
Opened open_mmap(const std::vector<std::string>& paths, const OpenOptions& options);
// Linux alone.
Opened open_uring(const std::vector<std::string>& paths, const OpenOptions& options);
/// Whether the kernel has a ring for this process. Errors: unsupported (why not).
Status try_uring();

}  // namespace millrace::storage
