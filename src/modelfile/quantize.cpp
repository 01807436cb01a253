#include "modelfile/quantize.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/thread_pool.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/substitute.h"
#include "tensor/blocks.h"
#include "tensor/codec.h"

namespace millrace::modelfile {
namespace {

constexpr std::array kTypes = {
    QuantizeTypeInfo{QuantizeType::f16, "F16", 1},        QuantizeTypeInfo{QuantizeType::bf16, "BF16", 32},
    QuantizeTypeInfo{QuantizeType::q8_0, "Q8_0", 7},      QuantizeTypeInfo{QuantizeType::q4_0, "Q4_0", 2},
    QuantizeTypeInfo{QuantizeType::q6_k, "Q6_K", 18},     QuantizeTypeInfo{QuantizeType::q4_k, "Q4_K", 14},
    QuantizeTypeInfo{QuantizeType::q4_k_m, "Q4_K_M", 15},
};

const QuantizeTypeInfo& type_info(QuantizeType type) {
  return *std::find_if(kTypes.begin(), kTypes.end(), [&](const QuantizeTypeInfo& row) { return row.type == type; });
}

// The type that most matrices of a mixture have.
DType main_dtype(QuantizeType type) {
  switch (type) {
    case QuantizeType::f16:
      return DType::f16;
    case QuantizeType::bf16:
      return DType::bf16;
    case QuantizeType::q8_0:
      return DType::q8_0;
    case QuantizeType::q4_0:
      return DType::q4_0;
    case QuantizeType::q6_k:
      return DType::q6_k;
    case QuantizeType::q4_k:
    case QuantizeType::q4_k_m:
      break;
  }
  return DType::q4_k;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// The layer number in "blk.12.attn_v.weight"; -1 for a tensor outside the layers.
std::int64_t layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  std::int64_t layer = -1;
  if (name.starts_with(kPrefix)) std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

// The layers whose sensitive matrices deserve more bits: the outer eighths and every third between.
bool is_favoured(std::int64_t layer, std::int64_t layers) {
  return layer >= 0 && (layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2);
}

bool stays_float(const TensorInfo& tensor) {
  return tensor.shape.size() < 2 || !tensor.name.ends_with(".weight") || contains(tensor.name, "norm") ||
         contains(tensor.name, "ffn_gate_inp") || contains(tensor.name, "ssm_conv1d") ||
         contains(tensor.name, "shortconv.conv");
}

// A type of at least as many bits whose blocks divide the row.
DType fitting(DType wanted, std::int64_t cols) {
  if (cols % info(wanted).block_elements == 0) return wanted;
  return cols % kBlock == 0 ? DType::q8_0 : DType::f16;
}

MixtureContext context_of(const Model& model) {
  MixtureContext context;
  context.tied_head = model.find("output.weight") == nullptr;
  for (const TensorInfo& tensor : model.tensors()) {
    // A layer past the number of tensors is a made-up name; it gets no say in what an eighth of the layers is.
    const std::int64_t layer = layer_of(tensor.name);
    if (layer < static_cast<std::int64_t>(model.tensors().size())) context.layers = std::max(context.layers, layer + 1);
  }
  return context;
}

std::int64_t elements_of(const TensorInfo& tensor) { return tensor.cols() * tensor.rows(); }

/// Converts one tensor's elements from the input's type to the output's, pieces in parallel.
class Converter {
 public:
  Converter(const Model& model, const std::vector<File>& files, Writer& writer, const QuantizeOptions& options)
      : files_(files), writer_(writer), options_(options), total_(model.tensor_bytes()) {
    const int threads = options.threads > 0 ? options.threads : ThreadPool::usable_processors();
    pool_ = std::make_unique<ThreadPool>(ThreadPool::Options{.threads = threads, .pin = false});
    workers_.resize(static_cast<std::size_t>(pool_->threads()));
  }

  Status convert(const TensorInfo& from, const TensorInfo& to) {
    const std::int64_t pieces = (elements_of(from) + kPieceElements - 1) / kPieceElements;
    pool_->parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      Worker& worker = workers_[static_cast<std::size_t>(thread)];
      for (std::int64_t piece = begin; piece < end && !failed_.load(std::memory_order_relaxed); ++piece) {
        worker.status = convert_piece(from, to, piece * kPieceElements, worker);
        if (!worker.status.ok()) failed_ = true;
        if (thread == 0 && options_.progress) options_.progress(done_.load(), total_);
      }
    });
    for (const Worker& worker : workers_) MR_RETURN_IF_ERROR(worker.status);
    return {};
  }

  void report_end() const {
    if (options_.progress) options_.progress(total_, total_);
  }

 private:
  // A multiple of every block, so that pieces, unlike rows, are of one size whatever the shape. Tensors are contiguous.
  static constexpr std::int64_t kPieceElements = 256 * 1024;
  static constexpr std::int64_t kStepElements = 4096;  // decoded to float at a time: stays in the L1 cache

