#include "modelfile/imatrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "modelfile/gguf_writer.h"

namespace millrace::modelfile {
namespace {

constexpr std::string_view kType = "general.type", kDatasets = "imatrix.datasets", kChunkCount = "imatrix.chunk_count",
                           kChunkSize = "imatrix.chunk_size";
constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

bool are_finite_and_not_negative(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v) && v >= 0; });
}

Status check(std::string_view name, const ImportanceEntry& entry) {
  if (entry.sums.empty() || entry.counts.empty() || entry.sums.size() % entry.counts.size() != 0) {
    return error(Code::corrupt, "'{}' has {} sums for {} counts; create the matrix again", escape(name, 80),
                 entry.sums.size(), entry.counts.size());
  }
  if (!are_finite_and_not_negative(entry.sums) || !are_finite_and_not_negative(entry.counts)) {
    return error(Code::corrupt, "'{}' holds a number that is negative or not finite; create the matrix again",
                 escape(name, 80));
  }
  return {};
}

// --- The GGUF form ---------------------------------------------------------------------------------------------------

// Bytes [offset, offset + out.size()) of the file.
using ReadAt = std::function<Status(std::uint64_t offset, std::span<std::byte> out)>;

Expected<std::vector<float>> read_floats(const TensorInfo& tensor, const ReadAt& read_at) {
  if (tensor.dtype != DType::f32) {
    return error(Code::unsupported, "'{}' is {} where F32 is expected; create the matrix again",
                 escape(tensor.name, 80), info(tensor.dtype).name);
  }
  std::vector<float> values(static_cast<std::size_t>(tensor.bytes / sizeof(float)));
  MR_RETURN_IF_ERROR(read_at(tensor.offset, std::as_writable_bytes(std::span(values))));
  return values;
}

// A count or size that is not there, or is no number of 32 bits, is not known.
std::uint32_t small_number(const Model& file, std::string_view key) {
  const auto value = file.get_int(key);
  return value.ok() && *value >= 0 && *value <= UINT32_MAX ? static_cast<std::uint32_t>(*value) : 0;
}

Expected<ImportanceMatrix> from_gguf(const Model& file, const ReadAt& read_at) {
  const auto type = file.get_string(kType);
  if (!type.ok() || *type != "imatrix") {
    return error(Code::unsupported,
                 "is a GGUF file, but not an importance matrix; give the output of `millrace imatrix`");
  }
  ImportanceMatrix matrix;
  if (file.has(kDatasets)) {
    MR_ASSIGN_OR_RETURN(matrix.datasets, file.get_strings(kDatasets));
  }
  matrix.chunk_count = small_number(file, kChunkCount);
  matrix.chunk_size = small_number(file, kChunkSize);
  for (const TensorInfo& tensor : file.tensors()) {
    const std::string_view full = tensor.name;
    if (!full.ends_with(kSums)) {
      if (full.ends_with(kCounts) &&
          file.find(std::string(full.substr(0, full.size() - kCounts.size())) + std::string(kSums)) != nullptr) {
        continue;
      }
      return error(Code::corrupt, "'{}' is neither sums nor the counts of some; create the matrix again",
                   escape(full, 80));
    }
    const std::string name(full.substr(0, full.size() - kSums.size()));
    const TensorInfo* const counts = file.find(name + std::string(kCounts));
    if (counts == nullptr) {
      return error(Code::corrupt, "'{}' has no counts; create the matrix again", escape(name, 80));
    }
    ImportanceEntry entry;
    MR_ASSIGN_OR_RETURN(entry.sums, read_floats(tensor, read_at));
    MR_ASSIGN_OR_RETURN(entry.counts, read_floats(*counts, read_at));
    MR_RETURN_IF_ERROR(check(name, entry));
    matrix.entries.emplace(name, std::move(entry));
  }
  return matrix;
}

// --- The older form --------------------------------------------------------------------------------------------------

