// `millrace bench`: tok/s of prompt and decode, bytes a second per tier beside the calibrated rate, a hash of the
// logits.
#include <fmt/core.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/cli/cluster.h"
#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/cli/squeeze.h"
#include "base/bytes.h"
#include "base/log.h"
#include "device/cpu.h"
#include "engine/decode_meter.h"
#include "residency/calibrate.h"
#include "residency/predict.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct BenchFlags {
  ModelFlags model;
  int prompt_tokens = 512, decode_tokens = 64, repetitions = 3, sequences = 1;
  std::string trace, routing = "model", squeeze;
  double accept = -1;
  bool json = false, hash = false, hash_prompt = false, warm = true, explain = false;
};

/// What one repetition measured.
struct Sample {
  double prompt_tok_s = 0, decode_tok_s = 0;
  double disk_bytes_s = 0;         // while reading
  double decode_disk_bytes = 0;    // a token
  double decode_weight_bytes = 0;  // a token
  double copied_bytes = 0;         // to a GPU, a token
  double hit_rate = -1;
  double stall_share = 0;
  double stages_ms = 0, between_ms = 0;  // of a pass that decodes, over several processes
};

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// Tokens that differ by repetition and sequence: repeating one prompt would flatter an expert cache.
std::vector<text::TokenId> random_prompt(int tokens, std::int32_t vocab, std::uint64_t seed) {
  std::vector<text::TokenId> ids(static_cast<std::size_t>(tokens));
  std::uint64_t state = seed * 0x9e3779b97f4a7c15ull + 0x2545f4914f6cdd1dull;
  for (auto& id : ids) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    id = static_cast<text::TokenId>(state % static_cast<std::uint64_t>(vocab));
  }
  return ids;
}

/// Finds the passes in which every sequence decodes: prompts may end in different passes, and the first sequence to end
/// leaves a smaller batch behind.
class DecodeWindow {
 public:
  explicit DecodeWindow(int sequences) : sequences_(sequences) {}

  /// A sequence's prompt ended in the pass now running, which gives its first token.
  void prompt_ended() { ++in_decode_; }
  /// `decoded`: tokens of all sequences so far; `some_ended`: a sequence has all of its tokens.
  void pass_ended(engine::DecodeMeter& meter, std::int64_t decoded, bool some_ended) {
    if (ended_) return;
    if (begun_) {
      tokens_ = decoded - first_token_;
      end_ = Clock::now();
      meter.reached(tokens_);
    } else if (in_decode_ == sequences_) {
      begun_ = true;
      first_token_ = decoded;
      begin_ = end_ = Clock::now();
      meter.begin();
    }
    ended_ = some_ended;
  }
  /// Tokens a second of all sequences together; 0 if they never decoded side by side.
  double tokens_per_second() const {
    const double seconds = std::chrono::duration<double>(end_ - begin_).count();
    return tokens_ > 0 && seconds > 0 ? static_cast<double>(tokens_) / seconds : 0;
  }

 private:
  const int sequences_;
  int in_decode_ = 0;
  bool begun_ = false, ended_ = false;
  std::int64_t first_token_ = 0, tokens_ = 0;
  Clock::time_point begin_, end_;
};

/// Hashes the logits of one sequence in the order they are made.
struct Hasher {
  std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state{XXH3_createState(), XXH3_freeState};
  bool finite = true;
  Hasher() { XXH3_64bits_reset(state.get()); }
  void add(std::span<const float> logits) {
    XXH3_64bits_update(state.get(), logits.data(), logits.size_bytes());
    for (const float value : logits) finite = finite && std::isfinite(value);
  }
  std::uint64_t digest() const { return XXH3_64bits_digest(state.get()); }
};

class Bench {
 public:
  Bench(engine::Engine& engine, const BenchFlags& flags, const Program& program)
      : engine_(engine), flags_(flags), program_(program), meter_(engine) {}

  Status run() {
    const int rounds = flags_.repetitions + (flags_.warm ? 1 : 0);
    Progress progress("Measuring", Unit::items, program_.quiet);
    for (int round = 0; round < rounds; ++round) {
      progress.update(static_cast<std::uint64_t>(round), static_cast<std::uint64_t>(rounds));
      Sample sample;
      MR_RETURN_IF_ERROR(repetition(static_cast<std::uint64_t>(flags_.warm ? round : round + 1), sample));
      if (flags_.warm && round == 0) continue;
      samples_.push_back(sample);
      meter_.end();
    }
    return {};
  }

