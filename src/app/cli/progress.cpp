#include "app/cli/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "base/bytes.h"
#include "base/os/terminal.h"
#include "base/say.h"

namespace millrace::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::milliseconds(700);  // shorter work shows no bar
constexpr auto kRedraw = std::chrono::milliseconds(100);

std::string amount(std::uint64_t n, Unit unit) {
  switch (unit) {
    case Unit::bytes:
      return format_bytes(n);
    case Unit::tokens:
      return fmt::format("{} tokens", n);
    case Unit::items:
      return fmt::format("{}", n);
  }
  return {};
}

}  // namespace

Progress::Progress(std::string label, Unit unit, bool quiet)
    : label_(std::move(label)),
      unit_(unit),
      enabled_(!quiet && os::is_terminal(os::Stream::errors)),
      start_(Clock::now()) {}

Progress::~Progress() { finish(); }

void Progress::update(std::uint64_t done, std::uint64_t total, const std::string& note) {
  if (!enabled_) return;
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  if (now - start_ < kPatience || (drawn_ && now - last_ < kRedraw && done < total)) return;
  last_ = now;
  drawn_ = true;
  const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  constexpr int width = 28;
  std::string bar;
  for (int i = 0; i < width; ++i) bar += i < static_cast<int>(share * width) ? "█" : "░";
  const double rate = seconds > 0 ? static_cast<double>(done - std::min(done, before_)) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  const std::string speed = note.empty() ? amount(static_cast<std::uint64_t>(rate), unit_) + "/s" : note;
  say(stderr, "\r\033[K{} {} {:3.0f} %  {} of {}  {}", label_, bar, share * 100, amount(done, unit_),
      amount(total, unit_), speed);
  if (rate > 0) say(stderr, "  {:.0f} s left", left);
  std::fflush(stderr);
}

void Progress::finish() {
  const MutexLock lock(mutex_);
  if (!drawn_) return;
  say(stderr, "\r\033[K");
  std::fflush(stderr);
  drawn_ = false;
  enabled_ = false;
}

}  // namespace millrace::cli
