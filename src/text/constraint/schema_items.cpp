#include "text/constraint/schema_items.h"

#include "text/constraint/schema_keywords.h"
#include "text/constraint/schema_strings.h"

namespace millrace::text {

Expected<ItemSchemas> item_schemas(const SchemaJson& schema) {
  const SchemaJson items = schema.value("items", SchemaJson());
  const bool old = items.is_array();  // before 2020
  const SchemaJson first = old ? items : schema.value("prefixItems", SchemaJson::array());
  const char* const keyword = old ? "additionalItems" : "items";
  if (!first.is_array()) return error(Code::invalid_argument, "prefixItems has to be a list of schemas");
  ItemSchemas result;
  result.first.assign(first.begin(), first.end());
  result.says_others = schema.contains(keyword);
  result.others = schema.value(keyword, SchemaJson(true));
  return result;
}

Expected<std::vector<Contained>> contained_of(const SchemaJson& schema) {
  constexpr std::uint32_t most_counted = 100;
  std::vector<Contained> all;
  SchemaJson groups = schema.value(kContained, SchemaJson::array());
  if (schema.contains("contains")) {
    SchemaJson own;
    for (const char* keyword : {"contains", "minContains", "maxContains"})
      if (schema.contains(keyword)) own[keyword] = schema[keyword];
    groups.push_back(std::move(own));
  }
  for (const SchemaJson& group : groups) {
    Contained each{group.at("contains")};
    MR_ASSIGN_OR_RETURN(each.least, schema_count(group, "minContains", 1, most_counted));
    MR_ASSIGN_OR_RETURN(each.most, schema_count(group, "maxContains", UINT32_MAX, most_counted));
    each.first = group.value("first", std::size_t{0});
    each.last = group.value("last", std::size_t{SIZE_MAX});
    if (each.least > 0 || each.binds_most()) all.push_back(std::move(each));
  }
  return all;
}

}  // namespace millrace::text
