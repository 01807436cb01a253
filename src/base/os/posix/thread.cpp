#include "base/os/thread.h"

#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cstring>
#include <memory>

namespace millrace::os {
namespace {

static_assert(sizeof(pthread_t) == sizeof(std::uintptr_t));
pthread_t native(std::uintptr_t handle) { return static_cast<pthread_t>(handle); }

void* run(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Expected<Thread> Thread::start(const char* name, std::function<void()> body, std::size_t stack_bytes) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, std::max<std::size_t>(stack_bytes, PTHREAD_STACK_MIN));
  pthread_t handle{};
  const int code = pthread_create(&handle, &attributes, run, owned.get());
  pthread_attr_destroy(&attributes);
  if (code != 0) return error(Code::io_error, "cannot start a thread: {}", std::strerror(code));
  (void)owned.release();  // run() deletes it
  if (name[0] != '\0') pthread_setname_np(handle, name);
  Thread thread;
  thread.handle_ = static_cast<std::uintptr_t>(handle);
  thread.running_ = true;
  return thread;
}

Thread::~Thread() {
  if (running_) pthread_join(native(handle_), nullptr);
}

Status Thread::bind(int processor) const {
  const int capacity = std::max(1024, processor + 1);
  cpu_set_t* const set = CPU_ALLOC(capacity);
  if (set == nullptr) return error(Code::io_error, "no memory for a set of processors");
  const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(processor, bytes, set);
  const int code = pthread_setaffinity_np(native(handle_), bytes, set);
  CPU_FREE(set);
  return code == 0 ? Status() : Status(Code::io_error, std::strerror(code));
}

void limit_oversleep(std::uint64_t ns) {
  static thread_local std::uint64_t limit = 0;
  if (limit != ns) prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(ns));
  limit = ns;
}

}  // namespace millrace::os
