#include "app/generate/job.h"

#include <algorithm>
#include <array>

namespace millrace::generate {
namespace {

/// Bytes of texts, of all and of the longest.
struct TextBytes {
  std::uint64_t all = 0, longest = 0;

  void add(std::uint64_t bytes) {
    all += bytes;
    longest = std::max(longest, bytes);
  }
  void add(const std::string& text) { add(text.size()); }
  /// The texts and the keys in a value.
  void add(const Json& value) {
    if (value.is_string()) add(value.get_ref<const std::string&>());
    if (value.is_object()) {
      for (const auto& [key, member] : value.items()) {
        add(key);
        add(member);
      }
    } else if (value.is_array()) {
      for (const Json& item : value) add(item);
    }
  }
  /// The most that rendering them and cutting them into tokens takes at once.
  std::uint64_t work() const { return 12 * all + 4 * longest; }
};

/// What a JSON text holds, counted without making anything.
struct Extent {
  int deepest = 0;
  std::uint64_t containers = 0, members = 0, items = 0;  // at most so many of objects and of lists
  std::uint64_t texts = 0;
  TextBytes text_bytes;

  /// The most that parsing it and the copies on the way to a prompt (message, job, conversation: `kCopies`) take at
  /// once. Lists grow by doubling, so that one copy counts twice; sizes are those of nlohmann's ordered_json with
  /// glibc's malloc. While it is parsed there is one copy, and three of the longest text.
  std::uint64_t bytes() const {
    constexpr std::uint64_t kCopies = 5, kMember = 48, kItem = 16, kContainer = 48, kText = 64;
    const std::uint64_t slots = members * kMember + items * kItem;
    const std::uint64_t heads = containers * kContainer + texts * kText;
    return kCopies * (slots + heads + text_bytes.all) + slots;
  }
};

/// Brackets inside texts count for nothing.
Extent extent_of(std::string_view body) {
  Extent extent;
  std::array<bool, kMostNesting + 1> is_object{};
  int depth = 0;
  const auto one_more = [&] {
    const bool member = depth > 0 && depth <= kMostNesting && is_object[static_cast<std::size_t>(depth)];
    ++(member ? extent.members : extent.items);
  };
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '"') {
      const std::size_t begin = ++i;
      while (i < body.size() && body[i] != '"') i += body[i] == '\\' ? 2 : 1;
      const std::uint64_t length = std::min(i, body.size()) - begin;
      ++extent.texts;
      extent.text_bytes.add(length);
    } else if (c == '{' || c == '[') {
      extent.deepest = std::max(extent.deepest, ++depth);
      if (depth <= kMostNesting) is_object[static_cast<std::size_t>(depth)] = c == '{';
      ++extent.containers;
      one_more();
    } else if (c == '}' || c == ']') {
      depth = std::max(0, depth - 1);
    } else if (c == ',') {
      one_more();
    }
  }
  return extent;
}

}  // namespace

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

std::uint64_t work_on_texts_bytes(const Job& job) {
  TextBytes bytes;
  for (const std::string* text : {&job.prompt, &job.chat_template, &job.grammar}) bytes.add(*text);
  for (const Json* value : {&job.messages, &job.tools, &job.template_variables, &job.schema}) bytes.add(*value);
  for (const auto* texts : {&job.stop, &job.bad_words, &job.dry_breakers})
    for (const std::string& text : *texts) bytes.add(text);
  for (const auto& [name, tool] : job.client_tools)
    for (const std::string* text : {&name, &tool.syntax, &tool.grammar}) bytes.add(*text);
  if (job.fill) {
    for (const std::string* text : {&job.fill->suffix, &job.fill->begun}) bytes.add(*text);
    for (const Job::Fill::File& file : job.fill->files)
      for (const std::string* text : {&file.name, &file.text}) bytes.add(*text);
  }
  return bytes.work();
}

Expected<Json> parse_object(std::string_view body, WorkGrant* grant, WorkOnTexts work) {
  if (body.empty()) return error(Code::invalid_argument, "the request has no body; send a JSON object");
  const Extent extent = extent_of(body);
  if (extent.deepest > kMostNesting)
    return error(Code::invalid_argument, "the JSON is nested more than {} deep", kMostNesting);
  const std::uint64_t bytes =
      extent.bytes() + (work == WorkOnTexts::granted_with_the_body ? extent.text_bytes.work() : 0);
  if (grant != nullptr && !grant->take(bytes))
    return error(Code::out_of_budget, "the request takes more memory than requests may hold together; send less");
  std::size_t bad_at = 0;
  Json json = parse_json(body, &bad_at);
  if (json.is_discarded()) {
    const std::string_view before = body.substr(0, std::max<std::size_t>(bad_at, 1) - 1);
    const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
    return error(Code::invalid_argument, "the body is not valid JSON: line {}, column {}",
                 1 + std::count(before.begin(), before.end(), '\n'), before.size() - line_begin + 1);
  }
  if (!json.is_object()) return error(Code::invalid_argument, "the body must be a JSON object");
  return json;
}

}  // namespace millrace::generate
