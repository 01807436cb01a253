#include "vision/markup.h"

#include <fmt/format.h>

#include <iterator>

namespace millrace::vision {

const Markup& markup(Projector projector) {
  static constexpr Markup kQwen = {
      .marker = "<|image_pad|>", .before = "<|vision_start|>", .after = "<|vision_end|>", .place = "<|image_pad|>"};
  static constexpr Markup kGemma3 = {.marker = "<start_of_image>",
                                     .before = "\n\n<start_of_image>",
                                     .after = "<end_of_image>\n\n",
                                     .place = "<image_soft_token>"};
  static constexpr Markup kGemma4 = {
      .marker = "<|image|>", .before = "<|image>", .after = "<image|>", .place = "<|image|>"};
  static constexpr Markup kPixtral = {
      .marker = "[IMG]", .place = "[IMG]", .row_break = "[IMG_BREAK]", .row_end = "[IMG_END]"};
  static constexpr Markup kInternVl = {
      .marker = "<IMG_CONTEXT>", .before = "<img>", .after = "</img>\n", .place = "<IMG_CONTEXT>"};
  static constexpr Markup kIdefics3 = {.marker = "<image>",
                                       .after = "<fake_token_around_image>",
                                       .place = "<image>",
                                       .tile_row = "<fake_token_around_image><row_",
                                       .tile_col = "_col_",
                                       .tile_end = ">",
                                       .line_end = "\n",
                                       .whole = "<fake_token_around_image><global-img>",
                                       .whole_behind = "\n"};
  static constexpr Markup kLfm2 = {.marker = "<image>",
                                   .before = "<|image_start|>",
                                   .after = "<|image_end|>",
                                   .place = "<image>",
                                   .tile_row = "<|img_row_",
                                   .tile_col = "_col_",
                                   .tile_end = "|>",
                                   .whole_behind = "<|img_thumbnail|>"};
  static constexpr Markup kGlm = {
      .marker = "<|image|>", .before = "<|begin_of_image|>", .after = "<|end_of_image|>", .place = "<|image|>"};
  static constexpr Markup kKimi = {.marker = "<|media_pad|>",
                                   .before = "<|media_start|>image<|media_content|>",
                                   .after = "<|media_end|>",
                                   .place = "<|media_pad|>"};
  switch (projector) {
    case Projector::qwen2vl:
    case Projector::qwen25vl:
    case Projector::qwen3vl:
      return kQwen;
    case Projector::gemma3:
      return kGemma3;
    case Projector::gemma4:
    case Projector::gemma4u:
      return kGemma4;
    case Projector::pixtral:
      return kPixtral;
    case Projector::internvl:
      return kInternVl;
    case Projector::idefics3:
      return kIdefics3;
    case Projector::lfm2:
      return kLfm2;
    case Projector::glm4v:
      return kGlm;
    case Projector::kimivl:
      return kKimi;
  }
  return kQwen;
}

std::string text_of(const Markup& markup, const Cut& cut) {
  std::string text(markup.before);
  const auto out = std::back_inserter(text);
  for (std::int64_t row = 1; row <= cut.rows; ++row) {
    for (std::int64_t col = 1; col <= cut.cols; ++col) {
      if (!markup.tile_row.empty())
        fmt::format_to(out, "{}{}{}{}{}", markup.tile_row, row, markup.tile_col, col, markup.tile_end);
      text += markup.place;
    }
    text += markup.line_end;
  }
  if (cut.has_whole()) {
    if (cut.tiles() > 0) text += markup.whole_behind;
    fmt::format_to(out, "{}{}", markup.whole, markup.place);
  }
  text += markup.after;
  return text;
}

}  // namespace millrace::vision
