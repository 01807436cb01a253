// Writes the grammar of one schema. Inside of text/constraint/ only; schema.h is for everybody else.
// Thread-safety: as GrammarBuilder.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "text/constraint/json_rules.h"
#include "text/constraint/regular.h"
#include "text/constraint/schema_check.h"
#include "text/constraint/schema_flatten.h"
#include "text/constraint/schema_items.h"

namespace millrace::text {

class SchemaCompiler {
 public:
  /// `document` outlives the compiler.
  SchemaCompiler(const SchemaDocument& document, const BuildLimits& limits)
      : document_(document),
        flattener_(document),
        builder_(limits),
        rules_(builder_),
        sets_(builder_),
        checker_(flattener_, sets_) {}

  Expected<std::shared_ptr<const Grammar>> compile();

 private:
  struct Property {
    std::string name;
    SchemaJson schema;
    bool required = false;
    bool declared = true;  // else additionalProperties says what it has to be
  };
  /// Names that are not declared, and what their values have to be.
  struct FreeNames {
    RegularSets::Set names;
    std::vector<SchemaJson> schemas;  // all hold; none: additionalProperties
  };
  /// Where the next member of an object begins, by how many there were. The last place stands for more members, too,
  /// unless their number is bounded.
  struct Places {
    std::vector<StateId> states;
    bool bounded = false;
    bool differ = false;  // free names come once each
    StateId pending = 0;  // behind a comma, where members are not counted
    std::uint32_t after(std::uint32_t count) const {
      return std::min(count + 1, static_cast<std::uint32_t>(states.size()) - 1);
    }
    bool full(std::uint32_t count) const { return bounded && count + 1 == states.size(); }
  };

  struct Counts {
    std::uint32_t least = 0, most = UINT32_MAX;
  };

  // schema.cpp
  Expected<RuleId> reference(const std::string& pointer);
  Expected<Fragment> value(const SchemaJson& schema);
  Expected<Fragment> combined_value(const SchemaJson& schema);
  Expected<Fragment> plain_value(const SchemaJson& schema);
  Expected<std::set<std::string>> bound_types(const SchemaJson& schema, bool& binds) const;
  Expected<std::vector<std::string>> types_of(const SchemaJson& schema, const std::set<std::string>& bound) const;
  Expected<SchemaJson> values_that_hold(const SchemaJson& schema);
  Expected<Fragment> one_of_values(const SchemaJson& schema);
  Expected<std::string> spelled(const SchemaJson& value) const;
  Expected<Fragment> typed(const SchemaJson& schema, const std::string& type);
  Expected<Fragment> boolean(const SchemaJson& schema);
  Expected<Fragment> string(const SchemaJson& schema);
  Expected<Fragment> number(const SchemaJson& schema, Numbers which);
  Expected<Fragment> or_nothing(Expected<Fragment> part);
  Expected<RuleId> rule_of(const SchemaJson& schema);
  Fragment join(std::initializer_list<Fragment> parts);
  Fragment quoted(Fragment inside) { return join({builder_.literal("\""), inside, builder_.literal("\"")}); }
  /// While it lives, equal values are spelled alike.
  class OneSpelling {
   public:
    explicit OneSpelling(JsonRules& rules, bool wanted = true)
        : rules_(rules), before_(rules.set_spelling(wanted ? JsonSpelling::one : rules.spelling())) {}
    ~OneSpelling() { rules_.set_spelling(before_); }
    OneSpelling(const OneSpelling&) = delete;
    OneSpelling& operator=(const OneSpelling&) = delete;

   private:
    JsonRules& rules_;
    const JsonSpelling before_;
  };
  bool one_spelling() const { return rules_.spelling() == JsonSpelling::one; }
  void call(StateId from, RuleId rule, StateId to, bool differs) {
    differs ? builder_.call_different(from, rule, to) : builder_.call(from, rule, to);
  }
  Fragment comma() { return join({builder_.literal(","), rules_.space()}); }

  // schema_array.cpp
  Expected<Fragment> array(const SchemaJson& schema);
  /// An item that is counted for some conditions: a bit each.
  struct ItemKind {
    RuleId rule;
    std::uint32_t counted;
    SchemaJson schema;
  };
  Expected<std::vector<ItemKind>> kinds_of_items(const SchemaJson& item, std::size_t place,
                                                 const std::vector<Contained>& conditions);
  Expected<Fragment> containing_array(const ItemSchemas& items, const std::vector<Contained>& conditions, Counts count,
                                      bool differ);
  static bool is_found(const std::vector<Contained>& conditions, std::size_t found);
  static std::optional<std::size_t> count_found(const std::vector<Contained>& conditions, std::size_t found,
                                                std::uint32_t counted);
  void want_items(const ItemSchemas& items, const std::vector<Contained>& conditions, std::uint32_t least,
                  const std::vector<std::vector<ItemKind>>& kinds, StateId end);
  Expected<Fragment> unique_array(const SchemaJson& items, std::uint32_t least, std::uint32_t most);
  std::uint32_t texts_wanted(const SchemaJson& item, std::span<const SchemaJson> before);
  Expected<Fragment> item_list(const std::vector<RuleId>& first, RuleId others, Counts count,
                               const std::optional<std::vector<std::uint32_t>>& wanted);
  Fragment subsets(const std::vector<RuleId>& values, std::uint32_t least, std::uint32_t most);
  Expected<std::vector<SchemaJson>> finite_values(const SchemaJson& schema, int depth = 0);

  // schema_object.cpp
  Expected<Fragment> object(const SchemaJson& schema);
  Expected<std::vector<Property>> properties_of(const SchemaJson& schema) const;
  Status bind_by_patterns(const SchemaJson& schema, std::vector<Property>& properties);
  Status bind_names(const SchemaJson& schema, std::vector<Property>& properties, SchemaJson& others);
  Expected<RegularSets::Set> names_of(const SchemaJson& schema, int depth = 0);
  SchemaJson others_of(const SchemaJson& schema, const std::vector<Property>& properties) const;
  Expected<Places> first_places(const SchemaJson& schema, const std::vector<Property>& properties, bool open);
  Places next_places(const Places& places);
  StateId before_member(const Places& places, std::uint32_t count);
  static Status check_optional(const std::vector<Property>& properties);
  Status add_member(const Property& property, Places& places);
  void add_uncounted(Fragment member, bool required, const Places& places, Places& next);
  void add_others(Fragment member, Places& places, std::uint32_t least, StateId end);
  Expected<std::vector<FreeNames>> free_names(const SchemaJson& schema, const std::vector<Property>& properties);
  Expected<Fragment> free_name(const SchemaJson& schema, const FreeNames& names,
                               const std::vector<Property>& properties, bool differ);
  Expected<Fragment> free_member(const SchemaJson& schema, const SchemaJson& others,
                                 const std::vector<Property>& properties, bool differ);

  const SchemaDocument& document_;
  Flattener flattener_;
  GrammarBuilder builder_;
  JsonRules rules_;
  RegularSets sets_;
  ValueChecker checker_;
  std::map<std::pair<std::string, JsonSpelling>, RuleId> references_, combined_;  // by pointer; by the schema's text
  Status contradiction_;  // the first that left a part of the schema without values
  int depth_ = 0;
};

}  // namespace millrace::text
