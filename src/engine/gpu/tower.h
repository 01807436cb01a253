// A vision tower beside a decoder on a GPU: what it takes there, whether there is room, and what computes its passes.
// Room is for pictures of up to the size of a screen (1,920 x 1,080), and made before the first of them comes; larger
// ones are the processor's. Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.h"
#include "device/gpu.h"
#include "engine/gpu/plan.h"
#include "engine/pictures.h"

namespace millrace::engine {

/// Has the planner leave room for the tower, where the decoder keeps its context and its speed beside it: with the
/// tower's weights in VRAM, or else in a ring that they stream through for each picture. parts.tower_seat says which,
/// or why not. What is wrong with the mmproj file says PictureEncoder::open().
void seat_tower(const EngineOptions& options, const device::Gpu& gpu, GpuPlanner& planner, Parts& parts);

/// Loads it. REQUIRES: the seat has rows. Errors: those of every part.
Expected<std::unique_ptr<TowerRunner>> load_tower_on_gpu(const EngineOptions& options, Parts& parts);

}  // namespace millrace::engine
