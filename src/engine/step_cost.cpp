#include "engine/step_cost.h"

#include <algorithm>

namespace millrace::engine {

std::vector<residency::AttentionCost> attention_costs(const exec::Program& program, const kv::Layout& layout) {
  std::vector<residency::AttentionCost> costs;
  for (const exec::Step& step : program.steps) {
    const bool chooses = step.kind == exec::Step::Kind::select;
    if (step.kind != exec::Step::Kind::attention && !chooses) continue;
    const kv::Group& group = layout.group_of(step.layer);
    const bool latent = step.attention.latent_values > 0;
    const auto add = [&](std::int64_t seen, std::int64_t macs, std::int64_t bytes, std::int64_t ratio) {
      auto cost = std::find_if(costs.begin(), costs.end(),
                               [&](const auto& one) { return one.window == seen && one.latent == latent; });
      if (cost == costs.end()) cost = costs.insert(costs.end(), {.window = seen, .latent = latent});
      cost->macs += static_cast<double>(macs) / static_cast<double>(ratio);
      cost->kv_bytes += static_cast<double>(bytes) / kv::kBlockTokens;
    };
    const std::int64_t per_key = step.attention.heads * (step.attention.head_dim + step.attention.v_dim());
    // Those who choose see all.
    if (chooses) {
      add(0, step.indexer.heads * step.indexer.head_dim, group.index_bytes(), group.ratio);
      continue;
    }
    const bool compressed = step.attention.rows >= 0;
    // Whether a token sees the nearest keys or chosen ones, they are so many at most.
    add(step.attention.selected > 0 && !compressed ? step.attention.selected : group.window, per_key,
        group.layer_bytes() - group.index_bytes(), 1);
    if (!compressed) continue;
    const kv::Group& rows = layout.group_of(step.attention.rows);
    add(step.attention.selected * rows.ratio, per_key, rows.layer_bytes() - rows.index_bytes(), rows.ratio);
  }
  return costs;
}

residency::StepCost step_cost(const exec::Program& program, const kv::Layout& layout) {
  using Kind = exec::Step::Kind;
  constexpr std::int64_t kProductsOfExperts = 3;  // the router's, gates with ups, downs: experts go side by side
  // A head's state is multiplied by its decay, by a key, by what is written and by a query; a scan's not by a key.
  constexpr std::int64_t kOpsOfDelta = 4, kOpsOfScan = 3;
  residency::StepCost cost;
  const auto gathered = [&](exec::Act own, std::size_t bytes) {
    if (own.buffer < 0) return;
    ++cost.gathers;
    cost.gather_bytes += static_cast<double>(program.buffer(own).cols) * static_cast<double>(bytes);
  };
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const exec::Step& step = program.steps[i];
    if (step.for_hidden) continue;
    ++cost.steps;
    switch (step.kind) {
      case Kind::moe:
        cost.products += kProductsOfExperts;
        gathered(step.experts.own_hidden, 1);  // in blocks of int8
        break;
      case Kind::gather: {
        // A product's input, which is bfloat16 in prompts, or to be normalised or added to the residual stream.
        const bool input = i + 1 < program.steps.size() && program.steps[i + 1].kind == Kind::matmul;
        gathered(step.a, input ? 2 : sizeof(float));
        break;
      }
      case Kind::delta_rule:
        cost.state_macs += static_cast<double>(kOpsOfDelta * step.delta_rule.value_heads * step.delta_rule.key_dim *
                                               step.delta_rule.value_dim);
        ++cost.products;
        break;
      case Kind::scan:
        cost.state_macs += static_cast<double>(kOpsOfScan * step.scan.inner() * step.scan.keys);
        ++cost.products;
        break;
      case Kind::attention:
        cost.latents += step.attention.latent_values > 0 ? 1 : 0;
        ++cost.products;
        break;
      case Kind::matmul_heads:
        cost.head_macs += static_cast<double>(program.buffer(step.a).cols * program.buffer(step.out).cols) /
                          static_cast<double>(step.heads);
        ++cost.products;
        break;
      case Kind::matmul:
      case Kind::gated:
      case Kind::convolve:
      case Kind::logits:
        ++cost.products;
        break;
      default:
        break;
    }
  }
  for (const kv::Group& group : layout.groups())
    if (group.is_state()) cost.state_bytes += 2 * static_cast<double>(group.block_bytes());
  return cost;
}

residency::PassDemand pass_demand(const model::Model& model, const kv::Layout& layout) {
  return {.attention = attention_costs(model.program(), layout),
          .steps = step_cost(model.program(), layout),
          .top_k = static_cast<int>(model.hyperparameters().top_k)};
}

}  // namespace millrace::engine
