// The kinds of units that a printed plan has rows for, in its order.
#pragma once

#include "residency/unit.h"

namespace millrace::residency {

struct PlanRowKind {
  UnitKind unit;
  bool by_rows = false;
  bool has(const Unit& one) const { return one.kind == unit && one.by_rows == by_rows; }
};
constexpr PlanRowKind kPlanRowKinds[] = {
    {UnitKind::embedding}, {UnitKind::embedding, true}, {UnitKind::trunk}, {UnitKind::expert}, {UnitKind::head}};

}  // namespace millrace::residency
