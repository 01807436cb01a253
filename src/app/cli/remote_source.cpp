// Answers of a running server, over Ollama's API.
#include <fmt/core.h>
#include <httplib.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <thread>
#include <utility>

#include "app/cli/address.h"
#include "app/cli/source.h"
#include "app/generate/json.h"
#include "app/server/catalog.h"
#include "app/server/file_identity.h"
#include "base/base64.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mutex.h"

namespace millrace::cli {
namespace {

using generate::Json;
using generate::word;
using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{300}, kLookTime{3000};
constexpr milliseconds kAnswerTime{24 * 3600 * 1000};  // the first token of a long prompt may take its time

void prepare(httplib::Client& client, milliseconds read_time) {
  client.set_connection_timeout(kConnectTime);
  client.set_read_timeout(read_time);
  if (const char* key = std::getenv("MILLRACE_API_KEY"); key != nullptr && *key != 0) client.set_bearer_token_auth(key);
}

Json parse(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  return json.is_object() ? json : Json::object();
}

/// A POST whose answer comes line by line, on a thread of its own, so that Ctrl-C need not wait for the next line.
class Exchange {
 public:
  Exchange(const Address& address, std::string path, std::string body) : client_(address.host, address.port) {
    prepare(client_, kAnswerTime);
    request_.method = "POST";
    request_.path = std::move(path);
    request_.body = std::move(body);
    request_.set_header("Content-Type", "application/json");
    request_.content_receiver = [this](const char* data, std::size_t size, std::uint64_t, std::uint64_t) {
      return take({data, size});
    };
    thread_ = std::thread([this] { work(); });
  }
  /// Closes the connection, which ends the answer over there.
  ~Exchange() {
    {
      MutexLock lock(mutex_);
      stopped_ = true;
      // stop() does nothing to a connection that is only being made.
      while (!ended_) {
        lock.unlock();
        client_.stop();
        lock.lock();
        came_.wait_for(mutex_, milliseconds(20), [this]() MR_REQUIRES(mutex_) { return ended_; });
      }
    }
    thread_.join();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  /// A line of the answer; none where none came in a while, or no more will.
  std::optional<std::string> next() {
    MutexLock lock(mutex_);
    came_.wait_for(mutex_, milliseconds(50), [this]() MR_REQUIRES(mutex_) { return ended_ || !lines_.empty(); });
    if (lines_.empty()) return std::nullopt;
    std::string line = std::move(lines_.front());
    lines_.pop_front();
    return line;
  }
  bool ended() {
    const MutexLock lock(mutex_);
    return ended_ && lines_.empty();
  }
  int http_status() {
    const MutexLock lock(mutex_);
    return http_status_;
  }

 private:
  bool take(std::string_view data) {
    const MutexLock lock(mutex_);
    for (const char c : data) {
      if (c != '\n') {
        rest_ += c;
      } else {
        lines_.push_back(std::exchange(rest_, {}));
      }
    }
    came_.notify_one();
    return !stopped_;
  }

  void work() {
    const httplib::Result result = client_.send(request_);
    const MutexLock lock(mutex_);
    if (result) http_status_ = result->status;
    if (!rest_.empty()) lines_.push_back(std::move(rest_));
    ended_ = true;
    came_.notify_one();
  }

  httplib::Client client_;
  httplib::Request request_;
  Mutex mutex_;
  CondVar came_;
  std::deque<std::string> lines_ MR_GUARDED_BY(mutex_);
  std::string rest_ MR_GUARDED_BY(mutex_);  // a line that has not ended
  bool ended_ MR_GUARDED_BY(mutex_) = false, stopped_ MR_GUARDED_BY(mutex_) = false;
  int http_status_ MR_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

Json options_of(const SamplingFlags& flags) {
  const engine::SamplerOptions sampler = sampler_options(flags);
  return {{"temperature", flags.temperature},
          {"top_k", flags.top_k},
          {"top_p", flags.top_p},
          {"min_p", flags.min_p},
          {"repeat_penalty", flags.repeat_penalty},
          {"presence_penalty", flags.presence_penalty},
          {"frequency_penalty", flags.frequency_penalty},
          {"repeat_last_n", flags.repeat_last_n},
          {"seed", sampler.seed},
          {"num_predict", flags.max_tokens},
          {"stop", flags.stop}};
}

bool has_vision(const Json& shown) {
  const auto capabilities = shown.find("capabilities");
  return capabilities != shown.end() && capabilities->is_array() &&
         std::find(capabilities->begin(), capabilities->end(), "vision") != capabilities->end();
}

/// The text without its markers, whose pictures go into `images` in base64.
std::string take_pictures(const generate::Pictures& pictures, const std::string& text, Json& images) {
  std::string out;
  std::size_t done = 0;
  while (const auto found = pictures.markers().find(text, done)) {
    out.append(text, done, found->begin - done);
    if (found->index < pictures.size()) images.push_back(to_base64(pictures[found->index].file));
    done = found->end;
  }
  return out.append(text, done);
}

class RemoteSource final : public Source {
 public:
  /// `shown`: what the server says of the model.
  RemoteSource(Address address, std::string name, std::int64_t context_tokens, const Json& shown)
      : address_(std::move(address)),
        name_(std::move(name)),
        context_tokens_(context_tokens),
        sees_(has_vision(shown)),
        continues_text_(word(shown, "template").empty()) {}

  Expected<Said> answer(const Ask& ask, const Listener& listener) override {
    if (!ask.is_raw && std::exchange(continues_text_, false)) note_without_template();
    Exchange exchange(address_, ask.is_raw ? "/api/generate" : "/api/chat",
                      body_of(ask).dump(-1, ' ', false, Json::error_handler_t::replace));
    Said said;
    bool thinks = false;
    while (!interrupted()) {
      const auto line = exchange.next();
      if (!line && exchange.ended()) return gone();
      if (!line) continue;
      const Json json = parse(*line);
      if (json.contains("error")) return refusal(exchange.http_status(), json["error"]);
      Piece piece;
      const std::string text = take(json, piece, thinks);
      piece.text = text;
      said.text += text;
      said.keep(piece.events);
      if (!text.empty() && !listener.on_piece(piece)) interrupted() = true;
      if (json.value("done", Json()) != true) continue;
      finish(json, said);
      return said;
    }
    said.finish = engine::Finish::cancelled;
    return said;
  }

  void forget() override {}
  std::string name() const override { return name_; }
  std::int64_t context_tokens() const override { return context_tokens_; }
  Status sees() const override {
    if (sees_) return {};
    return error(
        Code::invalid_argument,
        "the model reads text only as the server at {} has it; serve it with the mmproj file that belongs to it "
        "(--mmproj)",
        address_.text());
  }
  std::string describe(std::string_view what) const override {
    if (what == "model") return fmt::format("  {}, on the server at {}\n", name_, address_.text());
    return fmt::format("  the {} is that of the server at {}; 'millrace ps' and its web page show it\n", what,
                       address_.text());
  }

 private:
  Json body_of(const Ask& ask) const {
    Json body = {{"model", name_}, {"stream", true}, {"truncate", false}, {"options", options_of(ask.sampling)}};
    if (ask.is_raw) {
      body["raw"] = true;
      body["prompt"] = ask.raw;
      return body;
    }
    if (ask.thinking.on) body["think"] = *ask.thinking.on;
    if (ask.thinking.budget) body["thinking_budget"] = *ask.thinking.budget;
    body["messages"] = Json::array();
    if (!ask.system.empty()) body["messages"].push_back({{"role", "system"}, {"content", ask.system}});
    for (const text::Message& message : ask.messages) {
      Json one = {{"role", message.role}}, images = Json::array();
      one["content"] = take_pictures(ask.pictures, message.content, images);
      if (!images.empty()) one["images"] = std::move(images);
      if (!message.reasoning.empty()) one["thinking"] = message.reasoning;
      body["messages"].push_back(std::move(one));
    }
    return body;
  }

  /// A line's text, as the model would have written it.
  static std::string take(const Json& json, Piece& piece, bool& thinks) {
    using Kind = text::AnswerEvent::Kind;
    const Json& holder = json.contains("message") && json["message"].is_object() ? json["message"] : json;
    const std::string thought = word(holder, "thinking");
    const std::string content = word(holder, holder.contains("response") ? "response" : "content");
    std::string text;
    if (!thought.empty()) {
      text += (thinks ? "" : "<think>\n") + thought;
      thinks = true;
      piece.events.push_back({Kind::reasoning, thought});
    }
    if (!content.empty()) {
      text += (thinks ? "\n</think>\n\n" : "") + content;
      thinks = false;
      piece.events.push_back({Kind::content, content});
    }
    return text;
  }

  static void finish(const Json& json, Said& said) {
    said.finish = word(json, "done_reason") == "length" ? engine::Finish::length : engine::Finish::stop;
    said.prompt_tokens = json.value("prompt_eval_count", std::int64_t{0});
    said.answer_tokens = json.value("eval_count", std::int64_t{0});
    said.prompt_seconds = json.value("prompt_eval_duration", 0.0) * 1e-9;
    said.decode_seconds = json.value("eval_duration", 0.0) * 1e-9;
  }

  Status gone() const {
    return error(Code::unavailable,
                 "the server at {} went away before the answer was whole; ask again, or use --local for an engine of "
                 "your own",
                 address_.text());
  }

  static Status refusal(int http_status, const Json& said) {
    const Code code = http_status == 400 ? Code::invalid_argument : Code::unavailable;
    return error(code, "{}", said.is_string() ? said.get<std::string>() : said.dump());
  }

  const Address address_;
  const std::string name_;
  const std::int64_t context_tokens_;
  const bool sees_;
  bool continues_text_;  // and nobody was told yet
};

/// Whether a server of ours answers there.
bool is_ours(const Address& address) {
  httplib::Client client(address.host, address.port);
  prepare(client, kLookTime);
  const auto version = client.Get("/api/version");
  return version && version->status == 200 && !word(parse(version->body), "millrace").empty();
}

/// What the server says of a model; nothing where it does not know it.
std::optional<Json> show(const Address& address, const std::string& name) {
  httplib::Client client(address.host, address.port);
  prepare(client, kLookTime);
  const auto shown = client.Post("/api/show", Json{{"model", name}}.dump(), "application/json");
  if (!shown || shown->status != 200) return std::nullopt;
  return parse(shown->body);
}

/// Whether what a server shows is this model: the same manifest, or the same file.
bool is_same(const Json& shown, const store::Resolved& model) {
  return word(shown, "digest") == (model.named ? model.manifest.digest() : server::file_identity(model.path));
}

}  // namespace

std::unique_ptr<Source> find_server(const store::Resolved& model, const Address& address) {
  if (!is_ours(address)) return nullptr;
  const std::string name = model.named ? model.manifest.name.text() : server::name_of_file(model.path);
  const auto shown = show(address, name);
  if (!shown || !is_same(*shown, model)) {
    log::info("the server at {} does not have this model", address.text());
    return nullptr;
  }
  return std::make_unique<RemoteSource>(address, name, 0, *shown);
}

std::unique_ptr<Source> find_server(const std::string& name, const Address& address) {
  if (!is_ours(address)) return nullptr;
  const auto shown = show(address, name);
  if (!shown) return nullptr;
  return std::make_unique<RemoteSource>(address, name, 0, *shown);
}

}  // namespace millrace::cli
