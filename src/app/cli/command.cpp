#include "app/cli/command.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>

#include "app/cli/progress.h"
#include "base/bytes.h"
#include "base/log.h"
#include "residency/calibrate.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

std::atomic<bool> interrupt_flag{false};

extern "C" void on_interrupt(int) {
  if (interrupt_flag.exchange(true)) _exit(kExitInterrupted);
}

Expected<DType> kv_format(const std::string& name) {
  if (name == "f16") return DType::f16;
  if (name == "f32") return DType::f32;
  if (name == "q8_0") return DType::q8_0;
  if (name == "q4_0") return DType::q4_0;
  if (name == "q3") return DType::q3_k;
  if (name == "q2") return DType::q2_0;
  return error(Code::invalid_argument, "--kv {}: use f16, q8_0, q4_0, q3, q2 or f32", name);
}

constexpr std::string_view kDevices = "use auto, cpu, cuda, cuda:N, or cuda:0,1 for GPUs that share each matrix";

/// "cuda", "cuda:1" or "cuda:0,1": the first and those beside it.
Status read_gpus(std::string_view device, engine::EngineOptions& options) {
  std::vector<int> gpus;
  const char *at = device.data() + 4, *const end = device.data() + device.size();
  for (char before = ':'; at != end; before = ',') {
    int index = 0;
    const bool begins = *at == before;
    const auto [rest, code] = std::from_chars(at + 1, end, index);
    const bool again = std::find(gpus.begin(), gpus.end(), index) != gpus.end();
    if (!begins || code != std::errc() || index < 0 || again)
      return error(Code::invalid_argument, "--device {}: {}", device, again ? "a GPU is named twice" : kDevices);
    gpus.push_back(index);
    at = rest;
  }
  if (gpus.empty()) return {};
  options.cuda_index = gpus.front();
  options.cuda_named = true;
  options.cuda_beside.assign(gpus.begin() + 1, gpus.end());
  return {};
}

/// One cap for all GPUs, or one for each.
Status read_vram(std::string_view vram, engine::EngineOptions& options) {
  std::vector<std::uint64_t> caps;
  for (std::size_t begin = 0; begin <= vram.size();) {
    const std::size_t end = std::min(vram.find(',', begin), vram.size());
    auto bytes = parse_bytes(vram.substr(begin, end - begin));
    if (!bytes.ok()) return bytes.status().with_context("--vram");
    if (*bytes == 0) return error(Code::invalid_argument, "--vram: 0 bytes hold no model; use --device cpu");
    caps.push_back(*bytes);
    begin = end + 1;
  }
  const std::size_t gpus = 1 + options.cuda_beside.size();
  if (caps.size() > 1 && caps.size() != gpus)
    return error(Code::invalid_argument,
                 "--vram {}: {} caps for {} GPU{}; give one for all, or one for each of --device", vram, caps.size(),
                 gpus, gpus > 1 ? "s" : "");
  options.vram_bytes = caps.front();
  options.vram_beside.assign(caps.begin() + 1, caps.end());
  return {};
}

