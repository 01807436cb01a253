#include "engine/cluster.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/log.h"
#include "engine/cluster_terms.h"
#include "engine/share_layers.h"
#include "engine/within.h"
#include "exec/pipeline.h"

namespace millrace::engine {
namespace {

std::vector<std::uint64_t> bytes_by_layer(const model::Model& model) {
  std::vector<std::uint64_t> bytes;
  for (const LayerLoad& load : layer_loads(model)) bytes.push_back(load.bytes);
  return bytes;
}

/// What a sequence takes elsewhere must be bounded on rank 0: by a layer that keeps all of it, where others do, and by
/// one that keeps a state. There drafts must be taken as a whole, too, where others keep a state. What layers keep
/// besides lies behind the model's `layers`; if each keeps as much, in their order.
Status check_first_stage(const kv::Layout& layout, std::int64_t layers, const model::Stage& first) {
  const std::int64_t besides = layout.layers() - layers, each = besides % layers == 0 ? besides / layers : 0;
  const auto owner = [&](std::int64_t layer) {
    return layer < layers ? layer : each > 0 ? (layer - layers) / each : layers;
  };
  bool some_keep_all = false, first_keeps_all = false, some_have_states = false, first_has_states = false;
  for (std::int64_t layer = 0; layer < layout.layers(); ++layer) {
    if (!layout.keeps(layer)) continue;
    const kv::Group& group = layout.group_of(layer);
    const bool in_first = owner(layer) < first.last;
    some_keep_all = some_keep_all || group.keeps_all();
    first_keeps_all = first_keeps_all || (in_first && group.keeps_all());
    some_have_states = some_have_states || group.is_state();
    first_has_states = first_has_states || (in_first && group.is_state());
  }
  if (some_keep_all && !first_keeps_all)
    return error(Code::unsupported,
                 "the first stage has only layers with windows or states, which cannot tell how much others remember; "
                 "give it more layers (--stages)");
  if (some_have_states && !first_has_states)
    return error(Code::unsupported,
                 "the first stage has no layer that keeps a state, as others have; give it more layers (--stages)");
  return {};
}

/// Whether there is a place in a sequence, other than its end, from which it cannot go on: a window has passed it, or
/// no state is known there.
bool goes_on_from_its_end_alone(const kv::Layout& layout) {
  return std::any_of(layout.groups().begin(), layout.groups().end(),
                     [](const kv::Group& group) { return !group.keeps_all(); });
}

/// Rank 0 while it opens a model.
class Opening {
 public:
  explicit Opening(const EngineOptions& options)
      : options_(options), cluster_(*options.part.cluster), link_(cluster_.link) {
    options_.part.cluster = nullptr;
    options_.part.ranks = link_.size();
    log::info("over several processes {}, and experts are read from the model",
              options_.device.choice == DeviceChoice::cuda ? "each computes on a GPU" : "the CPU computes");
    choose_gpu(link_, options_);
    leave_out_what_is_off(options_);
  }

  Expected<Parts> run(std::shared_ptr<void> claim) {
    Expected<Parts> parts = open();
    if (parts.ok()) return finish(std::move(*parts), std::move(claim));
    const link::Writer close(message_, link::MessageKind::close);
    if (const Status sent = link_.send_others(message_); !sent.ok()) log::warn("{}", sent.message());
    return parts.status();
  }

 private:
  Expected<Parts> open();
  Expected<std::vector<model::Stage>> meet();
  Expected<Limits> agree(const std::vector<model::Stage>& stages);
  Expected<Parts> load(const Limits& limits);
  Expected<std::vector<model::Stage>> share(const model::Model& whole);
  Expected<Parts> finish(Parts parts, std::shared_ptr<void> claim);
  Status collect();
  /// Of this rank's limits and those of the last answers.
  Limits least_of(Limits own) const {
    for (int rank = 1; rank < link_.size(); ++rank) take_least(replies_[static_cast<std::size_t>(rank)].limits, own);
    return own;
  }

