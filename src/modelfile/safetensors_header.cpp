#include "modelfile/safetensors_header.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/json.h"
#include "modelfile/escape.h"

namespace millrace::modelfile {
namespace {

constexpr std::size_t kMostDims = 8, kMostNameBytes = 1024;

struct ElementInfo {
  std::string_view name;
  std::int64_t bytes;
};
constexpr std::array kElements = {  // in the enum's order
    ElementInfo{"BOOL", 1},    ElementInfo{"U8", 1},      ElementInfo{"I8", 1},  ElementInfo{"F8_E4M3", 1},
    ElementInfo{"F8_E5M2", 1}, ElementInfo{"F8_E8M0", 1}, ElementInfo{"U16", 2}, ElementInfo{"I16", 2},
    ElementInfo{"F16", 2},     ElementInfo{"BF16", 2},    ElementInfo{"U32", 4}, ElementInfo{"I32", 4},
    ElementInfo{"F32", 4},     ElementInfo{"U64", 8},     ElementInfo{"I64", 8}, ElementInfo{"F64", 8}};

std::optional<Element> element_of(std::string_view name) {
  for (std::size_t i = 0; i < kElements.size(); ++i)
    if (kElements[i].name == name) return static_cast<Element>(i);
  return std::nullopt;
}

/// Hears {"NAME": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}, ..}. What else a
/// tensor says is passed over.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(std::uint64_t data_begin, std::uint64_t file_bytes) : data_begin_(data_begin), file_bytes_(file_bytes) {}

  Status status() const { return status_; }
  std::vector<CheckpointTensor> take() { return std::move(tensors_); }

  bool null() override { return value("null"); }
  bool boolean(bool) override { return value("a boolean"); }
  bool number_integer(number_integer_t) override { return value("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return value("a fraction"); }
  bool binary(binary_t&) override { return value("bytes"); }
  bool number_unsigned(number_unsigned_t number) override {
    if (depth_ != 3 || skipped() || !in_array_ || (field_ != Field::shape && field_ != Field::offsets))
      return value("a number");
    std::vector<std::uint64_t>& list = field_ == Field::shape ? shape_ : offsets_;
    if (list.size() == kMostDims) return fail("has more than {} dimensions or offsets", kMostDims);
    list.push_back(number);
    return true;
  }
  bool string(string_t& text) override {
    if (depth_ != 2 || skipped() || field_ != Field::dtype) return value("a text");
    element_ = element_of(text);
    if (!element_)
      return stop(Code::unsupported, "tensor '{}' holds elements of type '{}', which this version does not read",
                  escape(name_, 80), escape(text, 40));
    return true;
  }

  bool start_object(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return true;
    if (depth_ == 2) {
      element_.reset();
      shape_.clear();
      offsets_.clear();
      has_shape_ = false;
      field_ = Field::other;
      return true;
    }
    return skipped() || value("an object");
  }
  bool end_object() override {
    if (depth_ == 2 && !metadata_ && !add()) return false;
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    ++depth_;
    if (depth_ == 1) return stop(Code::corrupt, "the header is not a JSON object");
    if (skipped()) return true;
    if (depth_ != 3 || (field_ != Field::shape && field_ != Field::offsets)) return value("a list");
    in_array_ = true;
    has_shape_ |= field_ == Field::shape;
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1) {
      metadata_ = text == "__metadata__";
      if (text.empty() || text.size() > kMostNameBytes)
        return stop(Code::corrupt, "a tensor's name has {} bytes, which cannot be", text.size());
      name_ = text;
      if (!names_.insert(name_).second) return fail("is there twice");
    } else if (depth_ == 2 && !metadata_) {
      field_ = text == "dtype"          ? Field::dtype
               : text == "shape"        ? Field::shape
               : text == "data_offsets" ? Field::offsets
                                        : Field::other;
    }
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return stop(Code::corrupt, "the header is not JSON (at byte {} of it)", position);
  }

 private:
  enum class Field { dtype, shape, offsets, other };

  // Of the file's own metadata, or of a field that this reader does not know: nothing there is looked at.
  bool skipped() const { return metadata_ || (depth_ >= 2 && field_ == Field::other); }

  template <typename... Args>
  bool stop(Code code, fmt::format_string<Args...> format, Args&&... args) {
    if (status_.ok()) status_ = error(code, format, std::forward<Args>(args)...);
    return false;
  }
  template <typename... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    return stop(Code::corrupt, "tensor '{}' {}", escape(name_, 80), fmt::format(format, std::forward<Args>(args)...));
  }

