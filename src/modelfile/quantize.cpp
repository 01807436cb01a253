#include "modelfile/quantize.h"

#include <algorithm>
#include <array>
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
#include "tensor/blocks.h"
#include "tensor/codec.h"
#include "tensor/matrices.h"

namespace millrace::modelfile {
namespace {

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

  /// `scale`: where the numbers go that the tensor's matrices are divided by first; null: none are.
  Status convert(const TensorInfo& from, const TensorInfo& to, const TensorInfo* scale) {
    const bool encodes = from.dtype != to.dtype && info(to.dtype).block_elements > 1;
    MR_ASSIGN_OR_RETURN(importance_, ColumnImportance::of(from, encodes ? options_.importance : nullptr));
    factors_.clear();
    if (scale != nullptr) {
      MR_RETURN_IF_ERROR(find_factors(from, static_cast<std::size_t>(elements_of(*scale))));
      MR_RETURN_IF_ERROR(writer_.write_range(scale->file, scale->offset, std::as_bytes(std::span(factors_))));
    }
    return each_piece(from, [&](std::int64_t first, Worker& worker) { return convert_piece(from, to, first, worker); });
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
    std::array<float, kStepElements> step, importance;
    std::vector<float> largest;  // of each matrix, in what this worker has seen
  };

  Status each_piece(const TensorInfo& from, FunctionRef<Status(std::int64_t first, Worker& worker)> work) {
    const std::int64_t pieces = (elements_of(from) + kPieceElements - 1) / kPieceElements;
    pool_->parallel_for(pieces, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      Worker& worker = workers_[static_cast<std::size_t>(thread)];
      for (std::int64_t piece = begin; piece < end && !failed_.load(std::memory_order_relaxed); ++piece) {
        worker.status = work(piece * kPieceElements, worker);
        if (!worker.status.ok()) failed_ = true;
        if (thread == 0 && options_.progress) options_.progress(done_.load(), total_);
      }
    });
    for (const Worker& worker : workers_) MR_RETURN_IF_ERROR(worker.status);
    return {};
  }

  /// The numbers by which NVFP4's scales begin at their largest.
  Status find_factors(const TensorInfo& from, std::size_t matrices) {
    for (Worker& worker : workers_) worker.largest.assign(matrices, 0);
    MR_RETURN_IF_ERROR(each_piece(from, [&](std::int64_t first, Worker& worker) {
      const std::int64_t count = std::min(kPieceElements, elements_of(from) - first);
      MR_RETURN_IF_ERROR(read(from, first, count, worker));
      float* step = worker.step.data();
      for (std::int64_t at = 0; at < count; at += kStepElements) {
        const std::int64_t n = std::min(kStepElements, count - at);
        MR_RETURN_IF_ERROR(decode(from, at, n, worker).status());
        each_matrix(elements_of(from), matrices, first + at, n,
                    [&](std::size_t matrix, std::int64_t begin, std::int64_t end) {
                      const NumberRange range = range_of({step + begin, static_cast<std::size_t>(end - begin)});
                      worker.largest[matrix] = std::max(worker.largest[matrix], range.largest);
                    });
      }
      return Status();
    }));
    factors_.assign(matrices, 0);
    for (const Worker& worker : workers_)
      for (std::size_t m = 0; m < matrices; ++m) factors_[m] = std::max(factors_[m], worker.largest[m]);
    for (float& factor : factors_) factor = nvfp4_factor(factor);
    return {};
  }

  /// What elements [first, first + count) of a tensor count; null: all alike.
  const float* importance_of(const TensorInfo& tensor, std::int64_t first, std::int64_t count, Worker& worker) const {
    if (importance_.alike()) return nullptr;
    const std::int64_t cols = std::max<std::int64_t>(1, tensor.cols());
    for (std::int64_t i = 0, end; i < count; i = end) {  // row by row
      const std::int64_t at = first + i;
      end = std::min(count, i + cols - at % cols);
      std::copy_n(importance_.of_row(at / cols) + at % cols, end - i, worker.importance.data() + i);
    }
    return worker.importance.data();
  }

  Status read(const TensorInfo& from, std::int64_t first, std::int64_t count, Worker& worker) const {
    worker.input.resize(static_cast<std::size_t>(row_bytes(from.dtype, count)));
    const auto offset = from.offset + static_cast<std::uint64_t>(row_bytes(from.dtype, first));
    return files_[static_cast<std::size_t>(from.file)].read_at(offset, worker.input);
  }

