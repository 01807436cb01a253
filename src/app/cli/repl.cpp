#include "app/cli/repl.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <optional>
#include <sstream>

#include "app/cli/read_line.h"
#include "app/cli/state.h"
#include "base/os/terminal.h"
#include "base/words.h"
#include "modelfile/escape.h"

namespace millrace::cli {
namespace {

constexpr const char* kHelp =
    "  /set NAME VALUE   temp, top_k, top_p, min_p, repeat_penalty, seed, max_tokens, system, stop,\n"
    "                    think (on, off)\n"
    "  /show             the settings;  /show model, /show plan, /show budget, /show history\n"
    "  /image FILE       show a picture with the next message (or write or drop its path into the message);\n"
    "                    /image alone lists those that wait\n"
    "  /clear            forget the conversation and its pictures\n"
    "  /save NAME        save the conversation;  /load NAME continues it;  /list shows the saved ones\n"
    "  /bye              leave (also Ctrl-D)\n"
    "  \"\"\"               begins and ends a text of several lines\n"
    "  Ctrl-C            stops the answer\n"
    "  Arrow up          an earlier line, also of another day; what begins with a space is not kept\n";

/// The user's next text; """ ... """ spans lines.
std::optional<std::string> read_text() {
  auto first = read_line(">>> ");
  if (!first) return std::nullopt;
  constexpr std::string_view quotes = "\"\"\"";
  if (!first->starts_with(quotes)) return first;
  std::string text = first->substr(quotes.size());
  while (true) {
    if (const auto end = text.rfind(quotes); end != std::string::npos) return text.substr(0, end);
    auto more = read_line("... ");
    if (!more) return text;
    text += "\n" + *more;
  }
}

bool parse_number(const std::string& text, double low, double high, double& out) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(value >= low && value <= high)) return false;
  out = value;
  return true;
}

struct Setting {
  const char* name;
  double low, high;
  std::function<void(SamplingFlags&, double)> set;
  std::function<double(const SamplingFlags&)> get;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"temp", 0, 100, [](auto& f, double v) { f.temperature = v; }, [](const auto& f) { return f.temperature; }},
      {"top_k", 0, 1e9, [](auto& f, double v) { f.top_k = static_cast<int>(v); },
       [](const auto& f) { return static_cast<double>(f.top_k); }},
      {"top_p", 0, 1, [](auto& f, double v) { f.top_p = v; }, [](const auto& f) { return f.top_p; }},
      {"min_p", 0, 1, [](auto& f, double v) { f.min_p = v; }, [](const auto& f) { return f.min_p; }},
      {"repeat_penalty", 0.01, 100, [](auto& f, double v) { f.repeat_penalty = v; },
       [](const auto& f) { return f.repeat_penalty; }},
      {"seed", 0, 9e15, [](auto& f, double v) { f.seed = static_cast<std::uint64_t>(v); },
       [](const auto& f) { return static_cast<double>(f.seed); }},
      {"max_tokens", -1, 1e9, [](auto& f, double v) { f.max_tokens = static_cast<std::int64_t>(v); },
       [](const auto& f) { return static_cast<double>(f.max_tokens); }},
  };
  return all;
}

void set(Chat& chat, const std::string& name, const std::string& value) {
  if (name == "system") {
    chat.options().system = value;
    chat.clear();
    std::puts("System message set; the conversation starts anew.");
    return;
  }
  if (name == "stop") {
    chat.options().sampling.stop.assign(1, value);
    if (value.empty()) chat.options().sampling.stop.clear();
    return;
  }
  if (name == "think") {
    if (value != "on" && value != "off")
      std::puts("think is on or off.");
    else
      chat.options().thinking.on = value == "on";
    return;
  }
  for (const auto& setting : settings()) {
    if (name != setting.name) continue;
    double number = 0;
    if (parse_number(value, setting.low, setting.high, number))
      setting.set(chat.options().sampling, number);
    else
      fmt::print("{} takes a number from {} to {}.\n", name, setting.low, setting.high);
    return;
  }
  fmt::print("Unknown setting '{}'. /? lists them.\n", name);
}

/// `/set NAME VALUE`, and Ollama's spellings: `/set parameter temperature 0.2`, `/set system "..."`, `/set nothink`.
void set_words(Chat& chat, std::string name, std::string value) {
  if (name == "parameter") {
    std::istringstream words(value);
    words >> name;
    std::getline(words >> std::ws, value);
  }
  if (name == "think" && value.empty()) value = "on";
  if (name == "nothink") name = "think", value = "off";
  if (name == "temperature") name = "temp";
  if (name == "num_predict") name = "max_tokens";
  if (name == "num_ctx") {
    std::puts("The context is fixed when the model loads: millrace run MODEL --ctx TOKENS.");
    return;
  }
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"') value = value.substr(1, value.size() - 2);
  set(chat, name, value);
}

void show_settings(Chat& chat, const std::string& what) {
  if (what == "plan" || what == "budget" || what == "model") {
    std::fputs(chat.source().describe(what).c_str(), stdout);
  } else if (what == "history") {
    for (const auto& message : chat.messages()) fmt::print("{}: {}\n", message.role, chat.text_of(message));
  } else if (what.empty()) {
    for (const auto& setting : settings())
      fmt::print("  {:<15} {}\n", setting.name, setting.get(chat.options().sampling));
    fmt::print("  {:<15} {}\n", "system", chat.options().system.empty() ? "(none)" : chat.options().system);
  } else {
    std::puts("/show alone, or /show model, plan, budget, history.");
  }
}

