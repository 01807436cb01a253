#include "vision/markup.h"

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
  }
  return kQwen;
}

}  // namespace millrace::vision