Status read_device(const ModelFlags& flags, engine::EngineOptions& options) {
  const std::string& device = flags.device;
  if (device == "cpu") {
    options.device = engine::DeviceChoice::cpu;
  } else if (device.starts_with("cuda")) {
    options.device = engine::DeviceChoice::cuda;
    MR_RETURN_IF_ERROR(read_gpus(device, options));
  } else if (device != "auto") {
    return error(Code::invalid_argument, "--device {}: {}", device, kDevices);
  }
  if (!flags.pin.empty()) {
    auto pins = engine::parse_pins(flags.pin);
    if (!pins.ok()) return pins.status();
    if (options.device == engine::DeviceChoice::cpu)
      return error(Code::invalid_argument, "--pin is for a GPU; leave it out with --device cpu");
    options.pins = std::move(*pins);
  }
  options.vram_experts = flags.vram_experts;
  if (flags.vram_experts >= 0 && options.device == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--vram-experts is for a GPU; leave it out with --device cpu");
  options.cpu_share_percent = flags.cpu_share;
  options.cpu_feed_forwards = flags.cpu_ffn;
  if ((flags.cpu_share >= 0 || flags.cpu_ffn >= 0) && options.device == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "{} is for a GPU; leave it out with --device cpu",
                 flags.cpu_share >= 0 ? "--cpu-share" : "--cpu-ffn");
  if (flags.vram.empty()) return {};
  if (options.device == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--vram is for a GPU; leave it out with --device cpu");
  return read_vram(flags.vram, options);
}

/// What the plan was made for, where the command line does not say otherwise.
Status follow_plan_file(const ModelFlags& flags, engine::EngineOptions& options) {
  if (flags.plan.empty()) return {};
  if (std::error_code code; !std::filesystem::exists(flags.plan, code)) return {};
  MR_ASSIGN_OR_RETURN(residency::SavedPlan saved, residency::read_plan_file(flags.plan));
  if (!flags.pin.empty() || flags.expert_slots > 0 || flags.vram_experts >= 0)
    return error(Code::invalid_argument,
                 "{}: a plan to follow leaves no choice; leave --pin, --expert-slots and --vram-experts out",
                 flags.plan);
  if (flags.device == "auto") options.device = saved.gpu ? engine::DeviceChoice::cuda : engine::DeviceChoice::cpu;
  if (flags.ram.empty()) options.ram_bytes = saved.ram_bytes;
  if (flags.vram.empty()) options.vram_bytes = saved.vram_bytes;
  if (flags.context == 0) options.context_tokens = saved.context_tokens;
  if (flags.batch == 0) options.batch_tokens = saved.batch_tokens;
  if (flags.rates.empty()) options.rates = saved.rates;
  if (flags.kv.empty()) {
    MR_ASSIGN_OR_RETURN(options.kv_dtype, kv_format(saved.kv));
  }
  options.tile_bytes = saved.tile_bytes;
  options.follow = std::make_shared<const residency::SavedPlan>(std::move(saved));
  return {};
}

}  // namespace

std::atomic<bool>& interrupted() { return interrupt_flag; }

void install_interrupt_handler(bool on_term) {
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, nullptr);
  if (on_term) sigaction(SIGTERM, &action, nullptr);
}

Expected<residency::Rates> read_rates(const std::string& path) {
  const auto text = residency::read_small_file(path, residency::kMostRatesBytes);
  if (text.status().code() == Code::not_found)
    return error(Code::not_found, "{}: cannot read this rates file; make one with 'millrace calibrate --out FILE'",
                 path);
  if (!text.ok()) return text.status();
  auto rates = residency::parse_rates_json(*text);
  if (!rates.ok()) return rates.status().with_context(path);
  return rates;
}

int fail(const Status& status) {
  fmt::print(stderr, "error: {}\n", status.message());
  return status.code() == Code::invalid_argument ? kExitUsage
         : status.code() == Code::cancelled      ? kExitInterrupted
                                                 : kExitFailed;
}

