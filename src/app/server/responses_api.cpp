// OpenAI's responses, and those that are kept.
#include <algorithm>
#include <cctype>
#include <map>
#include <utility>
#include <vector>

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
    MR_ASSIGN_OR_RETURN(Json parsed, generate::parse_object((*turn)->turn, &Connection::current().memory()));
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
      MR_ASSIGN_OR_RETURN(Json turn, generate::parse_object(kept->turn, &Connection::current().memory()));
      for (Json& one : turn["output"]) items.emplace(one["id"].get<std::string>(), std::move(one));
    }
    if (items[id].is_null())
      return error(Code::invalid_argument, "input: the item {} stands there twice", modelfile::escape(id, 80));
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

void respond(Context& context, const Request& request, Response& response) {
  auto body = read_body(request);
  if (!body.ok()) return fail(Api::openai, response, body.status());
  auto link = openai::parse_link(*body);
  if (!link.ok()) return fail(Api::openai, response, link.status());
  link->place = place_of(request);
  Turn turn{owner_of(request), nullptr, Json()};
  if (!link->previous.empty()) {
    turn.previous = context.responses.find(link->previous, turn.owner);
    if (turn.previous == nullptr) return fail(Api::openai, response, not_kept(link->previous));
  }
  if (const Status status = resolve_references(context, turn.owner, *body); !status.ok())
    return fail(Api::openai, response, status);
  const auto earlier = items_of(turn.previous);
  if (!earlier.ok()) return fail(Api::openai, response, earlier.status());
  auto job = openai::parse_response(*body, *earlier);
  if (!job.ok()) return fail(Api::openai, response, job.status());
  if (link->store) turn.input = *openai::input_items(*body);
  auto started = start_run(context, *job, request);
  if (!started.ok()) return fail(Api::openai, response, started.status());
  const std::shared_ptr<generate::Run> run = std::move(*started);
  if (!job->stream) {
    const auto answers = collect(*run, 1);
    if (!answers.ok()) return fail(Api::openai, response, answers.status());
    context.metrics.count_run(run->totals());
    const auto envelope = openai::make_envelope(openai::id_prefix(*link), job->model);
    Json whole = openai::response_body(envelope, *job, *link, answers->front(), run->totals());
    keep(context, turn, whole);
    return reply(response, whole);
  }
  const auto told = std::make_shared<openai::ResponseStream>(*job, *link);
  StreamForm form{"text/event-stream", kStreamComment, {}, {}, {}};
  form.begin = [told] { return told->begin(); };
  form.event = [told](const generate::Event& event) { return told->event(event); };
  form.end = [told, &context, turn = std::move(turn), weak = std::weak_ptr(run)] {
    const auto ended = weak.lock();
    std::string last = told->end(ended == nullptr ? generate::Totals() : ended->totals());
    Json whole = told->response();
    keep(context, turn, whole);
    return last;
  };
  stream(context, response, run, std::move(form));
}

/// Null, and told to the client: it is not there.
std::shared_ptr<const KeptResponse> kept(Context& context, const Request& request, Response& response) {
  const std::string id = request.matches[1];
  auto found = context.responses.find(id, owner_of(request));
  if (found == nullptr) fail(Api::openai, response, not_kept(id));
  return found;
}

void retrieve(Context& context, const Request& request, Response& response) {
  if (const auto found = kept(context, request, response)) response.set_content(found->body, "application/json");
}

void list_input(Context& context, const Request& request, Response& response) {
  const auto found = kept(context, request, response);
  if (found == nullptr) return;
  auto turn = generate::parse_object(found->turn, &Connection::current().memory());
  if (!turn.ok()) return fail(Api::openai, response, turn.status());
  reply(response, {{"object", "list"},
                   {"data", std::move((*turn)["input"])},
                   {"first_id", nullptr},
                   {"last_id", nullptr},
                   {"has_more", false}});
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
  context.http.Get(R"(/v1/responses/([^/]+))", on(retrieve));
  context.http.Get(R"(/v1/responses/([^/]+)/input_items)", on(list_input));
  context.http.Delete(R"(/v1/responses/([^/]+))", on(remove));
}

}  // namespace millrace::server
