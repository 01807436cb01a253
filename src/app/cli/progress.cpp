#include "app/cli/progress.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

#include "app/cli/terminal.h"
#include "base/bytes.h"
#include "base/os/terminal.h"
#include "base/say.h"

namespace millrace::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::milliseconds(700);  // shorter work shows no bar
constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kNextLine = std::chrono::seconds(20);

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

std::string progress_line(const std::string& label, double share, const std::string& head,
                          const std::vector<std::string>& tails, int columns) {
  constexpr int least_bar = 6, most_bar = 28;
  // A line that fills the last column would make some terminals begin another one.
  int left = columns - 1 - display_width(label) - 1 - display_width(head);
  std::string text;
  for (const std::string& tail : tails) {
    if (display_width(tail) > left) break;
    text += tail;
    left -= display_width(tail);
  }
  std::string bar;
  const int width = std::min(left, most_bar);
  if (width >= least_bar)
    for (int i = 0; i < width; ++i) bar += i < static_cast<int>(share * width) ? "█" : "░";
  if (left >= 0) return label + " " + bar + head + text;
  return head.substr(0, static_cast<std::size_t>(std::max(0, columns - 1)));
}

Progress::Progress(std::string label, Unit unit, bool quiet)
    : label_(std::move(label)),
      unit_(unit),
      enabled_(!quiet),
      redraws_(os::is_terminal(os::Stream::errors)),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() { finish(); }

void Progress::update(std::uint64_t done, std::uint64_t total, const std::string& note) {
  if (!enabled_) return;
  const auto now = Clock::now();
  const MutexLock lock(mutex_);
  const bool soon = redraws_ ? now - start_ < kPatience || (drawn_ && now - last_ < kRedraw && done < total)
                             : now - last_ < kNextLine;
  if (soon) return;
  last_ = now;
  const double share = total > 0 ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total)) : 0;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done - std::min(done, before_)) / seconds : 0;
  const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
  const std::string speed = note.empty() ? amount(static_cast<std::uint64_t>(rate), unit_) + "/s" : note;
  const std::string head = fmt::format(" {:3.0f} %  {} of {}", share * 100, amount(done, unit_), amount(total, unit_));
  const std::vector<std::string> tails = {"  " + speed, rate > 0 ? fmt::format("  {:.0f} s left", left) : ""};
  if (!redraws_) return say(stderr, "{}{}{}{}\n", label_, head, tails[0], tails[1]);
  drawn_ = true;
  say(stderr, "\r\033[K{}", progress_line(label_, share, head, tails, os::terminal_columns(os::Stream::errors)));
}

void Progress::finish() {
  const MutexLock lock(mutex_);
  if (!drawn_) return;
  say(stderr, "\r\033[K");
  drawn_ = false;
  enabled_ = false;
}

}  // namespace millrace::cli
