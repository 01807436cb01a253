// A limit on the number of tokens in a model's thoughts. When the budget is spent, the mask allows only the tokens that
// end the thought and lead over to the answer. Everything else is unconstrained, or left to an inner constraint.
// Thread-safety: the function may be called from any thread; a constraint belongs to one request.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/constraint/constraint.h"

namespace millrace::text {

struct BoundThought {
  std::int64_t tokens = 0;             // for all thoughts of the answer together, without their marks; 0: no thoughts
  bool opened = false;                 // the prompt has opened a thought
  std::string begin, end;              // the marks around a thought. REQUIRES: not empty
  std::vector<TokenId> closing;        // `end`, and what separates a thought from the answer. REQUIRES: not empty
  std::optional<TokenId> not_again{};  // a token that would open the next thought: not allowed right after these
};

/// `inner` also follows the whole answer, and takes precedence if it forbids a closing token. It may be null.
std::shared_ptr<Constraint> make_thought_budget(BoundThought thought, std::shared_ptr<Constraint> inner,
                                                std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
