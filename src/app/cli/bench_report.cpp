// What `millrace bench` tells of what it measured, as JSON and in words.
#include <fmt/core.h>

#include <algorithm>

#include "app/cli/bench.h"
#include "base/bytes.h"
#include "device/cpu.h"
#include "residency/predict.h"

namespace millrace::cli {
namespace {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

template <typename Field>
double middle(const std::vector<BenchSample>& samples, Field field) {
  std::vector<double> values;
  values.reserve(samples.size());
  for (const auto& sample : samples) values.push_back(sample.*field);
  return median(std::move(values));
}

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

}  // namespace

nlohmann::json bench_report(const engine::Engine& engine, const Bench& bench, const BenchFlags& flags,
                            const residency::Rates& rates) {
  const auto& s = bench.samples();
  const double decode = middle(s, &BenchSample::decode_tok_s);
  nlohmann::json json;
  json["model"] = engine.model().hyperparameters().name;
  json["executor"] = engine.executor().describe();
  json["storage"] = engine.storage().traits().name;
  json["prompt_tokens"] = flags.prompt_tokens;
  json["decode_tokens"] = flags.decode_tokens;
  json["sequences"] = flags.sequences;
  if (flags.routing != "model") json["routing"] = flags.routing;
  json["repetitions"] = s.size();
  json["prompt_tok_s"] = middle(s, &BenchSample::prompt_tok_s);
  // The first token comes with the prompt: one alone tells nothing of decoding.
  json["decode_tok_s"] = decode > 0 ? nlohmann::json(decode) : nlohmann::json();
  json["drafts"] = drafts_json(engine.load(), flags);
  const double passes = decode / flags.sequences / engine.load().tokens_a_turn();  // a second
  json["weight_bytes_per_pass"] = middle(s, &BenchSample::decode_weight_bytes);
  const bool gpu = engine.vram_budget() != nullptr;
  json["device"] = gpu ? "cuda" : "cpu";
  if (gpu) {
    json["vram_bytes_s"] = middle(s, &BenchSample::decode_weight_bytes) * passes;
    json["pcie_bytes_per_pass"] = middle(s, &BenchSample::copied_bytes);
    json["pcie_bytes_s"] = middle(s, &BenchSample::copied_bytes) * passes;
    json["vram_granted_bytes"] = engine.vram_budget()->reserved_bytes();
    json["vram_cap_bytes"] = engine.vram_budget()->cap_bytes();
  }
  json["ram_bytes_s"] = gpu ? 0 : middle(s, &BenchSample::decode_weight_bytes) * passes;
  json["ram_rate_calibrated"] = rates.ram;
  json["rates_brief"] = rates.brief;
  json["disk_bytes_s"] = middle(s, &BenchSample::disk_bytes_s);
  json["disk_rate_calibrated"] = rates.disk;
  json["disk_bytes_per_pass"] = middle(s, &BenchSample::decode_disk_bytes);
  json["hit_rate"] = middle(s, &BenchSample::hit_rate);
  if (engine.executor().passes() > 1) {
    json["stages_ms_per_pass"] = middle(s, &BenchSample::stages_ms);
    json["between_ms_per_pass"] = middle(s, &BenchSample::between_ms);
  }
  json["stall_share"] = middle(s, &BenchSample::stall_share);
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

namespace {

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
    return known > 0
               ? fmt::format("{} ({:.0f} % of the {} {})", rate(measured), 100 * json[measured].get<double>() / known,
                             json["rates_brief"].get<bool>() ? "briefly measured" : "calibrated", rate(calibrated))
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

}  // namespace

void print_bench(const nlohmann::json& json) {
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

}  // namespace millrace::cli
