#include "app/batch/request.h"

#include <fmt/format.h>

#include <utility>

#include "app/openai/embeddings.h"
#include "app/openai/request.h"
#include "app/openai/response.h"
#include "app/openai/responses.h"
#include "base/words.h"

namespace millrace::batch {

using generate::Answer;
using generate::Job;
using generate::Totals;
using generate::word;

namespace {

/// What is not UTF-8 is replaced.
std::string dump(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json shell(const std::string& custom_id) {
  return {{"id", openai::random_id("batch_req_")}, {"custom_id", custom_id.empty() ? Json() : Json(custom_id)}};
}

std::string response_line(const std::string& custom_id, int status, Json body) {
  Json line = shell(custom_id);
  line["response"] = {{"status_code", status}, {"request_id", openai::random_id("req_")}, {"body", std::move(body)}};
  line["error"] = nullptr;
  return dump(line);
}

Status find_endpoint(const std::string& url, Endpoint& endpoint) {
  if (url == "/v1/chat/completions")
    endpoint = Endpoint::chat;
  else if (url == "/v1/completions")
    endpoint = Endpoint::completions;
  else if (url == "/v1/responses")
    endpoint = Endpoint::responses;
  else if (url == "/v1/embeddings")
    endpoint = Endpoint::embeddings;
  else
    return error(Code::invalid_argument,
                 "url: '{}' is not one of /v1/chat/completions, /v1/completions, /v1/responses and /v1/embeddings",
                 url);
  return {};
}

Status parse_body(const Json& body, Request& request) {
  if (request.endpoint == Endpoint::completions) {
    MR_ASSIGN_OR_RETURN(request.jobs, openai::parse_completion(body));
    return {};
  }
  if (request.endpoint == Endpoint::embeddings) {
    MR_ASSIGN_OR_RETURN(request.embeddings, openai::parse_embeddings(body));
    return {};
  }
  if (request.endpoint == Endpoint::responses) {
    MR_ASSIGN_OR_RETURN(const openai::ResponseLink link, openai::parse_link(body));
    if (!link.previous.empty())
      return error(Code::unsupported, "previous_response_id: a batch keeps no responses; send the whole conversation");
  }
  MR_ASSIGN_OR_RETURN(Job job,
                      request.endpoint == Endpoint::chat ? openai::parse_chat(body) : openai::parse_response(body));
  request.jobs.push_back(std::move(job));
  return {};
}

Json one_question(Json content) {
  Json message = {{"role", "user"}};
  message["content"] = std::move(content);
  Json messages = Json::array();
  messages.push_back(std::move(message));
  return messages;
}

/// The line as a full request: the short forms are written out.
Expected<Json> full_request(std::string_view line, std::int64_t number) {
  const std::string id = fmt::format("line-{}", number);
  Json body = Json::object();
  Json given_id;
  const std::string_view text = trim(line);
  if (!text.starts_with('{') && !text.starts_with('[')) {
    body["messages"] = one_question(std::string(text));
  } else {
    MR_ASSIGN_OR_RETURN(Json object, generate::parse_object(line));
    const bool full = object.contains("method") || object.contains("url") || object.contains("body");
    if (full || !(object.contains("prompt") || object.contains("messages"))) return object;
    body = std::move(object);
    if (body.contains("custom_id")) given_id = std::exchange(body["custom_id"], Json());
    body.erase("custom_id");
    if (body.contains("prompt") && !body.contains("messages")) {
      body["messages"] = one_question(body["prompt"]);
      body.erase("prompt");
    }
  }
  return Json{{"custom_id", given_id.is_null() ? Json(id) : given_id},
              {"method", "POST"},
              {"url", "/v1/chat/completions"},
              {"body", std::move(body)}};
}

}  // namespace

std::string custom_id_of(std::string_view line, std::int64_t number) {
  const auto object = full_request(line, number);
  return object.ok() ? word(*object, "custom_id") : std::string();
}

bool parse_request(std::string_view line, std::int64_t number, Request& request, Refusal& refusal) {
  request = {};
  refusal = {};
  const auto refuse = [&](const char* code, Status status) {
    refusal.code = code;
    refusal.status = std::move(status);
    return false;
  };
  auto object = full_request(line, number);
  if (!object.ok()) return refuse("invalid_json_line", object.status());
  request.custom_id = refusal.custom_id = word(*object, "custom_id");
  if (request.custom_id.empty())
    return refuse("missing_custom_id", error(Code::invalid_argument, "custom_id: is missing or no text"));
  if (word(*object, "method") != "POST")
    return refuse(
        "invalid_method",
        error(Code::invalid_argument, "method: must be POST; a line may also be {{\"prompt\": ...}} or plain text"));
  if (Status status = find_endpoint(word(*object, "url"), request.endpoint); !status.ok())
    return refuse("invalid_url", std::move(status));
  const auto body = object->find("body");
  if (body == object->end() || !body->is_object())
    return refuse("invalid_body", error(Code::invalid_argument, "body: is missing or no object"));
  request.model = word(*body, "model");
  if (request.model.empty()) (*body)["model"] = "any";
  if (Status status = parse_body(*body, request); !status.ok()) return refuse("", std::move(status));
  return true;
}

std::string answer_line(const Request& request, const std::vector<Answer>& answers, const Totals& totals,
                        const std::string& model) {
  const Job& first = request.jobs.front();
  const auto body = [&]() -> Json {
    if (request.endpoint == Endpoint::chat)
      return openai::chat_body(openai::make_envelope("chatcmpl-", model), first, answers, totals);
    if (request.endpoint == Endpoint::responses)
      return openai::response_body(openai::make_envelope("resp_", model), first, {"", false}, answers.front(), totals);
    Json choices = Json::array();
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const Job& job = request.jobs[i / static_cast<std::size_t>(first.n)];
      choices.push_back(openai::completion_choice(job, answers[i], static_cast<int>(i)));
    }
    return openai::completion_body(openai::make_envelope("cmpl-", model), std::move(choices), totals);
  };
  return response_line(request.custom_id, 200, body());
}

std::string embeddings_line(const Request& request, const std::vector<std::vector<float>>& vectors,
                            std::int64_t prompt_tokens, const std::string& model) {
  // Millions of numbers are put in as text: the line is made around a body that is not there yet.
  std::string line = response_line(request.custom_id, 200, nullptr);
  const std::string absent = R"("body":null)";
  const std::string body = openai::embeddings_body(model, vectors, request.embeddings.base64, prompt_tokens);
  return line.replace(line.rfind(absent), absent.size(), R"("body":)" + body);
}

std::string failure_line(const std::string& custom_id, const Status& status) {
  const int http = openai::http_status(status);
  return response_line(custom_id, http, openai::error_body(http, status));
}

std::string refusal_line(const std::string& custom_id, std::string_view code, const Status& status,
                         std::int64_t line_number) {
  Json line = shell(custom_id);
  line["response"] = nullptr;
  line["error"] = {{"code", code}, {"message", status.message()}, {"line", line_number}};
  return dump(line);
}

Expected<Answered> parse_answered(std::string_view line) {
  const auto refused = error(Code::corrupt, "is not a line of a batch's output; give another file to write to");
  const auto object = generate::parse_object(line);
  if (!object.ok() || !object->contains("response") || !object->contains("error")) return refused;
  Answered answered{word(*object, "custom_id"), 0};
  if (!answered.custom_id.empty()) return answered;
  const Json& problem = (*object)["error"];
  if (!problem.is_object() || !problem.contains("line") || !problem["line"].is_number_integer()) return refused;
  answered.line_number = problem["line"].get<std::int64_t>();
  return answered;
}

}  // namespace millrace::batch
