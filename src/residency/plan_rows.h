// The kinds of units that a printed plan has rows for, in its order.
#pragma once

#include "residency/unit.h"

namespace millrace::residency {

struct PlanRowKind {
  UnitKind unit;
  bool by_rows = false;
  bool substitutes = false;
  bool has(const Unit& one) const {
    return one.kind == unit && one.by_rows == by_rows && (one.substitute_of >= 0) == substitutes;
  }
};
constexpr PlanRowKind kPlanRowKinds[] = {
    {UnitKind::embedding}, {UnitKind::embedding, true},     {UnitKind::trunk}, {UnitKind::trunk, false, true},
    {UnitKind::expert},    {UnitKind::expert, false, true}, {UnitKind::head}};

}  // namespace millrace::residency
