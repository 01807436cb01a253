#include "app/generate/sight.h"

#include <openssl/sha.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "image/decode.h"
#include "vision/markup.h"
#include "vision/preprocess.h"

namespace millrace::generate {
namespace {

using text::TokenId;

engine::PictureKey file_key(const Picture& picture) {
  engine::PictureKey key = {};
  SHA256(reinterpret_cast<const unsigned char*>(picture.file.data()), picture.file.size(),
         reinterpret_cast<unsigned char*>(key.data()));
  return key;
}

/// The token of this name; none where the name is empty. Errors: unsupported (the vocabulary has none).
Expected<std::optional<TokenId>> token_named(const text::Tokenizer& tokenizer, std::string_view name) {
  if (name.empty()) return std::optional<TokenId>();
  const auto id = tokenizer.special(name);
  if (id) return id;
  return error(
      Code::unsupported,
      "the model's vocabulary has no token {}, so it was not trained with this kind of pictures; serve it with "
      "the mmproj file that belongs to it",
      name);
}

/// The tokens of pictures' rows and marks.
struct Marks {
  TokenId place = 0;
  std::optional<TokenId> row_break, row_end;
};

/// Of a view whose first row is number `first` of the picture's.
void add_rows(const engine::PictureKey& key, std::int64_t first, const vision::Grid& grid, const Marks& marks,
              std::vector<TokenId>& ids) {
  for (std::int64_t row = 0; row < grid.rows; ++row) {
    for (std::int64_t col = 0; col < grid.cols; ++col)
      ids.push_back(engine::picture_token(key, first + row * grid.cols + col));
    const std::optional<TokenId>& mark = row + 1 < grid.rows ? marks.row_break : marks.row_end;
    if (mark) ids.push_back(*mark);
  }
}

std::int64_t tokens_of(std::span<const vision::Grid> views) {
  return std::accumulate(views.begin(), views.end(), std::int64_t{0},
                         [](std::int64_t sum, const vision::Grid& grid) { return sum + grid.tokens(); });
}

Expected<std::shared_ptr<const engine::EncodedPicture>> encode(engine::PictureEncoder& encoder, const Picture& picture,
                                                               const engine::PictureKey& key, WorkGrant* grant) {
  if (auto known = encoder.find(key); known != nullptr) return known;
  const auto fail = [&](const Status& status) {
    const bool its_own =
        status.code() == Code::corrupt || status.code() == Code::unsupported || status.code() == Code::invalid_argument;
    if (!its_own) return status;
    return error(Code::invalid_argument, "{}: Could not process image: {}", picture.where, status.message());
  };
  auto image = image::decode(std::as_bytes(std::span(picture.file)), grant);
  if (!image.ok()) return fail(image.status());
  auto views = vision::preprocess(encoder.spec(), *image, grant);
  if (!views.ok()) return fail(views.status());
  *image = {};  // the encoder takes long, and needs it no more
  return encoder.encode(key, *views, [grant] { return grant != nullptr && grant->cancelled(); });
}

/// Where the next rows of a picture stand, from `at` on: as many of `left` as follow one another.
engine::PlacedPicture next_run(const std::vector<TokenId>& ids, std::size_t& at, std::int64_t first_row,
                               std::int64_t left) {
  while (at < ids.size() && ids[at] >= 0) ++at;
  engine::PlacedPicture run{.first = static_cast<std::int64_t>(at), .count = 0, .first_row = first_row, .picture = {}};
  for (; at < ids.size() && ids[at] < 0 && run.count < left; ++at) ++run.count;
  return run;
}

}  // namespace

EngineMemory::EngineMemory(const engine::Engine& engine, std::function<bool()> is_cancelled)
    : is_cancelled_(std::move(is_cancelled)) {
  // The engine shows its budget to be read. What is reserved in it here changes nothing else of the engine, and locks.
  auto nothing = const_cast<residency::Budget&>(engine.budget()).reserve("pictures", 0);
  if (nothing.ok()) held_ = std::move(*nothing);  // nothing is always granted
}

bool EngineMemory::take(std::uint64_t bytes) { return held_.resize(held_.bytes() + bytes).ok(); }

void EngineMemory::give_back(std::uint64_t bytes) noexcept {
  // Shrinking cannot fail.
  [[maybe_unused]] const Status status = held_.resize(held_.bytes() - std::min(bytes, held_.bytes()));
}

const vision::Spec* spec_of(const engine::Engine& engine) {
  const engine::PictureEncoder* const encoder = engine.pictures();
  return encoder == nullptr ? nullptr : &encoder->spec();
}

Status place_rows(const engine::Engine& engine, const Pictures& pictures, Prompt& prompt) {
  if (prompt.inserted.empty()) return {};
  const engine::PictureEncoder& encoder = *engine.pictures();
  const vision::Markup& markup = vision::markup(encoder.spec().projector);
  Marks marks;
  MR_ASSIGN_OR_RETURN(const auto place, token_named(engine.tokenizer(), markup.place));
  MR_ASSIGN_OR_RETURN(marks.row_break, token_named(engine.tokenizer(), markup.row_break));
  MR_ASSIGN_OR_RETURN(marks.row_end, token_named(engine.tokenizer(), markup.row_end));
  const std::int64_t places = std::count(prompt.ids.begin(), prompt.ids.end(), *place);
  std::int64_t views = 0;
  for (const std::size_t index : prompt.inserted) views += std::ssize(prompt.grids[index]);
  if (places != views)
    return error(Code::unsupported,
                 "the prompt has {} of the token {} for {} pictures of {} views; the chat template may write none of "
                 "its own",
                 places, markup.place, prompt.inserted.size(), views);
  std::vector<TokenId> ids;
  std::size_t next = 0, view = 0;  // the picture among those inserted, and its view
  std::int64_t first = 0;          // row of that view
  for (const TokenId id : prompt.ids) {
    if (id != *place) {
      ids.push_back(id);
      continue;
    }
    const std::size_t index = prompt.inserted[next];
    const std::vector<vision::Grid>& grids = prompt.grids[index];
    const auto [file, added] = prompt.files.try_emplace(index);
    if (added) file->second = file_key(pictures[index]);
    add_rows(encoder.key_of(file->second), first, grids[view], marks, ids);
    first += grids[view].tokens();
    if (++view < grids.size()) continue;
    ++next;
    view = 0;
    first = 0;
  }
  prompt.ids = std::move(ids);
  return {};
}

Expected<std::vector<engine::PlacedPicture>> see_pictures(const engine::Engine& engine, const Pictures& pictures,
                                                          const Prompt& prompt, WorkGrant* grant) {
  std::vector<engine::PlacedPicture> placed;
  std::map<std::size_t, std::shared_ptr<const engine::EncodedPicture>> encoded;
  std::size_t at = 0;
  for (const std::size_t index : prompt.inserted) {
    auto& picture = encoded[index];
    if (picture == nullptr) {
      MR_ASSIGN_OR_RETURN(picture, encode(*engine.pictures(), pictures[index], prompt.files.at(index), grant));
    }
    const std::int64_t rows = tokens_of(prompt.grids[index]);
    for (std::int64_t row = 0; row < rows; row += placed.back().count) {
      placed.push_back(next_run(prompt.ids, at, row, rows - row));
      placed.back().picture = picture;
      if (placed.back().count == 0) return error(Code::internal, "a picture's rows are not in the prompt");
    }
  }
  return placed;
}

}  // namespace millrace::generate
