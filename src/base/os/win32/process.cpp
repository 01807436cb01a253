#include "base/os/process.h"

#include <fcntl.h>
#include <io.h>

#include <array>
#include <cstdio>
#include <cstdlib>

#include "base/os/win32/stop_event.h"
#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

/// Variable that tells the background process which handle to write its report to.
constexpr wchar_t kReport[] = L"MILLRACE_DAEMON_REPORT";

/// Quotes a word such that CommandLineToArgvW() and the C library restore it.
std::wstring quoted(const std::string& word) {
  const std::wstring wide = to_wide(word);
  if (!wide.empty() && wide.find_first_of(L" \t\n\v\"") == std::wstring::npos) return wide;
  std::wstring out = L"\"";
  std::size_t backslashes = 0;  // they count only before a quotation mark
  for (const wchar_t unit : wide) {
    if (unit == L'"') out.append(backslashes + 1, L'\\');
    backslashes = unit == L'\\' ? backslashes + 1 : 0;
    out += unit;
  }
  return out.append(backslashes, L'\\') + L'"';
}

std::wstring line_of(const std::vector<std::string>& words) {
  std::wstring line;
  for (const std::string& word : words) line += (line.empty() ? L"" : L" ") + quoted(word);
  return line;
}

std::string read_to_end(HANDLE pipe) {
  std::string text;
  std::array<char, 256> buffer;
  for (DWORD got = 0; ReadFile(pipe, buffer.data(), buffer.size(), &got, nullptr) != 0 && got > 0;)
    text.append(buffer.data(), got);
  return text;
}

struct Started {
  OwnedHandle process;
  DWORD id = 0;
};

/// Starts a program, searched as the system does. `streams`: its standard input, output and error; empty: this
/// process's.
Expected<Started> start_program(const std::vector<std::string>& words, std::span<HANDLE> streams, DWORD flags) {
  STARTUPINFOW startup{};
  startup.cb = sizeof(startup);
  if (streams.size() == 2) {
    startup.dwFlags = STARTF_USESTDHANDLES;
    startup.hStdInput = streams[0];
    startup.hStdOutput = startup.hStdError = streams[1];
  }
  PROCESS_INFORMATION made{};
  std::wstring line = line_of(words);
  if (CreateProcessW(nullptr, line.data(), nullptr, nullptr, TRUE, flags, nullptr, nullptr, &startup, &made) == 0)
    return last_error();
  CloseHandle(made.hThread);
  return Started{OwnedHandle(made.hProcess), made.dwProcessId};
}

/// The pipe end inherited from the parent; kNoHandle without one.
Handle inherited_report() {
  wchar_t text[32] = {};
  if (GetEnvironmentVariableW(kReport, text, 32) == 0) return kNoHandle;
  SetEnvironmentVariableW(kReport, nullptr);
  return static_cast<Handle>(std::wcstoll(text, nullptr, 10));
}

}  // namespace

std::int64_t process_id() { return GetCurrentProcessId(); }
std::int64_t user_id() { return user_number(); }

Expected<std::vector<std::string>> command_line() {
  int count = 0;
  wchar_t** const arguments = CommandLineToArgvW(GetCommandLineW(), &count);
  if (arguments == nullptr) return error(Code::unsupported, "the system does not say how this process was started");
  std::vector<std::string> words;
  for (int i = 0; i < count; ++i) words.push_back(to_utf8(arguments[i]));
  LocalFree(arguments);
  std::wstring program(32768, L'\0');  // no path is longer
  program.resize(GetModuleFileNameW(nullptr, program.data(), static_cast<DWORD>(program.size())));
  if (words.empty()) words.emplace_back();
  words[0] = to_utf8(program);
  return words;
}

Status replace_process(std::vector<std::string> words) {
  const auto started = start_program(words, {}, 0);
  if (!started.ok()) return started.status();
  // Windows has no exec(): start the program, wait, and exit with its code. A job object makes it end
  // if this process is killed.
  HANDLE const job = CreateJobObjectW(nullptr, nullptr);
  JOBOBJECT_EXTENDED_LIMIT_INFORMATION limits{};
  limits.BasicLimitInformation.LimitFlags = JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE;
  SetInformationJobObject(job, JobObjectExtendedLimitInformation, &limits, sizeof(limits));
  AssignProcessToJobObject(job, started.value().process.get());
  SetConsoleCtrlHandler(nullptr, TRUE);  // leave Ctrl-C to the other program
  WaitForSingleObject(started.value().process.get(), INFINITE);
  DWORD code = 1;
  GetExitCodeProcess(started.value().process.get(), &code);
  end_process(static_cast<int>(code));
}

