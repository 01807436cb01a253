// What the routes share, and the few things that all of them do.
// Thread-safety: the parts lock for themselves.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "app/generate/run.h"
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

/// Whose turn it is: so many at once, in the order in which they came. Thread-safe.
class Turns {
 public:
  Turns(std::size_t at_once, std::size_t most_waiting) : at_once_(at_once), most_(at_once + most_waiting) {}
  /// A place in the row, until it is dropped; null: too many wait already. The row outlives it.
  std::shared_ptr<const std::uint64_t> enter();
  bool is_on(const std::uint64_t& place) const;
  std::size_t most_waiting() const { return most_ - at_once_; }

 private:
  const std::size_t at_once_, most_;
  mutable Mutex mutex_;
  std::deque<std::uint64_t> places_ MR_GUARDED_BY(mutex_);
  std::uint64_t next_ MR_GUARDED_BY(mutex_) = 0;
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
  std::atomic<bool> preloading{false};  // the model that was asked for at the start is not there yet
  std::atomic<bool> draining{false};    // goes on to answer, but wants no more to do
};

using KeepAlive = std::optional<engine::ModelManager::Duration>;
using Wanted = engine::ModelManager::Wanted;

/// What is known of a model that is loaded, but what a Modelfile gives: by `name`, or, where that is gone, another name
/// of its file. Errors: not_found (its file has no name any more), out_of_budget.
Expected<ModelInfo> info_of(Context& context, const engine::ModelManager::Loaded& loaded, const std::string& name);

/// The model a client means: the one it names, or, where it names none, the first one loaded, the one used last, or the
/// only one there is.
/// Nothing is loaded. Errors: not_found, invalid_argument (which one?).
Expected<ModelInfo> model_meant(Context& context, const std::string& name);

/// Has the model loaded, and remembers it as the one used last. Errors: those of ModelManager::use.
Expected<engine::ModelManager::Use> use_found(Context& context, const ModelInfo& info, KeepAlive keep_alive,
                                              const Wanted& wanted);
/// Looks the name up and has the model loaded. Errors: not_found, and those of ModelManager::use.
Expected<engine::ModelManager::Use> use_model(Context& context, const std::string& name, KeepAlive keep_alive = {},
                                              const Wanted& wanted = {});

/// Fetches the pictures that a job has by URL, where the hosts are allowed (Access::picture_hosts) and the model sees.
/// One that does not come has the reason as its problem.
void fetch_pictures(Context& context, const engine::Engine& engine, generate::Job& job);

/// Starts a job on its model, for the client of this connection. A job without a model is told the one it gets. Its
/// pictures are fetched.
Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   const httplib::Request& request, KeepAlive keep_alive = {});
Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   engine::ModelManager::Use model, const httplib::Request& request);

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
/// That of a request for a prompt: generate::make_prompt() has the work on its texts granted.
Expected<Json> read_prompt_body(const httplib::Request& request);
/// All of the answers, granted likewise. Errors: those of generate::collect.
Expected<std::vector<generate::Answer>> collect(generate::Run& run, int choices);

/// What a request wants of its model: sight for pictures, and as many tokens of context as its num_ctx or the model's
/// recipe asks for: doubled from 1024 on, at most what the model was trained for; 0: no number.
Wanted wanted_by(const ModelInfo& info, const generate::Job& job);
/// Likewise, of who counts a prompt's tokens: the context may be any.
inline Wanted sight_wanted(const generate::Job& job) { return {0, !job.pictures.empty()}; }
/// Whom a request counts for, where clients take turns.
std::string client_of(const httplib::Request& request);  // the key it has, or else its address

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
