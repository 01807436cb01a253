// `millrace plan`, `calibrate`, `doctor`: where weights will live, how fast this machine is, what it lacks.
#include <fmt/core.h>

#include <cstdio>
#include <filesystem>
#include <memory>

#include "app/cli/calibrate_cluster.h"
#include "app/cli/cluster.h"
#include "app/cli/cluster_file.h"
#include "app/cli/command.h"
#include "app/cli/doctor.h"
#include "app/cli/mixture_choice.h"
#include "app/cli/plan_cluster.h"
#include "app/cli/progress.h"
#include "app/cli/pull.h"
#include "app/cli/self_test.h"
#include "app/store/aliases.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/process.h"
#include "engine/machine_rates.h"
#include "engine/paper.h"
#include "kernels/kernels.h"
#include "link/mpi_link.h"
#include "modelfile/quantize.h"
#include "residency/calibrate.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

struct CalibrateFlags {
  std::string path, out;
  int threads = 0;
  bool json = false, disk_only = false;
};

std::string rate(double bytes_per_second) {
  return bytes_per_second > 0 ? format_bytes(static_cast<std::uint64_t>(bytes_per_second)) + "/s" : "not measured";
}

struct PlanFlags {
  ModelFlags model;
  std::int64_t sequences = 1;
  std::string type;     // the model's, were it quantized
  std::string machine;  // the file of the machine to plan for; empty: this one
  MixtureFlags mixture;
};

