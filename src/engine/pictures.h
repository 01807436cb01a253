// Pictures beside a prompt's tokens: what a vision tower made of them, where they stand, and who computes them.
//
// The encoder computes on the GPU where the tower has a place there, and else on the CPU, on the caller's thread, from
// the mmproj file, whose weights it reads for each picture: between pictures it holds results alone then. All memory
// is granted by the model's budgets.
// Thread-safety: PictureEncoder may be called by any thread; one picture is computed at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "exec/executor.h"
#include "kv/sequence.h"
#include "residency/budget.h"
#include "storage/storage.h"
#include "text/tokenizer.h"
#include "vision/preprocess.h"
#include "vision/spec.h"

namespace millrace::model {
struct Hyperparameters;
}

namespace millrace::engine {

struct EngineOptions;
struct ModelOptions;

/// SHA-256 of a picture's file, or what was made of that.
using PictureKey = std::array<std::byte, 32>;

struct EncodedPicture {
  PictureKey key{};                    // of the file, the settings and the mmproj file: equal keys have equal rows
  vision::Grid grid;                   // of one view; of several: a row of all tokens of all views, one after the other
  std::int64_t cols = 0;               // model_dim, and as many for each layer that adds some (deepstack)
  std::vector<float> states;           // [grid.rows * grid.cols, cols]
  residency::Reservation memory = {};  // covers states
};

/// Rows of a picture among a prompt's tokens.
struct PlacedPicture {
  std::int64_t first = 0;                 // index in Request::prompt of the first of them
  std::int64_t count = 0, first_row = 0;  // rows [first_row, first_row + count) of the picture
  std::shared_ptr<const EncodedPicture> picture;
};

/// What stands for a picture's row in Request::prompt: a negative number made of both, so that whoever compares tokens
/// (the prefix cache, the prompt cache, sessions) tells pictures apart without knowing any.
text::TokenId picture_token(const PictureKey& key, std::int64_t row);

/// Where no mmproj file is named, takes the one beside the model, if there is one; "off": takes none.
void find_mmproj(ModelOptions& model);

/// Memory that the header of an mmproj file takes at most.
constexpr std::uint64_t kMostMmprojHeader = 16 * kMiB;
/// How an mmproj file's weights are read: as the model's, but never through a map, whose pages nobody would grant.
storage::OpenOptions mmproj_storage(const EngineOptions& options);

/// Beside a decoder on a GPU: the tower's place there (engine/gpu/tower.h).
struct TowerSeat {
  std::int64_t rows = 0;  // of a pass at most; 0: it has none
  bool resident = false;  // its weights stay in VRAM
  std::uint64_t ram_bytes = 0;
  std::string words;  // why it has none
};

/// Computes passes of the tower, of up to so many rows, in the processor's place.
struct TowerRunner {
  virtual ~TowerRunner() = default;
  std::int64_t rows = 0;
  std::unique_ptr<exec::Executor> executor;
  std::shared_ptr<kv::BlockPool> blocks;
  std::string words;  // "on GPU 0, its weights in VRAM"
};

class PictureEncoder {
 public:
  /// Opens the mmproj file at options.model.mmproj for the model of these hyperparameters; `budget` and `runner` (null:
  /// the processor computes all pictures) outlive the encoder. Errors: unsupported (a projector or a tower that this
  /// version cannot compute, or that is not this model's), corrupt, not_found, io_error.
  static Expected<std::unique_ptr<PictureEncoder>> open(const EngineOptions& options, const model::Hyperparameters& hp,
                                                        residency::Budget& budget, TowerRunner* runner);
  virtual ~PictureEncoder() = default;

  virtual const std::string& path() const = 0;  // of the mmproj file
  virtual const vision::Spec& spec() const = 0;
  /// The key of the picture whose file has this SHA-256.
  virtual PictureKey key_of(const PictureKey& file) const = 0;
  /// A picture that was encoded lately, by the SHA-256 of its file; null: encode() it.
  virtual std::shared_ptr<const EncodedPicture> find(const PictureKey& file) = 0;
  /// Each view in a pass of its own. Those on the CPU share the weights, which are read once where the budget has room
  /// for them. REQUIRES: there is one. Errors: out_of_budget (names what it takes), cancelled, io_error,
  /// invalid_argument (the patches are none of spec()).
  virtual Expected<std::shared_ptr<const EncodedPicture>> encode(const PictureKey& file,
                                                                 std::span<const vision::Patches> views,
                                                                 const std::function<bool()>& cancelled) = 0;
  /// Pictures that were computed, ever; those that find() gave do not count.
  virtual std::int64_t encoded() const = 0;
  /// Views of these that the runner computed.
  virtual std::int64_t run_views() const = 0;
  /// Bytes of the tower's weights that came from the disk for the others, ever.
  virtual std::uint64_t bytes_read() const = 0;
};

}  // namespace millrace::engine
