// `millrace tokenize`: text in, ids out, one line a text; --ids turns ids back into text.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdio>
#include <memory>

#include "app/cli/command.h"
#include "app/cli/input.h"

namespace millrace::cli {
namespace {

struct TokenizeFlags {
  std::string model;
  std::vector<std::string> texts;
  bool ids = false, specials = false, whole = false;
};

Status print_text(const text::Tokenizer& tokenizer, const std::string& line, bool specials) {
  std::vector<text::TokenId> ids;
  const char* at = line.data();
  const char* end = at + line.size();
  while (at != end) {
    if (*at == ' ' || *at == ',' || *at == '\t' || *at == '[' || *at == ']' || *at == '\r') {
      ++at;
      continue;
    }
    text::TokenId id = 0;
    const auto [next, problem] = std::from_chars(at, end, id);
    if (problem != std::errc() || id < 0 || id >= tokenizer.vocab_size()) {
      return error(Code::invalid_argument, "'{}' is not a list of token ids from 0 to {}", line,
                   tokenizer.vocab_size() - 1);
    }
    ids.push_back(id);
    at = next;
  }
  fmt::print("{}\n", tokenizer.decode(ids, specials));
  return {};
}

Status convert(const text::Tokenizer& tokenizer, const TokenizeFlags& flags, const std::string& text) {
  if (flags.ids) return print_text(tokenizer, text, flags.specials);
  fmt::print("{}\n",
             fmt::join(tokenizer.encode(text, flags.specials ? text::Specials::parse : text::Specials::as_text), " "));
  return {};
}

Status execute(const TokenizeFlags& flags) {
  MR_ASSIGN_OR_RETURN(const store::Resolved resolved, store::Store().resolve(flags.model));
  MR_ASSIGN_OR_RETURN(auto model, modelfile::Model::open(resolved.path));
  MR_ASSIGN_OR_RETURN(auto tokenizer, text::Tokenizer::from_model(model));
  for (const auto& text : flags.texts) MR_RETURN_IF_ERROR(convert(*tokenizer, flags, text));
  if (!flags.texts.empty()) return {};
  const std::uint64_t most = most_text_bytes(0);
  if (flags.whole) {
    MR_ASSIGN_OR_RETURN(const std::string text, read_input(most));
    return convert(*tokenizer, flags, text);
  }
  for (std::string line;;) {
    MR_ASSIGN_OR_RETURN(const bool came, read_input_line(line, most));
    if (!came) return {};
    MR_RETURN_IF_ERROR(convert(*tokenizer, flags, line));
  }
}

}  // namespace

void add_tokenize(CLI::App& app, const Program&, int& exit_code) {
  auto flags = std::make_shared<TokenizeFlags>();
  auto* command =
      app.add_subcommand("tokenize", "Turn texts into token ids, one line per text; --ids turns ids into text");
  command->add_option("model,-m,--model", flags->model, "A model by name, or a GGUF file")->required();
  command->add_option("text", flags->texts, "Texts (default: the lines of standard input)");
  command->add_flag("--ids", flags->ids, "The input is token ids; print their text");
  command->add_flag("--special", flags->specials, "Read and print special tokens such as <|im_end|>");
  command->add_flag("--whole", flags->whole, "Standard input is one text, line ends included");
  command->callback([flags, &exit_code] {
    if (const Status status = execute(*flags); !status.ok()) exit_code = fail(status);
  });
}

}  // namespace millrace::cli
