#include "exec/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/open_output.h"
#include "modelfile/escape.h"
#include "residency/expert_use.h"
#include "residency/small_file.h"

namespace millrace::exec {
namespace {

constexpr std::uint64_t kSeed = 20'261'123, kMostTraceBytes = std::uint64_t{1} << 28;
constexpr std::string_view kUniform = "uniform", kZipf = "zipf:", kTrace = "trace:", kTitle = "millrace routing";

std::uint64_t mix(std::uint64_t x) {  // splitmix64's finalizer
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// Whole numbers in a text, one after the other.
class Numbers {
 public:
  explicit Numbers(std::string_view text) : rest_(text) {}
  bool word(std::string_view word) {
    skip();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool number(std::int64_t least, std::int64_t most, std::int64_t& out) {
    skip();
    const auto read = std::from_chars(rest_.data(), rest_.data() + rest_.size(), out);
    if (read.ec != std::errc() || out < least || out > most) return false;
    rest_.remove_prefix(static_cast<std::size_t>(read.ptr - rest_.data()));
    return true;
  }
  bool ended() {
    skip();
    return rest_.empty();
  }
  std::size_t left() const { return rest_.size(); }

 private:
  void skip() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size())); }
  std::string_view rest_;
};

/// A recorded routing, as it was.
struct RoutingTrace {
  RoutingShape shape;
  std::vector<std::int32_t> tokens, chosen;  // [tokens], [tokens, layers, top_k]
  std::span<const std::int32_t> of(std::int64_t token, std::int64_t layer) const {
    return {chosen.data() + (token * shape.layers + layer) * shape.top_k, static_cast<std::size_t>(shape.top_k)};
  }
};

Expected<RoutingTrace> parse_trace(std::string_view text, const std::string& name) {
  const auto broken = [&](std::string_view what, std::size_t left) {
    return error(Code::corrupt, "{}: {} at byte {}; record it anew with --record-routing", modelfile::escape(name),
                 what, text.size() - left);
  };
  Numbers numbers(text);
  RoutingTrace trace;
  RoutingShape& shape = trace.shape;
  if (!numbers.word(kTitle) || !numbers.word("layers") || !numbers.number(1, 4096, shape.layers) ||
      !numbers.word("experts") || !numbers.number(1, 65536, shape.experts) || !numbers.word("of") ||
      !numbers.number(1, shape.experts, shape.top_k))
    return broken("no routing's first line", numbers.left());
  while (!numbers.ended()) {
    std::int64_t value = 0;
    if (!numbers.number(0, std::numeric_limits<std::int32_t>::max(), value)) return broken("no token", numbers.left());
    trace.tokens.push_back(static_cast<std::int32_t>(value));
    for (std::int64_t i = 0; i < shape.layers * shape.top_k; ++i) {
      if (!numbers.number(-1, shape.experts - 1, value)) return broken("no expert", numbers.left());
      trace.chosen.push_back(static_cast<std::int32_t>(value));
    }
  }
  if (trace.tokens.empty()) return broken("no token", numbers.left());
  return trace;
}

}  // namespace

Expected<RoutingShape> routing_shape(const Program& program) {
  RoutingShape shape;
  for (const Step& step : program.steps) {
    if (step.kind != Step::Kind::moe) continue;
    if (shape.experts > 0 && (shape.experts != step.experts.count || shape.top_k != step.experts.top_k))
      return error(Code::unsupported, "layers of {} and of {} experts: routings are for models whose layers are alike",
                   shape.experts, step.experts.count);
    shape = {step.layer + 1, step.experts.count, step.experts.top_k};
  }
  if (shape.experts == 0) return error(Code::unsupported, "the model has no experts to route to; leave it out");
  return shape;
}

Expected<std::unique_ptr<Routing>> Routing::make(std::string_view words, const RoutingShape& shape) {
  std::vector<double> weights(static_cast<std::size_t>(shape.experts), 1);
  double skew = 0;
  if (words.starts_with(kTrace)) {
    const std::string path(words.substr(kTrace.size()));
    MR_ASSIGN_OR_RETURN(const std::string text, residency::read_small_file(path, kMostTraceBytes));
    return from_trace(text, path, shape);
  }
  if (words.starts_with(kZipf)) {
    const std::string_view digits = words.substr(kZipf.size());
    double exponent = -1;
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), exponent);
    if (read.ec != std::errc() || read.ptr != digits.data() + digits.size() || !(exponent >= 0 && exponent <= 8))
      return error(Code::invalid_argument, "--routing {}: give a number from 0 to 8, as in zipf:1.0",
                   modelfile::escape(words));
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = std::pow(static_cast<double>(i + 1), -exponent);
    skew = exponent;
  } else if (words != kUniform) {
    return error(Code::invalid_argument, "--routing {}: use model, uniform, zipf:S or trace:FILE",
                 modelfile::escape(words, 80));
  }
  std::unique_ptr<Routing> routing(new Routing(shape, kRows));
  routing->draw(weights);
  routing->skew_ = skew;
  return routing;
}

double Routing::fit_skew() const {
  const std::int64_t slots = std::max<std::int64_t>(1, shape_.experts / 4);
  std::int64_t met = 0;
  std::vector<std::int64_t> uses(static_cast<std::size_t>(shape_.experts));
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    std::fill(uses.begin(), uses.end(), 0);
    for (std::int64_t row = 0; row < rows_; ++row)
      for (const std::int32_t expert : chosen(layer, row, 0)) ++uses[static_cast<std::size_t>(expert)];
    std::partial_sort(uses.begin(), uses.begin() + slots, uses.end(), std::greater());
    met = std::accumulate(uses.begin(), uses.begin() + slots, met);
  }
  return residency::skew_that_meets(static_cast<double>(met) / static_cast<double>(chosen_.size()),
                                    static_cast<double>(slots), shape_.experts, shape_.top_k);
}

