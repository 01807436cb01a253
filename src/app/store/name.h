// Names of models: `user/repo:QUANT` for what a hub has, `name:tag` for what a person made. `hf.co/` before a name is
// understood and left out; a missing tag is "latest". Every part is safe as a name of a folder.
// Thread-safety: values.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace millrace::store {

struct Name {
  std::string user;  // empty: a name without a hub
  std::string repo;
  std::string tag = "latest";
  bool tag_given = false;

  /// "user/repo:tag" or "repo:tag".
  std::string text() const;
  /// "user/repo": what the hub calls it.
  std::string repository() const { return user + "/" + repo; }
  /// Where its manifest lies below the store: "user/repo/tag", or "-/repo/tag" without a user.
  std::string folder() const { return (user.empty() ? "-" : user) + "/" + repo + "/" + tag; }
};

/// Errors: invalid_argument (empty, more than two parts, letters that no name has).
Expected<Name> parse_name(std::string_view text);

/// Whether `text` is an address at a hub, which is never a file's path: hf.co/..., or a URL.
bool is_hub_address(std::string_view text);

/// Letters, digits, '.', '_' and '-', not beginning with '.' or '-', at most 128.
bool is_safe_part(std::string_view part);

}  // namespace millrace::store
