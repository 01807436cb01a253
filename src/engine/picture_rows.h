// What a request's pictures make of its rows in a pass: embeddings, rotary places, and how far a row sees.
// Thread-safety: values; the pictures outlive them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/pictures.h"
#include "exec/program.h"
#include "kv/sequence.h"
#include "model/model.h"

namespace millrace::engine {

class PictureRows {
 public:
  PictureRows() = default;
  /// REQUIRES: check_pictures() found them well.
  PictureRows(std::span<const PlacedPicture> pictures, const exec::Program& program, const model::Hyperparameters& hp);

  bool any() const { return !pictures_.empty(); }
  kv::PictureRow at(std::int64_t position) const;
  /// Whether a pass may end before this position: else rows before it see some behind it.
  bool may_end_before(std::int64_t position) const;
  /// The picture that this position lies in: [first, end) of its rows. Of one that lies in none: itself alone.
  struct Range {
    std::int64_t first, end;
  };
  Range range_of(std::int64_t position) const;

 private:
  std::int64_t index_of(std::int64_t position) const;

  std::span<const PlacedPicture> pictures_;
  std::vector<std::int32_t> shifts_;  // of text behind each
  bool by_axes_ = false, sees_ahead_ = false;
};

/// Whether the prompt has these pictures' tokens where the pictures stand, and no others that are negative.
/// Errors: invalid_argument, unsupported.
Status check_pictures(std::span<const text::TokenId> prompt, std::span<const PlacedPicture> pictures,
                      const model::Hyperparameters& hp);

}  // namespace millrace::engine
