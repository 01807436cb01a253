// How a vision model wants its pictures: one table of constants by the projector type of its mmproj file, over which
// the file's own keys go. Sources: the published processors (Hugging Face transformers' image processors), GGUF's
// `clip.vision.*` keys. The tower's own dimensions stand in src/model/tower.h. Thread-safety: values.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/status.h"
#include "image/resample.h"
#include "modelfile/gguf.h"

namespace millrace::vision {

enum class Projector : std::uint8_t { qwen2vl, qwen25vl, qwen3vl, gemma3, gemma4, gemma4u, pixtral };
/// As `clip.projector_type` has it: "qwen3vl_merger", "gemma3" and so on.
std::string_view projector_name(Projector projector);

/// Which rule yields the size that the tower sees.
enum class Resize : std::uint8_t {
  smart,    // Qwen: both sides to the nearest multiple of a token's side, the area between two limits
  square,   // Gemma 3: image_size x image_size, whatever the ratio
  longest,  // Pixtral: the longer side at most image_size, sides up to multiples of a token's side
  budget,   // Gemma 4: as large as most_tokens allow, sides down to multiples of a token's side
};

struct Spec {
  Projector projector = Projector::qwen3vl;
  std::int64_t patch = 16;  // pixels a side
  std::int64_t merge = 2;   // patches a side of a token
  Resize resize = Resize::smart;
  std::int64_t least_pixels = 0, most_pixels = 0;  // Resize::smart
  std::int64_t image_size = 0;                     // Resize::square and ::longest; the others: what the file says
  std::int64_t most_tokens = 0;                    // Resize::budget
  std::array<float, 3> mean = {}, deviation = {};  // (x / 255 - mean) / deviation
  image::Filter filter = image::Filter::bicubic;
  std::int64_t token_side() const { return patch * merge; }  // pixels
};

/// What a file without keys of its own means.
Spec usual_spec(Projector projector);
/// Errors: unsupported (names the projector type and those that work), not_found and corrupt (name the key).
Expected<Spec> read_spec(const modelfile::Model& mmproj);

struct Size {
  std::int64_t height = 0, width = 0;  // pixels
  bool operator==(const Size&) const = default;
};
/// The pixels that the tower sees of a picture of this size. Errors: invalid_argument (a ratio that the model's own
/// processor refuses; both are named).
Expected<Size> fitted(const Spec& spec, Size original);

struct Grid {
  std::int64_t rows = 0, cols = 0;  // of tokens: behind the merge
  std::int64_t tokens() const { return rows * cols; }
  bool operator==(const Grid&) const = default;
};
/// REQUIRES: `size` is from fitted().
Grid grid(const Spec& spec, Size size);

/// Where the patch of this index lies, counted in patches: merge x merge patches of a token are neighbours, row by row
/// in it, and tokens follow row by row (see Patches).
struct Place {
  std::int64_t row = 0, col = 0;
};
Place patch_place(const Spec& spec, Grid tokens, std::int64_t index);

}  // namespace millrace::vision
