// What the routes share, and the few things that all of them do.
// Thread-safety: the parts lock for themselves.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "app/generate/run.h"
#include "app/server/catalog.h"
#include "app/server/guard.h"
#include "app/server/http.h"
#include "app/server/metrics.h"
#include "app/server/options.h"
#include "app/server/request_log.h"
#include "app/server/response_store.h"
#include "engine/model_manager.h"

namespace millrace::server {

using generate::Json;

struct Context {
  explicit Context(ServerOptions asked);

  const ServerOptions options;
  Guard guard;
  Catalog catalog;
  engine::ModelManager models;
  Metrics metrics;
  RequestLog log;
  ResponseStore responses;
  HttpServer http;
  std::atomic<bool> stopping{false};
  std::atomic<bool> draining{false};  // goes on to answer, but wants no more to do
};

using KeepAlive = std::optional<engine::ModelManager::Duration>;

/// What is known of a model that is loaded: by the name it was loaded by, or, where that has gone, another of its file.
/// Errors: not_found (its file has no name any more).
Expected<ModelInfo> info_of(Context& context, const engine::ModelManager::Loaded& loaded);

/// The model a client means: the one it names, or, where it names none, the first one loaded, or the only one there is.
/// Nothing is loaded. Errors: not_found, invalid_argument (which one?).
Expected<ModelInfo> model_meant(Context& context, const std::string& name);

/// Looks the name up and has the model loaded. Errors: not_found, and those of ModelManager::use.
Expected<engine::ModelManager::Use> use_model(Context& context, const std::string& name, KeepAlive keep_alive = {});

/// Starts a job on its model, for the client of this connection. A job without a model is told the one it gets.
Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   const httplib::Request& request, KeepAlive keep_alive = {});
Expected<std::unique_ptr<generate::Run>> start_run(const generate::Job& job, engine::ModelManager::Use model,
                                                   const httplib::Request& request);

/// What a request for one answer asks, and who works on it.
struct Begun {
  generate::Job job;
  std::shared_ptr<generate::Run> run;
};
/// Reads, parses and starts. Errors: those of read_body, `parse` and start_run.
Expected<Begun> begin_run(Context& context, const httplib::Request& request,
                          const std::function<Expected<generate::Job>(const Json& body)>& parse);

/// The request's JSON, granted by what requests may hold. Errors: those of generate::parse_object.
Expected<Json> read_body(const httplib::Request& request);
/// All of the answers, granted likewise. Errors: those of generate::collect.
Expected<std::vector<generate::Answer>> collect(generate::Run& run, int choices);

/// Tokens that a request's num_ctx, or its model's recipe, asks for: doubled from 1024 on, at most what the model was
/// trained for; 0: none.
std::int64_t context_wanted(const ModelInfo& info, const generate::Job& job);
/// Whom a request counts for, where clients take turns.
std::string client_of(const httplib::Request& request);

/// Asked by whoever waits on this connection's behalf.
bool client_gone();

void reply(httplib::Response& response, const Json& body, int status = 200);
std::string dump(const Json& body);  // what is not UTF-8 is replaced

/// Says nothing in a stream of events but that its end is still awaited.
constexpr const char* kStreamComment = ": still working\n\n";
std::string sse(const Json& data);  // an event without a name

/// How a stream of events is written. Each function returns the bytes to send, or nothing.
struct StreamForm {
  std::string content_type;
  std::string keep_line;  // sent after a long silence; empty: nothing is
  std::function<std::string()> begin;
  std::function<std::string(const generate::Event& event)> event;
  std::function<std::string()> end;  // after the last event
};
/// Answers with a stream; the run ends with the connection.
void stream(Context& context, httplib::Response& response, std::shared_ptr<generate::Run> run, StreamForm form);

// Routes, by API. Each adds its own to context.http.
void add_ollama_routes(Context& context);        // generate, chat
void add_ollama_model_routes(Context& context);  // version, tags, show, ps, pull, ...
void add_ollama_store_routes(Context& context);  // pull, delete, copy, create
void add_web_routes(Context& context);           // the page
void add_openai_routes(Context& context);        // models, chat, completions
void add_embedding_routes(Context& context);     // OpenAI's and Ollama's
void add_rerank_routes(Context& context);        // documents by a query
void add_responses_routes(Context& context);     // OpenAI's responses
void add_anthropic_routes(Context& context);     // messages
void add_native_routes(Context& context);        // health, metrics, props, slots, tokenize, ...

}  // namespace millrace::server
