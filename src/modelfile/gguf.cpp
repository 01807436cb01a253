#include "modelfile/gguf.h"

#include <filesystem>
#include <optional>
#include <system_error>

#include "modelfile/escape.h"
#include "modelfile/gguf_parser.h"

namespace millrace::modelfile {
namespace {

/// A path of the form PREFIX-00002-of-00005.gguf.
struct SplitName {
  std::string prefix;
  std::int64_t number = 0, count = 0;  // number from 1
};

std::optional<std::int64_t> five_digits(std::string_view text) {
  std::int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value;
}

std::optional<SplitName> split_name(std::string_view path) {
  constexpr std::size_t tail = sizeof("-00001-of-00002.gguf") - 1;
  if (path.size() < tail) return std::nullopt;
  const std::string_view end = path.substr(path.size() - tail);
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || end.substr(15) != ".gguf") return std::nullopt;
  const auto number = five_digits(end.substr(1, 5)), count = five_digits(end.substr(10, 5));
  if (!number || !count || *number < 1 || *number > *count) return std::nullopt;
  return SplitName{std::string(path.substr(0, path.size() - tail)), *number, *count};
}

/// Checks a split's own keys against its place. `number` from 1.
Status check_split_keys(const Model& split, std::int64_t number, std::int64_t count) {
  const std::string name = escape(split.paths()[0]);
  MR_ASSIGN_OR_RETURN(const std::int64_t own_count, split.get_int(kSplitCountKey));
  MR_ASSIGN_OR_RETURN(const std::int64_t own_number, split.get_int(kSplitNoKey));
  if (own_count != count || own_number != number - 1) {
    return error(Code::corrupt,
                 "{}: its header has split {} of {}, but its name {} of {}; rename each split to its original name",
                 name, own_number + 1, own_count, number, count);
  }
  return {};
}

/// A file that is named as a split but holds no split keys: its siblings are missing, or its name is wrong.
Status check_unkeyed_split(const std::string& path) {
  const auto name = split_name(path);
  if (!name || name->count == 1) return {};
  for (std::int64_t i = 1; i <= name->count; ++i) {
    const std::string sibling = fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, i, name->count);
    std::error_code ignored;
    if (std::filesystem::exists(sibling, ignored)) continue;
    return error(
        Code::not_found,
        "{}: split {} of {} is missing; download it into the same folder (or rename {} if it is a whole model)",
        escape(sibling), i, name->count, escape(path));
  }
  return error(
      Code::corrupt,
      "{}: is named as split {} of {} but has no split.count key; download the splits again (or rename it if it "
      "is a whole model)",
      escape(path), name->number, name->count);
}

/// Opens all splits of the model that `first`, already read from `path`, belongs to.
Expected<Model> open_splits(Model opened, const std::string& path, const OpenOptions& options) {
  MR_ASSIGN_OR_RETURN(const std::int64_t count, opened.get_int(kSplitCountKey));
  const auto name = split_name(path);
  if (!name) {
    return error(Code::not_found,
                 "{}: is one of {} splits, but its name does not end in -00001-of-{:05}.gguf, so the others cannot be "
                 "found; give it its original name again",
                 escape(path), count, count);
  }
  MR_RETURN_IF_ERROR(check_split_keys(opened, name->number, count));
  std::vector<Model> splits;
  for (std::int64_t i = 1; i <= count; ++i) {
    if (i == name->number) continue;
    const std::string sibling = fmt::format("{}-{:05}-of-{:05}.gguf", name->prefix, i, count);
    auto split = GgufParser::open_one(sibling, options);
    if (!split.ok() && split.status().code() == Code::not_found) {
      return error(Code::not_found, "{}: split {} of {} is missing; download it into the same folder", escape(sibling),
                   i, count);
    }
    if (!split.ok()) return split.status();
    MR_RETURN_IF_ERROR(check_split_keys(split.value(), i, count));
    splits.push_back(std::move(split).value());
  }
  splits.insert(splits.begin() + (name->number - 1), std::move(opened));
  return GgufParser::join(std::move(splits));
}

}  // namespace

std::size_t Array::size() const {
  return std::visit([](const auto& values) { return values.size(); }, elements);
}

std::int64_t TensorInfo::rows() const {
  std::int64_t product = 1;
  for (std::size_t i = 1; i < shape.size(); ++i) product *= shape[i];
  return product;
}

Expected<Model> Model::open(const std::string& path, const OpenOptions& options) {
  MR_ASSIGN_OR_RETURN(Model model, GgufParser::open_one(path, options));
  if (!model.has(kSplitCountKey)) MR_RETURN_IF_ERROR(check_unkeyed_split(path));
  MR_ASSIGN_OR_RETURN(const std::int64_t count, model.get_int_or(kSplitCountKey, 1));
  if (count > 1) return open_splits(std::move(model), path, options);
  return model;
}

Expected<Model> Model::parse(std::span<const std::byte> bytes, const std::string& name) {
  Cursor cursor(bytes);
  return GgufParser(cursor, name, {}).run();
}

std::uint64_t Model::tensor_bytes() const {
  std::uint64_t total = 0;
  for (const auto& [type, bytes] : bytes_by_type()) total += bytes;
  return total;
}

std::uint64_t Model::elements() const {
  std::uint64_t total = totals_.elements;
  for (const TensorInfo& tensor : tensors_) total += static_cast<std::uint64_t>(tensor.cols() * tensor.rows());
  return total;
}

std::map<DType, std::uint64_t> Model::bytes_by_type() const {
  std::map<DType, std::uint64_t> bytes = totals_.bytes;
  for (const TensorInfo& tensor : tensors_) bytes[tensor.dtype] += tensor.bytes;
  return bytes;
}

const TensorInfo* Model::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

Expected<const TensorInfo*> Model::require(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return tensor;
  return error(Code::not_found, "{}: tensor '{}' is missing; the file is incomplete or of another architecture",
               paths_.empty() ? "model" : escape(paths_[0]), escape(name, 80));
}

}  // namespace millrace::modelfile
