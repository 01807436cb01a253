// A rank's messages in order of arrival, some of which can be inspected while a pass is in flight.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "link/link.h"
#include "link/message.h"

namespace millrace::link {

class Inbox {
 public:
  /// `link` outlives the object.
  explicit Inbox(Link& link) : link_(link) {}

  /// Waits for the next message; calls `meanwhile` (may be empty) regularly. Errors: io_error.
  Status next(std::vector<std::byte>& message, const std::function<void()>& meanwhile = {}) {
    if (!early_.empty()) {
      message = std::move(early_.front());
      early_.pop_front();
      return {};
    }
    return link_
        .receive(message,
                 [&] {
                   if (meanwhile) meanwhile();
                   return false;
                 })
        .status();
  }
  /// Whether rank 0 has abandoned this pass: it sent a message to that effect, or anything other than a pass. Messages
  /// are kept for next().
  bool gives_up(std::uint64_t pass) {
    for (;;) {
      std::vector<std::byte> message;
      const auto from = link_.try_receive(message);
      if (!from.ok()) return true;  // next() will meet it, too
      if (!from->has_value()) break;
      early_.push_back(std::move(message));
    }
    for (const std::vector<std::byte>& message : early_) {
      Reader reader(message);
      const MessageKind kind = reader.kind();
      if (kind == MessageKind::pass || kind == MessageKind::recall || kind == MessageKind::keep) continue;
      if (kind != MessageKind::cancel || reader.number<std::uint64_t>() >= pass) return true;
    }
    return false;
  }

 private:
  Link& link_;
  std::deque<std::vector<std::byte>> early_;
};

}  // namespace millrace::link
