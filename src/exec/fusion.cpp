#include "exec/fusion.h"

#include <algorithm>
#include <optional>

namespace millrace::exec {
namespace {

using Kind = Step::Kind;

// What the kernels of fused launches take (kernels/gpu/heads.h, delta_step.h, latent.h, ops.h).
constexpr std::int64_t kMostGatedHeadDim = 512, kGatedHeadDims = 32;  // at most, and a multiple of
constexpr std::int64_t kMostDeltaKeys = 128, kMostDeltaValues = 128, kDeltaTaps = 4;
constexpr std::int64_t kMostNormedLatent = 1024;
constexpr int kMostProducts = 4;

class Fuser {
 public:
  Fuser(const Program& program, const residency::UnitTable& units, const FuseOptions& options)
      : program_(program), units_(units), options_(options), whole_(program.has_whole_rows()) {
    if (whole_) options_.neighbours = options_.prompt = false;
  }

  Expected<Launches> fuse() {
    Launches launches;
    for (const std::size_t first : program_.blocks) {
      std::vector<Launch>& block = launches.emplace_back();
      begin_ = first;
      end_ = program_.block_end(first);
      for (std::size_t at = first; at < end_; at = block.back().end) {
        MR_ASSIGN_OR_RETURN(Launch launch, launch_at(at));
        block.push_back(launch);
      }
      block.shrink_to_fit();
    }
    return launches;
  }

 private:
  const Step& step(std::size_t i) const { return program_.steps[i]; }
  bool is(std::size_t i, Kind kind) const { return i < end_ && step(i).kind == kind; }
  DType dtype(WeightRef ref) const { return units_.part(ref).dtype; }

  Status broken(std::size_t at, std::string_view what) const {
    return error(Code::unsupported, "the GPU part cannot do step {} of the program ({}): {}", at, name(step(at).kind),
                 what);
  }

  // --- Forms ---

  static bool is_float(DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; }
  /// Whether the product of `x` with `weight` is one of prompts.
  bool in_prompt(Act x, WeightRef weight) const {
    return options_.prompt && program_.buffer(x).rows != Rows::logits && !is_float(dtype(weight)) &&
           (!options_.prompt_dtypes || options_.prompt_dtypes(dtype(weight)));
  }
  std::int64_t host_rows(WeightRef ref) const { return options_.host_rows ? options_.host_rows(ref) : 0; }

  Adapted adapted(WeightRef ref) const { return options_.adapted ? options_.adapted(ref) : Adapted::no; }

  void want(Forms& forms, WeightRef weight, bool prompt) const {
    if (host_rows(weight) > 0) forms.floats = true;                      // to be handed out
    if (adapted(weight) != Adapted::no && !prompt) forms.floats = true;  // for adapters
    (is_float(dtype(weight)) ? forms.floats : prompt ? forms.bf16 : forms.q8) = true;
  }

  /// In which forms `s` reads `act`.
  void want_of(Forms& forms, const Step& s, Act act) const {
    switch (s.kind) {
      case Kind::matmul:
        for (const Product& product : s.all_products()) want(forms, product.weight, in_prompt(act, product.weight));
        return;
      case Kind::gated:
        want(forms, s.weight, in_prompt(act, s.weight));
        want(forms, s.weight2, in_prompt(act, s.weight2));
        return;
      case Kind::logits:
        return want(forms, s.weight, false);
      case Kind::moe:  // routers and experts have one class of products
        if (s.b == act) want(forms, s.weight, false);
        if (s.a != act) return;
        if (options_.experts_from_host) forms.floats = true;
        want(forms, {s.experts.first_unit, s.experts.first_part()}, false);
        want(forms, {s.experts.first_unit, s.experts.up_part}, false);
        return;
      default:
        forms.floats = true;
    }
  }

  /// In which forms the steps behind `at` read `act`, until it is written again.
  Forms wanted(std::size_t at, Act act) const {
    Forms forms;
    for (std::size_t i = at + 1; i < program_.steps.size(); ++i) {
      if (step(i).reads(act)) want_of(forms, step(i), act);
      if (step(i).writes(act)) break;
    }
    return forms;
  }

  /// A kernel that can write int8 beside floats, or alone.
  static Forms leaves(const Forms& later) { return {later.floats || later.bf16 || !later.q8, later.q8, false}; }

