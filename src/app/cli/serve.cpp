// `millrace serve`: the APIs on a port, in the foreground or as a daemon; `stop` and `ps` query a running server.
#include <fmt/core.h>
#include <httplib.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include "app/cli/address.h"
#include "app/cli/cluster.h"
#include "app/cli/command.h"
#include "app/cli/config_file.h"
#include "app/cli/source.h"
#include "app/server/ollama_request.h"
#include "app/server/server.h"
#include "base/bytes.h"
#include "base/log.h"
#include "base/os/calendar.h"
#include "base/os/process.h"
#include "base/os/signals.h"
#include "base/say.h"
#include "engine/limits.h"
#include "residency/small_file.h"
#include "text/conversation.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

struct ServeFlags {
  ModelFlags model;
  PromptCacheFlags prompt_cache;
  std::string learn_experts;
  std::string host, keep_alive, pid_file, log_file, log_format = "text", config;
  int port = -1;
  std::vector<std::string> api_keys, hosts, origins, picture_hosts, models;
  std::int64_t sequences = 0, queue = 256, kv_tokens = 0;
  int picture_seconds = 20;
  bool daemon = false, drain = false;
};

fs::path runtime_folder() {
  if (const char* folder = std::getenv("XDG_RUNTIME_DIR"); folder != nullptr && fs::is_directory(folder)) return folder;
  return fs::temp_directory_path();
}

std::string pid_path(const ServeFlags& flags) {
  if (!flags.pid_file.empty()) return flags.pid_file;
  return (runtime_folder() / fmt::format("millrace-{}-{}.pid", os::user_id(), flags.port)).string();
}

Expected<server::ServerOptions> server_options(const ServeFlags& flags, const Program& program) {
  server::ServerOptions options;
  MR_ASSIGN_OR_RETURN(options.models.engine, engine_options(flags.model, program));
  engine::EngineOptions& engine = options.models.engine;
  engine.demand.max_sequences = flags.sequences;
  engine.demand.fewer_sequences = true;  // every request is answered, even if it has to wait
  engine.demand.max_queue = flags.queue;
  engine.kv.share_prefixes = true;
  MR_RETURN_IF_ERROR(apply_prompt_cache_if_there_is_a_home(flags.prompt_cache, engine));
  apply_learning(flags.learn_experts, engine);
  engine.demand.kv_tokens = flags.kv_tokens;
  options.host = flags.host;
  options.port = flags.port;
  if (!program.quiet && flags.log_format == "text") options.log_format = server::LogFormat::text;
  if (!program.quiet && flags.log_format == "json") options.log_format = server::LogFormat::json;
  options.access.api_keys = flags.api_keys;
  if (const char* keys = std::getenv("MILLRACE_API_KEY"); keys != nullptr) options.access.api_keys.emplace_back(keys);
  // A script with an unset variable must not start a server without a key.
  if (std::find(options.access.api_keys.begin(), options.access.api_keys.end(), "") != options.access.api_keys.end())
    return error(Code::invalid_argument,
                 "--api-key or MILLRACE_API_KEY is empty, which would protect nothing; give a key or leave it out");
  options.access.hosts = flags.hosts;
  options.access.origins = flags.origins;
  for (const std::string& host : flags.picture_hosts) {
    auto allowed = store::parse_outside_host(host);
    if (!allowed.ok()) return allowed.status().with_context("--image-urls");
    options.access.picture_hosts.push_back(std::move(*allowed));
  }
  options.access.picture_patience = std::chrono::seconds(flags.picture_seconds);
  options.model_paths = flags.models;
  options.preload = flags.model.model;
  std::error_code ignored;
  if (fs::exists(flags.model.model, ignored)) options.model_paths.push_back(flags.model.model);
  std::string keep_alive = flags.keep_alive;
  if (const char* set = environment("MILLRACE_KEEP_ALIVE", "OLLAMA_KEEP_ALIVE"); keep_alive.empty() && set != nullptr)
    keep_alive = set;
  if (!keep_alive.empty()) {
    const auto parsed = server::parse_keep_alive({{"keep_alive", keep_alive}});
    if (!parsed.ok())
      return error(Code::invalid_argument, "--keep-alive {}: give seconds or a duration such as 5m", keep_alive);
    options.models.keep_alive = **parsed;
  }
  return options;
}

