// `millrace bench`: tok/s of prompt and decode, bytes per second of each tier beside the calibrated rate, and a hash of
// the logits.
#include "app/cli/bench.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "app/cli/cluster.h"
#include "app/cli/squeeze.h"
#include "base/bytes.h"
#include "base/log.h"
#include "residency/calibrate.h"
#include "residency/predict.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

/// Repeats the work under smaller and smaller budgets, until one is refused: prints a line for each, and a chart.
int squeeze(engine::EngineOptions options, const BenchFlags& flags, const Program& program) {
  constexpr int kMostSteps = 12;
  std::vector<SqueezeStep> steps;
  std::string name;
  fmt::print("{:>10} {:>12} {:>12} {:>14} {:>14}\n", "budget", "tok/s", "predicted", "moved/pass", "experts missed");
  while (steps.size() < kMostSteps) {
    auto created = create_engine(options, flags.model, program);
    if (created.status().code() == Code::out_of_budget && !steps.empty()) {
      fmt::print("{}\n", created.status().message());
      break;
    }
    if (!created.ok()) return fail(created.status());
    Bench bench(**created, flags, program);
    if (const Status status = bench.run(); !status.ok()) return fail(status);
    const auto json = bench_report(**created, bench, flags, (*created)->rates());
    const bool gpu = json["device"] == "cuda";
    std::uint64_t& cap = gpu ? options.memory.vram_bytes : options.memory.ram_bytes;
    options.memory.vram_beside.clear();  // all of several GPUs get the same smaller limits
    if (steps.empty()) {                 // what it takes where nothing is short, if that was not said
      const residency::Budget& budget = gpu ? *(*created)->vram_budget() : (*created)->budget();
      cap = cap > 0 ? std::min(cap, budget.reserved_bytes()) : budget.reserved_bytes();
      name = fmt::format("{} by {}, {} of prompt and {} of answer", json["model"].get<std::string>(),
                         json["executor"].get<std::string>(), flags.prompt_tokens, flags.decode_tokens);
    }
    const double moved = json["disk_bytes_per_pass"].get<double>() + json.value("pcie_bytes_per_pass", 0.0);
    steps.push_back({cap, json["decode_tok_s"].is_null() ? 0 : json["decode_tok_s"].get<double>(), moved,
                     json["experts"]["steady_misses"].get<double>()});
    fmt::print("{:>10} {:>12.2f} {:>12.2f} {:>14} {:>14.1f}\n", format_bytes(cap), steps.back().tokens_per_second,
               json["predicted_decode_tok_s"].get<double>(), format_bytes(static_cast<std::uint64_t>(moved)),
               steps.back().misses);
    std::fflush(stdout);
    cap = next_budget(cap);
  }
  if (steps.size() < 2)
    return fail(error(Code::out_of_budget, "--squeeze: there is no smaller budget to compare with"));
  if (const Status written = residency::write_small_file(flags.squeeze, draw_squeeze(name, steps)); !written.ok())
    return fail(written);
  fmt::print("drawn in {}\n", flags.squeeze);
  return 0;
}

