// What all commands of the command line share: options, exit codes, and the printing of errors.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "app/store/share.h"
#include "app/store/store.h"
#include "base/status.h"
#include "engine/engine.h"

namespace millrace::cli {

/// Exit codes: 0 done, 1 the work failed, 2 the command line is invalid, 3 another process of several is gone
/// (link::kExitGone), 130 stopped by Ctrl-C.
constexpr int kExitFailed = 1, kExitUsage = 2, kExitInterrupted = 130;

/// What main() measured or read before anything else ran.
struct Program {
  std::uint64_t bare_resident_bytes = 0;
  bool quiet = false;  // no progress bars
};

/// Set by SIGINT; the code that handles it clears it. A second SIGINT while it is set ends the process.
std::atomic<bool>& interrupted();
/// `on_term`: SIGTERM too.
void install_interrupt_handler(bool on_term = false);

/// "error: ..." on stderr; the exit code for it.
int fail(const Status& status);

/// Refuses outputs that would replace what the command reads (modelfile::check_output), two outputs that are one file,
/// and an output that is no model in the place of one. Empty paths count for nothing. Errors: invalid_argument.
enum class Writes { models, others };
Status check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs,
                     Writes what = Writes::others);
/// The same where the inputs are a model's files, those that its options name, and `others`.
Status check_model_outputs(std::vector<std::string> outputs, const engine::EngineOptions& options,
                           std::vector<std::string> others = {}, Writes what = Writes::others);

/// Of a file that `millrace calibrate --out` wrote. Errors: not_found, corrupt.
Expected<residency::Rates> read_rates(const std::string& path);

/// --control-vector, --control-vector-scaled and --control-vector-layer-range.
struct ControlFlags {
  std::vector<std::string> vectors, scaled;  // FILE,FILE; FILE:SCALE,FILE:SCALE
  std::vector<std::int64_t> layers;          // the first and the last; empty: all
};

/// The options that choose the model, the device and the memory limits.
struct ModelFlags {
  std::string model;
  std::string speculate = "auto", draft, mmproj;
  std::string device = "auto", vram, pin, ram, kv, isa = "auto", storage = "auto", policy = "auto", prefetch = "auto",
              pack = "auto", rates, tile, plan, record_routing, stages, cluster;
  int cpu_share = -1;
  std::int64_t vram_experts = -1;
  std::int64_t context = 0, batch = 0, expert_slots = 0;
  int threads = 0;
  std::vector<std::string> faults, adapters;
  ControlFlags control;
  bool no_graphs = false, no_fuse = false, no_peer = false, fetch_share = false;
  std::shared_ptr<store::Share> share;      // of the model, once open_share() was called; null: its file is whole
  std::vector<const CLI::Option*> options;  // all but the model

  /// The first option of the engine on the command line; empty if there is none.
  std::string first_given() const;
};

/// A whole number; CLI11's own checks name the largest double in their messages.
inline CLI::Range at_least(std::int64_t least) { return {least, std::int64_t{1} << 40}; }
/// A number within bounds, which NaN and infinities are not: CLI::Range lets NaN through.
CLI::Validator number_within(double least, double most);

/// "on", "off" or a folder. A folder must contain a /, so that a typing error is not taken for one.
/// flag: in the message, a literal.
CLI::Validator switch_or_folder(std::string_view flag);

void add_model_flags(CLI::App& command, ModelFlags& flags);
/// `defaults` (may be null) gets what the store knows of a model given by name, else an empty manifest.
/// Errors: invalid_argument naming the flag; not_found for the model or rates file.
Expected<engine::EngineOptions> engine_options(const ModelFlags& flags, const Program& program,
                                               store::Manifest* defaults = nullptr);

/// Where --fetch-share is given: the part of the model that this rank has, whose path takes the place of the model's
/// name. Errors: those of store::Share::open().
Status open_share(ModelFlags& flags, int rank, const Program& program);

/// Shows a progress bar while weights load, and while a pass waits for the rest of them; Ctrl-C cancels.
void show_loading(engine::EngineOptions& options, const Program& program);

/// Engine::create with such a bar. Saves the plan if --plan names a file that does not exist.
Expected<std::unique_ptr<engine::Engine>> create_engine(engine::EngineOptions options, const ModelFlags& flags,
                                                        const Program& program);

