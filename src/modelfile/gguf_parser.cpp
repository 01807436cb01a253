#include "modelfile/gguf_parser.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "base/bytes.h"
#include "modelfile/escape.h"
#include "modelfile/mixtures.h"
#include "modelfile/overlay.h"

namespace millrace::modelfile {
namespace {

constexpr int kMaxArrayDepth = 4;
constexpr std::uint64_t kMaxNameBytes = 65535;          // the specification's limit for keys
constexpr std::uint64_t kNodeBytes = 160;               // of a key or a tensor in a map, with its value's head
constexpr std::uint64_t kElementBytes = 40;             // of a string or an array in an array, but its bytes
constexpr std::uint64_t kSmallestPair = 8 + 1 + 4 + 1;  // key length, key, type, value
constexpr std::uint64_t kSmallestTensor = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, n_dims, dim, type, offset

/// Bytes of one value of a fixed size, 0 for strings and arrays.
std::uint64_t fixed_bytes(ValueType type) {
  switch (type) {
    case ValueType::u8:
    case ValueType::i8:
    case ValueType::boolean:
      return 1;
    case ValueType::u16:
    case ValueType::i16:
      return 2;
    case ValueType::u32:
    case ValueType::i32:
    case ValueType::f32:
      return 4;
    case ValueType::u64:
    case ValueType::i64:
    case ValueType::f64:
      return 8;
    case ValueType::string:
    case ValueType::array:
      return 0;
  }
  return 0;
}

bool is_vocabulary(std::string_view key) {
  return key == "tokenizer.ggml.tokens" || key == "tokenizer.ggml.scores" || key == "tokenizer.ggml.token_type" ||
         key == "tokenizer.ggml.merges";
}

/// Names of tensor types that GGUF has and Millrace does not, for messages: " (Q8_K)", or nothing.
std::string_view foreign_type_name(std::uint32_t id) {
  switch (id) {
    case 9:
      return " (Q8_1)";
    case 15:
      return " (Q8_K)";
    default:
      return "";
  }
}

/// What a file that is not a GGUF most likely is, from its first bytes.
std::string_view guess_format(std::string_view head) {
  if (head.starts_with("version "))
    return "it looks like a Git LFS pointer; run git lfs pull, or download the file itself";
  if (head.starts_with("<")) return "it looks like a web page; check the download link";
  if (head.starts_with("PK")) return "it looks like a zip or PyTorch file; convert it to GGUF";
  if (head.starts_with("tjgg") || head.starts_with("fmgg") || head.starts_with("lmgg")) {
    return "it is in the GGML format from before GGUF; convert it, or download the model as GGUF";
  }
  if (head.size() == 9 && head[8] == '{') return "it looks like safetensors; convert it to GGUF";
  return "give a .gguf file";
}

}  // namespace

Expected<Model> GgufParser::run() {
  if (Status status = parse(); !status.ok()) return status.with_context(escape(name_));
  return std::move(model_);
}

Status GgufParser::parse() {
  model_.paths_ = {name_};
  model_.file_bytes_ = cursor_.size();
  MR_RETURN_IF_ERROR(parse_magic());
  std::uint64_t tensors = 0, pairs = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(tensors, "the tensor count"));
  MR_RETURN_IF_ERROR(cursor_.read_number(pairs, "the metadata count"));
  MR_RETURN_IF_ERROR(check_count(pairs, kSmallestPair, "metadata keys"));
  MR_RETURN_IF_ERROR(check_count(tensors, kSmallestTensor, "tensors"));
  MR_RETURN_IF_ERROR(parse_metadata(pairs));
  MR_RETURN_IF_ERROR(check_count(tensors, kSmallestTensor, "tensors"));
  if (!options_.outline) {
    MR_RETURN_IF_ERROR(charge(tensors * sizeof(TensorInfo)));
    model_.tensors_.reserve(static_cast<std::size_t>(tensors));
  }
  for (std::uint64_t i = 0; i < tensors; ++i) MR_RETURN_IF_ERROR(parse_tensor(i));
  return options_.outline ? check_outline() : check_tensors();
}

