// Files of saved logits: any bytes are refused in one line, or every row is read without harm and holds what a
// distribution may. The first byte says whether a file holds them as they are, or put into one that was written, where
// the checksums are then made to hold: a file that somebody wrote on purpose.
#include <stdlib.h>
#include <xxhash.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "app/measure/logits_file.h"
#include "base/log.h"
#include "patched.h"

namespace {

using namespace millrace;
using namespace millrace::measure;

constexpr std::int64_t kVocab = 9, kRows = 4;
constexpr std::size_t kHeader = 256;

void check(bool holds) {
  if (!holds) std::abort();
}

struct Setting {
  std::string folder, path;
  std::vector<char> good;

  Setting() {
    log::set_level(log::Level::off);
    char name[] = "/tmp/logits-fuzz-XXXXXX";
    check(mkdtemp(name) != nullptr);
    folder = name;
    path = folder + "/logits";
    auto writer = LogitsWriter::create(path, {.vocabulary = kVocab,
                                              .context = 8,
                                              .stride = 0,
                                              .windows = 2,
                                              .rows = kRows,
                                              .tokens_hash = 3,
                                              .vocabulary_hash = 4,
                                              .model = "model"});
    check(writer.ok());
    Distributions math(nullptr);
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::vector<float> logits(kVocab);
      for (std::size_t i = 0; i < logits.size(); ++i)
        logits[i] = static_cast<float>(i * 3 % 7) - static_cast<float>(row);
      check(writer->write(row, logits, math.log_sum(logits), 1).ok());
    }
    check(writer->finish().ok());
    std::ifstream file(path, std::ios::binary);
    good.assign(std::istreambuf_iterator<char>(file), {});
  }
  ~Setting() { std::filesystem::remove_all(folder); }
};

/// Checksums of header and rows, as they would be of these bytes.
void mend(std::vector<char>& file) {
  const std::uint64_t of_header = XXH3_64bits(file.data(), kHeader - sizeof(std::uint64_t));
  std::memcpy(file.data() + kHeader - sizeof(of_header), &of_header, sizeof(of_header));
  const std::size_t row_bytes = (file.size() - kHeader) / kRows;
  for (std::size_t at = kHeader; at + row_bytes <= file.size(); at += row_bytes) {
    const std::uint64_t of_row = XXH3_64bits(file.data() + at + sizeof(of_row), row_bytes - sizeof(of_row));
    std::memcpy(file.data() + at, &of_row, sizeof(of_row));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setting setting;
  if (size < 3) return 0;
  std::vector<char> file(data + 3, data + size);
  if (data[0] % 4 != 0) {
    file = patched(setting.good, data, file);
    if (data[0] % 4 != 1) mend(file);
  }
  std::ofstream(setting.path, std::ios::binary).write(file.data(), static_cast<std::streamsize>(file.size()));
  auto reader = LogitsReader::open(setting.path);
  if (!reader.ok()) {
    check(!reader.status().message().empty() && reader.status().message().find('\n') == std::string::npos);
    return 0;
  }
  const LogitsShape shape = reader->shape();
  check(shape.file_bytes() == file.size());
  const Status like = reader->check_like(shape);
  check(like.ok());
  std::vector<float> log_p(static_cast<std::size_t>(shape.vocabulary));
  float right = 0;
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    if (!reader->read(row, log_p, right).ok()) continue;
    check(right <= 0);
    for (const float value : log_p) check(std::isfinite(value) && value <= 0);
  }
  return 0;
}