  /// Elements [at, at + count) of what was read, into the worker's step.
  static Expected<NumberRange> decode(const TensorInfo& from, std::int64_t at, std::int64_t count, Worker& worker) {
    decode_row(from.dtype, worker.input.data() + row_bytes(from.dtype, at), count, worker.step.data());
    const NumberRange range = range_of({worker.step.data(), static_cast<std::size_t>(count)});
    if (range.finite) return range;
    return error(Code::corrupt, "tensor '{}' holds a weight that is NaN or infinite; download the model again",
                 escape(from.name, 80));
  }

  Status convert_piece(const TensorInfo& from, const TensorInfo& to, std::int64_t first, Worker& worker) {
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) {
      return error(Code::cancelled, "quantizing was cancelled; no file was written");
    }
    const std::int64_t count = std::min(kPieceElements, elements_of(from) - first);
    MR_RETURN_IF_ERROR(read(from, first, count, worker));
    if (from.dtype == to.dtype) {
      worker.output.assign(worker.input.begin(), worker.input.end());
    } else {
      MR_RETURN_IF_ERROR(recode(from, to, first, count, worker));
    }
    const auto to_offset = to.offset + static_cast<std::uint64_t>(row_bytes(to.dtype, first));
    MR_RETURN_IF_ERROR(writer_.write_range(to.file, to_offset, worker.output));
    done_ += worker.input.size();
    return {};
  }

  Status recode(const TensorInfo& from, const TensorInfo& to, std::int64_t first, std::int64_t count,
                Worker& worker) const {
    worker.output.resize(static_cast<std::size_t>(row_bytes(to.dtype, count)));
    float* step = worker.step.data();
    for (std::int64_t at = 0; at < count; at += kStepElements) {
      const std::int64_t n = std::min(kStepElements, count - at);
      MR_ASSIGN_OR_RETURN(const NumberRange range, decode(from, at, n, worker));
      if (to.dtype == DType::f16 && range.largest >= kBeyondHalf) {
        return error(Code::unsupported, "tensor '{}' holds weights up to {}, beyond F16; choose BF16",
                     escape(from.name, 80), range.largest);
      }
      if (!factors_.empty())
        each_matrix(elements_of(from), factors_.size(), first + at, n,
                    [&](std::size_t matrix, std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) step[i] /= factors_[matrix];
                    });
      encode_row(to.dtype, step, n, worker.output.data() + row_bytes(to.dtype, at),
                 importance_of(from, first + at, n, worker));
    }
    return {};
  }

  const std::vector<File>& files_;
  Writer& writer_;
  const QuantizeOptions& options_;
  const std::uint64_t total_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Worker> workers_;
  ColumnImportance importance_;  // of the present tensor
  std::vector<float> factors_;   // [matrices] by which its matrices are divided; empty: none is
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> done_ = 0;
};

/// What a tensor becomes.
DType dtype_of(const QuantizeOptions& options, const TensorInfo& tensor, const MixtureContext& context) {
  const auto named = options.types.find(tensor.name);
  return named != options.types.end() ? named->second : choose_dtype(options.type, tensor, context);
}

/// A tensor of the input that is written.
struct Choice {
  const TensorInfo* tensor = nullptr;
  DType dtype = DType::f32;  // what it becomes
  int scale = -1;            // its place among the scales that are written before all tensors; -1: it has none
};
/// In the input's order.
using Chosen = std::vector<Choice>;

Chosen choose_tensors(const Model& model, const QuantizeOptions& options) {
  const MixtureContext context = mixture_context(model.tensors());
  Chosen chosen;
  int scales = 0;
  for (const TensorInfo& tensor : model.tensors()) {
    if (options.only_named && !options.types.contains(tensor.name)) continue;
    const DType dtype = dtype_of(options, tensor, context);
    chosen.push_back({&tensor, dtype, gets_scale(model, tensor, dtype) ? scales++ : -1});
  }
  return chosen;
}

// Says aloud how many matrices an importance matrix says nothing of.
void log_unknown_importance(const Chosen& chosen, const QuantizeOptions& options) {
  if (options.importance == nullptr) return;
  std::int64_t unknown = 0, matrices = 0;
  for (const auto& [tensor, dtype, scale] : chosen) {
    if (dtype == tensor->dtype || info(dtype).block_elements == 1) continue;
    ++matrices;
    unknown += options.importance->entries.contains(tensor->name) ? 0 : 1;
  }
  if (unknown > 0)
    log::warn("the importance matrix has no values for {} of {} matrices; their columns have equal weight", unknown,
              matrices);
}