  const std::vector<Sample>& samples() const { return samples_; }
  const residency::DecodeCost& cost() const { return meter_.cost(); }
  std::uint64_t hash() const { return hash_; }
  bool finite() const { return finite_; }

 private:
  Status repetition(std::uint64_t seed, Sample& sample) {
    const auto store_before = engine_.store_counters();
    const auto disk_before = engine_.storage().counters();
    engine_.move_routing_on();  // one text's experts again would flatter a cache
    std::vector<Hasher> hashers(static_cast<std::size_t>(flags_.sequences));
    std::vector<engine::Engine::Id> ids;
    DecodeWindow window(flags_.sequences);
    exec::ExecCounters prompts_done;
    residency::StoreCounters store_after_prompts = store_before;
    for (int s = 0; s < flags_.sequences; ++s) {
      engine::Request request;
      request.prompt = random_prompt(flags_.prompt_tokens, engine_.tokenizer().vocab_size(),
                                     seed * 1000 + static_cast<std::uint64_t>(s));
      request.sampler.temperature = 0;
      request.max_tokens = std::max(1, flags_.decode_tokens);
      request.ignore_end_tokens = true;
      request.logits_of_prompt = flags_.hash_prompt;
      // Text that does not repeat itself: random weights soon do, which would flatter an expert cache.
      request.forced_tokens = random_prompt(flags_.decode_tokens, engine_.tokenizer().vocab_size(),
                                            seed * 1000 + static_cast<std::uint64_t>(s) + 500'000);
      request.drafts_right = flags_.accept;
      auto* hasher = &hashers[static_cast<std::size_t>(s)];
      if (flags_.hash || flags_.hash_prompt)
        request.on_logits = [hasher](std::int64_t, std::span<const float> logits) { hasher->add(logits); };
      request.on_prompt = [&](std::int64_t done, std::int64_t total) {
        if (done != total) return;
        window.prompt_ended();
        prompts_done = engine_.executor().counters();
        store_after_prompts = engine_.store_counters();
      };
      MR_ASSIGN_OR_RETURN(const auto id, engine_.submit(std::move(request)));
      ids.push_back(id);
    }
    const auto start = Clock::now();
    while (engine_.step()) {
      const bool some_ended =
          std::any_of(ids.begin(), ids.end(), [this](engine::Engine::Id id) { return engine_.finished(id); });
      window.pass_ended(meter_, static_cast<std::int64_t>(engine_.load().decode_tokens), some_ended);
      if (interrupted()) return error(Code::cancelled, "stopped");
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    double prompt_seconds = 0, decode_seconds = 0;
    std::int64_t decoded = 0;
    for (const auto id : ids) {
      auto result = engine_.take(id);
      if (result.finish == engine::Finish::error) return result.status;
      prompt_seconds = std::max(prompt_seconds, result.prompt_seconds);
      decode_seconds = std::max(decode_seconds, result.decode_seconds);
      decoded += static_cast<std::int64_t>(result.tokens.size()) - 1;
    }
    fill(sample, store_before, disk_before, seconds);
    fill_copied(sample, store_after_prompts);
    fill_stages(sample, prompts_done);
    if (prompt_seconds > 0) sample.prompt_tok_s = flags_.prompt_tokens * flags_.sequences / prompt_seconds;
    if (decode_seconds > 0 && decoded > 0) sample.decode_tok_s = static_cast<double>(decoded) / decode_seconds;
    if (flags_.sequences > 1 && window.tokens_per_second() > 0) sample.decode_tok_s = window.tokens_per_second();
    // The same seed gives the same logits: the first counted repetition's first sequence is the run's fingerprint.
    if (samples_.empty()) hash_ = hashers[0].digest();
    for (const auto& hasher : hashers) finite_ = finite_ && hasher.finite;
    return {};
  }

  void fill(Sample& sample, const residency::StoreCounters& store_before, const storage::Counters& disk_before,
            double seconds) const {
    const auto store = engine_.store_counters();
    const auto disk = engine_.storage().counters();
    const double busy = static_cast<double>(disk.busy_ns - disk_before.busy_ns) * 1e-9;
    const double read = static_cast<double>(disk.bytes - disk_before.bytes);
    const double passes = static_cast<double>(store.passes - store_before.passes);
    if (busy > 0) sample.disk_bytes_s = read / busy;
    if (passes > 0) {
      // On a GPU, of what passes read: what comes to RAM to stay beside the first one is loading.
      const bool gpu = engine_.vram_budget() != nullptr;
      const auto streamed = static_cast<double>(store.bytes_from_disk - store_before.bytes_from_disk);
      sample.decode_disk_bytes = (gpu ? streamed : read) / passes;
      sample.decode_weight_bytes = static_cast<double>(store.bytes_used - store_before.bytes_used) / passes;
    }
    const auto leases = store.hits + store.misses - store_before.hits - store_before.misses;
    if (leases > 0) sample.hit_rate = static_cast<double>(store.hits - store_before.hits) / static_cast<double>(leases);
    sample.stall_share = static_cast<double>(store.stall_ns - store_before.stall_ns) * 1e-9 / seconds;
  }

  /// Of passes that decode alone: what a prompt brings across is for many rows.
  void fill_copied(Sample& sample, const residency::StoreCounters& before) const {
    const residency::StoreCounters after = engine_.store_counters();
    if (after.passes == before.passes) return;
    sample.copied_bytes = static_cast<double>(after.bytes_to_device - before.bytes_to_device) /
                          static_cast<double>(after.passes - before.passes);
  }

  void fill_stages(Sample& sample, const exec::ExecCounters& before) const {
    const exec::ExecCounters after = engine_.executor().counters();
    const double passes = static_cast<double>(after.passes - before.passes) * 1e6;
    if (passes <= 0) return;
    sample.stages_ms =
        static_cast<double>(after.pass_ns - before.pass_ns + after.elsewhere_ns - before.elsewhere_ns) / passes;
    sample.between_ms = static_cast<double>(after.between_ns - before.between_ns) / passes;
  }

  engine::Engine& engine_;
  const BenchFlags& flags_;
  const Program& program_;
  engine::DecodeMeter meter_;
  std::vector<Sample> samples_;
  std::uint64_t hash_ = 0;
  bool finite_ = true;
};

template <typename Field>
double middle(const std::vector<Sample>& samples, Field field) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const auto& sample : samples) values.push_back(sample.*field);
  return median(std::move(values));
}

