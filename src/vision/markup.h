// What stands for a picture among a prompt's tokens. A chat template writes one marker for a picture; the model was
// trained with more around it and with one place for each of the picture's rows. Source: the published processors.
// Thread-safety: values.
#pragma once

#include <string_view>

#include "vision/spec.h"

namespace millrace::vision {

/// Names of tokens and texts. The text `before` + `place` + `after` replaces the template's `marker`; then the token
/// `place` is replaced by the picture's rows: a token's row of states each, and `row_break` behind every row of the
/// grid but the last, `row_end` behind the last (empty: nothing).
struct Markup {
  std::string_view marker = {};              // the template's
  std::string_view before = {}, after = {};  // text around the rows
  std::string_view place = {};               // the token that a row of the picture takes the place of
  std::string_view row_break = {}, row_end = {};
};
const Markup& markup(Projector projector);

}  // namespace millrace::vision
