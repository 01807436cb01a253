// `millrace eval`: the share of questions answered exactly, greedy, through the chat template.
#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

struct Question {
  std::string prompt, answer;
};

struct EvalFlags {
  ModelFlags model;
  std::vector<std::string> words;
  std::string file;
  int sequences = 8;
  std::int64_t max_tokens = 64;
  bool show_wrong = false;
};

Expected<std::vector<Question>> read_questions(const std::string& path) {
  constexpr std::uint64_t kMostBytes = 64u << 20;
  MR_ASSIGN_OR_RETURN(std::string text, residency::read_small_file(path, kMostBytes));
  std::istringstream file(std::move(text));
  std::vector<Question> questions;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("prompt") || !json.contains("answer") || !json["prompt"].is_string() ||
        !json["answer"].is_string()) {
      return error(Code::corrupt, "{}:{}: not a line of the form {{\"prompt\": \"...\", \"answer\": \"...\"}}", path,
                   number);
    }
    questions.push_back({json["prompt"], json["answer"]});
  }
  if (questions.empty()) return error(Code::invalid_argument, "{}: holds no questions", path);
  return questions;
}

/// Asks the questions in groups that share passes; counts exact answers.
Expected<int> count_exact(engine::Engine& engine, const std::vector<Question>& questions, const EvalFlags& flags,
                          bool quiet) {
  const auto* chat_template = engine.chat_template();
  if (chat_template == nullptr) return engine.chat_template_status();
  Progress progress("Asking", Unit::items, quiet);
  int exact = 0;
  for (std::size_t begin = 0; begin < questions.size(); begin += static_cast<std::size_t>(flags.sequences)) {
    const std::size_t end = std::min(questions.size(), begin + static_cast<std::size_t>(flags.sequences));
    std::vector<engine::Engine::Id> ids;
    for (std::size_t i = begin; i < end; ++i) {
      engine::Request request;
      MR_ASSIGN_OR_RETURN(request.prompt,
                          chat_template->render(engine.tokenizer(), {{"user", questions[i].prompt}}, true));
      request.sampler.temperature = 0;
      request.max_tokens = flags.max_tokens;
      MR_ASSIGN_OR_RETURN(const auto id, engine.submit(std::move(request)));
      ids.push_back(id);
    }
    while (engine.step()) {
      if (interrupted()) return error(Code::cancelled, "stopped after {} questions", begin);
    }
    for (std::size_t i = begin; i < end; ++i) {
      auto result = engine.take(ids[i - begin]);
      if (result.finish == engine::Finish::error) return result.status;
      const bool right = result.text == questions[i].answer;
      exact += right ? 1 : 0;
      if (!right && flags.show_wrong)
        fmt::print("asked: {}\n  want: {}\n  got:  {}\n", questions[i].prompt, questions[i].answer, result.text);
    }
    progress.update(end, questions.size());
  }
  return exact;
}

int execute(EvalFlags& flags, const Program& program) {
  const std::size_t wanted = flags.model.model.empty() ? 2 : 1;
  if (flags.words.size() != wanted)
    return fail(error(Code::invalid_argument, "eval takes MODEL FILE, or FILE -m MODEL"));
  if (wanted == 2) flags.model.model = flags.words.front();
  flags.file = flags.words.back();
  auto questions = read_questions(flags.file);
  if (!questions.ok()) return fail(questions.status());
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  options->max_sequences = flags.sequences;
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  auto exact = count_exact(**created, *questions, flags, program.quiet);
  if (!exact.ok()) return fail(exact.status());
  fmt::print("{} of {} answered exactly ({:.1f} %)\n", *exact, questions->size(),
             100.0 * *exact / static_cast<double>(questions->size()));
  if ((*created)->store_counters().misses > 0) fmt::print("{}", describe_experts(**created, 0));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  auto* command = app.add_subcommand("eval", "Share of questions answered exactly ({\"prompt\", \"answer\"} a line)");
  add_model_flags(*command, flags->model);
  command->remove_option(command->get_option("model"));  // where -m names it, the only word is the file
  command->add_option("-m,--model", flags->model.model, "A model by name, or a GGUF file (any part of a split one)");
  command->add_option("words", flags->words, "The model (or -m) and a file of questions, a JSON object a line")
      ->option_text("[MODEL] FILE")
      ->expected(1, 2)
      ->required();
  command->add_option("-s,--sequences", flags->sequences, "Questions asked side by side")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("-n,--max-tokens", flags->max_tokens, "Tokens in an answer at most")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--show-wrong", flags->show_wrong, "Print the questions that were missed");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