/// Keys before a decoded token, on average.
std::int64_t decode_context(const BenchFlags& flags) { return flags.prompt_tokens + flags.decode_tokens / 2; }

nlohmann::json experts_json(const residency::ExpertFigures& figures) {
  nlohmann::json layers = nlohmann::json::array();
  for (const residency::LayerCounters& layer : figures.layers)
    layers.push_back({{"hits", layer.hits},
                      {"misses", layer.misses},
                      {"evictions", layer.evictions},
                      {"resident", layer.resident},
                      {"working_set", layer.working_set},
                      {"long_working_set", layer.long_working_set}});
  return {{"cold_misses", figures.cold_misses},
          {"most_misses", figures.most_misses},
          {"steady_misses", figures.steady_misses},
          {"learned", figures.learned},
          {"learned_used", figures.learned_used},
          {"words", figures.describe()},
          {"layers", std::move(layers)}};
}

nlohmann::json guesses_json(const residency::GuessFigures& figures) {
  nlohmann::json json = {
      {"read_ahead", figures.read_ahead}, {"read_ahead_used", figures.read_ahead_used}, {"words", figures.describe()}};
  for (std::size_t kind = 0; kind < residency::kGuesses; ++kind) {
    const residency::GuessCounters& one = figures.by_kind[kind];
    json["by"].push_back({{"guess", residency::guess_name(static_cast<residency::Guess>(kind))},
                          {"used", one.used},
                          {"guessed", one.guessed},
                          {"right", one.right},
                          {"absent", one.absent},
                          {"absent_right", one.absent_right},
                          {"recall", one.recall()},
                          {"precision", one.precision()}});
  }
  return json;
}