  // --- Launches ---

  Launch launch(Launch::Kind kind, std::size_t first, std::size_t end, Act out) const {
    return {kind, false, {true, false, false}, first, end, out};
  }

  Expected<Launch> launch_at(std::size_t at) const {
    const Step& s = step(at);
    const auto one = [&](Launch::Kind kind) { return launch(kind, at, at + 1, s.out); };
    if (const std::optional<Launch> mixture = experts_with_shared(at)) return *mixture;
    if (const std::optional<Launch> mixture = experts(at)) return *mixture;
    switch (s.kind) {
      case Kind::embed:
        return one(Launch::Kind::embed);
      case Kind::rms_norm:
        if (norms_latent(at)) return launch(Launch::Kind::latent, at, at + 4, step(at + 3).out);
        return norm(Launch::Kind::norm, at, at);
      case Kind::layer_norm:
        if (stores_index(at)) return launch(Launch::Kind::index, at, at + 4, step(at + 1).out);
        return one(Launch::Kind::layer_norm);
      case Kind::add:
        return one(Launch::Kind::add);
      case Kind::scale:
        if (scales_index_weights(at)) return launch(Launch::Kind::choose_keys, at, at + 2, step(at + 1).out);
        return one(Launch::Kind::scale);
      case Kind::copy:
        return one(Launch::Kind::copy);
      case Kind::gate:
        return one(Launch::Kind::gate);
      case Kind::temper:
        return one(Launch::Kind::temper);
      case Kind::matmul:
        if (joins_product(at)) return launch(Launch::Kind::product, at, at + 2, s.products[0].out);
        if (const std::optional<Launch> made = gathered(Launch::Kind::product, at, s.products[0].out)) return *made;
        return with_residual(launch(Launch::Kind::product, at, at + 1, s.products[0].out),
                             s.product_count == 1 && adapted(s.products[0].weight) != Adapted::behind);
      case Kind::gated:
        return gated(at);
      case Kind::rms_norm_heads:
        return whole_ ? one(Launch::Kind::heads_norm) : heads(at);
      case Kind::rope:
        return whole_ ? one(Launch::Kind::turn) : heads(at);
      case Kind::store_kv:  // of heads that are not turned
        return launch(Launch::Kind::heads, at, at + 1, {});
      case Kind::matmul_heads:
        return one(Launch::Kind::head_product);
      case Kind::store_latent:
        return broken(at, "a latent without RoPE");
      case Kind::attention: {
        const bool pads =
            s.attention.latent_values == 0 && are_padded(s.layer, s.attention.head_dim, s.attention.v_dim());
        if (s.attention.latent_values == 0 && !pads && s.attention.v_dim() != s.attention.head_dim)
          return broken(at, "keys and values of two sizes");
        Launch attention = one(Launch::Kind::attention);
        if (s.attention.latent_values == 0 && !whole_ && !pads) attention.leaves = leaves(wanted(at, s.out));
        return attention;
      }
      case Kind::store_index:
        return broken(at, "an index key without LayerNorm and RoPE");
      case Kind::select:
        return one(Launch::Kind::choose_keys);
      case Kind::cap:  // check_gpu() has refused these
      case Kind::statistical_top_k:
      case Kind::match_rms:
      case Kind::add_streams:
      case Kind::weigh_streams:
      case Kind::gate_streams:
      case Kind::compress:
      case Kind::embed_ngrams:
      case Kind::softplus_gate:
      case Kind::moe:  // experts() has taken it
        break;
      case Kind::select_rows:
        if (options_.neighbours && is(at + 1, Kind::rms_norm) && step(at + 1).a == s.out && step(at + 1).out == s.out)
          return norm(Launch::Kind::select_norm, at, at + 1);
        return one(Launch::Kind::select_rows);
      case Kind::logits:
        return one(Launch::Kind::logits);
      case Kind::hidden:
        return one(Launch::Kind::hidden);
      case Kind::given:
        return one(Launch::Kind::given);
      case Kind::join:
        if (!whole_) return broken(at, "states beside an embedding");
        return one(Launch::Kind::join);
      case Kind::pick_heads:
        return launch(Launch::Kind::pick_heads, at, at + (picks_twice(at) ? 2 : 1), s.out);
      case Kind::multiply:
        return one(Launch::Kind::multiply);
      case Kind::largest:
        return one(Launch::Kind::largest);
      case Kind::sigmoid_gate: {
        Launch gate = one(Launch::Kind::sigmoid_gate);
        if (options_.neighbours && gates_channels(s)) gate.leaves = any_of(wanted(at, s.out));
        return gate;
      }
      case Kind::l2_norm_heads:
        return one(Launch::Kind::l2_norm);
      case Kind::decay:
        if (const std::optional<Launch> net = delta_net(at)) return *net;
        return one(Launch::Kind::time_step);
      case Kind::time_step:
        return one(Launch::Kind::time_step);
      case Kind::convolve:
        return one(Launch::Kind::convolve);
      case Kind::delta_rule:
        return one(Launch::Kind::delta_rule);
      case Kind::scan:
        if (s.scan.selective) break;  // check_gpu() has refused these, too
        return one(Launch::Kind::scan);
      case Kind::activate:
        return one(Launch::Kind::activate);
      case Kind::gather:
        return gather(at);
      case Kind::add_picture:
        return one(Launch::Kind::add_picture);
      case Kind::merge_rows:
        return one(Launch::Kind::merge_rows);
      case Kind::mean_rows:
        return one(Launch::Kind::mean_rows);
      case Kind::clamp:
        return one(Launch::Kind::clamp);
      case Kind::standardize:
        return one(Launch::Kind::standardize);
    }
    return broken(at, "it has no launch");
  }