Status GgufParser::parse_magic() {
  if (cursor_.size() == 0) return error(Code::corrupt, "the file is empty; download it again");
  std::array<char, 9> head{};
  const auto head_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(head.size(), cursor_.size()));
  MR_RETURN_IF_ERROR(
      cursor_.read(std::as_writable_bytes(std::span(head)).first(std::min<std::size_t>(4, head_bytes)), "the magic"));
  if (std::memcmp(head.data(), "GGUF", std::min<std::size_t>(4, head_bytes)) != 0) {
    if (head_bytes > 4) {
      MR_RETURN_IF_ERROR(cursor_.read(std::as_writable_bytes(std::span(head)).subspan(4, head_bytes - 4), "the magic"));
    }
    return error(Code::corrupt, "not a GGUF file: {}", guess_format({head.data(), head_bytes}));
  }
  if (head_bytes < 4) return error(Code::corrupt, "the file ends after {} bytes; download it again", head_bytes);
  std::uint32_t version = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(version, "the version"));
  if (version != 0 && (version & 0xFFFFu) == 0) {
    return error(Code::unsupported, "a big-endian GGUF, which Millrace does not read; download the little-endian file");
  }
  if (version == 1) return error(Code::unsupported, "GGUF version 1, which is obsolete; convert it to version 3");
  if (version != 2 && version != 3) {
    return error(Code::unsupported, "GGUF version {}, but Millrace reads 2 and 3; download a version 3 file", version);
  }
  model_.version_ = version;
  return {};
}

Status GgufParser::check_count(std::uint64_t count, std::uint64_t smallest_bytes, std::string_view what) const {
  if (count <= cursor_.remaining() / smallest_bytes) return {};
  return error(Code::corrupt,
               "the header claims {} {}, more than the {} bytes left in the file can hold; download the "
               "file again",
               count, what, cursor_.remaining());
}

Status GgufParser::charge(std::uint64_t bytes) {
  if (options_.memory == nullptr || options_.memory->grow(bytes)) return {};
  return error(Code::out_of_budget, "its header takes more than the {} of memory that are left for it; give more --ram",
               format_bytes(options_.memory->most()));
}

Status GgufParser::parse_metadata(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    std::string key;
    MR_RETURN_IF_ERROR(read_name(key, fmt::format("the name of metadata key {}", i)));
    const std::string what = fmt::format("metadata key '{}'", escape(key, 80));
    if (model_.metadata_.contains(key)) return error(Code::corrupt, "{} occurs twice; download the file again", what);
    std::uint32_t type = 0;
    MR_RETURN_IF_ERROR(cursor_.read_number(type, what));
    if (type > static_cast<std::uint32_t>(ValueType::f64)) {
      return error(Code::corrupt, "{} has the unknown value type {}; download the file again", what, type);
    }
    const auto value_type = static_cast<ValueType>(type);
    const bool is_array = value_type == ValueType::array;
    if ((options_.wanted && !options_.wanted(key)) || (is_array && options_.outline) ||
        (is_array && options_.skip_vocabulary && is_vocabulary(key))) {
      MR_RETURN_IF_ERROR(skip_value(value_type, what));
      continue;
    }
    MR_RETURN_IF_ERROR(charge(kNodeBytes + key.size()));
    MR_ASSIGN_OR_RETURN(Value value, read_value(value_type, what, 0));
    model_.metadata_.emplace(std::move(key), std::move(value));
  }
  return {};
}

Status GgufParser::skip_value(ValueType type, const std::string& what) {
  if (type == ValueType::array) return skip_array(what, 1);
  if (type != ValueType::string) return cursor_.skip(fixed_bytes(type), what);
  std::uint64_t bytes = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(bytes, what));
  return cursor_.skip(bytes, what);
}

Status GgufParser::read_string(std::string& out, std::string_view what, std::uint64_t most_bytes) {
  std::uint64_t bytes = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(bytes, what));
  // Skipping nothing past the end gives the error without an allocation.
  if (bytes > cursor_.remaining()) return cursor_.skip(bytes, what);
  if (bytes > most_bytes) return error(Code::corrupt, "{} has {} bytes; download the file again", what, bytes);
  MR_RETURN_IF_ERROR(charge(bytes));
  out.resize(static_cast<std::size_t>(bytes));
  return cursor_.read(std::as_writable_bytes(std::span(out)), what);
}

/// Of a key or a tensor. It is charged by whoever keeps it.
Status GgufParser::read_name(std::string& out, std::string_view what) {
  GrantedBytes* const memory = std::exchange(options_.memory, nullptr);
  Status status = read_string(out, what, kMaxNameBytes);
  options_.memory = memory;
  if (status.ok() && out.empty()) return error(Code::corrupt, "{} is empty; download the file again", what);
  return status;
}