  struct Worker {
    Status status;
    std::vector<std::byte> input, output;
    std::array<float, kStepElements> step;
  };

  Status convert_piece(const TensorInfo& from, const TensorInfo& to, std::int64_t first, Worker& worker) {
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
      return error(Code::cancelled, "quantizing was cancelled; no file was written");
    }
    const std::int64_t count = std::min(kPieceElements, elements_of(from) - first);
    worker.input.resize(static_cast<std::size_t>(row_bytes(from.dtype, count)));
    const auto from_offset = from.offset + static_cast<std::uint64_t>(row_bytes(from.dtype, first));
    MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(from.file)].read_at(from_offset, worker.input));
    if (from.dtype == to.dtype) {
      worker.output.assign(worker.input.begin(), worker.input.end());
    } else {
      MR_RETURN_IF_ERROR(recode(from, to, count, worker));
    }
    const auto to_offset = to.offset + static_cast<std::uint64_t>(row_bytes(to.dtype, first));
    MR_RETURN_IF_ERROR(writer_.write_range(to.file, to_offset, worker.output));
    done_ += worker.input.size();
    return {};
  }

  Status recode(const TensorInfo& from, const TensorInfo& to, std::int64_t count, Worker& worker) const {
    worker.output.resize(static_cast<std::size_t>(row_bytes(to.dtype, count)));
    float* step = worker.step.data();
    for (std::int64_t at = 0; at < count; at += kStepElements) {
      const std::int64_t n = std::min(kStepElements, count - at);
      decode_row(from.dtype, worker.input.data() + row_bytes(from.dtype, at), n, step);
      float largest = 0;
      bool finite = true;
      for (std::int64_t i = 0; i < n; ++i) {
        finite &= std::isfinite(step[i]);
        largest = std::max(largest, std::fabs(step[i]));
      }
      if (!finite) {
        return error(Code::corrupt, "tensor '{}' holds a weight that is NaN or infinite; get the model again",
                     escape(from.name, 80));
      }
      constexpr float kBeyondHalf = 65520;  // the least magnitude that rounds to a float16 infinity
      if (to.dtype == DType::f16 && largest >= kBeyondHalf) {
        return error(Code::unsupported, "tensor '{}' holds weights up to {}, beyond F16; choose BF16",
                     escape(from.name, 80), largest);
      }
      encode_row(to.dtype, step, n, worker.output.data() + row_bytes(to.dtype, at));
    }
    return {};
  }

  const std::vector<File>& files_;
  Writer& writer_;
  const QuantizeOptions& options_;
  const std::uint64_t total_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Worker> workers_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> done_ = 0;
};

// The input must outlive its reading: neither the output nor its partial file may be one of its files.
Status check_output(const Model& model, const std::string& out) {
  for (const std::string& path : model.paths()) {
    for (const std::string& written : {out, out + ".partial"}) {
      std::error_code absent;
      if (std::filesystem::equivalent(path, written, absent)) {
        return error(Code::invalid_argument, "{}: is the input itself; choose another name for the output",
                     escape(written));
      }
    }
  }
  return {};
}

/// Tensors of the input that are written, in its order.
using Chosen = std::vector<const TensorInfo*>;

Expected<Chosen> choose_tensors(const Model& model, const QuantizeOptions& options) {
  const MixtureContext context = context_of(model);
  const auto smaller = [&](const TensorInfo& tensor) {
    return row_bytes(choose_dtype(options.type, tensor, context), tensor.cols()) <
           row_bytes(tensor.dtype, tensor.cols());
  };
  Chosen chosen;
  for (const TensorInfo& tensor : model.tensors())
    if (options.substitute_of.empty() || (can_be_substituted(tensor) && smaller(tensor))) chosen.push_back(&tensor);
  if (chosen.empty())
    return error(Code::unsupported, "no matrix of a layer becomes smaller in {}; choose a type of fewer bits",
                 type_info(options.type).name);
  return chosen;
}

// Says aloud which tensors could not have the type asked for because of their row length.
void log_fallbacks(const Chosen& chosen, const QuantizeOptions& options, const MixtureContext& context) {
  std::map<std::tuple<std::int64_t, DType, DType>, int> counts;  // {row, wanted, got} -> tensors
  for (const TensorInfo* const tensor : chosen) {
    if (stays_float(*tensor) || options.types.contains(tensor->name)) continue;
    const TensorInfo whole_blocks{tensor->name, tensor->dtype, {kSuperBlock, 1}, 0, 0, 0};
    const DType wanted = choose_dtype(options.type, whole_blocks, context);
    const DType got = choose_dtype(options.type, *tensor, context);
    if (got != wanted) ++counts[{tensor->cols(), wanted, got}];
  }
  for (const auto& [what, count] : counts) {
    const auto& [cols, wanted, got] = what;
    log::warn("{} tensor{} with rows of {} become {}: such rows are not whole blocks of {}", count,
              count == 1 ? "" : "s", cols, info(got).name, info(wanted).name);
  }
}