nlohmann::json drafts_json(const engine::LoadCounters& load, const BenchFlags& flags) {
  nlohmann::json json = {{"tokens_per_pass", load.tokens_a_turn()}, {"words", describe_drafts(load)}};
  if (flags.accept >= 0) json["accept"] = flags.accept;
  for (const engine::DraftCounters& drafts : load.drafts)
    json["drafters"].push_back({{"drafter", drafts.drafter},
                                {"drafted", drafts.drafted},
                                {"right", drafts.right},
                                {"drafted_at", drafts.drafted_at},
                                {"right_at", drafts.right_at},
                                {"seconds", drafts.seconds},
                                {"passes", drafts.passes},
                                {"pass_seconds", drafts.pass_seconds},
                                {"verify_seconds", drafts.verify_seconds}});
  return json;
}

nlohmann::json report(const engine::Engine& engine, const Bench& bench, const BenchFlags& flags,
                      const residency::Rates& rates) {
  const auto& s = bench.samples();
  const double decode = middle(s, &Sample::decode_tok_s);
  nlohmann::json json;
  json["model"] = engine.model().hyperparameters().name;
  json["executor"] = engine.executor().describe();
  json["storage"] = engine.storage().traits().name;
  json["prompt_tokens"] = flags.prompt_tokens;
  json["decode_tokens"] = flags.decode_tokens;
  json["sequences"] = flags.sequences;
  if (flags.routing != "model") json["routing"] = flags.routing;
  json["repetitions"] = s.size();
  json["prompt_tok_s"] = middle(s, &Sample::prompt_tok_s);
  // The first token comes with the prompt: one alone tells nothing of decoding.
  json["decode_tok_s"] = decode > 0 ? nlohmann::json(decode) : nlohmann::json();
  json["drafts"] = drafts_json(engine.load(), flags);
  const double passes = decode / flags.sequences / engine.load().tokens_a_turn();  // a second
  json["weight_bytes_per_pass"] = middle(s, &Sample::decode_weight_bytes);
  const bool gpu = engine.vram_budget() != nullptr;
  json["device"] = gpu ? "cuda" : "cpu";
  if (gpu) {
    json["vram_bytes_s"] = middle(s, &Sample::decode_weight_bytes) * passes;
    json["pcie_bytes_per_pass"] = middle(s, &Sample::copied_bytes);
    json["pcie_bytes_s"] = middle(s, &Sample::copied_bytes) * passes;
    json["vram_granted_bytes"] = engine.vram_budget()->reserved_bytes();
    json["vram_cap_bytes"] = engine.vram_budget()->cap_bytes();
  }
  json["ram_bytes_s"] = gpu ? 0 : middle(s, &Sample::decode_weight_bytes) * passes;
  json["ram_rate_calibrated"] = rates.ram;
  json["disk_bytes_s"] = middle(s, &Sample::disk_bytes_s);
  json["disk_rate_calibrated"] = rates.disk;
  json["disk_bytes_per_pass"] = middle(s, &Sample::decode_disk_bytes);
  json["hit_rate"] = middle(s, &Sample::hit_rate);
  if (engine.executor().passes() > 1) {
    json["stages_ms_per_pass"] = middle(s, &Sample::stages_ms);
    json["between_ms_per_pass"] = middle(s, &Sample::between_ms);
  }
  json["stall_share"] = middle(s, &Sample::stall_share);
  json["experts"] = experts_json(engine.store_counters().experts);
  json["guesses"] = guesses_json(engine.store_counters().guesses);
  if (flags.hash || flags.hash_prompt) json["logits_hash"] = fmt::format("{:016x}", bench.hash());
  json["logits_finite"] = bench.finite();
  json["peak_rss_bytes"] = device::peak_resident_bytes();
  json["budget_bytes"] = engine.budget().cap_bytes();
  const residency::Work decoding{.sequences = flags.sequences, .context = decode_context(flags)};
  const residency::Work reading{.prompt_tokens = flags.prompt_tokens, .sequences = flags.sequences};
  json["predicted_decode_tok_s"] = residency::predict_tokens_per_second(engine.plan(), rates, decoding);
  json["predicted_prompt_tok_s"] = residency::predict_tokens_per_second(engine.plan(), rates, reading);
  return json;
}

void print_disk(const nlohmann::json& json, const std::string& rate) {
  fmt::print("disk  {} a pass, {} while reading; computing waited {:.0f} % of the time\n",
             format_bytes(static_cast<std::uint64_t>(json["disk_bytes_per_pass"].get<double>())), rate,
             100 * json["stall_share"].get<double>());
}

