#include "model/merge_adapters.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include "base/thread_pool.h"
#include "model/adapter.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"
#include "modelfile/mixtures.h"
#include "tensor/codec.h"

namespace millrace::model {
namespace {

using modelfile::TensorInfo;

constexpr std::uint64_t kPieceBytes = 8 << 20;

/// The halves of a matrix's change as floats.
struct Change {
  std::int64_t rank = 0;
  bool table = false;
  float factor = 1;
  std::vector<float> a, b;
};

/// An adapter, and its file's tensors by the model's.
struct Source {
  AdapterFile file;
  float scale = 1;
  std::vector<modelfile::File> files;
  std::map<std::string, const AdaptedTensor*, std::less<>> tensors;
};

class Merger {
 public:
  Merger(std::string in, std::string out, const MergeOptions& options)
      : in_(std::move(in)), out_(std::move(out)), options_(options), pool_({.threads = options.threads}) {}

  Expected<MergeReport> run() {
    MR_RETURN_IF_ERROR(open());
    modelfile::Writer writer(out_);
    for (const auto& [key, value] : base_.metadata()) MR_RETURN_IF_ERROR(writer.add(key, value));
    for (const TensorInfo& tensor : base_.tensors()) {
      MR_ASSIGN_OR_RETURN(const DType dtype, dtype_of(tensor));
      MR_RETURN_IF_ERROR(writer.declare(tensor.name, dtype, tensor.shape));
    }
    MR_RETURN_IF_ERROR(writer.begin());
    const std::uint64_t total = base_.tensor_bytes();
    for (std::size_t i = 0; i < base_.tensors().size(); ++i) {
      const TensorInfo& tensor = base_.tensors()[i];
      if (options_.progress) options_.progress(done_, total);
      MR_RETURN_IF_ERROR(write(tensor, writer.layout()[i].dtype, writer));
    }
    if (options_.progress) options_.progress(total, total);
    MR_RETURN_IF_ERROR(writer.finish());
    report_.tensors = base_.tensors().size();
    report_.bytes = writer.file_bytes().front();
    return report_;
  }

 private:
  Status open() {
    MR_ASSIGN_OR_RETURN(base_, modelfile::Model::open(in_));
    std::vector<std::string> inputs = base_.paths();
    for (const MergeOptions::Adapter& adapter : options_.adapters) inputs.push_back(adapter.path);
    MR_RETURN_IF_ERROR(modelfile::check_output(out_, inputs));
    MR_ASSIGN_OR_RETURN(files_, modelfile::open_files(base_.paths()));
    for (const MergeOptions::Adapter& adapter : options_.adapters) {
      MR_ASSIGN_OR_RETURN(AdapterFile file, AdapterFile::open(adapter.path));
      if (const Status fits = file.check(base_); !fits.ok())
        return fits.with_context(modelfile::escape(adapter.path, 200));
      Source& source = sources_.emplace_back();
      source.file = std::move(file);
      source.scale = adapter.scale;
      MR_ASSIGN_OR_RETURN(source.files, modelfile::open_files(source.file.file().paths()));
    }
    const bool tied = base_.find("output.weight") == nullptr;
    for (Source& source : sources_)
      for (const AdaptedTensor& tensor : source.file.tensors()) {
        const std::string shown = modelfile::escape(tensor.name, 120);
        if (tied && (tensor.embedding || tensor.name == "output.weight"))
          return error(Code::unsupported,
                       "the model's embedding is its head, too, and the adapter changes {} alone: no one matrix does "
                       "both; run the adapter beside the model with --lora",
                       tensor.embedding ? "the embedding" : "the head");
        if (base_.find(modelfile::scale_name(tensor.name)) != nullptr)
          return error(Code::unsupported, "the model has a scale beside {}, and this version merges no such matrix",
                       shown);
        source.tensors[tensor.name] = &tensor;
      }
    return {};
  }

  bool changes(const TensorInfo& tensor) const {
    return std::any_of(sources_.begin(), sources_.end(),
                       [&](const Source& source) { return source.tensors.contains(tensor.name); });
  }

  Expected<DType> dtype_of(const TensorInfo& tensor) const {
    if (!changes(tensor)) return tensor.dtype;
    const DType dtype = options_.dtype.value_or(tensor.dtype);
    if (can_encode(dtype) && tensor.cols() % info(dtype).block_elements == 0) return dtype;
    return error(Code::unsupported, "{} cannot become {}: choose another type with --dtype, such as f16",
                 modelfile::escape(tensor.name, 120), info(dtype).name);
  }

