// Brings one file's bytes into a PartFile: several connections, each a chunk at a time; what breaks is tried again
// where it broke; a server that ignores ranges gets one connection that reads everything.
// Thread-safety: one thread calls; the connections have threads of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "app/store/http.h"
#include "app/store/part_file.h"
#include "base/status.h"

namespace millrace::store {

struct DownloadOptions {
  HttpOptions http;
  int connections = 4;
  int attempts = 6;    // without progress, until it gives up
  int retry_ms = 500;  // before the second attempt; doubled each time, up to 16 s
};

/// Those of these chunks that are not there yet, in this order. `on_bytes` hears how many bytes of the
/// file are there, about ten times a second. Errors: cancelled; io_error, corrupt (a file of another length),
/// not_found, out_of_budget (the disk is full): each says what to do. What has come stays for the next time.
Status download(const std::string& url, PartFile& part, const std::vector<std::size_t>& chunks,
                const DownloadOptions& options, const std::function<void(std::uint64_t)>& on_bytes);

/// GET with the same patience.
Expected<Reply> get_patiently(const std::string& url, std::uint64_t max_bytes, const DownloadOptions& options);

}  // namespace millrace::store