/// Types that are given by name are those of tensors that are there, and can be written.
Status check_types(const Model& model, const QuantizeOptions& options) {
  for (const auto& [name, dtype] : options.types) {
    const TensorInfo* tensor = model.find(name);
    if (tensor == nullptr)
      return error(Code::invalid_argument, "there is no tensor '{}' to give a type", escape(name, 80));
    if (dtype == tensor->dtype) continue;
    if (!info(tensor->dtype).computable || !can_encode(dtype) || tensor->cols() % info(dtype).block_elements != 0)
      return error(Code::invalid_argument, "tensor '{}' cannot become {}", escape(name, 80), info(dtype).name);
  }
  return {};
}

/// What a tensor becomes.
DType dtype_of(const QuantizeOptions& options, const TensorInfo& tensor, const MixtureContext& context) {
  const auto named = options.types.find(tensor.name);
  return named != options.types.end() ? named->second : choose_dtype(options.type, tensor, context);
}

Status write_header(const Model& model, const Chosen& chosen, const QuantizeOptions& options, Writer& writer) {
  constexpr std::string_view kFileType = "general.file_type", kVersion = "general.quantization_version";
  if (!options.substitute_of.empty()) {
    MR_RETURN_IF_ERROR(add_substitute_metadata(model, options.substitute_of, writer));
  } else {
    for (const auto& [key, value] : model.metadata())
      if (key != kFileType && key != kVersion) MR_RETURN_IF_ERROR(writer.add(key, value));
  }
  MR_RETURN_IF_ERROR(writer.add(std::string(kFileType), Value(type_info(options.type).file_type)));
  MR_RETURN_IF_ERROR(writer.add(std::string(kVersion), Value(std::uint32_t{2})));

  const MixtureContext context = context_of(model);
  bool lossy_input = false;
  for (const TensorInfo* const tensor : chosen) {
    const DType dtype = dtype_of(options, *tensor, context);
    lossy_input |= dtype != tensor->dtype && info(tensor->dtype).block_elements > 1;
    MR_RETURN_IF_ERROR(writer.declare(tensor->name, dtype, tensor->shape));
  }
  if (lossy_input && options.substitute_of.empty())
    log::warn("the input is quantized already; quantizing it again loses more than starting from F16");
  log_fallbacks(chosen, options, context);
  return writer.begin();
}

}  // namespace

std::span<const QuantizeTypeInfo> quantize_types() { return kTypes; }

Expected<QuantizeType> quantize_type_from_name(std::string_view name) {
  std::string upper(name);
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  if (upper == "Q4_K_S") return QuantizeType::q4_k;
  std::string known;
  for (const QuantizeTypeInfo& row : kTypes) {
    if (row.name == upper) return row.type;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  return error(Code::unsupported, "cannot quantize to \"{}\"; choose one of {}", escape(name, 80), known);
}

DType choose_dtype(QuantizeType type, const TensorInfo& tensor, const MixtureContext& context) {
  if (!info(tensor.dtype).computable) return tensor.dtype;
  if (stays_float(tensor)) return DType::f32;
  const std::string_view name = tensor.name;
  const DType main = main_dtype(type);
  const bool four_bits = main == DType::q4_0 || main == DType::q4_k;
  const bool is_head = name == "output.weight" || (context.tied_head && name == "token_embd.weight");
  if (four_bits && is_head) return fitting(DType::q6_k, tensor.cols());
  const bool is_sensitive = contains(name, ".attn_v.") || contains(name, ".ffn_down");
  if (type == QuantizeType::q4_k_m && is_sensitive && is_favoured(layer_of(name), context.layers)) {
    return fitting(DType::q6_k, tensor.cols());
  }
  return fitting(main, tensor.cols());
}

Status quantize(const std::string& in, const std::string& out, const QuantizeOptions& options) {
  MR_ASSIGN_OR_RETURN(const Model model, Model::open(in));
  MR_RETURN_IF_ERROR(check_output(model, out));
  MR_RETURN_IF_ERROR(check_types(model, options));
  std::vector<File> files;
  for (const std::string& path : model.paths()) {
    MR_ASSIGN_OR_RETURN(File file, File::open_read(path));
    files.push_back(std::move(file));
  }
  Writer writer(out);
  MR_ASSIGN_OR_RETURN(const Chosen chosen, choose_tensors(model, options));
  MR_RETURN_IF_ERROR(write_header(model, chosen, options, writer));
  Converter converter(model, files, writer, options);
  for (std::size_t t = 0; t < chosen.size(); ++t) MR_RETURN_IF_ERROR(converter.convert(*chosen[t], writer.layout()[t]));
  MR_RETURN_IF_ERROR(writer.finish());
  converter.report_end();
  return {};
}

}  // namespace millrace::modelfile