  Expected<std::vector<float>> floats_of(const Source& source, const TensorInfo& half) const {
    std::vector<std::byte> bytes(half.bytes);
    MR_RETURN_IF_ERROR(source.files[static_cast<std::size_t>(half.file)].read_at(half.offset, bytes));
    std::vector<float> floats(static_cast<std::size_t>(half.rows() * half.cols()));
    for (std::int64_t r = 0; r < half.rows(); ++r)
      decode_row(half.dtype, bytes.data() + r * row_bytes(half.dtype, half.cols()), half.cols(),
                 floats.data() + r * half.cols());
    return floats;
  }

  Expected<std::vector<Change>> changes_of(const TensorInfo& tensor) const {
    std::vector<Change> changes;
    for (const Source& source : sources_) {
      const auto found = source.tensors.find(tensor.name);
      if (found == source.tensors.end()) continue;
      const AdaptedTensor& own = *found->second;
      Change change{own.rank, own.embedding, source.scale * source.file.factor_of(own), {}, {}};
      MR_ASSIGN_OR_RETURN(change.a, floats_of(source, own.a));
      MR_ASSIGN_OR_RETURN(change.b, floats_of(source, own.b));
      changes.push_back(std::move(change));
    }
    return changes;
  }

  /// Adds to row `row` of all the tensor's rows.
  static void add(const Change& change, const TensorInfo& tensor, std::int64_t row, float* out) {
    const std::int64_t cols = tensor.cols(), rank = change.rank;
    const std::int64_t rows = tensor.shape.size() > 1 ? tensor.shape[1] : 1, expert = row / rows;
    if (change.table) {
      for (std::int64_t k = 0; k < cols; ++k) {
        float sum = 0;
        for (std::int64_t r = 0; r < rank; ++r)
          sum += change.a[static_cast<std::size_t>(row * rank + r)] * change.b[static_cast<std::size_t>(k * rank + r)];
        out[k] += change.factor * sum;
      }
      return;
    }
    for (std::int64_t r = 0; r < rank; ++r) {
      const float by = change.factor * change.b[static_cast<std::size_t>(row * rank + r)];
      const float* const from = change.a.data() + (expert * rank + r) * cols;
      for (std::int64_t k = 0; k < cols; ++k) out[k] += by * from[k];
    }
  }

  Status write(const TensorInfo& tensor, DType dtype, modelfile::Writer& writer) {
    MR_ASSIGN_OR_RETURN(const std::vector<Change> changes, changes_of(tensor));
    if (!changes.empty()) ++report_.changed;
    const std::int64_t cols = std::max<std::int64_t>(1, tensor.cols()), rows = tensor.rows();
    const std::int64_t in_row = row_bytes(tensor.dtype, cols), out_row = row_bytes(dtype, cols);
    const std::int64_t step = std::max<std::int64_t>(1, static_cast<std::int64_t>(kPieceBytes) / in_row);
    std::vector<std::byte> in, out;
    for (std::int64_t first = 0; first < rows; first += step) {
      if (options_.cancel != nullptr && *options_.cancel) return error(Code::cancelled, "cancelled");
      const std::int64_t count = std::min(step, rows - first);
      in.resize(static_cast<std::size_t>(count * in_row));
      MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(tensor.file)].read_at(
          tensor.offset + static_cast<std::uint64_t>(first * in_row), in));
      done_ += in.size();
      if (changes.empty()) {
        MR_RETURN_IF_ERROR(writer.write_tensor_data(in));
        continue;
      }
      out.resize(static_cast<std::size_t>(count * out_row));
      std::atomic<bool> finite = true;
      pool_.parallel_for(count, 16, [&](std::int64_t begin, std::int64_t end, int) {
        std::vector<float> row(static_cast<std::size_t>(cols));
        for (std::int64_t r = begin; r < end; ++r) {
          decode_row(tensor.dtype, in.data() + r * in_row, cols, row.data());
          for (const Change& change : changes) add(change, tensor, first + r, row.data());
          if (!range_of(row).finite) finite = false;
          encode_row(dtype, row.data(), cols, out.data() + r * out_row);
        }
      });
      if (!finite)
        return error(Code::corrupt, "{} and its adapter give numbers that are not finite; fetch both files again",
                     modelfile::escape(tensor.name, 120));
      MR_RETURN_IF_ERROR(writer.write_tensor_data(out));
    }
    return {};
  }

  const std::string in_, out_;
  const MergeOptions& options_;
  ThreadPool pool_;
  modelfile::Model base_;
  std::vector<modelfile::File> files_;
  std::vector<Source> sources_;
  std::uint64_t done_ = 0;
  MergeReport report_;
};

}  // namespace

Expected<MergeReport> merge_adapters(const std::string& in, const std::string& out, const MergeOptions& options) {
  return Merger(in, out, options).run();
}

}  // namespace millrace::model
