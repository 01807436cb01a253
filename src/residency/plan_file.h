// A saved plan: the decisions of a run as JSON that people can read and edit, so that a later run can make the same
// decisions or compare the prediction with a measurement. The file also has numbers that follow from the decisions, for
// readers; they are not read back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "residency/plan.h"

namespace millrace::residency {

struct SavedPlan {
  // The model that the plan is for.
  std::string architecture, name;
  std::int64_t units = 0, tiles = 0;
  std::uint64_t weight_bytes = 0;
  // The options that the plan was made for.
  bool gpu = false;
  std::uint64_t ram_bytes = 0, vram_bytes = 0;  // the caps
  std::uint64_t tile_bytes = 0;
  std::int64_t context_tokens = 0, batch_tokens = 0, sequences = 1;
  std::string kv = "f16";
  Rates rates;
  // The decisions.
  Decisions decisions;      // of the CPU; of the GPU only ring_slots and the CPU's part
  std::vector<Tier> homes;  // by unit, where a GPU computes
  // The prediction.
  double predicted_decode_tokens_per_second = 0;
  std::string bound;
};

std::string plan_to_json(const SavedPlan& saved);
/// Errors: invalid_argument, naming the member that is missing or invalid.
Expected<SavedPlan> parse_plan_json(const std::string& text);

/// Checks that the plan is for a model of these units. Errors: invalid_argument, naming the difference.
Status check_model(const SavedPlan& saved, const UnitTable& units);

/// Errors: not_found, io_error, and those of parse_plan_json; all name the path.
Expected<SavedPlan> read_plan_file(const std::string& path);
Status write_plan_file(const std::string& path, const SavedPlan& saved);

}  // namespace millrace::residency
