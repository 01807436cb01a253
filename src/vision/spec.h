// How a vision model's pictures are prepared: a table of constants by the projector type of its mmproj file. The file's
// own keys take precedence. Sources: the published processors (Hugging Face transformers' image processors), GGUF's
// `clip.vision.*` keys. src/model/tower.h has the tower's dimensions. Thread-safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "image/resample.h"
#include "modelfile/gguf.h"

namespace millrace::vision {

enum class Projector : std::uint8_t {
  qwen2vl,
  qwen25vl,
  qwen3vl,
  gemma3,
  gemma4,
  gemma4u,
  pixtral,
  internvl,
  idefics3,
  lfm2,
  glm4v,
  kimivl
};
/// Parses `clip.projector_type`: "qwen3vl_merger", "gemma3" and so on.
std::string_view projector_name(Projector projector);

/// The rule for the size of the tower's input.
enum class Resize : std::uint8_t {
  smart,    // Qwen: both sides to the nearest multiple of a token's side, the area between two limits
  square,   // Gemma 3 and tiles: image_size x image_size, for any aspect ratio
  longest,  // Pixtral: the longer side at most image_size, sides up to multiples of a token's side
  budget,   // Gemma 4: as large as most_tokens allows, sides rounded down to multiples of a token's side
  padded,   // Kimi-VL: smaller if the area is above the limit, then black edges up to multiples of a token's side
};

/// The rule for splitting a picture into tiles, each a view of the tower, followed by the whole picture as another
/// view.
enum class Tiling : std::uint8_t {
  none,
  nearest,   // InternVL: the number of tiles of the nearest aspect ratio; a single tile has no view of the whole
  covering,  // Idefics3: the longer side becomes longest_side, both sides then multiples of a tile's
  large,     // LFM2-VL: pictures of more than twice the most pixels, by the nearest ratio; others are one view
};

struct Spec {
  Projector projector = Projector::qwen3vl;
  std::int64_t patch = 16;  // pixels a side
  std::int64_t merge = 2;   // patches per side of a token
  Resize resize = Resize::smart;
  std::int64_t least_pixels = 0, most_pixels = 0;  // Resize::smart
  std::int64_t image_size = 0;                     // Resize::square and ::longest; the others: what the file says
  std::int64_t most_tokens = 0;                    // Resize::budget
  Tiling tiling = Tiling::none;
  std::int64_t tile = 0;                           // pixels a side: Tiling::large; the others: image_size
  std::int64_t least_tiles = 1, most_tiles = 1;    // Tiling::nearest and ::large
  std::int64_t longest_side = 0;                   // Tiling::covering
  std::array<float, 3> mean = {}, deviation = {};  // (x / 255 - mean) / deviation
  image::Filter filter = image::Filter::bicubic;
  std::int64_t token_side() const { return patch * merge; }  // pixels
};

/// The defaults for a file without keys.
Spec usual_spec(Projector projector);
/// Errors: unsupported (names the projector type and those that work), not_found and corrupt (name the key).
Expected<Spec> read_spec(const modelfile::Model& mmproj);

struct Size {
  std::int64_t height = 0, width = 0;  // pixels
  bool operator==(const Size&) const = default;
};
/// The size of a picture's single view in the tower. Errors: invalid_argument (an aspect ratio or size that the model's
/// own processor refuses; names both).
Expected<Size> fitted(const Spec& spec, Size original);

/// The views of a picture: tiles of equal size, row by row, then the whole picture.
struct Cut {
  Size before;                      // the picture is resized to this first; 0 x 0: not resized
  std::int64_t rows = 0, cols = 0;  // of tiles; 0: none
  Size tile;                        // of each
  Size pixels;                      // the whole picture is resized to this; 0 x 0: no view of it
  Size whole;                       // its view: `pixels`, and black below and to the right
  bool has_whole() const { return whole.height > 0; }
  std::int64_t tiles() const { return rows * cols; }
  std::int64_t views() const { return tiles() + (has_whole() ? 1 : 0); }
  Size view(std::int64_t index) const { return index < tiles() ? tile : whole; }
};
/// Errors: those of fitted().
Expected<Cut> cut(const Spec& spec, Size original);

struct Grid {
  std::int64_t rows = 0, cols = 0;  // of tokens, after the merge
  std::int64_t tokens() const { return rows * cols; }
  bool operator==(const Grid&) const = default;
};
/// REQUIRES: `size` is from fitted() or cut().
Grid grid(const Spec& spec, Size size);
/// Of each view.
std::vector<Grid> grids(const Spec& spec, const Cut& cut);

/// The position of a patch, in patches. The merge x merge patches of a token are consecutive, row by row, and tokens
/// follow row by row (see Patches).
struct Place {
  std::int64_t row = 0, col = 0;
};
Place patch_place(const Spec& spec, Grid tokens, std::int64_t index);

}  // namespace millrace::vision
