#include "modelfile/gguf_writer.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/bytes.h"
#include "base/os/file.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_parser.h"

namespace millrace::modelfile {
namespace {

constexpr std::size_t kWriteBufferBytes = 1u << 20;
constexpr std::uint64_t kDirectAlignment = 4096;
constexpr std::uint64_t kMaxSplits = 99999;  // five digits

/// Bytes of a header, little-endian as the host is.
class Header {
 public:
  template <typename T>
  void number(T value) {
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
  }
  void type(ValueType type) { number(static_cast<std::uint32_t>(type)); }
  void string(std::string_view text) {
    number<std::uint64_t>(text.size());
    const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
    bytes_.insert(bytes_.end(), bytes, bytes + text.size());
  }
  void value(const Value& value);
  void pair(std::string_view key, const Value& held) {
    string(key);
    value(held);
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <typename T>
  void element(const T& held);
  void array(const Array& array);

  std::vector<std::byte> bytes_;
};

template <typename T>
constexpr ValueType type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>)
    return ValueType::u8;
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return ValueType::i8;
  else if constexpr (std::is_same_v<T, std::uint16_t>)
    return ValueType::u16;
  else if constexpr (std::is_same_v<T, std::int16_t>)
    return ValueType::i16;
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return ValueType::u32;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return ValueType::i32;
  else if constexpr (std::is_same_v<T, float>)
    return ValueType::f32;
  else if constexpr (std::is_same_v<T, bool>)
    return ValueType::boolean;
  else if constexpr (std::is_same_v<T, std::string>)
    return ValueType::string;
  else if constexpr (std::is_same_v<T, std::uint64_t>)
    return ValueType::u64;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return ValueType::i64;
  else if constexpr (std::is_same_v<T, double>)
    return ValueType::f64;
  else
    return ValueType::array;
}

template <typename T>
void Header::element(const T& held) {
  if constexpr (std::is_same_v<T, std::string>)
    string(held);
  else if constexpr (std::is_same_v<T, bool>)
    number<std::uint8_t>(held ? 1 : 0);
  else if constexpr (std::is_arithmetic_v<T>)
    number(held);
  else
    array(*held);
}

void Header::array(const Array& array) {
  std::visit(
      [&](const auto& elements) {
        using T = typename std::decay_t<decltype(elements)>::value_type;
        type(type_of<T>());
        number<std::uint64_t>(elements.size());
        for (const T& held : elements) element<T>(held);
      },
      array.elements);
}

void Header::value(const Value& value) {
  std::visit(
      [&](const auto& held) {
        using T = std::decay_t<decltype(held)>;
        type(type_of<T>());
        element<T>(held);
      },
      value);
}

bool has_null(const Array& array) {
  const auto* nested = std::get_if<std::vector<std::shared_ptr<const Array>>>(&array.elements);
  if (nested == nullptr) return false;
  for (const auto& inner : *nested) {
    if (inner == nullptr || has_null(*inner)) return true;
  }
  return false;
}

bool has_null(const Value& value) {
  const auto* array = std::get_if<std::shared_ptr<const Array>>(&value);
  return array != nullptr && (*array == nullptr || has_null(**array));
}

}  // namespace

std::uint64_t entry_bytes(const TensorInfo& tensor) {
  return 8 + tensor.name.size() + 4 + 8 * tensor.shape.size() + 4 + 8;
}

struct Writer::Impl {
  std::string path;
  WriteOptions options;
  std::vector<std::pair<std::string, Value>> metadata;
  std::set<std::string, std::less<>> keys, names;
  std::vector<TensorInfo> tensors;

  bool begun = false, finished = false;
  std::atomic<bool> ranges_used = false;
  std::vector<std::string> paths;
  std::vector<File> files, direct_files;  // direct_files: empty, or one a file
  std::vector<std::uint64_t> data_begin, file_bytes;