  /// Whether only the latents' store reads what this norm makes.
  bool norms_latent(std::size_t at) const {
    if (!options_.neighbours || !stores_latent(at + 1)) return false;
    const std::int64_t rank = program_.buffer(step(at).out).cols;
    return step(at + 2).a == step(at).out && rank <= kMostNormedLatent && rank % 4 == 0 &&
           !program_.read_behind(at + 2, step(at).out);
  }
  /// RoPE of the shared key, its store behind the latent, and RoPE of the queries.
  bool stores_latent(std::size_t at) const {
    return is(at, Kind::rope) && is(at + 1, Kind::store_latent) && is(at + 2, Kind::rope);
  }

  /// LayerNorm of an index key, RoPE of the queries and of the key, and its store, which alone reads what is stored.
  bool stores_index(std::size_t at) const {
    if (!is(at, Kind::layer_norm) || !is(at + 1, Kind::rope) || !is(at + 2, Kind::rope) ||
        !is(at + 3, Kind::store_index))
      return false;
    const Act key = step(at + 3).a;
    return step(at).out == key && step(at + 1).rope == step(at + 2).rope && step(at + 1).out != key &&
           step(at + 2).out == key && !program_.read_behind(at + 3, key);
  }
  bool scales_index_weights(std::size_t at) const {
    const Step& s = step(at);
    return options_.neighbours && s.weight.none() && s.weight2.none() && is(at + 1, Kind::select) &&
           step(at + 1).b == s.out && !program_.read_behind(at + 1, s.out);
  }

  Launch norm(Launch::Kind kind, std::size_t first, std::size_t at) const {
    Launch made = launch(kind, first, at + 1, step(at).out);
    if (!options_.neighbours) return made;
    const Forms later = wanted(at, made.out);
    made.leaves = leaves(later);
    made.leaves.bf16 = later.bf16;
    if (later == Forms{false, false, true} && read_at_once(at, made.out)) made.leaves.floats = false;
    return made;
  }

  /// What all devices made, in every form that is wanted: each makes that of its own columns.
  Launch gather(std::size_t at) const {
    Launch made = with_residual(launch(Launch::Kind::gather, at, at + 1, step(at).out), true);
    if (!made.adds && options_.neighbours) made.leaves = any_of(wanted(at, made.out));
    made.meets_first = touched_since_meeting(at, made);
    return made;
  }

