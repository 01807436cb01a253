// The state that the routes share, and functions that all of them use.
// Thread-safety: the parts lock for themselves.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "app/generate/run.h"
#include "app/generate/take_apart.h"
#include "app/server/catalog.h"
#include "app/server/guard.h"
#include "app/server/http.h"
#include "app/server/live_history.h"
#include "app/server/metrics.h"
#include "app/server/options.h"
#include "app/server/request_log.h"
#include "app/server/response_store.h"
#include "base/mutex.h"
#include "engine/model_manager.h"

namespace millrace::server {

using generate::Json;
using generate::LargeJson;

/// A queue that admits a fixed number of users at once, in order of arrival. Thread-safe.
class Turns {
 public:
  Turns(std::size_t at_once, std::size_t most_waiting) : at_once_(at_once), most_(at_once + most_waiting) {}
  /// A place in the queue, until it is destroyed; null: too many wait already. The queue outlives it.
  std::shared_ptr<const std::uint64_t> enter();
  bool is_on(const std::uint64_t& place) const;
  std::size_t most_waiting() const { return most_ - at_once_; }

 private:
  const std::size_t at_once_, most_;
  mutable Mutex mutex_;
  std::deque<std::uint64_t> places_ MR_GUARDED_BY(mutex_);
  std::uint64_t next_ MR_GUARDED_BY(mutex_) = 1;
};

/// The model that was used last, for requests that name none once it is unloaded. Thread-safe.
class LastModel {
 public:
  std::string name() const {
    const MutexLock lock(mutex_);
    return name_;
  }
  void set(const std::string& name) {
    const MutexLock lock(mutex_);
    name_ = name;
  }

 private:
  mutable Mutex mutex_;
  std::string name_ MR_GUARDED_BY(mutex_);
};

struct Context {
  explicit Context(ServerOptions asked);

  const ServerOptions options;
  Guard guard;
  Catalog catalog;
  engine::ModelManager models;
  LiveHistory history{models};
  Metrics metrics;
  RequestLog log;
  ResponseStore responses;
  LastModel last_model;
  Turns downloads{4, 32};  // each has a few threads, connections and open files
  HttpServer http;
  std::atomic<bool> stopping{false};
  std::atomic<bool> preloading{false};  // the model named at the start is not loaded yet
  std::atomic<bool> draining{false};    // finishes its requests and accepts no more
};

using KeepAlive = std::optional<engine::ModelManager::Duration>;
using Wanted = engine::ModelManager::Wanted;

/// The store's entry of a loaded model, by `name` or, if that was removed, by another name of its file. Errors:
/// not_found (its file has no name any more), out_of_budget.
Expected<ModelInfo> info_of(Context& context, const engine::ModelManager::Loaded& loaded, const std::string& name);

/// Resolves a client's model: the one that it names; otherwise the first loaded one, the one used last, or the only
/// one. Loads nothing. Errors: not_found, invalid_argument (ambiguous).
/// "BASE:ADAPTER" is the model with one of its adapters (ModelInfo::adapter), unless a model has that name itself.
Expected<ModelInfo> model_meant(Context& context, const std::string& name);

/// Loads the model, and records it as the one used last. Errors: those of ModelManager::use.
Expected<engine::ModelManager::Use> use_found(Context& context, const ModelInfo& info, KeepAlive keep_alive,
                                              const Wanted& wanted);
/// Resolves the name and loads the model. Errors: not_found, and those of ModelManager::use.
Expected<engine::ModelManager::Use> use_model(Context& context, const std::string& name, KeepAlive keep_alive = {},
                                              const Wanted& wanted = {});

/// For endpoints that embed texts, which use the server's adapters. Errors: unsupported (the name has an adapter).
Status check_no_adapter(Context& context, const std::string& name);

/// Fetches a job's pictures that are given by URL, if their hosts are allowed (Access::picture_hosts) and the model
/// reads pictures. A picture that cannot be fetched gets the reason as its problem.
void fetch_pictures(Context& context, const engine::Engine& engine, generate::Job& job);

/// Starts a job on its model for the client of this connection, after fetching its pictures. Writes the resolved model
/// into a job that names none.
Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   const httplib::Request& request, KeepAlive keep_alive = {});
Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   engine::ModelManager::Use model, const httplib::Request& request);

/// A request for one answer, and the run that works on it.
struct Begun {
  generate::Job job;
  std::shared_ptr<generate::Run> run;
};
/// Reads, parses and starts. Errors: those of read_body, `parse` and start_run.
Expected<Begun> begin_run(Context& context, const httplib::Request& request,
                          const std::function<Expected<generate::Job>(const Json& body)>& parse);

/// Parses the request's JSON, charged to the memory for requests. Errors: those of generate::parse_object.
Expected<LargeJson> read_body(const httplib::Request& request);
/// That of a request for a prompt: generate::make_prompt() has the work on its texts granted.
Expected<LargeJson> read_prompt_body(const httplib::Request& request);
/// All of the answers, granted likewise. Errors: those of generate::collect.
Expected<std::vector<generate::Answer>> collect(generate::Run& run, int choices);

/// What a request needs of its model: a vision tower for pictures, and the context of its num_ctx or of the model's
/// recipe, rounded up to a power of two from 1024 on, at most what the model was trained for; 0: none is set.
Wanted wanted_by(const ModelInfo& info, const generate::Job& job);
/// Likewise, of who counts a prompt's tokens: the context may be any.
inline Wanted sight_wanted(const generate::Job& job) { return {0, !job.pictures.empty()}; }
/// The client that a request counts for when clients take turns.
std::string client_of(const httplib::Request& request);  // the key it has, or else its address

/// Polled by code that waits on behalf of this connection.
bool client_gone();

void reply(httplib::Response& response, const Json& body, int status = 200);
std::string dump(const Json& body);  // what is not UTF-8 is replaced

/// A comment that keeps a stream of events open.
constexpr const char* kStreamComment = ": still working\n\n";
std::string sse(const Json& data);  // an event without a name

/// How to write a stream of events. Each function returns the bytes to send, or nothing.
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
void add_ollama_blob_routes(Context& context);   // uploads
void add_web_routes(Context& context);           // the page
void add_page_api_routes(Context& context);      // what it asks beside the APIs
void add_openai_routes(Context& context);        // models, chat, completions
void add_embedding_routes(Context& context);     // OpenAI's and Ollama's
void add_rerank_routes(Context& context);        // documents by a query
void add_responses_routes(Context& context);     // OpenAI's responses
void add_anthropic_routes(Context& context);     // messages
void add_native_routes(Context& context);        // health, metrics, props, slots, tokenize, ...

}  // namespace millrace::server
