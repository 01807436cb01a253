#include "model/adapter.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/mixtures.h"
#include "tensor/codec.h"

namespace millrace::model {
namespace {

using modelfile::TensorInfo;
using residency::WeightRef;

constexpr std::string_view kA = ".lora_a", kB = ".lora_b", kEmbedding = "token_embd.weight";
constexpr std::int64_t kMostRank = 1 << 16;
constexpr std::uint64_t kAlignment = 64;

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("{}", fmt::join(shape, " x ")); }

/// With three dimensions: those that are left out are 1.
std::vector<std::int64_t> in_three(const TensorInfo& tensor) {
  std::vector<std::int64_t> shape = tensor.shape;
  shape.resize(std::max<std::size_t>(3, shape.size()), 1);
  return shape;
}

/// Of the halves: what products take as it is; other types are decoded.
DType held_dtype(const TensorInfo& tensor) {
  return tensor.dtype == DType::f16 || tensor.dtype == DType::bf16 ? tensor.dtype : DType::f32;
}

std::uint64_t bytes_of_a(const TensorInfo& a) {
  return round_up(static_cast<std::uint64_t>(a.rows() * row_bytes(held_dtype(a), a.cols())), kAlignment);
}
std::uint64_t bytes_of_b(const TensorInfo& b) {
  return round_up(static_cast<std::uint64_t>(b.rows() * b.cols()) * sizeof(float), kAlignment);
}

/// Where a model's program multiplies by a tensor: its parts, by the tensor's name.
using Operands = std::multimap<std::string, WeightRef, std::less<>>;

Operands operands_of(const Model& model) {
  using Kind = exec::Step::Kind;
  Operands operands;
  std::set<std::pair<std::int32_t, std::int32_t>> known;
  const auto add = [&](WeightRef ref, bool head = false) {
    if (ref.none() || !known.insert({ref.unit, ref.part}).second) return;
    const std::string& name = model.units().part(ref).name;
    operands.emplace(head && name == kEmbedding ? "output.weight" : name, ref);
  };
  for (const exec::Step& step : model.program().steps) {
    for (const exec::Product& product : step.all_products()) add(product.weight);
    if (step.kind == Kind::logits) add(step.weight, true);
    if (step.kind == Kind::gated || step.kind == Kind::moe) add(step.weight);
    if (step.kind == Kind::gated) add(step.weight2);
    if (step.kind != Kind::moe) continue;
    const exec::Experts& experts = step.experts;
    for (std::int32_t e = 0; e < experts.count; ++e)
      for (const std::int32_t part : {experts.gate_part, experts.up_part, experts.down_part})
        if (part != exec::kNoPart) add({experts.first_unit + e, part});
  }
  return operands;
}

/// The model's tensor of that name; of a head that is the embedding, the embedding.
const TensorInfo* find_base(const modelfile::Model& base, std::string_view name) {
  const TensorInfo* const found = base.find(name);
  return found == nullptr && name == "output.weight" ? base.find(kEmbedding) : found;
}

/// The adapter's matrices, read one after the other into one buffer.
class Loader {
 public:
  Loader(const std::vector<modelfile::File>& files, std::byte* memory) : files_(files), next_(memory) {}

  /// Where A's rows lie, in held_dtype(). Errors: io_error.
  Expected<const std::byte*> take_a(const TensorInfo& a) {
    std::byte* const out = next_;
    next_ += bytes_of_a(a);
    MR_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read(a));
    if (held_dtype(a) == a.dtype) {
      std::memcpy(out, bytes.data(), bytes.size());
      return out;
    }
    for (std::int64_t r = 0; r < a.rows(); ++r)
      decode_row(a.dtype, bytes.data() + r * row_bytes(a.dtype, a.cols()), a.cols(),
                 reinterpret_cast<float*>(out) + r * a.cols());
    return out;
  }
  /// Where B lies, each matrix [rows, rank] of it turned. Errors: io_error.
  Expected<const float*> take_b(const TensorInfo& b, std::int64_t rows) {
    auto* const out = reinterpret_cast<float*>(next_);
    next_ += bytes_of_b(b);
    MR_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, read(b));
    const std::int64_t rank = b.cols();
    std::vector<float> row(static_cast<std::size_t>(rank));
    for (std::int64_t r = 0; r < b.rows(); ++r) {
      decode_row(b.dtype, bytes.data() + r * row_bytes(b.dtype, rank), rank, row.data());
      float* const matrix = out + r / rows * rows * rank;
      for (std::int64_t k = 0; k < rank; ++k) matrix[k * rows + r % rows] = row[static_cast<std::size_t>(k)];
    }
    return out;
  }
  void note(float factor) { digest_ = XXH3_64bits_withSeed(&factor, sizeof factor, digest_); }
  std::uint64_t digest() const { return digest_; }

 private:
  /// A tensor's bytes, which go into the digest, as its name does.
  Expected<std::vector<std::byte>> read(const TensorInfo& tensor) {
    std::vector<std::byte> bytes(tensor.bytes);
    MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(tensor.file)].read_at(tensor.offset, bytes));
    digest_ = XXH3_64bits_withSeed(tensor.name.data(), tensor.name.size(), digest_);
    digest_ = XXH3_64bits_withSeed(bytes.data(), bytes.size(), digest_);
    return bytes;
  }

  const std::vector<modelfile::File>& files_;
  std::byte* next_;
  std::uint64_t digest_ = 0;
};

