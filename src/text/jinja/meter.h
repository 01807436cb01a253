// What one rendering may use, and how the rooms of this folder report trouble to each other.
//
// A template comes with a model file and must be able to do no harm: every step, every byte made and every nested call
// is counted against limits, and passing one ends the rendering with an error. Inside this folder errors travel as
// exceptions of the type Trouble; Template's functions turn them into a Status, so that none leaves it.
// Thread-safety: one thread.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace millrace::text::jinja {

struct Limits {
  std::uint64_t steps = 20'000'000;     // nodes evaluated, and 256 bytes touched count as one
  std::size_t live_bytes = 256u << 20;  // of all values at once
  std::size_t output_bytes = 64u << 20;
  int depth = 600;  // of nested statements, expressions and macro calls
};

struct Trouble {
  std::string message;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Trouble{fmt::format(format, std::forward<Args>(args)...)};
}

class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  const Limits& limits() const { return limits_; }

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ > limits_.steps) fail("it takes more than {} steps", limits_.steps);
  }
  /// Work on this many bytes that are not kept.
  void touch(std::size_t bytes) { step(bytes / 256 + 1); }

  void grow(std::size_t bytes) {
    if (bytes > limits_.live_bytes - live_bytes_) fail("it needs more than {} MiB of memory", limits_.live_bytes >> 20);
    live_bytes_ += bytes;
    step(bytes / 256);
  }
  void shrink(std::size_t bytes) noexcept { live_bytes_ -= bytes; }

  /// Counts a level of nesting for as long as it lives.
  class Level {
   public:
    explicit Level(Meter& meter) : meter_(meter) {
      if (meter.depth_ >= meter.limits_.depth) fail("it nests deeper than {} levels", meter.limits_.depth);
      ++meter.depth_;
    }
    ~Level() { --meter_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Meter& meter_;
  };

 private:
  Limits limits_;
  std::uint64_t steps_ = 0;
  std::size_t live_bytes_ = 0;
  int depth_ = 0;
};

/// Bytes that a value holds, given back to the meter when the value goes. A null meter counts nothing (constants).
class Held {
 public:
  Held() = default;
  Held(Meter* meter, std::size_t bytes) : meter_(meter), bytes_(bytes) {
    if (meter_ != nullptr) meter_->grow(bytes_);
  }
  Held(Held&& other) noexcept : meter_(std::exchange(other.meter_, nullptr)), bytes_(other.bytes_) {}
  Held& operator=(Held&&) = delete;
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (meter_ != nullptr) meter_->shrink(bytes_);
  }
  void add(std::size_t bytes) {
    if (meter_ == nullptr) return;
    meter_->grow(bytes);
    bytes_ += bytes;
  }

 private:
  Meter* meter_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::text::jinja
