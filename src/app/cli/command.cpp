#include "app/cli/command.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

#include "app/cli/adapter_files.h"
#include "app/cli/control_vectors.h"
#include "app/cli/progress.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/signals.h"
#include "base/say.h"
#include "modelfile/file_io.h"
#include "residency/calibrate.h"
#include "storage/storage.h"

namespace millrace::cli {
namespace {

std::atomic<bool> interrupt_flag{false};

}  // namespace

std::atomic<bool>& interrupted() { return interrupt_flag; }

void install_interrupt_handler(bool on_term) { os::flag_stop_requests(interrupt_flag, kExitInterrupted, on_term); }

int fail(const Status& status) {
  say(stderr, "error: {}\n", status.message());
  return status.code() == Code::invalid_argument ? kExitUsage
         : status.code() == Code::cancelled      ? kExitInterrupted
                                                 : kExitFailed;
}

Status check_outputs(const std::vector<std::string>& outputs, const std::vector<std::string>& inputs, Writes what) {
  const auto place = [](const std::string& path) {
    std::error_code failed;
    const auto canonical = std::filesystem::weakly_canonical(path, failed);
    return failed ? path : canonical.string();
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    MR_RETURN_IF_ERROR(modelfile::check_output(outputs[i], inputs));
    if (what != Writes::models && modelfile::begins_like_gguf(outputs[i]))
      return error(Code::invalid_argument, "{}: is a GGUF file, and this command writes none; name another file",
                   outputs[i]);
    for (std::size_t k = 0; k < i && !outputs[i].empty(); ++k)
      if (!outputs[k].empty() && place(outputs[i]) == place(outputs[k]))
        return error(Code::invalid_argument, "{}: two outputs would be this file; name another for one of them",
                     outputs[i]);
  }
  return {};
}

Status check_model_outputs(std::vector<std::string> outputs, const engine::EngineOptions& options,
                           std::vector<std::string> others, Writes what) {
  outputs.push_back(options.experts.record_routing);
  constexpr std::string_view kTrace = "trace:";
  if (options.experts.routing.starts_with(kTrace)) others.push_back(options.experts.routing.substr(kTrace.size()));
  for (const engine::AdapterOptions& adapter : options.model.adapters) others.push_back(adapter.path);
  others.insert(others.end(),
                {options.model.path, options.speculate.draft_model, options.model.overlay, options.model.mmproj});
  return check_outputs(outputs, others, what);
}

CLI::Validator switch_or_folder(std::string_view flag) {
  const auto check = [flag](std::string& text) -> std::string {
    if (text.empty() || text == "on" || text == "off" || text == "." || text == ".." ||
        text.find('/') != std::string::npos)
      return std::string();
    // Thrown: CLI11 2.4 passes over what a check says of a value from the environment.
    throw CLI::ParseError(
        fmt::format("{0}: '{1}' is neither on nor off; a folder is written with a /, for example ./{1}", flag, text),
        CLI::ExitCodes::ValidationError);
  };
  return CLI::Validator(check, "", "");
}

CLI::Validator number_within(double least, double most) {
  const auto check = [least, most](std::string& text) {
    char* end = nullptr;
    const double number = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && number >= least && number <= most) return std::string();
    return fmt::format("'{}' is not a number from {} to {}", text, least, most);
  };
  return CLI::Validator(check, fmt::format("FLOAT in [{} - {}]", least, most), "");
}

std::string ModelFlags::first_given() const {
  const auto given =
      std::find_if(options.begin(), options.end(), [](const CLI::Option* option) { return option->count() > 0; });
  return given == options.end() ? std::string() : (*given)->get_name();
}

