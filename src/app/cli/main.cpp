// millrace: the program. Parses the command line and hands over to a verb.
#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/help.h"
#include "app/cli/suggest.h"
#include "base/log.h"
#include "base/os/heap.h"
#include "base/os/signals.h"
#include "base/say.h"
#include "base/spare_memory.h"
#include "device/cpu.h"

namespace {

void on_no_memory() {
  // An exception leaves the stack, or is handled, as containers do to destroy what they made so far.
  const bool leaves = std::uncaught_exceptions() > 0 || std::current_exception() != nullptr;
  if (leaves && millrace::give_spare_memory()) return;
  throw std::bad_alloc();
}

/// What was printed has come out, or the command has failed: a full disk takes no output.
int end_output(int exit_code) {
  using namespace millrace;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return exit_code;
  if (exit_code != 0) return exit_code;
  // A reader that has left (`| head`) wants no word about it.
  if (errno != EPIPE) say(stderr, "error: cannot write the output: {}\n", std::generic_category().message(errno));
  return cli::kExitFailed;
}

/// `millrace help` and `millrace help VERB` as --help says it, and `millrace` alone likewise.
std::vector<std::string> words_of(int argc, char** argv) {
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) return {"--help"};
  if (words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  return words;
}

/// CLI11 reads `[a, b]` as a list wherever an option takes several values, which changes texts and stop words such as
/// "[INST]". This mark behind the bracket hides it; each option removes the mark before anything reads its value.
constexpr char kMark = '\x01';

std::string without_mark(std::string word) {
  if (word.ends_with(kMark)) word.pop_back();
  return word;
}

void keep_brackets(CLI::App& app, std::vector<std::string>& words) {
  for (std::string& word : words)
    if (word.ends_with(']') || word.ends_with(kMark)) word += kMark;
  for (CLI::App* verb : app.get_subcommands([](CLI::App*) { return true; }))
    for (CLI::Option* option : verb->get_options([](CLI::Option*) { return true; }))
      if (option->get_items_expected_max() > 0) option->transform(without_mark);  // no flag
}

int run(int argc, char** argv) {
  using namespace millrace;
  cli::Program program;

  CLI::App app{"Runs language models larger than memory by streaming their weights from disk.", "millrace"};
  app.set_help_flag("-h,--help", "Print this; --help-all prints every option");
  app.set_version_flag("--version", std::string("millrace ") + MILLRACE_VERSION);
  app.allow_windows_style_options(false);  // a path may begin with a slash
  app.require_subcommand(1);
  int verbosity = 0;
  app.add_flag("-v,--verbose", verbosity, "Log every choice and its reason (-vv: debug)");
  app.add_flag("-q,--quiet", program.quiet, "No progress bars, no warnings");
  app.fallthrough();
  app.failure_message([](const CLI::App* failed, const CLI::Error& wrong) {
    const std::vector<CLI::App*> verbs = failed->get_subcommands();
    const CLI::App& verb = verbs.empty() ? *failed : *verbs.front();
    if (dynamic_cast<const CLI::ExtrasError*>(&wrong) == nullptr) return cli::plain_message(verb, wrong);
    const std::vector<std::string> extras = failed->remaining(true);
    return cli::unknown_argument(verb, without_mark(extras.empty() ? std::string(wrong.what()) : extras.front()));
  });
  app.parse_complete_callback([&] {
    // What `millrace --version` holds too: the bare program, before a verb does its work.
    program.bare_resident_bytes = device::resident_bytes();
    log::set_level(program.quiet    ? log::Level::error
                   : verbosity >= 2 ? log::Level::debug
                   : verbosity == 1 ? log::Level::info
                                    : log::Level::warn);
  });

  int exit_code = 0;
  cli::add_run(app, program, exit_code);
  cli::add_models(app, program, exit_code);
  cli::add_serve(app, program, exit_code);
  cli::add_ps(app, exit_code);
  cli::add_stop(app, exit_code);
  cli::add_batch(app, program, exit_code);
  cli::add_plan(app, program, exit_code);
  cli::add_calibrate(app, program, exit_code);
  cli::add_doctor(app, program, exit_code);
  cli::add_inspect(app, program, exit_code);
  cli::add_convert(app, program, exit_code);
  cli::add_export(app, program, exit_code);
  cli::add_export_lora(app, program, exit_code);
  cli::add_quantize(app, program, exit_code);
  cli::add_pack(app, program, exit_code);
  cli::add_split(app, program, exit_code);
  cli::add_verify(app, program, exit_code);
  cli::add_tokenize(app, program, exit_code);
  cli::add_embed(app, program, exit_code);
  cli::add_eval(app, program, exit_code);
  cli::add_perplexity(app, program, exit_code);
  cli::add_imatrix(app, program, exit_code);
  cli::add_sensitivity(app, program, exit_code);
  cli::add_bench(app, program, exit_code);
  cli::add_completion(app);
  app.footer(
      "Start with: millrace run MODEL.gguf --ram 8G -p \"Hello\"\n'millrace COMMAND --help' explains a command.");

  try {
    std::vector<std::string> words = words_of(argc, argv);
    cli::arrange_help(app, words);
    const std::vector<CLI::App*> verbs = app.get_subcommands([](CLI::App*) { return true; });
    const auto is_said = [&](const CLI::App* verb) { return verb->check_name(words[0]); };
    if (!words[0].starts_with('-') && std::none_of(verbs.begin(), verbs.end(), is_said)) {
      std::fputs(cli::unknown_command(app, words[0]).c_str(), stderr);
      return cli::kExitUsage;
    }
    if (const std::string foreign = cli::foreign_short_option(words); !foreign.empty()) {
      const auto verb = std::find_if(verbs.begin(), verbs.end(), is_said);
      std::fputs(cli::unknown_argument(verb == verbs.end() ? app : **verb, foreign).c_str(), stderr);
      return cli::kExitUsage;
    }
    keep_brackets(app, words);
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(std::move(words));
  } catch (const CLI::ParseError& parse_error) {
    const int code = app.exit(parse_error);
    return code == 0 ? 0 : cli::kExitUsage;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  millrace::os::keep_heap_small();
  millrace::hold_back_memory();
  std::set_new_handler(on_no_memory);
  millrace::os::let_failed_writes_return();
  try {
    return end_output(run(argc, argv));
  } catch (const std::bad_alloc&) {
    std::fputs("error: out of memory; close other programs or use a smaller model or context\n", stderr);
  } catch (const std::system_error& failed) {  // fmt::print, of more than its buffer holds
    if (std::ferror(stdout) == 0)
      millrace::say(stderr, "error: {} (a bug in Millrace: please report it)\n", failed.what());
    else if (failed.code().value() != EPIPE)
      millrace::say(stderr, "error: cannot write the output: {}\n", failed.code().message());
  } catch (const std::exception& unexpected) {
    millrace::say(stderr, "error: {} (a bug in Millrace: please report it)\n", unexpected.what());
  }
  return millrace::cli::kExitFailed;
}