template <typename T>
Expected<Value> GgufParser::read_number_value(const std::string& what) {
  T value{};
  MR_RETURN_IF_ERROR(cursor_.read_number(value, what));
  return Value(value);
}

Expected<bool> GgufParser::read_bool(const std::string& what) {
  std::uint8_t byte = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(byte, what));
  if (byte > 1) return error(Code::corrupt, "{} is a boolean with the value {}; download the file again", what, byte);
  return byte == 1;
}

Expected<Value> GgufParser::read_value(ValueType type, const std::string& what, int depth) {
  switch (type) {
    case ValueType::u8:
      return read_number_value<std::uint8_t>(what);
    case ValueType::i8:
      return read_number_value<std::int8_t>(what);
    case ValueType::u16:
      return read_number_value<std::uint16_t>(what);
    case ValueType::i16:
      return read_number_value<std::int16_t>(what);
    case ValueType::u32:
      return read_number_value<std::uint32_t>(what);
    case ValueType::i32:
      return read_number_value<std::int32_t>(what);
    case ValueType::f32:
      return read_number_value<float>(what);
    case ValueType::u64:
      return read_number_value<std::uint64_t>(what);
    case ValueType::i64:
      return read_number_value<std::int64_t>(what);
    case ValueType::f64:
      return read_number_value<double>(what);
    case ValueType::boolean: {
      MR_ASSIGN_OR_RETURN(const bool value, read_bool(what));
      return Value(value);
    }
    case ValueType::string: {
      std::string text;
      MR_RETURN_IF_ERROR(read_string(text, what));
      return Value(std::move(text));
    }
    case ValueType::array: {
      MR_ASSIGN_OR_RETURN(auto array, read_array(what, depth + 1));
      return Value(std::move(array));
    }
  }
  return error(Code::internal, "{} has an unchecked type", what);
}

template <typename T>
Expected<std::vector<T>> GgufParser::read_numbers(std::uint64_t count, const std::string& what) {
  MR_RETURN_IF_ERROR(charge(count * sizeof(T)));
  std::vector<T> numbers(static_cast<std::size_t>(count));
  MR_RETURN_IF_ERROR(cursor_.read(std::as_writable_bytes(std::span(numbers)), what));
  return numbers;
}

Expected<std::shared_ptr<const Array>> GgufParser::read_array(const std::string& what, int depth) {
  if (depth > kMaxArrayDepth) {
    return error(Code::unsupported, "{} nests arrays deeper than {}; remove the key", what, kMaxArrayDepth);
  }
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(type, what));
  MR_RETURN_IF_ERROR(cursor_.read_number(count, what));
  if (type > static_cast<std::uint32_t>(ValueType::f64)) {
    return error(Code::corrupt, "{} has the unknown element type {}; download the file again", what, type);
  }
  const auto element = static_cast<ValueType>(type);
  // A string is at least its length, an array its type and its length.
  const std::uint64_t smallest = element == ValueType::string  ? 8
                                 : element == ValueType::array ? 12
                                                               : fixed_bytes(element);
  MR_RETURN_IF_ERROR(check_count(count, smallest, fmt::format("elements of {}", what)));
  if (element == ValueType::string || element == ValueType::array || element == ValueType::boolean)
    MR_RETURN_IF_ERROR(charge(count * (element == ValueType::boolean ? 1 : kElementBytes)));
  auto array = std::make_shared<Array>();
  const auto numbers = [&]<typename T>(T) -> Status {
    MR_ASSIGN_OR_RETURN(array->elements, read_numbers<T>(count, what));
    return {};
  };
  switch (element) {
    case ValueType::u8:
      MR_RETURN_IF_ERROR(numbers(std::uint8_t{}));
      break;
    case ValueType::i8:
      MR_RETURN_IF_ERROR(numbers(std::int8_t{}));
      break;
    case ValueType::u16:
      MR_RETURN_IF_ERROR(numbers(std::uint16_t{}));
      break;
    case ValueType::i16:
      MR_RETURN_IF_ERROR(numbers(std::int16_t{}));
      break;
    case ValueType::u32:
      MR_RETURN_IF_ERROR(numbers(std::uint32_t{}));
      break;
    case ValueType::i32:
      MR_RETURN_IF_ERROR(numbers(std::int32_t{}));
      break;
    case ValueType::f32:
      MR_RETURN_IF_ERROR(numbers(float{}));
      break;
    case ValueType::u64:
      MR_RETURN_IF_ERROR(numbers(std::uint64_t{}));
      break;
    case ValueType::i64:
      MR_RETURN_IF_ERROR(numbers(std::int64_t{}));
      break;
    case ValueType::f64:
      MR_RETURN_IF_ERROR(numbers(double{}));
      break;
    case ValueType::boolean: {
      auto& out = array->elements.emplace<std::vector<bool>>();
      for (std::uint64_t i = 0; i < count; ++i) {
        MR_ASSIGN_OR_RETURN(const bool value, read_bool(what));
        out.push_back(value);
      }
      break;
    }
    case ValueType::string: {
      auto& out = array->elements.emplace<std::vector<std::string>>();
      // What the rest of the file could hold bounds the count, not the memory: a string object is larger than its
      // smallest form on disk.
      out.reserve(static_cast<std::size_t>(std::min(count, cursor_.remaining() / sizeof(std::string))));
      for (std::uint64_t i = 0; i < count; ++i) MR_RETURN_IF_ERROR(read_string(out.emplace_back(), what));
      break;
    }
    case ValueType::array: {
      auto& out = array->elements.emplace<std::vector<std::shared_ptr<const Array>>>();
      for (std::uint64_t i = 0; i < count; ++i) {
        MR_ASSIGN_OR_RETURN(out.emplace_back(), read_array(what, depth + 1));
      }
      break;
    }
  }
  return std::shared_ptr<const Array>(std::move(array));
}