void save(const Chat& chat, const std::string& name) {
  const std::vector<std::string> names = saved_chats();
  const bool replaces = std::find(names.begin(), names.end(), name) != names.end();
  if (chat.is_empty()) {
    std::puts("There is nothing to save yet.");
  } else if (const Status saved = save_chat(name, chat.saved()); saved.ok()) {
    fmt::print("Saved{}; /load {} continues it.\n", replaces ? " in the place of the chat that had this name" : "",
               name);
  } else {
    fmt::print("/save {}: {}\n", name, saved.message());
  }
}

void continue_chat(Chat& chat, const std::string& name) {
  auto saved = load_chat(name);
  if (!saved.ok()) {
    fmt::print("/load {}: {}\n", name, saved.status().message());
    return;
  }
  std::string other;
  if (saved->model != chat.source().name()) other = fmt::format(", which was with {}", saved->model);
  for (const std::string& note : chat.resume(std::move(*saved))) fmt::print("{}\n", note);
  fmt::print("Going on with {}{}; /show history shows it.\n", name, other);
}

void list() {
  const std::vector<std::string> names = saved_chats();
  if (names.empty()) std::puts("No conversation was saved yet; /save NAME keeps this one.");
  for (const std::string& name : names) fmt::print("  {}\n", name);
}

void list_waiting(const Chat& chat) {
  for (const ShownPicture& picture : chat.waiting()) fmt::print("  {} goes with the next message\n", picture.label);
}

void show_picture(Chat& chat, const std::string& path) {
  if (const Status shown = chat.show(path); shown.ok())
    fmt::print("  {} goes with the next message\n", chat.waiting().back().label);
  else
    fmt::print("/image {}: {}\n", modelfile::escape(path), shown.message());
}

/// `/image`, or `/image FILE...`
void show_files(Chat& chat, std::string_view files) {
  const std::vector<std::string> paths = picture_paths(files);
  for (const std::string& path : paths) show_picture(chat, path);
  if (!paths.empty()) return;
  list_waiting(chat);
  if (chat.waiting().empty()) std::puts("No picture waits for the next message; /image FILE adds one.");
}

/// Shows pictures whose paths stand in a line, and leaves their names there. Empty: there was nothing else.
std::string show_named(Chat& chat, const std::string& text) {
  if (chat.options().raw || text.find('\n') != std::string::npos) return text;
  std::string out;
  std::size_t done = 0;
  bool has_words = false;
  for (const NamedPicture& named : pictures_named_in(text)) {
    if (const Status shown = chat.show(named.path); !shown.ok()) {
      fmt::print("{} stays a text: {}\n", modelfile::escape(named.path), shown.message());
      continue;
    }
    const std::string before = text.substr(done, named.begin - done);
    has_words = has_words || !trim(before).empty();
    out += before + chat.waiting().back().name();
    fmt::print("  {}\n", chat.waiting().back().label);
    done = named.end;
  }
  has_words = has_words || !trim(text.substr(done)).empty();
  return has_words ? out + text.substr(done) : std::string();
}

/// A line that begins with a slash is a command, unless it begins with a picture's path.
bool is_command(const std::string& text) {
  if (text.front() != '/') return false;
  const std::vector<NamedPicture> named = pictures_named_in(text);
  return named.empty() || named.front().begin > 0;
}

enum class Next { go_on, leave };

Next command(Chat& chat, const std::string& line) {
  std::istringstream words(line);
  std::string verb, name;
  words >> verb >> name;
  std::string rest;
  std::getline(words >> std::ws, rest);
  if (verb == "/bye" || verb == "/exit" || verb == "/quit") return Next::leave;
  if (verb == "/clear") {
    chat.clear();
    std::puts("Forgotten.");
  } else if (verb == "/image") {
    show_files(chat, std::string_view(line).substr(verb.size()));
  } else if (verb == "/save" && !name.empty()) {
    save(chat, name);
  } else if (verb == "/load" && !name.empty()) {
    continue_chat(chat, name);
  } else if (verb == "/save" || verb == "/load") {
    fmt::print("{} wants a name; /list shows those there are.\n", verb);
  } else if (verb == "/list") {
    list();
  } else if (verb == "/set" && !name.empty()) {
    set_words(chat, name, rest);
  } else if (verb == "/show") {
    show_settings(chat, name);
  } else if (verb == "/?" || verb == "/help" || verb == "/set") {
    std::fputs(kHelp, stdout);
  } else {
    fmt::print("There is no command {}. /? lists them.\n", verb);
  }
  return Next::go_on;
}

}  // namespace

int run_repl(Chat& chat) {
  fmt::print("{} is ready. /? for help, Ctrl-D to leave.\n", chat.source().name());
  list_waiting(chat);
  prepare_lines();
  const bool keeps = os::is_terminal(os::Stream::input);
  if (keeps)
    for (const std::string& line : read_history()) remember_line(line);
  while (true) {
    auto text = read_text();
    if (!text) {
      if (interrupted().exchange(false)) {
        std::puts("\n(Ctrl-D or /bye leaves)");
        continue;
      }
      std::puts("");
      return 0;
    }
    interrupted() = false;
    if (text->find_first_not_of(" \t\n") == std::string::npos) continue;
    if (!text->starts_with(' ')) {
      remember_line(*text);
      if (keeps) keep_in_history(*text);
    }
    if (is_command(*text)) {
      if (command(chat, *text) == Next::leave) return 0;
      continue;
    }
    *text = show_named(chat, *text);
    if (text->empty()) {
      std::puts("  Ask about it in the next message.");
      continue;
    }
    const bool showed = !chat.waiting().empty();
    const Status said = chat.say(*text);
    if (said.code() == Code::cancelled)
      std::puts("(stopped)");
    else if (!said.ok())
      (void)fail(said);
    if (showed && !said.ok() && said.code() != Code::cancelled)
      std::puts("(the message is forgotten, with its pictures)");
    interrupted() = false;
  }
}

}  // namespace millrace::cli