// A length or count of the file. Errors: corrupt unless `count * bytes_each` bytes follow.
Expected<std::size_t> read_count(Cursor& cursor, std::size_t bytes_each, std::string_view what) {
  std::int32_t count = 0;
  MR_RETURN_IF_ERROR(cursor.read_number(count, what));
  if (count < 0 || static_cast<std::uint64_t>(count) > cursor.remaining() / bytes_each) {
    return error(Code::corrupt, "{} is {}, more than the file holds; it is not an importance matrix, or cut off", what,
                 count);
  }
  return static_cast<std::size_t>(count);
}

Expected<std::string> read_text(Cursor& cursor, std::string_view what) {
  MR_ASSIGN_OR_RETURN(const std::size_t length, read_count(cursor, 1, what));
  std::string text(length, '\0');
  MR_RETURN_IF_ERROR(cursor.read(std::as_writable_bytes(std::span(text)), what));
  return text;
}

Expected<ImportanceMatrix> from_dat(Cursor& cursor) {
  constexpr std::size_t kSmallestEntry = 4 + 1 + 4 + 4 + 4;  // length, name, calls, count, one value
  ImportanceMatrix matrix;
  MR_ASSIGN_OR_RETURN(const std::size_t entries, read_count(cursor, kSmallestEntry, "the number of entries"));
  if (entries == 0) return error(Code::corrupt, "holds no entries; it is not an importance matrix");
  for (std::size_t i = 0; i < entries; ++i) {
    MR_ASSIGN_OR_RETURN(std::string name, read_text(cursor, "the length of a name"));
    std::int32_t calls = 0;
    MR_RETURN_IF_ERROR(cursor.read_number(calls, "a number of calls"));
    MR_ASSIGN_OR_RETURN(const std::size_t values, read_count(cursor, sizeof(float), "a number of values"));
    ImportanceEntry entry{std::vector<float>(values), {static_cast<float>(calls)}};
    MR_RETURN_IF_ERROR(cursor.read(std::as_writable_bytes(std::span(entry.sums)), "values"));
    MR_RETURN_IF_ERROR(check(name, entry));
    if (name.empty() || !matrix.entries.emplace(name, std::move(entry)).second) {
      return error(Code::corrupt, "the name '{}' is empty, or there twice; create the matrix again", escape(name, 80));
    }
  }
  if (cursor.remaining() == 0) return matrix;
  std::int32_t chunks = 0;
  MR_RETURN_IF_ERROR(cursor.read_number(chunks, "the number of chunks"));
  matrix.chunk_count = static_cast<std::uint32_t>(std::max(chunks, 0));
  if (cursor.remaining() == 0) return matrix;
  MR_ASSIGN_OR_RETURN(std::string dataset, read_text(cursor, "the length of the data set's name"));
  if (!dataset.empty()) matrix.datasets.push_back(std::move(dataset));
  return matrix;
}

bool is_gguf(std::span<const std::byte> head) { return head.size() >= 4 && std::memcmp(head.data(), "GGUF", 4) == 0; }

}  // namespace

Expected<ImportanceMatrix> read_imatrix(const std::string& path) {
  MR_ASSIGN_OR_RETURN(const File file, File::open_read(path));
  MR_ASSIGN_OR_RETURN(const std::uint64_t size, file.size());
  std::array<std::byte, 4> head{};
  if (size >= head.size()) MR_RETURN_IF_ERROR(file.read_at(0, head));
  const auto read = [&]() -> Expected<ImportanceMatrix> {
    if (!is_gguf(head)) {
      Cursor cursor(file, size);
      return from_dat(cursor);
    }
    MR_ASSIGN_OR_RETURN(const Model model, Model::open(path));
    if (model.paths().size() > 1) return error(Code::unsupported, "is split; give an importance matrix of one file");
    return from_gguf(model, [&](std::uint64_t at, std::span<std::byte> out) { return file.read_at(at, out); });
  };
  Expected<ImportanceMatrix> matrix = read();
  // The reader of GGUF has named the file already.
  if (matrix.ok() || matrix.status().message().starts_with(escape(path))) return matrix;
  return matrix.status().with_context(escape(path));
}

