// Which file a model is, for a server and its callers on the same machine, without telling where it lies.
// Thread-safety: a pure function.
#pragma once

#include <string>

namespace millrace::server {

/// 64 hex digits of the file's place, size and time; empty where it is not there. A checksum of all its bytes would
/// take minutes.
std::string file_identity(const std::string& path);

}  // namespace millrace::server
