#include "residency/predict.h"

#include <algorithm>
#include <cmath>

#include "kernels/claimed.h"
#include "residency/expert_use.h"
#include "residency/type_rates.h"

namespace millrace::residency {
namespace {

// Measured on an H200 (docs/internals/benchmarks.md). Products of decoding reach this share of the rate of a copy
// within device memory, and the launches of each layer take this long.
constexpr double kProductsOfCopy = 0.8;
constexpr double kLaunchSeconds = 13e-6;
// A mixture has more launches than a dense feed-forward, and its experts are small products dominated by memory
// latency: kExpertsOfCopy is their share of a copy's rate in passes of up to kSplitRows rows. With more rows the tiles
// limit them: kExpertBytesOfProduct is the bytes of experts per multiply-accumulate of one large product in the same
// time. (30B-A3B, gpt-oss-20b and Qwen3.6-35B, H100 and H200.)
constexpr double kMixtureSeconds = 14e-6;
constexpr double kExpertsOfCopy = 0.33, kExpertBytesOfProduct = 0.0028;
// A layer with attention over latents has additional products of heads and norms, which depend on one another. The
// heads of a generated token all read the same keys; the shares are of the rate of one large product. (GLM-4.7-Flash,
// H100.)
constexpr double kLatentSeconds = 28e-6, kLatentsOfProduct = 0.045, kHeadsOfProduct = 0.07;
// Experts in prompts: their share of one large product's rate, and the rows per expert that reach half of it.
constexpr double kExpertsOfProduct = 0.33, kHalfExpertRows = 100;
// Two GPUs on NVLink: the time of a small gather including its launch, and the rate of a large one.
constexpr double kGatherSeconds = 7.5e-6, kGatherRate = 325e9;
// A layer with shared rows synchronises CPU and GPU four times (Q K V, output, gate and up, down), each time this long;
// longer if the launching thread has no processor for itself and interrupts a computing one.
constexpr double kHandOverSeconds = 50e-6, kCrowdedHandOverSeconds = 95e-6, kHandOvers = 4;
// A mixture synchronises once per layer, and this much longer for each further row. Its few experts are products in
// three parts with barriers between them, and short reads across the link: their shares of the rates of long ones.
constexpr double kExpertHandOverSeconds = 45e-6, kExpertRowSeconds = 30e-6;
constexpr double kExpertsOfDecode = 0.7, kExpertsOfLink = 0.7;
// The same for several rows: the CPU computes more between two barriers, and the GPU's tiles request less at once.
constexpr double kExpertsOfDecodeRows = 0.84, kExpertsOfLinkRows = 0.53;
// Shares of the rate of one large product of a prompt: all products of a model, the same in windows if layers stream,
// attention, and products of a few dozen rows.
constexpr double kPromptOfProduct = 0.89, kWindowsOfProduct = 0.8, kFewRowsOfProduct = 0.19;
constexpr double kAttentionOfProduct = 0.3, kQuantizedAttentionOfProduct = 0.13;
// Shares of the CPU's rate of products of prompts (measured on two cores with AVX-512): attention, and products of a
// few rows if those were not measured.
constexpr double kCpuAttentionOfProduct = 0.25, kCpuFewRowsOfProduct = 0.37;
// The rows of a prompt that an expert needs to reach the rate of large products; and the share of the rate of one long
// product that a token's experts reach, because each is at another place in memory. (Two cores of an EPYC, 16 of a
// Xeon.)
constexpr double kCpuExpertRows = 16, kCpuExpertsOfDecode = 0.85;
// A step of the CPU beside products: a norm, a rotation or a sum of one row, and the weight's lease.
constexpr double kCpuStepSeconds = 1e-6;

double launch_seconds(const PassCost& cost) { return static_cast<double>(cost.layers) * kLaunchSeconds; }

/// The time to wait for rows that other GPUs compute.
double gather_seconds(const PassCost& cost, double rows) {
  return static_cast<double>(cost.steps.gathers) * kGatherSeconds + rows * cost.steps.gather_bytes / kGatherRate;
}

/// The part of a layer's experts that this many rows use.
double touched(const PassCost& cost, double rows) {
  if (cost.expert_share >= 1) return 1;
  if (cost.routing.skew > 0) return ExpertUse(cost.experts, cost.top_k, cost.routing.skew).touched(rows);
  return 1 - std::pow(1 - cost.expert_share, rows);
}
/// The part of those experts that has slots in VRAM.
double met_in_vram(const PassCost& cost, double rows) {
  if (cost.routing.skew <= 0 || cost.experts_in_vram >= 1) return cost.experts_in_vram;
  return ExpertUse(cost.experts, cost.top_k, cost.routing.skew).met(cost.vram_slots, rows, CachePolicy::lfu);
}

/// The slowest of several resources that work in parallel.
class Slowest {
 public:
  /// Adds a resource that processes `bytes` (or products) at `rate` after idling for `before` seconds.
  void add(double bytes, double rate, double before, const char* bound) {
    if (bytes <= 0) return;
    if (rate <= 0) {
      missing_ = true;
      return;
    }
    const double seconds = before + bytes / rate;
    if (seconds > time_.seconds) time_ = {seconds, bound};
  }
  PassTime time() const { return missing_ ? PassTime() : time_; }

