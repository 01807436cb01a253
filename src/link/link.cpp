#include "link/link.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace millrace::link {

void Pause::sleep() {
  constexpr int kLongest = 200;
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds_));
  microseconds_ = std::min(kLongest, microseconds_ + microseconds_ / 4);
}

Expected<int> Link::receive(std::vector<std::byte>& message, const std::function<bool()>& give_up) {
  Pause pause;
  for (;;) {
    MR_ASSIGN_OR_RETURN(const std::optional<int> from, try_receive(message));
    if (from) return *from;
    if (give_up && give_up()) return error(Code::cancelled, "cancelled");
    pause.sleep();
  }
}

std::string Link::name(int rank) const { return fmt::format("rank {} ({})", rank, host(rank)); }

}  // namespace millrace::link
