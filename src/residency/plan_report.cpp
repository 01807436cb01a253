// How plans and rates are written down: the table people see, and the JSON that keeps a machine's rates.
#include <algorithm>
#include <cmath>

#include "base/json.h"
#include "base/json_nesting.h"
#include "residency/budget.h"
#include "residency/plan.h"
#include "residency/predict.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

/// A number of a rates file, by its key.
template <typename T>
struct Field {
  const char* key;
  double T::*field;
};
constexpr Field<Rates> kRateFields[] = {
    {"disk", &Rates::disk},
    {"disk_latency", &Rates::disk_latency},
    {"directstorage", &Rates::directstorage},
    {"ram", &Rates::ram},
    {"cpu_decode", &Rates::cpu_decode},
    {"host_to_device", &Rates::host_to_device},
    {"host_to_device_busy", &Rates::host_to_device_busy},
    {"cpu_decode_busy", &Rates::cpu_decode_busy},
    {"device_memory", &Rates::device_memory},
    {"cpu_prefill_macs", &Rates::cpu_prefill_macs},
    {"device_prefill_macs", &Rates::device_prefill_macs},
    {"cpu_product", &Rates::cpu_product},
    {"cpu_few_macs", &Rates::cpu_few_macs},
    {"cpu_rows_macs", &Rates::cpu_rows_macs},
};

constexpr Field<TypeRates> kTypeRateFields[] = {
    {"decode", &TypeRates::decode},
    {"rows_macs", &TypeRates::rows_macs},
    {"prefill_macs", &TypeRates::prefill_macs},
};

/// Those of the fields that the object has; the others stay 0. Errors: invalid_argument.
template <typename T, std::size_t n>
Status read_fields(const nlohmann::json& object, const Field<T> (&fields)[n], T& out) {
  for (const auto& [key, field] : fields) {
    const auto it = object.find(key);
    if (it == object.end()) continue;
    const double value = it->is_number() ? it->template get<double>() : -1;
    if (!(value >= 0) || !std::isfinite(value))
      return error(Code::invalid_argument,
                   "rate '{}' is not a number, of bytes per second as a rule; write it as 3.2e9", key);
    out.*field = value;
  }
  return {};
}

/// "types" of a rates file: an object by the types' names. Errors: invalid_argument. A type that this version does not
/// know says nothing to it.
Expected<std::vector<TypeRates>> read_types(const nlohmann::json& types) {
  if (!types.is_object())
    return error(Code::invalid_argument,
                 "the rates' \"types\" are not an object; write them anew with `millrace calibrate`");
  std::vector<TypeRates> read;
  for (const auto& [name, fields] : types.items()) {
    const Expected<DType> dtype = dtype_from_name(name);
    if (!dtype.ok()) continue;
    read.push_back({.dtype = *dtype});
    MR_RETURN_IF_ERROR(read_fields(fields, kTypeRateFields, read.back()).with_context(name));
  }
  return read;
}

std::string bytes_text(double bytes) { return format_bytes(static_cast<std::uint64_t>(std::llround(bytes))); }

std::string rate_text(double bytes_per_second) { return bytes_text(bytes_per_second) + "/s"; }

std::string milliseconds_text(double ms) {
  if (ms <= 0) return "-";
  return fmt::format("{:.{}f}", ms, ms < 10 ? 2 : ms < 100 ? 1 : 0);
}

