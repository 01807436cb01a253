// The limits of one rendering, and error reporting within this folder.
//
// A template comes with a model file and must not be able to do harm: every step, byte and nested call counts against a
// limit, and exceeding one ends the rendering with an error. Bytes are counted before they are allocated: containers of
// values are Vectors, which allocate through the meter; texts grow in a Builder; objects are created by make_object.
// Uncounted memory is bounded by the template's source, or by a text that is already counted. Within this folder,
// errors are exceptions of type Trouble. Template's functions convert them to a Status, so that none leaves the folder.
// Thread-safety: one thread.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/work_grant.h"

namespace millrace::text::jinja {

struct Limits {
  std::uint64_t steps = 20'000'000;    // nodes evaluated; 256 bytes processed count as a step
  std::size_t live_bytes = 64u << 20;  // of all values and the output at once
  std::size_t output_bytes = 32u << 20;
  int depth = 600;             // of nested statements, expressions and macro calls
  WorkGrant* grant = nullptr;  // grants the live bytes, and is polled for cancellation
};

struct Trouble {
  std::string message;
  Code code = Code::invalid_argument;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Trouble{fmt::format(format, std::forward<Args>(args)...), Code::invalid_argument};
}

class Meter {
 public:
  explicit Meter(const Limits& limits) : limits_(limits), memory_(limits.live_bytes, limits.grant) {}
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;

  const Limits& limits() const { return limits_; }

  void step(std::uint64_t count = 1) {
    steps_ += count;
    if (steps_ < next_question_) return;
    if (steps_ > limits_.steps) fail("it takes more than {} steps", limits_.steps);
    if (memory_.cancelled()) throw Trouble{"its text is no longer wanted", Code::cancelled};
    next_question_ = steps_ + kQuestion;
    if (next_question_ > limits_.steps) next_question_ = limits_.steps + 1;
  }
  /// Counts work on this many bytes that are not kept.
  void touch(std::size_t bytes) { step(bytes / 256 + 1); }

  void grow(std::size_t bytes) {
    step(bytes / 256);
    if (memory_.grow(bytes)) return;
    if (bytes > memory_.most() - memory_.used()) {
      throw Trouble{fmt::format("it needs more than {} MiB of memory", memory_.most() >> 20), Code::unsupported};
    }
    throw Trouble{fmt::format("it asks for {} MiB of memory, which are not left", (memory_.used() + bytes) >> 20),
                  Code::out_of_budget};
  }
  void shrink(std::size_t bytes) noexcept { memory_.shrink(bytes); }

  /// Counts a level of nesting during its lifetime.
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
  static constexpr std::uint64_t kQuestion = 1u << 16;  // steps between polls of the grant

  Limits limits_;
  GrantedBytes memory_;
  std::uint64_t steps_ = 0, next_question_ = 0;
  int depth_ = 0;
};

/// The allocator of containers that belong to a rendering. A null meter counts nothing (constants).
template <typename T>
class Metered {
 public:
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;
  using propagate_on_container_swap = std::true_type;

  Metered(Meter* meter) : meter_(meter) {}   // NOLINT: implicit by design, `Vector<T> items(meter)`
  Metered(Meter& meter) : meter_(&meter) {}  // NOLINT: the same
  template <typename U>
  Metered(const Metered<U>& other) : meter_(other.meter()) {}  // NOLINT: as allocators do

  T* allocate(std::size_t count) {
    if (count > SIZE_MAX / sizeof(T)) fail("it needs more memory than there is");
    if (meter_ != nullptr) meter_->grow(count * sizeof(T));
    return std::allocator<T>().allocate(count);
  }
  void deallocate(T* items, std::size_t count) noexcept {
    std::allocator<T>().deallocate(items, count);
    if (meter_ != nullptr) meter_->shrink(count * sizeof(T));
  }
  Meter* meter() const { return meter_; }
  bool operator==(const Metered& other) const { return meter_ == other.meter_; }

 private:
  Meter* meter_;
};
template <typename T>
using Vector = std::vector<T, Metered<T>>;

/// Bytes held by a value, returned to the meter by the destructor. A null meter counts nothing (constants).
class Held {
 public:
  Held() = default;
  Held(Meter* meter, std::size_t bytes) : meter_(meter), bytes_(bytes) {
    if (meter_ != nullptr) meter_->grow(bytes_);
  }
  Held(Held&& other) noexcept : meter_(std::exchange(other.meter_, nullptr)), bytes_(other.bytes_) {}
  Held& operator=(Held&& other) noexcept {
    std::swap(meter_, other.meter_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (meter_ != nullptr) meter_->shrink(bytes_);
  }

 private:
  Meter* meter_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace millrace::text::jinja
