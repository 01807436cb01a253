// The backends, each tried by name. choose.cpp decides between them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/storage.h"

namespace millrace::storage {

// Errors of all of them: `unsupported` where this machine, kernel or file system does not offer it (another backend may
// do); everything else is about the files.
Expected<std::unique_ptr<Backend>> open_uring(const std::vector<std::string>& paths, const OpenOptions& options);
/// Whether the kernel has a ring for this process. Errors: unsupported (why not).
Status try_uring();
Expected<std::unique_ptr<Backend>> open_pread(const std::vector<std::string>& paths, const OpenOptions& options,
                                              bool direct);
Expected<std::unique_ptr<Backend>> open_mmap(const std::vector<std::string>& paths, const OpenOptions& options);

}  // namespace millrace::storage
