// Ollama's endpoints that change the store: pull, delete, copy, create.
#include <algorithm>
#include <deque>
#include <new>
#include <thread>

#include "app/generate/fields.h"
#include "app/server/context.h"
#include "app/server/errors.h"
#include "app/server/ollama_request.h"
#include "app/store/digest.h"
#include "app/store/pull.h"
#include "base/carry_on.h"
#include "base/mutex.h"
#include "modelfile/escape.h"

namespace millrace::server {
namespace {

using generate::Fields;
using httplib::Request;
using httplib::Response;

/// Work that says how it goes: on a thread of its own, told line by line; ended when the client leaves.
class Telling {
 public:
  using Say = std::function<void(Json line)>;
  /// `memory`: of the work alone, given back when it ends.
  using Work = std::function<Status(const Say& say, const std::atomic<bool>& cancel, RequestMemory& memory)>;
  using Turn = std::shared_ptr<const std::uint64_t>;

  /// `turn`: of those who take turns; null: it begins at once.
  Telling(Context& context, Work work, Turn turn) : context_(context), work_(std::move(work)), turn_(std::move(turn)) {
    if (turn_ != nullptr && !context_.downloads.is_on(*turn_)) push({{"status", "waiting for other downloads to end"}});
  }
  ~Telling() {
    cancel_ = true;
    if (thread_.joinable()) thread_.join();
  }

  /// Lines since the last call; waits a little for some.
  std::string take(bool& ended) {
    begin();
    const MutexLock lock(mutex_);
    came_.wait_for(mutex_, std::chrono::milliseconds(100),
                   [this]() MR_REQUIRES(mutex_) { return ended_ || !lines_.empty(); });
    std::string out;
    for (const Json& line : lines_) out += dump(line) + "\n";
    lines_.clear();
    ended = ended_;
    if (ended_ && !status_.ok()) out += dump({{"error", without_folders(status_.message())}}) + "\n";
    return out;
  }
  /// Waits for the end. `gone` true gives up.
  Status wait(const std::function<bool()>& gone) {
    for (;;) {
      begin();
      const MutexLock lock(mutex_);
      if (came_.wait_for(mutex_, std::chrono::milliseconds(100), [this]() MR_REQUIRES(mutex_) { return ended_; }))
        return status_;
      lines_.clear();
      if (gone()) return error(Code::cancelled, "the client went away");
    }
  }

  bool too_large() const {
    const MutexLock lock(mutex_);
    return too_large_;
  }

 private:
  /// Starts the work when its turn has come: who waits has no thread.
  void begin() {
    if (thread_.joinable() || (turn_ != nullptr && !context_.downloads.is_on(*turn_))) return;
    thread_ = std::thread([this] {
      RequestMemory memory(context_.models.requests(), [this] { return cancel_.load(); });
      Status status;
      try {
        status = work_([this](Json line) { push(std::move(line)); }, cancel_, memory);
      } catch (const std::bad_alloc&) {
        status = Status(Code::unavailable, "out of memory");  // short: it takes none
      }
      // What the request itself may hold says more than who was refused.
      const bool refused = status.code() == Code::out_of_budget && !memory.refusal().ok();
      if (refused) carry_on("a download", [&] { status = memory.refusal(); });
      const MutexLock lock(mutex_);
      too_large_ = refused && status.code() == Code::out_of_budget;
      status_ = std::move(status);
      ended_ = true;
      came_.notify_all();
    });
  }

  void push(Json line) {
    const MutexLock lock(mutex_);
    // Progress comes faster than some clients read: of one file only the latest matters.
    if (!lines_.empty() && lines_.back()["status"] == line["status"]) lines_.pop_back();
    lines_.push_back(std::move(line));
    came_.notify_all();
  }

