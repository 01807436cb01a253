#include "text/constraint/format.h"

#include <map>

namespace millrace::text {
namespace {

#define MR_YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define MR_LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define MR_DATE                                                                                                       \
  "(" MR_YEAR                                                                                                         \
  "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" MR_LEAP \
  "-02-29)"
#define MR_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
// Four of them have fewer than 253 characters. Hyphens stand alone: two of them may begin a name in Punycode, which not
// every text is.
#define MR_ALNUM "[a-zA-Z0-9]"
#define MR_LABEL MR_ALNUM "{1,20}(-" MR_ALNUM "{1,20}){0,2}"
// The last label begins with a letter: readers of URLs take a host that ends with a number for an IPv4 address.
#define MR_HOST "(" MR_LABEL "\\.){0,3}[a-zA-Z]" MR_ALNUM "{0,19}(-" MR_ALNUM "{1,20}){0,2}"
#define MR_ANY_NAME "(" MR_ALNUM "+(-" MR_ALNUM "+)*\\.)*[a-zA-Z]" MR_ALNUM "*(-" MR_ALNUM "+)*"
#define MR_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define MR_IPV4 "(" MR_BYTE "\\.){3}" MR_BYTE
#define MR_ANY_HOST "(" MR_ANY_NAME "|" MR_IPV4 ")"
#define MR_H "[0-9a-fA-F]{1,4}"
#define MR_IPV6                                                                                               \
  "((" MR_H ":){7}" MR_H "|(" MR_H ":){1,7}:|(" MR_H ":){1,6}:" MR_H "|(" MR_H ":){1,5}(:" MR_H "){2}|(" MR_H \
  ":){1,4}(:" MR_H "){3}|(" MR_H ":){1,3}(:" MR_H "){4}|(" MR_H ":){1,2}(:" MR_H "){5}|" MR_H ":(:" MR_H      \
  ")"                                                                                                         \
  "{6}|:((:" MR_H "){1,7}|:))"
#define MR_PATH_CHARACTER "[a-zA-Z0-9._~-]"
#define MR_PORT "(:[1-9][0-9]{0,3})?"
#define MR_BEHIND_HOST MR_PORT "(/" MR_PATH_CHARACTER "*)*(\\?[a-zA-Z0-9._~=&-]*)?"
// Where nothing else binds an address, it is one of the web's.
#define MR_URI "https?://" MR_HOST MR_BEHIND_HOST
// "url", which is no word of the drafts: a name with a top level, and a port of two digits or more.
#define MR_BEHIND_NAME "\\.[a-zA-Z]{2,20}(:[1-9][0-9]{1,3})?(/" MR_PATH_CHARACTER "*)*"
#define MR_ANY_URI "[a-zA-Z][a-zA-Z0-9+.-]*://" MR_ANY_HOST MR_BEHIND_HOST
#define MR_RELATIVE "/?" MR_PATH_CHARACTER "+(/" MR_PATH_CHARACTER "*)*(\\?[a-zA-Z0-9._~=&-]*)?(#[a-zA-Z0-9._~-]*)?"
// postgres://user:password@host1:5432,host2:5432/name and the like.
#define MR_MULTI_HOST                                                                                                \
  "[a-z][a-z0-9]{1,11}(\\+[a-z0-9]{1,12})?://([a-zA-Z0-9._~-]{1,30}(:[a-zA-Z0-9._~-]{1,30})?@)?" MR_ANY_HOST MR_PORT \
  "(," MR_ANY_HOST MR_PORT "){0,4}(/" MR_PATH_CHARACTER "{0,40})?"
#define MR_VARIABLE "\\{[+#./;?&]?[a-zA-Z0-9_]{1,30}\\*?(,[a-zA-Z0-9_]{1,30}\\*?){0,9}\\}"
#define MR_URI_TEMPLATE "(https?://" MR_HOST MR_PORT ")?((/(" MR_PATH_CHARACTER "|" MR_VARIABLE ")*)+|" MR_VARIABLE ")"
#define MR_EMAIL "^[a-zA-Z0-9_+-]{1,40}(\\.[a-zA-Z0-9_+-]{1,20})?@(" MR_LABEL "\\.){1,3}[a-zA-Z]{2,20}$"
// Of regular expressions those that every reader takes alike, with groups within groups.
#define MR_REPEAT "([*+?]|\\{[1-9][0-9]?,?\\})?"
#define MR_ATOM                                                               \
  "([a-zA-Z0-9 _,:;@#%&=<>/!~'\"-]|\\.|\\\\[dDwWsSnrt.*+?^$(){}|/\\[\\]\\\\]" \
  "|\\[\\^?([a-zA-Z0-9_.,:;@#%&=!/ ]|a-z|A-Z|0-9|\\\\[dws.\\\\\\]])+\\])"
#define MR_OPTIONS(part) "(" part ")*(\\|(" part ")+)*"
#define MR_EXPRESSION1 MR_OPTIONS(MR_ATOM MR_REPEAT)
#define MR_EXPRESSION2 MR_OPTIONS("(" MR_ATOM "|\\((\\?:)?" MR_EXPRESSION1 "\\))" MR_REPEAT)
#define MR_EXPRESSION3 MR_OPTIONS("(" MR_ATOM "|\\((\\?:)?" MR_EXPRESSION2 "\\))" MR_REPEAT)
// JSON within a string: a value, or a list or an object of values, or of such.
#define MR_JSON_STRING "\"([^\"\\\\\\x00-\\x1F]|\\\\[\"\\\\/bfnrt])*\""
#define MR_JSON1 "(" MR_JSON_STRING "|-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,9})?|true|false|null)"
#define MR_JSON_LIST(item) "\\[(" item "(, ?" item ")*)?\\]"
#define MR_JSON_OBJECT(item) "\\{(" MR_JSON_STRING ": ?" item "(, ?" MR_JSON_STRING ": ?" item ")*)?\\}"
#define MR_JSON2 "(" MR_JSON1 "|" MR_JSON_LIST(MR_JSON1) "|" MR_JSON_OBJECT(MR_JSON1) ")"
#define MR_JSON3 "(" MR_JSON2 "|" MR_JSON_LIST(MR_JSON2) "|" MR_JSON_OBJECT(MR_JSON2) ")"
#define MR_UUID(version) "^[0-9a-f]{8}-[0-9a-f]{4}-" version "[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
#define MR_POINTER "(/([^~/\\x00-\\x1F]|~[01])*)*"
// A unit follows the one above it, as RFC 3339 has it; six digits stay within what Python's timedelta holds.
#define MR_N "[0-9]{1,6}"
#define MR_DAYS "(" MR_N "D|" MR_N "M(" MR_N "D)?|" MR_N "Y(" MR_N "M(" MR_N "D)?)?)"
#define MR_HOURS "T(" MR_N "S|" MR_N "M(" MR_N "S)?|" MR_N "H(" MR_N "M(" MR_N "S)?)?)"

const std::map<std::string_view, std::string_view>& patterns() {
  static const std::map<std::string_view, std::string_view> all = {
      {"date", "^" MR_DATE "$"},
      {"time", "^" MR_TIME "$"},
      {"date-time", "^" MR_DATE "T" MR_TIME "$"},
      {"duration", "^P(" MR_DAYS "(" MR_HOURS ")?|" MR_HOURS "|" MR_N "W)$"},
      {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
      {"uuid1", MR_UUID("1")},
      {"uuid3", MR_UUID("3")},
      {"uuid4", MR_UUID("4")},
      {"uuid5", MR_UUID("5")},
      {"uuid6", MR_UUID("6")},
      {"uuid7", MR_UUID("7")},
      {"uuid8", MR_UUID("8")},
      {"ipv4", "^" MR_IPV4 "$"},
      {"ipvanyaddress", "^" MR_IPV4 "$"},
      {"ipv4interface", "^" MR_IPV4 "/([1-2]?[0-9]|3[0-2])$"},
      {"ipvanyinterface", "^" MR_IPV4 "/([1-2]?[0-9]|3[0-2])$"},
      // A network has nothing but zeros behind its prefix.
      {"ipv4network", "^" MR_BYTE "\\.((" MR_BYTE "\\.){2}(" MR_BYTE "/32|0/24)|" MR_BYTE "\\.0\\.0/16|0\\.0\\.0/8)$"},
      {"ipvanynetwork",
       "^" MR_BYTE "\\.((" MR_BYTE "\\.){2}(" MR_BYTE "/32|0/24)|" MR_BYTE "\\.0\\.0/16|0\\.0\\.0/8)$"},
      {"ipv6", "^" MR_IPV6 "$"},
      {"ipv6interface", "^" MR_IPV6 "/([1-9]?[0-9]|1[01][0-9]|12[0-8])$"},
      {"ipv6network", "^" MR_IPV6 "/128$"},
      {"hostname", "^" MR_HOST "$"},
      {"idn-hostname", "^" MR_HOST "$"},
      {"email", MR_EMAIL},
      {"idn-email", MR_EMAIL},
      {"name-email", MR_EMAIL},
      {"uri", "^" MR_URI "$"},
      {"url", "^https?://" MR_HOST MR_BEHIND_NAME "$"},
      {"iri", "^" MR_URI "$"},
      {"uri-reference", "^(" MR_URI "|" MR_RELATIVE ")$"},
      {"iri-reference", "^(" MR_URI "|" MR_RELATIVE ")$"},
      {"uri-template", "^" MR_URI_TEMPLATE "$"},
      {"multi-host-uri", "^" MR_MULTI_HOST "$"},
      {"regex", "^\\^?" MR_EXPRESSION3 "\\$?$"},
      {"json-string", "^" MR_JSON3 "$"},
      {"json-pointer", "^" MR_POINTER "$"},
      {"relative-json-pointer", "^(0|[1-9]{1,4})(#|" MR_POINTER ")$"},
      {"byte", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"},
      {"base64", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"},
      {"base64url", "^([A-Za-z0-9_-]{4})*$"},
      // What is signed and how is the header of every example: a model has no other at hand.
      {"jwt", "^eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\\.eyJ[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+$"},
  };
  return all;
}

/// Where lengths stand beside them: parts of bounded length in a whole of bounded length would need a state for each
/// pair.
const std::map<std::string_view, std::string_view>& patterns_beside_lengths() {
  static constexpr std::string_view host =
      "^(" MR_ALNUM "{1,15}(-" MR_ALNUM "{1,15})?\\.){0,3}[a-zA-Z]" MR_ALNUM "{0,14}(-" MR_ALNUM "{1,15})?$";
  static constexpr std::string_view uri = "^https?://" MR_ANY_NAME MR_BEHIND_HOST "$";
  static constexpr std::string_view url = "^https?://" MR_ANY_NAME MR_BEHIND_NAME "$";
  static const std::map<std::string_view, std::string_view> all = {
      {"uri", uri}, {"url", url}, {"iri", uri}, {"hostname", host}, {"idn-hostname", host}};
  return all;
}

/// Where a pattern stands beside them, which says what kind of address is meant, and may bound its parts and the whole:
/// a name's last label would double its states.
const std::map<std::string_view, std::string_view>& patterns_beside_patterns() {
  static constexpr std::string_view uri = "^" MR_ANY_URI "$", reference = "^(" MR_ANY_URI "|" MR_RELATIVE ")$",
                                    host = "^" MR_ALNUM "+(-" MR_ALNUM "+)*(\\." MR_ALNUM "+(-" MR_ALNUM "+)*)*$";
  static const std::map<std::string_view, std::string_view> all = {
      {"uri", uri},       {"iri", uri},          {"uri-reference", reference}, {"iri-reference", reference},
      {"hostname", host}, {"idn-hostname", host}};
  return all;
}

}  // namespace

std::optional<std::string_view> format_pattern(std::string_view format, Beside beside) {
  const auto find = [&](const auto& all) -> std::optional<std::string_view> {
    const auto known = all.find(format);
    return known == all.end() ? std::optional<std::string_view>() : known->second;
  };
  std::optional<std::string_view> found;
  if (beside == Beside::patterns) found = find(patterns_beside_patterns());
  if (!found && beside != Beside::nothing) found = find(patterns_beside_lengths());
  return found ? found : find(patterns());
}

#undef MR_YEAR
#undef MR_LEAP
#undef MR_DATE
#undef MR_TIME
#undef MR_ALNUM
#undef MR_LABEL
#undef MR_HOST
#undef MR_ANY_NAME
#undef MR_ANY_HOST
#undef MR_BYTE
#undef MR_IPV4
#undef MR_H
#undef MR_IPV6
#undef MR_PATH_CHARACTER
#undef MR_PORT
#undef MR_BEHIND_HOST
#undef MR_URI
#undef MR_ANY_URI
#undef MR_BEHIND_NAME
#undef MR_RELATIVE
#undef MR_MULTI_HOST
#undef MR_VARIABLE
#undef MR_URI_TEMPLATE
#undef MR_EMAIL
#undef MR_REPEAT
#undef MR_ATOM
#undef MR_OPTIONS
#undef MR_EXPRESSION1
#undef MR_EXPRESSION2
#undef MR_EXPRESSION3
#undef MR_JSON_STRING
#undef MR_JSON1
#undef MR_JSON_LIST
#undef MR_JSON_OBJECT
#undef MR_JSON2
#undef MR_JSON3
#undef MR_UUID
#undef MR_POINTER
#undef MR_N
#undef MR_DAYS
#undef MR_HOURS

}  // namespace millrace::text
