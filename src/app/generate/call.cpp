#include "app/generate/call.h"

#include <string_view>
#include <utility>

#include "text/past_arguments.h"

namespace millrace::generate {

Json ToolCall::object() const {
  constexpr int kMostCut = 64;  // a key without its value, half a word or escape
  std::string_view json = arguments;
  for (int i = 0; i < kMostCut && !json.empty(); ++i) {
    Json read = Json::parse(std::string(json) + text::closing_brackets(json), nullptr, false);
    if (read.is_object()) return read;
    json.remove_suffix(1);
  }
  return Json::object();
}

std::vector<ToolCall> CallJoiner::add(const std::vector<CallPiece>& pieces) {
  std::vector<ToolCall> whole;
  for (const CallPiece& piece : pieces) {
    if (piece.begins) open_ = {piece.name, {}};
    open_.arguments += piece.arguments;
    if (piece.ends) whole.push_back(std::exchange(open_, {}));
  }
  return whole;
}

}  // namespace millrace::generate
