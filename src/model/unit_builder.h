// Turns a file's tensors into units: names each weight once, checks its shape against the hyperparameters, and hands
// back the WeightRef the forward pass uses. The first failure sticks, so that an architecture lists its weights without
// an if a line; status() is asked once at the end.
// Parts stand in the order in which a layer uses them, because tiles are cut and streamed in that order.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "residency/unit.h"

namespace millrace::model {

/// Rows [first, first + count) of a matrix.
struct RowRange {
  std::int64_t first = 0, count = 0;
};

/// What follows the layers; a bias is none() where the file has none.
struct OutputWeights {
  residency::WeightRef norm, norm_bias, head, head_bias;
};

class UnitBuilder {
 public:
  /// Both outlive the builder. `first_file`: the number of the model's first file among the units'.
  UnitBuilder(const modelfile::Model& file, residency::UnitTable& table, int first_file = 0)
      : file_(file), table_(table), first_file_(first_file) {}

  /// Starts a unit; end() adds it to the table. One unit is open at a time.
  void begin(residency::UnitKind kind, int layer = -1, int expert = -1);
  /// Units from here on are a drafter's alone.
  void begin_aside() { aside_ = true; }
  void end();

  /// A weight of `rows` rows of `cols` elements, of any computable dtype, and where the file has NAME.scale for
  /// NAME.weight, behind it that number, which products with the weight are multiplied by (scales()). Errors:
  /// not_found, corrupt (both shapes named), unsupported (a dtype that cannot be multiplied).
  residency::WeightRef matrix(const std::string& name, std::int64_t cols, std::int64_t rows);
  /// The same without a scale: should the file have one, nobody has asked for it.
  residency::WeightRef unscaled(const std::string& name, std::int64_t cols, std::int64_t rows);
  /// Rows [first, first + rows) of a tensor of `all_rows`, with a scale as matrix() has it.
  residency::WeightRef rows(const std::string& name, std::int64_t cols, std::int64_t all_rows, std::int64_t first,
                            std::int64_t rows);
  /// Filters of side x side places of `channels`, a row each: [rows, channels * side * side].
  residency::WeightRef filters(const std::string& name, std::int64_t side, std::int64_t channels, std::int64_t rows);
  /// `count` matrices of `rows` rows that lie one after another in a 3-D tensor, as one weight.
  residency::WeightRef matrices(const std::string& name, std::int64_t cols, std::int64_t rows, std::int64_t count);
  /// Of a tensor of `heads` times `each` rows, rows [first, first + rows) of every head: a part each. Returns the
  /// first.
  residency::WeightRef rows_of_heads(const std::string& name, std::int64_t cols, std::int64_t heads, std::int64_t each,
                                     std::int64_t first, std::int64_t rows);
  /// Rows of whole numbers, of I32. Errors: as matrix(); unsupported (another dtype).
  residency::WeightRef integers(const std::string& name, std::int64_t cols, std::int64_t rows);
  /// A float32 vector: a norm's weight or a bias.
  residency::WeightRef vector(const std::string& name, std::int64_t size);
  /// Elements [first, first + size) of one of `all`.
  residency::WeightRef some_elements(const std::string& name, std::int64_t all, std::int64_t first, std::int64_t size) {
    return elements(name, {all}, first, size);
  }
  /// `count` such vectors, one after the other.
  residency::WeightRef vectors(const std::string& name, std::int64_t size, std::int64_t count) {
    return some_of_each(name, size, count, 0, size);
  }
  /// Elements [first, first + some) of each of them, `size` apart: one weight from the first such element to the last.
  residency::WeightRef some_of_each(const std::string& name, std::int64_t size, std::int64_t count, std::int64_t first,
                                    std::int64_t some);
  /// A convolution's taps as one vector, `count` for each channel: [count, channels], or [count, 1, channels]; of F32,
  /// F16 or BF16.
  residency::WeightRef taps(const std::string& name, std::int64_t count, std::int64_t channels);
  /// The first row of a table of any number of rows, as a vector of any computable dtype.
  residency::WeightRef first_row(const std::string& name, std::int64_t cols);
  /// The first, or none() where the file has no such tensor.
  residency::WeightRef optional_vector(const std::string& name, std::int64_t size);
  /// Elements [first, first + size) of a vector of `all`, likewise.
  residency::WeightRef optional_elements(const std::string& name, std::int64_t all, std::int64_t first,
                                         std::int64_t size);
  /// Rows of matrix number `index` of `count`, each of `rows`, that lie one after another in a 3-D tensor: of an
  /// expert's share. `stacked_rows` is that tensor's second dimension: `rows`, or twice as many where gate and up stand
  /// together.
  residency::WeightRef slice(const std::string& name, std::int64_t cols, std::int64_t rows, std::int64_t count,
                             std::int64_t index, std::int64_t stacked_rows, RowRange of_rows);