std::string table_line(std::string_view tier, std::string_view what, std::string_view units, std::string_view tiles,
                       std::string_view bytes, std::string_view read, std::string_view by, std::string_view bound,
                       std::string_view ms) {
  std::string line = fmt::format("{:<5} {:<27} {:>6} {:>6} {:>9} {:>11}  {:<8} {:<8} {:>8}", tier, what, units, tiles,
                                 bytes, read, by, bound, ms);
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string plan_table(const Plan& plan) {
  std::string text = table_line("tier", "what", "units", "tiles", "bytes", "read/token", "executor", "bound", "ms");
  double read = 0;
  for (const Plan::Row& row : plan.rows) {
    text += table_line(row.tier, row.what, fmt::format("{}", row.units), fmt::format("{}", row.tiles),
                       format_bytes(row.bytes), bytes_text(row.bytes_per_token), row.executor, row.bound,
                       milliseconds_text(row.milliseconds));
    read += row.bytes_per_token;
  }
  const double rate = plan.predicted_decode_tokens_per_second;
  return text + table_line("all", "", "", "", "", bytes_text(read), "", plan.bound,
                           milliseconds_text(rate > 0 ? 1e3 / rate : 0));
}

std::string prediction(const Plan& plan, const Rates& machine) {
  const Rates rates = rates_for(plan.cost.weights, machine);
  const double speed = plan.predicted_decode_tokens_per_second;
  if (speed <= 0) return "rates not measured: run `millrace calibrate` for a predicted speed\n";
  std::string text =
      fmt::format("predicted decode: {:.{}f} tok/s, bound by {}", speed, speed < 10 ? 2 : 1,
                  plan.bound == "vram"   ? "VRAM at " + rate_text(rates.device_memory) + ", at most"
                  : plan.bound == "pcie" ? "PCIe at " + rate_text(rates.host_to_device)
                  : plan.bound == "disk" ? "the disk at " + rate_text(rates.disk)
                  : plan.bound == "ram"  ? "RAM at " + rate_text(rates.ram > 0 ? rates.ram : rates.cpu_decode)
                                         : "the CPU at " + rate_text(rates.cpu_decode));
  const std::string from =
      rates.machine + (rates.brief ? rates.machine.empty() ? "measured briefly" : "; measured briefly" : "");
  return text + (from.empty() ? "\n" : fmt::format(" ({})\n", from));
}

std::string speed_text(double speed) { return fmt::format("{:.{}f}", speed, speed < 10 ? 2 : speed < 100 ? 1 : 0); }

/// Prompts and sequences side by side; nothing where a rate for them is missing.
std::string predictions_beside(const Plan& plan, const Rates& rates) {
  std::string text;
  for (const std::int64_t tokens : {512, 2048}) {
    const double speed = predict_tokens_per_second(plan, rates, {.prompt_tokens = tokens});
    if (speed > 0) text += fmt::format("{}{} tok/s for {} tokens", text.empty() ? "" : ", ", speed_text(speed), tokens);
  }
  if (!text.empty()) text = "predicted prompt: " + text + "\n";
  std::string several;
  for (const std::int64_t sequences : {4, 16, 64}) {
    const double speed = predict_tokens_per_second(plan, rates, {.sequences = sequences});
    if (speed > 0)
      several += fmt::format("{}{} tok/s for {}", several.empty() ? "" : ", ", speed_text(speed), sequences);
  }
  if (!several.empty()) text += "predicted decode of several conversations, together: " + several + "\n";
  return text;
}

/// How much more memory would end the reads of weights; nothing where a token reads next to none from the disk.
std::string more_memory_line(const Plan& plan, const PlanOptions& options) {
  constexpr double kNoticeable = 0.02;  // of what a token reads
  if (options.vram_bytes > 0 || options.ram_bytes == UINT64_MAX) return "";
  double read = 0, read_from_disk = 0;
  std::uint64_t on_disk = 0, cached = 0;
  for (const Plan::Row& row : plan.rows) {
    read += row.bytes_per_token;
    if (row.tier == "disk") {
      read_from_disk += row.bytes_per_token;
      on_disk += row.bytes;
    } else if (row.what.find("cache") != std::string::npos) {
      cached += row.bytes;  // of experts, which the disk's row has again
    }
  }
  const std::uint64_t away = on_disk - std::min(on_disk, cached);
  if (away == 0 || read_from_disk <= kNoticeable * read) return "";
  return fmt::format("faster: with {} more memory (--ram {}), no weights would be read from the disk\n",
                     format_bytes(away), ram_argument(options.ram_bytes + away));
}

std::string vram_line(const Plan& plan, const PlanOptions& options) {
  const std::uint64_t used =
      plan.vram_weight_bytes + options.kv_bytes + plan.vram_fixed_bytes + plan.vram_draft_bytes + plan.vram_tower_bytes;
  const std::string tower =
      plan.vram_tower_bytes > 0 ? fmt::format(", pictures {}", format_bytes(plan.vram_tower_bytes)) : "";
  const std::string draft = plan.vram_draft_bytes > 0
                                ? fmt::format(", {} {}", plan.front_layers != 0 ? "guesses" : "draft model",
                                              format_bytes(plan.vram_draft_bytes))
                                : "";
  return fmt::format("VRAM: weights {}, KV {} for {} tokens, activations and context {}{}{}; {} of {} free\n",
                     format_bytes(plan.vram_weight_bytes), format_bytes(options.kv_bytes), options.context_tokens,
                     format_bytes(plan.vram_fixed_bytes), draft, tower,
                     format_bytes(options.vram_bytes - std::min(used, options.vram_bytes)),
                     format_bytes(options.vram_bytes));
}

std::string memory_line(const Plan& plan, const PlanOptions& options) {
  if (options.vram_bytes > 0) return vram_line(plan, options);
  std::string weights = fmt::format("{} resident", format_bytes(plan.resident_bytes));
  if (plan.ring_slots > 0)
    weights += fmt::format(", ring {} x {}", plan.ring_slots, format_bytes(plan.ring_slot_bytes));
  if (plan.expert_slots > 0)
    weights += fmt::format(", experts {} x {}", plan.expert_slots, format_bytes(plan.expert_slot_bytes));
  std::string text = fmt::format("memory: weights {} ({})", format_bytes(plan.weight_memory_bytes()), weights);
  if (options.kv_bytes > 0)
    text += fmt::format(", KV {} for {} tokens", format_bytes(options.kv_bytes), options.context_tokens);
  if (options.most_kv_bytes > options.kv_bytes)
    text += fmt::format(" at first and {} when all is full", format_bytes(options.most_kv_bytes));
  text += fmt::format(", activations and program {}", format_bytes(plan.fixed_bytes));
  if (options.ram_bytes == UINT64_MAX) return text + "; no cap\n";
  const std::uint64_t used = plan.weight_memory_bytes() + options.kv_bytes + plan.fixed_bytes;
  return text + fmt::format("; {} of {} free\n", format_bytes(options.ram_bytes - std::min(used, options.ram_bytes)),
                            format_bytes(options.ram_bytes));
}

struct Predicted {
  double bytes = 0, milliseconds = 0;
  void add(const Predicted& other) {
    bytes += other.bytes;
    milliseconds += other.milliseconds;
  }
};

Predicted predicted_for(const Plan& plan, std::string_view tier) {
  Predicted sum;
  for (const Plan::Row& row : plan.rows)
    if (row.tier == tier) sum.add({row.bytes_per_token, row.milliseconds});
  return sum;
}

std::string explain_line(std::string_view tier, std::string_view predicted, std::string_view measured,
                         std::string_view predicted_ms, std::string_view ms, std::string_view rate,
                         std::string_view ceiling) {
  return fmt::format("{:<5} {:>10} {:>10}  {:>10} {:>10}  {:>12} {:>12}\n", tier, predicted, measured, predicted_ms, ms,
                     rate, ceiling);
}

}  // namespace

