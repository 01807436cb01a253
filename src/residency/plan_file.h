// A plan on paper: what a run decided, as JSON that people can read and edit, for a later run that shall decide the
// same, or to hold a prediction against what came of it. Numbers that follow from the decisions are in it for readers
// and are not read back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "residency/plan.h"

namespace millrace::residency {

struct SavedPlan {
  // The model it is for.
  std::string architecture, name;
  std::int64_t units = 0, tiles = 0;
  std::uint64_t weight_bytes = 0;
  // What it was made for.
  bool gpu = false;
  std::uint64_t ram_bytes = 0, vram_bytes = 0;  // the caps
  std::uint64_t tile_bytes = 0;
  std::int64_t context_tokens = 0, batch_tokens = 0, sequences = 1;
  std::string kv = "f16";
  Rates rates;
  // What was decided.
  Decisions decisions;      // of the CPU; of the GPU only ring_slots and the CPU's part
  std::vector<Tier> homes;  // by unit, where a GPU computes
  // What came of it.
  double predicted_decode_tokens_per_second = 0;
  std::string bound;
};

std::string plan_to_json(const SavedPlan& saved);
/// Errors: invalid_argument, naming the member that is missing or off.
Expected<SavedPlan> parse_plan_json(const std::string& text);

/// Can a model of these units follow it? Errors: invalid_argument, naming what differs.
Status check_model(const SavedPlan& saved, const UnitTable& units);

/// Errors: not_found, io_error, and those of parse_plan_json; all name the path.
Expected<SavedPlan> read_plan_file(const std::string& path);
Status write_plan_file(const std::string& path, const SavedPlan& saved);

}  // namespace millrace::residency
