// Ollama's endpoints that change the store: pull, delete, copy, create.
#include <algorithm>
#include <deque>
#include <thread>

#include "app/generate/fields.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"
#include "app/store/pull.h"
#include "base/mutex.h"

namespace millrace::server {
namespace {

using generate::Fields;
using httplib::Request;
using httplib::Response;

/// Work that says how it goes: on a thread of its own, told line by line; ended when the client leaves.
class Telling {
 public:
  using Say = std::function<void(Json line)>;
  using Work = std::function<Status(const Say& say, const std::atomic<bool>& cancel)>;

  explicit Telling(Work work) {
    thread_ = std::thread([this, work = std::move(work)] {
      const Status status = work([this](Json line) { push(std::move(line)); }, cancel_);
      const MutexLock lock(mutex_);
      status_ = status;
      ended_ = true;
      came_.notify_all();
    });
  }
  ~Telling() {
    cancel_ = true;
    thread_.join();
  }

  /// Lines since the last call; waits a little for some.
  std::string take(bool& ended) {
    const MutexLock lock(mutex_);
    came_.wait_for(mutex_, std::chrono::milliseconds(100),
                   [this]() MR_REQUIRES(mutex_) { return ended_ || !lines_.empty(); });
    std::string out;
    for (const Json& line : lines_) out += dump(line) + "\n";
    lines_.clear();
    ended = ended_;
    if (ended_ && !status_.ok()) out += dump({{"error", status_.message()}}) + "\n";
    return out;
  }
  /// Waits for the end. `gone` true gives up.
  Status wait(const std::function<bool()>& gone) {
    const MutexLock lock(mutex_);
    while (!came_.wait_for(mutex_, std::chrono::milliseconds(100), [this]() MR_REQUIRES(mutex_) { return ended_; })) {
      lines_.clear();
      if (gone()) return error(Code::cancelled, "the client went away");
    }
    return status_;
  }

 private:
  void push(Json line) {
    const MutexLock lock(mutex_);
    // Progress comes faster than some clients read: of one file only the latest matters.
    if (!lines_.empty() && lines_.back()["status"] == line["status"]) lines_.pop_back();
    lines_.push_back(std::move(line));
    came_.notify_all();
  }