std::string render_plan(const Plan& plan, const PlanOptions& options, const Rates& rates) {
  std::string text = plan_table(plan) + prediction(plan, rates) + predictions_beside(plan, rates);
  if (plan.expert_slots > 0 && plan.predicted_hit_rate < 1)
    text +=
        options.experts.routing.skew > 0
            ? fmt::format("experts found in the cache: {:.0f} % if routing goes by zipf:{:.3g}\n",
                          100 * plan.predicted_hit_rate, options.experts.routing.skew)
            : fmt::format("experts found in the cache: {:.0f} % if routing were uniform; real routing does better\n",
                          100 * plan.predicted_hit_rate);
  return text + more_memory_line(plan, options) + memory_line(plan, options);
}

std::string render_explain(const Plan& plan, const Rates& machine, const DecodeCost& cost) {
  const Rates rates = rates_for(plan.cost.weights, machine);
  if (cost.passes <= 0 || cost.tokens <= 0 || cost.seconds <= 0) return "explain: nothing was decoded\n";
  const bool gpu = plan.vram_weight_bytes > 0;
  const auto passes = static_cast<double>(cost.passes);
  std::string text =
      fmt::format("explain: {} tokens decoded in {} passes, {:.2f} s\n", cost.tokens, cost.passes, cost.seconds);
  text += fmt::format("{:<5} {:^21}  {:^21}\n", "", "bytes a pass", "ms a pass");
  text += explain_line("tier", "predicted", "measured", "predicted", "measured", "rate", "ceiling");
  const auto line = [&](std::string_view tier, Predicted predicted, double bytes, double seconds, double ceiling) {
    if (predicted.bytes <= 0 && bytes <= 0) return;
    text += explain_line(tier, bytes_text(predicted.bytes), bytes_text(bytes / passes),
                         milliseconds_text(predicted.milliseconds), milliseconds_text(seconds / passes * 1e3),
                         seconds > 0 ? rate_text(bytes / seconds) : "-", ceiling > 0 ? rate_text(ceiling) : "-");
  };
  const double computing = std::max(0.0, cost.seconds - cost.stall_seconds);
  Predicted all;
  for (const char* tier : {"vram", "ram", "disk"}) all.add(predicted_for(plan, tier));
  if (gpu) {
    // What is at home further out passes through the nearer tiers too.
    Predicted crossing = predicted_for(plan, "ram");
    crossing.add(predicted_for(plan, "disk"));
    const double shared = host_bytes(plan) + host_expert_bytes(plan);
    all.bytes -= shared;
    crossing.bytes -= shared;
    line("vram", {all.bytes, rates.device_memory > 0 ? all.bytes / rates.device_memory * 1e3 : 0},
         cost.weight_bytes - cost.host_bytes, computing, rates.device_memory);
    const double cpu = rates.shared_decode();
    line("ram", {shared, cpu > 0 ? shared / cpu * 1e3 : 0}, cost.host_bytes, cost.host_seconds, cpu);
    line("pcie", {crossing.bytes, rates.host_to_device > 0 ? crossing.bytes / rates.host_to_device * 1e3 : 0},
         cost.device_bytes, cost.seconds, rates.host_to_device);
  } else {
    const double cpu = rates.cpu_decode > 0 ? rates.cpu_decode : rates.ram;
    line("ram", {all.bytes, cpu > 0 ? all.bytes / cpu * 1e3 : 0}, cost.weight_bytes, computing, cpu);
  }
  line("disk", predicted_for(plan, "disk"), cost.disk_bytes, cost.disk_busy_seconds, rates.disk);
  const double measured = static_cast<double>(cost.tokens) / cost.seconds;
  const Work decoding{.sequences = std::llround(static_cast<double>(cost.tokens) / passes), .context = cost.context};
  const double predicted = predict_tokens_per_second(plan, rates, decoding);
  text += fmt::format("decode: {:.2f} tok/s", measured);
  if (predicted > 0)
    text += fmt::format(", predicted {:.2f} ({:+.0f} %), bound by {}", predicted, 100 * (predicted / measured - 1),
                        plan.bound);
  const Work reading{.prompt_tokens = cost.prompt_tokens, .sequences = cost.sequences};
  const double prompt = cost.prompt_tokens > 0 ? predict_tokens_per_second(plan, rates, reading) : 0;
  if (prompt > 0 && cost.prompt_tokens_per_second > 0)
    text += fmt::format("\nprompt: {} tok/s, predicted {} ({:+.0f} %)", speed_text(cost.prompt_tokens_per_second),
                        speed_text(prompt), 100 * (prompt / cost.prompt_tokens_per_second - 1));
  text += fmt::format("\nwaited for weights: {:.0f} ms a pass, {:.0f} % of the time\n",
                      cost.stall_seconds / passes * 1e3, 100 * cost.stall_seconds / cost.seconds);
  if (const auto leases = cost.expert_hits + cost.expert_misses; leases > 0)
    text += fmt::format("experts found in memory: {:.1f} %, predicted {:.1f} %\n",
                        100 * static_cast<double>(cost.expert_hits) / static_cast<double>(leases),
                        100 * plan.predicted_hit_rate);
  return text;
}