/// Prints the context and the number of requests that the planner chose.
void tell_loaded(const engine::ModelManager::Loaded& loaded) {
  const engine::Engine& engine = loaded.service->engine();
  const std::int64_t trained = engine.model().hyperparameters().context_length;
  const std::int64_t context = engine.context_tokens(), sequences = loaded.service->load().max_sequences;
  say(stdout, "{}: loaded in {:.1f} s; a context of {} tokens{}, {} at once\n", loaded.name,
      std::chrono::duration<double>(loaded.load_time).count(), context,
      context < trained ? fmt::format(" (trained for {}; --ctx)", trained) : "",
      sequences == 1 ? "1 request" : fmt::format("{} requests", sequences));
  if (const text::ChatTemplate* own = engine.chat_template(); own != nullptr && text::continues_text(*own))
    note_without_template();
}

/// The longest time from the signal to the end of the process.
constexpr milliseconds kLongestEnd{4700};

/// Warns about settings that the user may not have intended.
void warn_of_open_door(const server::ServerOptions& options) {
  const std::string& host = options.host;
  const bool here = host == "localhost" || host == "::1" || host.starts_with("127.");
  if (!here && options.access.api_keys.empty())
    log::warn(
        "anyone who reaches {}:{} can use the models here, pull others and delete them: no API key is asked for; give "
        "--api-key KEY, or --host 127.0.0.1",
        host, options.port);
}

/// The arguments with which `stop --server` ends this server.
std::string stop_flags(const ServeFlags& flags) {
  const auto meant = call_address();
  std::string words;
  if (!meant.ok() || meant->port != flags.port) words += fmt::format(" --port {}", flags.port);
  if (!flags.pid_file.empty()) words += fmt::format(" --pid-file {}", flags.pid_file);
  return words;
}

/// Continues in the background. The first process prints the daemon's start-up messages and exits with its result.
Expected<os::Daemon> become_daemon(const ServeFlags& flags) {
  auto daemon = os::Daemon::start(flags.log_file, [](const std::string& report) {
    if (report.empty())
      say(stderr, "error: the server did not start; --log-file FILE keeps its messages\n");
    else
      say(stdout, "{}", report);
    return report.empty() ? kExitFailed : 0;
  });
  if (daemon.status().code() == Code::unavailable)
    return error(Code::io_error, "{}: is a pipe without a reader; start its reader first", flags.log_file);
  if (!daemon.ok())
    return error(Code::io_error, "cannot start a daemon{}: {}",
                 flags.log_file.empty() ? "" : fmt::format(" that writes its log to {}", flags.log_file),
                 daemon.status().message());
  return daemon;
}

/// The address of the page for a browser on this machine: a wildcard address cannot be opened.
std::string browser_address(Address address) {
  if (address.host == "0.0.0.0" || address.host == "::") address.host = "localhost";
  return address.text();
}

