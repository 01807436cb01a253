// A request's body as it arrives, for bodies that go to the disk: httplib would hold them in memory.
// Thread-safety: of one connection's thread.
#pragma once

#include <httplib.h>

#include <cstdint>
#include <optional>
#include <span>

#include "app/server/http.h"
#include "base/status.h"

namespace millrace::server {

class BodyStream {
 public:
  /// REQUIRES: nobody has read of the body. Errors: those of read_framing().
  static Expected<BodyStream> of(const httplib::Request& request, Connection& connection);

  /// The next bytes; 0: the body has ended. Errors: io_error (the client is gone or late), invalid_argument (chunks
  /// that are none).
  Expected<std::size_t> read(std::span<char> out);
  /// Nothing where the client sends chunks.
  std::optional<std::uint64_t> length() const { return length_; }

 private:
  BodyStream(Connection& connection, std::optional<std::uint64_t> length)
      : connection_(&connection), length_(length), left_(length.value_or(0)) {}
  Expected<std::string> read_line();
  Status next_chunk();

  Connection* connection_;
  std::optional<std::uint64_t> length_;
  std::uint64_t left_ = 0;  // of the body, or of this chunk
  bool first_ = true, ended_ = false;
};

}  // namespace millrace::server
