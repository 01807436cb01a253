#include "modelfile/safetensors_writer.h"

#include <set>
#include <utility>

#include "base/bytes.h"
#include "base/json.h"
#include "modelfile/escape.h"

namespace millrace::modelfile {

using nlohmann::ordered_json;

namespace {

constexpr std::uint64_t kAlignment = 8;  // of the data's begin

/// Of an object, which a null becomes.
ordered_json::object_t& members_of(ordered_json& json) {
  if (json.is_null()) json = ordered_json::object();
  return json.get_ref<ordered_json::object_t&>();
}

std::string dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

CheckpointWriter::CheckpointWriter(std::string folder, std::uint64_t max_shard_bytes)
    : folder_(std::move(folder)), max_shard_bytes_(max_shard_bytes) {}

Status CheckpointWriter::declare(std::string name, Element element, std::vector<std::int64_t> shape) {
  if (!files_.empty())
    return error(Code::invalid_argument, "{}: tensors are declared before begin()", escape(name, 80));
  CheckpointTensor tensor;
  tensor.name = std::move(name);
  tensor.element = element;
  tensor.bytes = static_cast<std::uint64_t>(element_bytes(element));
  for (const std::int64_t dim : shape) tensor.bytes *= static_cast<std::uint64_t>(dim);
  tensor.shape = std::move(shape);
  bytes_ += tensor.bytes;
  tensors_.push_back(std::move(tensor));
  return {};
}

std::string CheckpointWriter::file_name(std::size_t shard, std::size_t shards) const {
  return shards == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
}

Status CheckpointWriter::begin() {
  std::set<std::string_view> names;
  std::vector<ordered_json> headers(1);
  std::vector<std::uint64_t> sizes(1, 0);
  for (CheckpointTensor& tensor : tensors_) {
    if (!names.insert(tensor.name).second)
      return error(Code::invalid_argument, "tensor '{}' would be written twice", escape(tensor.name, 120));
    if (sizes.back() > 0 && sizes.back() + tensor.bytes > max_shard_bytes_) {
      headers.emplace_back();
      sizes.push_back(0);
    }
    tensor.file = static_cast<int>(headers.size() - 1);
    tensor.offset = sizes.back();
    sizes.back() += tensor.bytes;
    // Appended: operator[] would look for each name among all before it.
    members_of(headers.back())
        .emplace_back(tensor.name, ordered_json{{"dtype", element_name(tensor.element)},
                                                {"shape", tensor.shape},
                                                {"data_offsets", {tensor.offset, tensor.offset + tensor.bytes}}});
  }
  std::vector<std::uint64_t> begins;
  for (std::size_t shard = 0; shard < headers.size(); ++shard) {
    headers[shard]["__metadata__"] = {{"format", "pt"}};
    std::string text = dump(headers[shard], -1);
    text.resize(round_up(text.size(), kAlignment), ' ');
    const std::uint64_t length = text.size();
    MR_ASSIGN_OR_RETURN(File file, File::create(folder_ + "/" + file_name(shard, headers.size())));
    begins.push_back(sizeof(length) + length);
    MR_RETURN_IF_ERROR(file.reserve(begins.back() + sizes[shard]));
    MR_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(&length, 1))));
    MR_RETURN_IF_ERROR(file.write_at(sizeof(length), std::as_bytes(std::span(text.data(), text.size()))));
    files_.push_back(std::move(file));
  }
  for (CheckpointTensor& tensor : tensors_) tensor.offset += begins[static_cast<std::size_t>(tensor.file)];
  return files_.size() == 1 ? Status() : write_index();
}

Status CheckpointWriter::write_index() const {
  ordered_json index;
  index["metadata"] = {{"total_size", bytes_}};
  ordered_json& map = index["weight_map"];
  for (const CheckpointTensor& tensor : tensors_)
    members_of(map).emplace_back(tensor.name, file_name(static_cast<std::size_t>(tensor.file), files_.size()));
  const std::string text = dump(index, 2) + "\n";
  MR_ASSIGN_OR_RETURN(const File file, File::create(folder_ + "/model.safetensors.index.json"));
  MR_RETURN_IF_ERROR(file.write_at(0, std::as_bytes(std::span(text.data(), text.size()))));
  return file.sync();
}

Status CheckpointWriter::write(std::size_t index, std::uint64_t offset, std::span<const std::byte> bytes) const {
  const CheckpointTensor& tensor = tensors_[index];
  MR_ASSERT(offset <= tensor.bytes && bytes.size() <= tensor.bytes - offset);
  return files_[static_cast<std::size_t>(tensor.file)].write_at(tensor.offset + offset, bytes);
}

Status CheckpointWriter::finish() const {
  for (const File& file : files_) MR_RETURN_IF_ERROR(file.sync());
  return {};
}

}  // namespace millrace::modelfile
