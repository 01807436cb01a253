// Schemas as clients write them, made into what the compiler takes.
// Thread-safety: pure.
#pragma once

#include <string>

#include "app/generate/json.h"
#include "base/status.h"

namespace millrace::generate {

/// In place: types in lower case ("OBJECT", as Google's clients write them), keywords that are null left out.
void tidy_schema(Json& schema);

/// In place: limits of lengths, items and properties that are larger than the n-th of a few steps become that step. An
/// answer of a context never comes near the first of them; the others are for schemas whose limits add up.
/// False: n is past the last step.
bool clamp_limits(Json& schema, int n);

}  // namespace millrace::generate
