#include "base/os/terminal.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>

#include "base/os/win32/win32.h"

namespace millrace::os {
namespace {

HANDLE handle_of(Stream stream) {
  return GetStdHandle(stream == Stream::input    ? STD_INPUT_HANDLE
                      : stream == Stream::output ? STD_OUTPUT_HANDLE
                                                 : STD_ERROR_HANDLE);
}

/// UTF-8 that was read from the console and not yet returned by read_input(), whose caller may take less than a line.
std::string& rest_of_line() {
  static std::string rest;
  return rest;
}

/// Returns true if the console's queue contains a key press; mouse and window events also end a wait.
bool key_is_pressed(HANDLE console) {
  INPUT_RECORD record{};
  for (DWORD count = 0; PeekConsoleInputW(console, &record, 1, &count) != 0 && count > 0;) {
    const KEY_EVENT_RECORD& key = record.Event.KeyEvent;
    // Releasing Alt can produce the character whose number was typed.
    const bool types = key.bKeyDown != 0 || (key.wVirtualKeyCode == VK_MENU && key.uChar.UnicodeChar != 0);
    if (record.EventType == KEY_EVENT && types) return true;
    ReadConsoleInputW(console, &record, 1, &count);
  }
  return false;
}

/// The console's mode before SingleKeys.
std::optional<DWORD>& mode_before() {
  static std::optional<DWORD> before;
  return before;
}

/// xterm's escape sequence for a key without a character; empty for other keys.
std::string sequence_of(const KEY_EVENT_RECORD& key) {
  const bool control = (key.dwControlKeyState & (LEFT_CTRL_PRESSED | RIGHT_CTRL_PRESSED)) != 0;
  const auto letter = [&](char last) { return std::string(control ? "\x1b[1;5" : "\x1b[") + last; };
  switch (key.wVirtualKeyCode) {
    case VK_UP:
      return letter('A');
    case VK_DOWN:
      return letter('B');
    case VK_RIGHT:
      return letter('C');
    case VK_LEFT:
      return letter('D');
    case VK_HOME:
      return letter('H');
    case VK_END:
      return letter('F');
    case VK_DELETE:
      return "\x1b[3~";
    default:
      return {};
  }
}

/// The bytes that a terminal sends for a key press. A surrogate pair arrives as two keys; `high` is the first.
std::string bytes_of(const KEY_EVENT_RECORD& key, wchar_t& high) {
  const wchar_t unit = key.uChar.UnicodeChar;
  // A character typed as Alt and its number arrives when Alt is released.
  if (key.bKeyDown == 0 && (key.wVirtualKeyCode != VK_MENU || unit == 0)) return {};
  if (unit == 0) return sequence_of(key);
  const DWORD state = key.dwControlKeyState;
  const bool control = (state & (LEFT_CTRL_PRESSED | RIGHT_CTRL_PRESSED)) != 0;
  if (key.wVirtualKeyCode == VK_ESCAPE) return {};
  if (key.wVirtualKeyCode == VK_BACK) return control ? "\x17" : "\x7f";  // Ctrl-Backspace deletes a word
  if (IS_HIGH_SURROGATE(unit)) {
    high = unit;
    return {};
  }
  const wchar_t both[] = {high, unit};
  const bool pair = IS_LOW_SURROGATE(unit) && high != 0;
  high = 0;
  const bool alt = (state & LEFT_ALT_PRESSED) != 0 && !control && key.bKeyDown != 0;  // with Ctrl it is AltGr
  std::string bytes;
  if (alt) bytes += '\x1b';
  bytes += to_utf8(pair ? std::wstring_view(both, 2) : std::wstring_view(both + 1, 1));
  return bytes;
}

/// Returns the bytes of the console's next event. Errors: unavailable (not a character), io_error.
Status read_keys(HANDLE console, std::string& out) {
  static wchar_t high = 0;
  INPUT_RECORD record{};
  DWORD count = 0;
  if (ReadConsoleInputW(console, &record, 1, &count) == 0) return last_error();
  if (record.EventType == KEY_EVENT) {
    const std::string bytes = bytes_of(record.Event.KeyEvent, high);
    for (WORD i = 0; i < record.Event.KeyEvent.wRepeatCount; ++i) out += bytes;
  }
  return out.empty() ? error(Code::unavailable, "no character was typed") : Status();
}

Expected<std::size_t> read_console(HANDLE console, std::span<char> out) {
  std::string& rest = rest_of_line();
  if (rest.empty() && mode_before()) {
    MR_RETURN_IF_ERROR(read_keys(console, rest));
  } else if (rest.empty()) {
    wchar_t units[1024];
    DWORD count = 0;
    SetLastError(ERROR_SUCCESS);
    if (ReadConsoleW(console, units, 1023, &count, nullptr) == 0) return last_error();
    if (count == 0 && GetLastError() == ERROR_OPERATION_ABORTED)
      return error(Code::unavailable, "a signal interrupted the read");
    // Do not split a surrogate pair.
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
  constexpr DWORD step_ms = 10;  // Windows cannot wait for a pipe's bytes
  for (const auto end = std::chrono::steady_clock::now() + patience;; Sleep(step_ms)) {
    DWORD there = 0;
    if (console ? key_is_pressed(input) : PeekNamedPipe(input, nullptr, 0, nullptr, &there, nullptr) == 0 || there > 0)
      return true;  // read_input() reports the error
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

SingleKeys::SingleKeys() {
  HANDLE const input = handle_of(Stream::input);
  DWORD mode = 0;
  if (GetConsoleMode(input, &mode) == 0) return;
  mode_before() = mode;
  constexpr DWORD lines = ENABLE_LINE_INPUT | ENABLE_ECHO_INPUT | ENABLE_VIRTUAL_TERMINAL_INPUT;
  SetConsoleMode(input, (mode & ~lines) | ENABLE_PROCESSED_INPUT);
}

SingleKeys::~SingleKeys() {
  if (mode_before()) SetConsoleMode(handle_of(Stream::input), *mode_before());
  mode_before().reset();
}

bool output_has_no_reader() {
  HANDLE const output = handle_of(Stream::output);
  DWORD written = 0;
  if (GetFileType(output) != FILE_TYPE_PIPE || WriteFile(output, "", 0, &written, nullptr) != 0) return false;
  const DWORD number = GetLastError();
  return number == ERROR_NO_DATA || number == ERROR_BROKEN_PIPE || number == ERROR_PIPE_NOT_CONNECTED;
}

}  // namespace millrace::os
