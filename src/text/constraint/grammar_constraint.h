// A grammar as the constraint of an answer.
//
//   auto trie = TokenTrie::make(tokenizer);                    // once a model
//   auto grammar = schema_grammar(R"({"type":"integer"})");    // once a schema
//   request.constraint = make_constraint(*grammar, trie);      // once a request
//
// Thread-safety: the functions may be called from anywhere; a constraint belongs to one request.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/constraint/constraint.h"
#include "text/constraint/grammar.h"
#include "text/constraint/token_trie.h"

namespace millrace::text {

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const Grammar> grammar,
                                            std::shared_ptr<const TokenTrie> trie);

/// What may come before the text that keeps a form.
struct ThoughtBefore {
  bool opened = false;           // the prompt has opened a thought
  std::vector<TokenId> begin{};  // opens one; empty: none may be opened
  std::string end{};             // ends it
  // Written before the text, where the format of the model has messages with headers: without a thought, and after one.
  std::vector<TokenId> header{}, header_after{};
};

/// A thought, which is free but for the tokens that end an answer, and then `inner`. What the thought's last token says
/// past its end (a line break) is free, too. REQUIRES: `end` is not empty where a thought is opened or may be.
std::shared_ptr<Constraint> make_constraint_after(ThoughtBefore thought, std::shared_ptr<Constraint> inner,
                                                  std::shared_ptr<const TokenTrie> trie,
                                                  std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
