// `millrace run`: one prompt, several, a pipe, or a chat.
#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "app/cli/address.h"
#include "app/cli/answer_form.h"
#include "app/cli/chat.h"
#include "app/cli/cluster.h"
#include "app/cli/input.h"
#include "app/cli/pull.h"
#include "app/cli/repl.h"
#include "app/store/aliases.h"
#include "base/os/terminal.h"
#include "base/say.h"

namespace millrace::cli {
namespace {

struct RunFlags {
  ModelFlags model;
  SamplingFlags sampling;
  PromptCacheFlags prompt_cache;
  std::string learn_experts;
  FormFlags form;
  std::vector<std::string> images, prompts, words;  // words: MODEL, PROMPT or both
  std::string system, host;
  bool raw = false, show_plan = false, stats = false, think = true, local = false;
  std::int64_t think_budget = 0;  // where it was given
};

/// The exit code after a failed write: without a message if the reader has closed the pipe (`| head`).
int fail_to_write() {
  return os::output_has_no_reader() ? kExitFailed : fail(error(Code::io_error, "cannot write the output"));
}

Status show_pictures(const RunFlags& flags, Chat& chat) {
  for (const std::string& path : flags.images) MR_RETURN_IF_ERROR(chat.show(path));
  return {};
}

int answer_all(const RunFlags& flags, Chat& chat, const std::vector<std::string>& prompts) {
  int code = 0;
  for (const auto& prompt : prompts) {
    if (prompts.size() > 1) fmt::print("> {}\n", prompt);
    chat.clear();
    if (const Status shown = show_pictures(flags, chat); !shown.ok()) return fail(shown);
    if (const Status said = chat.say(prompt); !said.ok()) {
      code = std::ferror(stdout) == 0 ? fail(said) : fail_to_write();
      if (said.code() == Code::cancelled) break;
    }
    if (prompts.size() > 1) std::puts("");
  }
  if (flags.stats) {
    const auto& last = chat.last();
    if (last.decode_seconds > 0 && last.answer_tokens > 1) {
      say(stderr, "{} prompt tokens at {:.0f} tok/s, {} answer tokens at {:.1f} tok/s\n", last.prompt_tokens,
          static_cast<double>(last.prompt_tokens) / last.prompt_seconds, last.answer_tokens,
          static_cast<double>(last.answer_tokens - 1) / last.decode_seconds);
    }
  }
  return code;
}

Expected<std::string> read_pipe(std::uint64_t most, bool quiet) {
  constexpr std::chrono::seconds patience{2};  // before a note explains what the program waits for
  if (!quiet && !os::input_is_ready(patience))
    say(stderr, "Reading standard input for the prompt ('< /dev/null' if there is none)\n");
  MR_ASSIGN_OR_RETURN(std::string text, read_input(most));
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// The prompts of the command line, each followed by the text of the pipe, or only that text; none: a chat.
Expected<std::vector<std::string>> read_prompts(const RunFlags& flags, std::uint64_t ram_bytes, bool quiet) {
  std::vector<std::string> prompts = flags.prompts;
  if (prompts.empty() && os::is_terminal(os::Stream::input)) return prompts;
  std::string text;
  if (prompts.empty() || os::input_is_fed()) {
    MR_ASSIGN_OR_RETURN(text, read_pipe(most_text_bytes(ram_bytes), quiet));
  }
  if (prompts.empty()) prompts.emplace_back();
  for (std::string& prompt : prompts) {
    if (!prompt.empty() && !text.empty()) prompt += "\n\n";
    prompt += text;
    if (prompt.find_first_not_of(flags.raw ? "" : " \t\r\n") == std::string::npos)
      return error(Code::invalid_argument, "the prompt is empty: give one with -p, or write one into the pipe");
  }
  return prompts;
}

void tell_server(const RunFlags& flags, const Source& server, const Address& address, bool quiet) {
  if (quiet) return;
  const bool dims = os::is_terminal(os::Stream::errors);
  say(stderr, "{}{} answers from the server at {}{}{}\n", dims ? "\x1b[2m" : "", server.name(), address.text(),
      flags.host.empty() ? " (--local: from an engine of its own)" : "", dims ? "\x1b[0m" : "");
}

/// A running server that may answer; none if an option requires an engine in this process.
std::unique_ptr<Source> server_for(const RunFlags& flags, const store::Resolved& model, bool quiet) {
  const bool own = flags.local || flags.show_plan || flags.stats || flags.form.any() ||
                   flags.prompt_cache.folder != "off" || !flags.model.first_given().empty();
  if (own) return nullptr;
  const auto address = call_address();
  if (!address.ok()) {
    say(stderr, "warning: no server is asked: {}\n", address.status().message());
    return nullptr;
  }
  std::unique_ptr<Source> server = find_server(model, *address);
  if (server != nullptr && !flags.images.empty() && !server->sees().ok()) {
    say(stderr, "note: the server at {} shows the model no pictures; an engine of its own answers\n", address->text());
    return nullptr;
  }
  if (server != nullptr) tell_server(flags, *server, *address, quiet);
  return server;
}

int answer(const CLI::App& command, const RunFlags& flags, const Program& program, Source& source,
           const std::vector<std::string>& prompts, double* seconds, std::int64_t* decoded) {
  ChatOptions options;
  options.system = flags.system;
  options.raw = flags.raw;
  options.quiet = program.quiet;
  options.sampling = flags.sampling;
  if (command.count("--think") > 0) options.thinking.on = flags.think;
  if (command.count("--think-budget") > 0) options.thinking.budget = flags.think_budget;
  Chat chat(source, std::move(options));
  if (prompts.empty()) {
    if (const Status shown = show_pictures(flags, chat); !shown.ok()) return fail(shown);
  }
  const int code = prompts.empty() ? run_repl(chat) : answer_all(flags, chat, prompts);
  if (seconds != nullptr) *seconds = chat.total_seconds();
  if (decoded != nullptr) *decoded = chat.total_decoded();
  return code;
}

/// Handles a model that this machine does not have: a server may have it, or it is fetched first. Nothing: look it up
/// again.
std::optional<int> execute_elsewhere(const CLI::App& command, const RunFlags& flags, const Program& program,
                                     const Status& missing) {
  const std::string& name = flags.model.model;
  if (flags.form.any() && !flags.host.empty())
    return fail(
        error(Code::unsupported,
              "--grammar, --schema and --regex work without a server only: leave out --host, or use the server's API"));
  const auto address = call_address(flags.host);
  if (!flags.local && !flags.form.any()) {
    if (!address.ok()) return fail(address.status());
    if (const auto server = find_server(name, *address); server != nullptr) {
      const std::string own = flags.show_plan ? "--show-plan" : flags.model.first_given();
      if (!own.empty())
        return fail(error(
            Code::invalid_argument,
            "{} needs the model on this machine, and '{}' is not here: leave the option out to ask the server at {}",
            own, name, address->text()));
      if (const Status sees = server->sees(); !flags.images.empty() && !sees.ok()) return fail(sees);
      const auto prompts = read_prompts(flags, 0, program.quiet);
      if (!prompts.ok()) return fail(prompts.status());
      install_interrupt_handler();
      tell_server(flags, *server, *address, program.quiet);
      return answer(command, flags, program, *server, *prompts, nullptr, nullptr);
    }
  }
  if (!flags.host.empty() && !address.ok()) return fail(address.status());
  if (!flags.host.empty()) return fail(error(Code::not_found, "no server at {} has model '{}'", address->text(), name));
  if (!store::names_hub_model(name, store::Store().root()))
    return fail(error(missing.code(), "{}; 'millrace pull USER/REPO' fetches others", missing.message()));
  if (!os::is_terminal(os::Stream::input) || !os::is_terminal(os::Stream::errors))
    return fail(error(Code::not_found, "model '{0}' is not on this machine; fetch it with 'millrace pull {0}'", name));
  say(stderr, "{} is not here. Fetch it now? [Y/n] ", name);
  std::string reply;
  if (!std::getline(std::cin, reply) || (!reply.empty() && reply[0] != 'y' && reply[0] != 'Y')) return kExitFailed;
  if (const int code = pull_model(name, program); code != 0) return code;
  return std::nullopt;
}

/// "run MODEL", "run MODEL PROMPT", "run PROMPT -m MODEL".
Status read_words(RunFlags& flags) {
  const std::size_t models = flags.model.model.empty() ? 1 : 0;
  if (flags.words.size() < models)
    return error(Code::invalid_argument, "run takes MODEL [PROMPT], or [PROMPT] -m MODEL");
  if (flags.words.size() > models + 1)
    return error(Code::invalid_argument, "run takes one prompt; put it into quotes, or give several with -p");
  if (models == 1) flags.model.model = flags.words.front();
  if (flags.words.size() > models) flags.prompts.insert(flags.prompts.begin(), flags.words.back());
  return {};
}

int execute(const CLI::App& command, RunFlags& flags, const Program& program) {
  if (const Status status = read_words(flags); !status.ok()) return fail(status);
  auto form = read_form(flags.form);
  if (!form.ok()) return fail(form.status());
  if (const Status launched = launch_cluster(flags.model, program, 1); !launched.ok()) return fail(launched);
  const auto ranks = Ranks::join(flags.model);
  if (!ranks.ok()) return fail(ranks.status());
  if (ranks->follows()) return ranks->follow(options_of_rank(flags.model, flags.prompt_cache, ranks->rank(), program));
  if (const Status share = open_share(flags.model, ranks->rank(), program); !share.ok()) return fail(share);
  flags.local = flags.local || !ranks->alone();
  store::Resolved model;
  auto options = flags.host.empty() ? engine_options(flags.model, program, &model.manifest)
                                    : error(Code::not_found, "model '{}' not found", flags.model.model);
  if (options.status().code() == Code::not_found) {
    if (const auto code = execute_elsewhere(command, flags, program, options.status()); code) return *code;
    options = engine_options(flags.model, program, &model.manifest);
  }
  if (!options.ok()) return fail(options.status());
  options->part.cluster = ranks->cluster();
  if (const Status status = apply_prompt_cache(flags.prompt_cache, *options); !status.ok()) return fail(status);
  apply_learning(flags.learn_experts, *options);
  model.path = options->model.path;
  model.named = !model.manifest.name.repo.empty();
  apply_defaults(command, model.manifest, flags.sampling);
  if (flags.system.empty()) flags.system = model.manifest.system;
  const auto defaults = chat_defaults(model.manifest);
  if (!defaults.ok()) return fail(defaults.status());
  const auto prompts = read_prompts(flags, options->memory.ram_bytes, program.quiet);
  if (!prompts.ok()) return fail(prompts.status());
  install_interrupt_handler();
  if (const auto server = server_for(flags, model, program.quiet); server != nullptr)
    return answer(command, flags, program, *server, *prompts, nullptr, nullptr);

  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  engine::Engine& engine = **created;
  if (flags.show_plan) {
    std::fputs(residency::render_plan(engine.plan(), engine.plan_options(), engine.rates()).c_str(), stdout);
    std::puts("");
    std::fflush(stdout);
  }
  const auto source = local_source(engine, *defaults, flags.raw, std::move(*form));
  if (!source.ok()) return fail(source.status());
  double seconds = 0;
  std::int64_t decoded = 0;
  const int code = answer(command, flags, program, **source, *prompts, &seconds, &decoded);
  if (flags.stats) std::fputs(render_stats(engine, seconds, decoded, engine.rates()).c_str(), stderr);
  return code;
}

}  // namespace

void add_run(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<RunFlags>();
  auto* command =
      app.add_subcommand("run", "Answer a prompt or a pipe, or chat; uses a running server that has the model");
  add_model_flags(*command, flags->model);
  add_cluster_flags(*command, flags->model);
  command->remove_option(command->get_option("model"));  // where -m names it, the only word is the prompt
  command->add_option("-m,--model", flags->model.model, "A model by name, or a GGUF file (any part of a split one)");
  command->add_option("words", flags->words, "The model (or -m), and what to answer (default: a chat, or the pipe)")
      ->option_text("[MODEL] [PROMPT]")
      ->expected(0, 16);
  command->add_option("-p,--prompt", flags->prompts, "A prompt; may be repeated, each answered alone")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--image", flags->images, "Picture for each -p, or a chat's start; repeatable")
      ->allow_extra_args(false)  // what follows the file is a prompt
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--system", flags->system, "The system message");
  command->add_flag("--raw", flags->raw, "Send the text as it is, without a chat template");
  command->add_flag("--think,!--no-think", flags->think, "Whether models that can choose think first");
  command->add_option("--think-budget", flags->think_budget, "Tokens a model may think; then it has to answer")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 30));
  command->add_option("--host", flags->host, "Ask the server there, HOST or HOST:PORT (default: see MILLRACE_HOST)");
  command->add_flag("--local", flags->local, "Load the model here, even if a running server has it");
  command->add_flag("--show-plan", flags->show_plan, "Print where the weights are stored before the first token");
  command->add_flag("--stats", flags->stats, "Print speed and bytes moved per tier afterwards");
  add_prompt_cache_flags(*command, flags->prompt_cache, "off");
  add_learning_flag(*command, flags->learn_experts);
  add_form_flags(*command, flags->form);
  add_sampling_flags(*command, flags->sampling);
  command->callback([command, flags, &program, &exit_code] { exit_code = execute(*command, *flags, program); });
}

}  // namespace millrace::cli
