// A vision tower: what an mmproj file holds, as a program whose pass is one view of a picture. Its rows are the view's
// patches, which all see each other, and the embeddings of their places; it gives the rows that stand for the picture
// among a decoder's tokens. All layers store keys and values in one place, because nobody needs a layer's again behind
// it. Sources: the vision models of Hugging Face transformers; tensor and key names as llama.cpp writes them.
// Thread-safety: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "exec/program.h"
#include "kv/sequence.h"
#include "modelfile/gguf.h"
#include "residency/unit.h"
#include "vision/preprocess.h"
#include "vision/spec.h"

namespace millrace::model {

/// How pictures of other sizes take places from a square of learned ones.
enum class Between : std::uint8_t {
  corners,  // bilinear, from corner to corner: the outermost patches have the outermost places
  centres,  // bilinear, by the patches' centres; among fewer patches than places each is the mean of several
  bicubic,  // by the patches' centres, a = -0.75, four places along each side; those at the edges stand for more
};

struct Tower {
  vision::Spec spec;
  std::int64_t layers = 0, dim = 0;
  std::int64_t cols = 0;         // of a token's row: the decoder's width, and as much for each layer that adds some
  std::int64_t patch_cols = 0;   // of a patch's pixels
  std::int64_t window = 0;       // tokens a side of the windows that some layers see alone; 0: all layers see all
  std::int64_t table_side = 0;   // of the square of learned places; 0: there is none
  std::int64_t table_lines = 0;  // learned columns, and as many learned rows; 0: there are none
  Between between = Between::corners;
  bool has_class = false;  // a row that is no patch stands behind the patches: they see it, and nothing is made of it
  residency::UnitTable units;
  exec::Program program;  // handed (kv::Batch::given): [rows(), given_cols()]

  bool has_places() const { return table_side > 0 || table_lines > 0; }
  /// Of what a row of a pass is handed: a patch's pixels, and the embedding of its place.
  std::int64_t given_cols() const { return patch_cols + (has_places() ? dim : 0); }
  /// Numbers of learned places that tower_input() reads at once for so many patches, at most.
  std::int64_t table_numbers(std::int64_t patches) const;
  /// What a pass with so many patches gives.
  std::int64_t tokens(std::int64_t patches) const { return patches / program.merge; }
  /// Rows of a picture's pass: a token's more where one of them is the class's.
  std::int64_t rows(const vision::Patches& patches) const {
    return patches.rows * patches.cols + (has_class ? program.merge : 0);
  }
};

/// Errors: unsupported (a projector that this version cannot compute, a tensor that nobody uses; named), corrupt,
/// not_found.
Expected<Tower> load_tower(const modelfile::Model& mmproj, std::uint64_t tile_bytes);

/// Which of the picture's tokens stands at each place of a pass: window by window, where there are windows.
std::vector<std::int64_t> tower_order(const Tower& tower, const vision::Patches& patches);

/// What a picture's pass is handed. `mmproj` is the tower's file; `pool` (may be null) shares the work. Errors:
/// invalid_argument (these are no patches of the tower's), io_error.
Expected<std::vector<float>> tower_input(const modelfile::Model& mmproj, const Tower& tower,
                                         const vision::Patches& patches, ThreadPool* pool = nullptr);

/// What a picture's rows have beside their places in the pass: those in the picture, and how far their windows go.
std::vector<kv::PictureRow> tower_places(const Tower& tower, const vision::Patches& patches);

}  // namespace millrace::model
