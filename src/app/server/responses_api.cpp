// OpenAI's responses, and those that are kept.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "app/generate/prompt.h"
#include "app/openai/responses.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "modelfile/escape.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;

/// Whose key a response was asked for with: nobody else may read it or go on from it.
std::string owner_of(const Request& request) {
  return request.get_header_value("Authorization") + "\n" + request.get_header_value("X-Api-Key");
}

Status not_kept(const std::string& id) {
  return error(Code::not_found,
               "there is no response {}: it was made with store false, has made room for others, or is older than this "
               "server; send the whole conversation",
               modelfile::escape(id, 80));
}

/// ResponseLink::place: what a balancer says of it, in the form that its configuration has (packaging/haproxy.cfg).
std::string place_of(const Request& request) {
  constexpr std::size_t kDigits = 16;
  const std::string hash = request.get_header_value("X-Prefix-Hash");
  const bool digits = std::all_of(hash.begin(), hash.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
  return hash.size() == kDigits && digits ? hash : std::string();
}

/// What a response is kept with.
struct Turn {
  std::string owner;
  std::shared_ptr<const KeptResponse> previous;
  Json input;  // items; null: it is not kept
};

/// The items of all turns up to this one, the first one first.
Expected<Json> items_of(const std::shared_ptr<const KeptResponse>& last) {
  std::vector<const KeptResponse*> turns;
  for (const KeptResponse* turn = last.get(); turn != nullptr; turn = turn->previous.get()) turns.push_back(turn);
  Json items = Json::array();
  for (auto turn = turns.rbegin(); turn != turns.rend(); ++turn) {
    MR_ASSIGN_OR_RETURN(Json parsed, generate::parse_object((*turn)->turn, &Connection::current().memory(),
                                                            generate::WorkOnTexts::granted_with_the_prompt));
    for (const char* part : {"input", "output"})
      for (Json& item : parsed[part]) items.push_back(std::move(item));
  }
  return items;
}

/// Puts items of kept responses in the place of what only names them: {"type": "item_reference", "id"}.
Status resolve_references(Context& context, const std::string& owner, Json& body) {
  const auto input = body.find("input");
  if (input == body.end() || !input->is_array()) return {};
  std::map<std::string, Json> items;  // of all responses that were asked, by id; each is taken once
  for (Json& item : *input) {
    if (!item.is_object() || !item.contains("id") || !item["id"].is_string()) continue;
    const Json type = item.value("type", Json());
    if (type != "item_reference" && !(type.is_null() && !item.contains("role"))) continue;
    const std::string id = item["id"].get<std::string>();
    if (!items.contains(id)) {
      const auto kept = context.responses.find_item(id, owner);
      if (kept == nullptr)
        return error(Code::invalid_argument,
                     "input: there is no item {}: its response was made with store false, has made room for others, or "
                     "is older than this server; send the item itself",
                     modelfile::escape(id, 80));
      MR_ASSIGN_OR_RETURN(Json turn, generate::parse_object(kept->turn, &Connection::current().memory(),
                                                            generate::WorkOnTexts::granted_with_the_prompt));
      for (Json& one : turn["output"]) items.emplace(one["id"].get<std::string>(), std::move(one));
    }
    if (items[id].is_null())
      return error(Code::invalid_argument, "input: the item {} appears twice", modelfile::escape(id, 80));
    item = std::exchange(items[id], Json());
  }
  return {};
}

/// Keeps what is asked to be kept; says so in the response where there is no room for it.
void keep(Context& context, const Turn& turn, Json& response) {
  if (turn.input.is_null() || response.is_null()) return;
  const Json text = {{"input", turn.input}, {"output", response["output"]}};
  std::vector<std::string> items;
  for (const Json& item : response["output"]) items.push_back(item["id"].get<std::string>());
  if (!context.responses.keep(response["id"].get<std::string>(), turn.owner, turn.previous, dump(text), dump(response),
                              std::move(items)))
    response["store"] = false;
}

/// A request that is read: what to do, what the response says of it, and what it is kept with.
struct Asked {
  openai::ResponseLink link;
  Turn turn;
  openai::Job job;
};

Expected<Asked> read_request(Context& context, const Request& request) {
  Asked asked;
  MR_ASSIGN_OR_RETURN(LargeJson body, read_prompt_body(request));
  MR_ASSIGN_OR_RETURN(asked.link, openai::parse_link(body));
  asked.link.place = place_of(request);
  Turn& turn = asked.turn;
  turn.owner = owner_of(request);
  if (!asked.link.previous.empty()) {
    turn.previous = context.responses.find(asked.link.previous, turn.owner);
    if (turn.previous == nullptr) return not_kept(asked.link.previous);
  }
  MR_RETURN_IF_ERROR(resolve_references(context, turn.owner, body));
  MR_ASSIGN_OR_RETURN(const Json earlier, items_of(turn.previous));
  MR_ASSIGN_OR_RETURN(asked.job, openai::parse_response(body, earlier));
  if (asked.link.store) {
    MR_ASSIGN_OR_RETURN(turn.input, openai::input_items(body));
  }
  return asked;
}

void respond(Context& context, const Request& request, Response& response) {
  auto asked = read_request(context, request);
  if (!asked.ok()) return fail(Api::openai, response, asked.status());
  openai::Job& job = asked->job;
  auto started = start_run(context, job, request);
  if (!started.ok()) return fail(Api::openai, response, started.status());
  const std::shared_ptr<generate::Run> run = std::move(*started);
  if (!job.stream) {
    const auto answers = collect(*run, 1);
    if (!answers.ok()) return fail(Api::openai, response, answers.status());
    context.metrics.count_run(run->totals());
    const auto envelope = openai::make_envelope(openai::id_prefix(asked->link), job.model);
    Json whole = openai::response_body(envelope, job, asked->link, answers->front(), run->totals());
    keep(context, asked->turn, whole);
    return reply(response, whole);
  }
  const auto told = std::make_shared<openai::ResponseStream>(job, asked->link);
  StreamForm form{"text/event-stream", kStreamComment, {}, {}, {}};
  form.begin = [told] { return told->begin(); };
  form.event = [told](const generate::Event& event) { return told->event(event); };
  form.end = [told, &context, turn = std::move(asked->turn), weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    std::string last = told->end(ended == nullptr ? generate::Totals() : ended->totals());
    Json whole = told->response();
    keep(context, turn, whole);
    return last;
  };
  stream(context, response, run, std::move(form));
}

void count_input(Context& context, const Request& request, Response& response) {
  auto asked = read_request(context, request);
  if (!asked.ok()) return fail(Api::openai, response, asked.status());
  openai::Job& job = asked->job;
  job.any_length = true;
  job.truncate = false;
  const auto info = model_meant(context, job.model);
  if (!info.ok()) return fail(Api::openai, response, info.status());
  generate::lay_under(info->defaults(), job);
  const auto model = use_model(context, job.model, {}, sight_wanted(job));
  if (!model.ok()) return fail(Api::openai, response, model.status());
  fetch_pictures(context, (*model)->service->engine(), job);
  const auto prompt = generate::make_prompt((*model)->service->engine(), job, &Connection::current().memory());
  if (!prompt.ok()) return fail(Api::openai, response, prompt.status());
  reply(response, {{"object", "response.input_tokens"}, {"input_tokens", prompt->ids.size()}});
}

/// An item as the client gets it back: with an id, and a message's content as parts.
Json whole_item(Json item, const std::string& id) {
  if (!item.is_object()) return item;
  if (!item.contains("type")) item["type"] = "message";
  if (!item.contains("id") || !item["id"].is_string()) item["id"] = id;
  if (item["type"] == "message" && item.contains("content") && item["content"].is_string()) {
    const bool output = item.value("role", Json()) == "assistant";
    Json part = {{"type", output ? "output_text" : "input_text"}, {"text", item["content"]}};
    if (output) part.update({{"annotations", Json::array()}, {"logprobs", Json::array()}});
    item["content"] = Json::array({std::move(part)});
  }
  if (!item.contains("status")) item["status"] = "completed";
  return item;
}

/// What the user has said stays as it is; a summary stands for the rest.
void compact(Context& context, const Request& request, Response& response) {
  constexpr std::int64_t kMostSummary = 1024;  // tokens
  auto asked = read_request(context, request);
  if (!asked.ok()) return fail(Api::openai, response, asked.status());
  openai::Job& job = asked->job;
  Json output = Json::array();
  for (const Json& message : job.messages) {
    if (message["role"] != "user") continue;
    const std::string id = openai::random_id("msg_");
    output.push_back(whole_item({{"type", "message"}, {"role", "user"}, {"content", message["content"]}}, id));
  }
  job.messages.push_back(
      {{"role", "user"},
       {"content",
        "Summarise our conversation so far for an assistant that takes over: the tasks, what was done and found, names "
        "of files and values that are needed, and what is left to do. Write the summary only."}});
  job.tools = Json::array();
  job.tool_choice = generate::ToolChoice::automatic;
  job.truncate = true;
  job.stream = false;
  job.max_tokens = kMostSummary;
  auto started = start_run(context, job, request);
  if (!started.ok()) return fail(Api::openai, response, started.status());
  const std::shared_ptr<generate::Run> run = std::move(*started);
  const auto answers = collect(*run, 1);
  if (!answers.ok()) return fail(Api::openai, response, answers.status());
  context.metrics.count_run(run->totals());
  output.push_back({{"id", openai::random_id("cmp_")},
                    {"type", "compaction"},
                    {"encrypted_content", openai::seal_summary(answers->front().content)}});
  const auto envelope = openai::make_envelope("resp_", job.model);
  reply(response, {{"id", envelope.id},
                   {"object", "response.compaction"},
                   {"created_at", envelope.created},
                   {"output", std::move(output)},
                   {"usage", openai::response_usage(run->totals())}});
}

/// Null, and told to the client: it is not there.
std::shared_ptr<const KeptResponse> kept(Context& context, const Request& request, Response& response) {
  const std::string id = request.matches[1];
  auto found = context.responses.find(id, owner_of(request));
  if (found == nullptr) fail(Api::openai, response, not_kept(id));
  return found;
}

/// A whole number of the query; none where it is something else.
std::optional<int> number_of(const Request& request, const char* name, int otherwise) {
  if (!request.has_param(name)) return otherwise;
  const std::string text = request.get_param_value(name);
  int value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void retrieve(Context& context, const Request& request, Response& response) {
  const auto found = kept(context, request, response);
  if (found == nullptr) return;
  if (request.get_param_value("stream") != "true") return response.set_content(found->body, "application/json");
  const std::optional<int> after = number_of(request, "starting_after", -1);
  if (!after)
    return fail(Api::openai, response, error(Code::invalid_argument, "starting_after: must be a whole number"));
  // Its events have the texts three times.
  auto whole = generate::parse_object(found->body, &Connection::current().memory());
  if (whole.ok() && !Connection::current().memory().take(4 * found->body.size()))
    whole = error(Code::out_of_budget, "the response takes more memory than requests may hold together");
  if (!whole.ok()) return fail(Api::openai, response, whole.status());
  response.set_content(openai::replay(*whole, *after), "text/event-stream");
}

/// Input items, the last one first unless `order` says otherwise, as OpenAI has it.
void list_input(Context& context, const Request& request, Response& response) {
  constexpr int kMost = 100, kUsual = 20;
  const auto found = kept(context, request, response);
  if (found == nullptr) return;
  auto turn = generate::parse_object(found->turn, &Connection::current().memory());
  if (!turn.ok()) return fail(Api::openai, response, turn.status());
  const std::optional<int> limit = number_of(request, "limit", kUsual);
  const std::string order = request.get_param_value("order"), after = request.get_param_value("after");
  if (!limit || *limit < 1 || *limit > kMost)
    return fail(Api::openai, response, error(Code::invalid_argument, "limit: must be from 1 to {}", kMost));
  if (!order.empty() && order != "asc" && order != "desc")
    return fail(Api::openai, response, error(Code::invalid_argument, "order: must be asc or desc"));
  Json& items = (*turn)["input"];
  const std::string id = request.matches[1];
  for (std::size_t i = 0; i < items.size(); ++i)
    items[i] = whole_item(std::move(items[i]), fmt::format("item_{}_{}", id, i));
  if (order != "asc") std::reverse(items.begin(), items.end());
  auto first = items.begin();
  if (!after.empty()) {
    first =
        std::find_if(items.begin(), items.end(), [&](const Json& item) { return generate::word(item, "id") == after; });
    if (first != items.end()) ++first;
  }
  const auto last = first + std::min<std::ptrdiff_t>(*limit, items.end() - first);
  const bool more = last != items.end();
  const Json data(std::vector<Json>(first, last));
  const auto id_of = [](const Json& item) { return generate::word(item, "id"); };
  reply(response, {{"object", "list"},
                   {"data", data},
                   {"first_id", data.empty() ? "" : id_of(data.front())},
                   {"last_id", data.empty() ? "" : id_of(data.back())},
                   {"has_more", more}});
}

void remove(Context& context, const Request& request, Response& response) {
  const std::string id = request.matches[1];
  if (!context.responses.remove(id, owner_of(request))) return fail(Api::openai, response, not_kept(id));
  reply(response, {{"id", id}, {"object", "response"}, {"deleted", true}});
}

}  // namespace

void add_responses_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Post("/v1/responses", on(respond));
  context.http.Post("/v1/responses/input_tokens", on(count_input));
  context.http.Post("/v1/responses/compact", on(compact));
  context.http.Get(R"(/v1/responses/([^/]+))", on(retrieve));
  context.http.Get(R"(/v1/responses/([^/]+)/input_items)", on(list_input));
  context.http.Delete(R"(/v1/responses/([^/]+))", on(remove));
}

}  // namespace millrace::server
