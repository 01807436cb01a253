// `millrace batch`: a file of requests in OpenAI's batch format into a file of answers.
#include "app/batch/batch.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/server/catalog.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/say.h"

namespace millrace::cli {
namespace {

using std::chrono::steady_clock;

struct BatchFlags {
  ModelFlags model;
  std::string input, output;
  std::int64_t sequences = 0, kv_tokens = 0;
};

Expected<std::shared_ptr<engine::Service>> start_engine(const BatchFlags& flags, engine::EngineOptions options,
                                                        const Program& program) {
  options.kv.share_prefixes = true;
  options.demand.chunk_tokens = 1 << 20;  // nobody watches: a pass takes as much of a prompt as it has room for
  options.demand.max_sequences = flags.sequences;
  options.demand.kv_tokens = flags.kv_tokens;
  show_loading(options, program);
  auto service = engine::Service::start(options);
  if (service.ok() && !flags.model.plan.empty() && options.planning.follow == nullptr)
    MR_RETURN_IF_ERROR(residency::write_plan_file(flags.model.plan, (*service)->engine().saved_plan()));
  return service;
}

/// What the answers call the model.
std::string name_of(const ModelFlags& flags, const store::Manifest& manifest) {
  if (!manifest.name.repo.empty()) return manifest.name.text();
  return server::name_of_file(flags.model);
}

std::string summary(const batch::Counts& counts, const engine::LoadCounters& load, double seconds) {
  std::string text = fmt::format("{} requests in {:.1f} s", counts.answered, seconds);
  if (counts.failed > 0) text += fmt::format(", {} of them failed (the output has an error for each)", counts.failed);
  text += fmt::format(": {} prompt tokens", counts.prompt_tokens);
  if (load.shared_tokens > 0) text += fmt::format(" ({} shared)", load.shared_tokens);
  return text + fmt::format(", {} answer tokens, {:.1f} tok/s", counts.answer_tokens,
                            seconds > 0 ? static_cast<double>(counts.answer_tokens) / seconds : 0.0);
}

int execute(const BatchFlags& flags, const Program& program) {
  auto index = batch::Index::of(flags.input);
  if (!index.ok()) return fail(index.status());
  auto input = batch::LineReader::open(flags.input);
  if (!input.ok()) return fail(input.status());
  store::Manifest manifest;
  auto options = engine_options(flags.model, program, &manifest);
  if (!options.ok()) return fail(options.status());
  if (const Status status = check_model_outputs({flags.output}, *options); !status.ok()) return fail(status);
  auto output = batch::Output::open(flags.output, flags.input, *index);
  if (!output.ok()) return fail(output.status());
  index->freeze();
  const std::int64_t before = index->answered(), all = index->requests();
  if (before > 0 && !program.quiet) say(stderr, "{} of {} requests are answered already; going on\n", before, all);
  if (before == all) return 0;

  install_interrupt_handler(true);
  auto service = start_engine(flags, std::move(*options), program);
  if (!service.ok()) return fail(service.status());

  const steady_clock::time_point begin = steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(steady_clock::now() - begin).count(); };
  Progress progress("Answering", Unit::items, program.quiet);
  progress.begin_at(static_cast<std::uint64_t>(before));
  batch::Options work;
  work.model = name_of(flags.model, manifest);
  work.defaults = {manifest.system, manifest.chat_template, generate::Json::parse(manifest.messages.dump())};
  const std::int64_t sequences = (*service)->load().max_sequences;
  work.in_flight = sequences + std::max<std::int64_t>(2, sequences / 4);  // the next ones wait ready
  work.line_bytes = std::clamp<std::uint64_t>((*service)->engine().budget().cap_bytes() / 64, 64 * kKiB, 64 * kMiB);
  work.on_progress = [&](const batch::Counts& counts) {
    const engine::LoadCounters load = (*service)->load();
    progress.update(static_cast<std::uint64_t>(before + counts.answered), static_cast<std::uint64_t>(all),
                    fmt::format("{:.0f} tok/s", static_cast<double>(load.decode_tokens) / seconds()));
  };
  batch::Counts counts;
  const Status status = batch::work_off(**service, std::move(*input), *index, *output, work, interrupted(), counts);
  progress.finish();
  if (!program.quiet) say(stderr, "{}\n", summary(counts, (*service)->load(), seconds()));
  const bool all_failed = counts.failed > 0 && counts.failed == counts.answered;
  if (status.ok() && all_failed)
    return fail(error(Code::unavailable, "every request failed; {}", counts.first_failure));
  if (counts.failed > 0 && !program.quiet) say(stderr, "warning: {}\n", counts.first_failure);
  if (status.ok()) return 0;
  return fail(Status(status.code(), fmt::format("{}; {} of {} requests are answered; run the same command again to "
                                                "continue",
                                                status.message(), before + counts.answered, all)));
}

}  // namespace

void add_batch(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<BatchFlags>();
  auto* command =
      app.add_subcommand("batch", "Answer a file of requests in OpenAI's batch format; run again to resume");
  command->add_option("input", flags->input, "Requests, one JSON object per line")->required();
  command
      ->add_option("output", flags->output,
                   "File for the answers, in order of completion; an existing one is continued")
      ->required();
  add_model_flags(*command, flags->model);
  command->add_option("-s,--sequences", flags->sequences, "Requests in a pass at most (default: as many as KV allows)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--kv-tokens", flags->kv_tokens, "KV of all requests together, in tokens (default: what is left)")
      ->check(at_least(0));
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
