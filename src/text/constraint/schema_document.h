// A schema's whole document: what its references mean, whichever draft wrote them. Thread-safety: immutable.
//
// A reference is a JSON pointer ("#/$defs/a%20b"), a name ("#node", by $anchor or $dynamicAnchor), or a URI that the
// $id of a part of the document answers to. $dynamicRef and $recursiveRef mean what they say where a single part
// answers to the name, or the whole document does; else they are refused. Source: JSON Schema 2020-12, section 8.2.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace millrace::text {

using SchemaJson = nlohmann::ordered_json;

class SchemaDocument {
 public:
  /// References are made short names that resolve() knows, and bounds that draft 4 says with true and false are
  /// numbers, as later drafts have them.
  explicit SchemaDocument(SchemaJson root);
  SchemaDocument(const SchemaDocument&) = delete;
  SchemaDocument& operator=(const SchemaDocument&) = delete;

  const SchemaJson& root() const { return root_; }
  std::uint64_t bytes() const;  // of memory beside the root's, about
  /// It was written for a draft before 2020-12.
  bool is_old() const { return is_old_; }
  /// What the value of a $ref means: "#" is the root. Errors: invalid_argument (nothing), unsupported (another
  /// document; a name that several parts answer to).
  Expected<const SchemaJson*> resolve(const std::string& reference) const;

 private:
  struct Anchor {
    const SchemaJson* schema = nullptr;
    bool dynamic = false;
  };
  /// A part of the document with a URI of its own.
  struct Part {
    const SchemaJson* schema = nullptr;
    std::string uri;
    std::map<std::string, Anchor, std::less<>> anchors;
  };
  struct Reference {
    SchemaJson* value;  // of `keyword`
    std::string_view keyword;
    std::size_t part;
  };

  void look_at(SchemaJson& schema, std::size_t part, bool known);
  std::size_t enter(const SchemaJson& schema, std::size_t part);
  void look_within(const std::string& keyword, SchemaJson& value, std::size_t part, bool known);
  void settle(const Reference& reference);
  Anchor find(std::string_view reference, std::size_t part) const;
  Expected<const SchemaJson*> meant_by(const Reference& reference) const;

  SchemaJson root_;
  bool is_old_ = false;
  const char* id_ = "$id";  // the keyword of a part's URI
  std::vector<Part> parts_;
  std::vector<Reference> references_;
  std::map<std::string, std::size_t, std::less<>> uris_;
  std::map<std::pair<std::size_t, std::string>, std::size_t> known_;  // by part and words: index into targets_
  std::vector<Expected<const SchemaJson*>> targets_;
};

}  // namespace millrace::text