  /// A value where none of the kind belongs, unless nobody looks.
  bool value(std::string_view kind) {
    if (depth_ == 0) return stop(Code::corrupt, "the header is not a JSON object");
    if (depth_ == 1) return fail("is {} where its place was to be told", kind);
    return skipped() || fail("has {} where something else was to be told", kind);
  }

  bool add() {
    if (!element_ || !has_shape_ || offsets_.size() != 2) return fail("lacks its type, its shape or its place");
    CheckpointTensor tensor;
    tensor.name = name_;
    tensor.element = *element_;
    const auto bytes_each = static_cast<std::uint64_t>(element_bytes(*element_));
    std::uint64_t bytes = bytes_each;
    for (const std::uint64_t dim : shape_) {
      if (dim > static_cast<std::uint64_t>(INT64_MAX) / 16 || __builtin_mul_overflow(bytes, dim, &bytes))
        return fail("has a shape whose product no number holds");
      tensor.shape.push_back(static_cast<std::int64_t>(dim));
    }
    const auto [begin, end] = std::pair(offsets_[0], offsets_[1]);
    if (begin > end || end > file_bytes_ - data_begin_)
      return fail("is at bytes {} to {} of {}: the file is truncated or damaged; download it again", begin, end,
                  file_bytes_ - data_begin_);
    if (end - begin != bytes) return fail("has a place of {} bytes, but its shape takes {}", end - begin, bytes);
    tensor.offset = data_begin_ + begin;
    tensor.bytes = bytes;
    tensors_.push_back(std::move(tensor));
    return true;
  }

  const std::uint64_t data_begin_, file_bytes_;
  Status status_;
  std::vector<CheckpointTensor> tensors_;
  std::set<std::string> names_;
  int depth_ = 0;
  bool metadata_ = false, in_array_ = false, has_shape_ = false;
  Field field_ = Field::other;
  std::string name_;
  std::optional<Element> element_;
  std::vector<std::uint64_t> shape_, offsets_;
};

}  // namespace

std::string_view element_name(Element element) { return kElements[static_cast<std::size_t>(element)].name; }
std::int64_t element_bytes(Element element) { return kElements[static_cast<std::size_t>(element)].bytes; }

Expected<std::vector<CheckpointTensor>> parse_header(std::string_view json, std::uint64_t data_begin,
                                                     std::uint64_t file_bytes) {
  HeaderReader reader(data_begin, file_bytes);
  // What follows the object may be spaces, to which the parser has no objection.
  const bool whole = nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  MR_RETURN_IF_ERROR(reader.status());
  if (!whole) return error(Code::corrupt, "the header is no JSON");
  std::vector<CheckpointTensor> tensors = reader.take();
  std::sort(tensors.begin(), tensors.end(), [](const CheckpointTensor& a, const CheckpointTensor& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  for (std::size_t i = 1; i < tensors.size(); ++i)
    if (tensors[i - 1].offset + tensors[i - 1].bytes > tensors[i].offset)
      return error(Code::corrupt, "tensors '{}' and '{}' overlap; download the file again",
                   escape(tensors[i - 1].name, 80), escape(tensors[i].name, 80));
  return tensors;
}

}  // namespace millrace::modelfile
