// `millrace pull`, `list`, `show`, `rm`, `cp`, `create`: the models of this machine by name.
#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/cli/pull.h"
#include "app/store/adapters.h"
#include "app/store/files.h"
#include "app/store/pull.h"
#include "base/bytes.h"
#include "base/say.h"
#include "modelfile/escape.h"
#include "modelfile/gguf.h"
#include "vision/beside.h"

namespace millrace::cli {
namespace {

struct PullFlags {
  std::string name, ram, vram, dtype;
  bool no_fit = false, no_mmproj = false;
  FetchFlags fetch;
};

struct ShowFlags {
  std::string name;
  bool recipe = false, parameters = false, system = false, chat_template = false, license = false;
};

int execute_pull(const PullFlags& flags, const Program& program) {
  PullPrinter printer(program.quiet);
  store::PullOptions options = pull_options(flags.fetch, printer);
  if (!flags.dtype.empty()) {
    const auto type = modelfile::quantize_type_from_name(flags.dtype);
    if (!type.ok()) return fail(type.status());
    options.type = *type;
  }
  options.mmproj = !flags.no_mmproj;
  if (!flags.no_fit) {
    options.fit = [&](const std::string& path) -> Expected<std::string> {
      ModelFlags model;
      model.model = path;
      model.ram = flags.ram;
      model.vram = flags.vram;
      MR_ASSIGN_OR_RETURN(engine::EngineOptions run, engine_options(model, program));
      return store::describe_fit(run);
    };
  }
  store::Store store;
  const auto pulled = store::pull(store, flags.name, options);
  if (!pulled.ok()) return fail(pulled.status());
  if (!program.quiet) fmt::print("{}\n", pulled->name.text());
  return 0;
}

int execute_list(bool json) {
  const auto models = store::Store().list();
  if (!models.ok()) return fail(models.status());
  if (json) {
    nlohmann::json all = nlohmann::json::array();
    for (const store::Manifest& model : *models)
      all.push_back({{"name", model.name.text()},
                     {"digest", model.digest()},
                     {"bytes", model.bytes()},
                     {"modified", model.modified}});
    fmt::print("{}\n", all.dump(2));
    return 0;
  }
  std::size_t width = 4;
  for (const store::Manifest& model : *models) width = std::max(width, model.name.text().size());
  fmt::print("{:<{}}  {:<12}  {:>8}  {}\n", "NAME", width, "ID", "SIZE", "MODIFIED");
  for (const store::Manifest& model : *models)
    fmt::print("{:<{}}  {:<12}  {:>8}  {}\n", model.name.text(), width, model.digest().substr(0, 12),
               format_bytes(model.bytes()), model.modified);
  for (const store::StoredShares& share : store::Store().shares())
    fmt::print("{}  {:>8}  parts for {} process{} of a cluster\n", share.name, format_bytes(share.bytes), share.folders,
               share.folders == 1 ? "" : "es");
  return 0;
}

std::vector<engine::AdapterOptions> adapters_of(const store::Manifest& manifest) {
  return store::adapters_of(store::Store(), manifest.name, manifest.files);
}

store::Recipe recipe_of(const store::Manifest& manifest, const std::string& path) {
  store::Recipe recipe{
      path, manifest.parameters, manifest.system, manifest.chat_template, manifest.license, manifest.messages};
  for (const engine::AdapterOptions& adapter : adapters_of(manifest)) recipe.adapters.push_back({.path = adapter.path});
  return recipe;
}

void print_line(const char* what, const std::string& value) {
  constexpr std::size_t most = 60;  // beside its name, in 80 columns
  const std::string text = modelfile::escape(value.substr(0, value.find('\n')), most);
  if (!text.empty()) fmt::print("  {:<16}{}\n", what, text);
}

/// Bytes by type, the largest part first: "Q4_K 70 %, Q6_K 29 %".
std::string types_of(const modelfile::Model& model) {
  std::map<std::string, double> bytes;
  double all = 0;
  for (const auto& tensor : model.tensors()) {
    bytes[std::string(info(tensor.dtype).name)] += static_cast<double>(tensor.bytes);
    all += static_cast<double>(tensor.bytes);
  }
  std::vector<std::pair<std::string, double>> order(bytes.begin(), bytes.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, part] : order)
    if (text.size() < 40 && part >= 0.005 * all)
      text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", name, 100 * part / all);
  return text;
}

/// What a model is, on one screen; `inspect` has the rest.
void print_model(const store::Resolved& resolved, const modelfile::Model& model) {
  const store::Manifest& manifest = resolved.manifest;
  const auto text = [&](const std::string& key) {
    const auto value = model.get_string(key);
    return value.ok() ? *value : std::string();
  };
  const std::string architecture = text("general.architecture");
  const auto number = [&](const std::string& key) {
    const auto value = model.get_int(fmt::format("{}.{}", architecture, key));
    return value.ok() ? fmt::format("{}", *value) : std::string();
  };
  double parameters = 0;
  std::uint64_t bytes = 0;
  for (const auto& tensor : model.tensors()) {
    parameters += static_cast<double>(tensor.cols() * tensor.rows());
    bytes += tensor.bytes;
  }
  fmt::print("Model\n");
  if (resolved.named) print_line("name", manifest.name.text());
  print_line("title", text("general.name"));
  print_line("architecture", architecture);
  print_line("parameters",
             parameters >= 1e9 ? fmt::format("{:.1f}B", parameters * 1e-9) : fmt::format("{:.1f}M", parameters * 1e-6));
  print_line("context", number("context_length"));
  print_line("quantization", types_of(model));
  print_line("size", format_bytes(bytes));
  if (resolved.named) print_line("from", manifest.from);
  print_line("file", resolved.path);
  const std::string chat = manifest.chat_template.empty() ? text("tokenizer.chat_template") : manifest.chat_template;
  const auto causal = model.get_bool_or(architecture + ".attention.causal", true);
  const bool embeds = !number("pooling_type").empty() || (causal.ok() && !*causal);
  fmt::print("\nCapabilities\n  {}\n", embeds ? "embedding" : "completion");
  if (!chat.empty()) fmt::print("  chat\n");
  if (chat.find("tools") != std::string::npos) fmt::print("  tools\n");
  if (chat.find("think") != std::string::npos) fmt::print("  thinking\n");
  if (const std::string mmproj = vision::mmproj_for(resolved.path, ""); !mmproj.empty())
    fmt::print("  vision ({})\n", mmproj);
  const auto adapters = adapters_of(manifest);
  if (!adapters.empty()) fmt::print("\nAdapters\n");
  for (const engine::AdapterOptions& adapter : adapters) print_line(adapter.name.c_str(), adapter.path);
  if (!manifest.parameters.empty()) fmt::print("\nParameters\n");
  for (const auto& [name, value] : manifest.parameters.items()) print_line(name.c_str(), value.dump());
  if (!manifest.system.empty()) {
    fmt::print("\nSystem message\n");
    print_line("", manifest.system);
  }
  const std::string license = manifest.license.empty() ? text("general.license") : manifest.license;
  if (!license.empty()) {
    fmt::print("\nLicence\n");
    print_line("", license);
  }
  fmt::print("\nMore: millrace inspect {}\n",
             modelfile::escape(resolved.named ? manifest.name.text() : resolved.path, 100));
}

int execute_show(const ShowFlags& flags) {
  const auto resolved = store::Store().resolve(flags.name);
  if (!resolved.ok()) return fail(resolved.status());
  const store::Manifest& manifest = resolved->manifest;
  const bool part = flags.recipe || flags.parameters || flags.system || flags.chat_template || flags.license;
  if (flags.recipe) std::fputs(to_text(recipe_of(manifest, resolved->path)).c_str(), stdout);
  if (flags.parameters) {
    for (const auto& [name, value] : manifest.parameters.items()) fmt::print("{:<20} {}\n", name, value.dump());
  }
  if (flags.system) fmt::print("{}\n", manifest.system);
  if (flags.license) fmt::print("{}\n", manifest.license);
  if (part && !flags.chat_template) return 0;
  const auto model = modelfile::Model::open(resolved->path);
  if (!model.ok()) return fail(model.status());
  if (flags.chat_template) {
    const auto own = model->get_string("tokenizer.chat_template");
    fmt::print("{}\n", !manifest.chat_template.empty() ? manifest.chat_template : own.ok() ? *own : std::string());
    return 0;
  }
  print_model(*resolved, *model);
  return 0;
}

int execute_create(const std::string& name, const std::string& path) {
  const auto text = store::read_whole(path);
  if (!text.ok()) return fail(text.status());
  const auto recipe = store::parse_recipe(*text);
  if (!recipe.ok()) return fail(recipe.status().with_context(path));
  const std::string folder = std::filesystem::absolute(path).parent_path().string();
  const auto made = store::Store().create(name, *recipe, folder);
  if (!made.ok()) return fail(made.status());
  fmt::print("{}\n", made->name.text());
  return 0;
}

int done(const Status& status) { return status.ok() ? 0 : fail(status); }

void add_pull(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<PullFlags>();
  auto* command = app.add_subcommand("pull", "Fetch a model: hf.co/user/repo:QUANT (HF_ENDPOINT, HF_TOKEN)");
  command
      ->add_option("name", flags->name,
                   "llama3.2:3b and other known names, user/repo, user/repo:QUANT or the address of a .gguf")
      ->required();
  command->add_flag("--no-fit", flags->no_fit, "Fetch it even if this machine cannot run it");
  command->add_flag("--no-mmproj", flags->no_mmproj,
                    "Skip the mmproj file, which lets the model read pictures (default: fetch the best one, too)");
  command->add_option("--ram", flags->ram, "Memory limit to check against");
  command->add_option("--vram", flags->vram, "GPU memory limit to check against");
  command->add_option("--dtype", flags->dtype,
                      "For a repository of safetensors: the type to convert matrices to (see convert)");
  add_fetch_flags(*command, flags->fetch);
  command->callback([flags, &program, &exit_code] { exit_code = execute_pull(*flags, program); });
}

void add_show(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<ShowFlags>();
  auto* command = app.add_subcommand("show", "Show what a model is and how it runs by default");
  command->add_option("model", flags->name, "A model by name, or a GGUF file")->required();
  command->add_flag("--modelfile", flags->recipe, "The Modelfile that makes it");
  command->add_flag("--parameters", flags->parameters, "Its parameters");
  command->add_flag("--system", flags->system, "Its system message");
  command->add_flag("--template", flags->chat_template, "Its chat template");
  command->add_flag("--license", flags->license, "Its licence");
  command->callback([flags, &exit_code] { exit_code = execute_show(*flags); });
}

void add_rm_cp(CLI::App& app, int& exit_code) {
  auto names = std::make_shared<std::vector<std::string>>();
  auto* remove =
      app.add_subcommand("rm", "Remove models, and parts that clusters fetched; files shared with other models stay");
  remove->add_option("model", *names, "Names")->required();
  remove->callback([names, &exit_code] {
    for (const std::string& name : *names)
      if (exit_code == 0) exit_code = done(store::Store().remove(name));
  });
  auto pair = std::make_shared<std::pair<std::string, std::string>>();
  auto* copy = app.add_subcommand("cp", "Give a model another name; both share the file");
  copy->add_option("from", pair->first, "A name")->required();
  copy->add_option("to", pair->second, "The new name")->required();
  copy->callback([pair, &exit_code] { exit_code = done(store::Store().copy(pair->first, pair->second)); });
}

}  // namespace

