// The plan of a model that a GPU computes: limits made smaller until the model fits into VRAM as a whole, or else as
// much of it as does with the rest streaming or its experts flowing (residency/homes.h). What does not fit is said
// before anything is loaded: context, weights, KV and activations are all computed first. Thread-safety: one thread.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "device/gpu.h"
#include "engine/limits.h"
#include "engine/setup.h"
#include "exec/gpu/blocks.h"
#include "exec/gpu/executor.h"
#include "kv/layout.h"
#include "residency/homes.h"

namespace millrace::engine {

/// Tiles of a GPU's model: an expert is one.
constexpr std::uint64_t kGpuTileBytes = 256 * kMiB;

/// What the driver keeps of a drafter's captured passes: one for each number of rows and each 512 positions, 64 of them
/// at most.
constexpr std::uint64_t kGraphBytes = 32 * kMiB;

/// Device memory that is there, what this process's context takes of it, and who shares it.
struct Vram {
  std::uint64_t free_bytes = 0, context_bytes = 0;
  int multiprocessors = 0;
  int processors = 0;  // of the host; 0: those that this process may use
  // That compute, each with its rows of every matrix; the figures above are then the least or most of any of them.
  std::uint64_t gpus = 1, words_bytes = 0;  // words_bytes: of RAM, for what they tell each other
};
/// Errors: unsupported (there is no such GPU).
Expected<device::Gpu> find_gpu(int index);
/// Opens the GPU, and measures. Errors: unsupported, io_error.
Expected<Vram> open_gpu(int index);
/// Tries the current device's kernels with what the model asks of them (exec/gpu/self_test.h) and says what was
/// replaced. CUDA's alone: a Vulkan device has a test of its own when it is opened.
Status try_kernels(const model::Model& model, const EngineOptions& options, const device::Gpu& gpu);
/// That of a GPU that is not here, with so much for this process.
Vram vram_on_paper(std::uint64_t bytes, int processors);
/// The largest cap that all memory of the process there may have.
std::uint64_t most_cap(const Vram& vram);

/// Of either cap, for others than this model (a draft model).
struct TakenMemory {
  std::uint64_t vram_bytes = 0, ram_bytes = 0;
  std::int64_t guesses = 0;  // that they bring to a pass of one sequence
};

class GpuPlanner {
 public:
  /// parts: with the model; where there are several GPUs, with the first one's rows of it. Then the plan is of one GPU,
  /// with its part of RAM and of the processor. They outlive the object.
  GpuPlanner(const EngineOptions& options, const Vram& vram, Parts& parts);

  /// Limits, plan options, plan and, where measured, rates, into the parts; anew with each call, and alike for the same
  /// `others`. Errors: out_of_budget (names what would do), unsupported, invalid_argument (a plan to follow that is
  /// none of this model's).
  Status plan(const TakenMemory& others = {});
  /// What a vision tower takes of either cap, of all plans from now on.
  void seat_tower(const TakenMemory& taken) { tower_ = taken; }

  // REQUIRES of what follows: plan() was ok.
  std::uint64_t cap_bytes() const { return cap_; }
  std::uint64_t program_bytes() const { return program_bytes_; }
  bool streams_from_ram() const { return homes_.movers > homes_.on_disk; }
  bool knows_rates() const { return parts_.rates.cpu_decode > 0; }
  /// Whether experts are read from the disk again and again: they have slots, and RAM has none for each.
  bool experts_leave_ram() const { return homes_.experts.any() && homes_.experts.ram_slots < units().experts(); }
  /// What is at home outside VRAM, in the log.
  void say_homes() const;
  const residency::Homes& homes() const { return homes_; }
  const kv::Layout& layout() const { return layout_; }
  /// Where layers stream, or experts flow, they use the memory of blocks that no sequence needs yet.
  exec::DeviceBlocksShape blocks_shape(const kv::Group& group) const;
  /// Of VRAM. Whether all of it is taken at once or as it is needed: of a mixture, that hangs on the homes chosen.
  std::uint64_t most_kv_bytes() const;

 private:
  Status plan_once();
  std::uint64_t ram_of_one() const;
  void share_processor();
  void share_memory();
  int front_layers() const;
  void set_front();
  TakenMemory taken_by_drafter() const;
  TakenMemory taken() const;
  Status place();
  Status choose();
  Status follow();
  std::int64_t wanted_logit_rows() const;
  void choose_limits(bool streams);
  std::int64_t part_of_prompts();
  LimitRules rules() const;
  void set_plan_options();
  void set_spare();
  bool measure();
  int rounded_share() const;
  residency::HomesInput homes_input() const;
  exec::PassShape pass_shape() const;
  std::int64_t blocks(const kv::Group& group) const { return kv::most_blocks(group, kv_load(parts_.limits)); }
  std::uint64_t activation_bytes() const { return exec::gpu_activation_bytes(pass_shape()); }
  /// What is pinned stays where it is, and slots whose number the user chose stay as many.
  bool uses_spare() const {
    return homes_.experts.any() ? options_.experts.vram_slots < 0 : streams_ && options_.memory.pins.empty();
  }
  // The model may have become one whose experts are in a pack.
  const model::Hyperparameters& hp() const { return parts_.model->hyperparameters(); }
  const residency::UnitTable& units() const { return parts_.model->units(); }

  const EngineOptions options_;
  Demand demand_;
  const Vram vram_;
  Parts& parts_;
  const kv::Layout layout_;
  const std::uint64_t all_ram_;  // the cap: the machine is asked once
  const std::uint64_t program_bytes_;
  const std::uint64_t ram_;          // of the cap, what one GPU has beside the program, and the program
  std::uint64_t threads_bytes_ = 0;  // of those that compute the CPU's share
  std::uint64_t cap_ = 0;
  TakenMemory others_, tower_;
  residency::Rates rates_;  // of all of the processor
  int front_wanted_ = 0;    // residency::HomesInput::front_layers
  residency::Homes homes_;
  bool streams_ = false;  // some layers may
  bool chose_ = false;    // not all is in VRAM, and no plan was followed
  bool measured_ = false;
};

}  // namespace millrace::engine