Expected<ImportanceMatrix> parse_imatrix(std::span<const std::byte> bytes, const std::string& name) {
  if (!is_gguf(bytes)) {
    Cursor cursor(bytes);
    Expected<ImportanceMatrix> matrix = from_dat(cursor);
    return matrix.ok() ? std::move(matrix) : matrix.status().with_context(escape(name));
  }
  MR_ASSIGN_OR_RETURN(const Model model, Model::parse(bytes, name));
  Expected<ImportanceMatrix> matrix = from_gguf(model, [&](std::uint64_t at, std::span<std::byte> out) -> Status {
    std::memcpy(out.data(), bytes.data() + at, out.size());
    return {};
  });
  return matrix.ok() ? std::move(matrix) : matrix.status().with_context(escape(name));
}

Status write_imatrix(const ImportanceMatrix& matrix, const std::string& path) {
  if (matrix.entries.empty()) return error(Code::invalid_argument, "{}: no matrix has any importance", escape(path));
  Writer writer(path);
  MR_RETURN_IF_ERROR(writer.add(std::string(kType), Value(std::string("imatrix"))));
  MR_RETURN_IF_ERROR(writer.add(std::string(kDatasets), array_value(matrix.datasets)));
  MR_RETURN_IF_ERROR(writer.add(std::string(kChunkCount), Value(matrix.chunk_count)));
  MR_RETURN_IF_ERROR(writer.add(std::string(kChunkSize), Value(matrix.chunk_size)));
  for (const auto& [name, entry] : matrix.entries) {
    if (const Status status = check(name, entry); !status.ok()) return {Code::invalid_argument, status.message()};
    const auto matrices = static_cast<std::int64_t>(entry.counts.size());
    const auto cols = static_cast<std::int64_t>(entry.sums.size()) / matrices;
    MR_RETURN_IF_ERROR(writer.declare(name + std::string(kSums), DType::f32, {cols, matrices}));
    MR_RETURN_IF_ERROR(writer.declare(name + std::string(kCounts), DType::f32, {1, matrices}));
  }
  MR_RETURN_IF_ERROR(writer.begin());
  for (const auto& [name, entry] : matrix.entries) {
    MR_RETURN_IF_ERROR(writer.write_tensor_data(std::as_bytes(std::span(entry.sums))));
    MR_RETURN_IF_ERROR(writer.write_tensor_data(std::as_bytes(std::span(entry.counts))));
  }
  return writer.finish();
}

Expected<std::vector<float>> column_weights(const ImportanceEntry& entry, const TensorInfo& tensor) {
  std::int64_t matrices = 1;
  for (std::size_t d = 2; d < tensor.shape.size(); ++d) matrices *= tensor.shape[d];
  const auto counts = static_cast<std::int64_t>(entry.counts.size());
  if (static_cast<std::int64_t>(entry.sums.size()) != tensor.cols() * matrices || (counts != 1 && counts != matrices)) {
    return error(Code::invalid_argument,
                 "the importance matrix has {} numbers for tensor '{}' of {} columns in {} matrices: it is another "
                 "model's",
                 entry.sums.size(), escape(tensor.name, 80), tensor.cols(), matrices);
  }
  std::vector<float> weights(entry.sums.size());
  const std::size_t part = entry.sums.size() / entry.counts.size();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float count = entry.counts[i / part];
    weights[i] = count > 0 ? entry.sums[i] / count : 1.0f;
  }
  return weights;
}

Expected<ColumnImportance> ColumnImportance::of(const TensorInfo& tensor, const ImportanceMatrix* importance) {
  ColumnImportance columns;
  if (importance == nullptr) return columns;
  const auto entry = importance->entries.find(tensor.name);
  if (entry == importance->entries.end()) return columns;
  MR_ASSIGN_OR_RETURN(columns.weights_, column_weights(entry->second, tensor));
  columns.cols_ = std::max<std::int64_t>(1, tensor.cols());
  const std::int64_t matrices = std::max<std::int64_t>(1, std::ssize(columns.weights_) / columns.cols_);
  columns.rows_ = std::max<std::int64_t>(1, tensor.rows() / matrices);
  return columns;
}

}  // namespace millrace::modelfile