/// Removes the file at its end.
struct TemporaryFile {
  explicit TemporaryFile(std::string path) : path(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  const std::string path;
};

/// A file like that which `quantize` would write, without weights, in the model's place. Errors: those of quantize.
Expected<std::unique_ptr<TemporaryFile>> quantize_on_paper(const PlanFlags& flags, engine::EngineOptions& options) {
  MR_RETURN_IF_ERROR(check(flags.mixture));
  if (!flags.type.empty() && flags.mixture.chooses())
    return error(Code::invalid_argument, "--as takes a type; --bytes and --divergence choose types: give one of them");
  modelfile::QuantizeOptions types;
  types.threads = flags.model.threads;
  if (flags.mixture.chooses()) {
    MR_ASSIGN_OR_RETURN(const modelfile::Model model,
                        modelfile::Model::open(options.model.path, {.skip_vocabulary = true}));
    MR_RETURN_IF_ERROR(choose_types(flags.mixture, types.threads, model, types));
  } else {
    MR_ASSIGN_OR_RETURN(types.type, modelfile::quantize_type_from_name(flags.type));
  }
  std::error_code failure;
  const std::filesystem::path folder = std::filesystem::temp_directory_path(failure);
  if (failure) return error(Code::io_error, "there is no folder for temporary files: {}", failure.message());
  auto file =
      std::make_unique<TemporaryFile>((folder / fmt::format("millrace-plan-{}.gguf", os::process_id())).string());
  MR_RETURN_IF_ERROR(modelfile::quantize_hollow(options.model.path, file->path, types));
  options.model.path = file->path;
  return file;
}

int execute_plan(const PlanFlags& plan_flags, const Program& program);

/// A model that a hub has: its file's header alone is read. Nothing: `missing` is all there is to say.
int plan_remote(const PlanFlags& flags, const Program& program, const Status& missing) {
  store::Store store;
  if (!store::names_hub_model(flags.model.model, store.root())) return fail(missing);
  PullPrinter printer(true);
  store::PullOptions options = pull_options({}, printer);
  options.fit_only = true;
  options.mmproj = flags.model.mmproj.empty();
  int code = 0;
  options.fit = [&](const std::string& path) -> Expected<std::string> {
    PlanFlags local = flags;
    local.model.model = path;
    code = execute_plan(local, program);
    return std::string();
  };
  const auto looked_at = store::pull(store, flags.model.model, options);
  return looked_at.ok() ? code : fail(looked_at.status());
}

/// The mmproj file that the model would see by, if there is one.
void print_tower(engine::ModelOptions model) {
  engine::find_mmproj(model);
  const std::filesystem::path path(model.mmproj);
  std::error_code ignored;
  if (path.empty()) return;
  fmt::print("pictures: {} ({}), read from the disk and computed on the CPU for each picture; not in this plan\n",
             path.filename().string(), format_bytes(std::filesystem::file_size(path, ignored)));
}

/// The plan for the machine that --machine describes.
Expected<engine::Planned> plan_elsewhere(const PlanFlags& flags, const engine::EngineOptions& options) {
  if (!flags.model.draft.empty())
    return error(Code::invalid_argument, "--machine plans without a drafter; leave --draft out");
  if (options.planning.follow != nullptr)
    return error(Code::invalid_argument, "--machine makes a new plan; give --plan a file that does not exist");
  MR_ASSIGN_OR_RETURN(const engine::Machine machine, read_machine_file(flags.machine));
  return engine::plan_for(options, machine);
}

int execute_plan(const PlanFlags& plan_flags, const Program& program) {
  const ModelFlags& flags = plan_flags.model;
  auto options = engine_options(flags, program);
  if (options.status().code() == Code::not_found &&
      store::Store().resolve(flags.model).status().code() == Code::not_found)
    return plan_remote(plan_flags, program, options.status());
  if (!options.ok()) return fail(options.status());
  const engine::ModelOptions given = options->model;
  std::unique_ptr<TemporaryFile> quantized;
  if (plan_flags.machine.empty()) *options = engine::with_kept_rates(std::move(*options));
  if (!plan_flags.type.empty() || plan_flags.mixture.chooses() || !plan_flags.mixture.sensitivity.empty()) {
    auto made = quantize_on_paper(plan_flags, *options);
    if (!made.ok()) return fail(made.status());
    quantized = std::move(*made);
    options->planning.find_rates = false;  // it has no weights to measure with, and may lie on another disk
  }
  if (!flags.cluster.empty()) {
    if (const Status alone = check_beside_cluster(flags); !alone.ok()) return fail(alone);
    options->demand.max_sequences = plan_flags.sequences;
    return print_cluster_plan(*options, flags.cluster);
  }
  auto planned = plan_flags.machine.empty() ? engine::plan_only(*options) : plan_elsewhere(plan_flags, *options);
  if (!planned.ok()) return fail(planned.status());
  if (!flags.plan.empty() && options->planning.follow == nullptr) {
    if (const Status kept = residency::write_plan_file(flags.plan, planned->saved); !kept.ok()) return fail(kept);
  }
  std::fputs(residency::render_plan(planned->plan, planned->options, planned->saved.rates).c_str(), stdout);
  fmt::print("context: up to {} tokens; weights leave memory as it fills; at most {} tokens per pass\n",
             planned->context_tokens, planned->batch_tokens);
  std::fputs(describe_seat(planned->draft).c_str(), stdout);
  if (planned->draft_blocks > 0)
    fmt::print("left on the disk: {} that guess{} more tokens, {}\n",
               planned->draft_blocks == 1 ? "a block" : fmt::format("{} blocks", planned->draft_blocks),
               planned->draft_blocks == 1 ? "es" : "", format_bytes(planned->draft_block_bytes));
  print_tower(given);
  return 0;
}

/// Measures this machine, and keeps its rates unless the disk alone is measured.
Expected<residency::Rates> measure_machine(const CalibrateFlags& flags, bool quiet) {
  residency::CalibrateOptions options;
  options.path = flags.path;
  options.threads = flags.threads;
  options.disk_only = flags.disk_only;
  options.kernels = flags.disk_only ? nullptr : &kernels::table(device::best_isa());
  Progress progress("Measuring", Unit::items, quiet);
  auto rates = residency::calibrate(
      options, [&](std::string_view, double done) { progress.update(static_cast<std::uint64_t>(done * 100), 100); });
  progress.finish();
  if (rates.ok() && !flags.disk_only) {
    if (const Status kept = residency::save_rates(flags.path, *rates); !kept.ok()) log::warn("{}", kept.message());
  }
  return rates;
}

/// Under mpirun or srun: every host, and the network between them.
int calibrate_hosts(const CalibrateFlags& flags, const Program& program) {
  auto link = link::join_mpi();
  if (!link.ok()) return fail(link.status());
  const bool leads = (*link)->rank() == 0;
  const HostMemory memory = host_memory();
  Expected<residency::Rates> own =
      error(Code::invalid_argument,
            "--disk-only is for one process; plans for several hosts take all rates, so leave it out");
  if (!flags.disk_only) own = measure_machine(flags, program.quiet || !leads);
  const Expected<MeasuredCluster> measured = gather_cluster(**link, own, memory);
  if (!measured.ok()) return fail(measured.status());
  if (!leads) return 0;
  if (!flags.out.empty()) {
    if (const Status written = residency::write_small_file(flags.out, measured->json); !written.ok())
      return fail(written);
  }
  if (flags.json)
    std::fputs(measured->json.c_str(), stdout);
  else
    print_cluster(measured->file);
  return 0;
}

int execute_calibrate(const CalibrateFlags& flags, const Program& program) {
  if (const Status status = check_outputs({flags.out}, {flags.path}); !status.ok()) return fail(status);
  if (link::started_by_mpi()) return calibrate_hosts(flags, program);
  const Expected<residency::Rates> rates = measure_machine(flags, program.quiet);
  if (!rates.ok()) return fail(rates.status());
  const std::string json = residency::rates_to_json(*rates);
  if (!flags.out.empty()) {
    if (const Status written = residency::write_small_file(flags.out, json); !written.ok()) return fail(written);
  }
  if (flags.json) {
    fmt::print("{}\n", json);
    return 0;
  }
  fmt::print("{}\n", rates->machine);
  fmt::print("  disk, O_DIRECT reads          {}\n", rate(rates->disk));
  if (flags.disk_only) return 0;
  fmt::print("  RAM, all threads reading      {}\n", rate(rates->ram));
  fmt::print("  weights through decode        {}\n", rate(rates->cpu_decode));
  if (rates->device_memory > 0) {
    fmt::print("  VRAM, copies within           {}\n", rate(rates->device_memory));
    fmt::print("  host to GPU, page-locked      {}\n", rate(rates->host_to_device));
    if (rates->host_to_device_busy > 0)
      fmt::print("  both at once                  {} of weights decoded, {} to the GPU\n", rate(rates->cpu_decode_busy),
                 rate(rates->host_to_device_busy));
  }
  if (rates->cpu_few_macs > 0) fmt::print("  multiply-accumulates, 8 rows  {:.0f} G/s\n", rates->cpu_few_macs * 1e-9);
  fmt::print("  multiply-accumulates, prompt  {:.0f} G/s\n", rates->cpu_prefill_macs * 1e-9);
  fmt::print("  a product beside its bytes    {:.1f} us\n", rates->cpu_product * 1e6);
  if (rates->device_prefill_macs > 0)
    fmt::print("  the same on the GPU           {:.0f} G/s\n", rates->device_prefill_macs * 1e-9);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  auto* command = app.add_subcommand("plan", "Show where the weights would be stored, and the predicted speed");
  add_model_flags(*command, flags->model);
  auto* cluster =
      command->add_option("--cluster", flags->model.cluster,
                          "Plan for the hosts in this file: which layers each computes (see docs/guide/clusters.md)");
  command
      ->add_option("--machine", flags->machine,
                   "Plan for the machine in this file, with its memory and rates (see docs/reference/machine-files.md)")
      ->excludes(cluster)
      ->excludes(command->get_option("--rates"));
  command->add_option("--sequences", flags->sequences, "With --cluster: conversations at once")
      ->check(CLI::Range(1, 1024))
      ->needs(cluster);
  command->add_option("--as", flags->type,
                      "Plan for the model as quantize would write it in this type, for example Q4_K_M");
  add_mixture_flags(*command, flags->mixture);
  command->callback([flags, &program, &exit_code] { exit_code = execute_plan(*flags, program); });
}

void add_calibrate(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<CalibrateFlags>();
  auto* command =
      app.add_subcommand("calibrate", "Measure this machine's rates (half a minute) and keep them for plans");
  command->add_option("path", flags->path, "A model or a directory on the disk to measure (default: this directory)");
  command->add_option("-t,--threads", flags->threads, "Threads (default: all processors)")->check(CLI::Range(0, 1024));
  command->add_option("--out", flags->out,
                      "Also write the rates to this file, for plan --rates; under mpirun or srun the hosts, their "
                      "rates and the network's, for --cluster");
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("--disk-only", flags->disk_only, "Measure the disk alone and keep nothing");
  command->callback([flags, &program, &exit_code] { exit_code = execute_calibrate(*flags, program); });
}

void add_doctor(CLI::App& app, const Program&, int& exit_code) {
  auto path = std::make_shared<std::string>(".");
  auto self_test = std::make_shared<bool>(false);
  auto* command = app.add_subcommand("doctor", "Show what this machine offers, and what to change");
  command->add_option("path", *path, "A file or directory on the disk with the models")->capture_default_str();
  command->add_flag(
      "--self-test", *self_test,
      "Also read a new file of 32 MiB by every backend and compare the kernels' bits, for reports of faults");
  command->callback([path, self_test, &exit_code] {
    std::fputs(render_doctor(*path).c_str(), stdout);
    if (!*self_test) return;
    const SelfTest done = run_self_test(*path);
    std::fputs(("\n" + done.report).c_str(), stdout);
    if (!done.passed) exit_code = fail(error(Code::internal, "the self-test failed; attach its report to an issue"));
  });
}

}  // namespace millrace::cli
