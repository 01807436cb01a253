// A schema's whole document: what its references mean, whichever draft wrote them. Thread-safety: immutable.
//
// A reference is a JSON pointer ("#/$defs/a%20b"), a name ("#node", by $anchor or $dynamicAnchor), or a URI that the
// $id of a part of the document answers to. What $dynamicRef and $recursiveRef mean depends on the way to them where
// several parts answer to the name and the whole document does not: there is a copy then of each schema for each set of
// answers with which it is reached, and references in it lead to copies. Source: JSON Schema 2020-12, section 8.2.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"
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

  std::uint64_t bytes() const;  // of memory beside the root's, about
  /// It was written for a draft before 2020-12.
  bool is_old() const { return is_old_; }
  /// What the value of a $ref means: "#" is the root. Errors: invalid_argument (nothing), unsupported (another
  /// document; too many copies).
  Expected<const SchemaJson*> resolve(const std::string& reference) const;

 private:
  /// A schema that references lead to, and the part that it is in.
  struct Target {
    const SchemaJson* schema = nullptr;
    std::size_t part = 0;
    bool dynamic = false;  // a $dynamicRef looks for who answers to the name
  };
  /// A part of the document with a URI of its own.
  struct Part {
    const SchemaJson* schema = nullptr;
    std::string uri;
    std::map<std::string, Target, std::less<>> anchors;
  };
  struct Reference {
    SchemaJson* value;  // of `keyword`
    std::string_view keyword;
    std::size_t part;
  };
  /// Who answers to dynamic names: of the parts on the way, the outermost.
  using Answers = std::map<std::string, std::size_t, std::less<>>;

  void look_at(SchemaJson& schema, std::size_t part, bool known);
  std::size_t enter(const SchemaJson& schema, std::size_t part);
  void look_within(const std::string& keyword, SchemaJson& value, std::size_t part, bool known);
  Target find(std::string_view reference, std::size_t part) const;
  Expected<Target> static_target(const Reference& reference) const;
  bool answers(std::size_t part, std::string_view name) const;
  bool depends_on_way(const Reference& reference) const;
  void settle(const Reference& reference);

  class Ways;
  friend class Ways;

  SchemaJson root_;
  const SchemaJson* whole_ = &root_;  // or its copy
  bool is_old_ = false;
  const char* id_ = "$id";  // the keyword of a part's URI
  std::vector<Part> parts_;
  std::unordered_map<const SchemaJson*, std::size_t> part_at_;     // those with a URI but the whole
  std::map<std::string, std::size_t, std::less<>> dynamic_names_;  // how many parts answer
  std::vector<Reference> references_;
  std::map<std::string, std::size_t, std::less<>> uris_;
  std::map<std::pair<std::size_t, std::string>, std::size_t> known_;  // by part and words: index into targets_
  std::vector<Expected<const SchemaJson*>> targets_;
  std::deque<SchemaJson> copies_;
  std::uint64_t copied_values_ = 0;
};

}  // namespace millrace::text
