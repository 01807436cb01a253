#include "exec/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace millrace::exec {
namespace {

using Kind = Step::Kind;

/// Buffers of worked rows that hold what the present block has written.
class Written {
 public:
  explicit Written(const Program& program) : program_(program), written_(program.buffers.size(), false) {}

  void begin_block() {
    for (std::size_t b = 0; b < written_.size(); ++b)
      if (program_.buffers[b].rows == Rows::worked) written_[b] = false;
  }
  bool known(Act act) const {
    return act.buffer >= 0 && static_cast<std::size_t>(act.buffer) < program_.buffers.size();
  }
  bool holds(Act act) const { return known(act) && written_[static_cast<std::size_t>(act.buffer)]; }
  void write(Act act) {
    if (known(act)) written_[static_cast<std::size_t>(act.buffer)] = true;
  }

 private:
  const Program& program_;
  std::vector<bool> written_;
};

}  // namespace

std::string_view name(Step::Kind kind) {
  static constexpr std::string_view names[] = {
      "embed",        "norm",         "heads' norm",     "layer norm",   "add",           "scale",
      "copy",         "matmul",       "matmul by heads", "gated",        "gate",          "temper",
      "rope",         "store kv",     "store latent",    "store index",  "select",        "attention",
      "moe",          "heads",        "multiply",        "sigmoid gate", "l2 norm",       "decay",
      "convolution",  "delta rule",   "time step",       "scan",         "activation",    "rows",
      "logits",       "states",       "given",           "join",         "gather",        "picture",
      "merge rows",   "mean of rows", "clamp",           "standardize",  "cap",           "top k",
      "match",        "add streams",  "largest",         "compress",     "weigh streams", "n-grams",
      "gate streams", "softplus gate"};
  return names[static_cast<std::size_t>(kind)];
}

float Temperature::at(std::int64_t position) const {
  const std::int64_t periods = (position + offset) / period;
  return static_cast<float>(1 + scale * std::log(static_cast<double>(periods) + 1));
}

bool Step::writes(Act act) const {
  if (act.buffer < 0) return false;
  for (const Product& product : all_products())
    if (product.out == act) return true;
  return out == act;
}

std::size_t Program::block_end(std::size_t from) const {
  const auto next = std::upper_bound(blocks.begin(), blocks.end(), from);
  return next == blocks.end() ? steps.size() : *next;
}

/// These steps alone, with the borders of blocks and layers that they have.
Program Program::only(FunctionRef<bool(std::size_t step)> kept) const {
  Program program;
  program.buffers = buffers;
  program.ropes = ropes;
  program.layout = layout;
  program.merge = merge;
  const auto mark = [&](const std::vector<std::size_t>& borders, std::size_t step, std::vector<std::size_t>& marks) {
    if (!std::binary_search(borders.begin(), borders.end(), step)) return;
    if (marks.empty() || marks.back() != program.steps.size()) marks.push_back(program.steps.size());
  };
  for (std::size_t i = 0; i < steps.size(); ++i) {
    mark(blocks, i, program.blocks);
    mark(layers, i, program.layers);
    if (kept(i)) program.steps.push_back(steps[i]);
  }
  return program;
}

Program Program::of_passes(bool wants_hidden) const {
  if (wants_hidden) return *this;
  return only([this](std::size_t step) { return !steps[step].for_hidden; });
}

Program Program::first_layers(std::int64_t count) const {
  MR_ASSERT(count > 0 && count <= layer_count());
  const std::size_t end = layers[static_cast<std::size_t>(count)];
  return only([&](std::size_t step) { return step < end || step >= layers.back(); });
}

bool Program::turns_queries() const {
  using Kind = Step::Kind;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != Kind::attention || steps[i].attention.latent_values > 0) continue;
    const Kind before = i == 0 ? Kind::embed : steps[i - 1].kind;
    if (before != Kind::store_kv && before != Kind::rope && before != Kind::rms_norm_heads) return false;
  }
  return true;
}

