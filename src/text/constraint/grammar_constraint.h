// Constraints made of grammars.
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

/// The text that may precede the constrained text.
struct ThoughtBefore {
  bool opened = false;           // the prompt opened a thought
  std::vector<TokenId> begin{};  // opens a thought; empty: not allowed
  std::string end{};             // ends the thought
  // Written before the text if the model's format has messages with headers: without a thought, and after one.
  std::vector<TokenId> header{}, header_after{};
};

/// A thought, in which all tokens except end tokens are allowed, and then `inner`. Text after the thought's end within
/// its last token (a line break) is unconstrained. REQUIRES: `end` is not empty if a thought is or may be opened.
std::shared_ptr<Constraint> make_constraint_after(ThoughtBefore thought, std::shared_ptr<Constraint> inner,
                                                  std::shared_ptr<const TokenTrie> trie,
                                                  std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
