#include "engine/paper.h"

#include <memory>
#include <utility>

#include "base/log.h"
#include "device/gpu.h"
#include "engine/device_choice.h"
#include "engine/setup.h"
#include "residency/budget.h"

namespace millrace::engine {
namespace {

Expected<Parts> on_cpu(EngineOptions options) {
  options.device.choice = DeviceChoice::cpu;
  options.memory.vram_bytes = 0;
  return assemble_plan(options);
}

Expected<Parts> on_gpu(const EngineOptions& options, const Machine& machine) {
  Expected<Parts> parts = assemble_gpu_on_paper(options, machine.processors, machine.gpus);
  if (!parts.ok() && parts.status().code() == Code::unsupported && machine.gpus > 1) {
    log::warn("planning for one GPU of {}: {}", machine.name, parts.status().message());
    parts = assemble_gpu_on_paper(options, machine.processors);
  }
  if (parts.ok()) parts->budget = std::make_unique<residency::Budget>(options.memory.ram_bytes);
  return parts;
}

}  // namespace

Expected<Planned> plan_for(const EngineOptions& asked, const Machine& machine) {
  EngineOptions options = asked;
  options.planning.rates = machine.rates;
  options.planning.find_rates = false;  // this machine's would be another's
  if (options.memory.ram_bytes == 0) options.memory.ram_bytes = machine.ram_bytes;
  if (options.memory.vram_bytes == 0) options.memory.vram_bytes = machine.vram_bytes;
  const bool open = options.device.choice == DeviceChoice::automatic;
  if (options.device.choice == DeviceChoice::cuda && machine.vram_bytes == 0)
    return error(Code::invalid_argument, "{} has no GPU; leave --device cuda out", machine.name);
  if (options.device.choice == DeviceChoice::cpu || machine.vram_bytes == 0) {
    MR_ASSIGN_OR_RETURN(Parts parts, on_cpu(std::move(options)));
    return planned_from(std::move(parts));
  }
  if (device::built_cuda_version().empty())
    return device::gpus().status().with_context(machine.name + " has a GPU; --device cpu plans without it");
  Expected<Parts> gpu = on_gpu(options, machine);
  if (!open) {
    if (!gpu.ok()) return gpu.status();
    return planned_from(std::move(*gpu));
  }
  if (!gpu.ok() && gpu.status().code() != Code::out_of_budget && gpu.status().code() != Code::unsupported)
    return gpu.status();
  if (gpu.ok() && !streams_to_gpu(gpu->model->units(), gpu->plan)) return planned_from(std::move(*gpu));
  Expected<Parts> cpu = on_cpu(options);
  if (!gpu.ok() && !cpu.ok()) return cpu.status();
  if (!gpu.ok()) log::warn("planning for the CPU of {}: {}", machine.name, gpu.status().message());
  if (!gpu.ok() || (cpu.ok() && cpu_decodes_faster(gpu->plan, cpu->plan))) return planned_from(std::move(*cpu));
  return planned_from(std::move(*gpu));
}

}  // namespace millrace::engine
