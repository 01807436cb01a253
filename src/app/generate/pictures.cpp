#include "app/generate/pictures.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include "base/base64.h"
#include "base/words.h"
#include "image/decode.h"
#include "modelfile/escape.h"
#include "vision/markup.h"

namespace millrace::generate {
namespace {

std::uint64_t drawn_number() {
  std::random_device random;
  return static_cast<std::uint64_t>(random()) << 32 | random();
}

bool is_data_url(std::string_view text) {
  constexpr std::string_view kScheme = "data:";
  return same_word(text.substr(0, kScheme.size()), kScheme);
}

/// What the model makes of one picture, without decoding it.
struct Look {
  Status status;
  vision::Cut cut;
};

Look look_at(const vision::Spec& spec, const Picture& picture) {
  if (!picture.problem.ok()) return {picture.problem, {}};
  const auto header = image::read_header(std::as_bytes(std::span(picture.file)));
  if (!header.ok()) return {header.status(), {}};
  const auto cut = vision::cut(spec, {.height = header->height, .width = header->width});
  if (!cut.ok()) return {cut.status(), {}};
  return {{}, *cut};
}

/// In the words by which clients tell these errors.
Status refusal(const vision::Spec* spec, const Picture& picture, const Look& look) {
  if (spec == nullptr) {
    return error(Code::invalid_argument,
                 "{}: this model reads text only; leave the {} out, or serve the model with the mmproj file that "
                 "belongs to it (--mmproj)",
                 picture.where, modelfile::escape(picture.kind, 40));
  }
  const Status& status = picture.problem.ok() ? look.status : picture.problem;
  return error(Code::invalid_argument, "{}: Could not process image: {}", picture.where, status.message());
}

/// A conversation's messages, one after the other.
class Settling {
 public:
  Settling(const vision::Spec* spec, const Pictures& pictures) : spec_(spec), pictures_(pictures) {
    looks_.resize(pictures.size());
    if (spec == nullptr) return;
    seen_.inserts.resize(pictures.size());
    seen_.grids.resize(pictures.size());
  }

  /// `must_see`: a picture that is not seen is an error; else a note takes its place.
  Status settle(std::string& text, bool must_see) {
    std::string out;
    std::size_t done = 0, from = 0;
    while (const auto found = pictures_.markers().find(text, from)) {
      from = found->end;
      if (found->index >= pictures_.size()) continue;
      const Picture& picture = pictures_[found->index];
      const Look& look = look_at_index(found->index);
      if (spec_ != nullptr && look.status.ok()) continue;
      if (must_see) return refusal(spec_, picture, look);
      out.append(text, done, found->begin - done);
      out += spec_ == nullptr ? note_of(picture.kind)
                              : fmt::format("[{}: it cannot be read]", modelfile::escape(picture.kind, 40));
      done = found->end;
    }
    if (done > 0) text = out.append(text, done);
    return {};
  }
  Seen take() { return std::move(seen_); }

 private:
  const Look& look_at_index(std::size_t index) {
    std::optional<Look>& look = looks_[index];
    if (look) return *look;
    look = spec_ == nullptr ? Look{} : look_at(*spec_, pictures_[index]);
    if (spec_ == nullptr || !look->status.ok()) return *look;
    seen_.inserts[index] = vision::text_of(vision::markup(spec_->projector), look->cut);
    seen_.grids[index] = vision::grids(*spec_, look->cut);
    return *look;
  }

  const vision::Spec* const spec_;
  const Pictures& pictures_;
  std::vector<std::optional<Look>> looks_;
  Seen seen_;
};

}  // namespace

std::string note_of(std::string_view what) {
  return fmt::format("[{}: this model reads text only]", what.empty() ? "content" : modelfile::escape(what, 40));
}

Picture picture_of_base64(std::string kind, std::string where, std::string_view text) {
  if (is_data_url(text)) return picture_of_url(std::move(kind), std::move(where), text);
  Picture picture{std::move(kind), std::move(where), {}, {}};
  const auto fail = [&](Status status) { picture.problem = std::move(status); };
  if (text.size() / 4 * 3 > kMostPictureBytes) {
    fail(error(Code::invalid_argument, "image exceeds 20 MB maximum: {} bytes > {} bytes", text.size() / 4 * 3,
               kMostPictureBytes));
    return picture;
  }
  std::optional<std::string> file = from_base64(text);
  if (file) {
    picture.file = std::move(*file);
  } else {
    fail(error(Code::invalid_argument, "its data is not base64"));
  }
  return picture;
}

Picture picture_of_url(std::string kind, std::string where, std::string_view url) {
  const std::size_t comma = url.find(',');
  const std::string_view head = url.substr(0, comma);
  if (is_data_url(url) && comma != std::string_view::npos && head.ends_with(";base64"))
    return picture_of_base64(std::move(kind), std::move(where), url.substr(comma + 1));
  Picture picture{std::move(kind), std::move(where), {}, {}};
  picture.problem = url.empty()        ? error(Code::invalid_argument, "it has no data")
                    : is_data_url(url) ? error(Code::invalid_argument,
                                               "its data URL is not in base64; send "
                                               "data:image/png;base64,...")
                                       : error(Code::invalid_argument,
                                               "this server fetches no pictures from URLs; send the picture itself, as "
                                               "data:image/png;base64,...");
  if (same_word(url.substr(0, 7), "http://") || same_word(url.substr(0, 8), "https://")) picture.url = url;
  return picture;
}

std::string Pictures::add(Picture picture) {
  if (!is_drawn_) markers_ = text::Markers(drawn_number());
  is_drawn_ = true;
  all_.push_back(std::make_shared<const Picture>(std::move(picture)));
  return markers_.marker(all_.size() - 1);
}

Expected<Seen> settle_pictures(const vision::Spec* spec, const Pictures& pictures, Json& messages) {
  Settling settling(spec, pictures);
  std::size_t behind_assistant = 0;
  for (std::size_t i = 0; i < messages.size(); ++i)
    if (word(messages[i], "role") == "assistant") behind_assistant = i + 1;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto content = messages[i].find("content");
    if (content == messages[i].end() || !content->is_string()) continue;
    const bool of_user = word(messages[i], "role") == "user";
    MR_RETURN_IF_ERROR(settling.settle(content->get_ref<std::string&>(), of_user && i >= behind_assistant));
  }
  return settling.take();
}

}  // namespace millrace::generate
