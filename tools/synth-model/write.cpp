#include "synth-model/write.h"

#include <algorithm>
#include <array>
#include <thread>

#include "modelfile/gguf_writer.h"
#include "synth-model/fill.h"
#include "synth-model/pool.h"
#include "synth-model/vocabulary.h"

namespace millrace::synth {
namespace {

Status fill(const std::vector<Tensor>& list, const WriteOptions& options, modelfile::Writer& writer) {
  const Pools pools(list, options.seed);
  const int threads =
      options.threads > 0 ? options.threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  return fill_tensors(writer, list, pools, options.seed, threads);
}

}  // namespace

Expected<Written> write(const std::string& path, const Shape& shape, const WriteOptions& options) {
  MR_RETURN_IF_ERROR(check(shape));
  modelfile::WriteOptions file;
  file.alignment = options.alignment;
  file.direct = !options.hollow;
  file.sparse = options.hollow;
  if (options.max_file_bytes > 0) file.max_file_bytes = options.max_file_bytes;
  modelfile::Writer writer(path, file);
  MR_RETURN_IF_ERROR(add_hyperparameters(shape, options.types, writer));
  MR_RETURN_IF_ERROR(add_vocabulary(shape, writer));
  const std::vector<Tensor> list = tensors(shape, options.types);
  Written written;
  written.tensors = list.size();
  for (const Tensor& tensor : list) {
    MR_RETURN_IF_ERROR(writer.declare(tensor.name, tensor.dtype, tensor.shape));
    std::uint64_t elements = 1;
    for (const std::int64_t dim : tensor.shape) elements *= static_cast<std::uint64_t>(dim);
    written.parameters += elements;
  }
  MR_RETURN_IF_ERROR(writer.begin());
  if (options.hollow) {
    constexpr std::array<std::byte, 8> end{};
    for (std::size_t part = 0; part < writer.file_bytes().size(); ++part)
      MR_RETURN_IF_ERROR(writer.write_range(static_cast<int>(part), writer.file_bytes()[part] - end.size(), end));
  } else {
    MR_RETURN_IF_ERROR(fill(list, options, writer));
  }
  MR_RETURN_IF_ERROR(writer.finish());
  for (const std::uint64_t bytes : writer.file_bytes()) written.bytes += bytes;
  written.paths = writer.paths();
  return written;
}

}  // namespace millrace::synth
