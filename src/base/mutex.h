// std::mutex, its scoped lock and std::condition_variable, annotated so that clang checks which locks are held
// (base/thread_annotations.h).
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"

namespace millrace {

class MR_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MR_ACQUIRE() { mutex_.lock(); }
  void unlock() MR_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

/// Holds the mutex from here to the end of the scope, except between unlock() and lock().
class MR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MR_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() MR_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void lock() MR_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }
  void unlock() MR_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

/// Releases a held mutex from here to the end of the scope, and then acquires it again.
class MR_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) MR_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() MR_RELEASE() { mutex_.lock(); }  // of this object: the mutex is held again
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

/// A wait releases the mutex and acquires it again before it returns. `ready` is called with the mutex held:
/// [this]() MR_REQUIRES(mutex_) { return ...; }
class CondVar {
 public:
  void notify_one() { changed_.notify_one(); }
  void notify_all() { changed_.notify_all(); }

  /// May wake up spuriously.
  void wait(Mutex& mutex) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    changed_.wait(held.lock);
  }
  template <typename Clock, typename Duration>
  void wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& time) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    changed_.wait_until(held.lock, time);
  }
  template <typename Rep, typename Period>
  void wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& time) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    changed_.wait_for(held.lock, time);
  }

  /// Waits until `ready` returns true; with a time, at most until then, and returns the last result of `ready`. Clang
  /// does not check that `ready` may be called.
  template <typename Ready>
  void wait(Mutex& mutex, Ready ready) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    changed_.wait(held.lock, ready);
  }
  template <typename Clock, typename Duration, typename Ready>
  bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& time, Ready ready) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    return changed_.wait_until(held.lock, time, ready);
  }
  template <typename Rep, typename Period, typename Ready>
  bool wait_for(Mutex& mutex, const std::chrono::duration<Rep, Period>& time, Ready ready) MR_REQUIRES(mutex) {
    Adopted held(mutex);
    return changed_.wait_for(held.lock, time, ready);
  }

 private:
  /// The held mutex in the form that the standard library needs.
  struct Adopted {
    explicit Adopted(Mutex& mutex) : lock(mutex.mutex_, std::adopt_lock) {}
    ~Adopted() { lock.release(); }
    Adopted(const Adopted&) = delete;
    Adopted& operator=(const Adopted&) = delete;
    std::unique_lock<std::mutex> lock;
  };

  std::condition_variable changed_;
};

}  // namespace millrace
