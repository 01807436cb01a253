#include "storage/small_thread.h"

#include <cstring>

namespace millrace::storage {
namespace {

void* run(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return nullptr;
}

}  // namespace

Expected<SmallThread> SmallThread::start(const char* name, std::function<void()> body, std::size_t stack_bytes) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, stack_bytes);
  SmallThread thread;
  const int code = pthread_create(&thread.handle_, &attributes, run, owned.get());
  pthread_attr_destroy(&attributes);
  if (code != 0) return error(Code::io_error, "cannot start a reading thread: {}", std::strerror(code));
  (void)owned.release();  // run() deletes it
  thread.running_ = true;
  pthread_setname_np(thread.handle_, name);
  return thread;
}

SmallThread::~SmallThread() {
  if (running_) pthread_join(handle_, nullptr);
}

}  // namespace millrace::storage
