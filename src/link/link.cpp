#include "link/link.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace millrace::link {

void Pause::sleep() {
  constexpr int kLongest = 200, kLongestOfAll = 2000;
  constexpr std::int64_t kLong = 2'000'000;  // who has waited so long does not wait for a pass
  std::this_thread::sleep_for(std::chrono::microseconds(microseconds_));
  slept_ += microseconds_;
  microseconds_ = std::min(slept_ < kLong ? kLongest : kLongestOfAll, microseconds_ + microseconds_ / 4);
}

Status Link::send_others(std::span<const std::byte> message) {
  Status failed;
  for (int other = 0; other < size(); ++other) {
    if (other == rank()) continue;
    const Status sent = send(other, message);
    if (failed.ok()) failed = sent;
  }
  return failed;
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