/// The rows of a part within its tensor: which expert's they are, and the first.
struct Place {
  std::int64_t expert = 0, first = 0;
};

Place place_of(const residency::Part& part, const TensorInfo& tensor) {
  const auto row = static_cast<std::int64_t>(part.offset - tensor.offset) / row_bytes(tensor.dtype, tensor.cols());
  const std::int64_t rows = in_three(tensor)[1];
  return {row / rows, row % rows};
}

}  // namespace

Expected<AdapterFile> AdapterFile::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(modelfile::Model file, modelfile::Model::open(path));
  auto adapter = from(std::move(file));
  if (!adapter.ok()) return adapter.status().with_context(modelfile::escape(path, 200));
  return adapter;
}

Expected<AdapterFile> AdapterFile::from(modelfile::Model file) {
  AdapterFile adapter;
  const auto text = [&](std::string_view key) { return file.has(key) ? file.get_string(key) : std::string(); };
  MR_ASSIGN_OR_RETURN(const std::string general, text("general.type"));
  MR_ASSIGN_OR_RETURN(const std::string type, text("adapter.type"));
  if (general != "adapter" || type != "lora")
    return error(
        Code::unsupported,
        "this is not a LoRA adapter: general.type is '{}' and adapter.type '{}', not 'adapter' and 'lora'; give "
        "an adapter's file, and the model by itself",
        modelfile::escape(general, 40), modelfile::escape(type, 40));
  if (file.has("adapter.alora.invocation_tokens"))
    return error(Code::unsupported,
                 "this adapter wants to begin behind a sequence of tokens (aLoRA), which this version cannot do");
  MR_ASSIGN_OR_RETURN(adapter.alpha_, file.get_float_or("adapter.lora.alpha", 0));
  std::map<std::string, AdaptedTensor> found;
  for (const TensorInfo& tensor : file.tensors()) {
    const std::string_view name = tensor.name;
    const bool a = name.ends_with(kA), b = name.ends_with(kB);
    const std::string shown = modelfile::escape(name, 120);
    if (!a && !b)
      return error(Code::unsupported, "{} is neither NAME.lora_a nor NAME.lora_b: this version adapts by these alone",
                   shown);
    if (tensor.shape.size() > 3 || !info(tensor.dtype).computable)
      return error(Code::unsupported, "{} is {} of {}, which no adapter's half is", shown, shape_text(tensor.shape),
                   info(tensor.dtype).name);
    const std::string of(name.substr(0, name.size() - kA.size()));
    (a ? found[of].a : found[of].b) = tensor;
  }
  if (found.empty()) return error(Code::corrupt, "the adapter has no tensors; fetch the file again");
  for (auto& [name, tensor] : found) {
    const std::string shown = modelfile::escape(name, 120);
    if (tensor.a.name.empty() || tensor.b.name.empty())
      return error(Code::corrupt, "{} has {} and lacks its other half; fetch the file again", shown,
                   tensor.a.name.empty() ? "lora_b" : "lora_a");
    tensor.name = name;
    tensor.embedding = name == kEmbedding;
    const auto a = in_three(tensor.a), b = in_three(tensor.b);
    tensor.rank = b[0];
    tensor.experts = b[2];
    const std::int64_t other = tensor.embedding ? a[0] : a[1];
    if (other != tensor.rank || a[2] != b[2] || tensor.rank > kMostRank)
      return error(Code::corrupt, "{}: lora_a is {} and lora_b {}, which do not multiply", shown,
                   shape_text(tensor.a.shape), shape_text(tensor.b.shape));
    adapter.tensors_.push_back(std::move(tensor));
  }
  adapter.file_ = std::move(file);
  return adapter;
}

std::uint64_t AdapterFile::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const AdaptedTensor& tensor : tensors_) bytes += bytes_of_a(tensor.a) + bytes_of_b(tensor.b);
  return round_up(bytes, device::kPageBytes);
}

std::int64_t AdapterFile::most_rank() const {
  std::int64_t most = 0;
  for (const AdaptedTensor& tensor : tensors_) most = std::max(most, tensor.rank);
  return most;
}

