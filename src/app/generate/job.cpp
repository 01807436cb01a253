#include "app/generate/job.h"

#include <algorithm>

namespace millrace::generate {

void lay_under(const Defaults& defaults, Job& job) {
  if (!job.chat) return;
  if (job.chat_template.empty()) job.chat_template = defaults.chat_template;
  const auto is_system = [](const Json& message) {
    const std::string role = message.value("role", std::string());
    return role == "system" || role == "developer";
  };
  if (!defaults.system.empty() && (job.messages.empty() || !is_system(job.messages.front())))
    job.messages.insert(job.messages.begin(), Json{{"role", "system"}, {"content", defaults.system}});
  const bool begins_with_system = !job.messages.empty() && is_system(job.messages.front());
  job.messages.insert(job.messages.begin() + (begins_with_system ? 1 : 0), defaults.messages.begin(),
                      defaults.messages.end());
}

Expected<Json> parse_object(std::string_view body) {
  if (body.empty()) return error(Code::invalid_argument, "the request has no body; send a JSON object");
  // The depth is counted before anything is built: brackets inside texts only make it stricter.
  int depth = 0, deepest = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_text) {
      if (c == '\\')
        ++i;
      else if (c == '"')
        in_text = false;
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  if (deepest > kMostNesting)
    return error(Code::invalid_argument, "the JSON is nested more than {} deep", kMostNesting);
  Json json = Json::parse(body, nullptr, false);
  if (json.is_discarded()) return error(Code::invalid_argument, "the body is not valid JSON");
  if (!json.is_object()) return error(Code::invalid_argument, "the body must be a JSON object");
  return json;
}

}  // namespace millrace::generate