std::vector<WeightRef> Program::weights() const {
  std::vector<WeightRef> used;
  const auto use = [&](WeightRef ref) {
    if (!ref.none()) used.push_back(ref);
  };
  for (const Step& step : steps) {
    use(step.attention.sinks);
    use(step.weight);
    for (std::int64_t head = 1; step.head_weights.parts && head < step.heads; ++head)
      use({step.weight.unit, step.weight.part + static_cast<std::int32_t>(head)});
    use(step.weight2);
    for (const Product& product : step.all_products()) {
      use(product.weight);
      use(product.bias);
    }
    if (step.kind != Kind::moe) continue;
    const Experts& experts = step.experts;
    for (const WeightRef ref : {experts.router_bias, experts.selection_bias, experts.of_tokens, experts.gate_bias,
                                experts.up_bias, experts.down_bias, experts.output_scale, experts.hidden_scale,
                                experts.inner_scale, experts.up_scale, experts.down_scale})
      use(ref);
    for (std::int32_t expert = 0; expert < experts.count; ++expert)
      for (const std::int32_t part : {experts.gate_part, experts.up_part, experts.down_part})
        if (part != kNoPart) use({experts.first_unit + expert, part});
  }
  return used;
}

bool Program::is_causal() const {
  return std::none_of(steps.begin(), steps.end(),
                      [](const Step& step) { return step.kind == Kind::attention && !step.attention.causal; });
}

bool Program::has_whole_rows() const {
  const auto is_decoders = [](const Step& step) {
    return step.kind == Kind::logits || step.kind == Kind::attention || step.kind == Kind::convolve ||
           step.kind == Kind::delta_rule || step.kind == Kind::scan;
  };
  const bool handed =
      std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Kind::given; });
  return handed && (!is_causal() || std::none_of(steps.begin(), steps.end(), is_decoders));  // some have no layers
}

std::vector<Attention> Program::sights() const {
  std::vector<Attention> found;
  for (const Step& step : steps) {
    if (step.kind != Kind::attention || !step.attention.sees_ahead()) continue;
    if (std::none_of(found.begin(), found.end(), [&](const Attention& one) { return one.sees_as(step.attention); }))
      found.push_back(step.attention);
  }
  return found;
}

bool Program::turns_by_axes() const {
  return std::any_of(ropes.begin(), ropes.end(), [](const Rope& rope) { return !rope.axes.empty(); });
}

bool Program::gathers_keys() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.attention.sees_tail; });
}

bool Program::is_shard() const {
  return std::any_of(steps.begin(), steps.end(), [](const Step& step) { return step.kind == Kind::gather; });
}

bool Program::read_behind(std::size_t step, Act act) const {
  for (std::size_t i = step + 1; i < steps.size(); ++i) {
    if (steps[i].reads(act)) return true;
    if (steps[i].writes(act)) return false;
  }
  return false;
}

/// Whether what is kept is what this attention reads, for as long as it does.
static bool sees(const Attention& attention, const kv::Group& group) {
  const bool latent = group.keeps == kv::Keeps::latent;
  return attention.kv_heads == group.kv_heads && attention.head_dim == (latent ? group.v_dim : group.k_dim) &&
         (latent ? attention.latent_values > 0 && attention.latent_values <= group.v_dim
                 : attention.latent_values == 0 && attention.v_dim() == group.v_dim) &&
         (group.window == 0 || (attention.window > 0 && attention.window <= group.window));
}

/// Whether what is stored is what is kept.
static bool fills(const Step& store, std::int64_t a_cols, std::int64_t b_cols, const kv::Group& group) {
  if (store.kind == Kind::store_latent) return group.keeps == kv::Keeps::latent && a_cols + b_cols == group.v_dim;
  return group.keeps == kv::Keeps::attention && a_cols == group.kv_heads * group.k_dim &&
         b_cols == group.kv_heads * group.v_dim;
}

