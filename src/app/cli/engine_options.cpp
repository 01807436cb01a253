// What the flags of a model mean: options of the engine, made of words, files and what the store knows.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string_view>
#include <vector>

#include "app/cli/adapter_files.h"
#include "app/cli/command.h"
#include "app/cli/control_vectors.h"
#include "app/store/adapters.h"
#include "base/bytes.h"
#include "device/gpu.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

Expected<DType> kv_format(const std::string& name) {
  if (name == "f16") return DType::f16;
  if (name == "f32") return DType::f32;
  if (name == "q8_0") return DType::q8_0;
  if (name == "q4_0") return DType::q4_0;
  if (name == "q3") return DType::q3_k;
  if (name == "q2") return DType::q2_0;
  return error(Code::invalid_argument, "--kv {}: use f16, q8_0, q4_0, q3, q2 or f32", name);
}

constexpr std::string_view kDevices =
    "use auto, cpu, cuda, cuda:N, cuda:0,1 for GPUs that share each matrix, or vulkan:N";

/// "cuda", "cuda:1" or "cuda:0,1", or "vulkan:1": the first and those beside it. kind: the word before the numbers.
Status read_gpus(std::string_view device, std::string_view kind, engine::EngineOptions& options) {
  if (kind != device::gpu_kind())
    return error(Code::unsupported, "--device {}: this program was built without {}; build it again with {}=ON make",
                 device, kind == "cuda" ? "CUDA" : "Vulkan", kind == "cuda" ? "CUDA" : "VULKAN");
  std::vector<int> gpus;
  const char *at = device.data() + kind.size(), *const end = device.data() + device.size();
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
  if (gpus.size() > 1 && kind != "cuda")
    return error(Code::unsupported, "--device {}: one Vulkan device computes; name one", device);
  options.device.gpu = gpus.front();
  options.device.gpu_named = true;
  options.device.gpus_beside.assign(gpus.begin() + 1, gpus.end());
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
  const std::size_t gpus = 1 + options.device.gpus_beside.size();
  if (caps.size() > 1 && caps.size() != gpus)
    return error(Code::invalid_argument,
                 "--vram {}: {} caps for {} GPU{}; give one for all, or one for each of --device", vram, caps.size(),
                 gpus, gpus > 1 ? "s" : "");
  options.memory.vram_bytes = caps.front();
  options.memory.vram_beside.assign(caps.begin() + 1, caps.end());
  return {};
}