/// Bytes of a pass, by tier, beside what the tier can do.
void print_traffic(const nlohmann::json& json) {
  const auto rate = [&](const char* key) {
    return fmt::format("{}/s", format_bytes(static_cast<std::uint64_t>(json[key].get<double>())));
  };
  const auto beside = [&](const char* measured, const char* calibrated) {
    const double known = json[calibrated].get<double>();
    return known > 0 ? fmt::format("{} ({:.0f} % of the calibrated {})", rate(measured),
                                   100 * json[measured].get<double>() / known, rate(calibrated))
                     : rate(measured) + " (not calibrated: run millrace calibrate)";
  };
  const std::string weights = format_bytes(static_cast<std::uint64_t>(json["weight_bytes_per_pass"].get<double>()));
  if (json.contains("vram_bytes_s")) {
    fmt::print("vram  {} of weights a pass, decode at {} ({:.0f} % of a copy's {}{}, measured now); {} of {} granted\n",
               weights, rate("vram_bytes_s"),
               100 * json["vram_bytes_s"].get<double>() / json["vram_rate_measured"].get<double>(),
               rate("vram_rate_measured"), json["gpus"].get<int>() > 1 ? " on all GPUs" : "",
               format_bytes(json["vram_granted_bytes"].get<std::uint64_t>()),
               format_bytes(json["vram_cap_bytes"].get<std::uint64_t>()));
    if (json["pcie_bytes_per_pass"].get<double>() > 0)
      fmt::print(
          "pcie  {} a pass, decode at {} ({:.1f} % of {} {}, measured now)\n",
          format_bytes(static_cast<std::uint64_t>(json["pcie_bytes_per_pass"].get<double>())), rate("pcie_bytes_s"),
          100 * json["pcie_bytes_s"].get<double>() / json["pcie_rate_measured"].get<double>(),
          json["gpus"].get<int>() > 1 ? "page-locked copies to all GPUs at once, together" : "a page-locked copy's",
          rate("pcie_rate_measured"));
    if (json["disk_bytes_per_pass"].get<double>() > 0) print_disk(json, beside("disk_bytes_s", "disk_rate_calibrated"));
  } else {
    fmt::print("ram   {} of weights a pass, decode at {}\n", weights, beside("ram_bytes_s", "ram_rate_calibrated"));
    print_disk(json, beside("disk_bytes_s", "disk_rate_calibrated"));
  }
}

void print(const nlohmann::json& json) {
  fmt::print("{} | {} | {}\n", json["model"].get<std::string>(), json["executor"].get<std::string>(),
             json["storage"].get<std::string>());
  fmt::print("prompt {:>5} tokens  {:>10.1f} tok/s\n", json["prompt_tokens"].get<int>(),
             json["prompt_tok_s"].get<double>());
  const bool decoded = !json["decode_tok_s"].is_null();
  const std::string speed = decoded ? fmt::format("{:>10.2f} tok/s", json["decode_tok_s"].get<double>())
                                    : std::string("not measured: the first comes with the prompt; -n 2 or more");
  fmt::print("decode {:>5} tokens  {}   ({} sequences, median of {})\n", json["decode_tokens"].get<int>(), speed,
             json["sequences"].get<int>(), json["repetitions"].get<int>());
  fmt::print("{}", json["drafts"]["words"].get<std::string>());
  if (decoded) print_traffic(json);
  if (json["hit_rate"].get<double>() >= 0)
    fmt::print("experts found in {}: {:.1f} %; {}\n", json.contains("vram_bytes_s") ? "VRAM" : "memory",
               100 * json["hit_rate"].get<double>(), json["experts"]["words"].get<std::string>());
  if (const auto words = json["guesses"]["words"].get<std::string>(); !words.empty())
    fmt::print("guesses: {}\n", words);
  if (json.contains("logits_hash"))
    fmt::print("logits {} {}\n", json["logits_hash"].get<std::string>(),
               json["logits_finite"].get<bool>() ? "(all finite)" : "(NOT FINITE)");
}

