// How a thread's launches follow each other (pdl.cuh).
#pragma once

namespace millrace::kernels::gpu {

/// While one lives, kernels that its thread launches begin when those before them have ended. Else their blocks may be
/// placed earlier, which hides the gap between two launches, but leaves them where the one before had ended first: the
/// blocks of a kernel that fills the device once then lie two on one multiprocessor and none on another. That is worth
/// it where kernels are short.
class PlainLaunches {
 public:
  explicit PlainLaunches(bool plain) : before_(plain_) { plain_ = plain; }
  ~PlainLaunches() { plain_ = before_; }
  PlainLaunches(const PlainLaunches&) = delete;
  PlainLaunches& operator=(const PlainLaunches&) = delete;

  static bool wanted() { return plain_; }

 private:
  static inline thread_local bool plain_ = false;
  const bool before_;
};

}  // namespace millrace::kernels::gpu
