// Messages between the processes (ranks) that compute one model together: rank 0 has the first layers and serves users,
// the others follow. A message arrives complete or not at all; messages from one rank to another keep their order. A
// waiting rank sleeps for 20 to 200 us at a time, and for 2 ms after two seconds, so that waiting costs little CPU
// time. Thread-safety: one thread of a rank at a time calls send and receive; they may be different ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace millrace::link {

class Link {
 public:
  virtual ~Link() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;  // ranks
  /// Of a rank's machine: for messages to people.
  virtual std::string host(int rank) const = 0;

  /// Sends to another rank; returns when the bytes may change. Errors: io_error (names the host), unsupported (2 GiB or
  /// more).
  virtual Status send(int to, std::span<const std::byte> message) = 0;
  /// To all other ranks. Errors: those of send, the first one.
  Status send_others(std::span<const std::byte> message);
  /// The sender's rank of the oldest message that has arrived; nothing: there is none yet. Errors: io_error (names the
  /// host).
  virtual Expected<std::optional<int>> try_receive(std::vector<std::byte>& message) = 0;

  /// Waits for a message of anybody; returns his rank. `give_up` (may be empty) is asked while it waits; true ends the
  /// wait with Code::cancelled. Errors: those of try_receive.
  Expected<int> receive(std::vector<std::byte>& message, const std::function<bool()>& give_up = {});
  /// "rank 1 (host)"
  std::string name(int rank) const;
};

/// Sleeps a bit longer each time.
class Pause {
 public:
  void sleep();

 private:
  int microseconds_ = 20;
  std::int64_t slept_ = 0;  // in all
};

}  // namespace millrace::link
