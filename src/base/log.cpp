#include "base/log.h"

#include <spdlog/sinks/ansicolor_sink.h>
#if defined(_WIN32)
#include <spdlog/sinks/ansicolor_sink-inl.h>  // of which spdlog's library there holds nothing
#endif
#include <spdlog/spdlog.h>

#include <atomic>
#include <memory>

namespace millrace::log {
namespace {

std::atomic<Level> current{Level::warn};

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    // On Windows, too: spdlog's own for there writes past whatever stderr was redirected to.
    spdlog::logger made("millrace", std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>());
    made.set_pattern("%^%l%$: %v");
    made.set_level(spdlog::level::trace);
    return made;
  }();
  return instance;
}

}  // namespace

void set_level(Level level) {
  current = level;
  // At these levels, lines carry the time.
  if (level <= Level::info) logger().set_pattern("%T.%e %^%l%$: %v");
}
Level level() { return current; }

void write(Level level, std::string_view line) {
  constexpr spdlog::level::level_enum map[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                               spdlog::level::err, spdlog::level::off};
  logger().log(map[static_cast<int>(level)], line);
}

}  // namespace millrace::log
