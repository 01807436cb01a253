#include "base/os/thread.h"

#include <process.h>

#include <memory>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

unsigned __stdcall run(void* argument) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(argument));
  (*body)();
  return 0;
}

/// Available since Windows 10 of 2016.
void name_thread(HANDLE thread, const char* name) {
  using Describe = HRESULT WINAPI(HANDLE, PCWSTR);
  static auto* const describe = reinterpret_cast<Describe*>(
      reinterpret_cast<void*>(GetProcAddress(GetModuleHandleW(L"kernel32.dll"), "SetThreadDescription")));
  if (describe != nullptr && name[0] != '\0') (void)describe(thread, to_wide(name).c_str());
}

}  // namespace

Expected<Thread> Thread::start(const char* name, std::function<void()> body, std::size_t stack_bytes) {
  auto owned = std::make_unique<std::function<void()>>(std::move(body));
  const std::uintptr_t handle = _beginthreadex(nullptr, static_cast<unsigned>(stack_bytes), run, owned.get(),
                                               STACK_SIZE_PARAM_IS_A_RESERVATION, nullptr);
  if (handle == 0) return error(Code::io_error, "cannot start a thread: {}", last_error().message());
  (void)owned.release();  // run() deletes it
  name_thread(reinterpret_cast<HANDLE>(handle), name);
  Thread thread;
  thread.handle_ = handle;
  thread.running_ = true;
  return thread;
}

Thread::~Thread() {
  if (!running_) return;
  WaitForSingleObject(reinterpret_cast<HANDLE>(handle_), INFINITE);
  CloseHandle(reinterpret_cast<HANDLE>(handle_));
}

Status Thread::bind(int processor) const {
  GROUP_AFFINITY where{};
  where.Group = static_cast<WORD>(processor / 64);
  where.Mask = KAFFINITY{1} << (processor % 64);
  return outcome(SetThreadGroupAffinity(reinterpret_cast<HANDLE>(handle_), &where, nullptr));
}

void limit_oversleep(std::uint64_t) {}  // its timer is the whole system's

}  // namespace millrace::os
