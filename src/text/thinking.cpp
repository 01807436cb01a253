#include "text/thinking.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdlib>

namespace millrace::text {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kProbe = "effort-probe";

/// Renders a question with this effort; nothing if the template refuses it.
std::optional<std::string> with_effort(const jinja::Template& jinja, const std::string& effort) {
  const Json values = {{"messages", Json::array({{{"role", "user"}, {"content", "?"}}})},
                       {"add_generation_prompt", true},
                       {"tools", nullptr},
                       {"reasoning_effort", effort}};
  jinja::Inputs inputs;
  inputs.values = &values;
  inputs.trusted = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  inputs.now = 0;
  jinja::Limits limits;
  limits.steps = 500'000;
  limits.live_bytes = 8u << 20;
  const auto text = jinja.render(inputs, limits);
  return text.ok() ? std::optional(text->bytes()) : std::nullopt;
}

std::ptrdiff_t rank_of(const std::string& effort) {
  const auto& all = thinking_efforts();
  return std::find(all.begin(), all.end(), effort) - all.begin();
}

/// Returns the nearest of `known`; the lower of two equally near ones.
std::string nearest(const std::vector<std::string>& known, const std::string& effort) {
  return *std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
    return std::abs(rank_of(a) - rank_of(effort)) < std::abs(rank_of(b) - rank_of(effort));
  });
}

std::string effort_of(std::int64_t budget) {
  if (budget < 512) return "minimal";
  if (budget < 4096) return "low";
  return budget < 16'384 ? "medium" : "high";
}

std::int64_t budget_of(const std::string& effort) {
  constexpr std::int64_t kTokens[] = {0, 512, 2048, 8192, 16'384, 32'768, 65'536};
  return kTokens[std::min<std::ptrdiff_t>(rank_of(effort), std::ssize(kTokens) - 1)];
}

}  // namespace

const std::vector<std::string>& thinking_efforts() {
  static const std::vector<std::string> all = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
  return all;
}

ThinkingControls find_thinking(const jinja::Template& jinja, std::string_view source) {
  ThinkingControls controls;
  controls.enable_thinking = jinja.mentions("enable_thinking");
  controls.thinking = jinja.mentions("thinking");
  const auto names = [&](const char* value) {
    return source.find(fmt::format("'{}'", value)) != std::string_view::npos ||
           source.find(fmt::format("\"{}\"", value)) != std::string_view::npos;
  };
  for (const auto& [on, off] : {std::pair{"enabled", "disabled"}, {"thinking", "chat"}})
    if (jinja.mentions("thinking_mode") && names(on) && names(off)) controls.mode_on = on, controls.mode_off = off;
  controls.budget = jinja.mentions("thinking_budget");
  if (!jinja.mentions("reasoning_effort")) return controls;
  // A template that prints any effort belongs to a model trained on the three usual ones.
  const bool writes_any = with_effort(jinja, kProbe).value_or("").find(kProbe) != std::string::npos;
  for (const std::string& effort : thinking_efforts()) {
    const bool usual = effort == "low" || effort == "medium" || effort == "high";
    if ((names(effort.c_str()) || (writes_any && usual)) && with_effort(jinja, effort))
      controls.efforts.push_back(effort);
  }
  return controls;
}

void apply_thinking(const ThinkingControls& controls, const Thinking& thinking, Json& options) {
  const auto set = [&](const char* name, Json value) {
    if (!options.contains(name)) options[name] = std::move(value);
  };
  std::string effort = thinking.effort;
  if (effort.empty() && thinking.budget) effort = effort_of(*thinking.budget);
  std::optional<bool> on = thinking.on;
  if (!on && thinking.budget) on = *thinking.budget > 0;
  if (!on && !effort.empty()) on = effort != "none" && (effort != "minimal" || !controls.efforts.empty());
  if (on == false) effort = "none";
  if (on == true && effort == "none") effort = "low";
  if (on && controls.enable_thinking) set("enable_thinking", *on);
  if (on && controls.thinking) set("thinking", *on);
  if (on && !controls.mode_on.empty()) set("thinking_mode", *on ? controls.mode_on : controls.mode_off);
  if (!effort.empty() && !controls.efforts.empty()) set("reasoning_effort", nearest(controls.efforts, effort));
  if (controls.budget && (thinking.budget || !effort.empty()))
    set("thinking_budget", on == false ? 0 : thinking.budget.value_or(budget_of(effort)));
}

}  // namespace millrace::text
