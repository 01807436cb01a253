// Values of JSON that go without taking memory. nlohmann's destructor takes some for the values inside, and a process
// whose destructor gets none ends. Thread-safety: pure.
#pragma once

#include <utility>

#include "app/generate/json.h"

namespace millrace::generate {

/// Leaves null, or an empty array or object. Takes no memory, and recurses as deep as the value nests.
void take_apart(Json& value) noexcept;

/// Somebody else's JSON, as large as they like.
struct LargeJson : Json {
  LargeJson(Json&& value) : Json(std::move(value)) {}  // NOLINT(google-explicit-constructor): it is the same value
  LargeJson(LargeJson&& other) noexcept : Json(std::move(static_cast<Json&>(other))) {}
  LargeJson& operator=(LargeJson&& other) noexcept {
    std::swap(static_cast<Json&>(*this), static_cast<Json&>(other));
    return *this;
  }
  ~LargeJson() { take_apart(*this); }
};

}  // namespace millrace::generate
