// Which experts rows go to where their routers do not decide: mixtures whose weights are random route unlike trained
// ones, and how fast experts flow follows from the routing. For measurements: answers are no model's then.
//
// A routing is a table of rows, one after the other as tokens follow each other in a text. Row r holds top_k distinct
// experts of each layer. A token goes by the row of its place: start + position + sequence * kApart, round the table.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/os/file.h"
#include "base/status.h"
#include "exec/program.h"
#include "kv/sequence.h"

namespace millrace::exec {

/// Of a program's mixtures. Layers without one count, too, and have rows that nobody reads.
struct RoutingShape {
  std::int64_t layers = 0, experts = 0, top_k = 0;
};
/// Errors: unsupported (there is none, or layers differ in experts).
Expected<RoutingShape> routing_shape(const Program& program);

class Routing {
 public:
  static constexpr std::int64_t kRows = 4096;   // of a table that is drawn
  static constexpr std::int64_t kApart = 1031;  // rows between sequences at one position

  /// "uniform": every expert alike. "zipf:S": the k-th favourite of a layer comes as 1 / k^S, favourites being others
  /// in each layer. "trace:FILE": as RoutingRecord has written it, stretched to the shape (see below). Errors:
  /// invalid_argument (which words there are), not_found, io_error, corrupt, unsupported.
  static Expected<std::unique_ptr<Routing>> make(std::string_view words, const RoutingShape& shape);

  /// A recorded mixture on one of more layers, experts and places: layer l goes as layer l * theirs / ours did, a row
  /// takes the experts of as many tokens as it has places for, and expert e becomes one of ours / theirs neighbours,
  /// chosen by token and layer, as if it had been cut into specialists. Errors: corrupt (where), unsupported (it has
  /// more experts than the shape).
  static Expected<std::unique_ptr<Routing>> from_trace(std::string_view text, const std::string& name,
                                                       const RoutingShape& shape);

  const RoutingShape& shape() const { return shape_; }
  /// How unevenly experts are called for, as plans take it (residency/expert_use.h): 0 by "uniform", S by "zipf:S"; of
  /// a trace that with which the likeliest quarter of a layer's experts would be called for as often as here.
  double skew() const { return skew_; }
  /// [top_k]: a token's experts in a layer.
  std::span<const std::int32_t> chosen(std::int64_t layer, std::int64_t position, std::int64_t sequence) const {
    const std::int64_t row = (start_.load(std::memory_order_relaxed) + position + sequence * kApart) % rows_;
    return {chosen_.data() + (row * shape_.layers + layer) * shape_.top_k, static_cast<std::size_t>(shape_.top_k)};
  }
  /// Passes from now on go by other rows. Any thread.
  void move_on() { start_.fetch_add(kApart * 3 + 1, std::memory_order_relaxed); }

 private:
  Routing(const RoutingShape& shape, std::int64_t rows)
      : shape_(shape), rows_(rows), chosen_(static_cast<std::size_t>(rows * shape.layers * shape.top_k)) {}
  /// Fills the table: weights[k] is how often a layer's k-th favourite comes, favourites being drawn for each layer.
  void draw(std::span<const double> weights);
  double fit_skew() const;

  const RoutingShape shape_;
  const std::int64_t rows_;
  std::vector<std::int32_t> chosen_;  // [rows, layers, top_k]
  double skew_ = 0;
  std::atomic<std::int64_t> start_{0};
};

/// Writes what routers chose, as text: a first line "millrace routing layers L experts E of K", then a line a token:
/// its id, then K experts of each layer (-1 in layers without a mixture). Not thread-safe: the executor's.
class RoutingRecord {
 public:
  /// Errors: io_error.
  static Expected<std::unique_ptr<RoutingRecord>> create(const std::string& path, const RoutingShape& shape);

  void begin_pass(const std::vector<kv::BatchRow>& rows);
  /// What the layer's router chose for all rows: [rows, top_k].
  void add(std::int64_t layer, std::span<const std::int32_t> chosen);
  /// The pass is done: its rows are written. Errors: io_error.
  Status end_pass();

 private:
  RoutingRecord(os::File file, std::string path, const RoutingShape& shape)
      : file_(std::move(file)), path_(std::move(path)), shape_(shape) {}

  const os::File file_;
  const std::string path_;
  const RoutingShape shape_;
  std::vector<std::int32_t> tokens_, chosen_;  // of the pass: [rows], [rows, layers, top_k]
  std::string text_;
};

}  // namespace millrace::exec
