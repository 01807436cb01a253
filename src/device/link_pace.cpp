#include "device/link_pace.h"

#include <cmath>
#include <cstdlib>

namespace millrace::device {
namespace {

/// A copy that begins so soon behind the last one counts as begun with it: the host's thread, which wakes up late,
/// would otherwise slow the link down.
constexpr std::chrono::microseconds kLate{100};

}  // namespace

LinkPace::Time LinkPace::crossed(Time begin, std::size_t bytes) {
  using Seconds = std::chrono::duration<double>;
  const auto takes =
      std::chrono::duration_cast<Time::duration>(Seconds(static_cast<double>(bytes) / bytes_per_second_));
  const MutexLock lock(mutex_);
  free_ = (begin < free_ + kLate ? free_ : begin) + takes;
  return free_;
}

double asked_link_rate(const char* text) {
  const double gigabytes = text == nullptr ? 0 : std::strtod(text, nullptr);
  return std::isfinite(gigabytes) && gigabytes > 0 ? gigabytes * 1e9 : 0;
}

LinkPace* link_pace() {
  // Never destroyed: the driver may end copies while the process exits.
  static LinkPace* const pace = [] {
    const double rate = asked_link_rate(std::getenv("MILLRACE_LINK_GB_S"));
    return rate > 0 ? new LinkPace(rate) : nullptr;
  }();
  return pace;
}

}  // namespace millrace::device
