// Free text in which a model may call tools that take a text: where such a call's text begins, it has to keep the
// tool's grammar, until its end. What comes before and after is free.
//
// A call's text begins behind its key, "input", as JSON or the tags of the model's own format write it, within a line
// or so of the tool's name. Formats that write calls otherwise (as Python does) are told of the grammar in words alone.
// Thread-safety: the functions may be called from anywhere; a constraint belongs to one request.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "text/answer_format.h"
#include "text/constraint/constraint.h"
#include "text/constraint/token_trie.h"
#include "text/constraint/written_grammar.h"

namespace millrace::text {

struct BoundInput {
  std::string tool;
  std::shared_ptr<const Grammar> in_json;  // the inside of a JSON string and its last quote
  std::shared_ptr<const Grammar> in_tags;  // up to the value's end, between the format's line breaks; null: no tags
};

/// `tags` may be null. Errors: those of written_grammar().
Expected<BoundInput> bound_input(std::string tool, GrammarSyntax syntax, std::string_view grammar, const TagStyle* tags,
                                 const BuildLimits& limits = {});

/// `tags` (may be null) outlive it.
std::shared_ptr<Constraint> make_input_constraint(std::vector<BoundInput> inputs, const TagStyle* tags,
                                                  std::shared_ptr<const TokenTrie> trie,
                                                  std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace millrace::text
