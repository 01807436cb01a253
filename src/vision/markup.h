// The tokens that represent a picture in a prompt. A chat template writes one marker per picture; the model was trained
// with further tokens around it and with one placeholder per row of the picture. Source: the published processors.
// Thread-safety: values.
#pragma once

#include <string>
#include <string_view>

#include "vision/spec.h"

namespace millrace::vision {

/// Names of tokens and texts. text_of() replaces the template's `marker`. Then each token `place` is replaced by the
/// rows of a view, one row of states per token, with `row_break` after every row of the grid except the last, and
/// `row_end` after the last (empty: nothing).
struct Markup {
  std::string_view marker = {};              // the template's
  std::string_view before = {}, after = {};  // text around all views
  std::string_view place = {};               // the placeholder of a row of the picture
  std::string_view row_break = {}, row_end = {};
  /// Before a tile: `tile_row`, its row, `tile_col`, its column, `tile_end`, both counted from 1. After the last tile
  /// of a row: `line_end`.
  std::string_view tile_row = {}, tile_col = {}, tile_end = {}, line_end = {};
  std::string_view whole = {};         // before the whole picture
  std::string_view whole_behind = {};  // used instead if tiles precede it
};
const Markup& markup(Projector projector);

/// The text for a picture with these views, with one token `place` per view.
std::string text_of(const Markup& markup, const Cut& cut);

}  // namespace millrace::vision
