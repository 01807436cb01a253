#include "synth-model/write.h"

#include <algorithm>
#include <thread>

#include "modelfile/gguf_writer.h"
#include "synth-model/fill.h"
#include "synth-model/pool.h"
#include "synth-model/vocabulary.h"

namespace millrace::synth {

Expected<Written> write(const std::string& path, const Shape& shape, const WriteOptions& options) {
  MR_RETURN_IF_ERROR(check(shape));
  modelfile::WriteOptions file;
  file.alignment = options.alignment;
  file.direct = true;
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
  const Pools pools(list, options.seed);
  const int threads =
      options.threads > 0 ? options.threads : std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, 16);
  MR_RETURN_IF_ERROR(fill_tensors(writer, list, pools, options.seed, threads));
  MR_RETURN_IF_ERROR(writer.finish());
  for (const std::uint64_t bytes : writer.file_bytes()) written.bytes += bytes;
  written.paths = writer.paths();
  return written;
}

}  // namespace millrace::synth