/// Where slow prompts' KV is kept on the disk.
struct PromptCacheFlags {
  std::string folder, size = "4G";  // "on", "off" or a folder
  double seconds = 1;
};
void add_prompt_cache_flags(CLI::App& command, PromptCacheFlags& flags, const char* by_default);
/// Errors: invalid_argument naming the flag; not_found ("on" without a home directory).
Status apply_prompt_cache(const PromptCacheFlags& flags, engine::EngineOptions& options);
/// The same for a service, which may have none: prompts are not kept then, which the log says.
Status apply_prompt_cache_if_there_is_a_home(const PromptCacheFlags& flags, engine::EngineOptions& options);

/// What a rank behind the first opens its part of the model with. Errors: those of all three.
Expected<engine::EngineOptions> options_of_rank(ModelFlags& flags, const PromptCacheFlags& prompts, int rank,
                                                const Program& program);

/// Where it is learned which experts a user's traffic calls for: `flag` is "on", "off" or a folder.
void add_learning_flag(CLI::App& command, std::string& flag);
/// "on" without a home directory, as a service may be: nothing is learned, which the log says.
void apply_learning(const std::string& flag, engine::EngineOptions& options);

struct SamplingFlags {
  double temperature = 0.8, top_p = 0.95, min_p = 0.05, repeat_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  int top_k = 40, repeat_last_n = 64;
  std::int64_t max_tokens = -1;
  std::uint64_t seed = 0;
  std::vector<std::string> stop;
};
void add_sampling_flags(CLI::App& command, SamplingFlags& flags);
/// Sets options from the model's manifest that the command line did not set. REQUIRES: add_sampling_flags(command,
/// flags).
void apply_defaults(const CLI::App& command, const store::Manifest& defaults, SamplingFlags& flags);
/// Draws a seed where none was given.
engine::SamplerOptions sampler_options(const SamplingFlags& flags);

/// Each command adds itself; its callback stores the exit code in `exit_code`.
void add_run(CLI::App& app, const Program& program, int& exit_code);
void add_models(CLI::App& app, const Program& program, int& exit_code);  // pull, list, show, rm, cp, create
void add_serve(CLI::App& app, const Program& program, int& exit_code);
void add_ps(CLI::App& app, int& exit_code);
void add_stop(CLI::App& app, int& exit_code);
void add_batch(CLI::App& app, const Program& program, int& exit_code);
void add_plan(CLI::App& app, const Program& program, int& exit_code);
void add_calibrate(CLI::App& app, const Program& program, int& exit_code);
void add_doctor(CLI::App& app, const Program& program, int& exit_code);
void add_inspect(CLI::App& app, const Program& program, int& exit_code);
void add_pack(CLI::App& app, const Program& program, int& exit_code);
void add_convert(CLI::App& app, const Program& program, int& exit_code);
void add_export(CLI::App& app, const Program& program, int& exit_code);
void add_export_lora(CLI::App& app, const Program& program, int& exit_code);
void add_split(CLI::App& app, const Program& program, int& exit_code);  // and merge
void add_verify(CLI::App& app, const Program& program, int& exit_code);
void add_quantize(CLI::App& app, const Program& program, int& exit_code);
void add_tokenize(CLI::App& app, const Program& program, int& exit_code);
void add_embed(CLI::App& app, const Program& program, int& exit_code);
void add_eval(CLI::App& app, const Program& program, int& exit_code);
void add_perplexity(CLI::App& app, const Program& program, int& exit_code);
void add_imatrix(CLI::App& app, const Program& program, int& exit_code);
void add_sensitivity(CLI::App& app, const Program& program, int& exit_code);
void add_bench(CLI::App& app, const Program& program, int& exit_code);
/// Of all verbs that were added.
void add_completion(CLI::App& app);

/// Where the draft model computes, what it costs and what is predicted of it, in a line; empty where there is none.
std::string describe_seat(const engine::DraftSeat& seat);
/// Tokens a pass and how often drafts were right, in a line; empty where nothing was drafted.
std::string describe_drafts(const engine::LoadCounters& load);
/// Where experts were found, in two lines; empty for a model without. decoded_tokens 0: unknown.
std::string describe_experts(const engine::Engine& engine, std::int64_t decoded_tokens);
/// Bytes moved and rates of a run, beside the calibrated rates: what `--stats` prints.
std::string render_stats(const engine::Engine& engine, double seconds, std::int64_t decoded_tokens,
                         const residency::Rates& rates);

}  // namespace millrace::cli
