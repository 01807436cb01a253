// Plans without an engine, for a machine that need not be this one: no weight is read, and no device is opened.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "engine/engine.h"
#include "residency/plan.h"

namespace millrace::engine {

/// What a plan has to know of a machine.
struct Machine {
  std::string name;
  std::uint64_t ram_bytes = 0;   // that Millrace may take
  residency::Rates rates;        // measured there (`millrace calibrate --out`), or derived from data sheets
  std::uint64_t vram_bytes = 0;  // that it may take of each GPU; 0: the CPU computes
  int gpus = 1;                  // equal GPUs, linked by NVLink, that compute together as with --device cuda:0,1
  int processors = 0;            // 0: as many as this machine has
};

/// The plan that Engine::create would make on that machine. memory.ram_bytes and memory.vram_bytes of the options,
/// where set, take the place of the machine's. device.choice as in Engine::create: `automatic` takes the GPU, and the
/// CPU where that is predicted to decode faster or the GPU cannot take the model. Several GPUs that cannot share the
/// model plan as one. Errors: those of plan_only(); invalid_argument (device.choice cuda, and the machine has no GPU);
/// unsupported (it has one, and this program was built without CUDA).
Expected<Planned> plan_for(const EngineOptions& options, const Machine& machine);

}  // namespace millrace::engine
