#include "text/constraint/schema_document.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "text/constraint/uri.h"

namespace millrace::text {
namespace {

constexpr char kSettled = '\x01';  // before a target's number
constexpr std::size_t kMostUriBytes = 2048;

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Their values are values, not schemas.
bool holds_values(std::string_view keyword) {
  return is_one_of(keyword, {"enum", "const", "default", "examples", "example"});
}

/// Their members have names of the author's.
bool holds_names(std::string_view keyword) {
  return is_one_of(keyword,
                   {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"});
}

bool holds_schemas(std::string_view keyword) {
  return holds_names(keyword) ||
         is_one_of(keyword, {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "items", "prefixItems",
                             "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
                             "unevaluatedProperties", "propertyNames", "contentSchema"});
}

std::string text_of(const SchemaJson& schema, const char* keyword) {
  const auto found = schema.find(keyword);
  return found != schema.end() && found->is_string() ? found->get<std::string>() : std::string();
}

/// {"minimum": 3, "exclusiveMinimum": true}, as draft 4 and OpenAPI 3.0 have it, says above 3.
void make_bounds_numbers(SchemaJson& schema) {
  for (const auto& [open, bound] : {std::pair("exclusiveMinimum", "minimum"), {"exclusiveMaximum", "maximum"}}) {
    const auto said = schema.find(open);
    if (said == schema.end() || !said->is_boolean()) continue;
    if (*said == true && schema.contains(bound)) {
      *said = schema[bound];
    } else {
      schema.erase(open);
    }
  }
}

/// A name of a JSON pointer, as RFC 6901 escapes it; none: it is no such name.
std::optional<std::string> unescaped(std::string_view token) {
  std::string name;
  for (std::size_t i = 0; i < token.size(); ++i) {
    if (token[i] != '~') {
      name += token[i];
      continue;
    }
    const char next = ++i < token.size() ? token[i] : '\0';
    if (next != '0' && next != '1') return std::nullopt;
    name += next == '0' ? '~' : '/';
  }
  return name;
}

/// Null: it points to nothing.
const SchemaJson* pointed_to(const SchemaJson& from, std::string_view pointer) {
  const SchemaJson* at = &from;
  while (!pointer.empty()) {
    const std::size_t end = std::min(pointer.find('/', 1), pointer.size());
    const auto name = unescaped(pointer.substr(1, end - 1));
    pointer.remove_prefix(end);
    if (!name) return nullptr;
    if (at->is_object()) {
      const auto found = at->find(*name);
      if (found == at->end()) return nullptr;
      at = &*found;
      continue;
    }
    std::size_t index = 0;
    const auto read = std::from_chars(name->data(), name->data() + name->size(), index);
    if (!at->is_array() || read.ec != std::errc() || read.ptr != name->data() + name->size() || index >= at->size())
      return nullptr;
    at = &(*at)[index];
  }
  return at;
}

}  // namespace

SchemaDocument::SchemaDocument(SchemaJson root) : root_(std::move(root)) {
  const std::string draft = root_.is_object() ? text_of(root_, "$schema") : "";
  is_old_ = !draft.empty() && draft.find("2020-12") == std::string::npos;
  if (draft.find("draft-04") != std::string::npos) id_ = "id";
  parts_.push_back({&root_, "", {}});
  uris_.emplace("", 0);
  look_at(root_, 0, true);
  for (const Reference& reference : references_) settle(reference);
}

/// `known`: a draft says that a schema stands here. Elsewhere nothing has an address of its own, and references are
/// read all the same: people keep schemas under words of their own.
void SchemaDocument::look_at(SchemaJson& schema, std::size_t part, bool known) {
  if (schema.is_array())
    for (SchemaJson& each : schema) look_at(each, part, known);
  if (!schema.is_object()) return;
  make_bounds_numbers(schema);
  if (known) part = enter(schema, part);
  for (const char* keyword : {"$ref", "$dynamicRef", "$recursiveRef"})
    if (const auto said = schema.find(keyword); said != schema.end() && said->is_string())
      references_.push_back({&*said, keyword, part});
  for (auto each = schema.begin(); each != schema.end(); ++each)
    if (each->is_structured() && !holds_values(each.key())) look_within(each.key(), *each, part, known);
}

void SchemaDocument::look_within(const std::string& keyword, SchemaJson& value, std::size_t part, bool known) {
  known = known && holds_schemas(keyword);
  if (!holds_names(keyword) || !value.is_object()) return look_at(value, part, known);
  for (SchemaJson& each : value) look_at(each, part, known);
}

/// The part that a schema is in, a new one where it has a URI. Its names are entered there.
std::size_t SchemaDocument::enter(const SchemaJson& schema, std::size_t part) {
  std::string id = text_of(schema, id_);
  std::vector<std::pair<std::string, bool>> names;  // and whether $dynamicRef looks for them
  if (const std::size_t fragment = id.find('#'); fragment != std::string::npos) {
    if (fragment + 1 < id.size()) names.emplace_back(id.substr(fragment + 1), false);  // as drafts 6 and 7 name parts
    id.resize(fragment);
  }
  if (!id.empty()) {
    std::string uri = joined_uri(parts_[part].uri, id);
    if (uri.size() > kMostUriBytes) uri.clear();  // nobody refers to it
    if (&schema == &root_) {
      parts_[0].uri = uri;
    } else {
      part = parts_.size();
      parts_.push_back({&schema, uri, {}});
    }
    uris_.emplace(uri, part);
  }
  for (const auto& [keyword, dynamic] : {std::pair("$anchor", false), {"$dynamicAnchor", true}})
    if (const std::string name = text_of(schema, keyword); !name.empty()) names.emplace_back(name, dynamic);
  if (schema.value("$recursiveAnchor", SchemaJson()) == true) names.emplace_back("", true);
  for (const auto& [name, dynamic] : names) parts_[part].anchors.emplace(name, Anchor{&schema, dynamic});
  return part;
}

/// What a reference says from within a part; a null schema: nothing that is known.
SchemaDocument::Anchor SchemaDocument::find(std::string_view reference, std::size_t part) const {
  const std::size_t cut = std::min(reference.find('#'), reference.size());
  if (cut > 0) {
    const auto known = uris_.find(joined_uri(parts_[part].uri, reference.substr(0, cut)));
    if (known == uris_.end()) return {};
    part = known->second;
  }
  const std::string_view fragment = reference.substr(std::min(cut + 1, reference.size()));
  const Part& from = parts_[part];
  if (const auto named = from.anchors.find(fragment); named != from.anchors.end()) return named->second;
  if (!fragment.empty() && fragment[0] != '/') return {};
  if (const SchemaJson* const found = pointed_to(*from.schema, percent_decoded(fragment))) return {found, false};
  return {pointed_to(*from.schema, fragment), false};
}

Expected<const SchemaJson*> SchemaDocument::meant_by(const Reference& reference) const {
  const auto& words = reference.value->get_ref<const std::string&>();
  const Anchor found = find(words, reference.part);
  if (found.schema == nullptr) {
    if (words.starts_with('#'))
      return error(Code::invalid_argument, "{} '{}' points to nothing", reference.keyword, words.substr(0, 100));
    return error(Code::unsupported, "{} '{}' leads out of the schema; copy what it means into $defs", reference.keyword,
                 words.substr(0, 100));
  }
  if (!found.dynamic || reference.keyword == "$ref") return found.schema;
  // The outermost part on the way that answers to the name: all ways begin with the root.
  const std::string_view name = std::string_view(words).substr(std::min(words.find('#') + 1, words.size()));
  const auto answers = [&](const Part& part) {
    const auto named = part.anchors.find(name);
    return named != part.anchors.end() && named->second.dynamic;
  };
  if (answers(parts_[0])) return parts_[0].anchors.find(name)->second.schema;
  if (std::count_if(parts_.begin(), parts_.end(), answers) == 1) return found.schema;
  return error(Code::unsupported, "{} '{}' may mean several parts of the schema; use $ref", reference.keyword,
               words.substr(0, 100));
}

/// Each reference once, however often it stands.
void SchemaDocument::settle(const Reference& reference) {
  std::string words = reference.value->get<std::string>();
  if (reference.keyword != "$ref") words += kSettled;  // it may mean something else than $ref does
  const auto [known, fresh] = known_.try_emplace({reference.part, std::move(words)}, targets_.size());
  if (fresh) targets_.push_back(meant_by(reference));
  *reference.value = kSettled + std::to_string(known->second);
}

std::uint64_t SchemaDocument::bytes() const {
  constexpr std::uint64_t entry = 160;  // of a map, with its words
  std::uint64_t uris = 0;
  for (const Part& part : parts_) uris += 2 * part.uri.capacity();  // once more by its name
  return uris + parts_.capacity() * sizeof(Part) + references_.capacity() * sizeof(Reference) +
         targets_.capacity() * sizeof(targets_[0]) + (uris_.size() + known_.size()) * entry;
}

Expected<const SchemaJson*> SchemaDocument::resolve(const std::string& reference) const {
  if (reference == "#") return &root_;
  std::size_t target = targets_.size();
  if (reference.starts_with(kSettled))
    std::from_chars(reference.data() + 1, reference.data() + reference.size(), target);
  if (target >= targets_.size())
    return error(Code::invalid_argument, "$ref '{}' points to nothing", reference.substr(0, 100));
  return targets_[target];
}

}  // namespace millrace::text
