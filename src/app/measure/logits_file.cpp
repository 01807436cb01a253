#include "app/measure/logits_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "base/bytes.h"
#include "modelfile/escape.h"

namespace millrace::measure {
namespace {

constexpr std::string_view kMagic = "MRLOGIT1";
constexpr std::size_t kHeaderBytes = 256, kHashBytes = sizeof(std::uint64_t), kNameBytes = 128;
constexpr float kMostRange = 40, kMostCode = 65535;
constexpr double kLeastLog = -1e6;
constexpr std::int64_t kMostVocabulary = 1 << 24, kMostRows = std::int64_t{1} << 32;

struct Header {
  std::array<char, 8> magic{};
  std::uint32_t vocabulary = 0, zero = 0;
  std::int64_t context = 0, stride = 0, windows = 0, rows = 0;
  std::uint64_t tokens_hash = 0, vocabulary_hash = 0;
  std::array<char, kNameBytes> model{};
  std::array<char, 56> rest{};
  std::uint64_t hash = 0;  // of all before it
};
static_assert(sizeof(Header) == kHeaderBytes);

struct RowHead {
  std::uint64_t hash = 0;  // of what follows it
  float top = 0, range = 0, right = 0;
  std::uint32_t zero = 0;
};

std::uint64_t hash_of(const Header& header) { return XXH3_64bits(&header, kHeaderBytes - kHashBytes); }
std::uint64_t hash_of(std::span<const std::byte> row) {
  return XXH3_64bits(row.data() + kHashBytes, row.size() - kHashBytes);
}

std::string partial_of(const std::string& path) { return path + ".partial"; }

/// What a header may say, whoever wrote it.
bool is_possible(const Header& h) {
  const bool window = h.context >= 2 && h.context <= kMostRows && h.stride >= 0 && h.stride < h.context;
  return window && h.vocabulary > 0 && h.vocabulary <= kMostVocabulary && h.rows > 0 && h.rows <= kMostRows &&
         h.windows > 0 && h.windows <= h.rows && h.rows % h.windows == 0 && h.model.back() == '\0';
}

/// "512 tokens", "512 tokens, 128 apart".
std::string window_text(const LogitsShape& shape) {
  return shape.stride > 0 ? fmt::format("{} tokens, {} apart", shape.context, shape.stride)
                          : fmt::format("{} tokens", shape.context);
}

}  // namespace

std::uint64_t LogitsShape::row_bytes() const {
  return sizeof(RowHead) + static_cast<std::uint64_t>(vocabulary) * sizeof(std::uint16_t);
}

std::uint64_t LogitsShape::file_bytes() const { return kHeaderBytes + static_cast<std::uint64_t>(rows) * row_bytes(); }

LogitsShape shape_of(const TextWindows& windows, const text::Tokenizer& tokenizer, std::int64_t vocabulary,
                     std::string model) {
  return {.vocabulary = vocabulary,
          .context = windows.options().context,
          .stride = windows.options().stride,
          .windows = windows.size(),
          .rows = windows.rows(),
          .tokens_hash = windows.hash(),
          .vocabulary_hash = vocabulary_hash(tokenizer),
          .model = std::move(model)};
}

// --- Writing ---

LogitsWriter::LogitsWriter(std::string path, LogitsShape shape, modelfile::File file)
    : path_(std::move(path)), shape_(std::move(shape)), file_(std::move(file)), row_(shape_.row_bytes()) {}

LogitsWriter::~LogitsWriter() {
  if (file_.valid()) std::remove(partial_of(path_).c_str());
}

Expected<LogitsWriter> LogitsWriter::create(const std::string& path, const LogitsShape& shape) {
  Header header;
  std::copy(kMagic.begin(), kMagic.end(), header.magic.begin());
  header.vocabulary = static_cast<std::uint32_t>(shape.vocabulary);
  header.context = shape.context;
  header.stride = shape.stride;
  header.windows = shape.windows;
  header.rows = shape.rows;
  header.tokens_hash = shape.tokens_hash;
  header.vocabulary_hash = shape.vocabulary_hash;
  std::copy_n(shape.model.begin(), std::min(shape.model.size(), kNameBytes - 1), header.model.begin());
  header.hash = hash_of(header);
  if (!is_possible(header)) return error(Code::invalid_argument, "{}: there are no logits to write", path);
  MR_RETURN_IF_ERROR(modelfile::check_replaceable(path));
  MR_ASSIGN_OR_RETURN(modelfile::File file, modelfile::File::create(partial_of(path)));
  LogitsWriter writer(path, shape, std::move(file));
  MR_RETURN_IF_ERROR(writer.file_.reserve(shape.file_bytes()));
  MR_RETURN_IF_ERROR(writer.file_.write_at(0, std::as_bytes(std::span(&header, 1))));
  return writer;
}

Status LogitsWriter::write(std::int64_t row, std::span<const float> logits, const LogSum& sum, text::TokenId right) {
  RowHead head;
  head.top = static_cast<float>(-sum.log_sum);
  head.right = static_cast<float>(std::max(kLeastLog, sum.log_probability(logits[static_cast<std::size_t>(right)])));
  const float smallest = *std::min_element(logits.begin(), logits.end());
  head.range = std::min(sum.largest - smallest, kMostRange);
  const float per_gap = head.range > 0 ? 1 / head.range : 0;
  std::byte* code_at = row_.data() + sizeof(RowHead);
  for (const float logit : logits) {
    const float share = std::min((sum.largest - logit) * per_gap, 1.0f);
    const auto code = static_cast<std::uint16_t>(std::lround(std::sqrt(share) * kMostCode));
    std::memcpy(code_at, &code, sizeof(code));
    code_at += sizeof(code);
  }
  std::memcpy(row_.data(), &head, sizeof(head));
  head.hash = hash_of(row_);
  std::memcpy(row_.data(), &head, sizeof(head));
  MR_RETURN_IF_ERROR(file_.write_at(kHeaderBytes + static_cast<std::uint64_t>(row) * shape_.row_bytes(), row_));
  ++written_;
  return {};
}

Status LogitsWriter::finish() {
  if (written_ != shape_.rows)
    return error(Code::invalid_argument, "{}: {} of {} rows were written", path_, written_, shape_.rows);
  MR_RETURN_IF_ERROR(file_.sync());
  std::error_code failed;
  std::filesystem::rename(partial_of(path_), path_, failed);
  if (failed) return error(Code::io_error, "{}: cannot be put in place: {}", path_, failed.message());
  file_ = {};
  return {};
}

// --- Reading ---

Expected<LogitsReader> LogitsReader::open(const std::string& path) {
  MR_ASSIGN_OR_RETURN(modelfile::File file, modelfile::File::open_read(path));
  LogitsReader reader(path, std::move(file));
  MR_ASSIGN_OR_RETURN(const std::uint64_t bytes, reader.file_.size());
  Header header;
  const auto none = [&] {
    return error(Code::corrupt, "{}: is no file of saved logits; write one with perplexity --save-logits", path);
  };
  if (bytes < kHeaderBytes) return none();
  MR_RETURN_IF_ERROR(reader.file_.read_at(0, std::as_writable_bytes(std::span(&header, 1))));
  const std::string_view magic(header.magic.data(), header.magic.size());
  if (magic != kMagic) {
    if (!magic.starts_with(kMagic.substr(0, kMagic.size() - 1))) return none();
    return error(Code::unsupported, "{}: was written by another version of Millrace; save the logits again", path);
  }
  if (header.hash != hash_of(header) || !is_possible(header))
    return error(Code::corrupt, "{}: its header is damaged; save the logits again", path);
  reader.shape_ = {header.vocabulary, header.context,     header.stride,          header.windows,
                   header.rows,       header.tokens_hash, header.vocabulary_hash, header.model.data()};
  if (bytes != reader.shape_.file_bytes())
    return error(Code::corrupt, "{}: has {} bytes where {} belong; save the logits again", path, bytes,
                 reader.shape_.file_bytes());
  reader.row_.resize(reader.shape_.row_bytes());
  return reader;
}

Status LogitsReader::check_like(const LogitsShape& run) const {
  const std::string name = fmt::format("{} (of {})", path_, modelfile::escape(shape_.model, kNameBytes));
  if (shape_.vocabulary != run.vocabulary || shape_.vocabulary_hash != run.vocabulary_hash)
    return error(Code::invalid_argument, "{}: is of another vocabulary; distributions over other tokens do not compare",
                 name);
  if (shape_.context != run.context || shape_.stride != run.stride)
    return error(Code::invalid_argument, "{}: has windows of {}, and this run of {}; give --ctx and --stride as then",
                 name, window_text(shape_), window_text(run));
  if (shape_.windows != run.windows)
    return error(Code::invalid_argument, "{}: has {} windows, and this run {}; give the same text and --chunks", name,
                 shape_.windows, run.windows);
  if (shape_.tokens_hash != run.tokens_hash || shape_.rows != run.rows)
    return error(Code::invalid_argument, "{}: is of another text; give the one that it was saved of", name);
  return {};
}

Status LogitsReader::read(std::int64_t row, std::span<float> log_p, float& right) {
  if (row < 0 || row >= shape_.rows || std::ssize(log_p) != shape_.vocabulary)
    return error(Code::internal, "{} has no row {} of {}", path_, row, log_p.size());
  MR_RETURN_IF_ERROR(file_.read_at(kHeaderBytes + static_cast<std::uint64_t>(row) * shape_.row_bytes(), row_));
  RowHead head;
  std::memcpy(&head, row_.data(), sizeof(head));
  // What is negated is false for NaN, too.
  const bool possible = head.top <= 0 && head.top >= kLeastLog && head.range >= 0 && head.range <= kMostRange &&
                        head.right <= 0 && head.right >= kLeastLog;
  if (head.hash != hash_of(row_) || !possible)
    return error(Code::corrupt, "{}: row {} is damaged; save the logits again", path_, row);
  right = head.right;
  const std::byte* code_at = row_.data() + sizeof(RowHead);
  for (float& out : log_p) {
    std::uint16_t code = 0;
    std::memcpy(&code, code_at, sizeof(code));
    code_at += sizeof(code);
    const float share = static_cast<float>(code) / kMostCode;
    out = head.top - head.range * share * share;
  }
  return {};
}

}  // namespace millrace::measure
