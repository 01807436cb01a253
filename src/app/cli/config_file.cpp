#include "app/cli/config_file.h"

#include <set>
#include <sstream>
#include <string_view>

#include "base/words.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

constexpr std::uint64_t kMostConfigBytes = 1 << 20;

/// `from_file`: options that a line before this one set.
Status apply_line(CLI::App& command, std::string_view line, std::set<const CLI::Option*>& from_file) {
  const auto equals = line.find('=');
  const std::string name(trim(line.substr(0, equals)));
  CLI::Option* const option = command.get_option_no_throw("--" + name);
  if (option == nullptr || name == "config" || name == "help")
    return error(Code::invalid_argument, "there is no option '{}'", name);
  if (option->count() > 0 && !from_file.contains(option)) return {};
  const bool is_flag = option->get_items_expected_max() == 0;
  if (is_flag && equals != std::string_view::npos) return error(Code::invalid_argument, "'{}' takes no value", name);
  if (!is_flag && equals == std::string_view::npos)
    return error(Code::invalid_argument, "'{0}' needs a value: {0} = ...", name);
  if (from_file.contains(option) && option->get_items_expected_max() <= 1)
    return error(Code::invalid_argument, "'{}' appears twice; remove one of the lines", name);
  from_file.insert(option);
  option->add_result(is_flag ? "true" : std::string(trim(line.substr(equals + 1))));
  return {};
}

}  // namespace

Status apply_config_file(CLI::App& command, const std::string& path) {
  MR_ASSIGN_OR_RETURN(const std::string text, residency::read_small_file(path, kMostConfigBytes));
  std::set<const CLI::Option*> from_file;
  int number = 0;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";  // Windows' editors put it first
  std::istringstream lines(text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text);
  for (std::string raw; std::getline(lines, raw);) {
    ++number;
    const std::string_view line = trim(raw);
    if (line.empty() || line.front() == '#') continue;
    MR_RETURN_IF_ERROR(apply_line(command, line, from_file).with_context(fmt::format("{}:{}", path, number)));
  }
  for (CLI::Option* const option : command.get_options()) {
    if (!from_file.contains(option)) continue;
    try {
      option->run_callback();  // checks and keeps the value
    } catch (const CLI::ParseError& wrong) {
      return error(Code::invalid_argument, "{}: {}", path, wrong.what());
    }
  }
  return {};
}

}  // namespace millrace::cli