std::vector<residency::WeightRef> AdapterFile::weights(const Model& model) const {
  const Operands operands = operands_of(model);
  std::vector<residency::WeightRef> weights;
  for (const AdaptedTensor& tensor : tensors_) {
    if (tensor.embedding) continue;
    const auto [first, last] = operands.equal_range(tensor.name);
    for (auto at = first; at != last; ++at) weights.push_back(at->second);
  }
  return weights;
}

bool AdapterFile::adapts_embedding() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const AdaptedTensor& tensor) { return tensor.embedding; });
}

float AdapterFile::factor_of(const AdaptedTensor& tensor) const {
  return alpha_ == 0 ? 1.0f : static_cast<float>(alpha_ / static_cast<double>(tensor.rank));
}

Status AdapterFile::check(const modelfile::Model& base) const {
  MR_ASSIGN_OR_RETURN(const std::string of, base.get_string("general.architecture"));
  MR_ASSIGN_OR_RETURN(const std::string own, file_.get_string("general.architecture"));
  if (own != of)
    return error(Code::invalid_argument, "the adapter is for models of architecture '{}', and the model's is '{}'",
                 modelfile::escape(own, 40), modelfile::escape(of, 40));
  for (const AdaptedTensor& tensor : tensors_) {
    const TensorInfo* const matrix = find_base(base, tensor.name);
    if (matrix == nullptr)
      return error(Code::invalid_argument, "the adapter changes {}, which the model does not have: it is another's",
                   modelfile::escape(tensor.name, 120));
    const auto shape = in_three(*matrix), a = in_three(tensor.a), b = in_three(tensor.b);
    const bool fits = tensor.embedding ? a[1] == shape[1] && b[1] == shape[0]
                                       : a[0] == shape[0] && b[1] == shape[1] && a[2] == shape[2];
    if (!fits || matrix->shape.size() > 3)
      return error(Code::invalid_argument,
                   "the adapter's halves of {} are {} and {}, and the model's matrix {}: it is another model's",
                   modelfile::escape(tensor.name, 120), shape_text(tensor.a.shape), shape_text(tensor.b.shape),
                   shape_text(matrix->shape));
  }
  return {};
}

Expected<exec::Adapter> AdapterFile::load(const modelfile::Model& base, const Model& model,
                                          residency::Budget& budget) const {
  MR_RETURN_IF_ERROR(check(base));
  exec::Adapter adapter;
  adapter.path = file_.paths().front();
  MR_ASSIGN_OR_RETURN(adapter.reservation, budget.reserve("adapters", memory_bytes()));
  MR_ASSIGN_OR_RETURN(adapter.memory, device::HostBuffer::reserve(memory_bytes(), device::Pages::huge));
  MR_ASSIGN_OR_RETURN(const std::vector<modelfile::File> files, modelfile::open_files(file_.paths()));
  const Operands operands = operands_of(model);
  Loader loader(files, adapter.memory.data());
  for (const AdaptedTensor& tensor : tensors_) {
    const std::string shown = modelfile::escape(tensor.name, 120);
    if (base.find(modelfile::scale_name(tensor.name)) != nullptr)
      return error(Code::unsupported, "the model has a scale beside {}, and this version adapts no such matrix", shown);
    const auto rows = in_three(tensor.b)[1];
    exec::LowRank low{tensor.rank, held_dtype(tensor.a), static_cast<std::int32_t>(rows), nullptr,
                      nullptr,     factor_of(tensor)};
    MR_ASSIGN_OR_RETURN(low.a, loader.take_a(tensor.a));
    MR_ASSIGN_OR_RETURN(low.b, loader.take_b(tensor.b, rows));
    loader.note(low.factor);
    if (tensor.embedding) {
      adapter.embedding = low;
      continue;
    }
    const auto [first, last] = operands.equal_range(tensor.name);
    if (first == last)
      return error(Code::unsupported,
                   "the adapter changes {}, by which the model does not multiply in a way that this version can adapt",
                   shown);
    const TensorInfo& matrix = *find_base(base, tensor.name);
    const auto a_bytes = static_cast<std::uint64_t>(low.rank * row_bytes(low.a_dtype, matrix.cols()));
    for (auto at = first; at != last; ++at) {
      const Place place = place_of(model.units().part(at->second), matrix);
      exec::LowRank own = low;
      own.a += static_cast<std::uint64_t>(place.expert) * a_bytes;
      own.b += place.expert * rows * low.rank + place.first;
      adapter.matrices[{at->second.unit, at->second.part}] = own;
    }
  }
  adapter.digest = loader.digest();
  return adapter;
}

}  // namespace millrace::model