  /// Whether all devices go through the step together.
  bool meets(std::size_t at) const {
    const Step& s = step(at);
    return s.kind == Kind::gather || (s.kind == Kind::moe && s.experts.own_hidden.buffer >= 0);
  }
  /// Whether a step reads or writes what that gather stores on all devices: a buffer, or the one place of forms that
  /// are gathered.
  bool touches(std::size_t at, const Launch& gather) const {
    const Step& s = step(at);
    if (s.reads(gather.out) || s.writes(gather.out)) return true;
    if (!(gather.leaves.q8 || gather.leaves.bf16) || (s.kind != Kind::matmul && s.kind != Kind::gated)) return false;
    return std::any_of(program_.steps.begin(), program_.steps.end(),
                       [&](const Step& other) { return other.kind == Kind::gather && other.out == s.a; });
  }
  /// Since all devices met last before the gather at `at`. That was in this block, or behind the window before, or in
  /// the block before.
  bool touched_since_meeting(std::size_t at, const Launch& gather) const {
    for (std::size_t i = at; i-- > begin_;) {
      if (meets(i)) return false;
      if (touches(i, gather)) return true;
    }
    for (std::size_t i = end_; i-- > gather.end && !meets(i);)
      if (touches(i, gather)) return true;
    for (std::size_t i = begin_; i-- > 0 && !meets(i);)
      if (touches(i, gather)) return true;
    return false;
  }

  /// A prompt's product and the gather behind it, where nothing else reads what this device made and it is all of one
  /// kernel: that may store it in all devices' memory itself.
  std::optional<Launch> gathered(Launch::Kind kind, std::size_t at, Act own) const {
    const Step& s = step(at);
    if (!options_.neighbours || !is(at + 1, Kind::gather) || step(at + 1).a != own || program_.read_behind(at + 1, own))
      return {};
    if (s.kind == Kind::matmul && s.product_count != 1) return {};
    const WeightRef weight = s.kind == Kind::matmul ? s.products[0].weight : s.weight;
    if (!in_prompt(s.a, weight) || host_rows(weight) > 0) return {};
    Launch made = gather(at + 1);
    const Forms stored = kind == Launch::Kind::product ? Forms{true, false, false} : Forms{false, false, true};
    if (made.leaves != stored || touches(at, made)) return {};
    made.kind = kind;
    made.first = at;
    made.gathers = true;
    return made;
  }

  /// Whether products right behind a step read what it wrote, and nothing after them: its form is still there then.
  bool read_at_once(std::size_t at, Act act) const {
    while ((is(at + 1, Kind::matmul) || is(at + 1, Kind::gated)) && step(at + 1).a == act) ++at;
    return !program_.read_behind(at, act);
  }

  /// The addition to the residual stream that follows, where nothing else reads what is added.
  Launch with_residual(Launch made, bool may) const {
    if (!may || !options_.neighbours || !is(made.end, Kind::add)) return made;
    const Step& add = step(made.end);
    if (add.factor != 1 || add.b != made.out || add.a == made.out || program_.read_behind(made.end, made.out))
      return made;
    made.adds = true;
    made.out = add.a;
    ++made.end;
    return made;
  }

  /// Whether the next step's products are of the same input, and few enough. None is added to the residual stream.
  bool joins_product(std::size_t at) const {
    if (!options_.neighbours || !is(at + 1, Kind::matmul) || is(at + 2, Kind::add) || experts(at + 1)) return false;
    const Step &first = step(at), &second = step(at + 1);
    if (second.a != first.a || first.writes(first.a) || first.product_count + second.product_count > kMostProducts)
      return false;
    for (const Step* const s : {&first, &second})
      for (const Product& product : s->all_products())
        if (host_rows(product.weight) > 0) return false;
    return true;
  }

  bool picks_twice(std::size_t at) const {
    if (!options_.neighbours || !is(at + 1, Kind::pick_heads)) return false;
    const Step &first = step(at), &second = step(at + 1);
    return first.a == second.a && first.out != second.out && first.heads == second.heads &&
           first.head_dim == second.head_dim;
  }

  /// Of a kernel that writes whatever form is wanted, but one of int8 and bfloat16 alone.
  static Forms any_of(const Forms& later) {
    const bool both = later.q8 && later.bf16;
    return {later.floats || both || !later.any(), later.q8 && !both, later.bf16};
  }
  /// Whether each channel has a gate of its own, and rows are whole blocks of 32.
  bool gates_channels(const Step& s) const {
    const std::int64_t cols = program_.buffer(s.out).cols;
    return cols > 1 && program_.buffer(s.b).cols == cols && cols % 32 == 0;
  }

