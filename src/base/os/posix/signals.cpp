#include "base/os/signals.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>

#include "base/os/posix/posix.h"

namespace millrace::os {
namespace {

// Globals for the handlers, which cannot be passed arguments.
std::atomic<bool>* stop_flag = nullptr;
int stop_exit_code = 0;
int stop_event = -1;

extern "C" void set_stop_flag(int) {
  if (stop_flag->exchange(true)) ::_exit(stop_exit_code);
}

extern "C" void signal_stop_event(int) {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(stop_event, &one, sizeof(one));
}

void handle(int number, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  ::sigaction(number, &action, nullptr);
}

}  // namespace

void let_failed_writes_return() {
  handle(SIGXFSZ, SIG_IGN);
  handle(SIGPIPE, SIG_IGN);
}

void flag_stop_requests(std::atomic<bool>& flag, int exit_code, bool terminate) {
  stop_flag = &flag;
  stop_exit_code = exit_code;
  handle(SIGINT, set_stop_flag);
  if (terminate) handle(SIGTERM, set_stop_flag);
}

void ignore_stop_requests() {
  handle(SIGINT, SIG_IGN);
  handle(SIGTERM, SIG_IGN);
}

void catch_stop_requests() {
  stop_event = ::eventfd(0, EFD_CLOEXEC);
  handle(SIGINT, signal_stop_event);
  handle(SIGTERM, signal_stop_event);
  struct sigaction before = {};
  if (::sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler != SIG_IGN) handle(SIGHUP, signal_stop_event);
}

void wait_for_stop_request() {
  std::uint64_t count = 0;
  (void)retry([&] { return ::read(stop_event, &count, sizeof(count)); });
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) handle(number, SIG_DFL);
}

void request_stop() { signal_stop_event(0); }

}  // namespace millrace::os
