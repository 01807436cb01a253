// Before main() of every program: what the C library does to text is switched off (bytes pass as they are), the console
// shows UTF-8 and escape sequences, and a missing disk or DLL is an error, no dialog. It is linked as an object:
// nothing refers to it.
#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace {

const bool started = [] {
  _fmode = _O_BINARY;
  for (std::FILE* const stream : {stdin, stdout, stderr}) {
    const int number = _fileno(stream);
    if (number >= 0) _setmode(number, _O_BINARY);
  }
  SetErrorMode(SEM_FAILCRITICALERRORS | SEM_NOGPFAULTERRORBOX | SEM_NOOPENFILEERRORBOX);
  SetConsoleCP(CP_UTF8);
  SetConsoleOutputCP(CP_UTF8);
  for (const DWORD stream : {STD_OUTPUT_HANDLE, STD_ERROR_HANDLE}) {
    HANDLE const handle = GetStdHandle(stream);
    DWORD mode = 0;
    if (GetConsoleMode(handle, &mode) != 0)
      SetConsoleMode(handle, mode | ENABLE_PROCESSED_OUTPUT | ENABLE_VIRTUAL_TERMINAL_PROCESSING);
  }
  return true;
}();

}  // namespace
