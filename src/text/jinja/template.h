// Jinja, as far as chat templates use it and the way transformers renders them: trim_blocks, lstrip_blocks, loop
// controls, the generation tag, its own tojson, raise_exception, strftime_now. Python's jinja2 is the reference. Not
// supported: inheritance and includes, recursive loops, changing lists in place (jinja2's sandbox forbids it, too).
//
// Errors: one line with the template's line. A template cannot crash or hang the program: see meter.h for the limits.
// Thread-safety: immutable once parsed; render() may be called from any thread.
#pragma once

#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja/meter.h"
#include "text/marked_text.h"

namespace millrace::text::jinja {

struct Parsed;

/// The variables of a template. Others are undefined.
struct Inputs {
  const nlohmann::ordered_json* values = nullptr;            // an object; every string in it is untrusted
  std::vector<std::pair<std::string, std::string>> trusted;  // such as bos_token
  std::optional<std::time_t> now;                            // for strftime_now; nullopt: the clock
};

class Template {
 public:
  /// Errors: unsupported (not a template, or one that needs an unsupported feature).
  static Expected<Template> parse(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  /// The template's own text is trusted; text from `inputs.values` is not, however filters split and join it. The
  /// result is no longer counted by `limits.grant`. Errors: invalid_argument (raise_exception, values that do not fit,
  /// too many steps), unsupported (past a limit of memory), out_of_budget and cancelled (by the grant).
  Expected<MarkedText> render(const Inputs& inputs, const Limits& limits = {}) const;

  /// True if the template uses a variable of this name.
  bool mentions(std::string_view name) const;

 private:
  explicit Template(std::unique_ptr<const Parsed> parsed);
  std::unique_ptr<const Parsed> parsed_;
};

}  // namespace millrace::text::jinja
