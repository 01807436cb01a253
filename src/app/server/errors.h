// Error bodies in the form of each API.
#pragma once

#include <httplib.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::server {

enum class Api { ollama, openai, anthropic };

/// By the path's beginning.
Api api_of(std::string_view path);
void fail(Api api, httplib::Response& response, const Status& status);
/// The message for a client: absolute paths of this machine are reduced to file names.
std::string without_folders(std::string_view message);
Status without_folders(const Status& status);
/// The same with an HTTP status of its own.
void fail(Api api, httplib::Response& response, int http_status, const Status& status);

}  // namespace millrace::server
