#include "engine/picture_rows.h"

#include <algorithm>

namespace millrace::engine {

using text::TokenId;

PictureRows::PictureRows(std::span<const PlacedPicture> pictures, const exec::Program& program,
                         const model::Hyperparameters& hp)
    : pictures_(pictures), by_axes_(program.turns_by_axes()), sees_ahead_(hp.pictures_see_ahead) {
  std::int64_t shift = 0;
  for (const PlacedPicture& placed : pictures_) {
    // Text goes on behind the picture's longer side, as if that were all its rows.
    if (by_axes_) shift += std::max(placed.picture->grid.rows, placed.picture->grid.cols) - placed.count;
    shifts_.push_back(static_cast<std::int32_t>(shift));
  }
}

/// The last picture that begins at this position or before it; -1: none does.
std::int64_t PictureRows::index_of(std::int64_t position) const {
  const auto next = std::upper_bound(pictures_.begin(), pictures_.end(), position,
                                     [](std::int64_t at, const PlacedPicture& placed) { return at < placed.first; });
  return next - pictures_.begin() - 1;
}

PictureRows::Range PictureRows::range_of(std::int64_t position) const {
  const std::int64_t index = index_of(position);
  if (index < 0) return {position, position + 1};
  const PlacedPicture& placed = pictures_[static_cast<std::size_t>(index)];
  if (position >= placed.first + placed.count) return {position, position + 1};
  return {placed.first, placed.first + placed.count};
}

bool PictureRows::may_end_before(std::int64_t position) const {
  return !sees_ahead_ || range_of(position).first == position;
}

kv::PictureRow PictureRows::at(std::int64_t position) const {
  kv::PictureRow row;
  const std::int64_t index = index_of(position);
  if (index < 0) return row;
  const PlacedPicture& placed = pictures_[static_cast<std::size_t>(index)];
  const EncodedPicture& picture = *placed.picture;
  const std::int64_t offset = position - placed.first;
  if (offset >= placed.count) {
    row.shift.fill(shifts_[static_cast<std::size_t>(index)]);
    return row;
  }
  row.embedding = picture.states.data() + (placed.first_row + offset) * picture.cols;
  if (sees_ahead_) row.ahead = static_cast<std::int32_t>(placed.count - 1 - offset);
  if (!by_axes_) return row;
  // All of it has the time of its first row; rows and columns count from there.
  const std::int64_t before = index > 0 ? shifts_[static_cast<std::size_t>(index - 1)] : 0;
  const std::int64_t down = offset / picture.grid.cols, across = offset % picture.grid.cols;
  row.shift = {static_cast<std::int32_t>(before - offset), static_cast<std::int32_t>(before - offset + down),
               static_cast<std::int32_t>(before - offset + across)};
  return row;
}

namespace {

Status check_place(const PlacedPicture& placed, std::int64_t end_before, std::int64_t prompt,
                   const model::Hyperparameters& hp) {
  if (placed.picture == nullptr) return error(Code::internal, "a picture of the prompt was not encoded");
  const std::int64_t rows = placed.picture->grid.tokens(), cols = placed.picture->cols;
  if (cols != hp.model_dim * (1 + hp.deepstack_layers))
    return error(Code::invalid_argument, "a picture was encoded for states of {} numbers; this model's have {}", cols,
                 hp.model_dim * (1 + hp.deepstack_layers));
  if (placed.count < 1 || placed.first < end_before || placed.first + placed.count > prompt || placed.first_row < 0 ||
      placed.first_row + placed.count > rows || std::ssize(placed.picture->states) != rows * cols)
    return error(Code::invalid_argument, "a picture of {} rows has no place at token {} of a prompt of {}", rows,
                 placed.first, prompt);
  return {};
}

}  // namespace

Status check_pictures(std::span<const TokenId> prompt, std::span<const PlacedPicture> pictures,
                      const model::Hyperparameters& hp) {
  std::int64_t at = 0;
  const auto is_text_up_to = [&](std::int64_t end) {
    return std::all_of(prompt.begin() + at, prompt.begin() + end, [](TokenId id) { return id >= 0; });
  };
  const auto missing = [] { return error(Code::invalid_argument, "the prompt has a picture token without a picture"); };
  for (const PlacedPicture& placed : pictures) {
    MR_RETURN_IF_ERROR(check_place(placed, at, std::ssize(prompt), hp));
    if (!is_text_up_to(placed.first)) return missing();
    for (at = placed.first; at < placed.first + placed.count; ++at)
      if (prompt[static_cast<std::size_t>(at)] !=
          picture_token(placed.picture->key, placed.first_row + at - placed.first))
        return error(Code::invalid_argument, "token {} of the prompt is not its picture's", at);
  }
  return is_text_up_to(std::ssize(prompt)) ? Status() : missing();
}

}  // namespace millrace::engine