  std::size_t current = 0;         // the tensor the stream stands in
  std::uint64_t current_done = 0;  // its bytes written or buffered
  std::vector<std::byte> buffer;   // bytes that belong at buffer_offset of the current tensor's file
  std::uint64_t buffer_offset = 0;

  ~Impl() {
    if (!finished) remove_partials();
  }
  std::string partial(std::size_t file) const { return paths[file] + ".partial"; }
  void remove_partials() {
    for (std::size_t i = 0; i < files.size(); ++i) (void)os::remove_file(partial(i));
  }

  Expected<std::vector<std::uint64_t>> assign_files();
  Header header(std::size_t file, std::size_t file_count, std::uint64_t tensor_count) const;
  Status open_files();
  Status begin();
  Status flush();
  Status stream(std::span<const std::byte> bytes);
  Status finish();
};

/// Gives each tensor its file; returns the number of tensors in each.
Expected<std::vector<std::uint64_t>> Writer::Impl::assign_files() {
  std::vector<std::uint64_t> counts{0};
  const std::uint64_t limit = options.max_file_bytes;
  const std::uint64_t split_header = header(1, 2, 0).bytes().size();
  std::uint64_t head = header(0, 2, 0).bytes().size(), data = 0;
  for (TensorInfo& tensor : tensors) {
    const std::uint64_t padded = round_up(tensor.bytes, options.alignment);
    const std::uint64_t with_it = round_up(head + entry_bytes(tensor), options.alignment) + data + tensor.bytes;
    if (limit > 0 && counts.back() > 0 && with_it > limit) {
      counts.push_back(0);
      head = split_header;
      data = 0;
    }
    tensor.file = static_cast<int>(counts.size() - 1);
    ++counts.back();
    head += entry_bytes(tensor);
    data += padded;
  }
  if (counts.size() > kMaxSplits) {
    return error(Code::invalid_argument, "{}: {} splits are too many; allow larger files", escape(path), counts.size());
  }
  return counts;
}

/// Everything of a file before its tensor table: the magic, the counts and the metadata.
Header Writer::Impl::header(std::size_t file, std::size_t file_count, std::uint64_t tensor_count) const {
  const bool split = file_count > 1, aligned = options.alignment != kDefaultAlignment;
  Header head;
  head.number(kMagic);
  head.number<std::uint32_t>(3);
  head.number<std::uint64_t>(tensor_count);
  head.number<std::uint64_t>((file == 0 ? metadata.size() : 0) + (split ? 3 : 0) + (aligned ? 1 : 0));
  if (file == 0) {
    for (const auto& [key, value] : metadata) head.pair(key, value);
  }
  if (aligned) head.pair(kAlignmentKey, Value(options.alignment));
  if (split) {
    head.pair(kSplitNoKey, Value(static_cast<std::uint16_t>(file)));
    head.pair(kSplitCountKey, Value(static_cast<std::uint16_t>(file_count)));
    head.pair(kSplitTensorsKey, Value(static_cast<std::int32_t>(tensors.size())));
  }
  return head;
}

Status Writer::Impl::open_files() {
  for (std::size_t i = 0; i < paths.size(); ++i) {
    MR_RETURN_IF_ERROR(check_replaceable(paths[i]));
    MR_ASSIGN_OR_RETURN(File file, File::create(partial(i)));
    files.push_back(std::move(file));
    if (!options.sparse) MR_RETURN_IF_ERROR(files.back().reserve(file_bytes[i]));
    if (!options.direct) continue;
    if (auto direct = File::open_direct_write(partial(i)); direct.ok()) {
      direct_files.push_back(std::move(direct).value());
    }
  }
  if (direct_files.size() != files.size()) direct_files.clear();
  return {};
}