CLI::Validator switch_or_folder() {
  const auto check = [](std::string& text) {
    if (text.empty() || text == "on" || text == "off" || text == "." || text == ".." ||
        text.find('/') != std::string::npos)
      return std::string();
    return fmt::format("'{0}' is neither on nor off; a folder is written with a /, for example ./{0}", text);
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
                  "Who computes: auto, cpu, cuda, cuda:N, or cuda:0,1 for GPUs that share each matrix")
      ->capture_default_str();
  command.add_flag("--no-peer", flags.no_peer,
                   "GPUs that share a model write to the host's memory, never to each other's");
  command.add_option(
      "--vram", flags.vram,
      "Cap on all GPU memory, for example 8G (default: what is free); of several GPUs for each, or by GPU, for "
      "example 12G,16G");
  command.add_option("--pin", flags.pin, "Layers that stay where you say, for example 0-9=vram,10-29=ram,30-=disk");
  command
      .add_option("--cpu-share", flags.cpu_share,
                  "Of layers streamed from RAM to the GPU, the percentage of rows that the CPU computes (default: "
                  "what lets both end together)")
      ->check(CLI::Range(0, 95));
  command
      .add_option("--cpu-ffn", flags.cpu_ffn,
                  "Of layers streamed from RAM to the GPU, how many have their whole feed-forward computed by the CPU "
                  "(default: as --cpu-share)")
      ->check(at_least(0));
  command
      .add_option("--vram-experts", flags.vram_experts,
                  "Experts of a mixture in GPU memory at most (default: as many as fit)")
      ->check(at_least(0));
  command.add_option("--ram", flags.ram, "Cap on all memory, for example 6M, 800MB, 12G (default: what is free)");
  command
      .add_option(
          "-c,--ctx", flags.context,
          "Context in tokens (default: the model's, at most 65536, or what fits beside it; 4096 where weights stream)")
      ->check(at_least(0));
  command
      .add_option("-b,--batch", flags.batch,
                  "Tokens in a pass at most (default: 512; on a GPU 2048, or a whole prompt where layers stream)")
      ->check(CLI::Range(1, 1 << 20));
  command.add_option("-t,--threads", flags.threads, "Threads that compute (default: all processors)")
      ->check(CLI::Range(0, 1024));
  command
      .add_option(
          "--speculate", flags.speculate,
          "Guess tokens and verify several in a pass, which changes no token: off, auto (where passes are slow, "
          "as many as pay), or a number")
      ->capture_default_str();
  command.add_option(
      "--draft", flags.draft,
      "Who guesses: a small model of the same vocabulary, by name or a GGUF file, in VRAM under --vram "
      "where that is predicted to pay, else on the CPU; or self, the model's own first layers that stay "
      "in memory (self:K: so many); or mtp, the file's own block for multi-token prediction; or "
      "substitute[:FILE], all layers, with low-bit copies of those that stream (`quantize --substitute`)");
  command.add_option("--kv", flags.kv, "Format of the KV cache: f16, q8_0, q4_0, q3, q2, f32 (default: f16)");
  command.add_option("--isa", flags.isa, "Kernels: auto, plain, avx2, avx512")->capture_default_str();
  command
      .add_option("--storage", flags.storage,
                  "Reads by: auto, io_uring, pread-direct, pread, mmap; cufile (straight to the GPU)")
      ->capture_default_str();
  command
      .add_option("--policy", flags.policy,
                  "Which expert leaves memory: lru, lfu, or auto: whichever would have missed fewer lately")
      ->capture_default_str();
  command
      .add_option("--pack", flags.pack,
                  "Experts are read from a pack (see millrace pack): auto (MODEL.pack, where that is measured to be "
                  "faster), off, or a file")
      ->capture_default_str();
  command
      .add_option("--prefetch", flags.prefetch,
                  "Experts that the next layer is guessed to use are read while the disk idles, which changes no "
                  "token: off, auto (where passes are measured to be faster) or on")
      ->check(CLI::IsMember({"off", "auto", "on"}))
      ->capture_default_str();
  command
      .add_option(
          "--route-bias", flags.route_bias,
          "CHANGES ANSWERS. Routers prefer experts that are in memory, on a GPU those in VRAM: their scores are "
          "raised by this part of a row's range of scores, 0 to 1 (default: 0, off)")
      ->check(number_within(0, 1));
  command.add_option("--expert-slots", flags.expert_slots, "Experts in RAM at most (default: as many as fit)")
      ->check(at_least(0));
  command.add_option("--tile", flags.tile, "Bytes that move at once (default: chosen from the budget)");
  command.add_option("--plan", flags.plan,
                     "Follow the plan in this file; where there is none yet, keep this one in it");
  command.add_option("--rates", flags.rates, "Rates to plan with (default: this machine's, see calibrate)");
  command.add_option("--record-routing", flags.record_routing,
                     "Write to this file which experts each token went to (see bench --routing; on the CPU)");
  command.add_flag("--no-graphs", flags.no_graphs, "For developers: launch every kernel by itself")->group("");
  command.add_flag("--no-fuse", flags.no_fuse, "For developers: a launch for every step of a pass")->group("");
  command.add_option("--inject-fault", flags.faults, "For developers: eio@N, short@N, stall:MS@N")->group("");
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
      fmt::print(stderr, "{}: {} of {} are here\n", event.status, format_bytes(event.completed),
                 format_bytes(event.total));
    };
  }
  MR_ASSIGN_OR_RETURN(flags.share, store::Share::open(store::Store(), flags.model, rank, std::move(options)));
  flags.model = flags.share->path();
  return {};
}

