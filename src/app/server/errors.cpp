#include "app/server/errors.h"

#include <algorithm>
#include <filesystem>

#include "app/openai/response.h"
#include "app/server/context.h"

namespace millrace::server {

Api api_of(std::string_view path) {
  if (path.starts_with("/api/")) return Api::ollama;
  return path.starts_with("/v1/messages") ? Api::anthropic : Api::openai;
}

std::string without_folders(std::string_view message) {
  constexpr std::string_view kEnds = " \t\n'\",;:()<>[]{}";
  std::string out;
  for (std::size_t i = 0; i < message.size();) {
    const bool begins = message[i] == '/' && (i == 0 || kEnds.find(message[i - 1]) != std::string_view::npos) &&
                        !message.substr(i == 0 ? 0 : i - 1).starts_with("://");  // a URL's host is no folder
    const std::size_t end = begins ? std::min(message.find_first_of(kEnds, i), message.size()) : i + 1;
    std::string_view word = message.substr(i, end - i);
    // "/v1/models" is no path of this machine: those begin with a folder that the root has.
    const std::size_t second = begins ? word.find('/', 1) : std::string_view::npos;
    std::error_code ignored;
    if (second != std::string_view::npos && std::filesystem::exists(std::string(word.substr(0, second)), ignored))
      word.remove_prefix(word.rfind('/') + 1);
    out += word;
    i = end;
  }
  return out;
}

namespace {

/// Anthropic's SDKs begin a tool runner's conversation with a thread, and go on without one where the error has this
/// code.
bool is_about_threads(const Status& status) { return status.message().starts_with("thread:"); }

}  // namespace

Status without_folders(const Status& status) {
  return status.ok() ? status : Status(status.code(), without_folders(status.message()));
}

void fail(Api api, httplib::Response& response, int http_status, const Status& full) {
  Json body;
  Connection::current().record().problem = full.message();
  const Status status = without_folders(full);
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
      if (is_about_threads(status))
        body["error"]["details"] = {{"error_code", "thread_unsupported_request"}, {"unsupported", {"thread"}}};
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
