#include "app/server/errors.h"

#include "app/openai/response.h"
#include "app/server/context.h"

namespace millrace::server {

Api api_of(std::string_view path) {
  if (path.starts_with("/api/")) return Api::ollama;
  return path.starts_with("/v1/messages") ? Api::anthropic : Api::openai;
}

void fail(Api api, httplib::Response& response, int http_status, const Status& status) {
  Json body;
  Connection::current().record().problem = status.message();
  switch (api) {
    case Api::ollama:
      body = {{"error", status.message()}};
      break;
    case Api::openai:
      body = openai::error_body(http_status, status);
      break;
    case Api::anthropic: {
      const char* type = http_status == 401   ? "authentication_error"
                         : http_status == 403 ? "permission_error"
                         : http_status == 404 ? "not_found_error"
                         : http_status == 413 ? "request_too_large"
                         : http_status == 503 ? "overloaded_error"
                         : http_status >= 500 ? "api_error"
                                              : "invalid_request_error";
      body = {{"type", "error"}, {"error", {{"type", type}, {"message", status.message()}}}};
      break;
    }
  }
  if (http_status == 503) response.set_header("Retry-After", "1");
  reply(response, body, http_status);
}

void fail(Api api, httplib::Response& response, const Status& status) {
  if (status.code() == Code::out_of_budget) {
    // The request's own memory, where that was refused; else a model's.
    const Status refused = Connection::current().memory().refusal();
    if (refused.code() == Code::out_of_budget) return fail(api, response, 413, refused);
    if (!refused.ok()) return fail(api, response, 503, refused);
  }
  fail(api, response, openai::http_status(status), status);
}

}  // namespace millrace::server