Expected<engine::EngineOptions> engine_options(const ModelFlags& flags, const Program& program,
                                               store::Manifest* defaults) {
  engine::EngineOptions options;
  if (flags.share != nullptr) {
    options.identity = flags.share->identity();
    options.fetch = [share = flags.share](const residency::UnitTable& units) { return share->fetch(units); };
  }
  store::Resolved resolved;  // serve needs no model yet
  if (!flags.model.empty()) {
    MR_ASSIGN_OR_RETURN(resolved, store::Store().resolve(flags.model));
  }
  options.model_path = resolved.path;
  options.bare_resident_bytes = program.bare_resident_bytes;
  if (!flags.ram.empty()) {
    auto bytes = parse_bytes(flags.ram);
    if (!bytes.ok()) return bytes.status().with_context("--ram");
    if (*bytes == 0)
      return error(Code::invalid_argument, "--ram: 0 bytes hold no model; leave the flag out to use what is free");
    options.ram_bytes = *bytes;
  }
  MR_RETURN_IF_ERROR(read_device(flags, options));
  if (!flags.tile.empty()) {
    auto bytes = parse_bytes(flags.tile);
    if (!bytes.ok()) return bytes.status().with_context("--tile");
    options.tile_bytes = *bytes;
  }
  options.context_tokens = flags.context;
  const auto& known = resolved.manifest.parameters;
  if (flags.context == 0 && known.contains("num_ctx") && known["num_ctx"].is_number_integer())
    options.context_tokens = std::max<std::int64_t>(0, known["num_ctx"].get<std::int64_t>());
  if (defaults != nullptr) *defaults = std::move(resolved.manifest);
  options.cuda_graphs = !flags.no_graphs;
  options.gpus_through_host = flags.no_peer;
  if (flags.no_peer && options.cuda_beside.empty())
    return error(Code::invalid_argument, "--no-peer is for several GPUs: name them, as --device cuda:0,1");
  options.cuda_fuse = !flags.no_fuse;
  options.batch_tokens = flags.batch;
  options.threads = flags.threads;
  auto speculate = engine::parse_speculation(flags.speculate);
  if (!speculate.ok()) return speculate.status().with_context("--speculate");
  options.speculate = std::move(*speculate);
  if (!flags.draft.empty()) {
    if (flags.speculate == "off")
      return error(Code::invalid_argument, "--draft guesses what --speculate off forbids; leave one of the two out");
    if (const Status read = engine::read_draft(flags.draft, options.speculate); !read.ok())
      return read.with_context("--draft");
    if (!options.speculate.draft_model.empty()) {
      MR_ASSIGN_OR_RETURN(const store::Resolved drafter, store::Store().resolve(flags.draft));
      options.speculate.draft_model = drafter.path;
    }
  }
  options.expert_slots = flags.expert_slots;
  options.prefetch = flags.prefetch == "off"  ? exec::Prefetch::off
                     : flags.prefetch == "on" ? exec::Prefetch::always
                                              : exec::Prefetch::automatic;
  options.pack = flags.pack;
  options.route_bias = flags.route_bias;
  options.record_routing = flags.record_routing;
  if (flags.isa != "auto") {
    auto isa = device::isa_from_name(flags.isa);
    if (!isa.ok()) return isa.status().with_context("--isa");
    if (*isa > device::best_isa()) {
      return error(Code::unsupported, "--isa {}: this processor has {} at best", flags.isa,
                   device::isa_name(device::best_isa()));
    }
    options.isa = *isa;
    options.best_isa = false;
  }
  options.cufile = flags.storage == "cufile";
  if (options.cufile && options.device == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--storage cufile reads to a GPU's memory; leave it out with --device cpu");
  if (!options.cufile) {
    MR_ASSIGN_OR_RETURN(options.storage, storage::backend_from_name(flags.storage));
  }
  MR_ASSIGN_OR_RETURN(options.policy, residency::policy_from_name(flags.policy));
  if (!flags.kv.empty()) {
    MR_ASSIGN_OR_RETURN(options.kv_dtype, kv_format(flags.kv));
  }
  for (const auto& text : flags.faults) {
    MR_ASSIGN_OR_RETURN(auto fault, storage::parse_fault(text));
    options.faults.push_back(fault);
  }
  if (!flags.rates.empty()) {
    MR_ASSIGN_OR_RETURN(options.rates, read_rates(flags.rates));
  } else if (auto known = residency::load_rates(options.model_path); known.ok()) {
    options.rates = *known;
  } else {
    options.measure_rates = true;
  }
  MR_RETURN_IF_ERROR(follow_plan_file(flags, options));
  return options;
}

void show_loading(engine::EngineOptions& options, const Program& program) {
  const auto bar = std::make_shared<std::optional<Progress>>();  // gone when its line is: no answer meets it
  options.on_load = [bar, quiet = program.quiet](std::uint64_t done, std::uint64_t total) {
    if (!*bar) bar->emplace("Loading", Unit::bytes, quiet).begin_at(done);
    (*bar)->update(done, total);
    return !interrupted();
  };
  options.on_load_end = [bar] { bar->reset(); };
}

Expected<std::unique_ptr<engine::Engine>> create_engine(engine::EngineOptions options, const ModelFlags& flags,
                                                        const Program& program) {
  const bool keep = !flags.plan.empty() && options.follow == nullptr;
  show_loading(options, program);
  auto created = engine::Engine::create(options);
  if (created.ok() && keep) MR_RETURN_IF_ERROR(residency::write_plan_file(flags.plan, (*created)->saved_plan()));
  return created;
}

void add_prompt_cache_flags(CLI::App& command, PromptCacheFlags& flags, const char* by_default) {
  flags.folder = by_default;
  command.add_option("--prompt-cache", flags.folder, "Keep the KV of slow prompts on the disk: on, off or a folder")
      ->envname("MILLRACE_PROMPT_CACHE")
      ->check(switch_or_folder())
      ->capture_default_str();
  command.add_option("--prompt-cache-size", flags.size, "Bytes there at most")->capture_default_str();
  command.add_option("--prompt-cache-after", flags.seconds, "Seconds; prompts that are computed faster are not kept")
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

/// A folder of the program's corner of the user's cache. Errors: not_found.
static Expected<std::string> folder_of_cache(const char* name) {
  MR_ASSIGN_OR_RETURN(const std::string rates, residency::rates_file());
  return (std::filesystem::path(rates).parent_path() / name).string();
}

Status apply_prompt_cache(const PromptCacheFlags& flags, engine::EngineOptions& options) {
  auto bytes = parse_bytes(flags.size);
  if (!bytes.ok()) return bytes.status().with_context("--prompt-cache-size");
  options.prompt_cache_bytes = *bytes;
  options.prompt_cache_seconds = flags.seconds;
  options.prompt_cache.clear();
  if (flags.folder == "off" || flags.folder.empty()) return {};
  if (flags.folder == "on") {
    MR_ASSIGN_OR_RETURN(options.prompt_cache, folder_of_cache("prompts"));
  } else {
    options.prompt_cache = flags.folder;
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
                  "Learn which experts are used, and have them in memory sooner next time, which changes no token: on, "
                  "off or a folder")
      ->envname("MILLRACE_LEARN_EXPERTS")
      ->check(switch_or_folder())
      ->capture_default_str();
}

void apply_learning(const std::string& flag, engine::EngineOptions& options) {
  options.learn_experts = flag == "off" || flag == "on" ? "" : flag;
  if (flag != "on") return;
  if (auto folder = folder_of_cache("experts"); folder.ok())
    options.learn_experts = std::move(*folder);
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
  command.add_option("--presence-penalty", flags.presence_penalty, "Taken off tokens that have occurred")
      ->check(number_within(-1000, 1000))
      ->capture_default_str();
  command.add_option("--frequency-penalty", flags.frequency_penalty, "Taken off tokens for each occurrence")
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
  options.repeat_penalty = static_cast<float>(flags.repeat_penalty);
  options.presence_penalty = static_cast<float>(flags.presence_penalty);
  options.frequency_penalty = static_cast<float>(flags.frequency_penalty);
  options.repeat_last_n = flags.repeat_last_n;
  options.seed = flags.seed;
  while (options.seed == 0) options.seed = std::random_device{}() & 0x7fffffff;
  return options;
}

std::string describe_seat(const engine::DraftSeat& seat) {
  if (seat.words.empty()) return {};
  return fmt::format("{}: {}{}\n", seat.what, seat.place == engine::DraftPlace::none ? "left out; " : "", seat.words);
}

std::string describe_drafts(const engine::LoadCounters& load) {
  const auto drafts = std::find_if(load.drafts.rbegin(), load.drafts.rend(),
                                   [](const engine::DraftCounters& one) { return one.drafted > 0; });
  if (drafts == load.drafts.rend()) return {};
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::string out =
      fmt::format("drafts: {:.2f} tokens a pass; {} of {} by {} were right ({:.1f} %; by place", load.tokens_a_turn(),
                  drafts->right, drafts->drafted, drafts->drafter, share(drafts->right, drafts->drafted));
  for (std::size_t place = 0; place < drafts->drafted_at.size() && drafts->drafted_at[place] > 0; ++place)
    out += fmt::format(" {:.0f}", share(drafts->right_at[place], drafts->drafted_at[place]));
  return out + fmt::format("), guessed in {:.1f} ms\n", drafts->seconds * 1000);
}

std::string describe_experts(const engine::Engine& engine, std::int64_t decoded_tokens) {
  const residency::StoreCounters store = engine.store_counters();
  const bool gpu = engine.vram_budget() != nullptr;
  const auto uses = store.hits + store.misses;
  if (uses == 0) return {};
  std::string out = fmt::format("experts: {} used, {:.1f} % found in {}, {} {}", uses,
                                100.0 * static_cast<double>(store.hits) / static_cast<double>(uses),
                                gpu ? "VRAM" : "memory", store.misses, gpu ? "not" : "read from disk");
  if (decoded_tokens > 0)
    out += fmt::format(" ({:.1f} a token)", static_cast<double>(store.misses) / static_cast<double>(decoded_tokens));
  out += fmt::format("\n         {}\n", store.experts.describe());
  if (store.guesses.any()) out += fmt::format("guesses: {}\n", store.guesses.describe());
  return out;
}

std::string render_stats(const engine::Engine& engine, double seconds, std::int64_t decoded_tokens,
                         const residency::Rates& rates) {
  const auto store = engine.store_counters();
  const auto disk = engine.storage().counters();
  const double busy = static_cast<double>(disk.busy_ns) * 1e-9;
  const auto rate = [](double bytes, double time) {
    return time > 0 ? fmt::format("{}/s", format_bytes(static_cast<std::uint64_t>(bytes / time))) : std::string("-");
  };
  const auto calibrated = [](double r) {
    return r > 0 ? fmt::format("{}/s", format_bytes(static_cast<std::uint64_t>(r))) : std::string("not measured");
  };
  std::string out;
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}\n", "tier", "moved", "rate", "calibrated");
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}   {} reads by {}\n", "disk", format_bytes(disk.bytes),
                     rate(static_cast<double>(disk.bytes), busy), calibrated(rates.disk), disk.reads,
                     engine.storage().traits().name);
  const residency::Budget* vram = engine.vram_budget();
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}   {}\n", vram != nullptr ? "vram" : "ram",
                     format_bytes(store.bytes_used), rate(static_cast<double>(store.bytes_used), seconds),
                     calibrated(vram != nullptr ? rates.device_memory : rates.ram), engine.executor().describe());
  out += describe_experts(engine, decoded_tokens);
  out += describe_drafts(engine.load());
  if (vram != nullptr)
    return out + fmt::format("VRAM: {} of {} granted\n", format_bytes(vram->reserved_bytes()),
                             format_bytes(vram->cap_bytes()));
  out += fmt::format("waited for the disk {:.0f} % of the time; memory: {} of {} granted\n",
                     seconds > 0 ? 100.0 * static_cast<double>(store.stall_ns) * 1e-9 / seconds : 0.0,
                     format_bytes(engine.budget().reserved_bytes()), format_bytes(engine.budget().cap_bytes()));
  return out;
}

}  // namespace millrace::cli