void PullPrinter::operator()(const store::PullEvent& event) {
  if (event.status != last_) {
    bar_.reset();
    if (!quiet_) say(stderr, "{}\n", event.status);
    last_ = event.status;
    const std::string label = event.digest.empty() ? event.status : event.digest.substr(7, 12);
    if (event.total > 0) bar_ = std::make_unique<Progress>(label, Unit::bytes, quiet_);
  }
  if (bar_) bar_->update(event.completed, event.total);
}

void add_fetch_flags(CLI::App& command, FetchFlags& flags) {
  command.add_option("--connections", flags.connections, "Ranges fetched at once")
      ->check(CLI::Range(1, 32))
      ->capture_default_str();
  command.add_option("--attempts", flags.attempts, "For developers: without progress")->group("");
  command.add_option("--retry-ms", flags.retry_ms, "For developers: before the second attempt")->group("");
  command.add_option("--stall", flags.stall_seconds, "For developers: seconds without a byte")->group("");
}

store::PullOptions pull_options(const FetchFlags& flags, PullPrinter& printer) {
  store::PullOptions options = store::pull_options_from_environment();
  options.download.connections = flags.connections;
  options.download.attempts = flags.attempts;
  options.download.retry_ms = flags.retry_ms;
  options.download.http.stall_seconds = flags.stall_seconds;
  options.download.http.cancel = &interrupted();
  options.on_event = [&printer](const store::PullEvent& event) { printer(event); };
  install_interrupt_handler();
  return options;
}

int pull_model(const std::string& name, const Program& program) {
  PullFlags flags;
  flags.name = name;
  return execute_pull(flags, program);
}

void add_models(CLI::App& app, const Program& program, int& exit_code) {
  add_pull(app, program, exit_code);
  auto json = std::make_shared<bool>(false);
  auto* list = app.add_subcommand("list", "List the models on this machine")->alias("ls");
  list->add_flag("--json", *json, "Print JSON");
  list->callback([json, &exit_code] { exit_code = execute_list(*json); });
  add_show(app, exit_code);
  add_rm_cp(app, exit_code);
  auto words = std::make_shared<std::pair<std::string, std::string>>("", "Modelfile");
  auto* create = app.add_subcommand("create", "Create a model from another one with a Modelfile");
  create->add_option("name", words->first, "Its name")->required();
  create->add_option("-f,--file", words->second, "The Modelfile")->capture_default_str();
  create->callback([words, &exit_code] { exit_code = execute_create(words->first, words->second); });
}

}  // namespace millrace::cli
