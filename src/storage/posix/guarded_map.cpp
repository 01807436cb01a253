#include "storage/guarded_map.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>

#include "storage/map_records.h"

namespace millrace::storage {

namespace {

struct sigaction previous_action {};
std::uintptr_t system_page_bytes = 4096;

void pass_on(int signal, siginfo_t* info, void* context) {
  if ((previous_action.sa_flags & SA_SIGINFO) != 0 && previous_action.sa_sigaction != nullptr) {
    previous_action.sa_sigaction(signal, info, context);
  } else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN) {
    previous_action.sa_handler(signal);
  } else {
    // The default action ends the process: repeat the failed load (or the signal) without this handler.
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
    if (info->si_code <= 0) raise(signal);  // sent by a process, not caused by a load
  }
}

void on_bus_error(int signal, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  MapRecord* record = info->si_code > 0 ? record_at(address) : nullptr;
  void* page = reinterpret_cast<void*>(address / system_page_bytes * system_page_bytes);
  if (record != nullptr) {
    record->failed.store(true, std::memory_order_release);
    if (mmap(page, system_page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      record = nullptr;
    }
  }
  if (record == nullptr) pass_on(signal, info, context);
  errno = saved_errno;
}

void install_handler() {
  static std::once_flag once;
  std::call_once(once, [] {
    system_page_bytes = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous_action);
  });
}

}  // namespace

Expected<GuardedMap> GuardedMap::map(SystemHandle handle, std::uint64_t bytes, const std::string& path) {
  if (bytes == 0) return GuardedMap(nullptr, 0, nullptr);
  install_handler();
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, static_cast<int>(handle), 0);
  if (data == MAP_FAILED) return error(Code::io_error, "cannot map {}: {}", path, std::strerror(errno));
  return GuardedMap(static_cast<const std::byte*>(data), bytes, add_record(data, bytes));
}

GuardedMap::~GuardedMap() {
  if (data_ == nullptr) return;
  drop_record(*record_);
  munmap(const_cast<std::byte*>(data_), bytes_);
}

void GuardedMap::read_ahead() const {
  if (bytes_ > 0) (void)madvise(const_cast<std::byte*>(data_), bytes_, MADV_WILLNEED);
}

bool GuardedMap::failed() const { return record_ != nullptr && record_->failed.load(std::memory_order_acquire); }

}  // namespace millrace::storage
