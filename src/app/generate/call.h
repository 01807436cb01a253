// Calls of tools in an answer: whole, and in the pieces that arrive while it is made.
#pragma once

#include <string>
#include <vector>

#include "app/generate/job.h"

namespace millrace::generate {

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON; what the answer's end has cut is no whole object

  /// The arguments as an object; of a cut one, what came of it.
  Json object() const;
};
/// More of a call: the first piece has its name, the last one ends it.
struct CallPiece {
  int index = 0;  // of the call within its answer
  std::string name;
  std::string arguments;  // more of their JSON
  bool begins = false, ends = false;
};
/// Pieces become calls.
class CallJoiner {
 public:
  /// Those that are whole now.
  std::vector<ToolCall> add(const std::vector<CallPiece>& pieces);

 private:
  ToolCall open_;
};

}  // namespace millrace::generate