int serve(ServeFlags flags, const Program& program) {
  auto address = listen_address(flags.host, flags.port);
  if (!address.ok()) return fail(address.status());
  flags.host = address->host;
  flags.port = address->port;
  if (const Status launched = launch_cluster(flags.model, program, std::max<std::int64_t>(flags.sequences, 1));
      !launched.ok())
    return fail(launched);
  const auto ranks = Ranks::join(flags.model);
  if (!ranks.ok()) return fail(ranks.status());
  if (!ranks->alone() && (flags.model.model.empty() || flags.daemon))
    return fail(error(Code::invalid_argument, "{}",
                      flags.daemon ? "--daemon is for one process; leave it out under mpirun or srun"
                                   : "over several processes serve takes the MODEL that all have"));
  if (ranks->follows()) return ranks->follow(options_of_rank(flags.model, flags.prompt_cache, ranks->rank(), program));
  if (const Status share = open_share(flags.model, ranks->rank(), program); !share.ok()) return fail(share);
  auto options = server_options(flags, program);
  if (!options.ok()) return fail(options.status());
  options->models.engine.part.cluster = ranks->cluster();
  std::vector<std::string> inputs = options->model_paths;
  inputs.insert(inputs.end(), {flags.config, flags.model.rates, flags.model.plan});
  if (const Status status = check_model_outputs({flags.log_file, flags.pid_file}, options->models.engine, inputs);
      !status.ok())
    return fail(status);
  std::optional<os::Daemon> daemon;
  if (flags.daemon) {
    auto started = become_daemon(flags);
    if (!started.ok()) return fail(started.status());
    daemon = std::move(*started);
  }
  os::catch_stop_requests();
  os::allow_open_files(1 << 16);  // each connection needs one, and shells allow a thousand
  warn_of_open_door(*options);
  if (!program.quiet) options->models.on_loaded = tell_loaded;
  auto started = server::Server::start(std::move(*options));
  if (!started.ok()) return fail(started.status());
  flags.port = address->port = (*started)->port();
  const std::string pid_file = pid_path(flags);
  if (flags.daemon || !flags.pid_file.empty()) {
    // In a folder where everybody may write (/tmp), the path may be a link: replace the link, not its target.
    const Status status =
        residency::write_small_file(pid_file, fmt::format("{}\n", os::process_id()), residency::Links::replace);
    if (!status.ok()) return fail(status.with_context("PID file"));
  }
  say(stdout, "Listening on http://{}\n", address->text());
  say(stdout, "Open http://{}/ in a browser to chat\n", browser_address(*address));
  if (daemon)
    daemon->report(
        fmt::format("Listening on http://{} in the background (process {}); 'millrace stop --server{}' ends it\n",
                    address->text(), os::process_id(), stop_flags(flags)));
  std::atomic<bool> failed{false};
  std::thread watcher([&] {
    if (const Status status = (*started)->preloaded(); !status.ok()) {
      say(stderr, "error: {}\n", status.message());
      failed = true;
      os::request_stop();
    }
  });
  os::wait_for_stop_request();
  if (flags.drain && !failed) {
    say(stdout, "Draining: what is under way is answered first; a second signal ends it at once\n");
    (*started)->drain();
  }
  const bool has_pid_file = flags.daemon || !flags.pid_file.empty();
  std::promise<void> ended;
  std::thread last([&, end = ended.get_future()] {
    if (end.wait_for(kLongestEnd) == std::future_status::ready) return;
    // A request that does not react must not delay the exit: no file is half written (the store and the prompt cache
    // replace files atomically).
    say(stderr, "warning: a request went on for too long; stopped without its end\n");
    std::error_code ignored;
    if (has_pid_file) fs::remove(pid_file, ignored);
    os::end_process(failed ? kExitFailed : 0);
  });
  (*started)->stop();
  watcher.join();
  ended.set_value();
  last.join();
  std::error_code ignored;
  if (has_pid_file) fs::remove(pid_file, ignored);
  return failed ? kExitFailed : 0;
}

}  // namespace