  Context& context_;
  const Work work_;
  const Turn turn_;
  mutable Mutex mutex_;
  CondVar came_;
  std::deque<Json> lines_ MR_GUARDED_BY(mutex_);
  bool ended_ MR_GUARDED_BY(mutex_) = false;
  bool too_large_ MR_GUARDED_BY(mutex_) = false;  // for what requests may hold, even alone
  Status status_ MR_GUARDED_BY(mutex_);
  std::atomic<bool> cancel_{false};
  std::thread thread_;
};

void tell(Context& context, Response& response, bool streamed, Telling::Work work, Telling::Turn turn = nullptr) {
  const auto telling = std::make_shared<Telling>(context, std::move(work), std::move(turn));
  if (!streamed) {
    const Status status = telling->wait(client_gone);
    if (telling->too_large()) return fail(Api::ollama, response, 413, status);
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
  return std::pair(Json(std::move(static_cast<Json&>(*body))), std::move(*name));
}

bool streams(const Json& body) {
  const auto found = body.find("stream");
  return found == body.end() || !found->is_boolean() || found->get<bool>();
}

/// As many connections as memory allows, at least one. Errors: out_of_budget.
Status take_connections(store::DownloadOptions& download, RequestMemory& memory) {
  constexpr long kBuffer = 64L << 10;
  constexpr std::uint64_t kBytesAConnection = 192 << 10;  // its buffer, what TLS keeps, and the used part of a stack
  download.http.buffer_bytes = kBuffer;
  download.http.memory = &memory;
  download.connections = 0;
  while (download.connections < 4 && memory.take_now(kBytesAConnection)) ++download.connections;
  if (download.connections > 0) return {};
  if (!memory.take(kBytesAConnection)) return error(Code::out_of_budget, "there is no memory for a download now");
  download.connections = 1;
  return {};
}

Status pull_model(Context& context, const std::string& name, const Telling::Say& say, const std::atomic<bool>& cancel,
                  RequestMemory& memory) {
  store::PullOptions options = store::pull_options_from_environment();
  options.download.http.cancel = &cancel;
  MR_RETURN_IF_ERROR(take_connections(options.download, memory));
  options.on_event = [&say](const store::PullEvent& event) {
    Json line = {{"status", event.status}};
    if (!event.digest.empty()) {
      line["digest"] = event.digest;
      line["total"] = event.total;
      line["completed"] = event.completed;
    }
    say(std::move(line));
  };
  options.fit = [&](const std::string& path) -> Expected<std::string> {
    engine::EngineOptions engine = context.options.models.engine;
    engine.model.path = path;
    engine.model.most_header_bytes = memory.cap_bytes() / 2;
    if (!memory.take(engine.model.most_header_bytes))
      return error(Code::unavailable, "there is no memory to look at the model's header now; try again later");
    auto fits = store::describe_fit(engine);
    memory.give_back(engine.model.most_header_bytes);
    return fits;
  };
  return store::pull(context.catalog.store(), name, options).status();
}

void pull(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  auto turn = context.downloads.enter();
  if (turn == nullptr)
    return fail(
        Api::ollama, response,
        error(Code::unavailable, "{} downloads wait already; try again later", context.downloads.most_waiting()));
  const auto work = [&context, name = asked->second](const Telling::Say& say, const std::atomic<bool>& cancel,
                                                     RequestMemory& memory) {
    return pull_model(context, name, say, cancel, memory);
  };
  tell(context, response, streams(asked->first), work, std::move(turn));
}

void remove(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  const auto info = context.catalog.find_outline(asked->second);
  // What is stored and cannot be read can still be removed.
  if (!info.ok() && info.status().code() != Code::corrupt) return fail(Api::ollama, response, info.status());
  if (info.ok() && !info->stored)
    return fail(Api::ollama, response,
                error(Code::invalid_argument, "model '{}' is a file of yours, not the store's: remove it yourself",
                      asked->second));
  const std::string key = info.ok() ? info->source().key() : std::string();
  const Status status = context.catalog.store().remove(asked->second);
  if (!status.ok()) return fail(Api::ollama, response, status);
  // What is loaded stays where the file has another name still.
  const auto rest = context.catalog.list(&Connection::current().memory());
  const bool named = rest.ok() && std::any_of(rest->begin(), rest->end(),
                                              [&](const ModelInfo& other) { return other.source().key() == key; });
  if (info.ok() && !named) context.models.unload_key(key);
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
    const auto info = context.catalog.find_outline(source);
    if (!info.ok()) return fail(Api::ollama, response, info.status());
    store::Store& store = context.catalog.store();
    status =
        info->stored ? store.copy(source, destination) : store.create_from_file(destination, {}, info->path).status();
  }
  if (!status.ok()) return fail(Api::ollama, response, status);
  response.status = 200;
}

/// The uploaded files that a field maps to their digests; none where it is not there. `wants`: what the field is, for
/// an error, with room for the name. Errors: invalid_argument.
Expected<std::vector<store::ModelFile>> uploaded(const Json& body, const char* field, std::string_view wants) {
  std::vector<store::ModelFile> files;
  const auto found = body.find(field);
  if (found == body.end() || found->is_null()) return files;
  if (!found->is_object() || found->empty() || found->size() > 2)
    return error(Code::invalid_argument, "{}: {}", field, wants);
  for (const auto& [name, digest] : found->items()) {
    store::ModelFile file;
    file.name = name;
    file.sha256 = digest.is_string() ? digest.get<std::string>() : std::string();
    if (file.sha256.starts_with("sha256:")) file.sha256.erase(0, 7);
    if (!store::is_safe_file_name(file.name) || !store::is_sha256(file.sha256))
      return error(Code::invalid_argument, "{}: wants a file's name and a digest, sha256: and 64 hexadecimal digits",
                   field);
    files.push_back(std::move(file));
  }
  return files;
}

/// The files that a model is to be made of.
Expected<std::vector<store::ModelFile>> uploaded_model(const Json& body) {
  MR_ASSIGN_OR_RETURN(
      std::vector<store::ModelFile> files,
      uploaded(
          body, "files",
          "maps the name of one GGUF file to its digest, and maybe that of its mmproj file; 'millrace merge' makes "
          "one of several parts, and 'millrace convert' one of safetensors"));
  for (store::ModelFile& file : files) {
    if (!file.name.ends_with(".gguf")) file.name += ".gguf";
    if (!store::is_safe_file_name(file.name))
      return error(Code::invalid_argument, "files: '{}' is no name of a file", modelfile::escape(file.name, 100));
  }
  return files;
}

/// Those of an adapter of it.
Expected<std::vector<store::ModelFile>> uploaded_adapter(const Json& body) {
  return uploaded(
      body, "adapters",
      "maps the name of one GGUF file to its digest, or adapter_config.json and adapter_model.safetensors as "
      "PEFT saves them");
}

Expected<store::Recipe> recipe_of(const Json& body) {
  store::Recipe recipe;
  Fields fields(body);
  std::string modelfile;
  fields.text("modelfile", modelfile);
  fields.text("from", recipe.from);
  fields.text("system", recipe.system);
  fields.text("template", recipe.chat_template);
  if (fields.has("quantize"))
    fields.fail("quantize", "is not supported; 'millrace quantize' and 'millrace convert' make files of other types");
  MR_RETURN_IF_ERROR(fields.status());
  if (!modelfile.empty()) {
    MR_ASSIGN_OR_RETURN(recipe, store::parse_recipe(modelfile));
    if (!recipe.mmproj.empty())
      return error(Code::invalid_argument, "FROM {}: upload an mmproj file, and name both files in files",
                   modelfile::escape(recipe.mmproj, 100));
    if (!recipe.adapters.empty())
      return error(Code::invalid_argument, "ADAPTER {}: upload the adapter, and name its files in adapters",
                   modelfile::escape(recipe.adapters.front().path, 100));
  }
  MR_ASSIGN_OR_RETURN(std::vector<store::ModelFile> adapter, uploaded_adapter(body));
  if (!adapter.empty()) recipe.adapters.push_back({.uploaded = std::move(adapter)});
  if (const Json* license = fields.find("license"); license != nullptr && license->is_string())
    recipe.license = *license;
  if (const Json* parameters = fields.find("parameters"); parameters != nullptr) {
    MR_ASSIGN_OR_RETURN(recipe.parameters, store::check_parameters(nlohmann::json::parse(parameters->dump())));
  }
  if (const Json* messages = fields.find("messages"); messages != nullptr)
    recipe.messages = nlohmann::json::parse(messages->dump());
  MR_RETURN_IF_ERROR(store::check_messages(recipe.messages));
  MR_RETURN_IF_ERROR(store::check_template(recipe.chat_template));
  if (recipe.from.empty() && !fields.has("files"))
    return error(Code::invalid_argument, "from: names the model to begin with; or files names one that was uploaded");
  return recipe;
}

void create(Context& context, const Request& request, Response& response) {
  const auto asked = named(request, response);
  if (!asked) return;
  const auto recipe = recipe_of(asked->first);
  if (!recipe.ok()) return fail(Api::ollama, response, recipe.status());
  auto files = uploaded_model(asked->first);
  if (!files.ok()) return fail(Api::ollama, response, files.status());
  if (!files->empty()) {
    if (!recipe->from.empty())
      return fail(Api::ollama, response, error(Code::invalid_argument, "from and files name two models; give one"));
    return tell(context, response, streams(asked->first),
                [&context, recipe = *recipe, files = *files, name = asked->second](
                    const Telling::Say& say, const std::atomic<bool>&, RequestMemory& memory) {
                  say({{"status", "parsing GGUF"}});
                  Status status = context.catalog.store().create_from_blobs(name, recipe, files, &memory).status();
                  if (status.ok()) say({{"status", "success"}});
                  return status;
                });
  }
  // Names only: a client of the network does not get to open this machine's files.
  const auto base = context.catalog.find_outline(recipe->from);
  if (!base.ok()) return fail(Api::ollama, response, base.status());
  tell(context, response, streams(asked->first),
       [&context, recipe = *recipe, base = *base, name = asked->second](
           const Telling::Say& say, const std::atomic<bool>&, RequestMemory& memory) {
         say({{"status", "writing manifest"}});
         store::Store& store = context.catalog.store();
         Status status = base.stored ? store.create_from_name(name, recipe, base.name, &memory).status()
                                     : store.create_from_file(name, recipe, base.path, &memory).status();
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
