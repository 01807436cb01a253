#include "app/server/context.h"

#include <algorithm>
#include <map>
#include <utility>

#include "app/generate/sight.h"
#include "app/server/errors.h"
#include "app/store/outside.h"

namespace millrace::server {

using std::chrono::milliseconds;

namespace {

engine::ModelManager::Options with_requests(engine::ModelManager::Options options) {
  options.most_request_bytes = 256'000'000;
  return options;
}

}  // namespace

Context::Context(ServerOptions asked)
    : options(std::move(asked)),
      guard(options),
      catalog(options.model_paths, options.store_root),
      models(with_requests(options.models)),
      log(options.log_format),
      responses(models.requests()),
      http(options.http, models.requests()) {}

std::shared_ptr<const std::uint64_t> Turns::enter() {
  const auto leave = [this](const std::uint64_t* place) {
    {
      const MutexLock relock(mutex_);
      std::erase(places_, *place);
    }
    delete place;
  };
  // Before the lock, which `leave` takes: also where there is no memory for it. No place has number 0.
  auto* const number = new std::uint64_t(0);
  std::shared_ptr<const std::uint64_t> place(number, leave);
  const MutexLock lock(mutex_);
  if (places_.size() >= most_) return nullptr;
  places_.push_back(next_);
  *number = next_++;
  return place;
}

bool Turns::is_on(const std::uint64_t& place) const {
  const MutexLock lock(mutex_);
  const auto found = std::find(places_.begin(), places_.end(), place);
  return found - places_.begin() < static_cast<std::ptrdiff_t>(at_once_);
}

Expected<ModelInfo> info_of(Context& context, const engine::ModelManager::Loaded& loaded, const std::string& name) {
  const auto same = [&](const ModelInfo& info) { return info.source().key() == loaded.key; };
  Expected<ModelInfo> info = context.catalog.find_outline(name);
  if (info.ok() && same(*info)) return info;
  MR_ASSIGN_OR_RETURN(auto all, context.catalog.list(&Connection::current().memory()));
  for (ModelInfo& other : all)
    if (same(other)) return std::move(other);
  return error(Code::not_found, "model '{}' not found", name);
}

namespace {

/// A model with one of its adapters; as `found` where the name is none of such.
Expected<ModelInfo> with_adapter(Context& context, const std::string& name, Expected<ModelInfo> found) {
  const std::size_t colon = name.rfind(':');
  if (found.ok() || found.status().code() != Code::not_found || colon == std::string::npos) return found;
  const std::string adapter = name.substr(colon + 1);
  const engine::ModelOptions& given = context.models.options().engine.model;
  const auto has_name = [&](const engine::AdapterOptions& one) { return one.name == adapter && !one.of_model; };
  if (std::none_of(given.adapters.begin(), given.adapters.end(), has_name)) return found;
  auto base = context.catalog.find(name.substr(0, colon), &Connection::current().memory());
  if (!base.ok() || !context.models.is_given(base->source())) return found;
  base->adapter = adapter;
  return base;
}

Expected<ModelInfo> find_meant(Context& context, const std::string& name) {
  RequestMemory& memory = Connection::current().memory();
  if (!name.empty()) return with_adapter(context, name, context.catalog.find(name, &memory));
  for (const auto& running : context.models.running())
    if (const auto info = info_of(context, *running.loaded, running.loaded->name); info.ok())
      return context.catalog.find(info->name, &memory);
  if (const std::string last = context.last_model.name(); !last.empty())
    if (auto info = context.catalog.find(last, &memory); info.ok()) return info;
  MR_ASSIGN_OR_RETURN(const auto all, context.catalog.list(&memory));
  if (all.size() != 1) return error(Code::invalid_argument, "model: is missing; GET /v1/models lists those there are");
  return context.catalog.find(all.front().name, &memory);
}

}  // namespace

Expected<ModelInfo> model_meant(Context& context, const std::string& name) {
  auto info = find_meant(context, name);
  // If a file has several names, the requested one.
  if (info.ok()) Connection::current().record().model = info->name;
  return info;
}

Expected<engine::ModelManager::Use> use_found(Context& context, const ModelInfo& info, KeepAlive keep_alive,
                                              const Wanted& wanted) {
  context.last_model.set(info.name);
  return context.models.use(info.source(), keep_alive, wanted);
}

Expected<engine::ModelManager::Use> use_model(Context& context, const std::string& name, KeepAlive keep_alive,
                                              const Wanted& wanted) {
  MR_ASSIGN_OR_RETURN(const ModelInfo info, model_meant(context, name));
  return use_found(context, info, keep_alive, wanted);
}

Status check_no_adapter(Context& context, const std::string& name) {
  MR_ASSIGN_OR_RETURN(const ModelInfo info, model_meant(context, name));
  if (info.adapter.empty()) return {};
  return error(Code::unsupported,
               "model: '{}' names an adapter, which only requests for answers can do; send '{}', and set the adapter's "
               "scale with /lora-adapters",
               name, info.name);
}

Wanted wanted_by(const ModelInfo& info, const generate::Job& job) {
  Wanted wanted;
  wanted.sight = !job.pictures.empty();
  if (job.context <= 0 || info.context_length <= 0) return wanted;
  // Doubled, so that a client with a growing context reloads the model only a few times.
  std::int64_t& tokens = wanted.context_tokens;
  tokens = std::min<std::int64_t>(1024, info.context_length);
  while (tokens < std::min(job.context, info.context_length)) tokens = std::min(2 * tokens, info.context_length);
  return wanted;
}

void fetch_pictures(Context& context, const engine::Engine& engine, generate::Job& job) {
  const Access& access = context.options.access;
  if (access.picture_hosts.empty() || generate::spec_of(engine) == nullptr) return;
  const auto end = std::chrono::steady_clock::now() + access.picture_patience;
  std::map<std::string, std::size_t> known;  // a conversation may contain the same picture several times
  for (std::size_t i = 0; i < job.pictures.size(); ++i) {
    generate::Picture picture = job.pictures[i];
    if (picture.url.empty()) continue;
    const auto [first, is_new] = known.try_emplace(picture.url, i);
    if (is_new) {
      const auto left = std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      auto file = store::get_outside(picture.url, access.picture_hosts,
                                     {generate::kMostPictureBytes, left, &Connection::current().memory()});
      picture.problem = file.status();
      if (file.ok()) picture.file = std::move(*file);
    } else {
      picture.problem = job.pictures[first->second].problem;
      picture.file = job.pictures[first->second].file;
    }
    job.pictures.replace(i, std::move(picture));
  }
}

Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   engine::ModelManager::Use model, const httplib::Request& request) {
  fetch_pictures(context, model->service->engine(), job);
  RequestRecord& record = Connection::current().record();
  if (record.model.empty()) record.model = model->name;
  MR_ASSIGN_OR_RETURN(auto run,
                      generate::Run::start(std::move(model), job, client_of(request), &Connection::current().memory()));
  record.runs.push_back(run->meter());
  return run;
}