  /// The mixture that begins here: at its router, or before it at the gate by which a shared expert's result counts
  /// (its product, its sigmoid). Behind its experts that result is added, and the sum to the residual stream.
  std::optional<Launch> experts(std::size_t first) const {
    std::size_t at = first;
    if (is(at, Kind::matmul)) ++at;
    if (is(at, Kind::sigmoid_gate)) ++at;
    if (!is(at, Kind::moe) || (at > first && (!options_.neighbours || !gates_shared(first, at)))) return {};
    Launch made = launch(Launch::Kind::experts, first, at + 1, step(at).out);
    if (options_.neighbours && adds_shared(at)) ++made.end;
    return with_residual(made, true);
  }
  /// A mixture and before it an expert that all rows share, of the same shape and dtypes as its own.
  std::optional<Launch> experts_with_shared(std::size_t at) const {
    if (!options_.neighbours || options_.prompt || options_.experts_from_host) return {};
    if (!is(at, Kind::gated) || !is(at + 1, Kind::matmul)) return {};
    std::optional<Launch> made = experts(at + 2);
    if (!made) return {};
    std::size_t mixture = at + 2;
    while (step(mixture).kind != Kind::moe) ++mixture;
    const Step &hidden = step(at), &down = step(at + 1), &s = step(mixture);
    const Experts& experts = s.experts;
    const Product& result = down.products[0];
    if (down.product_count != 1 || down.a != hidden.out || !result.bias.none() || hidden.a != s.a ||
        program_.read_behind(at + 1, hidden.out))
      return {};
    if (!adds_shared(mixture) || step(mixture + 1).b != result.out || program_.read_behind(mixture + 1, result.out))
      return {};
    if (!experts.gated() || !experts.gate_bias.none() || !experts.inner_scale.none() ||
        experts.activation != hidden.activation || experts.limit != hidden.limit ||
        dtype(hidden.weight) != dtype(hidden.weight2))
      return {};
    const auto alike = [&](WeightRef ref, std::int32_t part) {
      const residency::Part &one = units_.part(ref), &other = units_.part({experts.first_unit, part});
      return one.dtype == other.dtype && one.rows == other.rows && one.cols == other.cols && host_rows(ref) == 0 &&
             adapted(ref) == Adapted::no;
    };
    if (!alike(hidden.weight, experts.gate_part) || !alike(hidden.weight2, experts.up_part) ||
        !alike(result.weight, experts.down_part))
      return {};
    made->first = at;
    return made;
  }
  /// Whether behind the mixture another row is added to its sum.
  bool adds_shared(std::size_t mixture) const {
    if (!is(mixture + 1, Kind::add)) return false;
    const Step &s = step(mixture), &add = step(mixture + 1);
    return add.a == s.out && add.b != s.out && add.factor == 1;
  }
  /// Whether the steps [first, mixture) are the gate of what is added behind the mixture, and of nothing else.
  bool gates_shared(std::size_t first, std::size_t mixture) const {
    const Step &s = step(mixture), &gate = step(mixture - 1);
    if (gate.kind != Kind::sigmoid_gate || !adds_shared(mixture) || step(mixture + 1).b != gate.out) return false;
    if (program_.buffer(gate.b).cols != 1 || s.reads(gate.out) || s.out == gate.b || gate.out == gate.b) return false;
    if (program_.read_behind(mixture + 1, gate.out) || program_.read_behind(mixture - 1, gate.b)) return false;
    if (first + 1 == mixture) return true;
    const Step& made = step(first);  // beside the router's scores
    return made.product_count == 1 && made.products[0].out == gate.b && made.a == s.b &&
           is_float(dtype(made.products[0].weight)) && is_float(dtype(s.weight)) &&
           host_rows(made.products[0].weight) == 0 && adapted(made.products[0].weight) == Adapted::no;
  }

