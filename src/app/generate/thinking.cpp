#include "app/generate/thinking.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "app/generate/fields.h"

namespace millrace::generate {
namespace {

constexpr double kMostTokens = 1e9;

void take_effort(Fields& fields, const char* field, const Json& value, Job& job) {
  const auto& efforts = text::thinking_efforts();
  if (!value.is_string() || std::find(efforts.begin(), efforts.end(), value.get<std::string>()) == efforts.end())
    return fields.fail(field, "must be none, minimal, low, medium, high, xhigh or max");
  job.thinking.effort = value.get<std::string>();
}

/// {"type": "enabled" | "disabled" | "adaptive", "budget_tokens"}, or true or false.
void take_switch(Fields& fields, const Json& value, Job& job) {
  if (value.is_boolean()) {
    job.thinking.on = value.get<bool>();
    return;
  }
  const std::string type = word(value, "type");
  if (type != "enabled" && type != "disabled" && type != "adaptive" && type != "auto")
    return fields.fail("thinking", "its type must be enabled, disabled or adaptive");
  if (type == "enabled" || type == "disabled") job.thinking.on = type == "enabled";
  Fields inner(value);
  std::int64_t budget = 0;
  inner.integer("budget_tokens", budget, 0, kMostTokens);
  if (!inner.status().ok()) return fields.fail(inner.status().with_context("thinking"));
  if (inner.has("budget_tokens")) job.thinking.budget = budget;
}

/// {"effort", "enabled", "max_tokens"}; a summary of thoughts is not made here.
void take_reasoning(Fields& fields, const Json& value, Job& job) {
  if (!value.is_object()) return fields.fail("reasoning", "must be an object with effort");
  Fields inner(value);
  if (const Json* effort = inner.find("effort")) take_effort(fields, "reasoning.effort", *effort, job);
  bool on = true;
  std::int64_t budget = 0;
  inner.flag("enabled", on);
  inner.integer("max_tokens", budget, 0, kMostTokens);
  if (!inner.status().ok()) return fields.fail(inner.status().with_context("reasoning"));
  if (inner.has("enabled")) job.thinking.on = on;
  if (inner.has("max_tokens")) job.thinking.budget = budget;
}

void take_template_variables(Fields& fields, const Json& values, Job& job) {
  constexpr std::array<std::string_view, 6> kOwn = {"messages",  "tools",     "add_generation_prompt",
                                                    "documents", "bos_token", "eos_token"};
  if (!values.is_object()) return fields.fail("chat_template_kwargs", "must be an object");
  for (const auto& [name, value] : values.items()) {
    if (name != "documents" && std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end())
      return fields.fail("chat_template_kwargs", fmt::format("{} is not a variable to set", name));
  }
  job.template_variables = values;
  if (const auto on = values.find("enable_thinking"); on != values.end() && on->is_boolean())
    job.thinking.on = on->get<bool>();
}

}  // namespace

Status take_thinking(const Json& body, Job& job) {
  Fields fields(body);
  if (const Json* effort = fields.find("reasoning_effort")) take_effort(fields, "reasoning_effort", *effort, job);
  if (const Json* config = fields.find("output_config"); config != nullptr && config->is_object())
    if (const Json* effort = Fields(*config).find("effort")) take_effort(fields, "output_config.effort", *effort, job);
  if (const Json* reasoning = fields.find("reasoning")) take_reasoning(fields, *reasoning, job);
  if (const Json* thinking = fields.find("thinking")) take_switch(fields, *thinking, job);
  for (const char* name : {"enable_thinking", "think"}) {
    const Json* const value = fields.find(name);
    if (value == nullptr) continue;
    if (value->is_boolean()) {
      job.thinking.on = value->get<bool>();
    } else if (*value == "true" || *value == "false") {
      job.thinking.on = *value == "true";
    } else {
      take_effort(fields, name, *value, job);
    }
  }
  for (const char* name : {"thinking_budget", "thinking_budget_tokens"}) {
    std::int64_t budget = 0;
    fields.integer(name, budget, 0, kMostTokens);
    if (fields.has(name)) job.thinking.budget = budget;
  }
  if (const Json* values = fields.find("chat_template_kwargs")) take_template_variables(fields, *values, job);
  return fields.status();
}

}  // namespace millrace::generate