  EngineOptions options_;
  Cluster& cluster_;
  link::Link& link_;
  std::vector<std::byte> message_;
  std::vector<ClusterReply> replies_;  // of the last question, by rank
  bool from_end_alone_ = false;        // some layers have a window or keep a state
};

/// An answer of each rank, also where one has failed: none must meet a later question. Errors: the first failure.
Status Opening::collect() {
  replies_.assign(static_cast<std::size_t>(link_.size()), {});
  Status failed;
  for (int answers = 1; answers < link_.size(); ++answers) {
    MR_ASSIGN_OR_RETURN(const int from, link_.receive(message_));
    MR_ASSIGN_OR_RETURN(ClusterReply reply, ClusterReply::read(message_));
    if (failed.ok()) failed = reply.status.with_context(link_.name(from));
    replies_[static_cast<std::size_t>(from)] = std::move(reply);
  }
  return failed;
}

Expected<std::vector<model::Stage>> Opening::share(const model::Model& whole) {
  const std::int64_t layers = whole.hyperparameters().layers;
  if (!cluster_.stages.empty()) return parse_stages(cluster_.stages, layers, link_.size());
  std::vector<std::uint64_t> memory = {room_for_layers(options_)};
  for (int rank = 1; rank < link_.size(); ++rank) memory.push_back(replies_[static_cast<std::size_t>(rank)].room_bytes);
  return share_layers(bytes_by_layer(whole), memory, table_bytes(whole));
}

/// Shows the file to all and shares its layers out.
Expected<std::vector<model::Stage>> Opening::meet() {
  MR_ASSIGN_OR_RETURN(const modelfile::Model file, open_file(options_));
  MR_ASSIGN_OR_RETURN(const auto whole, model::load(file, {.context_tokens = options_.demand.context_tokens}));
  from_end_alone_ = goes_on_from_its_end_alone(whole->program().layout.with(options_.kv.dtype, kv::kOnHost));
  if (from_end_alone_ && (options_.kv.share_prefixes || !options_.kv.prompt_cache.empty())) {
    log::info("over several processes such layers keep nothing of what requests began with: windows, states, few bits");
    options_.kv.share_prefixes = false;
    options_.kv.prompt_cache.clear();
  }
  MR_ASSIGN_OR_RETURN(const std::string identity, identity_of(options_, file));
  write_open(identity, ClusterTerms::of(options_), message_);
  MR_RETURN_IF_ERROR(link_.send_others(message_));
  MR_RETURN_IF_ERROR(collect());
  MR_ASSIGN_OR_RETURN(std::vector<model::Stage> stages, share(*whole));
  MR_RETURN_IF_ERROR(check_first_stage(whole->program().layout, whole->hyperparameters().layers, stages[0]));
  const std::vector<std::uint64_t> bytes = bytes_by_layer(*whole);
  for (int rank = 0; rank < link_.size(); ++rank) {
    const auto [first, last] = stages[static_cast<std::size_t>(rank)];
    const std::uint64_t of_stage = std::accumulate(bytes.begin() + first, bytes.begin() + last, std::uint64_t{0});
    log::info("{}: layers {} to {}, {}", link_.name(rank), first, last - 1, format_bytes(of_stage));
  }
  return stages;
}

/// Has every rank plan its stage; the limits that all have room for.
Expected<Limits> Opening::agree(const std::vector<model::Stage>& stages) {
  for (int rank = 1; rank < link_.size(); ++rank) {
    write_plan(stages[static_cast<std::size_t>(rank)], message_);
    MR_RETURN_IF_ERROR(link_.send(rank, message_));
  }
  options_.part.stage = stages[0];
  const Expected<Limits> own = find_limits(options_);
  MR_RETURN_IF_ERROR(collect());
  if (!own.ok()) return own.status().with_context(link_.name(0));
  return least_of(*own);
}

/// Has every rank load its stage under these limits.
Expected<Parts> Opening::load(const Limits& limits) {
  const ClusterTerms terms = ClusterTerms::of(options_).with(limits);
  write_load(terms, message_);
  MR_RETURN_IF_ERROR(link_.send_others(message_));
  terms.apply(options_);
  Expected<Parts> parts = assemble(options_);
  MR_RETURN_IF_ERROR(collect());
  if (!parts.ok()) return parts.status().with_context(link_.name(0));
  for (int rank = 1; rank < link_.size(); ++rank)
    if (replies_[static_cast<std::size_t>(rank)].numerics != parts->executor->numerics())
      return error(
          Code::unsupported,
          "{} adds in another order than rank 0: install the same millrace on both, and give all a GPU or none",
          link_.name(rank));
  const Limits least = least_of(parts->limits);
  if (least.context_tokens < limits.context_tokens || least.sequences < limits.sequences ||
      least.kv_tokens < limits.kv_tokens)
    return error(Code::out_of_budget, "a rank has less memory than it had a moment ago; try again, or give less --ctx");
  take_least(least, parts->limits);
  for (int rank = 1; rank < link_.size() && parts->prompts != nullptr; ++rank) {
    if (replies_[static_cast<std::size_t>(rank)].keeps_prompts) continue;
    log::warn("prompt cache off: {} keeps no prompts", link_.name(rank));
    close_prompt_cache(*parts);
  }
  return parts;
}

Expected<Parts> Opening::open() {
  MR_ASSIGN_OR_RETURN(const std::vector<model::Stage> stages, meet());
  MR_ASSIGN_OR_RETURN(const Limits limits, agree(stages));
  return load(limits);
}

/// The executor over all ranks in place of the stage's own.
Expected<Parts> Opening::finish(Parts parts, std::shared_ptr<void> claim) {
  const model::Hyperparameters& hp = parts.model->hyperparameters();
  const bool at_home = all_at_home(parts) && std::all_of(replies_.begin() + 1, replies_.end(),
                                                         [](const ClusterReply& reply) { return reply.at_home; });
  auto executor = std::make_unique<exec::PipelineExecutor>(
      exec::PipelineParts{link_,
                          std::move(parts.executor),
                          parts.kv_pool,
                          *parts.budget,
                          {hp.model_dim, hp.vocab},
                          at_home,
                          parts.prefixes != nullptr || parts.prompts != nullptr,
                          std::move(claim)});
  MR_RETURN_IF_ERROR(executor->prepare_messages(pass_limits(parts.limits)));
  if (parts.prompts != nullptr) parts.prompts->join(executor.get());
  parts.executor = std::move(executor);
  parts.rewinds_to_start = from_end_alone_;
  log::info("{} ranks: a context of {} tokens x {}, {} rows a pass", link_.size(), parts.limits.context_tokens,
            parts.limits.sequences, parts.limits.batch_tokens);
  return parts;
}

}  // namespace

Status check_cluster_options(const EngineOptions& options) {
  const auto off = [](std::string_view what) {
    return error(Code::unsupported, "{} does not work over several processes; leave it out", what);
  };
  const bool for_gpu = options.memory.vram_bytes > 0 || options.experts.vram_slots >= 0 ||
                       options.memory.cpu_share_percent >= 0 || options.storage.cufile;
  if (options.device.choice != DeviceChoice::cuda && for_gpu)
    return off("what is for a GPU (--vram, --vram-experts, --cpu-share, --storage cufile), without --device cuda,");
  if (!options.memory.pins.empty()) return off("--pin");
  if (!options.device.gpus_beside.empty())
    return off("a process with several GPUs (--device cuda:0,1): each has one. That");
  if (options.experts.pack != "auto" && options.experts.pack != "off") return off("--pack FILE");
  if (drafts_within(options) || !options.speculate.draft_model.empty()) return off("--draft");
  if (!options.experts.routing.empty() || !options.experts.record_routing.empty())
    return off("routing from or to a file");
  if (options.planning.follow != nullptr) return off("--plan");
  if (!options.model.overlay.empty() || options.watch.inputs != nullptr) return off("measuring");
  return {};
}

Expected<Parts> assemble_cluster(const EngineOptions& options) {
  MR_RETURN_IF_ERROR(check_cluster_options(options));
  std::atomic<bool>& taken = options.part.cluster->taken;
  if (taken.exchange(true))
    return error(Code::unavailable, "several processes compute one model at a time, and another is open");
  const std::shared_ptr<void> claim(&taken, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = false; });
  return Opening(options).run(claim);
}

}  // namespace millrace::engine
