#include "modelfile/split.h"

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf.h"
#include "modelfile/gguf_writer.h"

namespace millrace::modelfile {
namespace {

constexpr std::uint64_t kPieceBytes = 4 * kMiB;

/// Splits whose number is not known before the writer has begun may fall on the input's files: then it may not begin.
Status check_names(const Model& model, const std::string& out) {
  MR_RETURN_IF_ERROR(check_output(out, model.paths()));
  const std::string stem = out.ends_with(".gguf") ? out.substr(0, out.size() - 5) : out;
  for (const std::string& path : model.paths()) {
    if (path.size() > stem.size() && path.starts_with(stem + "-") && path.find("-of-", stem.size()) == stem.size() + 6)
      return error(Code::invalid_argument, "{}: is a file of the input; choose another name for the output",
                   escape(path));
  }
  return {};
}

Status copy_tensor(const File& file, const TensorInfo& from, const TensorInfo& to, Writer& writer,
                   const CopyOptions& options, std::vector<std::byte>& buffer, std::uint64_t& done,
                   std::uint64_t total) {
  for (std::uint64_t at = 0; at < from.bytes;) {
    if (options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed))
      return error(Code::cancelled, "copying was cancelled; no file was written");
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), from.bytes - at));
    MR_RETURN_IF_ERROR(file.read_at(from.offset + at, piece));
    MR_RETURN_IF_ERROR(writer.write_range(to.file, to.offset + at, piece));
    at += piece.size();
    done += piece.size();
    if (options.progress) options.progress(done, total);
  }
  return {};
}

}  // namespace

Expected<std::vector<std::string>> copy_model(const std::string& in, const std::string& out,
                                              std::uint64_t max_file_bytes, const CopyOptions& options) {
  MR_ASSIGN_OR_RETURN(const Model model, Model::open(in));
  MR_RETURN_IF_ERROR(check_names(model, out));
  MR_ASSIGN_OR_RETURN(const std::vector<File> files, open_files(model.paths()));
  WriteOptions write;
  write.max_file_bytes = max_file_bytes;
  if (model.has("general.alignment")) {
    MR_ASSIGN_OR_RETURN(const std::int64_t alignment, model.get_int("general.alignment"));
    write.alignment = static_cast<std::uint32_t>(alignment);
  }
  Writer writer(out, write);
  for (const auto& [key, value] : model.metadata()) MR_RETURN_IF_ERROR(writer.add(key, value));
  for (const TensorInfo& tensor : model.tensors())
    MR_RETURN_IF_ERROR(writer.declare(tensor.name, tensor.dtype, tensor.shape));
  MR_RETURN_IF_ERROR(writer.begin());
  std::vector<std::byte> buffer(kPieceBytes);
  std::uint64_t done = 0;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    const TensorInfo& from = model.tensors()[t];
    MR_RETURN_IF_ERROR(copy_tensor(files[static_cast<std::size_t>(from.file)], from, writer.layout()[t], writer,
                                   options, buffer, done, model.tensor_bytes()));
  }
  MR_RETURN_IF_ERROR(writer.finish());
  if (options.progress) options.progress(done, done);
  return writer.paths();
}

}  // namespace millrace::modelfile