void add_model_flags(CLI::App& command, ModelFlags& flags) {
  const auto before = command.get_options().size();
  command.add_option("model,-m,--model", flags.model, "A model by name, or a GGUF file (any part of a split one)")
      ->required();
  command
      .add_option("--device", flags.device,
                  "Device: auto, cpu, cuda, cuda:N, cuda:0,1 for GPUs that share each matrix, or vulkan:N")
      ->capture_default_str();
  command.add_flag("--no-peer", flags.no_peer, "GPUs that share a model exchange results through host memory");
  command.add_option("--vram", flags.vram,
                     "Limit on GPU memory, for example 8G; for several GPUs 12G,16G (default: what is free)");
  command.add_option("--pin", flags.pin, "Fix where layers are stored, for example 0-9=vram,10-29=ram,30-=disk");
  command
      .add_option("--cpu-share", flags.cpu_share,
                  "For layers streamed from RAM to the GPU, the percentage of rows that the CPU computes "
                  "(default: what lets both end together)")
      ->check(CLI::Range(0, 95));
  command
      .add_option("--vram-experts", flags.vram_experts,
                  "Experts of a mixture in GPU memory at most (default: as many as fit)")
      ->check(at_least(0));
  command.add_option("--ram", flags.ram, "Limit on all memory, for example 6M, 800MB, 12G (default: what is free)");
  command
      .add_option("-c,--ctx", flags.context,
                  "Context in tokens (default: the model's, up to 65536, as memory allows; 4096 if weights stream)")
      ->check(at_least(0));
  command
      .add_option("-b,--batch", flags.batch,
                  "Tokens in a pass at most (default: 512; on a GPU 2048, or a whole prompt where layers stream)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("-t,--threads", flags.threads, "Threads that compute (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command
      .add_option("--speculate", flags.speculate,
                  "Speculation: guess tokens and verify several per pass; changes no token: off, auto (where passes "
                  "are slow), or a number")
      ->capture_default_str();
  command.add_option(
      "--draft", flags.draft,
      "Drafter: a small model of the same vocabulary (a name or a GGUF file), in VRAM under --vram if that is "
      "predicted to pay, else on the CPU; the GGUF file of an EAGLE-3 head or of a Gemma 4's assistant, on the CPU; "
      "self: the model's own first layers, which stay in memory (self:K: K of them); mtp: the file's block for "
      "multi-token prediction, on the CPU");
  command.add_option("--mmproj", flags.mmproj,
                     "The vision tower: an mmproj file (default: the one in the model's folder that fits), or off");
  add_adapter_option(command, flags.adapters);
  add_control_options(command, flags.control);
  command.add_option("--kv", flags.kv, "Format of the KV cache: f16, q8_0, q4_0, q3, q2, f32 (default: f16)");
  command.add_option("--isa", flags.isa, "Kernels: auto, plain, avx2, avx_vnni, avx512")->capture_default_str();
  command
      .add_option("--storage", flags.storage,
                  fmt::format("How to read files: {}; cufile (straight to the GPU)", storage::backend_names()))
      ->capture_default_str();
  command
      .add_option("--policy", flags.policy, "Which expert to evict: lru, lfu, or auto (whichever missed less recently)")
      ->capture_default_str();
  command
      .add_option(
          "--pack", flags.pack,
          "Read experts from a pack (see millrace pack): auto (MODEL.pack, if measured to be faster), off, or a file")
      ->capture_default_str();
  command
      .add_option("--prefetch", flags.prefetch,
                  "Prefetch the experts that the next layer is predicted to use while the disk idles; changes no "
                  "token: off, auto (if measured to be faster) or on")
      ->check(CLI::IsMember({"off", "auto", "on"}))
      ->capture_default_str();
  command.add_option("--expert-slots", flags.expert_slots, "Experts in RAM at most (default: as many as fit)")
      ->check(at_least(0));
  command.add_option("--tile", flags.tile, "Bytes per transfer (default: chosen from the budget)");
  command.add_option("--plan", flags.plan,
                     "Follow the plan in this file, or save the plan there if the file does not exist");
  command.add_option("--rates", flags.rates, "Rates to plan with (default: this machine's, see calibrate)");
  command.add_option("--record-routing", flags.record_routing,
                     "Write to this file which experts each token went to (see bench --routing; on the CPU)");
  command.add_flag("--no-graphs", flags.no_graphs, "For developers: launch every kernel by itself")->group("");
  command.add_flag("--no-fuse", flags.no_fuse, "For developers: a launch for every step of a pass")->group("");
  command.add_option("--inject-fault", flags.faults, "For developers: eio@N, short@N, stall:MS@N, slow:MS a MB")
      ->group("");
  for (CLI::Option* option : command.get_options({})) flags.options.push_back(option);
  flags.options.erase(flags.options.begin(), flags.options.begin() + static_cast<std::ptrdiff_t>(before) + 1);
}

Status open_share(ModelFlags& flags, int rank, const Program& program) {
  if (!flags.fetch_share) return {};
  store::PullOptions options = store::pull_options_from_environment();
  options.download.http.cancel = &interrupted();
  if (!program.quiet) {
    using Clock = std::chrono::steady_clock;
    options.on_event = [said = Clock::now()](const store::PullEvent& event) mutable {
      if (event.total == 0 || Clock::now() - said < std::chrono::seconds(2)) return;
      said = Clock::now();
      say(stderr, "{}: {} of {} are here\n", event.status, format_bytes(event.completed), format_bytes(event.total));
    };
  }
  MR_ASSIGN_OR_RETURN(flags.share, store::Share::open(store::Store(), flags.model, rank, std::move(options)));
  flags.model = flags.share->path();
  return {};
}

void show_loading(engine::EngineOptions& options, const Program& program) {
  const auto bar = std::make_shared<std::optional<Progress>>();  // destroyed with its line, before an answer is printed
  options.watch.on_load = [bar, quiet = program.quiet](std::uint64_t done, std::uint64_t total) {
    if (!*bar) bar->emplace("Loading", Unit::bytes, quiet).begin_at(done);
    (*bar)->update(done, total);
    return !interrupted();
  };
  options.watch.on_load_end = [bar] { bar->reset(); };
}

Expected<std::unique_ptr<engine::Engine>> create_engine(engine::EngineOptions options, const ModelFlags& flags,
                                                        const Program& program) {
  const bool keep = !flags.plan.empty() && options.planning.follow == nullptr;
  engine::find_mmproj(options.model);
  show_loading(options, program);
  auto created = engine::Engine::create(options);
  if (created.ok() && keep) MR_RETURN_IF_ERROR(residency::write_plan_file(flags.plan, (*created)->saved_plan()));
  return created;
}

void add_prompt_cache_flags(CLI::App& command, PromptCacheFlags& flags, const char* by_default) {
  flags.folder = by_default;
  command.add_option("--prompt-cache", flags.folder, "Keep the KV of slow prompts on the disk: on, off or a folder")
      ->envname("MILLRACE_PROMPT_CACHE")
      ->check(switch_or_folder("--prompt-cache"))
      ->capture_default_str();
  command.add_option("--prompt-cache-size", flags.size, "Size of the prompt cache, at most")->capture_default_str();
  command
      .add_option("--prompt-cache-after", flags.seconds, "Keep only prompts that take longer than this many seconds")
      ->check(number_within(0, 1e6))
      ->capture_default_str();
}

Expected<engine::EngineOptions> options_of_rank(ModelFlags& flags, const PromptCacheFlags& prompts, int rank,
                                                const Program& program) {
  MR_RETURN_IF_ERROR(open_share(flags, rank, program));
  MR_ASSIGN_OR_RETURN(engine::EngineOptions options, engine_options(flags, program));
  MR_RETURN_IF_ERROR(apply_prompt_cache_if_there_is_a_home(prompts, options));
  return options;
}

/// A folder in Millrace's part of the user's cache folder. Errors: not_found.
static Expected<std::string> folder_of_cache(const char* name) {
  MR_ASSIGN_OR_RETURN(const std::string rates, residency::rates_file());
  return (std::filesystem::path(rates).parent_path() / name).string();
}

Status apply_prompt_cache(const PromptCacheFlags& flags, engine::EngineOptions& options) {
  auto bytes = parse_bytes(flags.size);
  if (!bytes.ok()) return bytes.status().with_context("--prompt-cache-size");
  options.kv.prompt_cache_bytes = *bytes;
  options.kv.prompt_cache_seconds = flags.seconds;
  options.kv.prompt_cache.clear();
  if (flags.folder == "off" || flags.folder.empty()) return {};
  if (flags.folder == "on") {
    MR_ASSIGN_OR_RETURN(options.kv.prompt_cache, folder_of_cache("prompts"));
  } else {
    options.kv.prompt_cache = flags.folder;
  }
  return {};
}

Status apply_prompt_cache_if_there_is_a_home(const PromptCacheFlags& flags, engine::EngineOptions& options) {
  Status status = apply_prompt_cache(flags, options);
  if (status.code() != Code::not_found) return status;
  log::warn("prompt cache off: {}", status.message());
  return {};
}

void add_learning_flag(CLI::App& command, std::string& flag) {
  flag = "on";
  command
      .add_option("--learn-experts", flag,
                  "Learn which experts are used, to load them first next time; changes no token: on, off or a folder")
      ->envname("MILLRACE_LEARN_EXPERTS")
      ->check(switch_or_folder("--learn-experts"))
      ->capture_default_str();
}

void apply_learning(const std::string& flag, engine::EngineOptions& options) {
  options.experts.usage_folder = flag == "off" || flag == "on" ? "" : flag;
  if (flag != "on") return;
  if (auto folder = folder_of_cache("experts"); folder.ok())
    options.experts.usage_folder = std::move(*folder);
  else
    log::info("which experts are used is not learned: {}", folder.status().message());
}

void add_sampling_flags(CLI::App& command, SamplingFlags& flags) {
  command.add_option("--temp", flags.temperature, "Temperature; 0 always takes the likeliest token")
      ->check(number_within(0, 100))
      ->capture_default_str();
  command.add_option("--top-k", flags.top_k, "Draw from the k likeliest tokens; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command.add_option("--top-p", flags.top_p, "Draw from the likeliest tokens that hold this probability")
      ->check(number_within(0, 1))
      ->capture_default_str();
  command.add_option("--min-p", flags.min_p, "Drop tokens below this share of the likeliest one's probability")
      ->check(number_within(0, 1))
      ->capture_default_str();
  command.add_option("--repeat-penalty", flags.repeat_penalty, "Above 1 discourages repetition")
      ->check(number_within(0.001, 1000))
      ->capture_default_str();
  command
      .add_option("--presence-penalty", flags.presence_penalty,
                  "Subtracted from the logits of tokens that have occurred")
      ->check(number_within(-1000, 1000))
      ->capture_default_str();
  command
      .add_option("--frequency-penalty", flags.frequency_penalty, "Subtracted from a token's logit for each occurrence")
      ->check(number_within(-1000, 1000))
      ->capture_default_str();
  command.add_option("--repeat-last-n", flags.repeat_last_n, "Tokens the penalties look back on; -1: all")
      ->check(at_least(-1))
      ->capture_default_str();
  command.add_option("--seed", flags.seed, "Seed of the draw; 0: a new one each time")->capture_default_str();
  command.add_option("-n,--max-tokens", flags.max_tokens, "Tokens in an answer at most; -1: to the end of the context")
      ->check(at_least(-1))
      ->capture_default_str();
  command.add_option("--stop", flags.stop, "A text that ends the answer (may be repeated)");
}

void apply_defaults(const CLI::App& command, const store::Manifest& defaults, SamplingFlags& flags) {
  const auto set = [&](const char* flag, const char* name, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    const auto found = defaults.parameters.find(name);
    if (found != defaults.parameters.end() && found->is_number() && command.count(flag) == 0)
      value = found->get<Value>();
  };
  set("--temp", "temperature", flags.temperature);
  set("--top-k", "top_k", flags.top_k);
  set("--top-p", "top_p", flags.top_p);
  set("--min-p", "min_p", flags.min_p);
  set("--repeat-penalty", "repeat_penalty", flags.repeat_penalty);
  set("--presence-penalty", "presence_penalty", flags.presence_penalty);
  set("--frequency-penalty", "frequency_penalty", flags.frequency_penalty);
  set("--repeat-last-n", "repeat_last_n", flags.repeat_last_n);
  set("--seed", "seed", flags.seed);
  set("--max-tokens", "num_predict", flags.max_tokens);
  const auto stop = defaults.parameters.find("stop");
  if (stop == defaults.parameters.end() || !stop->is_array() || command.count("--stop") > 0) return;
  for (const auto& text : *stop)
    if (text.is_string()) flags.stop.push_back(text.get<std::string>());
}

engine::SamplerOptions sampler_options(const SamplingFlags& flags) {
  engine::SamplerOptions options;
  options.temperature = static_cast<float>(flags.temperature);
  options.top_k = flags.top_k;
  options.top_p = static_cast<float>(flags.top_p);
  options.min_p = static_cast<float>(flags.min_p);
  options.penalties.repeat = static_cast<float>(flags.repeat_penalty);
  options.penalties.presence = static_cast<float>(flags.presence_penalty);
  options.penalties.frequency = static_cast<float>(flags.frequency_penalty);
  options.penalties.last_n = flags.repeat_last_n;
  options.seed = flags.seed;
  while (options.seed == 0) options.seed = std::random_device{}() & 0x7fffffff;
  return options;
}

}  // namespace millrace::cli
