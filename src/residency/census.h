// What the planner needs to know of a model: its tiles by what they are, and how much memory each kind takes. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "residency/unit.h"

namespace millrace::residency {

/// What the planner needs to know of a model.
struct Census {
  std::vector<std::int32_t> ordered;        // tiles in pass order; a tied head's last
  std::vector<std::int32_t> by_preference;  // the same, the first to be at home first
  std::uint64_t ordered_bytes = 0, ordered_slot_bytes = 0, largest_ordered = 0;
  std::int64_t expert_tiles = 0;
  std::int64_t experts = 0, expert_layers = 0;  // of a layer; layers that have some
  std::uint64_t largest_expert = 0;
  double active_expert_bytes = 0;    // a token's
  std::vector<std::int32_t> tables;  // tiles of what is read by rows
  std::vector<std::int32_t> front;  // tiles of what stays at home (PlanOptions::front_layers), among none of the others
  std::uint64_t front_bytes = 0, front_slot_bytes = 0;  // of its ordered units' weights; of memory
  std::int64_t front_experts = 0;                       // tiles
  std::uint64_t table_bytes = 0, table_slot_bytes = 0;  // of their weights; of memory
  std::uint64_t table_row_bytes = 0;                    // a token's
  std::uint64_t row_scratch = 0;
  // Where a token reads several rows of a table: memory for rows on their way, and the most that is of use to keep
  // rows.
  std::uint64_t rows_ahead = 0, most_row_cache = 0;
};

/// front: by unit, what stays at home (PlanOptions::front_layers). Units aside that are not in it are nobody's.
Census take_census(const UnitTable& units, int top_k, const std::vector<bool>& front);

}  // namespace millrace::residency