/// The same work under smaller and smaller budgets, until one is refused: a line each, and a drawing.
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
    const auto json = report(**created, bench, flags, (*created)->saved_plan().rates);
    const bool gpu = json["device"] == "cuda";
    std::uint64_t& cap = gpu ? options.vram_bytes : options.ram_bytes;
    options.vram_beside.clear();  // of several GPUs all go down the ladder alike
    if (steps.empty()) {          // what it takes where nothing is short, if that was not said
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
  options->cluster = ranks->cluster();
  options->max_sequences = flags.sequences;
  options->decode_rows = flags.sequences;
  if (flags.accept >= 0) options->speculate.acceptance = flags.accept;
  if (flags.routing != "model") options->routing = flags.routing;
  Trace trace;
  if (!flags.trace.empty()) options->trace = &trace;
  install_interrupt_handler();
  if (!flags.squeeze.empty() && options->cluster != nullptr)
    return fail(error(Code::unsupported, "--squeeze is of one process: over several, layers would move to the others"));
  if (!flags.squeeze.empty()) return squeeze(*options, flags, program);
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  options->rates = (*created)->saved_plan().rates;  // measured just now, where they were unknown
  Bench bench(**created, flags, program);
  if (const Status status = bench.run(); !status.ok()) return fail(status);
  auto json = report(**created, bench, flags, options->rates);
  const residency::Plan plan = (*created)->plan();
  const std::string seat = describe_seat((*created)->draft_seat());
  if (json["device"] == "cuda") {
    created->reset();  // measuring takes memory that the caps do not grant beside the engine's
    if (const Status measured = residency::measure_gpu(options->rates); !measured.ok())
      log::warn("{}", measured.message());
    json["pcie_rate_measured"] = options->rates.host_to_device;
    json["gpus"] = 1 + options->cuda_beside.size();
    if (std::vector<int> gpus = options->cuda_beside; !gpus.empty()) {
      gpus.push_back(options->cuda_index);
      const auto links = residency::measure_links(gpus);
      if (!links.ok()) log::warn("{}", links.status().message());
      json["pcie_rate_measured"] = links.ok() ? *links : 0;
      options->rates.device_memory *= static_cast<double>(gpus.size());
    }
    json["vram_rate_measured"] = options->rates.device_memory;  // now, in this run
  }
  if (!flags.trace.empty()) {
    if (const Status written = trace.write(flags.trace); !written.ok()) return fail(written);
  }
  if (flags.json)
    fmt::print("{}\n", json.dump(2));
  else
    print(json);
  residency::DecodeCost cost = bench.cost();
  cost.context = decode_context(flags);
  cost.prompt_tokens = flags.prompt_tokens;
  cost.sequences = flags.sequences;
  cost.prompt_tokens_per_second = json["prompt_tok_s"].get<double>();
  if (flags.explain)
    std::fputs(("\nabove: medians, and experts of the prompt's passes, too; below: decoding alone, all of it\n" +
                residency::render_explain(plan, options->rates, cost) + seat)
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
  command->add_option("-s,--sequences", flags->sequences, "Sequences decoded side by side")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command
      ->add_option("--routing", flags->routing,
                   "Who chooses a mixture's experts: model, uniform, zipf:S (the k-th favourite comes as 1/k^S), "
                   "trace:FILE (as --record-routing wrote it). Random weights route unlike trained ones")
      ->capture_default_str();
  command
      ->add_option("--accept", flags->accept,
                   "Each draft is right with this probability, for models whose weights are random: the drafter "
                   "works as ever, and what it guessed is replaced")
      ->check(number_within(0, 1));
  command->add_option("--squeeze", flags->squeeze,
                      "Measure under smaller and smaller budgets, each 0.7 of the one before, and draw speed and what "
                      "was missed into this SVG file");
  command->add_option("--trace", flags->trace, "Write what happened when to this file (Chrome trace JSON; slower)");
  command->add_flag("--json", flags->json, "Print JSON");
  command->add_flag("--explain", flags->explain, "Print the plan's prediction beside what was measured, tier by tier");
  command->add_flag("--hash", flags->hash, "Hash the logits of every decoded token (on a GPU slower)");
  command->add_flag("--hash-prompt", flags->hash_prompt, "Hash the logits of every prompt token too (slower)");
  command->add_flag("!--no-warm-up", flags->warm, "Count the first repetition too");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
