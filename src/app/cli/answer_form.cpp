#include "app/cli/answer_form.h"

#include "base/words.h"
#include "residency/small_file.h"
#include "text/constraint/schema.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMostBytes = 1 << 20;  // of a file; what may be made of it has bounds of its own

Expected<generate::Job> written_form(text::GrammarSyntax syntax, std::string text) {
  MR_RETURN_IF_ERROR(text::written_grammar(syntax, text).status());
  generate::Job job;
  job.format = generate::Format::grammar;
  job.syntax = syntax;
  job.grammar = std::move(text);
  return job;
}

/// The text itself where it looks like one, else what the file holds.
Expected<std::string> text_or_file(const std::string& value, bool is_text) {
  if (is_text) return value;
  return residency::read_small_file(value, kMostBytes);
}

Expected<generate::Job> grammar_form(const std::string& value) {
  MR_ASSIGN_OR_RETURN(std::string text, text_or_file(value, value.find("::=") != std::string::npos));
  const bool gbnf = text.find("::=") != std::string::npos;
  return written_form(gbnf ? text::GrammarSyntax::gbnf : text::GrammarSyntax::lark, std::move(text));
}

Expected<generate::Job> schema_form(const std::string& value) {
  MR_ASSIGN_OR_RETURN(const std::string text, text_or_file(value, trim(value).starts_with('{')));
  generate::Job job;
  job.format = generate::Format::schema;
  MR_ASSIGN_OR_RETURN(job.schema, generate::parse_object(text));
  MR_RETURN_IF_ERROR(text::schema_grammar(job.schema.dump()).status());
  return job;
}

Expected<generate::Job> for_flag(const char* flag, Expected<generate::Job> job) {
  return job.ok() ? std::move(job) : job.status().with_context(flag);
}

}  // namespace

void add_form_flags(CLI::App& command, FormFlags& flags) {
  CLI::Option* const grammar = command.add_option(
      "--grammar", flags.grammar, "Answers follow this grammar: a file of GBNF or Lark, or GBNF itself");
  CLI::Option* const schema =
      command.add_option("--schema", flags.schema, "Answers follow this JSON schema: a file, or '{...}' itself");
  CLI::Option* const regex =
      command.add_option("--regex", flags.regex, "Answers match this regular expression from end to end");
  grammar->excludes(schema)->excludes(regex);
  schema->excludes(regex);
}

Expected<generate::Job> read_form(const FormFlags& flags) {
  if (!flags.grammar.empty()) return for_flag("--grammar", grammar_form(flags.grammar));
  if (!flags.schema.empty()) return for_flag("--schema", schema_form(flags.schema));
  if (!flags.regex.empty()) return for_flag("--regex", written_form(text::GrammarSyntax::regex, flags.regex));
  return generate::Job();
}

}  // namespace millrace::cli
