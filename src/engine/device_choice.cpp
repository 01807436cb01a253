#include "engine/device_choice.h"

namespace millrace::engine {

bool streams_to_gpu(const residency::UnitTable& units, const residency::Plan& gpu) {
  for (std::size_t u = 0; u < gpu.homes.size(); ++u)
    if (gpu.homes[u] != residency::Tier::vram && !units.units()[u].by_rows) return true;
  return false;
}

bool cpu_decodes_faster(const residency::Plan& gpu, const residency::Plan& cpu) {
  const double there = gpu.predicted_decode_tokens_per_second, here = cpu.predicted_decode_tokens_per_second;
  return there > 0 && here > there;
}

}  // namespace millrace::engine
