// Any bytes, cut into tokens anywhere: what the detokenizer gives out is valid UTF-8 at every step, says the same
// however the bytes were cut, and is the input itself where that was valid.
#include <utf8proc.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using namespace millrace::text;

void require(bool held) {
  if (!held) std::abort();
}

/// utf8proc's judgement, not ours.
bool valid(std::string_view text) {
  const auto* at = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  auto rest = static_cast<utf8proc_ssize_t>(text.size());
  while (rest > 0) {
    utf8proc_int32_t code_point = -1;
    const utf8proc_ssize_t length = utf8proc_iterate(at, rest, &code_point);
    if (length <= 0) return false;
    at += length;
    rest -= length;
  }
  return true;
}

/// Token i stands for the i-th piece of the input: one to five bytes.
class Pieces final : public Tokenizer {
 public:
  Pieces(std::string_view bytes, std::uint64_t seed) : bytes_(bytes), seed_(seed) {}
  std::vector<TokenId> encode(std::string_view, Specials) const override { return {}; }
  std::vector<TokenId> encode(const MarkedText&) const override { return {}; }
  std::optional<TokenId> special(std::string_view) const override { return std::nullopt; }
  std::string token_bytes(TokenId id, bool) const override {
    return std::string(bytes_.substr(static_cast<std::size_t>(id), size_at(id)));
  }
  /// Pieces are named by where they begin.
  std::size_t size_at(TokenId id) const {
    return seed_ == 0 ? 1 : 1 + (static_cast<std::uint64_t>(id) * seed_ >> 7) % 5;
  }

 private:
  std::string_view bytes_;
  std::uint64_t seed_;
};

std::string stream(std::string_view bytes, std::uint64_t seed) {
  const auto pieces = std::make_shared<Pieces>(bytes, seed);
  Detokenizer detokenizer(pieces);
  std::string all;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto id = static_cast<TokenId>(at);
    const std::string out = detokenizer.push(id);
    require(valid(out));
    all += out;
    at += pieces->size_at(id);
  }
  const std::string last = detokenizer.flush();
  require(valid(last));
  require(detokenizer.flush().empty());
  return all + last;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string one_by_one = stream(bytes, 0);
  require(stream(bytes, data[0]) == one_by_one);
  require(is_valid_utf8(bytes) == valid(bytes));
  require(!valid(bytes) || one_by_one == bytes);
  return 0;
}