void add_serve(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<ServeFlags>();
  auto* command = app.add_subcommand("serve", "Serve models to Ollama's, OpenAI's and Anthropic's clients");
  add_model_flags(*command, flags->model);
  add_cluster_flags(*command, flags->model);
  add_prompt_cache_flags(*command, flags->prompt_cache, "on");
  add_learning_flag(*command, flags->learn_experts);
  command->get_option("model")->required(false)->description("A model to load at once and to keep");
  command->add_option("--host", flags->host, "Address to listen on (default: MILLRACE_HOST, or 127.0.0.1)");
  command->add_option("--port", flags->port, "Port; 0: any that is free (default: 11434)")->check(CLI::Range(0, 65535));
  command->add_option("--api-key", flags->api_keys, "A key that clients must send; may be repeated");
  command->add_option("--models", flags->models, "GGUF files, or folders of them, loaded on demand");
  command
      ->add_option("--parallel", flags->sequences, "Requests in a pass at most (default: what memory allows, up to 64)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--queue", flags->queue, "Requests that wait at most; more are refused")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  command
      ->add_option("--kv-tokens", flags->kv_tokens,
                   "KV of all requests together, in tokens, at most (default: a context each in half of what is left)")
      ->check(at_least(0));
  command->add_option(
      "--keep-alive", flags->keep_alive,
      "How long an idle model stays loaded, for example 5m; -1: forever (default: MILLRACE_KEEP_ALIVE, or 5m)");
  command->add_option("--allow-host", flags->hosts, "A further name in the Host header; *: any");
  command->add_option("--allow-origin", flags->origins, "A web origin that may call; *: any");
  command
      ->add_option("--image-urls", flags->picture_hosts,
                   "HOST[,HOST...] or HOST:PORT from which the server may fetch pictures by URL (default: none)")
      ->delimiter(',');
  command->add_option("--image-url-seconds", flags->picture_seconds, "For developers: for the pictures of a request")
      ->check(CLI::Range(1, 3600))
      ->group("");
  command->add_flag("--daemon", flags->daemon, "Serve in the background");
  command->add_flag("--drain", flags->drain,
                    "When told to end, report it at /health, keep answering, and end after three quiet seconds");
  command->add_option("--pid-file", flags->pid_file, "Where the process id is written (default with --daemon: see ps)");
  command->add_option("--log-file", flags->log_file, "Where a daemon's messages go");
  command->add_option("--log-format", flags->log_format, "A line for each request, on stderr: text, json or off")
      ->check(CLI::IsMember({"text", "json", "off"}))
      ->capture_default_str();
  command->add_option("--config", flags->config, "A file with these options, a line each: ram = 12G");
  command->callback([flags, command, &program, &exit_code] {
    if (!flags->config.empty()) {
      if (const Status status = apply_config_file(*command, flags->config); !status.ok()) {
        exit_code = fail(status);
        return;
      }
    }
    exit_code = serve(*flags, program);
  });
}

namespace {

struct RemoteFlags {
  std::string host, model, pid_file;
  int port = -1, wait_seconds = 6;  // a server that does not drain takes 5 s at most
  bool server = false;
};

Expected<nlohmann::ordered_json> ask(const RemoteFlags& flags, const std::string& path, const std::string& body) {
  MR_ASSIGN_OR_RETURN(const Address address, call_address(flags.host, flags.port));
  httplib::Client client(address.host, address.port);
  if (const char* key = std::getenv("MILLRACE_API_KEY")) client.set_bearer_token_auth(key);
  const auto result = body.empty() ? client.Get(path) : client.Post(path, body, "application/json");
  if (!result)
    return error(Code::unavailable, "no server answers on {}; start one with 'millrace serve'", address.text());
  auto json = nlohmann::ordered_json::parse(result->body, nullptr, false);
  if (json.is_discarded() || !json.is_object())
    return error(Code::corrupt, "{} answers, but not like a Millrace server", address.text());
  if (result->status >= 400) {
    const auto& said = json.contains("error") ? json["error"] : json;
    return error(Code::invalid_argument, "{}", said.is_string() ? said.get<std::string>() : said.dump());
  }
  return json;
}

/// When a model is unloaded, in local time; a model that stays loaded has a time in the distant future.
std::string until(const std::string& rfc3339) {
  const auto then = os::parse_utc(rfc3339);
  if (!then) return rfc3339;
  if (*then - std::time(nullptr) > std::time_t{365} * 24 * 3600) return "for ever";
  const auto local = os::local_time(*then);
  if (!local) return rfc3339;
  char text[32] = {};
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &*local);
  return text;
}