Status Writer::Impl::begin() {
  MR_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> counts, assign_files());
  const std::string_view stem = path.ends_with(".gguf") ? std::string_view(path).substr(0, path.size() - 5) : path;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    paths.push_back(counts.size() == 1 ? path : fmt::format("{}-{:05}-of-{:05}.gguf", stem, i + 1, counts.size()));
  }
  std::vector<std::vector<std::byte>> headers;
  std::size_t next = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    Header head = header(i, counts.size(), counts[i]);
    const std::size_t first = next;
    std::uint64_t relative = 0;
    for (; next < first + counts[i]; ++next) {
      TensorInfo& tensor = tensors[next];
      head.string(tensor.name);
      head.number(static_cast<std::uint32_t>(tensor.shape.size()));
      for (const std::int64_t dim : tensor.shape) head.number(dim);
      head.number(static_cast<std::uint32_t>(tensor.dtype));
      head.number(relative);
      tensor.offset = relative;
      if (__builtin_add_overflow(relative, round_up(tensor.bytes, options.alignment), &relative)) {
        return error(Code::invalid_argument, "{}: the tensors are impossibly large", escape(path));
      }
    }
    data_begin.push_back(round_up(head.bytes().size(), options.alignment));
    file_bytes.push_back(data_begin[i] + relative);
    for (std::size_t t = first; t < next; ++t) tensors[t].offset += data_begin[i];
    headers.push_back(head.take());
  }
  MR_RETURN_IF_ERROR(open_files());
  for (std::size_t i = 0; i < files.size(); ++i) MR_RETURN_IF_ERROR(files[i].write_at(0, headers[i]));
  buffer.reserve(kWriteBufferBytes);
  return {};
}

Status Writer::Impl::flush() {
  if (buffer.empty()) return {};
  MR_RETURN_IF_ERROR(files[static_cast<std::size_t>(tensors[current].file)].write_at(buffer_offset, buffer));
  buffer_offset += buffer.size();
  buffer.clear();
  return {};
}

Status Writer::Impl::stream(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    if (current == tensors.size()) {
      return error(Code::invalid_argument, "{}: {} bytes more than the declared tensors hold", escape(path),
                   bytes.size());
    }
    const TensorInfo& tensor = tensors[current];
    const auto take = static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), tensor.bytes - current_done));
    if (buffer.size() + take > kWriteBufferBytes) MR_RETURN_IF_ERROR(flush());
    const std::uint64_t place = tensor.offset + current_done;
    if (take >= kWriteBufferBytes) {
      MR_RETURN_IF_ERROR(files[static_cast<std::size_t>(tensor.file)].write_at(place, bytes.first(take)));
    } else {
      if (buffer.empty()) buffer_offset = place;
      buffer.insert(buffer.end(), bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(take));
    }
    bytes = bytes.subspan(take);
    current_done += take;
    if (current_done == tensor.bytes) {
      // The buffer holds one tensor's bytes only, so padding needs no thought: the reserved file is zero there.
      MR_RETURN_IF_ERROR(flush());
      ++current;
      current_done = 0;
    }
  }
  return {};
}

Status Writer::Impl::finish() {
  if (!ranges_used && current < tensors.size()) {
    return error(Code::invalid_argument, "{}: tensor '{}' lacks {} of its {} bytes", escape(path),
                 escape(tensors[current].name, 80), tensors[current].bytes - current_done, tensors[current].bytes);
  }
  for (const File& file : files) MR_RETURN_IF_ERROR(file.sync());
  for (std::size_t i = 0; i < files.size(); ++i) {
    std::error_code failure;
    std::filesystem::rename(partial(i), paths[i], failure);
    if (failure) {
      return error(Code::io_error, "{}: cannot give the finished file its name: {}; check the folder's permissions",
                   escape(paths[i]), failure.message());
    }
  }
  finished = true;
  return {};
}

Writer::Writer(std::string path, WriteOptions options) : impl_(std::make_unique<Impl>()) {
  impl_->path = std::move(path);
  impl_->options = options;
}
Writer::~Writer() = default;
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;

