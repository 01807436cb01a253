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

#include "text/constraint/constraint.h"
#include "text/constraint/grammar.h"
#include "text/constraint/token_trie.h"

namespace millrace::text {

std::shared_ptr<Constraint> make_constraint(std::shared_ptr<const Grammar> grammar,
                                            std::shared_ptr<const TokenTrie> trie);

/// Free text until `marker` has come ("</think>"), then `inner`. A text that ends before it is as good as whole.
/// What its last token says past the marker (a line break) is free, too. REQUIRES: marker not empty.
std::shared_ptr<Constraint> make_constraint_after(std::string marker, std::shared_ptr<Constraint> inner,
                                                  std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