  /// Adds the experts of a layer, a unit each, parts gate, up, down, or without a gate; returns the first unit's index.
  /// gate, up: [expert_ff rows of model_dim], also as one tensor with the gate's rows first; down: [model_dim rows of
  /// expert_ff]; of either those rows alone.
  std::int32_t experts(int layer, std::int64_t count, std::int64_t model_dim, std::int64_t expert_ff, bool gated,
                       RowRange of_ff, RowRange of_dim);

  /// The embedding unit: token_embd.weight, `vocab` rows of `model_dim`; `as_head`: also as a whole, at the end of a
  /// pass.
  residency::WeightRef embedding(std::int64_t model_dim, std::int64_t vocab, bool as_head);
  /// A unit of one table that is read by rows, so many for a token.
  residency::WeightRef table(const std::string& name, std::int64_t cols, std::int64_t rows,
                             std::int64_t rows_of_token = 1);
  /// The last norm, named so (null: there is none), and the head, with biases where the file has them. They make the
  /// head unit; a file without output.weight ties its head to `embedding`, and the norm then is the last unit in pass
  /// order, because the head has no unit of its own.
  OutputWeights output(const char* norm, std::int64_t model_dim, std::int64_t vocab, residency::WeightRef embedding);

  /// The same of rows [first, first + rows) of the head, which is a unit of its own also where it is the embedding.
  OutputWeights output_rows(const char* norm, std::int64_t model_dim, std::int64_t vocab, std::int64_t first,
                            std::int64_t rows);

  /// The norm behind the last layer of a model without a head; null: there is none either.
  OutputWeights last_norm(const char* norm, std::int64_t model_dim);

  /// All tensors of a block that no pass uses, as the file has them, in its order: not in the table. No parts: the file
  /// has none of it.
  residency::Unit block_apart(int layer) const;

  /// Whether the embedding is the head, too.
  bool ties_head() const { return !has("output.weight"); }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }
  /// A tensor that the file may have and the model does not use.
  void ignore(const std::string& name) { used_.insert(name); }
  /// Refuses the file when it has a tensor of this layer that nobody asked for: what it was trained with would be left
  /// out of the sums, and the tokens be wrong. Call behind the layer's last weight.
  void refuse_unused(int layer);
  /// Likewise of all tensors whose names begin with one of `ours`, and with none of `others`.
  void refuse_unused_of(std::initializer_list<std::string_view> ours, std::initializer_list<std::string_view> others);
  /// Weights, and the scale of each that has one. Source of the name: the GGUF files that llama.cpp reads.
  const std::vector<std::pair<residency::WeightRef, residency::WeightRef>>& scales() const { return scales_; }
  void fail(Status status);
  const Status& status() const { return status_; }

 private:
  residency::WeightRef add(residency::Part part);
  residency::WeightRef elements(const std::string& name, std::initializer_list<std::int64_t> shape, std::int64_t first,
                                std::int64_t size);
  residency::WeightRef some_rows(const std::string& name, std::int64_t cols, std::int64_t all_rows, std::int64_t first,
                                 std::int64_t rows);
  residency::WeightRef with_scale(const std::string& name, residency::WeightRef weight);
  residency::WeightRef scale_for(const std::string& name);
  void refuse_unused_scales();
  void refuse(std::string_view name);  // a tensor that nobody asked for
  const modelfile::TensorInfo* shaped(const std::string& name, std::initializer_list<std::int64_t> shape);
  const modelfile::TensorInfo* checked(const std::string& name, std::initializer_list<std::int64_t> shape);

  const modelfile::Model& file_;
  residency::UnitTable& table_;
  const int first_file_;
  std::map<int, std::vector<std::string_view>> of_layer_;  // the file's tensors by layer; made when first asked for
  std::set<std::string, std::less<>> used_;                // of the present layer
  std::vector<std::pair<residency::WeightRef, residency::WeightRef>> scales_;
  std::set<std::string, std::less<>> used_scales_;
  residency::Unit unit_;
  bool aside_ = false;
  Status status_;
};

/// "blk.3.attn_k.weight"
std::string layer_tensor(int layer, std::string_view name);

}  // namespace millrace::model
