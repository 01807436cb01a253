#include "modelfile/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/os/folder.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/safetensors_header.h"

namespace millrace::modelfile {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json", kFileName = "model.safetensors";
constexpr std::size_t kLengthBytes = 8, kMostShards = 10'000;

/// Hears {"metadata": .., "weight_map": {"TENSOR": "FILE", ..}}.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  Status status;
  std::map<std::string, std::string, std::less<>> shards;
  bool has_map = false;

  bool null() override { return other(); }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t) override { return other(); }
  bool number_unsigned(number_unsigned_t) override { return other(); }
  bool number_float(number_float_t, const string_t&) override { return other(); }
  bool binary(binary_t&) override { return other(); }
  bool string(string_t& text) override {
    if (depth_ != 2 || !in_map_) return other();
    if (text.empty() || text.front() == '.' || text.find('/') != std::string::npos ||
        text.find('\0') != std::string::npos)
      return stop("tensor '{}' is in '{}', which is not a file of this folder", escape(tensor_, 80), escape(text, 80));
    if (!shards.emplace(tensor_, text).second) return stop("tensor '{}' appears twice", escape(tensor_, 80));
    return true;
  }
  bool start_object(std::size_t) override {
    has_map |= ++depth_ == 2 && in_map_;
    return depth_ <= 2 || other();
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    return depth_ > 1 && other();
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) in_map_ = text == "weight_map";
    if (depth_ == 2) tensor_ = text;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop("it is not JSON (at byte {})", position);
  }

 private:
  template <typename... Args>
  bool stop(fmt::format_string<Args...> format, Args&&... args) {
    if (status.ok()) status = error(Code::corrupt, format, std::forward<Args>(args)...);
    return false;
  }
  bool other() { return !in_map_ || stop("its weight_map holds something else than names of files"); }

  int depth_ = 0;
  bool in_map_ = false;
  std::string tensor_;
};

/// The header's bytes and where the data begin.
Expected<std::pair<std::string, std::uint64_t>> read_header(Cursor& cursor) {
  std::uint64_t length = 0;
  if (cursor.size() < kLengthBytes)
    return error(Code::corrupt, "it has {} bytes, which is not a safetensors file; download it again", cursor.size());
  MR_RETURN_IF_ERROR(cursor.read_number(length, "the header's length"));
  if (length > kMostHeaderBytes || length < 2)
    return error(Code::corrupt, "its header would have {} bytes, so it is not a safetensors file", length);
  if (length > cursor.remaining())
    return error(Code::corrupt, "its header has {} bytes, of which {} are there; download the file again", length,
                 cursor.remaining());
  std::string json(static_cast<std::size_t>(length), '\0');
  MR_RETURN_IF_ERROR(cursor.read(std::as_writable_bytes(std::span(json.data(), json.size())), "the header"));
  return std::pair(std::move(json), kLengthBytes + length);
}

Expected<std::vector<CheckpointTensor>> tensors_of(Cursor& cursor) {
  MR_ASSIGN_OR_RETURN(const auto header, read_header(cursor));
  return parse_header(header.first, header.second, cursor.size());
}

/// The file of a folder that says where the tensors are.
Expected<std::string> entry_of(const std::string& folder) {
  std::error_code ignored;
  for (const std::string_view name : {kIndexName, kFileName})
    if (const fs::path path = fs::path(folder) / name; fs::exists(path, ignored)) return path.string();
  std::vector<std::string> found;
  bool pickles = false;
  const Status unread = os::for_each_name(folder, [&](const std::string& name) {
    const fs::path path = fs::path(folder) / name;
    const std::string extension = path.extension().string();
    if (extension == ".safetensors") found.push_back(path.string());
    pickles |= extension == ".bin" || extension == ".pt" || extension == ".pth";
  });
  if (found.size() == 1) return found.front();
  if (found.size() > 1)
    return error(Code::not_found, "{}: holds {} .safetensors files and no {}; download that file, too", escape(folder),
                 found.size(), kIndexName);
  if (pickles)
    return error(Code::unsupported,
                 "{}: holds PyTorch's own files, which may run code; download the model as safetensors instead",
                 escape(folder));
  return error(Code::not_found, "{}: holds no .safetensors file; give a checkpoint's folder", escape(folder));
}

}  // namespace

