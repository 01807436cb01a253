// The inside of a tower (tower.h): its shape as a file's keys have it, and its layers, which all families share.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "exec/ops.h"
#include "model/tower.h"
#include "model/unit_builder.h"
#include "modelfile/file_io.h"

namespace millrace::model {

/// How patches are turned by their rows and columns.
enum class TowerRope : std::uint8_t {
  none,
  halves,         // half-split pairs: the first half of the angles by rows, the others by columns, of one set of bases
  alternating,    // pairs of neighbours: likewise, but the bases alternate between both
  in_turn,        // pairs of neighbours: by columns and by rows in turn, two pairs by each base
  by_half_heads,  // a head's first half by columns, its second by rows, half-split pairs each
};

struct TowerSpec {
  vision::Spec vision;
  std::int64_t layers = 0, dim = 0, ff_dim = 0, heads = 0, head_dim = 0;
  std::int64_t out_dim = 0;  // the decoder's width
  float eps = 1e-6f;
  bool layer_norms = true;     // else RMSNorm
  bool gated = false;          // feed-forwards have a gate
  bool norms_heads = false;    // those of queries and keys by a weight, those of values without one
  bool norms_queries = false;  // queries and keys, all heads' channels at once
  bool norms_results = false;  // of attention and of the feed-forward, before they are added
  bool scales_scores = true;   // by the root of a head's width
  kernels::Activation activation = kernels::Activation::gelu;
  bool quick_gelu = false;  // in its place: x / (1 + e^(-1.702 x))
  TowerRope rope = TowerRope::none;
  Between between = Between::corners;
  std::int64_t window = 0;      // Tower::window
  std::int64_t full_every = 0;  // with windows: of so many layers the last sees all; 0: none does
};
Expected<TowerSpec> read_tower_spec(const modelfile::Model& mmproj);

/// The angles of a patch's row and column: heads are turned by one after the other.
std::vector<exec::Rope> tower_ropes(const TowerSpec& spec);

/// What a product's inputs and results are clamped to, where the file has numbers beside its weight.
struct Bounds {
  float least = -std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::infinity();
  bool any() const { return *this != Bounds(); }
  bool operator==(const Bounds&) const = default;
};

/// Lists weights and records steps at once: a pass uses them in the order in which they are named.
class TowerBuilder {
 public:
  TowerBuilder(const modelfile::Model& mmproj, const TowerSpec& spec);
  Expected<Tower> build(std::uint64_t tile_bytes);

 private:
  using Act = exec::Act;
  using WeightRef = residency::WeightRef;
  struct Norm {
    WeightRef weight, bias;
  };

  void begin_unit(int layer = -1) { units_.begin(residency::UnitKind::trunk, layer); }
  Norm norm(const std::string& stem, std::int64_t cols);
  void normalize(Act out, Act x, const Norm& norm, bool layer_norm);
  void normalize(Act x, const std::string& stem);  // a projector's LayerNorm, of PyTorch's epsilon
  exec::Product product(Act out, const std::string& stem, std::int64_t cols, std::int64_t rows);
  void multiply(Act out, const std::string& stem, Act x);
  Bounds bounds(const std::string& name);
  bool has_bounds(const std::string& stem) const;
  float number(const std::string& name, float fallback);
  void list_projections(const std::string& stem, std::array<exec::Product, 3>& qkv);
  void list_places();
  void take_patches(Act patch);
  void embed();
  void embed_normed();
  void layer(int index);
  void attend(int index);
  void turn_heads(Act q, Act k, Act v, const std::string& stem);
  void feed_forward(int index);
  void add_result(const std::string& norm_stem, const std::string& scale);
  void activate(Act x);
  Act deepstack(int index, Act before);
  void project();
  Act merge();
  Act merge_by_norm_and_two();  // of Qwen's
  Act merge_by_matrix();        // of Pixtral's
  Act merge_by_mean();          // of Gemma 3's
  Act merge_by_scaled_mean();   // of Gemma 4's
  Act merge_by_norm_of_all(const std::string& stem, const std::string& first, const std::string& second);
  Act merge_by_one();           // of Idefics3's
  Act merge_by_norm_of_each();  // of Kimi's
  Act merge_by_filters();       // of GLM's
  Act merged_rows(Act x, bool by_channel = false);
  std::int64_t rows_of(const std::string& matrix);
  Act two_products(const std::string& first, const std::string& second, Act x, std::int64_t hidden);

  const modelfile::Model& file_;
  const TowerSpec& spec_;
  Tower tower_;
  UnitBuilder units_;
  exec::Ops ops_;
  Act x_, h_;
  Act place_;                           // embeddings of patches' places, where there are some
  std::vector<int> ropes_;              // by which heads turn, one after the other
  std::vector<Act> added_;              // what layers give beside the last one's
  Status status_;                       // beside that of units_
  std::vector<modelfile::File> files_;  // of the numbers that a program has, opened for the first
};

}  // namespace millrace::model
