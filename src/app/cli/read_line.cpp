#include "app/cli/read_line.h"

#include <editline/readline.h>
#include <langinfo.h>

#include <chrono>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <string_view>

#include "app/cli/command.h"
#include "base/os/terminal.h"

namespace millrace::cli {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // for interrupted(), which another thread's signal may have set

/// The next character for libedit, -1 at the end. Its own way waits in read() alone, where a Ctrl-C that came while the
/// line was being drawn would go unnoticed until the next key.
int next_character(FILE* /*in*/) {
  std::mbstate_t state = {};
  while (true) {
    const bool ready = os::input_is_ready(kLook);
    if (interrupted()) return -1;
    if (!ready) continue;
    char byte = 0;
    const auto got = os::read_input({&byte, 1});
    if (!got.ok() && got.status().code() == Code::unavailable) continue;
    if (!got.ok() || *got == 0) return -1;
    wchar_t character = 0;
    const std::size_t size = std::mbrtowc(&character, &byte, 1, &state);
    if (size == static_cast<std::size_t>(-1)) state = {};  // no character: dropped
    if (size <= 1) return static_cast<int>(character);
  }
}

}  // namespace

void prepare_lines() {
  // In the C locale libedit would drop every letter beyond ASCII, and models take nothing but UTF-8.
  if (std::setlocale(LC_CTYPE, "") == nullptr || std::string_view(nl_langinfo(CODESET)) != "UTF-8")
    std::setlocale(LC_CTYPE, "C.UTF-8");
  rl_getc_function = next_character;
  using_history();
}

std::optional<std::string> read_line(const char* prompt) {
  char* line = readline(prompt);
  // A Ctrl-C may have cut a write short, of this line's drawing or of the answer before it: a terminal loses nothing by
  // that, and the end of the program would take it for output that could not be written.
  if (os::is_terminal(os::Stream::output)) std::clearerr(stdout);
  if (line == nullptr) return std::nullopt;
  std::string text(line);
  std::free(line);
  return text;
}

void remember_line(const std::string& line) { add_history(line.c_str()); }

}  // namespace millrace::cli
