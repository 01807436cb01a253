// A limit on how many tokens a model thinks. When they are spent, the next tokens are those that end the thought and
// lead over to the answer, whatever the model would have written. All else is free, or what another constraint leaves.
// Thread-safety: the function may be called from anywhere; a constraint belongs to one request.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/constraint/constraint.h"

namespace millrace::text {

struct BoundThought {
  std::int64_t tokens = 0;       // of all thoughts of the answer together, their marks aside; 0: it may not think
  bool opened = false;           // the prompt has opened a thought
  std::string begin, end;        // the marks around a thought. REQUIRES: not empty
  std::vector<TokenId> closing;  // says `end` and what stands between a thought and an answer. REQUIRES: not empty
  std::optional<TokenId> not_again{};  // may not follow right behind these: it would open the next thought
};

/// `inner` follows the answer, too, and comes first where it forbids a closing token. Null: the rest is free.
std::shared_ptr<Constraint> make_thought_budget(BoundThought thought, std::shared_ptr<Constraint> inner,
                                                std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
