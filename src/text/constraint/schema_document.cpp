#include "text/constraint/schema_document.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

#include "text/constraint/schema_keywords.h"
#include "text/constraint/uri.h"

namespace millrace::text {
namespace {

constexpr char kSettled = '\x01';  // before a target's number
constexpr std::size_t kMostUriBytes = 2048;

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

/// Null: it points to nothing. `pass` sees what lies on the way, and the end.
template <typename Pass>
const SchemaJson* pointed_to(const SchemaJson& from, std::string_view pointer, Pass pass) {
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
      pass(*at);
      continue;
    }
    std::size_t index = 0;
    const auto read = std::from_chars(name->data(), name->data() + name->size(), index);
    if (!at->is_array() || read.ec != std::errc() || read.ptr != name->data() + name->size() || index >= at->size())
      return nullptr;
    at = &(*at)[index];
    pass(*at);
  }
  return at;
}

/// The name in "other.json#name".
std::string_view fragment_of(std::string_view reference) {
  const std::size_t cut = reference.find('#');
  return cut == std::string_view::npos ? std::string_view() : reference.substr(cut + 1);
}

}  // namespace

/// Copies of what is reached on ways with different answers.
class SchemaDocument::Ways {
 public:
  explicit Ways(SchemaDocument& document) : document_(document) {
    for (std::size_t i = 0; i < document_.references_.size(); ++i) {
      const Reference& each = document_.references_[i];
      const std::string words = each.value->get<std::string>();
      references_.emplace(each.value, i);
      meant_.push_back(document_.static_target(each));
      names_.emplace_back(each.keyword == "$ref" ? "" : fragment_of(words));
    }
  }

  void follow() {
    copy_of({&document_.root_, 0}, {});
    while (!open_.empty()) {
      const Open next = std::move(open_.back());
      open_.pop_back();
      lead_on(*next.from, *next.copy, next.answers);
    }
    if (!document_.copies_.empty()) document_.whole_ = &document_.copies_.front();
  }

 private:
  struct Open {
    const SchemaJson* from;
    SchemaJson* copy;
    Answers answers;
  };

  void enter(std::size_t part, Answers& answers) const {
    for (const auto& [name, target] : document_.parts_[part].anchors)
      if (target.dynamic) answers.try_emplace(name, part);
  }

  /// The index of a copy for those who reach it with these answers.
  std::size_t copy_of(const Target& target, Answers answers) {
    enter(target.part, answers);
    const auto [known, fresh] = copies_.try_emplace({target.schema, answers}, document_.targets_.size());
    if (!fresh) return known->second;
    constexpr std::size_t most_copies = 2000;
    constexpr std::uint64_t most_values = 100'000;
    if (document_.copies_.size() >= most_copies || document_.copied_values_ > most_values) {
      document_.targets_.emplace_back(
          error(Code::unsupported, "$dynamicRef means something else on too many ways through the schema; use $ref"));
    } else {
      SchemaJson& copy = document_.copies_.emplace_back(*target.schema);
      document_.targets_.emplace_back(&copy);
      open_.push_back({target.schema, &copy, std::move(answers)});
    }
    return known->second;
  }

  /// Makes the references of a copy lead to copies.
  void lead_on(const SchemaJson& from, SchemaJson& copy, const Answers& before) {
    ++document_.copied_values_;
    const auto part = document_.part_at_.find(&from);
    const bool enters = part != document_.part_at_.end();
    Answers entered;
    if (enters) enter(part->second, entered = before);
    const Answers& answers = enters ? entered : before;
    if (const auto reference = references_.find(&from); reference != references_.end()) {
      copy = kSettled + std::to_string(target_of(reference->second, answers));
      return;
    }
    if (!from.is_structured()) return;
    auto to = copy.begin();
    for (const SchemaJson& each : from) lead_on(each, *to++, answers);
  }

  std::size_t target_of(std::size_t reference, const Answers& answers) {
    const Expected<Target>& meant = meant_[reference];
    if (!meant.ok()) {
      document_.targets_.emplace_back(meant.status());
      return document_.targets_.size() - 1;
    }
    const std::string& name = names_[reference];
    const bool asks = meant->dynamic && document_.references_[reference].keyword != "$ref";
    const auto answer = asks ? answers.find(name) : answers.end();
    if (answer == answers.end()) return copy_of(*meant, answers);
    return copy_of(document_.parts_[answer->second].anchors.find(name)->second, answers);
  }

  SchemaDocument& document_;
  std::unordered_map<const SchemaJson*, std::size_t> references_;
  std::vector<Expected<Target>> meant_;  // by reference, whatever the way
  std::vector<std::string> names_;       // that references ask for
  std::map<std::pair<const SchemaJson*, Answers>, std::size_t> copies_;
  std::vector<Open> open_;
};

