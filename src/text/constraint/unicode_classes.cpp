#include "text/constraint/unicode_classes.h"

#include <utf8proc.h>

#include <functional>
#include <map>
#include <string>

#include "base/mutex.h"

namespace millrace::text {
namespace {

using Holds = std::function<bool(const utf8proc_property_t&)>;

CharacterRanges where(const Holds& holds) {
  CharacterRanges ranges;
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c == 0xD800) c = 0xE000;
    if (!holds(*utf8proc_get_property(static_cast<utf8proc_int32_t>(c)))) continue;
    if (!ranges.empty() && ranges.back().second + 1 == c) {
      ranges.back().second = c;
    } else {
      ranges.emplace_back(c, c);
    }
  }
  return ranges;
}

/// The short names of general categories, in utf8proc's order.
constexpr std::string_view kCategories[] = {"Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd",
                                            "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm",
                                            "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

std::string_view short_name(std::string_view name) {
  static const std::map<std::string_view, std::string_view> names = {{"Letter", "L"},
                                                                     {"Uppercase_Letter", "Lu"},
                                                                     {"Lowercase_Letter", "Ll"},
                                                                     {"Titlecase_Letter", "Lt"},
                                                                     {"Modifier_Letter", "Lm"},
                                                                     {"Other_Letter", "Lo"},
                                                                     {"Mark", "M"},
                                                                     {"Nonspacing_Mark", "Mn"},
                                                                     {"Spacing_Mark", "Mc"},
                                                                     {"Enclosing_Mark", "Me"},
                                                                     {"Number", "N"},
                                                                     {"Decimal_Number", "Nd"},
                                                                     {"Letter_Number", "Nl"},
                                                                     {"Other_Number", "No"},
                                                                     {"Punctuation", "P"},
                                                                     {"Dash_Punctuation", "Pd"},
                                                                     {"Symbol", "S"},
                                                                     {"Math_Symbol", "Sm"},
                                                                     {"Currency_Symbol", "Sc"},
                                                                     {"Modifier_Symbol", "Sk"},
                                                                     {"Other_Symbol", "So"},
                                                                     {"Separator", "Z"},
                                                                     {"Space_Separator", "Zs"},
                                                                     {"Other", "C"},
                                                                     {"Control", "Cc"},
                                                                     {"Format", "Cf"},
                                                                     {"Unassigned", "Cn"},
                                                                     {"digit", "Nd"},
                                                                     {"punct", "P"}};
  for (const std::string_view prefix : {"General_Category=", "gc="})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

CharacterRanges make(std::string_view property, bool wide) {
  if (property == "Any") return complement({});
  if (property == "ASCII") return {{0, 0x7F}};
  // Source: emoji-data.txt of Unicode 15.
  if (property == "Emoji_Component")
    return {{'#', '#'},       {'*', '*'},         {'0', '9'},         {0x200D, 0x200D},   {0x20E3, 0x20E3},
            {0xFE0F, 0xFE0F}, {0x1F1E6, 0x1F1FF}, {0x1F3FB, 0x1F3FF}, {0x1F9B0, 0x1F9B3}, {0xE0020, 0xE007F}};
  if (property == "Regional_Indicator" || property == "RI") return {{0x1F1E6, 0x1F1FF}};
  if (property == "Extended_Pictographic" || property == "ExtPict") {
    // Versions of Unicode differ in it: what all of them have, or what any has.
    if (!wide)
      return {{0x2705, 0x2705},   {0x2764, 0x2764},   {0x2B50, 0x2B50},   {0x1F300, 0x1F320}, {0x1F600, 0x1F64F},
              {0x1F680, 0x1F6C5}, {0x1F910, 0x1F93A}, {0x1F950, 0x1F96B}, {0x1F980, 0x1F9A2}, {0x1F9D0, 0x1F9E6}};
    CharacterRanges all =
        where([](const auto& p) { return p.boundclass == UTF8PROC_BOUNDCLASS_EXTENDED_PICTOGRAPHIC; });
    all.insert(all.end(), {{0x2190, 0x2BFF}, {0x3030, 0x303D}, {0x3297, 0x3299}, {0x1F000, 0x1FAFF}});
    return tidy(std::move(all));
  }
  const std::string_view name = short_name(property);
  if (name.empty() || name.size() > 2) return {};
  return where([&](const auto& p) { return kCategories[p.category].starts_with(name); });
}

}  // namespace

const CharacterRanges& characters_with(std::string_view property, bool wide) {
  static Mutex mutex;
  static std::map<std::pair<std::string, bool>, CharacterRanges> known;
  static const CharacterRanges none;
  const MutexLock lock(mutex);
  const std::pair<std::string, bool> key(property, wide);
  if (const auto found = known.find(key); found != known.end()) return found->second;
  CharacterRanges made = make(property, wide);
  if (made.empty()) return none;  // whatever strangers name is not kept
  return known.emplace(key, std::move(made)).first->second;
}

}  // namespace millrace::text