/// What is wrong with compressed rows that a step makes or sees; empty: nothing.
static std::string_view compressed_mistake(const Program& program, const Step& step) {
  const bool makes = step.kind == Kind::compress;
  if (!makes && (step.kind != Kind::attention || step.attention.rows < 0)) return "";
  const std::int64_t layer = makes ? step.layer : step.attention.rows;
  if (!program.layout.keeps(layer)) return "no compressed rows are kept of its layer";
  const kv::Group& rows = program.layout.group_of(layer);
  if (rows.keeps != kv::Keeps::latent || rows.window > 0) return "what is kept are no compressed rows";
  if (!makes)
    return step.attention.latent_values > 0 && step.attention.window > 0 && step.attention.head_dim == rows.v_dim
               ? ""
               : "its compressed rows are not as wide as its keys, or it has no window";
  const Compressor& by = step.compressor;
  if (!program.layout.keeps(by.inputs)) return "nothing is kept of what its rows are made of";
  const kv::Group& inputs = program.layout.group_of(by.inputs);
  const std::int64_t given = by.given();
  const bool gated = !by.mean && step.b.buffer >= 0 && program.buffer(step.b).cols == given;
  if (inputs.keeps != kv::Keeps::inputs || inputs.v_dim != by.kept() || inputs.window < by.window() ||
      program.buffer(step.a).cols != given || gated == by.mean || (by.mean && by.overlaps))
    return "what its rows are made of is not what is kept";
  return by.ratio == rows.ratio && by.dim == (by.index ? rows.index_dim : rows.v_dim) &&
                 static_cast<std::size_t>(std::max(by.rope, 0)) < program.ropes.size()
             ? ""
             : "its rows are not those that are kept of the layer";
}

static bool adds_streams(const Program& program, const Step& step) {
  const std::int64_t dim = step.head_dim, out = program.buffer(step.out).cols, x = program.buffer(step.b).cols;
  if (dim <= 0 || out % dim != 0 || x % dim != 0 || step.first < 0 || step.first >= out / dim) return false;
  return step.c.buffer < 0 || program.buffer(step.c).cols == (out / dim - step.first) * (x / dim);
}

/// What is wrong with a step that stores index keys, chooses by them, or sees what was chosen; empty: nothing.
static std::string_view index_mistake(const Program& program, const Step& step) {
  if (step.kind == Kind::attention && step.attention.selected != 0) {
    const Attention& attention = step.attention;
    const std::int64_t block = attention.selected_block, named = step.b.buffer < 0 ? 0 : program.buffer(step.b).cols;
    const bool blocks = block > 0 && is_index_block(block) && attention.latent_values == 0 && attention.rows < 0 &&
                        !attention.sees_ahead() && attention.slopes.empty() &&
                        named * block == attention.kv_heads * attention.selected;
    const bool tokens = block == 0 && attention.latent_values > 0 && named == attention.selected;
    const bool shared = attention.sees_tail && block > 0 && kv::kBlockTokens % block == 0 &&
                        attention.latent_values == 0 && attention.rows < 0 && !attention.sees_ahead() &&
                        attention.slopes.empty() && named * block == attention.selected;
    return (attention.sees_tail ? shared : blocks || tokens) &&
                   (attention.rows >= 0 || (attention.window == 0 && attention.sinks.none()))
               ? ""
               : "it sees chosen keys where it cannot";
  }
  if (step.kind != Kind::store_index && step.kind != Kind::select) return "";
  const std::int64_t kept = program.layout.keeps(step.layer) ? program.layout.group_of(step.layer).index_dim : 0;
  if (step.kind == Kind::store_index)
    return kept > 0 && program.buffer(step.a).cols == kept ? "" : "its index keys are not those that are kept";
  const Indexer& indexer = step.indexer;
  const bool blocks = indexer.block > 0;
  const bool weighed =
      step.b.buffer < 0 ? blocks || indexer.ratio > 1 : !blocks && program.buffer(step.b).cols == indexer.heads;
  const bool in_blocks = !blocks || (is_index_block(indexer.block) && indexer.ratio == 1 && indexer.local >= 0 &&
                                     indexer.local <= indexer.top_k && 2 * indexer.heads <= indexer.block);
  return indexer.head_dim == kept && indexer.heads > 0 && indexer.ratio == program.layout.group_of(step.layer).ratio &&
                 program.buffer(step.a).cols == indexer.heads * kept && weighed && in_blocks &&
                 program.buffer(step.out).cols == indexer.choices()
             ? ""
             : "its index queries are not of the keys that are kept";
}

