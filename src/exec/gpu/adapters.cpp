// Adapters of the GPU's executor: their memory in VRAM, and what they add behind products. The order is the CPU
// executor's: each adapter by itself, in ascending order.
#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <span>

#include "exec/gpu/emitter.h"
#include "kernels/gpu/offer.h"

namespace millrace::exec {
namespace {

/// By unit and part, as Adapter::matrices is.
using WeightSet = std::set<std::pair<std::int32_t, std::int32_t>>;

/// Weights whose products are launches that adapt() stands behind.
WeightSet adaptable(const Program& program, const Launches& launches) {
  WeightSet weights;
  const auto add = [&](WeightRef ref) { weights.insert({ref.unit, ref.part}); };
  for (const std::vector<Launch>& block : launches)
    for (const Launch& launch : block) {
      const Step& first = program.steps[launch.first];
      if (launch.kind == Launch::Kind::logits) add(first.weight);
      if (launch.kind == Launch::Kind::gate_and_up) {
        add(first.weight);
        add(first.weight2);
      }
      if (launch.kind != Launch::Kind::product || launch.gathers) continue;
      for (std::size_t i = launch.first; i < launch.end; ++i)
        for (const Product& product : program.steps[i].all_products()) add(product.weight);
    }
  return weights;
}

}  // namespace

Status check_gpu_adapters(const Program& program, const residency::UnitTable& units,
                          const std::vector<WeightRef>& weights, bool embedding) {
  constexpr std::string_view kElsewhere = "use --device cpu, or put them into the model with 'millrace export-lora'";
  if (!gpu::offer().adapters)
    return error(Code::unsupported, "{} has no adapters (--lora) yet; {}", gpu::offer().name, kElsewhere);
  if (embedding)
    return error(Code::unsupported, "the GPU part has no adapters (--lora) of the token embedding yet; {}", kElsewhere);
  WeightSet asked;
  for (const WeightRef ref : weights) asked.insert({ref.unit, ref.part});
  FuseOptions options;
  options.adapted = [&asked](WeightRef ref) {
    return asked.contains({ref.unit, ref.part}) ? Adapted::behind : Adapted::no;
  };
  MR_ASSIGN_OR_RETURN(const Launches launches, fuse(program, units, options));
  const WeightSet found = adaptable(program, launches);
  for (const WeightRef ref : weights)
    if (!found.contains({ref.unit, ref.part}))
      return error(Code::unsupported, "the GPU part has no adapters (--lora) of {} yet; {}", units.part(ref).name,
                   kElsewhere);
  return {};
}

Status GpuExecutor::prepare_adapters() {
  adapter_memory_.clear();
  adapter_reservations_.clear();
  biased_.clear();
  if (options_.rows.adapters == nullptr) return {};
  for (const Step& step : programs_[0].steps)
    for (const Product& product : step.all_products())
      if (!product.bias.none()) biased_.insert({product.weight.unit, product.weight.part});
  for (const Adapter& adapter : *options_.rows.adapters) {
    const std::uint64_t bytes = adapter.memory.bytes();
    MR_ASSIGN_OR_RETURN(adapter_reservations_.emplace_back(), vram_.reserve("adapters", bytes));
    MR_ASSIGN_OR_RETURN(device::DeviceBuffer memory, device::DeviceBuffer::allocate(bytes));
    MR_RETURN_IF_ERROR(device::copy_to_device(memory.data(), adapter.memory.data(), bytes, stream_));
    adapter_memory_.push_back(std::move(memory));
  }
  return stream_.synchronise();
}

/// How adapters change products with this weight, where their part is made before products that take addends.
Adapted GpuExecutor::adapted(WeightRef weight, bool before) const {
  const bool any = std::any_of(options_.rows.adapters->begin(), options_.rows.adapters->end(),
                               [&](const Adapter& adapter) { return adapter.find(weight) != nullptr; });
  if (!any) return Adapted::no;
  const bool takes = gpu::has_addends(part(weight).dtype, part(weight).cols, traits_.block_shared_bytes) &&
                     !biased_.contains({weight.unit, weight.part});
  return before && takes ? Adapted::before : Adapted::behind;
}

std::optional<std::size_t> GpuExecutor::only_adapter() const {
  const auto first = std::find(mixed_.begin(), mixed_.end(), true);
  if (first == mixed_.end() || std::find(first + 1, mixed_.end(), true) != mixed_.end()) return {};
  return static_cast<std::size_t>(first - mixed_.begin());
}

/// Whether rows of the pass go through adapters, of which any changes a gate or an up that has rows of the processor's:
/// it has both at once, and nothing comes between them.
bool GpuExecutor::adapts_shared_gates() const {
  if (mixed_.empty()) return false;
  return std::any_of(program_->steps.begin(), program_->steps.end(), [&](const Step& step) {
    if (step.kind != Step::Kind::gated) return false;
    for (const WeightRef ref : {step.weight, step.weight2})
      if (adapted(ref, false) != Adapted::no && part(ref).rows > weights_.device_rows(ref)) return true;
    return false;
  });
}

/// How much of each adapter each row has, and each row that wants logits.
void GpuExecutor::fill_scales() {
  if (mixed_.empty()) return;
  std::memset(rows_host_.data() + pass_rows_.ready, 0, static_cast<std::size_t>(shape_.product_steps) * 4);
  auto* scale = reinterpret_cast<float*>(rows_host_.data() + pass_rows_.scales);
  auto* logit_scale = reinterpret_cast<float*>(rows_host_.data() + pass_rows_.logit_scales);
  for (std::size_t a = 0; a < mixed_.size(); ++a)
    for (const kv::BatchRow& row : batch_->rows) {
      *scale = row.mix < 0 ? 0 : scale_in(batch_->mixes[static_cast<std::size_t>(row.mix)], a);
      if (row.wants_logits) *logit_scale++ = *scale;
      ++scale;
    }
}

/// The call of adapter `a` for products of `x`; what is read of x is still to be said.
gpu::LowRankCall GpuExecutor::Emitter::low_rank_call(std::size_t a, std::span<const Adapting> products, Act x) const {
  const Adapter& adapter = (*ops.options_.rows.adapters)[a];
  const auto on_device = [&](const auto* host) {
    using T = std::remove_pointer_t<decltype(host)>;
    const std::byte* const memory = ops.adapter_memory_[a].data();
    return reinterpret_cast<T*>(memory + (reinterpret_cast<const std::byte*>(host) - adapter.memory.data()));
  };
  gpu::LowRankCall call;
  for (const Adapting& product : products) {
    const LowRank* const low = adapter.find(product.weight);
    if (low == nullptr) continue;
    gpu::LowRankCall::Part& part = call.parts[call.count++];
    part = {on_device(low->a), low->a_dtype, on_device(low->b), low->b_stride, 0, 0,
            low->factor,       product.y,    product.y_stride};
    part.rank = static_cast<std::int32_t>(low->rank);
    part.rows = static_cast<std::int32_t>(ops.part(product.weight).rows);
  }
  call.x_rows = rows(x);
  call.cols = static_cast<std::int32_t>(cols(x));
  const bool of_logits = buffer(x).rows == Rows::logits;
  const auto row = static_cast<std::int64_t>(a) * (of_logits ? ops.logit_rows_ : ops.rows_);
  call.scales = of_logits ? row_data<float>(ops.pass_rows_.logit_scales) + row
                          : row_data<float>(ops.pass_rows_.scales) + row + window.first;
  call.low = ops.at<float>(ops.layout_.low);
  return call;
}

void GpuExecutor::Emitter::adapt(std::span<const Adapting> products, Act x) {
  if (ops.mixed_.empty()) return;
  // Products of prompts read other rows than others do.
  for (const bool prompt : {false, true}) {
    std::array<Adapting, gpu::kMostProducts> behind;
    std::size_t count = 0;
    for (const Adapting& product : products)
      if (ops.adapted(product.weight, ops.adapts_before_) == Adapted::behind &&
          in_prompt(x, ops.part(product.weight).dtype) == prompt)
        behind[count++] = product;
    for (std::size_t a = 0; a < ops.mixed_.size() && count > 0 && status.ok(); ++a) {
      if (!ops.mixed_[a]) continue;
      gpu::LowRankCall call = low_rank_call(a, std::span(behind).first(count), x);
      if (call.count == 0) continue;
      if (prompt)
        call.x_bf16 = bf16(x);
      else
        call.x = data(x);
      check(gpu::add_low_rank(call, stream), "adapter");
    }
  }
}

bool GpuExecutor::Emitter::adapt_gates(const Adapting& gate, const Adapting& up, const Step& s) {
  const std::optional<std::size_t> a = ops.only_adapter();
  if (!a) return false;
  gpu::LowRankCall call = low_rank_call(*a, std::array{gate, up}, s.a);
  if (call.count != 2 || cols(s.out) % 2 != 0) return false;
  if (std::max(call.parts[0].rank, call.parts[1].rank) > gpu::kMostGateRanks) return false;
  call.x_bf16 = bf16(s.a);
  call.activation = s.activation;
  call.limit = s.limit;
  call.gated = make_bf16(slot_beside(s.a, true), s.out);
  check(gpu::add_low_rank(call, stream), "adapter");
  return true;
}

GpuExecutor::Emitter::Addends GpuExecutor::Emitter::adapt_before(std::span<const WeightRef> weights, Act x) {
  Addends addends{};
  if (!ops.adapts_before_ || !status.ok()) return addends;
  const std::size_t a = *ops.only_adapter();
  std::array<Adapting, gpu::kMostProducts> products;
  std::size_t count = 0;
  auto* to = ops.at<float>(ops.layout_.addends);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (ops.adapted(weights[i], true) != Adapted::before) continue;
    if ((*ops.options_.rows.adapters)[a].find(weights[i]) == nullptr) continue;  // another's
    const std::int64_t columns = ops.part(weights[i]).rows;
    products[count++] = {weights[i], to, columns};
    addends[i] = to;
    to += rows(x) * columns;
  }
  if (count == 0) return addends;
  gpu::LowRankCall call = low_rank_call(a, std::span(products).first(count), x);
  call.x = data(x);
  call.apart = true;
  call.ready = ops.at<std::int32_t>(ops.layout_.rows + ops.pass_rows_.ready) + fronts++;
  check(gpu::add_low_rank(call, stream), "adapter");
  told = call.ready;
  told_at = launches;
  return addends;
}

}  // namespace millrace::exec