  Mutex mutex_;
  CondVar came_;
  std::deque<Json> lines_ MR_GUARDED_BY(mutex_);
  bool ended_ MR_GUARDED_BY(mutex_) = false;
  Status status_ MR_GUARDED_BY(mutex_);
  std::atomic<bool> cancel_{false};
  std::thread thread_;
};

void tell(Response& response, bool streamed, Telling::Work work) {
  const auto telling = std::make_shared<Telling>(std::move(work));
  if (!streamed) {
    const Status status = telling->wait(client_gone);
    return status.ok() ? reply(response, {{"status", "success"}}) : fail(Api::ollama, response, status);
  }
  response.set_chunked_content_provider("application/x-ndjson", [telling](std::size_t, httplib::DataSink& sink) {
    bool ended = false;
    std::string out;
    while (out.empty() && !ended) {
      out = telling->take(ended);
      if (out.empty() && client_gone()) return false;
    }
    if (!out.empty() && !sink.write(out.data(), out.size())) return false;
    if (ended) sink.done();
    return true;
  });
}

/// A body with a model's name and, maybe, stream. Nothing where it was refused.
std::optional<std::pair<Json, std::string>> named(const Request& request, Response& response) {
  auto body = read_body(request);
  if (!body.ok()) {
    fail(Api::ollama, response, body.status());
    return std::nullopt;
  }
  auto name = ollama_model(*body);
  if (!name.ok()) {
    fail(Api::ollama, response, name.status());
    return std::nullopt;
  }
  return std::pair(std::move(*body), std::move(*name));
}

bool streams(const Json& body) {
  const auto found = body.find("stream");
  return found == body.end() || !found->is_boolean() || found->get<bool>();
}

void pull(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  tell(response, streams(asked->first),
       [&context, name = asked->second](const Telling::Say& say, const std::atomic<bool>& cancel) {
         store::PullOptions options = store::pull_options_from_environment();
         options.download.http.cancel = &cancel;
         options.on_event = [&say](const store::PullEvent& event) {
           Json line = {{"status", event.status}};
           if (!event.digest.empty()) {
             line["digest"] = event.digest;
             line["total"] = event.total;
             line["completed"] = event.completed;
           }
           say(std::move(line));
         };
         options.fit = [&context](const std::string& path) {
           engine::EngineOptions engine = context.options.models.engine;
           engine.model_path = path;
           return store::describe_fit(engine);
         };
         return store::pull(context.catalog.store(), name, options).status();
       });
}

void remove(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  const auto info = context.catalog.find(asked->second);
  // What is stored and cannot be read can still be removed.
  if (!info.ok() && info.status().code() != Code::corrupt) return fail(Api::ollama, response, info.status());
  if (info.ok() && !info->stored)
    return fail(Api::ollama, response,
                error(Code::invalid_argument, "model '{}' is a file of yours, not the store's: remove it yourself",
                      asked->second));
  const std::string file = info.ok() ? engine::ModelManager::file_at(info->path) : std::string();
  const Status status = context.catalog.store().remove(asked->second);
  if (!status.ok()) return fail(Api::ollama, response, status);
  // What is loaded stays where the file has another name still.
  const auto rest = context.catalog.list();
  const bool named = std::any_of(rest.begin(), rest.end(), [&](const ModelInfo& other) {
    return engine::ModelManager::file_at(other.path) == file;
  });
  if (info.ok() && !named) context.models.unload(file);
  response.status = 200;
}

void copy(Context& context, const Request& request, Response& response) {
  const auto body = read_body(request);
  if (!body.ok()) return fail(Api::ollama, response, body.status());
  std::string source, destination;
  Fields fields(*body);
  fields.text("source", source);
  fields.text("destination", destination);
  if (source.empty() || destination.empty()) fields.fail("source", "both source and destination are needed");
  Status status = fields.status();
  if (status.ok()) {
    const auto info = context.catalog.find(source);
    if (!info.ok()) return fail(Api::ollama, response, info.status());
    store::Store& store = context.catalog.store();
    status =
        info->stored ? store.copy(source, destination) : store.create_from_file(destination, {}, info->path).status();
  }
  if (!status.ok()) return fail(Api::ollama, response, status);
  response.status = 200;
}

Expected<store::Recipe> recipe_of(const Json& body) {
  store::Recipe recipe;
  Fields fields(body);
  std::string modelfile;
  fields.text("modelfile", modelfile);
  fields.text("from", recipe.from);
  fields.text("system", recipe.system);
  fields.text("template", recipe.chat_template);
  if (fields.has("files") || fields.has("adapters") || fields.has("quantize"))
    fields.fail("files", "only 'from' with the name of a model is supported; 'millrace create' takes files");
  MR_RETURN_IF_ERROR(fields.status());
  if (!modelfile.empty()) {
    MR_ASSIGN_OR_RETURN(recipe, store::parse_recipe(modelfile));
  }
  if (const Json* license = fields.find("license"); license != nullptr && license->is_string())
    recipe.license = *license;
  if (const Json* parameters = fields.find("parameters"); parameters != nullptr) {
    MR_ASSIGN_OR_RETURN(recipe.parameters, store::check_parameters(nlohmann::json::parse(parameters->dump())));
  }
  if (const Json* messages = fields.find("messages"); messages != nullptr)
    recipe.messages = nlohmann::json::parse(messages->dump());
  MR_RETURN_IF_ERROR(store::check_messages(recipe.messages));
  MR_RETURN_IF_ERROR(store::check_template(recipe.chat_template));
  if (recipe.from.empty()) return error(Code::invalid_argument, "from: names the model to begin with");
  return recipe;
}

void create(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  const auto recipe = recipe_of(asked->first);
  if (!recipe.ok()) return fail(Api::ollama, response, recipe.status());
  // Names only: a client of the network does not get to open this machine's files.
  const auto base = context.catalog.find(recipe->from);
  if (!base.ok()) return fail(Api::ollama, response, base.status());
  tell(response, streams(asked->first),
       [&context, recipe = *recipe, base = *base, name = asked->second](const Telling::Say& say,
                                                                        const std::atomic<bool>&) {
         say({{"status", "writing manifest"}});
         store::Store& store = context.catalog.store();
         Status status = base.stored ? store.create_from_name(name, recipe, base.name).status()
                                     : store.create_from_file(name, recipe, base.path).status();
         if (status.ok()) say({{"status", "success"}});
         return status;
       });
}

}  // namespace

void add_ollama_store_routes(Context& context) {
  const auto on = [&context](auto handler) {
    return [&context, handler](const Request& request, Response& response) { handler(context, request, response); };
  };
  context.http.Post("/api/pull", on(pull));
  context.http.Delete("/api/delete", on(remove));
  context.http.Post("/api/copy", on(copy));
  context.http.Post("/api/create", on(create));
}

}  // namespace millrace::server