Status Writer::add(std::string key, Value value) {
  if (impl_->begun) return error(Code::invalid_argument, "metadata key '{}' comes after begin()", escape(key, 80));
  if (key == kAlignmentKey || key.starts_with("split.")) return {};
  if (key.empty() || key.size() > 65535) {
    return error(Code::invalid_argument, "a metadata key has {} bytes; 1 to 65535 are possible", key.size());
  }
  if (has_null(value)) return error(Code::invalid_argument, "metadata key '{}' holds no array", escape(key, 80));
  if (!impl_->keys.insert(key).second) {
    return error(Code::invalid_argument, "metadata key '{}' is given twice", escape(key, 80));
  }
  impl_->metadata.emplace_back(std::move(key), std::move(value));
  return {};
}

Status Writer::declare(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  const auto bad = [&](std::string_view why) {
    return error(Code::invalid_argument, "tensor '{}' {}", escape(name, 80), why);
  };
  if (impl_->begun) return bad("is declared after begin()");
  if (name.empty() || name.size() > 65535) return bad("has a name of an impossible length");
  if (shape.empty() || shape.size() > 4) return bad("needs 1 to 4 dimensions");
  std::int64_t elements = 1, bytes = 0;
  for (const std::int64_t dim : shape) {
    if (dim <= 0) return bad("has a dimension below 1");
    if (__builtin_mul_overflow(elements, dim, &elements)) return bad("is impossibly large");
  }
  const DTypeInfo& layout = info(dtype);
  if (shape[0] % layout.block_elements != 0) {
    return bad(fmt::format("has rows of {} elements, not a multiple of {}'s {}; choose another type for it", shape[0],
                           layout.name, layout.block_elements));
  }
  if (__builtin_mul_overflow(elements / layout.block_elements, layout.block_bytes, &bytes)) {
    return bad("is impossibly large");
  }
  if (!impl_->names.insert(name).second) return bad("is declared twice");
  impl_->tensors.push_back({std::move(name), dtype, std::move(shape), 0, 0, static_cast<std::uint64_t>(bytes)});
  return {};
}

Status Writer::begin() {
  if (impl_->begun) return error(Code::invalid_argument, "{}: begin() is called twice", escape(impl_->path));
  if (impl_->options.alignment == 0 || impl_->options.alignment % 8 != 0) {
    return error(Code::invalid_argument, "the alignment {} is not a multiple of 8", impl_->options.alignment);
  }
  impl_->begun = true;
  return impl_->begin();
}

Status Writer::write_tensor_data(std::span<const std::byte> bytes) {
  if (impl_->files.empty()) return error(Code::invalid_argument, "{}: begin() comes first", escape(impl_->path));
  return impl_->stream(bytes);
}

Status Writer::write_range(int file, std::uint64_t offset, std::span<const std::byte> bytes) {
  Impl& impl = *impl_;
  const auto index = static_cast<std::size_t>(file);
  if (file < 0 || index >= impl.files.size() || offset < impl.data_begin[index] || offset > impl.file_bytes[index] ||
      bytes.size() > impl.file_bytes[index] - offset) {
    return error(Code::invalid_argument, "{}: {} bytes at {} of file {} lie outside its data", escape(impl.path),
                 bytes.size(), offset, file);
  }
  impl.ranges_used.store(true, std::memory_order_relaxed);
  const auto misalignment = offset | bytes.size() | reinterpret_cast<std::uintptr_t>(bytes.data());
  if (!impl.direct_files.empty() && misalignment % kDirectAlignment == 0) {
    return impl.direct_files[index].write_at(offset, bytes);
  }
  return impl.files[index].write_at(offset, bytes);
}

Status Writer::finish() {
  if (impl_->files.empty()) return error(Code::invalid_argument, "{}: begin() comes first", escape(impl_->path));
  return impl_->finish();
}

const std::vector<TensorInfo>& Writer::layout() const { return impl_->tensors; }
const std::vector<std::string>& Writer::paths() const { return impl_->paths; }
const std::vector<std::uint64_t>& Writer::data_begin() const { return impl_->data_begin; }
const std::vector<std::uint64_t>& Writer::file_bytes() const { return impl_->file_bytes; }

}  // namespace millrace::modelfile