void Routing::draw(std::span<const double> weights) {
  std::mt19937_64 random(kSeed);
  std::vector<double> sums(weights.size());
  std::partial_sum(weights.begin(), weights.end(), sums.begin());
  std::vector<std::int32_t> favourites(weights.size());
  for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
    std::iota(favourites.begin(), favourites.end(), 0);
    std::shuffle(favourites.begin(), favourites.end(), random);
    for (std::int64_t row = 0; row < rows_; ++row) {
      std::int32_t* const begin = chosen_.data() + (row * shape_.layers + layer) * shape_.top_k;
      for (std::int32_t* next = begin; next != begin + shape_.top_k;) {
        const double at = static_cast<double>(random() >> 11) * 0x1p-53 * sums.back();
        const auto place = std::upper_bound(sums.begin(), sums.end() - 1, at) - sums.begin();
        const std::int32_t expert = favourites[static_cast<std::size_t>(place)];
        if (std::find(begin, next, expert) == next) *next++ = expert;
      }
    }
  }
}

Expected<std::unique_ptr<Routing>> Routing::from_trace(std::string_view text, const std::string& name,
                                                       const RoutingShape& shape) {
  MR_ASSIGN_OR_RETURN(const RoutingTrace trace, parse_trace(text, name));
  const RoutingShape& theirs = trace.shape;
  if (theirs.experts > shape.experts)
    return error(Code::unsupported,
                 "{}: a routing among {} experts, and the model has {}; record one of a smaller model",
                 modelfile::escape(name), theirs.experts, shape.experts);
  const std::int64_t bundle = (shape.top_k + theirs.top_k - 1) / theirs.top_k;
  const auto tokens = static_cast<std::int64_t>(trace.tokens.size());
  const std::int64_t rows = std::max<std::int64_t>(1, tokens / bundle);
  std::unique_ptr<Routing> routing(new Routing(shape, rows));
  std::vector<std::int32_t> row;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
      row.clear();
      const auto add = [&](std::int32_t expert) {
        if (static_cast<std::int64_t>(row.size()) < shape.top_k &&
            std::find(row.begin(), row.end(), expert) == row.end())
          row.push_back(expert);
      };
      for (std::int64_t t = r * bundle; t < (r + 1) * bundle; ++t) {
        const std::int64_t token = t % tokens;
        for (const std::int32_t expert : trace.of(token, layer * theirs.layers / shape.layers)) {
          if (expert < 0) continue;
          const std::int64_t heirs = (shape.experts - expert + theirs.experts - 1) / theirs.experts;
          const std::uint64_t key = static_cast<std::uint64_t>(trace.tokens[static_cast<std::size_t>(token)]) << 32 |
                                    static_cast<std::uint64_t>(layer) << 16 | static_cast<std::uint64_t>(expert);
          const auto heir = static_cast<std::int64_t>(mix(key) % static_cast<std::uint64_t>(heirs));
          add(static_cast<std::int32_t>(expert + heir * theirs.experts));
        }
      }
      // Where tokens of a bundle agree, a place is free: the neighbours take it.
      for (std::int64_t next = row.empty() ? r : row.front(); static_cast<std::int64_t>(row.size()) < shape.top_k;)
        add(static_cast<std::int32_t>(++next % shape.experts));
      std::copy(row.begin(), row.end(), routing->chosen_.begin() + (r * shape.layers + layer) * shape.top_k);
    }
  }
  routing->skew_ = routing->fit_skew();
  return routing;
}

Expected<std::unique_ptr<RoutingRecord>> RoutingRecord::create(const std::string& path, const RoutingShape& shape) {
  MR_ASSIGN_OR_RETURN(os::File file, open_output(path, {.create = os::File::Create::if_missing, .empty = true}));
  std::unique_ptr<RoutingRecord> record(new RoutingRecord(std::move(file), path, shape));
  record->text_ = fmt::format("{} layers {} experts {} of {}\n", kTitle, shape.layers, shape.experts, shape.top_k);
  return record;
}

void RoutingRecord::begin_pass(const std::vector<kv::BatchRow>& rows) {
  tokens_.clear();
  for (const kv::BatchRow& row : rows) tokens_.push_back(row.token);
  chosen_.assign(rows.size() * static_cast<std::size_t>(shape_.layers * shape_.top_k), -1);
}

void RoutingRecord::add(std::int64_t layer, std::span<const std::int32_t> chosen) {
  const auto each = static_cast<std::size_t>(shape_.top_k);
  for (std::size_t r = 0; r < tokens_.size(); ++r)
    std::copy_n(chosen.begin() + static_cast<std::ptrdiff_t>(r * each), each,
                chosen_.begin() + (static_cast<std::int64_t>(r) * shape_.layers + layer) * shape_.top_k);
}

Status RoutingRecord::end_pass() {
  const auto each = static_cast<std::size_t>(shape_.layers * shape_.top_k);
  for (std::size_t r = 0; r < tokens_.size(); ++r)
    fmt::format_to(std::back_inserter(text_), "{} {}\n", tokens_[r],
                   fmt::join(std::span(chosen_).subspan(r * each, each), " "));
  const bool written = file_.write(text_).ok();
  text_.clear();
  if (!written) return error(Code::io_error, "{}: cannot be written; the disk may be full", modelfile::escape(path_));
  return {};
}

}  // namespace millrace::exec