Expected<std::unique_ptr<generate::Run>> start_run(Context& context, generate::Job& job,
                                                   const httplib::Request& request, KeepAlive keep_alive) {
  MR_ASSIGN_OR_RETURN(const ModelInfo info, model_meant(context, job.model));
  if (job.model.empty()) job.model = info.name;
  generate::Job whole = job;
  whole.adapter = info.adapter;
  generate::lay_under(info.defaults(), whole);
  MR_ASSIGN_OR_RETURN(auto model, use_found(context, info, keep_alive, wanted_by(info, whole)));
  return start_run(context, whole, std::move(model), request);
}

Expected<Begun> begin_run(Context& context, const httplib::Request& request,
                          const std::function<Expected<generate::Job>(const Json& body)>& parse) {
  MR_ASSIGN_OR_RETURN(const LargeJson body, read_prompt_body(request));
  Begun begun;
  MR_ASSIGN_OR_RETURN(begun.job, parse(body));
  MR_ASSIGN_OR_RETURN(begun.run, start_run(context, begun.job, request));
  return begun;
}

std::string sse(const Json& data) { return "data: " + dump(data) + "\n\n"; }

std::string client_of(const httplib::Request&) { return Connection::current().client(); }

Expected<LargeJson> read_body(const httplib::Request& request) {
  MR_ASSIGN_OR_RETURN(Json body, generate::parse_object(request.body, &Connection::current().memory()));
  return LargeJson(std::move(body));
}

Expected<LargeJson> read_prompt_body(const httplib::Request& request) {
  MR_ASSIGN_OR_RETURN(Json body, generate::parse_object(request.body, &Connection::current().memory(),
                                                        generate::WorkOnTexts::granted_with_the_prompt));
  return LargeJson(std::move(body));
}

Expected<std::vector<generate::Answer>> collect(generate::Run& run, int choices) {
  return generate::collect(run, choices, client_gone, &Connection::current().memory());
}

bool client_gone() { return Connection::current().client_gone(); }

std::string dump(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }

void reply(httplib::Response& response, const Json& body, int status) {
  response.status = status;
  response.set_content(dump(body), "application/json");
}

namespace {

constexpr std::size_t kMostAtOnce = 64 << 10;  // approximate bytes of a stream per write

/// Writes a stream of events to a client.
struct Streaming {
  std::shared_ptr<generate::Run> run;
  StreamForm form;
  milliseconds keep_line;
  Metrics* metrics = nullptr;
  bool begun = false;

  std::optional<generate::Event> next(milliseconds time) const {
    std::optional<generate::Event> event = run->next(time);
    if (event)
      if (auto* finished = std::get_if<generate::Finished>(&*event))
        finished->status = without_folders(finished->status);
    return event;
  }

  /// Writes the available events; false: the client is gone.
  bool pump(httplib::DataSink& sink) {
    std::string out;
    if (!begun && form.begin) out = form.begin();
    begun = true;
    const auto silent_until = std::chrono::steady_clock::now() + keep_line;
    while (out.empty() && !run->done()) {
      std::optional<generate::Event> event = next(milliseconds(100));
      if (event) {
        out = form.event(*event);
        // Write events that arrived meanwhile together, up to a size; the rest waits in the bounded queue.
        while (out.size() < kMostAtOnce && !run->done() && (event = next(milliseconds(0)))) out += form.event(*event);
      } else if (client_gone()) {
        return false;
      } else if (!form.keep_line.empty() && std::chrono::steady_clock::now() > silent_until) {
        out = form.keep_line;
      }
    }
    const bool ends = run->done();
    if (ends) {
      if (form.end) out += form.end();
      metrics->count_run(run->totals());
    }
    if (!out.empty() && !sink.write(out.data(), out.size())) return false;
    if (ends) sink.done();
    return true;
  }
};

}  // namespace

void stream(Context& context, httplib::Response& response, std::shared_ptr<generate::Run> run, StreamForm form) {
  const auto state = std::make_shared<Streaming>(
      Streaming{std::move(run), std::move(form), context.options.patience.keep_line, &context.metrics});
  response.set_header("Cache-Control", "no-cache");
  response.set_header("X-Accel-Buffering", "no");
  response.set_chunked_content_provider(state->form.content_type,
                                        [state](std::size_t, httplib::DataSink& sink) { return state->pump(sink); });
}

}  // namespace millrace::server