 private:
  PassTime time_;
  bool missing_ = false;
};

/// Keys that a token of the work sees through a window, on average over a prompt's tokens.
double keys_seen(const Work& work, std::int64_t window) {
  const double before = static_cast<double>(work.context), prompt = static_cast<double>(work.prompt_tokens);
  const double most = window > 0 ? static_cast<double>(window) : before + prompt;
  if (before >= most || prompt <= 0) return std::min(before, most);
  const double growing = std::min(prompt, most - before);  // tokens that see one key more than the token before
  return (growing * (before + growing / 2) + (prompt - growing) * most) / prompt;
}
/// Multiply-accumulates of attention in a pass.
double attention_macs(const PassCost& cost, const Work& work, double rows) {
  double macs = 0;
  for (const AttentionCost& layers : cost.attention) macs += layers.macs * keys_seen(work, layers.window);
  return rows * macs;
}
/// The time of attention over a generated token's keys on a GPU, for one row.
double gpu_keys_seconds(const PassCost& cost, const Rates& rates, const Work& work, double memory) {
  double seconds = 0;
  for (const AttentionCost& layers : cost.attention) {
    const double keys = keys_seen(work, layers.window), reading = layers.kv_bytes * keys / memory;
    const double computing = layers.latent && rates.device_prefill_macs > 0
                                 ? layers.macs * keys / (rates.device_prefill_macs * kLatentsOfProduct)
                                 : 0;
    seconds += std::max(reading, computing);
  }
  return seconds;
}
/// Bytes of keys and values that a generated token reads.
double kv_bytes(const PassCost& cost, const Work& work) {
  double bytes = 0;
  for (const AttentionCost& layers : cost.attention) bytes += layers.kv_bytes * keys_seen(work, layers.window);
  return bytes;
}
/// The time of a GPU's products of experts alone, in passes of more than kSplitRows rows. met: the bytes of the experts
/// that the pass uses.
double expert_seconds(const PassCost& cost, const Rates& rates, bool prompt, double rows, double met) {
  if (cost.expert_macs <= 0 || rates.device_prefill_macs <= 0) return 0;
  if (!prompt) return met / (rates.device_prefill_macs * kExpertBytesOfProduct);
  const double each = rows * cost.expert_share;
  return rows * cost.expert_macs * cost.expert_share /
         (rates.device_prefill_macs * kExpertsOfProduct * each / (each + kHalfExpertRows));
}

/// The rates of experts in weight bytes per second, while both run: through the CPU's products, and across the link to
/// the GPU.
double experts_by_decode(const Rates& rates, double rows) {
  return rates.shared_decode() * (rows > 1 ? kExpertsOfDecodeRows : kExpertsOfDecode);
}
double experts_by_link(const Rates& rates, double rows) {
  return rates.shared_link() * (rows > 1 ? kExpertsOfLinkRows : kExpertsOfLink);
}

/// The time of link and CPU for the missed experts of all layers, and the sum over layers of the slower of both.
struct SharedOut {
  double link_seconds = 0, cpu_seconds = 0, seconds = 0;
};
/// For one token: each of its experts is missed with probability `chance`, and is processed entirely by one side.
/// bytes: of the missed experts, on average. Rates in bytes per second.
SharedOut share_out(const PassCost& cost, double chance, double bytes, double link, double cpu) {
  SharedOut result;
  chance = std::min(chance, 1 - 1e-9);
  const double each = bytes / (static_cast<double>(cost.top_k) * chance);  // an expert of every layer
  double likely = std::pow(1 - chance, cost.top_k);                        // that n are missed
  for (std::int64_t n = 0; n <= cost.top_k; ++n) {
    const std::int32_t claimed = kernels::claimed_of(static_cast<std::int32_t>(n), cost.expert_link.single);
    const double by_link = claimed * each / link, by_cpu = static_cast<double>(n - claimed) * each / cpu;
    result.link_seconds += likely * by_link;
    result.cpu_seconds += likely * by_cpu;
    result.seconds += likely * std::max(by_link, by_cpu);
    likely *= static_cast<double>(cost.top_k - n) / static_cast<double>(n + 1) * chance / (1 - chance);
  }
  return result;
}

PassTime gpu_pass(const Plan& plan, const Rates& rates, const Work& work, double rows) {
  const PassCost& cost = plan.cost;
  const bool prompt = work.prompt_tokens > 0;
  const double on_host = rows <= static_cast<double>(kSplitRows) ? host_bytes(plan) : 0;
  const double crossed = cost.shared - on_host + cost.crossing;
  // Experts without a slot in VRAM are computed in place, or they cross to the GPU.
  const double experts = cost.expert_bytes * touched(cost, rows), missed = experts * (1 - met_in_vram(cost, rows));
  const bool shares_experts = missed > 0 && rows <= static_cast<double>(kExpertShareRows);
  const double met = experts - (shares_experts ? missed : 0);
  const double memory = rates.device_memory * kProductsOfCopy;
  const bool few = !prompt && rows <= static_cast<double>(kSplitRows);
  const double of_experts = memory > 0 ? met / (few ? rates.device_memory * kExpertsOfCopy : memory) : 0;
  // Serial work on the GPU beside reading weights.
  double rest =
      launch_seconds(cost) + gather_seconds(cost, rows) + static_cast<double>(cost.steps.latents) * kLatentSeconds;
  if (cost.expert_macs > 0 && !shares_experts) rest += static_cast<double>(cost.layers) * kMixtureSeconds;
  if (!prompt && memory > 0)
    rest += rows * (gpu_keys_seconds(cost, rates, work, memory) + cost.steps.state_bytes / memory);
  if (prompt && rates.device_prefill_macs > 0)
    rest += attention_macs(cost, work, rows) /
                (rates.device_prefill_macs * (cost.quantized_kv ? kQuantizedAttentionOfProduct : kAttentionOfProduct)) +
            rows * cost.steps.head_macs / (rates.device_prefill_macs * kHeadsOfProduct);
  Slowest slowest;
  slowest.add(cost.home + crossed, memory, rest + of_experts, "vram");
  if (!few)
    slowest.add(rows * cost.macs + (prompt ? 1 : rows) * cost.head_macs,
                rates.device_prefill_macs * (!prompt       ? kFewRowsOfProduct
                                             : crossed > 0 ? kWindowsOfProduct
                                                           : kPromptOfProduct),
                rest + expert_seconds(cost, rates, prompt, rows, met), "compute");
  slowest.add(crossed, on_host > 0 ? rates.shared_link() : rates.host_to_device, 0, "pcie");
  if (shares_experts) {  // layer by layer, after the GPU's part
    const double before =
        memory > 0 ? cost.home / memory + of_experts + rest +
                         static_cast<double>(cost.layers) * (kExpertHandOverSeconds + (rows - 1) * kExpertRowSeconds)
                   : 0;
    const double by_link = cost.expert_link.part_of(rows), link = experts_by_link(rates, rows),
                 cpu = experts_by_decode(rates, rows);
    if (rows <= 1 && link > 0 && cpu > 0) {
      const SharedOut all = share_out(cost, missed / experts, missed, link, cpu);
      slowest.add(all.seconds, 1, before, all.link_seconds > all.cpu_seconds ? "pcie" : "ram");
    } else {
      slowest.add(missed * (1 - by_link), cpu, before, "ram");
      slowest.add(missed * by_link, link, before, "pcie");
    }
  } else {
    slowest.add(missed, rates.host_to_device, 0, "pcie");
  }
  double read = cost.read, waited = 0;
  // A layer's experts are read after its router has chosen them: a few at a time, and nothing else runs meanwhile.
  if (const double from_disk = missed * (1 - cost.experts_in_ram); from_disk > 0) {
    const auto layers = static_cast<double>(std::max<std::int64_t>(1, cost.layers));
    const double one = cost.expert_bytes / (static_cast<double>(cost.experts) * layers);
    read += bytes_in_order(from_disk, std::max(one, from_disk / layers), rates);
    if (!prompt) waited = slowest.time().seconds;
  }
  slowest.add(read, rates.disk, waited, "disk");
  slowest.add(on_host, shared_decode(cost, rates, rows),
              rates.device_memory > 0 ? host_rest_seconds(plan, rates, plan.cpu_permille > 0) : 0, "ram");
  return slowest.time();
}

/// The CPU's time of attention for a generated token: computing, or reading keys at the rate of weights.
double cpu_attention_seconds(const PassCost& cost, const Rates& rates, const Work& work) {
  const double memory = rates.cpu_decode > 0 ? rates.cpu_decode : rates.ram;
  const double reading = memory > 0 ? kv_bytes(cost, work) / memory : 0;
  if (rates.cpu_prefill_macs <= 0) return reading;
  return std::max(reading, attention_macs(cost, work, 1) / (rates.cpu_prefill_macs * kCpuAttentionOfProduct));
}

/// The time of the CPU's attention and states, and the overhead of its steps.
double cpu_rest_seconds(const PassCost& cost, const Rates& rates, const Work& work, double rows) {
  const bool prompt = work.prompt_tokens > 0;
  const double macs = prompt ? attention_macs(cost, work, rows) + rows * cost.steps.state_macs : 0;
  const double sequences = prompt ? static_cast<double>(std::max<std::int64_t>(1, work.sequences)) : rows;
  double seconds = step_seconds(cost.steps, rates, sequences);
  if (!prompt) seconds += rows * cpu_attention_seconds(cost, rates, work);
  if (rates.cpu_prefill_macs > 0) seconds += macs / (rates.cpu_prefill_macs * kCpuAttentionOfProduct);
  return seconds;
}

/// The time of products of `rows` rows that read `bytes` once. Rates of few rows were measured with kSplitRows.
double few_rows_seconds(double bytes, double macs, double decode, double rows_macs, double rows) {
  constexpr auto few = static_cast<double>(kSplitRows);
  const double one = bytes / decode;
  if (rows >= few) return std::max(one, rows * macs / rows_macs);
  // A weight is unpacked once; the product takes the same time for each further row.
  return one + std::max(0.0, few * macs / rows_macs - one) * (rows - 1) / (few - 1);
}

PassTime cpu_pass(const Plan& plan, const Rates& rates, const Work& work, double rows) {
  const PassCost& cost = plan.cost;
  const double experts = cost.expert_bytes * touched(cost, rows);
  const double decode = rates.cpu_decode > 0 ? rates.cpu_decode : rates.ram;
  const bool prompt = work.prompt_tokens > 0;
  const double rest = cpu_rest_seconds(cost, rates, work, rows);
  Slowest slowest;
  slowest.add(cost.home + cost.read + experts / (rows > 1 ? 1 : kCpuExpertsOfDecode), decode, rest, "ram");
  if (rows > 1) {
    // Each expert gets only a few of the rows.
    const double each = rows * cost.expert_share;
    const double of_experts = !prompt || cost.expert_macs <= 0 || each >= kCpuExpertRows
                                  ? 1
                                  : std::max(kCpuFewRowsOfProduct, each / kCpuExpertRows);
    const double macs =
        rows * (cost.macs + cost.expert_macs * cost.expert_share / of_experts) + (prompt ? 1 : rows) * cost.head_macs;
    if (prompt || rates.cpu_rows_macs <= 0)
      slowest.add(macs, rates.cpu_prefill_macs * (prompt ? 1 : kCpuFewRowsOfProduct), rest, "compute");
    else if (decode > 0)
      slowest.add(few_rows_seconds(cost.home + cost.read + experts, macs / rows, decode, rates.cpu_rows_macs, rows), 1,
                  rest, "compute");
  }
  slowest.add(cost.read + experts * (1 - plan.predicted_hit_rate), rates.disk, 0, "disk");
  return slowest.time();
}

}  // namespace

PassCost pass_cost(const UnitTable& units, const Plan& plan, const PlanOptions& options, bool gpu) {
  PassCost cost;
  cost.gpu = gpu;
  cost.attention = options.passes.attention;
  cost.steps = options.passes.steps;
  cost.routing = options.experts.routing;
  cost.quantized_kv = options.passes.quantized_kv;
  cost.crowded = options.passes.crowded;
  cost.pass_tokens = options.passes.tokens;
  cost.weights = weights_by_type(units, options.passes.top_k, gpu);
  std::int64_t experts = 0;
  for (std::size_t u = 0; u < units.units().size(); ++u) {
    const Unit& unit = units.units()[u];
    if (unit.aside) continue;
    double macs = 0;
    for (const Part& part : unit.parts) macs += static_cast<double>(part.rows) * static_cast<double>(part.cols);
    if (unit.kind == UnitKind::expert) {
      experts = std::max<std::int64_t>(experts, unit.expert + 1);
      cost.expert_macs += macs;
      cost.expert_bytes += static_cast<double>(unit.bytes());
      continue;
    }
    if (unit.by_rows) continue;  // a row a token
    const bool layer = unit.kind == UnitKind::trunk;
    (layer ? cost.macs : cost.head_macs) += macs;
    if (layer) ++cost.layers;
    if (!gpu) {
      const auto range = units.tiles_of(static_cast<std::int32_t>(u));
      for (std::int32_t t = range.first; t < range.last; ++t)
        (plan.resident_tiles[static_cast<std::size_t>(t)] ? cost.home : cost.read) +=
            static_cast<double>(units.tiles()[static_cast<std::size_t>(t)].bytes);
      continue;
    }
    const Tier home = plan.homes[u];
    const bool shared = layer && home == Tier::ram;
    (home == Tier::vram ? cost.home : shared ? cost.shared : cost.crossing) += static_cast<double>(unit.bytes());
    if (home == Tier::disk) cost.read += static_cast<double>(unit.bytes());
    if (shared) ++cost.shared_layers, cost.shared_macs += macs;
  }
  cost.experts = experts;
  cost.top_k = options.passes.top_k;
  if (options.experts.ram_slots > 0) {
    const ExpertUse use(experts, options.passes.top_k, options.experts.routing.skew);
    // The most used experts have slots in VRAM, the next ones in RAM.
    const auto part = [&](std::int64_t slots) {
      const double all = std::min(1.0, static_cast<double>(slots) / static_cast<double>(units.experts()));
      return options.experts.routing.skew <= 0 ? all : use.met(all * static_cast<double>(experts), 1, CachePolicy::lfu);
    };
    cost.vram_slots = static_cast<double>(options.experts.vram_slots) / static_cast<double>(units.experts()) *
                      static_cast<double>(experts);
    cost.experts_in_vram = part(options.experts.vram_slots);
    cost.expert_link = options.experts.link;
    // The experts in RAM are mostly different from those in VRAM.
    cost.experts_in_ram =
        cost.experts_in_vram >= 1
            ? 1
            : std::min(1.0, (part(options.experts.ram_slots + options.experts.vram_slots) - cost.experts_in_vram) /
                                (1 - cost.experts_in_vram));
  }
  if (experts > 0 && options.passes.top_k > 0)
    cost.expert_share = std::min(1.0, static_cast<double>(options.passes.top_k) / static_cast<double>(experts));
  return cost;
}

double bytes_in_order(double bytes, double in_flight, const Rates& rates) {
  const double waited = rates.disk > 0 && rates.disk_latency > 0 ? rates.disk * rates.disk_latency : kHalfRateInFlight;
  return bytes * (1 + waited / in_flight);
}

double step_seconds(const StepCost& steps, const Rates& rates, double sequences) {
  const double memory = rates.cpu_decode > 0 ? rates.cpu_decode : rates.ram;
  return static_cast<double>(steps.steps) * kCpuStepSeconds + static_cast<double>(steps.products) * rates.cpu_product +
         (memory > 0 ? sequences * steps.state_bytes / memory : 0);
}

double host_bytes(const Plan& plan) { return plan.cost.shared * plan.cpu_permille / 1000.0; }

double shared_decode(const PassCost& cost, const Rates& rates, double rows) {
  const double decode = rates.shared_decode();
  if (rates.cpu_few_macs <= 0 || cost.shared_macs <= 0 || rows <= 1 || decode <= 0) return decode;
  return cost.shared / few_rows_seconds(cost.shared, cost.shared_macs, decode, rates.cpu_few_macs, rows);
}

double host_expert_bytes(const Plan& plan) {
  const PassCost& cost = plan.cost;
  const double chance = 1 - cost.experts_in_vram, missed = cost.expert_bytes * cost.expert_share * chance;
  if (missed <= 0 || cost.top_k <= 0) return 0;
  return share_out(cost, chance, missed, 1, 1).cpu_seconds;  // at a byte a second
}

LinkShare link_share(const Rates& rates) {
  const auto share = [&](double rows) {
    const double link = experts_by_link(rates, rows), cpu = experts_by_decode(rates, rows);
    return link <= 0 || cpu <= 0 ? 0 : static_cast<int>(link / (link + cpu) * 1000);
  };
  return {.single = share(1), .several = share(2)};
}

double host_rest_seconds(const Plan& plan, const Rates& rates, bool shares) {
  const PassCost& cost = plan.cost;
  double seconds = cost.home / (rates.device_memory * kProductsOfCopy) + launch_seconds(cost) + gather_seconds(cost, 1);
  if (shares)
    seconds += static_cast<double>(cost.shared_layers) * kHandOvers *
               (cost.crowded ? kCrowdedHandOverSeconds : kHandOverSeconds);
  return seconds;
}

PassTime predict_pass(const Plan& plan, const Rates& machine, const Work& work, double rows) {
  const Rates rates = rates_for(plan.cost.weights, machine);
  return plan.cost.gpu ? gpu_pass(plan, rates, work, rows) : cpu_pass(plan, rates, work, rows);
}

double predict_tokens_per_second(const Plan& plan, const Rates& machine, const Work& work) {
  const Rates rates = rates_for(plan.cost.weights, machine);
  const auto sequences = static_cast<double>(std::max<std::int64_t>(1, work.sequences));
  if (work.prompt_tokens <= 0) {
    // The planner's prediction includes the ring's rate and the experts' separate reads.
    if (work.sequences <= 1 && !plan.cost.gpu) {
      const double speed = plan.predicted_decode_tokens_per_second;
      return speed > 0 ? 1 / (1 / speed + cpu_attention_seconds(plan.cost, rates, work)) : 0;
    }
    const double seconds = predict_pass(plan, rates, work, sequences).seconds;
    return seconds > 0 ? sequences / seconds : 0;
  }
  const double tokens = static_cast<double>(work.prompt_tokens) * sequences;
  const double most = plan.cost.pass_tokens > 0 ? static_cast<double>(plan.cost.pass_tokens) : tokens;
  const double passes = std::ceil(tokens / most), rows = tokens / passes;
  const double seconds = predict_pass(plan, rates, work, rows).seconds * passes;
  return seconds > 0 ? tokens / seconds : 0;
}

}  // namespace millrace::residency