// Says aloud which tensors could not have the type asked for because of their row length.
void log_fallbacks(const Chosen& chosen, const QuantizeOptions& options, const MixtureContext& context) {
  std::map<std::tuple<std::int64_t, DType, DType>, int> counts;  // {row, wanted, got} -> tensors
  for (const auto& [tensor, dtype, scale] : chosen) {
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

Status write_header(const Model& model, const Chosen& chosen, const QuantizeOptions& options, Writer& writer) {
  constexpr std::string_view kFileType = "general.file_type", kVersion = "general.quantization_version";
  if (!options.only_named) {
    for (const auto& [key, value] : model.metadata())
      if (key != kFileType && key != kVersion) MR_RETURN_IF_ERROR(writer.add(key, value));
  }
  MR_RETURN_IF_ERROR(writer.add(std::string(kFileType), Value(info(options.type).file_type)));
  MR_RETURN_IF_ERROR(writer.add(std::string(kVersion), Value(std::uint32_t{2})));

  const MixtureContext context = mixture_context(model.tensors());
  for (const auto& [tensor, dtype, scale] : chosen)
    if (scale >= 0)
      MR_RETURN_IF_ERROR(writer.declare(scale_name(tensor->name), DType::f32, {matrices_of(tensor->shape)}));
  for (const auto& [tensor, dtype, scale] : chosen)
    MR_RETURN_IF_ERROR(writer.declare(tensor->name, dtype, tensor->shape));
  log_fallbacks(chosen, options, context);
  if (!options.only_named) log_unknown_importance(chosen, options);
  return writer.begin();
}

/// What is written of the model, whose header is then in the file. `model` outlives what is returned.
Expected<Chosen> begin(const Model& model, const std::string& out, const QuantizeOptions& options, Writer& writer) {
  MR_RETURN_IF_ERROR(check_output(out, model.paths()));
  MR_RETURN_IF_ERROR(check_types(model, options));
  Chosen chosen = choose_tensors(model, options);
  MR_RETURN_IF_ERROR(write_header(model, chosen, options, writer));
  return chosen;
}

}  // namespace

bool gets_scale(const Model& model, const TensorInfo& tensor, DType dtype) {
  return dtype == DType::nvfp4 && tensor.dtype != dtype && may_have_scale(tensor.name) &&
         model.find(scale_name(tensor.name)) == nullptr;
}

Expected<std::vector<DType>> planned_types(const Model& model, const QuantizeOptions& options) {
  MR_RETURN_IF_ERROR(check_types(model, options));
  const MixtureContext context = mixture_context(model.tensors());
  std::vector<DType> types;
  for (const TensorInfo& tensor : model.tensors()) types.push_back(dtype_of(options, tensor, context));
  return types;
}

Status quantize_hollow(const std::string& in, const std::string& out, const QuantizeOptions& options) {
  MR_ASSIGN_OR_RETURN(const Model model, Model::open(in));
  Writer writer(out, {.sparse = true});
  MR_ASSIGN_OR_RETURN(const Chosen chosen, begin(model, out, options, writer));
  for (std::size_t scale = 0; scale + chosen.size() < writer.layout().size(); ++scale) {
    const TensorInfo& tensor = writer.layout()[scale];
    const std::vector<float> ones(static_cast<std::size_t>(tensor.cols() * tensor.rows()), 1.0F);
    MR_RETURN_IF_ERROR(writer.write_range(tensor.file, tensor.offset, std::as_bytes(std::span(ones))));
  }
  constexpr std::array<std::byte, 1> end{};
  MR_RETURN_IF_ERROR(writer.write_range(0, writer.file_bytes()[0] - end.size(), end));
  return writer.finish();
}

Status quantize(const std::string& in, const std::string& out, const QuantizeOptions& options) {
  MR_ASSIGN_OR_RETURN(const Model model, Model::open(in));
  MR_ASSIGN_OR_RETURN(const std::vector<File> files, open_files(model.paths()));
  Writer writer(out);
  MR_ASSIGN_OR_RETURN(const Chosen chosen, begin(model, out, options, writer));
  Converter converter(model, files, writer, options);
  const std::span<const TensorInfo> layout = writer.layout();
  const std::size_t scales = layout.size() - chosen.size();  // they stand before all tensors
  for (std::size_t t = 0; t < chosen.size(); ++t) {
    const int scale = chosen[t].scale;
    MR_RETURN_IF_ERROR(converter.convert(*chosen[t].tensor, layout[scales + t],
                                         scale < 0 ? nullptr : &layout[static_cast<std::size_t>(scale)]));
  }
  MR_RETURN_IF_ERROR(writer.finish());
  converter.report_end();
  return {};
}

}  // namespace millrace::modelfile
