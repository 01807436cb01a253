// `millrace run`: one prompt, several, a pipe, or a chat.
#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "app/cli/chat.h"
#include "app/cli/repl.h"

namespace millrace::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  std::vector<std::string> prompts;
  std::string positional, system;
  bool raw = false, show_plan = false, stats = false, think = true;
};

int answer_all(engine::Engine& engine, const RunFlags& flags, Chat& chat, const std::vector<std::string>& prompts) {
  int code = 0;
  for (const auto& prompt : prompts) {
    if (prompts.size() > 1) fmt::print("> {}\n", prompt);
    chat.clear();
    if (const Status said = chat.say(prompt); !said.ok()) {
      code = fail(said);
      if (said.code() == Code::cancelled) break;
    }
    if (prompts.size() > 1) std::puts("");
  }
  if (flags.stats) {
    const auto& last = chat.last();
    if (last.decode_seconds > 0 && last.tokens.size() > 1) {
      fmt::print(stderr, "{} prompt tokens at {:.0f} tok/s, {} answer tokens at {:.1f} tok/s\n", last.prompt_tokens,
                 static_cast<double>(last.prompt_tokens) / last.prompt_seconds, last.tokens.size(),
                 static_cast<double>(last.tokens.size() - 1) / last.decode_seconds);
    }
  }
  (void)engine;
  return code;
}

int execute(const CLI::App& command, RunFlags& flags, const Program& program) {
  store::Manifest defaults;
  auto options = engine_options(flags.model, program, &defaults);
  if (!options.ok()) return fail(options.status());
  apply_defaults(command, defaults, flags.sampling);
  if (flags.system.empty()) flags.system = defaults.system;
  std::vector<std::string> prompts = flags.prompts;
  if (!flags.positional.empty()) prompts.insert(prompts.begin(), flags.positional);
  const bool piped = prompts.empty() && isatty(STDIN_FILENO) == 0;
  if (piped) {
    std::string text{std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
    while (!text.empty() && text.back() == '\n') text.pop_back();
    if (text.empty())
      return fail(error(Code::invalid_argument, "no prompt: give one with -p, or write one into the pipe"));
    prompts.push_back(std::move(text));
  }
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  engine::Engine& engine = **created;
  if (flags.show_plan) {
    std::fputs(residency::render_plan(engine.plan(), engine.plan_options(), options->rates).c_str(), stdout);
    std::puts("");
    std::fflush(stdout);
  }
  ChatOptions chat_options{flags.system, flags.raw, program.quiet, flags.sampling, {}};
  if (command.count("--think") > 0) chat_options.think = flags.think;
  Chat chat(engine, std::move(chat_options));
  if (!flags.raw && engine.chat_template() == nullptr) return fail(engine.chat_template_status());
  const int code = prompts.empty() ? run_repl(engine, chat) : answer_all(engine, flags, chat, prompts);
  if (flags.stats)
    std::fputs(render_stats(engine, chat.total_seconds(), chat.total_decoded(), options->rates).c_str(), stderr);
  return code;
}

}  // namespace

void add_run(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  auto* command = app.add_subcommand("run", "Answer a prompt, a pipe, or chat");
  add_model_flags(*command, flags->model);
  command->add_option("prompt", flags->positional, "What to answer (default: a chat, or what the pipe says)");
  command->add_option("-p,--prompt", flags->prompts, "A prompt; may be repeated, each is answered on its own")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--system", flags->system, "The system message");
  command->add_flag("--raw", flags->raw, "Send the text as it is, without a chat template");
  command->add_flag("--think,!--no-think", flags->think, "Let models that can choose think before they answer, or not");
  command->add_flag("--show-plan", flags->show_plan, "Print where the weights will live before the first token");
  command->add_flag("--stats", flags->stats, "Print speed and bytes moved per tier afterwards");
  add_sampling_flags(*command, flags->sampling);
  command->callback([command, flags, &program, &exit_code] { exit_code = execute(*command, *flags, program); });
}

}  // namespace millrace::cli