/// What is wrong with a step over states that are kept so; empty: nothing.
static std::string_view state_mistake(const Program& program, const Step& step, const kv::Group& group) {
  const kv::StateShape& kept = group.state;
  if (!group.is_state()) return "no state is kept of its layer";
  if (step.kind == Kind::convolve) {
    const std::int64_t first = step.convolution.first, channels = program.buffer(step.a).cols;
    const bool dilated = step.convolution.dilation > 1 && channels != kept.channels;  // several share no such columns
    const bool kept_so =
        step.convolution.columns() == kept.columns && first >= 0 && first + channels <= kept.channels && !dilated;
    const bool whole = channels == kept.channels || program.buffer(step.out).cols == kept.channels;
    return kept_so && whole ? "" : "its inputs are not those that are kept of the layer";
  }
  if (step.kind == Kind::scan) {
    const Scan& scan = step.scan;
    const bool kept_so = scan.heads == kept.heads && scan.keys == kept.keys && scan.head_dim == kept.values;
    const bool one = scan.selective && scan.heads == 1 && scan.groups == 1 && scan.keys <= kernels::kMostSelectiveKeys;
    const std::int64_t steps = scan.selective ? scan.inner() : scan.heads,
                       third = scan.selective ? 2 * scan.keys : scan.heads;
    const bool shaped_so = program.buffer(step.a).cols == scan.channels() &&
                           program.buffer(step.out).cols == scan.inner() && program.buffer(step.b).cols == steps &&
                           program.buffer(step.c).cols == third && scan.heads % scan.groups == 0 &&
                           (one || !scan.selective);
    return kept_so && shaped_so ? "" : "its heads are not those that are kept of the layer";
  }
  if (step.kind == Kind::embed_ngrams) {
    const Ngrams& ngrams = step.ngrams;
    const bool kept_so = kept.columns == ngrams.order() - 1 && kept.channels == 1 && kept.heads == 0;
    const bool shaped_so = ngrams.rows() > 0 && ngrams.sizes.size() == ngrams.offsets.size() &&
                           ngrams.rows() % kept.columns == 0 && program.buffer(step.out).cols % ngrams.rows() == 0;
    return kept_so && shaped_so ? "" : "its n-grams are not of the tokens that are kept of the layer";
  }
  const DeltaRule& rule = step.delta_rule;
  const bool kept_so = rule.value_heads == kept.heads && rule.key_dim == kept.keys && rule.value_dim == kept.values;
  const bool shaped_so =
      program.buffer(step.a).cols == rule.channels() &&
      program.buffer(step.out).cols == rule.value_heads * rule.value_dim &&
      program.buffer(step.b).cols == rule.value_heads &&
      (program.buffer(step.c).cols == rule.value_heads || rule.has_channel_decays(program.buffer(step.c).cols));
  return kept_so && shaped_so ? "" : "its heads are not those that are kept of the layer";
}

