// `millrace eval`: the share of questions answered exactly, greedy, through the chat template.
#include <fmt/core.h>

#include <cstdio>
#include <memory>

#include "app/batch/lines.h"
#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "base/bytes.h"
#include "base/json.h"

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

constexpr std::size_t kMostLineBytes = 1 << 20;

/// The next questions of the file, `most` at most; none at its end.
Expected<std::vector<Question>> read_questions(batch::LineReader& file, int most) {
  std::vector<Question> questions;
  while (std::ssize(questions) < most) {
    MR_ASSIGN_OR_RETURN(const auto line, file.next());
    if (!line) break;
    if (line->blank()) continue;
    if (line->too_long)
      return error(Code::corrupt, "{}:{}: the line has more than {}", file.path(), line->number,
                   format_bytes(kMostLineBytes));
    const auto json = nlohmann::json::parse(line->text, nullptr, false);
    if (!json.is_object() || !json.contains("prompt") || !json.contains("answer") || !json["prompt"].is_string() ||
        !json["answer"].is_string()) {
      return error(Code::corrupt, "{}:{}: not a line of the form {{\"prompt\": \"...\", \"answer\": \"...\"}}",
                   file.path(), line->number);
    }
    questions.push_back({json["prompt"], json["answer"]});
  }
  return questions;
}

/// Of the whole file, of which one group of questions at a time is in memory.
Expected<std::int64_t> count_questions(const std::string& path) {
  MR_ASSIGN_OR_RETURN(auto file, batch::LineReader::open(path, kMostLineBytes));
  std::int64_t count = 0;
  for (;;) {
    MR_ASSIGN_OR_RETURN(const auto some, read_questions(file, 64));
    if (some.empty()) break;
    count += std::ssize(some);
  }
  if (count == 0) return error(Code::invalid_argument, "{}: holds no questions", path);
  return count;
}

/// Asks the questions in groups that share passes; counts exact answers.
Expected<int> count_exact(engine::Engine& engine, std::int64_t questions, const EvalFlags& flags, bool quiet) {
  const auto* chat_template = engine.chat_template();
  if (chat_template == nullptr) return engine.chat_template_status();
  MR_ASSIGN_OR_RETURN(auto file, batch::LineReader::open(flags.file, kMostLineBytes));
  Progress progress("Asking", Unit::items, quiet);
  int exact = 0;
  for (std::int64_t asked = 0;;) {
    MR_ASSIGN_OR_RETURN(const std::vector<Question> group, read_questions(file, flags.sequences));
    if (group.empty()) return exact;
    std::vector<engine::Engine::Id> ids;
    for (const Question& question : group) {
      engine::Request request;
      MR_ASSIGN_OR_RETURN(request.prompt, chat_template->render(engine.tokenizer(), {{"user", question.prompt}}, true));
      request.sampler.temperature = 0;
      request.max_tokens = flags.max_tokens;
      MR_ASSIGN_OR_RETURN(const auto id, engine.submit(std::move(request)));
      ids.push_back(id);
    }
    while (engine.step()) {
      if (interrupted()) return error(Code::cancelled, "stopped after {} questions", asked);
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      auto result = engine.take(ids[i]);
      if (result.finish == engine::Finish::error) return result.status;
      const bool right = result.text == group[i].answer;
      exact += right ? 1 : 0;
      if (!right && flags.show_wrong)
        fmt::print("asked: {}\n  want: {}\n  got:  {}\n", group[i].prompt, group[i].answer, result.text);
    }
    asked += std::ssize(group);
    progress.update(static_cast<std::uint64_t>(asked), static_cast<std::uint64_t>(questions));
  }
}

int execute(EvalFlags& flags, const Program& program) {
  const std::size_t wanted = flags.model.model.empty() ? 2 : 1;
  if (flags.words.size() != wanted)
    return fail(error(Code::invalid_argument, "eval takes MODEL FILE, or FILE -m MODEL"));
  if (wanted == 2) flags.model.model = flags.words.front();
  flags.file = flags.words.back();
  const auto questions = count_questions(flags.file);
  if (!questions.ok()) return fail(questions.status());
  auto options = engine_options(flags.model, program);
  if (!options.ok()) return fail(options.status());
  options->demand.max_sequences = flags.sequences;
  install_interrupt_handler();
  auto created = create_engine(*options, flags.model, program);
  if (!created.ok()) return fail(created.status());
  auto exact = count_exact(**created, *questions, flags, program.quiet);
  if (!exact.ok()) return fail(exact.status());
  fmt::print("{} of {} answered exactly ({:.1f} %)\n", *exact, *questions,
             100.0 * *exact / static_cast<double>(*questions));
  if ((*created)->store_counters().misses > 0) fmt::print("{}", describe_experts(**created, 0));
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, const Program& program, int& exit_code) {
  auto flags = std::make_shared<EvalFlags>();
  auto* command =
      app.add_subcommand("eval", "Measure the share of questions answered exactly ({\"prompt\", \"answer\"} a line)");
  add_model_flags(*command, flags->model);
  command->remove_option(command->get_option("model"));  // where -m names it, the only word is the file
  command->add_option("-m,--model", flags->model.model, "A model by name, or a GGUF file (any part of a split one)");
  command->add_option("words", flags->words, "The model (or -m) and a file of questions, a JSON object a line")
      ->option_text("[MODEL] FILE")
      ->expected(1, 2)
      ->required();
  command->add_option("-s,--sequences", flags->sequences, "Questions asked at once")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("-n,--max-tokens", flags->max_tokens, "Tokens in an answer at most")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_flag("--show-wrong", flags->show_wrong, "Print the questions that were missed");
  command->callback([flags, &program, &exit_code] { exit_code = execute(*flags, program); });
}

}  // namespace millrace::cli
