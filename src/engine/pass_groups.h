// Over how many passes sequences that decode are divided, where several passes can be under way at a time
// (exec::Executor::passes()): all in one, which reads weights once for all of them, or as many passes as there can be,
// which keep all parts of the executor at work. Which is faster depends on what bounds a pass on each rank; so both are
// tried and the faster one is used. Answers do not depend on it. Thread-safety: one thread calls.
#pragma once

#include <array>
#include <cstdint>

namespace millrace::engine {

class PassGroups {
 public:
  /// `passes`: that can be under way.
  explicit PassGroups(std::int64_t passes) : passes_(passes) {}

  /// For so many sequences that decode: 1, or `passes`.
  std::int64_t groups(std::int64_t sequences);
  /// A pass of nothing but such rows ended so long after the one before it, and gave so many tokens, while groups() of
  /// so many sequences held.
  void passed(std::int64_t sequences, std::int64_t tokens, double seconds);

 private:
  static constexpr int kTries = 12;       // passes of a way until it is compared
  static constexpr int kSettling = 4;     // passes behind a change, beside those under way, that are of both ways
  static constexpr int kTrust = 600;      // passes until the other way is tried again
  static constexpr int kMagnitudes = 16;  // numbers of sequences of one power of two share what is known
  struct Way {
    double seconds_per_token = 0;  // 0: not known
    double seconds = 0;            // of this try
    std::int64_t tokens = 0;
  };
  struct Known {
    std::array<Way, 2> ways;  // one pass; many
    int now = 1;              // the way that is in use
    int passes = 0;           // since it is
    bool trying = true;
  };

  Known& known(std::int64_t sequences);
  static void change(Known& known, int way, bool trying);

  std::int64_t passes_;
  std::array<Known, kMagnitudes> known_;
};

}  // namespace millrace::engine