std::int64_t CheckpointTensor::elements() const { return static_cast<std::int64_t>(bytes) / element_bytes(element); }

Expected<std::map<std::string, std::string, std::less<>>> Checkpoint::parse_index(std::string_view json) {
  IndexReader reader;
  const bool whole = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  MR_RETURN_IF_ERROR(reader.status);
  if (!whole || !reader.has_map || reader.shards.empty())
    return error(Code::corrupt, "it has no weight_map, which names the file of each tensor; download it again");
  return std::move(reader.shards);
}

Status Checkpoint::add_tensors(std::vector<CheckpointTensor> tensors, int file) {
  for (CheckpointTensor& tensor : tensors) {
    tensor.file = file;
    if (!by_name_.emplace(tensor.name, tensors_.size()).second)
      return error(Code::corrupt, "tensor '{}' is also in another file", escape(tensor.name, 80));
    tensors_.push_back(std::move(tensor));
  }
  return {};
}

Status Checkpoint::add_file(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const File file, File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  Cursor cursor(file, size);
  auto tensors = tensors_of(cursor);
  if (!tensors.ok()) return tensors.status().with_context(escape(path));
  paths_.push_back(path);
  return add_tensors(std::move(*tensors), static_cast<int>(paths_.size() - 1)).with_context(escape(path));
}

Status Checkpoint::add_shards(const std::string& index_path) {
  MR_ASSIGN_OR_RETURN(const File file, File::open_read(index_path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  if (size > kMostHeaderBytes)
    return error(Code::corrupt, "{}: has {} bytes, which no index has", escape(index_path), size);
  std::string text(static_cast<std::size_t>(size), '\0');
  MR_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  const auto index = parse_index(text);
  if (!index.ok()) return index.status().with_context(escape(index_path));
  std::set<std::string> names;
  for (const auto& [tensor, name] : *index) names.insert(name);
  if (names.size() > kMostShards)
    return error(Code::corrupt, "{}: names {} files, which no checkpoint has", escape(index_path), names.size());
  for (const std::string& name : names) {
    const std::string path = (fs::path(folder_) / name).string();
    std::error_code ignored;
    if (!fs::exists(path, ignored))
      return error(Code::not_found, "{}: is missing, and {} names it; get all files of the checkpoint", escape(path),
                   kIndexName);
    MR_RETURN_IF_ERROR(add_file(path));
  }
  for (const auto& [tensor, name] : *index) {
    const CheckpointTensor* found = find(tensor);
    if (found == nullptr || fs::path(paths_[static_cast<std::size_t>(found->file)]).filename() != name)
      return error(Code::corrupt, "{}: tensor '{}' is to be in {}, which does not hold it", escape(index_path),
                   escape(tensor, 80), escape(name, 80));
  }
  return {};
}

Expected<Checkpoint> Checkpoint::open(const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  Checkpoint checkpoint;
  std::error_code ignored;
  std::string entry = path;
  if (fs::is_directory(path, ignored)) {
    MR_ASSIGN_OR_RETURN(entry, entry_of(path));
  }
  checkpoint.folder_ = fs::path(entry).parent_path().string();
  if (entry.ends_with(".index.json")) {
    MR_RETURN_IF_ERROR(checkpoint.add_shards(entry));
  } else {
    MR_RETURN_IF_ERROR(checkpoint.add_file(entry));
  }
  return checkpoint;
}

Expected<Checkpoint> Checkpoint::parse(std::span<const std::byte> bytes, const std::string& name) {
  Checkpoint checkpoint;
  Cursor cursor(bytes);
  auto tensors = tensors_of(cursor);
  if (!tensors.ok()) return tensors.status().with_context(escape(name));
  checkpoint.paths_.push_back(name);
  MR_RETURN_IF_ERROR(checkpoint.add_tensors(std::move(*tensors), 0));
  return checkpoint;
}

const CheckpointTensor* Checkpoint::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

std::uint64_t Checkpoint::tensor_bytes() const {
  std::uint64_t bytes = 0;
  for (const CheckpointTensor& tensor : tensors_) bytes += tensor.bytes;
  return bytes;
}

}  // namespace millrace::modelfile