void add_to_environment(const char* name, const char* value) {
  if (std::getenv(name) == nullptr) ::_putenv_s(name, value);  // sets the C library's copy and the system's
}

void end_process(int exit_code) {
  TerminateProcess(GetCurrentProcess(), static_cast<UINT>(exit_code));
  std::abort();  // not reached
}

bool can_stop(std::int64_t process) {
  if (process <= 4 || process > UINT32_MAX) return false;  // 0 and 4 are the system's
  const OwnedHandle found(OpenProcess(PROCESS_TERMINATE | SYNCHRONIZE, FALSE, static_cast<DWORD>(process)));
  return found != nullptr && WaitForSingleObject(found.get(), 0) == WAIT_TIMEOUT;
}

Status stop_process(std::int64_t process) {
  if (const OwnedHandle event(OpenEventW(EVENT_MODIFY_STATE, FALSE, stop_event_name(process).c_str()));
      event != nullptr)
    return outcome(SetEvent(event.get()));
  const OwnedHandle found(OpenProcess(PROCESS_TERMINATE, FALSE, static_cast<DWORD>(process)));
  if (found == nullptr) return last_error();
  constexpr UINT terminated = 128 + 15;  // a shell's exit code for SIGTERM
  return outcome(TerminateProcess(found.get(), terminated));
}

void allow_open_files(std::size_t) {}  // the system has no such limit

std::optional<LockedMemoryLimit> locked_memory_limit() { return std::nullopt; }

Expected<Daemon> Daemon::start(const std::string& log_path, const std::function<int(const std::string& report)>& end) {
  if (const Handle report = inherited_report(); report != kNoHandle) return Daemon(report);
  MR_ASSIGN_OR_RETURN(
      const Handle log_handle,
      open_native(
          log_path.empty() ? L"NUL" : wide_path(log_path),
          {.access = File::Access::write, .create = File::Create::if_missing, .append = true, .owner_only = true}));
  const OwnedHandle log(native(log_handle));
  const OwnedHandle nothing(CreateFileW(L"NUL", GENERIC_READ, kShareAll, nullptr, OPEN_EXISTING, 0, nullptr));
  HANDLE ends[2] = {};
  if (nothing.get() == INVALID_HANDLE_VALUE || CreatePipe(&ends[0], &ends[1], nullptr, 0) == 0) return last_error();
  const OwnedHandle reading(ends[0]);
  OwnedHandle writing(ends[1]);
  for (HANDLE const handle : {log.get(), nothing.get(), writing.get()})
    if (SetHandleInformation(handle, HANDLE_FLAG_INHERIT, HANDLE_FLAG_INHERIT) == 0) return last_error();
  SetEnvironmentVariableW(kReport, std::to_wstring(to_handle(writing.get())).c_str());
  HANDLE streams[] = {nothing.get(), log.get()};
  MR_ASSIGN_OR_RETURN(const std::vector<std::string> words, command_line());
  const auto started = start_program(words, streams, DETACHED_PROCESS | CREATE_NEW_PROCESS_GROUP);
  SetEnvironmentVariableW(kReport, nullptr);
  if (!started.ok()) return started.status();
  writing.reset();  // so that reading ends when the other process closes its end
  const int code = end(read_to_end(reading.get()));
  std::fflush(nullptr);
  end_process(code);
}

Daemon::~Daemon() {
  if (report_ != kNoHandle) CloseHandle(native(report_));
}

void Daemon::report(std::string_view text) {
  DWORD written = 0;
  (void)WriteFile(native(report_), text.data(), static_cast<DWORD>(text.size()), &written, nullptr);
  CloseHandle(native(std::exchange(report_, kNoHandle)));
}

}  // namespace millrace::os