int execute(BenchFlags flags, const Program& program) {
  if (flags.model.context == 0) flags.model.context = flags.prompt_tokens + std::max(1, flags.decode_tokens) + 1;
  if (const Status launched = launch_cluster(flags.model, program, flags.sequences); !launched.ok())
    return fail(launched);
  const auto ranks = Ranks::join(flags.model);
  if (!ranks.ok()) return fail(ranks.status());
  auto options = options_of_rank(flags.model, {}, ranks->rank(), program);
  if (ranks->follows()) return ranks->follow(options);
  if (!options.ok()) return fail(options.status());
  options->part.cluster = ranks->cluster();
  options->demand.max_sequences = flags.sequences;
  options->demand.decode_rows = flags.sequences;
  if (flags.accept >= 0) options->speculate.acceptance = flags.accept;
  if (flags.routing != "model") options->experts.routing = flags.routing;
  if (const Status status = check_model_outputs({flags.trace, flags.squeeze}, *options); !status.ok())
    return fail(status);
  Trace trace;
  if (!flags.trace.empty()) options->watch.trace = &trace;
  install_interrupt_handler();
  if (!flags.squeeze.empty() && options->part.cluster != nullptr)
    return fail(error(Code::unsupported, "--squeeze is of one process: over several, layers would move to the others"));
  if (!flags.squeeze.empty()) return squeeze(*options, flags, program);
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  options->planning.rates = (*created)->rates();  // measured just now, where they were unknown
  Bench bench(**created, flags, program);
  if (const Status status = bench.run(); !status.ok()) return fail(status);
  auto json = bench_report(**created, bench, flags, options->planning.rates);
  const residency::Plan plan = (*created)->plan();
  const std::string seat = describe_seat((*created)->draft_seat());
  if (json["device"] == "cuda") {
    created->reset();  // the caps leave no memory for the measurement beside the engine
    if (const Status measured = residency::measure_gpu(options->planning.rates); !measured.ok())
      log::warn("{}", measured.message());
    json["pcie_rate_measured"] = options->planning.rates.host_to_device;
    json["gpus"] = 1 + options->device.gpus_beside.size();
    if (std::vector<int> gpus = options->device.gpus_beside; !gpus.empty()) {
      gpus.push_back(options->device.gpu);
      const auto links = residency::measure_links(gpus);
      if (!links.ok()) log::warn("{}", links.status().message());
      json["pcie_rate_measured"] = links.ok() ? *links : 0;
      options->planning.rates.device_memory *= static_cast<double>(gpus.size());
    }
    json["vram_rate_measured"] = options->planning.rates.device_memory;  // now, in this run
  }
  if (!flags.trace.empty()) {
    if (const Status written = trace.write(flags.trace); !written.ok()) return fail(written);
  }
  if (flags.json)
    fmt::print("{}\n", json.dump(2));
  else
    print_bench(json);
  residency::DecodeCost cost = bench.cost();
  cost.context = decode_context(flags);
  cost.prompt_tokens = flags.prompt_tokens;
  cost.sequences = flags.sequences;
  cost.prompt_tokens_per_second = json["prompt_tok_s"].get<double>();
  if (flags.explain)
    std::fputs(("\nabove: medians, with experts of the prompt's passes; below: all passes of decoding\n" +
                residency::render_explain(plan, options->planning.rates, cost) + seat)
                   .c_str(),
               flags.json ? stderr : stdout);
  return bench.finite() ? 0 : kExitFailed;
}

}  // namespace

void add_bench(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<BenchFlags>();
  auto* command = app.add_subcommand("bench", "Measure prompt and decode speed, bytes moved, and a hash of the logits");
  add_model_flags(*command, flags->model);
  add_cluster_flags(*command, flags->model);
  command->add_option("-p,--prompt-tokens", flags->prompt_tokens, "Tokens of random prompt")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-n,--decode-tokens", flags->decode_tokens, "Tokens to decode")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command->add_option("-r,--repetitions", flags->repetitions, "Counted repetitions; medians are printed")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("-s,--sequences", flags->sequences, "Sequences decoded at once")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option(
          "--routing", flags->routing,
          "How a mixture's experts are chosen: model, uniform, zipf:S (the k-th favourite with a weight of 1/k^S), "
          "trace:FILE (written by --record-routing). Random weights route unlike trained ones")
      ->capture_default_str();
  command
      ->add_option(
          "--accept", flags->accept,
          "Accept each drafted token with this probability, for models with random weights; the drafter still runs")
      ->check(number_within(0, 1));
  command->add_option(
      "--squeeze", flags->squeeze,
      "Measure under ever smaller budgets, each 0.7 of the last, and plot speed and expert misses into this SVG file");
  command->add_option("--trace", flags->trace, "Write a timeline to this file (Chrome trace JSON; slower)");
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("--explain", flags->explain, "Print the plan's prediction beside what was measured, tier by tier");
  command->add_flag("--hash", flags->hash, "Hash the logits of every decoded token (on a GPU slower)");
  command->add_flag("--hash-prompt", flags->hash_prompt, "Hash the logits of every prompt token too (slower)");
  command->add_flag("!--no-warm-up", flags->warm, "Count the first repetition too");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