Expected<Rates> parse_rates_json(const std::string& text) {
  const auto json = nests_too_deep(text) ? nlohmann::json() : nlohmann::json::parse(text, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    return error(Code::invalid_argument, "the rates are not a JSON object; write them anew with `millrace calibrate`");
  Rates rates;
  MR_RETURN_IF_ERROR(read_fields(json, kRateFields, rates));
  if (const auto it = json.find("machine"); it != json.end() && it->is_string()) rates.machine = it->get<std::string>();
  if (const auto it = json.find("gpu"); it != json.end() && it->is_string()) rates.gpu = it->get<std::string>();
  if (const auto it = json.find("brief"); it != json.end() && it->is_boolean()) rates.brief = it->get<bool>();
  if (const auto it = json.find("types"); it != json.end()) {
    MR_ASSIGN_OR_RETURN(rates.types, read_types(*it));
  }
  return rates;
}

std::string rates_to_json(const Rates& rates) {
  nlohmann::ordered_json json;
  for (const auto& [key, field] : kRateFields) json[key] = rates.*field;
  if (rates.directstorage <= 0) json.erase("directstorage");  // as everywhere but on Windows
  json["machine"] = rates.machine;
  if (!rates.gpu.empty()) json["gpu"] = rates.gpu;
  if (rates.brief) json["brief"] = true;
  for (const TypeRates& of_type : rates.types)
    for (const auto& [key, field] : kTypeRateFields)
      json["types"][std::string(info(of_type.dtype).name)][key] = of_type.*field;
  // A machine's name may hold any bytes.
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace millrace::residency