int list_running(const RemoteFlags& flags) {
  const auto answer = ask(flags, "/api/ps", "");
  if (!answer.ok()) return fail(answer.status());
  const auto models = answer->value("models", nlohmann::ordered_json::array());
  std::size_t width = 24;
  for (const auto& model : models) width = std::max(width, model.value("name", std::string()).size());
  fmt::print("{:<{}} {:>8} {:>8} {:>8}  {}\n", "NAME", width, "SIZE", "VRAM", "CONTEXT", "UNTIL");
  for (const auto& model : models) {
    fmt::print("{:<{}} {:>8} {:>8} {:>8}  {}\n", model.value("name", ""), width,
               format_bytes(model.value("size", std::uint64_t{0})),
               format_bytes(model.value("size_vram", std::uint64_t{0})), model.value("context_length", 0),
               until(model.value("expires_at", "")));
  }
  return 0;
}

/// Ends a daemon on this machine by the process id in its PID file.
int stop_server(const RemoteFlags& flags) {
  const auto address = call_address(flags.host, flags.port);
  if (!address.ok()) return fail(address.status());
  ServeFlags served;
  served.port = address->port;
  served.pid_file = flags.pid_file;
  const std::string path = pid_path(served);
  const auto text = residency::read_small_file(path, 64);
  const std::int64_t process = text.ok() ? std::strtol(text->c_str(), nullptr, 10) : 0;
  if (!os::can_stop(process))
    return fail(error(Code::not_found,
                      "no daemon of yours serves on port {} ({} names no running process); end a server in the "
                      "foreground with Ctrl-C",
                      address->port, path));
  if (const Status status = os::stop_process(process); !status.ok())
    return fail(error(Code::io_error, "cannot end process {}: {}", process, status.message()));
  for (int i = 0; i < flags.wait_seconds * 10; ++i) {
    if (!os::can_stop(process)) return 0;
    std::this_thread::sleep_for(milliseconds(100));
  }
  return fail(error(Code::unavailable,
                    "process {} has not ended after {} s; one that drains answers first what is under way (--wait)",
                    process, flags.wait_seconds));
}

int unload(const RemoteFlags& flags) {
  if (flags.server) return stop_server(flags);
  if (flags.model.empty())
    return fail(error(Code::invalid_argument, "name a model that ps shows, or --server to end the server itself"));
  const nlohmann::ordered_json body = {{"model", flags.model}, {"keep_alive", 0}, {"stream", false}};
  const auto answer = ask(flags, "/api/generate", body.dump());
  return answer.ok() ? 0 : fail(answer.status());
}

}  // namespace

void add_ps(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RemoteFlags>();
  auto* command = app.add_subcommand("ps", "List the models that a running server has loaded");
  command->add_option("--host", flags->host, "The server's HOST or HOST:PORT (default: see MILLRACE_HOST)");
  command->add_option("--port", flags->port, "The server's port (default: that of MILLRACE_HOST, or 11434)")
      ->check(CLI::Range(0, 65535));
  command->callback([flags, &exit_code] { exit_code = list_running(*flags); });
}

void add_stop(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<RemoteFlags>();
  auto* command = app.add_subcommand("stop", "Unload a model from a running server, or end the server");
  command->add_option("model", flags->model, "Its name, as ps shows it");
  command->add_flag("--server", flags->server, "End the server that --daemon started");
  command->add_option("--pid-file", flags->pid_file, "The --pid-file that the daemon was started with");
  command->add_option("--wait", flags->wait_seconds, "Seconds to wait for the end of the server")
      ->check(CLI::Range(0, 86400))
      ->capture_default_str();
  command->add_option("--host", flags->host, "The server's HOST or HOST:PORT (default: see MILLRACE_HOST)");
  command->add_option("--port", flags->port, "The server's port (default: that of MILLRACE_HOST, or 11434)")
      ->check(CLI::Range(0, 65535));
  command->callback([flags, &exit_code] { exit_code = unload(*flags); });
}

}  // namespace millrace::cli
