#include "base/os/signals.h"

#include "base/os/process.h"
#include "base/os/win32/stop_event.h"
#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

// Globals for the handlers of the console and the event, which cannot be passed arguments. Windows calls both on
// threads of its own.
enum class Answer : int { usual, flag, ignore, event };
std::atomic<Answer> to_interrupts{Answer::usual}, to_ends{Answer::usual};  // Ctrl-C; a request to terminate, or the end
std::atomic<std::atomic<bool>*> stop_flag{nullptr};
std::atomic<int> stop_exit_code{0};
HANDLE stop_event = nullptr;     // wait_for_stop_request() waits for it
HANDLE request_event = nullptr;  // stop_process() of another process sets it
std::atomic<bool> installed{false};

/// Returns false for the default action, which ends the process.
bool answer_with(Answer answer) {
  switch (answer) {
    case Answer::flag:
      if (stop_flag.load()->exchange(true)) end_process(stop_exit_code);
      return true;
    case Answer::event:
      SetEvent(stop_event);
      return true;
    case Answer::ignore:
      return true;
    case Answer::usual:
      break;
  }
  return false;
}

BOOL WINAPI on_console_event(DWORD kind) {
  if (kind == CTRL_C_EVENT || kind == CTRL_BREAK_EVENT) return answer_with(to_interrupts) ? TRUE : FALSE;
  if (!answer_with(to_ends)) return FALSE;
  // The window closes or the user logs off: Windows ends the process when this returns, after 5 s at the latest.
  Sleep(INFINITE);
  return TRUE;
}

void CALLBACK on_request(void*, BOOLEAN) {
  constexpr int terminated = 128 + 15;
  if (!answer_with(to_ends)) end_process(terminated);
}

void install() {
  if (installed.exchange(true)) return;
  SetConsoleCtrlHandler(on_console_event, TRUE);
  request_event = CreateEventW(nullptr, FALSE, FALSE, stop_event_name(process_id()).c_str());
  HANDLE wait = nullptr;
  if (request_event != nullptr) RegisterWaitForSingleObject(&wait, request_event, on_request, nullptr, INFINITE, 0);
}

}  // namespace

void let_failed_writes_return() {}  // on Windows they always return

void flag_stop_requests(std::atomic<bool>& flag, int exit_code, bool terminate) {
  stop_flag = &flag;
  stop_exit_code = exit_code;
  to_interrupts = Answer::flag;
  if (terminate) to_ends = Answer::flag;
  SetConsoleCtrlHandler(nullptr, FALSE);  // a parent may have disabled Ctrl-C
  install();
}

void ignore_stop_requests() {
  to_interrupts = to_ends = Answer::ignore;
  install();
}

void catch_stop_requests() {
  if (stop_event == nullptr) stop_event = CreateEventW(nullptr, FALSE, FALSE, nullptr);
  to_interrupts = to_ends = Answer::event;
  install();
}

void wait_for_stop_request() {
  WaitForSingleObject(stop_event, INFINITE);
  to_interrupts = to_ends = Answer::usual;
}

void request_stop() { SetEvent(stop_event); }

}  // namespace millrace::os