Status Program::check() const {
  Written written(*this);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const auto wrong = [&](std::string_view what) {
      return error(Code::internal, "step {} of the program ({}): {}", i, name(step.kind), what);
    };
    if (std::binary_search(blocks.begin(), blocks.end(), i)) written.begin_block();
    for (const Act act : {step.a, step.b, step.c}) {
      if (act.buffer < 0) continue;
      if (!written.known(act)) return wrong("it reads a buffer that is none");
      if (!written.holds(act))
        return wrong(fmt::format("it reads {}, which its block has not written", buffer(act).name));
    }
    for (const Product& product : step.all_products())
      if (!written.known(product.out)) return wrong("it writes a buffer that is none");
    if (step.kind == Kind::rope && static_cast<std::size_t>(std::max(step.rope, 0)) < ropes.size()) {
      const Rope& rope = ropes[static_cast<std::size_t>(step.rope)];
      const bool none_beyond = std::all_of(rope.axes.begin(), rope.axes.end(), [](auto a) { return a < kRopeAxes; });
      if (!rope.axes.empty() && (std::ssize(rope.axes) != rope.rotary / 2 || !none_beyond))
        return wrong("its angles go by places that are none");
    }
    if (step.rope < 0 || (step.kind == Kind::rope && static_cast<std::size_t>(step.rope) >= ropes.size()))
      return wrong("it turns by angles that are none");
    if (step.kind == Kind::gate && (step.layer < 0 || (step.layer + 1) * buffer(step.a).cols > buffer(step.b).cols))
      return wrong("its layer has no channels of what it multiplies by");
    if (step.kind == Kind::join && buffer(step.out).cols != buffer(step.a).cols + buffer(step.b).cols)
      return wrong("what it joins is not as wide as what it writes");
    if (step.kind == Kind::gather &&
        (step.first < 0 || step.out == step.a || step.first + buffer(step.a).cols > buffer(step.out).cols))
      return wrong("its results have no place among all");
    if (step.kind == Kind::matmul_heads &&
        (step.heads < 1 || buffer(step.a).cols % step.heads != 0 || buffer(step.out).cols % step.heads != 0))
      return wrong("its heads do not share its buffers evenly");
    if (step.kind == Kind::attention && step.attention.segments && (step.attention.causal || step.attention.window > 0))
      return wrong("its segments have windows, or an order");
    if (step.kind == Kind::attention && !step.attention.causal &&
        (step.attention.selected > 0 || step.attention.latent_values > 0))
      return wrong("it sees tokens behind its own where it cannot");
    if (step.kind == Kind::merge_rows || step.kind == Kind::mean_rows) {
      const std::int64_t wide = step.kind == Kind::merge_rows ? merge : 1;
      if (merge < 1 || buffer(step.out).rows != Rows::merged || buffer(step.a).rows == Rows::merged ||
          buffer(step.out).cols != wide * buffer(step.a).cols)
        return wrong("what it merges is not what it writes");
    }
    if ((step.kind == Kind::sigmoid_gate || step.kind == Kind::softplus_gate) &&
        buffer(step.a).cols % buffer(step.b).cols != 0)
      return wrong("its gates do not share its buffer evenly");
    if (step.kind == Kind::attention && step.attention.chunks &&
        (step.attention.window <= 0 || !step.attention.causal || step.attention.whole_pictures))
      return wrong("its chunks have no length, or it sees beyond them");
    if (step.kind == Kind::largest && buffer(step.out).cols != 1) return wrong("it writes more than one number a row");
    if (step.kind == Kind::match_rms && buffer(step.a).cols % buffer(step.b).cols != 0)
      return wrong("what it matches is no part of its buffer");
    if (step.kind == Kind::add_streams && !adds_streams(*this, step))
      return wrong("its buffers are not of so many streams");
    if (step.kind == Kind::gate_streams &&
        (buffer(step.a).cols != buffer(step.b).cols || buffer(step.a).cols != step.head_dim * buffer(step.out).cols))
      return wrong("its buffers are not of so many streams");
    if (step.kind == Kind::weigh_streams && buffer(step.a).cols != step.weighing.streams &&
        buffer(step.a).cols != step.weighing.whole())
      return wrong("its weights are not of so many streams");
    if (const std::string_view mistake = index_mistake(*this, step); !mistake.empty()) return wrong(mistake);
    if (const std::string_view mistake = compressed_mistake(*this, step); !mistake.empty()) return wrong(mistake);
    if (step.kind == Kind::store_kv || step.kind == Kind::store_latent || step.kind == Kind::attention) {
      if (!layout.keeps(step.layer)) return wrong("it names a layer of which nothing is kept");
      const kv::Group& group = layout.group_of(step.layer);
      const std::int64_t b_cols = step.b.buffer < 0 ? 0 : buffer(step.b).cols;
      if (step.kind == Kind::attention ? !sees(step.attention, group)
                                       : !fills(step, buffer(step.a).cols, b_cols, group))
        return wrong("its heads are not those that are kept of the layer");
    }
    if (step.kind == Kind::convolve || step.kind == Kind::delta_rule || step.kind == Kind::scan ||
        step.kind == Kind::embed_ngrams) {
      if (!layout.keeps(step.layer)) return wrong("it names a layer of which nothing is kept");
      const std::string_view mistake = state_mistake(*this, step, layout.group_of(step.layer));
      if (!mistake.empty()) return wrong(mistake);
    }
    written.write(step.out);
    for (const Product& product : step.all_products()) written.write(product.out);
  }
  return {};
}