  /// The decays, the convolution, the norm of queries and keys, the delta rule, and the gated norm of what it gives,
  /// where nothing else reads what is between them.
  std::optional<Launch> delta_net(std::size_t at) const {
    if (!options_.neighbours || !is(at + 1, Kind::convolve) || !is(at + 2, Kind::l2_norm_heads) ||
        !is(at + 3, Kind::delta_rule))
      return {};
    std::optional<Launch> made = gated_norm(at + 4);
    if (!made) return {};
    const Step &decay = step(at), &convolve = step(at + 1), &norm = step(at + 2), &s = step(at + 3);
    const DeltaRule& rule = s.delta_rule;
    if (rule.key_dim > kMostDeltaKeys || rule.value_dim > kMostDeltaValues || convolve.convolution.taps != kDeltaTaps)
      return {};
    if (norm.out != convolve.out || norm.heads != 2 * rule.key_heads || norm.head_dim != rule.key_dim) return {};
    if (decay.least != 0 || convolve.a != convolve.out || rule.has_channel_decays(program_.buffer(s.c).cols)) return {};
    if (s.a != convolve.out || s.c != decay.out || s.b == s.c || convolve.layer != s.layer) return {};
    if (step(at + 4).out != s.out || step(at + 4).head_dim != rule.value_dim) return {};
    for (const Act act : {convolve.out, decay.out})
      if (made->out == act || program_.read_behind(made->end - 1, act)) return {};
    made->kind = Launch::Kind::delta_net;
    made->first = at;
    return made;
  }

  /// A norm of heads that share a weight, and a gate that it is multiplied by.
  std::optional<Launch> gated_norm(std::size_t at) const {
    if (!options_.neighbours || !is(at, Kind::rms_norm_heads) || !is(at + 1, Kind::gate)) return {};
    const Step &norm = step(at), &gate = step(at + 1);
    const std::int64_t cols = program_.buffer(norm.out).cols;
    if (norm.weight.none() || units_.part(norm.weight).cols != norm.head_dim || norm.head_dim > kMostGatedHeadDim ||
        norm.head_dim % kGatedHeadDims != 0)
      return {};
    if (gate.b != norm.out || gate.out == norm.out || gate.layer != 0 || gate.limit != 0 ||
        program_.buffer(gate.out).cols != cols || program_.read_behind(at + 1, norm.out))
      return {};
    Launch made = launch(Launch::Kind::gated_norm, at, at + 2, gate.out);
    made.leaves = any_of(wanted(at + 1, gate.out));
    return made;
  }

  Launch gated(std::size_t at) const {
    const Step& s = step(at);
    const DType gate = dtype(s.weight);
    const bool behind = adapted(s.weight) == Adapted::behind || adapted(s.weight2) == Adapted::behind;
    if (!options_.neighbours || gate != dtype(s.weight2) || behind) {
      Launch made = launch(Launch::Kind::gate_and_up, at, at + 1, s.out);
      // Adapters of prompts may leave that alone.
      const bool prompt = in_prompt(s.a, s.weight) && in_prompt(s.a, s.weight2) && host_rows(s.weight) == 0;
      const Forms later = wanted(at, s.out), bf16{false, false, true};
      if (options_.neighbours && behind && prompt && later == bf16) made.leaves = bf16;
      return made;
    }
    if (const std::optional<Launch> made = gathered(Launch::Kind::gated, at, s.out)) return *made;
    Launch made = launch(Launch::Kind::gated, at, at + 1, s.out);
    const Forms later = wanted(at, s.out);
    // Where some columns come from the processor, nothing can be made of the whole rows yet.
    const bool shared = host_rows(s.weight) > 0, prompt = in_prompt(s.a, s.weight);
    made.leaves.bf16 = later.bf16 && prompt;
    made.leaves.q8 = later.q8 && !prompt && !shared;
    made.leaves.floats = later.floats || shared || (later.bf16 && !prompt) || (later.q8 && prompt);
    return made;
  }