Status read_device(const ModelFlags& flags, engine::EngineOptions& options) {
  const std::string& device = flags.device;
  if (device == "cpu") {
    options.device.choice = engine::DeviceChoice::cpu;
  } else if (device.starts_with("cuda") || device.starts_with("vulkan")) {
    options.device.choice = engine::DeviceChoice::cuda;
    MR_RETURN_IF_ERROR(read_gpus(device, device.starts_with("cuda") ? "cuda" : "vulkan", options));
  } else if (device != "auto") {
    return error(Code::invalid_argument, "--device {}: {}", device, kDevices);
  }
  if (!flags.pin.empty()) {
    auto pins = engine::parse_pins(flags.pin);
    if (!pins.ok()) return pins.status();
    if (options.device.choice == engine::DeviceChoice::cpu)
      return error(Code::invalid_argument, "--pin is for a GPU; leave it out with --device cpu");
    options.memory.pins = std::move(*pins);
  }
  options.experts.vram_slots = flags.vram_experts;
  if (flags.vram_experts >= 0 && options.device.choice == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--vram-experts is for a GPU; leave it out with --device cpu");
  options.memory.cpu_share_percent = flags.cpu_share;
  if (flags.cpu_share >= 0 && options.device.choice == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--cpu-share is for a GPU; leave it out with --device cpu");
  if (flags.vram.empty()) return {};
  if (options.device.choice == engine::DeviceChoice::cpu)
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
  if (flags.device == "auto")
    options.device.choice = saved.gpu ? engine::DeviceChoice::cuda : engine::DeviceChoice::cpu;
  if (flags.ram.empty()) options.memory.ram_bytes = saved.ram_bytes;
  if (flags.vram.empty()) options.memory.vram_bytes = saved.vram_bytes;
  if (flags.context == 0) options.demand.context_tokens = saved.context_tokens;
  if (flags.batch == 0) options.demand.batch_tokens = saved.batch_tokens;
  if (flags.rates.empty()) options.planning.rates = saved.rates;
  if (flags.kv.empty()) {
    MR_ASSIGN_OR_RETURN(options.kv.dtype, kv_format(saved.kv));
  }
  options.memory.tile_bytes = saved.tile_bytes;
  options.planning.follow = std::make_shared<const residency::SavedPlan>(std::move(saved));
  return {};
}

}  // namespace

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

Expected<engine::EngineOptions> engine_options(const ModelFlags& flags, const Program& program,
                                               store::Manifest* defaults) {
  engine::EngineOptions options;
  if (flags.share != nullptr) {
    options.model.identity = flags.share->identity();
    options.model.fetch = [share = flags.share](const residency::UnitTable& units) { return share->fetch(units); };
  }
  store::Resolved resolved;  // serve needs no model yet
  if (!flags.model.empty()) {
    MR_ASSIGN_OR_RETURN(resolved, store::Store().resolve(flags.model));
  }
  options.model.path = resolved.path;
  options.model.mmproj = flags.mmproj;
  if (!flags.adapters.empty() && flags.model.empty())
    return error(Code::invalid_argument, "--lora is for a model: name it with --model");
  options.model.adapters = store::adapters_of(store::Store(), resolved.manifest.name, resolved.manifest.files);
  MR_ASSIGN_OR_RETURN(auto added, read_adapters(flags.adapters, resolved.path));
  std::move(added.begin(), added.end(), std::back_inserter(options.model.adapters));
  MR_RETURN_IF_ERROR(read_control_vectors(flags.control, options.model));
  if (std::error_code code;
      !flags.mmproj.empty() && flags.mmproj != "off" && !std::filesystem::exists(flags.mmproj, code))
    return error(Code::not_found, "--mmproj {}: there is no such file", flags.mmproj);
  options.memory.bare_resident_bytes = program.bare_resident_bytes;
  if (!flags.ram.empty()) {
    auto bytes = parse_bytes(flags.ram);
    if (!bytes.ok()) return bytes.status().with_context("--ram");
    if (*bytes == 0)
      return error(Code::invalid_argument, "--ram: 0 bytes hold no model; leave the flag out to use what is free");
    options.memory.ram_bytes = *bytes;
  }
  MR_RETURN_IF_ERROR(read_device(flags, options));
  if (!flags.tile.empty()) {
    auto bytes = parse_bytes(flags.tile);
    if (!bytes.ok()) return bytes.status().with_context("--tile");
    options.memory.tile_bytes = *bytes;
  }
  options.demand.context_tokens = flags.context;
  const auto& known = resolved.manifest.parameters;
  if (flags.context == 0 && known.contains("num_ctx") && known["num_ctx"].is_number_integer())
    options.demand.context_tokens = std::max<std::int64_t>(0, known["num_ctx"].get<std::int64_t>());
  if (defaults != nullptr) *defaults = std::move(resolved.manifest);
  options.device.graphs = !flags.no_graphs;
  options.device.gpus_through_host = flags.no_peer;
  if (flags.no_peer && options.device.gpus_beside.empty())
    return error(Code::invalid_argument, "--no-peer is for several GPUs: name them, as --device cuda:0,1");
  options.device.fuse = !flags.no_fuse;
  options.demand.batch_tokens = flags.batch;
  options.device.threads = flags.threads;
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
  options.experts.ram_slots = flags.expert_slots;
  options.experts.prefetch = flags.prefetch == "off"  ? exec::Prefetch::off
                             : flags.prefetch == "on" ? exec::Prefetch::always
                                                      : exec::Prefetch::automatic;
  options.experts.pack = flags.pack;
  options.experts.record_routing = flags.record_routing;
  if (flags.isa != "auto") {
    auto isa = device::isa_from_name(flags.isa);
    if (!isa.ok()) return isa.status().with_context("--isa");
    if (!device::has_isa(*isa)) {
      return error(Code::unsupported, "--isa {}: this processor does not have it; its best is {}", flags.isa,
                   device::isa_name(device::best_isa()));
    }
    options.device.isa = *isa;
    options.device.best_isa = false;
  }
  options.storage.cufile = flags.storage == "cufile";
  if (options.storage.cufile && options.device.choice == engine::DeviceChoice::cpu)
    return error(Code::invalid_argument, "--storage cufile reads to a GPU's memory; leave it out with --device cpu");
  if (!options.storage.cufile) {
    MR_ASSIGN_OR_RETURN(options.storage.backend, storage::backend_from_name(flags.storage));
  }
  MR_ASSIGN_OR_RETURN(options.experts.policy, residency::policy_from_name(flags.policy));
  if (!flags.kv.empty()) {
    MR_ASSIGN_OR_RETURN(options.kv.dtype, kv_format(flags.kv));
  }
  for (const auto& text : flags.faults) {
    MR_ASSIGN_OR_RETURN(auto fault, storage::parse_fault(text));
    options.storage.faults.push_back(fault);
  }
  if (!flags.rates.empty()) {
    MR_ASSIGN_OR_RETURN(options.planning.rates, read_rates(flags.rates));
  } else {
    options.planning.find_rates = true;
  }
  MR_RETURN_IF_ERROR(follow_plan_file(flags, options));
  MR_RETURN_IF_ERROR(check_model_outputs({}, options, {flags.plan, flags.rates, flags.pack}));
  return options;
}

}  // namespace millrace::cli
