// Lines where there is no libedit: our own editor.
#include <chrono>
#include <cstdio>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/line_editor.h"
#include "app/cli/read_line.h"
#include "base/os/terminal.h"

namespace millrace::cli {
namespace {

constexpr std::chrono::milliseconds kLook{50};  // for interrupted(), which another thread may have set

std::vector<std::string>& remembered() {
  static std::vector<std::string> lines;
  return lines;
}

void show(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace

void prepare_lines() {}  // text is UTF-8 in every program

std::optional<std::string> read_line(const char* prompt) {
  const os::SingleKeys keys;
  LineEditor editor(prompt, os::terminal_columns(os::Stream::output), remembered());
  show(editor.start());
  while (true) {
    const bool ready = os::input_is_ready(kLook);
    if (interrupted()) return std::nullopt;
    if (!ready) continue;
    char byte = 0;
    const auto got = os::read_input({&byte, 1});
    if (!got.ok() && got.status().code() == Code::unavailable) continue;
    if (!got.ok() || *got == 0) return std::nullopt;
    std::string out;
    const LineEditor::Outcome outcome = editor.take(byte, out);
    if (!out.empty()) show(out);
    if (outcome == LineEditor::Outcome::line) return editor.text();
    if (outcome == LineEditor::Outcome::end) return std::nullopt;
  }
}

void remember_line(const std::string& line) { remembered().push_back(line); }

}  // namespace millrace::cli