PassShape pass_shape(const Program& program, const residency::UnitTable& units, const PassLimits& limits) {
  PassShape shape;
  static_cast<PassLimits&>(shape) = limits;
  shape.buffers = program.buffers;
  shape.merge = program.merge;
  shape.gathers = program.is_shard();
  shape.sights = std::ssize(program.sights());
  shape.causal = program.is_causal();
  shape.whole_rows = program.has_whole_rows();
  for (const Rope& rope : program.ropes) shape.rotary.push_back(rope.rotary);
  shape.kv_groups = std::ssize(program.layout.with(limits.kv_dtype, kv::kOnHost).groups());
  for (const kv::Group& group : program.layout.groups()) shape.state_groups += group.is_state() ? 1 : 0;
  const auto input = [&](WeightRef ref) {
    if (!ref.none()) shape.widest_input = std::max(shape.widest_input, units.part(ref).cols);
  };
  const auto output = [&](WeightRef ref) {
    if (!ref.none()) shape.widest_output = std::max(shape.widest_output, units.part(ref).rows);
  };
  for (const Step& step : program.steps) {
    for (const Product& product : step.all_products()) input(product.weight), output(product.weight);
    if (step.kind == Kind::gated) output(step.weight);
    if (step.kind == Kind::matmul || step.kind == Kind::gated || step.kind == Kind::logits) ++shape.product_steps;
    if (step.kind == Kind::gated || step.kind == Kind::logits || step.kind == Kind::moe) input(step.weight);
    if (step.kind == Kind::attention && step.attention.latent_values == 0) {
      const std::int64_t kept = program.layout.group_of(step.layer).v_dim;
      if (kept > step.attention.v_dim()) shape.padded_heads = std::max(shape.padded_heads, step.attention.heads * kept);
    }
    if (step.kind == Kind::gated &&
        (shape.whole_rows || shape.adapters > 0 || units.part(step.weight).dtype != units.part(step.weight2).dtype))
      shape.separate_gate = std::max(shape.separate_gate, program.buffer(step.out).cols);
    if (step.kind == Kind::gated) shape.widest_gate = std::max(shape.widest_gate, program.buffer(step.out).cols);
    if (step.kind == Kind::matmul_heads) {
      shape.widest_input = std::max(shape.widest_input, step.heads * units.part(step.weight).cols);
      shape.product_heads = std::max(shape.product_heads, step.heads);
    }
    if (step.kind == Kind::select) shape.index_heads = std::max(shape.index_heads, step.indexer.heads);
    if (step.kind == Kind::select && step.indexer.ratio > 1)  // whose keys are gathered
      shape.latent_dim = std::max(shape.latent_dim, step.indexer.head_dim);
    if (step.kind == Kind::embed_ngrams) {
      const residency::Part& table = units.part(step.weight);
      shape.ngram_rows = std::max(shape.ngram_rows, step.ngrams.rows());
      shape.ngram_row_bytes = std::max(shape.ngram_row_bytes, row_bytes(table.dtype, table.cols));
    }
    if (step.kind == Kind::convolve)
      shape.widest_taps = std::max(shape.widest_taps, step.convolution.taps * program.buffer(step.a).cols);
    if (step.kind == Kind::scan && step.scan.selective)
      shape.widest_taps = std::max(shape.widest_taps, step.scan.inner() * step.scan.keys);
    if (step.kind == Kind::compress)
      shape.widest_taps = std::max(shape.widest_taps, step.compressor.ratio * step.compressor.given());
    if (step.kind == Kind::delta_rule && !step.delta_rule.has_channel_decays(program.buffer(step.c).cols)) {
      shape.delta_rule.key_heads = std::max(shape.delta_rule.key_heads, step.delta_rule.key_heads);
      shape.delta_rule.value_heads = std::max(shape.delta_rule.value_heads, step.delta_rule.value_heads);
      shape.delta_rule.key_dim = std::max(shape.delta_rule.key_dim, step.delta_rule.key_dim);
      shape.delta_rule.value_dim = std::max(shape.delta_rule.value_dim, step.delta_rule.value_dim);
    }
    if (step.kind == Kind::logits)
      shape.vocab = std::max(shape.vocab, step.vocab > 0 ? step.vocab : units.part(step.weight).rows);
    if (step.kind == Kind::attention) {
      shape.heads = std::max(shape.heads, step.attention.heads);
      shape.kv_heads = std::max(shape.kv_heads, step.attention.kv_heads);
      shape.head_dim = std::max({shape.head_dim, step.attention.head_dim, step.attention.v_dim()});
      if (step.attention.selected > 0 || step.attention.rows >= 0) {
        shape.selected = std::max<std::int64_t>({shape.selected, step.attention.selected, 1});
        const kv::Group group = program.layout.with(limits.kv_dtype, kv::kOnHost).group_of(step.layer);
        shape.selected_bytes = std::max(
            shape.selected_bytes, kernels::kAttentionChunk / kv::kBlockTokens *
                                      (group.v_head_bytes() + (step.attention.sees_tail ? group.k_head_bytes() : 0)));
      }
      if (step.attention.latent_values > 0) shape.latent_dim = std::max(shape.latent_dim, step.attention.head_dim);
      shape.group = std::max(shape.group, step.attention.heads / step.attention.kv_heads);
    }
    if (step.kind != Kind::moe) continue;
    const Experts& experts = step.experts;
    const std::int64_t ff = units.part({experts.first_unit, experts.down_part}).cols;
    shape.experts = std::max<std::int64_t>(shape.experts, experts.count);
    shape.top_k = std::max<std::int64_t>(shape.top_k, experts.top_k);
    shape.expert_ff = std::max(shape.expert_ff, ff);
    shape.widest_gate = std::max(shape.widest_gate, ff);
    shape.model_dim = std::max(shape.model_dim, program.buffer(step.a).cols);
    shape.routed_dim = std::max(shape.routed_dim, program.buffer(step.b).cols);
    shape.ungated_experts = shape.ungated_experts || !experts.gated();
    shape.expert_biases = shape.expert_biases || !experts.gate_bias.none();
    shape.widest_input = std::max(shape.widest_input, ff);
  }
  return shape;
}

}  // namespace millrace::exec