Status GgufParser::skip_array(const std::string& what, int depth) {
  std::uint32_t type = 0;
  std::uint64_t count = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(type, what));
  MR_RETURN_IF_ERROR(cursor_.read_number(count, what));
  if (type > static_cast<std::uint32_t>(ValueType::f64)) {
    return error(Code::corrupt, "{} has the unknown element type {}; download the file again", what, type);
  }
  if (depth > kMaxArrayDepth) {
    return error(Code::unsupported, "{} nests arrays deeper than {}; remove the key", what, kMaxArrayDepth);
  }
  const auto element = static_cast<ValueType>(type);
  const std::uint64_t fixed = fixed_bytes(element);
  MR_RETURN_IF_ERROR(check_count(count, fixed > 0 ? fixed : 8, fmt::format("elements of {}", what)));
  if (fixed > 0) return cursor_.skip(count * fixed, what);
  for (std::uint64_t i = 0; i < count; ++i) {
    if (element == ValueType::array) {
      MR_RETURN_IF_ERROR(skip_array(what, depth + 1));
    } else {
      std::uint64_t bytes = 0;
      MR_RETURN_IF_ERROR(cursor_.read_number(bytes, what));
      MR_RETURN_IF_ERROR(cursor_.skip(bytes, what));
    }
  }
  return {};
}

Status GgufParser::parse_tensor(std::uint64_t index) {
  TensorInfo tensor;
  MR_RETURN_IF_ERROR(read_name(tensor.name, fmt::format("the name of tensor {}", index)));
  const std::string what = fmt::format("tensor '{}'", escape(tensor.name, 80));
  if (!options_.outline) {
    MR_RETURN_IF_ERROR(charge(kNodeBytes + 2 * tensor.name.size()));
    if (!model_.by_name_.emplace(tensor.name, model_.tensors_.size()).second)
      return error(Code::corrupt, "{} occurs twice; download the file again", what);
  }
  std::int64_t elements = 1;
  MR_RETURN_IF_ERROR(read_shape(tensor, what, elements));
  std::uint32_t type = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(type, what));
  MR_RETURN_IF_ERROR(cursor_.read_number(tensor.offset, what));
  const Expected<DType> dtype = dtype_from_id(type);
  if (!dtype.ok()) {
    return error(Code::unsupported,
                 "{} is of type {}{}, which Millrace does not read; use the model in another quantization, for example "
                 "Q4_K_M",
                 what, type, foreign_type_name(type));
  }
  tensor.dtype = dtype.value();
  const DTypeInfo& layout = info(tensor.dtype);
  if (tensor.cols() % layout.block_elements != 0) {
    return error(Code::corrupt,
                 "{}: a row of {} elements is not a multiple of {}'s block of {}; download the file again", what,
                 tensor.cols(), layout.name, layout.block_elements);
  }
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / layout.block_elements, layout.block_bytes, &bytes)) {
    return error(Code::corrupt, "{}: its dimensions are impossibly large; download the file again", what);
  }
  tensor.bytes = static_cast<std::uint64_t>(bytes);
  if (options_.outline) return add_to_outline(tensor);
  model_.tensors_.push_back(std::move(tensor));
  return {};
}

