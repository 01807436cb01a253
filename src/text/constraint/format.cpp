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
#define MR_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define MR_LABEL "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
#define MR_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define MR_IPV4 "(" MR_BYTE "\\.){3}" MR_BYTE
#define MR_H "[0-9a-fA-F]{1,4}"
#define MR_IPV6                                                                                               \
  "((" MR_H ":){7}" MR_H "|(" MR_H ":){1,7}:|(" MR_H ":){1,6}:" MR_H "|(" MR_H ":){1,5}(:" MR_H "){2}|(" MR_H \
  ":){1,4}(:" MR_H "){3}|(" MR_H ":){1,3}(:" MR_H "){4}|(" MR_H ":){1,2}(:" MR_H "){5}|" MR_H ":(:" MR_H      \
  ")"                                                                                                         \
  "{6}|:((:" MR_H "){1,7}|:))"
#define MR_URI \
  "^https?://" MR_LABEL "(\\." MR_LABEL "){0,3}(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9._~-]*)*(\\?[a-zA-Z0-9._~=&-]*)?$"
#define MR_EMAIL "^[a-zA-Z0-9_+-]{1,40}(\\.[a-zA-Z0-9_+-]{1,20})?@(" MR_LABEL "\\.){1,3}[a-zA-Z]{2,20}$"
#define MR_HOSTNAME "^" MR_LABEL "(\\." MR_LABEL "){0,3}$"
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
      {"hostname", MR_HOSTNAME},
      {"idn-hostname", MR_HOSTNAME},
      {"email", MR_EMAIL},
      {"idn-email", MR_EMAIL},
      {"name-email", MR_EMAIL},
      {"uri", MR_URI},
      {"url", MR_URI},
      {"iri", MR_URI},
      {"uri-reference", MR_URI},
      {"iri-reference", MR_URI},
      {"uri-template", MR_URI},
      {"json-pointer", "^" MR_POINTER "$"},
      {"relative-json-pointer", "^(0|[1-9][0-9]{0,3})(#|" MR_POINTER ")$"},
      {"byte", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"},
      {"base64", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"},
      {"base64url", "^([A-Za-z0-9_-]{4})*$"},
      // What is signed and how is the header of every example: a model has no other at hand.
      {"jwt", "^eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9\\.eyJ[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+$"},
  };
  return all;
}

}  // namespace

Expected<std::optional<std::string_view>> format_pattern(std::string_view format, bool beside_others) {
  const auto known = patterns().find(format);
  if (beside_others && known != patterns().end()) {
    // Long labels of bounded length beside a bounded whole would need a state for each pair of them.
    static constexpr std::string_view counted_uri = MR_URI, counted_host = MR_HOSTNAME;
    static constexpr std::string_view uri =
        "^https?://[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*"
        "(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9._~-]*)*(\\?[a-zA-Z0-9._~=&-]*)?$";
    static constexpr std::string_view host =
        "^[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?){0,3}$";
    if (known->second == counted_uri) return std::optional<std::string_view>(uri);
    if (known->second == counted_host) return std::optional<std::string_view>(host);
  }
  if (known != patterns().end()) return std::optional<std::string_view>(known->second);
  for (const std::string_view refused : {"regex", "json-string", "multi-host-uri"})
    if (format == refused)
      return error(Code::unsupported, "format '{}' is not supported; leave it out, or write a pattern", format);
  return std::optional<std::string_view>();
}

#undef MR_YEAR
#undef MR_LEAP
#undef MR_DATE
#undef MR_TIME
#undef MR_LABEL
#undef MR_BYTE
#undef MR_IPV4
#undef MR_H
#undef MR_IPV6
#undef MR_URI
#undef MR_EMAIL
#undef MR_HOSTNAME
#undef MR_UUID
#undef MR_POINTER
#undef MR_N
#undef MR_DAYS
#undef MR_HOURS

}  // namespace millrace::text
