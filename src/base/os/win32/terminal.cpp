#include "base/os/terminal.h"

#include <algorithm>
#include <chrono>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

HANDLE handle_of(Stream stream) {
  return GetStdHandle(stream == Stream::input    ? STD_INPUT_HANDLE
                      : stream == Stream::output ? STD_OUTPUT_HANDLE
                                                 : STD_ERROR_HANDLE);
}

/// What a console gave and read_input() has not passed on yet, in UTF-8: the caller may take less than a line.
std::string& rest_of_line() {
  static std::string rest;
  return rest;
}

/// Whether a key's press is among what the console holds; mouse and window events let a wait end, too.
bool key_is_pressed(HANDLE console) {
  INPUT_RECORD record{};
  for (DWORD count = 0; PeekConsoleInputW(console, &record, 1, &count) != 0 && count > 0;) {
    if (record.EventType == KEY_EVENT && record.Event.KeyEvent.bKeyDown != 0) return true;
    ReadConsoleInputW(console, &record, 1, &count);
  }
  return false;
}

Expected<std::size_t> read_console(HANDLE console, std::span<char> out) {
  std::string& rest = rest_of_line();
  if (rest.empty()) {
    wchar_t units[1024];
    DWORD count = 0;
    SetLastError(ERROR_SUCCESS);
    if (ReadConsoleW(console, units, 1023, &count, nullptr) == 0) return last_error();
    if (count == 0 && GetLastError() == ERROR_OPERATION_ABORTED)
      return error(Code::unavailable, "a signal interrupted the read");
    // A character beyond 16 bits may not end in the middle.
    DWORD more = 0;
    if (count > 0 && IS_HIGH_SURROGATE(units[count - 1]) &&
        ReadConsoleW(console, units + count, 1, &more, nullptr) != 0)
      count += more;
    constexpr wchar_t end_of_input = 26;  // Ctrl-Z on a line of its own
    if (count == 0 || units[0] == end_of_input) return std::size_t{0};
    rest = to_utf8({units, count});
    std::erase(rest, '\r');
  }
  const std::size_t taken = std::min(rest.size(), out.size());
  std::copy_n(rest.begin(), taken, out.begin());
  rest.erase(0, taken);
  return taken;
}

}  // namespace

bool is_terminal(Stream stream) {
  DWORD mode = 0;
  return GetConsoleMode(handle_of(stream), &mode) != 0;  // NUL is a character device, too, and has no mode
}

int terminal_columns(Stream stream) {
  constexpr int usual = 80, least = 20;
  CONSOLE_SCREEN_BUFFER_INFO info{};
  if (GetConsoleScreenBufferInfo(handle_of(stream), &info) == 0) return usual;
  const int columns = info.srWindow.Right - info.srWindow.Left + 1;
  return columns < least ? usual : columns;
}

bool input_is_fed() {
  const DWORD kind = GetFileType(handle_of(Stream::input));
  return kind == FILE_TYPE_PIPE || kind == FILE_TYPE_DISK;
}

bool input_is_ready(std::chrono::milliseconds patience) {
  HANDLE const input = handle_of(Stream::input);
  const bool console = is_terminal(Stream::input);
  if (!console && GetFileType(input) != FILE_TYPE_PIPE) return true;
  if (!rest_of_line().empty()) return true;
  constexpr DWORD step_ms = 10;  // nothing can wait for a pipe's bytes
  for (const auto end = std::chrono::steady_clock::now() + patience;; Sleep(step_ms)) {
    DWORD there = 0;
    if (console ? key_is_pressed(input) : PeekNamedPipe(input, nullptr, 0, nullptr, &there, nullptr) == 0 || there > 0)
      return true;  // what is wrong with it is for read_input() to say
    if (std::chrono::steady_clock::now() >= end) return false;
  }
}

Expected<std::size_t> read_input(std::span<char> out) {
  HANDLE const input = handle_of(Stream::input);
  if (is_terminal(Stream::input)) return read_console(input, out);
  DWORD got = 0;
  if (ReadFile(input, out.data(), static_cast<DWORD>(std::min<std::size_t>(out.size(), 1u << 30)), &got, nullptr) != 0)
    return std::size_t{got};
  const DWORD number = GetLastError();
  if (number == ERROR_BROKEN_PIPE || number == ERROR_HANDLE_EOF) return std::size_t{0};
  return error_of(number);
}

bool output_has_no_reader() {
  HANDLE const output = handle_of(Stream::output);
  DWORD written = 0;
  if (GetFileType(output) != FILE_TYPE_PIPE || WriteFile(output, "", 0, &written, nullptr) != 0) return false;
  const DWORD number = GetLastError();
  return number == ERROR_NO_DATA || number == ERROR_BROKEN_PIPE || number == ERROR_PIPE_NOT_CONNECTED;
}

}  // namespace millrace::os