Status GgufParser::read_shape(TensorInfo& tensor, const std::string& what, std::int64_t& elements) {
  std::uint32_t dims = 0;
  MR_RETURN_IF_ERROR(cursor_.read_number(dims, what));
  if (dims < 1 || dims > 4) {
    return error(Code::corrupt, "{} has {} dimensions (1 to 4 are possible); download the file again", what, dims);
  }
  for (std::uint32_t i = 0; i < dims; ++i) {
    std::uint64_t dim = 0;
    MR_RETURN_IF_ERROR(cursor_.read_number(dim, what));
    if (dim == 0) return error(Code::corrupt, "{}: dimension {} is 0; download the file again", what, i);
    if (dim > std::numeric_limits<std::int64_t>::max() ||
        __builtin_mul_overflow(elements, static_cast<std::int64_t>(dim), &elements)) {
      return error(Code::corrupt, "{}: its dimensions are impossibly large; download the file again", what);
    }
    tensor.shape.push_back(static_cast<std::int64_t>(dim));
  }
  return {};
}

Status GgufParser::add_to_outline(const TensorInfo& tensor) {
  Model::Totals& totals = model_.totals_;
  std::uint64_t end = 0;
  std::uint64_t& of_type = totals.bytes[tensor.dtype];
  const auto elements = static_cast<std::uint64_t>(tensor.cols() * tensor.rows());
  if (__builtin_add_overflow(tensor.offset, tensor.bytes, &end) ||
      __builtin_add_overflow(of_type, tensor.bytes, &of_type) ||
      __builtin_add_overflow(totals.elements, elements, &totals.elements))
    return error(Code::corrupt, "tensor '{}': its offset or size is impossibly large; download the file again",
                 escape(tensor.name, 80));
  totals.last_byte = std::max(totals.last_byte, end);
  ++totals.tensors;
  return {};
}

/// What an outline knows of its tensors lies in the file.
Status GgufParser::check_outline() const {
  MR_ASSIGN_OR_RETURN(const std::uint64_t align, alignment());
  std::uint64_t needed = 0;
  if (__builtin_add_overflow(round_up(cursor_.position(), align), model_.totals_.last_byte, &needed))
    return error(Code::corrupt, "an offset of a tensor is impossibly large; download the file again");
  if (model_.totals_.tensors == 0 || needed <= model_.file_bytes_) return {};
  return error(Code::corrupt,
               "the data ends {} bytes early ({} of {} are there): the download is likely incomplete, fetch the file "
               "again",
               needed - model_.file_bytes_, format_bytes(model_.file_bytes_), format_bytes(needed));
}

Expected<std::uint32_t> GgufParser::alignment() const {
  if (!model_.has(kAlignmentKey)) return kDefaultAlignment;
  MR_ASSIGN_OR_RETURN(const std::int64_t value, model_.get_int(kAlignmentKey));
  if (value <= 0 || value % 8 != 0 || value > std::numeric_limits<std::uint32_t>::max()) {
    return error(Code::corrupt, "{} is {}, which is not a multiple of 8; download the file again", kAlignmentKey,
                 value);
  }
  return static_cast<std::uint32_t>(value);
}

Status GgufParser::check_tensors() {
  MR_ASSIGN_OR_RETURN(const std::uint64_t align, alignment());
  const std::uint64_t data_begin = round_up(cursor_.position(), align);
  const TensorInfo* first_cut = nullptr;
  std::uint64_t needed = 0;
  std::size_t cut = 0;
  for (TensorInfo& tensor : model_.tensors_) {
    if (tensor.offset % align != 0) {
      return error(Code::corrupt,
                   "tensor '{}': its offset {} is not a multiple of the alignment {}; download the file "
                   "again",
                   escape(tensor.name, 80), tensor.offset, align);
    }
    std::uint64_t end = 0;
    if (__builtin_add_overflow(tensor.offset, data_begin, &tensor.offset) ||
        __builtin_add_overflow(tensor.offset, tensor.bytes, &end)) {
      return error(Code::corrupt, "tensor '{}': its offset {} is impossibly large; download the file again",
                   escape(tensor.name, 80), tensor.offset);
    }
    needed = std::max(needed, end);
    if (end > model_.file_bytes_) {
      ++cut;
      if (first_cut == nullptr || tensor.offset < first_cut->offset) first_cut = &tensor;
    }
  }
  if (first_cut != nullptr) {
    return error(Code::corrupt,
                 "the data ends {} bytes early ({} of {} are there; {} of {} tensors are cut off, from '{}' on): the "
                 "download is likely incomplete, fetch the file again",
                 needed - model_.file_bytes_, format_bytes(model_.file_bytes_), format_bytes(needed), cut,
                 model_.tensors_.size(), escape(first_cut->name, 80));
  }
  return check_overlaps();
}

