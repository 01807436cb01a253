// HTTP GET with what a hub needs: ranges, redirects, a token that goes to the hub alone, proxies from the environment,
// and an end to servers that stall. Thread-safety: a Connection belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::store {

struct HttpOptions {
  std::string token;  // Authorization: Bearer; never sent on to another host
  int connect_seconds = 20;
  int stall_seconds = 30;  // without a byte, the connection counts as dead
  const std::atomic<bool>* cancel = nullptr;
  long buffer_bytes = 256L * 1024;  // of a connection
  WorkGrant* memory = nullptr;  // charged for bodies of get(), twice, since they grow; whoever drops them gives back
};

/// Bytes first to last of total, as Content-Range says.
struct ContentRange {
  std::uint64_t first = 0, last = 0, total = 0;
};

struct Reply {
  long code = 0;     // 0: the server said nothing
  std::string body;  // of get(); of an error, its beginning
  std::optional<ContentRange> range;
  std::optional<std::uint64_t> length;  // Content-Length
  std::string next_link;                // Link: <...>; rel="next"
  int retry_after_seconds = 0;
  Status failure;            // the transport's (io_error), the sink's, or cancelled
  bool unreachable = false;  // no connection was made at all
  bool retriable = false;    // the transport failed, or the server asks to come back (408, 429, 5xx)

  bool ok() const { return failure.ok() && code >= 200 && code < 300; }
  /// One line that says what happened with `url`, and what to do. REQUIRES: not ok().
  Status status(const std::string& url) const;
};

class Connection {
 public:
  explicit Connection(HttpOptions options);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// The whole body, up to `max_bytes`; a longer one is a failure.
  Reply get(const std::string& url, std::uint64_t max_bytes);

  /// What a body streams into. begin() hears the head of a reply with 2xx, once, before its first byte.
  struct Sink {
    std::function<Status(const Reply& head)> begin;
    std::function<Status(std::span<const std::byte> bytes)> add;
  };
  /// Asks for [first, first + bytes). A server that ignores ranges replies 200 with everything: begin() decides. Where
  /// the address is sent on elsewhere, further ranges of it are asked for there, until that is refused.
  Reply get_range(const std::string& url, std::uint64_t first, std::uint64_t bytes, const Sink& sink);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "%20" and the like for all but letters, digits and what is in `kept`.
std::string percent_encode(const std::string& text, const char* kept);
/// The same for what may not stand in a path; '/' stays.
std::string escape_path(const std::string& path);

}  // namespace millrace::store
