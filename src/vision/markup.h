// What stands for a picture among a prompt's tokens. A chat template writes one marker for a picture; the model was
// trained with more around it and with one place for each of the picture's rows. Source: the published processors.
// Thread-safety: values.
#pragma once

#include <string>
#include <string_view>

#include "vision/spec.h"

namespace millrace::vision {

/// Names of tokens and texts. text_of() replaces the template's `marker`; then each token `place` is replaced by the
/// rows of a view: a token's row of states each, and `row_break` behind every row of the grid but the last, `row_end`
/// behind the last (empty: nothing).
struct Markup {
  std::string_view marker = {};              // the template's
  std::string_view before = {}, after = {};  // text around all views
  std::string_view place = {};               // the token that a row of the picture takes the place of
  std::string_view row_break = {}, row_end = {};
  /// Before a tile: `tile_row`, the tile's row, `tile_col`, its column, `tile_end`, both counted from 1; behind the
  /// last tile of a row: `line_end`.
  std::string_view tile_row = {}, tile_col = {}, tile_end = {}, line_end = {};
  std::string_view whole = {};         // before the whole picture
  std::string_view whole_behind = {};  // before that where tiles stand before it
};
const Markup& markup(Projector projector);

/// The text that stands for a picture of these views, with one token `place` for each.
std::string text_of(const Markup& markup, const Cut& cut);

}  // namespace millrace::vision