  /// Heads' norms and RoPE up to the KV store. Without a store the keys belong to another layer.
  Expected<Launch> heads(std::size_t first) const {
    if (stores_latent(first)) return launch(Launch::Kind::latent, first, first + 3, step(first + 2).out);
    std::size_t end = first;
    while (is(end, Kind::rope) || is(end, Kind::rms_norm_heads)) ++end;
    const bool stores = is(end, Kind::store_kv);
    const bool attends = stores || is(end, Kind::attention);
    if (const std::optional<Launch> made = gated_norm(first); made && !attends) return *made;
    if (!attends && is(first, Kind::rms_norm_heads) && !step(first).weight.none())
      return launch(Launch::Kind::heads_norm, first, first + 1, step(first).out);
    if (!attends) return broken(first, "RoPE without attention");
    for (std::size_t i = first; i < end && stores; ++i)
      if (step(i).out == step(end).b && (step(i).kind == Kind::rope || !step(i).weight.none()))
        return broken(i, "values that are rotated, or normalised with a weight");
    if (!in_one_kernel(first, end)) {
      const bool turns = is(first, Kind::rope);
      if (!stores && first + 1 == end) return broken(first, "queries that no kernel prepares last");
      return launch(turns ? Launch::Kind::turn : Launch::Kind::heads_norm, first, first + 1, step(first).out);
    }
    Act queries;
    for (std::size_t i = first; i < end; ++i)
      if (!stores || (step(i).out != step(end).a && step(i).out != step(end).b)) queries = step(i).out;
    return launch(Launch::Kind::heads, first, stores ? end + 1 : end, queries);
  }
  /// Whether the cache keeps a layer's heads with more channels than they have.
  bool are_padded(std::int64_t layer, std::int64_t k_dim, std::int64_t v_dim) const {
    if (!program_.layout.keeps(layer)) return false;
    const kv::Group& group = program_.layout.group_of(layer);
    return group.k_dim == group.v_dim && (k_dim < group.k_dim || v_dim < group.v_dim);
  }
  /// Whether keys or values are stored so.
  bool stores_padded(const Step& store) const {
    if (!program_.layout.keeps(store.layer)) return false;
    const kv::Group& group = program_.layout.group_of(store.layer);
    return program_.buffer(store.a).cols < group.kv_heads * group.k_dim ||
           program_.buffer(store.b).cols < group.kv_heads * group.v_dim;
  }
  /// Whether one kernel computes the steps [first, end) of heads: norms by a weight that all heads share come before
  /// RoPE, which queries and keys have both or neither, from the first channel on. Else the first step has a launch of
  /// its own.
  bool in_one_kernel(std::size_t first, std::size_t end) const {
    const bool stores = is(end, Kind::store_kv);
    if (stores ? stores_padded(step(end))
               : are_padded(step(end).layer, step(end).attention.head_dim, step(end).attention.v_dim()))
      return false;
    bool turns_queries = false, turns_keys = false;
    for (std::size_t i = first; i < end; ++i) {
      const Step& s = step(i);
      const bool of_keys = stores && s.out == step(end).a;
      if (stores && s.out == step(end).b) continue;
      if (s.kind == Kind::rope) {
        if (program_.ropes[static_cast<std::size_t>(s.rope)].last) return false;
        (of_keys ? turns_keys : turns_queries) = true;
      } else if (s.weight.none() || units_.part(s.weight).cols != s.head_dim ||
                 (of_keys ? turns_keys : turns_queries)) {
        return false;
      }
    }
    return !stores || turns_queries == turns_keys;
  }

  const Program& program_;
  const residency::UnitTable& units_;
  FuseOptions options_;
  const bool whole_;                 // all rows of the program see each other
  std::size_t begin_ = 0, end_ = 0;  // of the present block
};

}  // namespace

std::string_view name(Launch::Kind kind) {
  static constexpr std::string_view names[] = {
      "embed",        "norm",         "add",         "scale",       "copy",       "temper",   "product",
      "gated",        "gate and up",  "heads",       "heads' norm", "gated norm", "latent",   "index",
      "keys' choice", "head product", "gate",        "activation",  "pick",       "multiply", "sigmoid gate",
      "l2 norm",      "time step",    "convolution", "delta rule",  "delta net",  "scan",     "attention",
      "experts",      "rows",         "rows' norm",  "logits",      "states",     "given",    "pictures",
      "gather",       "layer norm",   "turn",        "merge",       "mean",       "clamp",    "standardize",
      "join",         "largest"};
  return names[static_cast<std::size_t>(kind)];
}

Expected<Launches> fuse(const Program& program, const residency::UnitTable& units, const FuseOptions& options) {
  return Fuser(program, units, options).fuse();
}

}  // namespace millrace::exec