SchemaDocument::SchemaDocument(SchemaJson root) : root_(std::move(root)) {
  const std::string draft = root_.is_object() ? text_of(root_, "$schema") : "";
  is_old_ = !draft.empty() && draft.find("2020-12") == std::string::npos;
  if (draft.find("draft-04") != std::string::npos) id_ = "id";
  parts_.push_back({&root_, "", {}});
  uris_.emplace("", 0);
  look_at(root_, 0, true);
  const auto depends = [&](const Reference& reference) { return depends_on_way(reference); };
  if (std::any_of(references_.begin(), references_.end(), depends)) {
    Ways(*this).follow();
  } else {
    for (const Reference& reference : references_) settle(reference);
  }
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
      part_at_.emplace(&schema, part);
    }
    uris_.emplace(uri, part);
  }
  for (const auto& [keyword, dynamic] : {std::pair("$anchor", false), {"$dynamicAnchor", true}})
    if (const std::string name = text_of(schema, keyword); !name.empty()) names.emplace_back(name, dynamic);
  if (schema.value("$recursiveAnchor", SchemaJson()) == true) names.emplace_back("", true);
  for (const auto& [name, dynamic] : names) {
    const bool fresh = parts_[part].anchors.emplace(name, Target{&schema, part, dynamic}).second;
    if (fresh && dynamic) ++dynamic_names_[name];
  }
  return part;
}

/// What a reference says from within a part; a null schema: nothing that is known.
SchemaDocument::Target SchemaDocument::find(std::string_view reference, std::size_t part) const {
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
  const auto pass = [&](const SchemaJson& passed) {
    if (const auto entered = part_at_.find(&passed); entered != part_at_.end()) part = entered->second;
  };
  const std::size_t begin = part;
  if (const SchemaJson* const found = pointed_to(*from.schema, percent_decoded(fragment), pass)) return {found, part};
  part = begin;
  const SchemaJson* const found = pointed_to(*from.schema, fragment, pass);
  return {found, part};
}

/// What it means wherever it is reached from, but for who answers to a dynamic name.
Expected<SchemaDocument::Target> SchemaDocument::static_target(const Reference& reference) const {
  const auto& words = reference.value->get_ref<const std::string&>();
  const Target found = find(words, reference.part);
  if (found.schema != nullptr) return found;
  if (words.starts_with('#'))
    return error(Code::invalid_argument, "{} '{}' points to nothing", reference.keyword, words.substr(0, 100));
  return error(Code::unsupported, "{} '{}' leads out of the schema; copy what it means into $defs", reference.keyword,
               words.substr(0, 100));
}

bool SchemaDocument::answers(std::size_t part, std::string_view name) const {
  const auto named = parts_[part].anchors.find(name);
  return named != parts_[part].anchors.end() && named->second.dynamic;
}

/// All ways begin with the root: whatever it answers to means the same on each.
bool SchemaDocument::depends_on_way(const Reference& reference) const {
  if (reference.keyword == "$ref") return false;
  const auto& words = reference.value->get_ref<const std::string&>();
  const std::string_view name = fragment_of(words);
  const auto known = dynamic_names_.find(name);
  if (known == dynamic_names_.end() || known->second < 2 || answers(0, name)) return false;
  return find(words, reference.part).dynamic;
}

/// Each reference once, however often it stands. REQUIRES: it does not depend on the way.
void SchemaDocument::settle(const Reference& reference) {
  std::string words = reference.value->get<std::string>();
  if (reference.keyword != "$ref") words += kSettled;  // it may mean something else than $ref does
  const auto [known, fresh] = known_.try_emplace({reference.part, std::move(words)}, targets_.size());
  if (fresh) {
    const auto& said = reference.value->get_ref<const std::string&>();
    const auto meant = static_target(reference);
    const std::string_view name = fragment_of(said);
    const bool by_root = meant.ok() && meant->dynamic && reference.keyword != "$ref" && answers(0, name);
    if (by_root) {
      targets_.emplace_back(parts_[0].anchors.find(name)->second.schema);
    } else if (meant.ok()) {
      targets_.emplace_back(meant->schema);
    } else {
      targets_.emplace_back(meant.status());
    }
  }
  *reference.value = kSettled + std::to_string(known->second);
}

std::uint64_t SchemaDocument::bytes() const {
  constexpr std::uint64_t entry = 160;  // of a map, with its words
  std::uint64_t uris = 0;
  for (const Part& part : parts_) uris += 2 * part.uri.capacity();  // once more by its name
  constexpr std::uint64_t value = 96;  // of a copy, with its share of lists, names and texts
  return uris + copied_values_ * value + parts_.capacity() * sizeof(Part) + references_.capacity() * sizeof(Reference) +
         targets_.capacity() * sizeof(targets_[0]) +
         (uris_.size() + known_.size() + part_at_.size() + dynamic_names_.size()) * entry;
}

Expected<const SchemaJson*> SchemaDocument::resolve(const std::string& reference) const {
  if (reference == "#") return whole_;
  std::size_t target = targets_.size();
  if (reference.starts_with(kSettled))
    std::from_chars(reference.data() + 1, reference.data() + reference.size(), target);
  if (target >= targets_.size())
    return error(Code::invalid_argument, "$ref '{}' points to nothing", reference.substr(0, 100));
  return targets_[target];
}

}  // namespace millrace::text
