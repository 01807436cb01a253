// How much a model thinks before it answers: the request's setting, and the variables by which a chat template receives
// it. Thread-safety: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/jinja/template.h"

namespace millrace::text {

/// The request's setting. Empty members: the template's default.
struct Thinking {
  std::optional<bool> on{};
  std::string effort{};                  // one of thinking_efforts(), or empty
  std::optional<std::int64_t> budget{};  // tokens of a thought
};

/// "none", "minimal", "low", "medium", "high", "xhigh", "max".
const std::vector<std::string>& thinking_efforts();

/// The variables that a template reads.
struct ThinkingControls {
  bool enable_thinking = false, thinking = false;  // true or false
  std::string mode_on, mode_off;                   // values of thinking_mode; empty: it is not read
  bool budget = false;                             // thinking_budget, in tokens
  std::vector<std::string> efforts;                // accepted values of reasoning_effort; empty: it is not read
};

/// Renders a question with each effort, because a template may refuse some.
ThinkingControls find_thinking(const jinja::Template& jinja, std::string_view source);

/// Sets the template's variables, except those that `options` already has. Chooses the nearest effort that the template
/// accepts, and converts between budget and effort if the template reads only one of them.
void apply_thinking(const ThinkingControls& controls, const Thinking& thinking, nlohmann::ordered_json& options);

}  // namespace millrace::text
