#include "app/server/server.h"

#include <fmt/core.h>

#include <algorithm>
#include <exception>
#include <optional>

#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/framing.h"
#include "base/bytes.h"
#include "base/carry_on.h"
#include "base/log.h"
#include "base/spare_memory.h"

namespace millrace::server {
namespace {

using httplib::Request;
using httplib::Response;
using Handled = httplib::Server::HandlerResponse;

/// The paths that need no key.
bool is_open_path(const std::string& path) {
  return path == "/health" || path == "/v1/health" || path == "/" || path.starts_with("/page/");
}

/// Refuses without reading the body.
Handled refuse(const Request& request, Response& response, int http_status, const Status& status) {
  Connection::current().close_after_response();
  response.set_header("Connection", "close");
  fail(api_of(request.path), response, http_status, status);
  return Handled::Handled;
}

void add_cors(const Request& request, Response& response) {
  response.set_header("Access-Control-Allow-Origin", request.get_header_value("Origin"));
  response.set_header("Vary", "Origin");
  if (request.method != "OPTIONS") return;
  response.set_header("Access-Control-Allow-Methods", "GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS");
  // x-stainless-*: a wildcard does not cover Authorization, so the requested headers are listed.
  std::string headers =
      "Authorization, Content-Type, User-Agent, Accept, X-Requested-With, X-Api-Key, OpenAI-Beta, "
      "anthropic-version, anthropic-beta";
  if (request.has_header("Access-Control-Request-Headers"))
    headers = request.get_header_value("Access-Control-Request-Headers");
  response.set_header("Access-Control-Allow-Headers", headers);
  response.set_header("Access-Control-Max-Age", "43200");
}

Status shutting_down() { return error(Code::unavailable, "the server is shutting down"); }

Status no_such_path(const Request& request) {
  return error(Code::not_found, "{} {}: there is no such path", request.method, request.path);
}

/// The checks of every request before its body is read.
Handled before_routing(Context& context, const Request& request, Response& response) {
  Connection& connection = Connection::current();
  response.set_header("X-Request-Id", connection.record().id);
  if (api_of(request.path) == Api::anthropic || request.has_header("anthropic-version"))
    response.set_header("Request-Id", connection.record().id);
  auto framing = read_framing(request);
  if (!connection.head_status().ok()) framing = connection.head_status();
  connection.begin_body(framing.ok() && framing->content_length);
  if (!framing.ok())
    return refuse(request, response, framing.status().code() == Code::unsupported ? 411 : 400, framing.status());
  // An unread body would be parsed as the next request.
  const bool unread = !framing->expects_body && (framing->chunked || framing->content_length.value_or(0) > 0);
  if (unread) {
    connection.close_after_response();
    response.set_header("Connection", "close");
  }
  if (request.path.size() > HttpServer::kLongestPath)
    return refuse(request, response, 414,
                  error(Code::invalid_argument, "the path is longer than {} bytes", HttpServer::kLongestPath));
  if (!context.guard.host_allowed(request.get_header_value("Host")))
    return refuse(request, response, 403,
                  error(Code::invalid_argument, "this host name is not allowed; --allow-host NAME lets it through"));
  if (request.has_header("Origin")) {
    // The server's own page has the server's origin.
    const std::string origin = request.get_header_value("Origin"), host = request.get_header_value("Host");
    const bool own = origin == "http://" + host || origin == "https://" + host;
    if (!own && !context.guard.origin_allowed(origin))
      return refuse(request, response, 403,
                    error(Code::invalid_argument, "pages of {} may not call; --allow-origin lets them", origin));
    add_cors(request, response);
  }
  if (request.method == "OPTIONS") {
    response.status = 204;
    return Handled::Handled;
  }
  const int key =
      context.guard.key_of(request.get_header_value("Authorization"), request.get_header_value("X-Api-Key"));
  if (!is_open_path(request.path) && context.guard.asks_for_key() && key < 0)
    return refuse(request, response, 401, error(Code::invalid_argument, "the API key is missing or wrong"));
  // Any other value of these headers would give a client an additional turn for each value that it invents.
  connection.set_client(key >= 0 ? fmt::format("key {}", key) : request.remote_addr);
  if (context.stopping && !is_open_path(request.path)) return refuse(request, response, 503, shutting_down());
  if (!is_open_path(request.path) && request.path != "/metrics") connection.begin_work();
  const std::uint64_t most = std::min<std::uint64_t>(context.options.http.body_bytes, connection.memory().cap_bytes());
  if (framing->content_length.value_or(0) > most && !is_upload(request))
    return refuse(request, response, 413,
                  error(Code::invalid_argument,
                        "the body is larger than {}, all that requests may hold together (an eighth of --ram, 64 MB "
                        "at most)",
                        format_bytes(most)));
  if (request.is_multipart_form_data()) {
    if (context.http.methods_of(request.path).empty()) return refuse(request, response, 404, no_such_path(request));
    return refuse(request, response, 415, error(Code::unsupported, "bodies are JSON, not forms"));
  }
  if (request.has_header("Content-Encoding") && request.get_header_value("Content-Encoding") != "identity")
    return refuse(request, response, 415, error(Code::unsupported, "bodies must not be compressed"));
  return Handled::Unhandled;
}

/// Error responses outside of routes: a wrong path, a body that is too large, a request that is not HTTP.
Handled on_error(const Context& context, const Request& request, Response& response) {
  if (!response.body.empty() || response.has_header("Content-Type")) return Handled::Unhandled;
  const Api api = api_of(request.path);
  // The body may be unread; without this header the client would send its next request into a closed connection.
  Connection::current().close_after_response();
  response.set_header("Connection", "close");
  if (const Status refused = Connection::current().memory().refusal(); !refused.ok()) {
    fail(api, response, refused);
    return Handled::Handled;
  }
  if (context.stopping && !is_open_path(request.path)) {  // it went while the request came
    fail(api, response, 503, shutting_down());
    return Handled::Handled;
  }
  if (Connection::current().header_too_large()) {
    const HttpLimits& limits = context.options.http;
    fail(api, response, 431,
         error(Code::invalid_argument, "the header has more than {} lines or {} bytes", limits.header_lines,
               limits.header_bytes));
    return Handled::Handled;
  }
  const std::string methods = response.status == 404 ? context.http.methods_of(request.path) : std::string();
  if (!methods.empty()) {
    response.set_header("Allow", methods);
    fail(api, response, 405,
         error(Code::invalid_argument, "{} {}: this path takes {}", request.method, request.path, methods));
  } else if (response.status == 404)
    fail(api, response, 404, no_such_path(request));
  else if (response.status == 413)
    fail(api, response, 413, error(Code::invalid_argument, "the body is too large"));
  else
    fail(api, response, response.status > 0 ? response.status : 400,
         error(Code::invalid_argument, "the request is not valid"));
  return Handled::Handled;
}

void on_exception(const Request& request, Response& response, const std::exception_ptr& thrown) {
  std::string what = "unknown";
  try {
    std::rethrow_exception(thrown);
  } catch (const Json::exception& bad) {  // a field of an unexpected type
    return fail(api_of(request.path), response, 400,
                error(Code::invalid_argument, "the request's JSON is not as expected ({})", bad.what()));
  } catch (const std::bad_alloc&) {
    hold_back_memory();  // the request has let go of its own
    return fail(api_of(request.path), response, 503, error(Code::unavailable, "out of memory; try again later"));
  } catch (const std::exception& unexpected) {
    what = unexpected.what();
  }
  log::error("{} {}: {}", request.method, request.path, what);
  fail(api_of(request.path), response, 500, error(Code::internal, "{} (a bug in Millrace: please report it)", what));
}

void add_middleware(Context& context) {
  httplib::Server& http = context.http;
  http.set_pre_routing_handler(
      [&context](const Request& request, Response& response) { return before_routing(context, request, response); });
  http.set_error_handler(httplib::Server::HandlerWithResponse(
      [&context](const Request& request, Response& response) { return on_error(context, request, response); }));
  http.set_exception_handler(on_exception);
  http.set_logger([&context](const Request& request, const Response& response) {
    context.metrics.count_request(response.status);
    context.log.write(request, response, Connection::current().record());
  });
}

}  // namespace

Server::Server() = default;

Expected<std::unique_ptr<Server>> Server::start(ServerOptions options) {
  std::unique_ptr<Server> server(new Server());
  server->context_ = std::make_unique<Context>(std::move(options));
  Context& context = *server->context_;
  add_middleware(context);
  add_native_routes(context);
  add_web_routes(context);
  add_page_api_routes(context);
  add_openai_routes(context);
  add_embedding_routes(context);
  add_rerank_routes(context);
  add_ollama_routes(context);
  add_ollama_model_routes(context);
  add_ollama_store_routes(context);
  add_ollama_blob_routes(context);
  add_anthropic_routes(context);
  add_responses_routes(context);
  const ServerOptions& set = context.options;
  std::optional<ModelInfo> preload;
  if (!set.preload.empty()) {
    MR_ASSIGN_OR_RETURN(preload, context.catalog.find_given(set.preload));
  }
  context.preloading = preload.has_value();
  server->port_ = set.port;
  if (set.port == 0)
    server->port_ = context.http.bind_to_any_port(set.host);
  else if (!context.http.bind_to_port(set.host, set.port))
    server->port_ = -1;
  if (server->port_ <= 0)
    return error(Code::io_error, "{}:{}: cannot listen there; another server may run already, or choose another --port",
                 set.host, set.port);
  context.http.widen_backlog();
  server->listener_ = std::thread([&context] { context.http.listen_after_bind(); });
  std::promise<Status> loaded;
  server->preload_status_ = loaded.get_future().share();
  if (preload) context.last_model.set(preload->name);
  if (!preload)
    loaded.set_value({});
  else
    server->loader_ = std::thread([&context, preload = std::move(*preload), loaded = std::move(loaded)]() mutable {
      Status status(Code::unavailable, "out of memory");
      carry_on("loading",
               [&] { status = context.models.use(preload.source(), engine::ModelManager::kForever, {}).status(); });
      context.preloading = false;
      loaded.set_value(std::move(status));
    });
  return server;
}

Status Server::preloaded() const { return preload_status_.get(); }

void Server::drain() {
  using Clock = std::chrono::steady_clock;
  context_->draining = true;
  for (Clock::time_point last = Clock::now(); Clock::now() - last < context_->options.patience.drain_quiet;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    if (context_->http.at_work() > 0) last = Clock::now();
  }
}

void Server::stop() {
  if (context_ == nullptr) return;
  context_->stopping = true;
  context_->http.stop_serving();
  context_->history.end();
  context_->models.shutdown(context_->options.patience.grace);
  if (loader_.joinable()) loader_.join();
  // Streams have been ended; their threads are about to write the last bytes.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  context_->http.stop();
  if (listener_.joinable()) listener_.join();
  context_.reset();
}

Server::~Server() { stop(); }

}  // namespace millrace::server