Status GgufParser::check_overlaps() const {
  const std::vector<TensorInfo>& tensors = model_.tensors_;
  std::vector<std::uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return tensors[a].offset < tensors[b].offset; });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const TensorInfo& before = tensors[order[i - 1]];
    const TensorInfo& after = tensors[order[i]];
    if (before.offset + before.bytes > after.offset) {
      return error(Code::corrupt, "tensors '{}' and '{}' overlap at byte {}; download the file again",
                   escape(before.name, 80), escape(after.name, 80), after.offset);
    }
  }
  return {};
}

Expected<Model> GgufParser::open_one(const std::string& path, const OpenOptions& options) {
  MR_ASSIGN_OR_RETURN(const File file, File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  Cursor cursor(file, size);
  return GgufParser(cursor, path, options).run();
}

Expected<Model> GgufParser::join(std::vector<Model> splits) {
  Model whole = std::move(splits.front());
  for (std::size_t i = 1; i < splits.size(); ++i) {
    Model& split = splits[i];
    for (TensorInfo& tensor : split.tensors_) {
      if (!whole.by_name_.emplace(tensor.name, whole.tensors_.size()).second) {
        return error(Code::corrupt, "{}: tensor '{}' occurs in another split too; download the splits again",
                     escape(split.paths_[0]), escape(tensor.name, 80));
      }
      tensor.file = static_cast<int>(i);
      whole.tensors_.push_back(std::move(tensor));
    }
    whole.paths_.push_back(std::move(split.paths_[0]));
    whole.file_bytes_ += split.file_bytes_;
    whole.totals_.tensors += split.totals_.tensors;
    whole.totals_.elements += split.totals_.elements;
    for (const auto& [type, bytes] : split.totals_.bytes) whole.totals_.bytes[type] += bytes;
  }
  if (whole.has(kSplitTensorsKey)) {
    MR_ASSIGN_OR_RETURN(const std::int64_t promised, whole.get_int(kSplitTensorsKey));
    const std::int64_t held = static_cast<std::int64_t>(whole.tensors_.size()) + whole.totals_.tensors;
    if (promised != held) {
      return error(Code::corrupt, "{}: {} tensors were promised, but the {} splits hold {}; download the splits again",
                   escape(whole.paths_[0]), promised, splits.size(), held);
    }
  }
  return whole;
}

Expected<Model> GgufParser::lay_over(Model model, const Model& over, const MayAdd& may_add) {
  const auto file = static_cast<int>(model.paths_.size());
  std::set<std::string> scales;  // of weights that `over` brings
  for (const TensorInfo& tensor : over.tensors_)
    if (may_have_scale(tensor.name)) scales.insert(scale_name(tensor.name));
  for (const TensorInfo& tensor : over.tensors_) {
    const bool added = scales.contains(tensor.name) || (may_add && may_add(tensor.name));
    if (added && !model.by_name_.contains(tensor.name)) {
      model.by_name_.emplace(tensor.name, model.tensors_.size());
      model.tensors_.push_back(tensor);
      model.tensors_.back().file = file;
      continue;
    }
    const auto found = model.by_name_.find(tensor.name);
    if (found == model.by_name_.end() || model.tensors_[found->second].shape != tensor.shape)
      return error(Code::invalid_argument, "{}: tensor '{}' is none of {}, or has another shape there",
                   escape(over.paths_[0]), escape(tensor.name, 80), escape(model.paths_[0]));
    TensorInfo& own = model.tensors_[found->second];
    own = tensor;
    own.file = file;
  }
  model.paths_.push_back(over.paths_[0]);
  model.file_bytes_ += over.file_bytes_;
  return model;
}

Expected<Model> lay_over(Model model, const Model& over, const MayAdd& may_add) {
  return GgufParser::lay_over(std::move(model), over, may_add);
}

}  // namespace millrace::modelfile
