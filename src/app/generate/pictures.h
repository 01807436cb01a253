// Pictures that clients send in conversations. A message's text holds a marker in each picture's place until the chat
// template has laid the text out; then the model's own markup stands there, or, where the model cannot see the picture,
// a note. Thread-safety: values and functions of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/generate/json.h"
#include "base/status.h"
#include "text/markers.h"
#include "vision/spec.h"

namespace millrace::generate {

struct Picture {
  std::string kind;      // as its API calls it: "image_url", "input_image", "image"
  std::string where;     // what errors about it begin with: "messages.0.content.1.image.source"
  std::string file;      // its bytes: JPEG, PNG or WebP, if it is good
  Status problem;        // why there is no file
  std::string url = {};  // of http or https, where that is all there is
};

/// From base64; `text` may be what a data URL has before it, too.
Picture picture_of_base64(std::string kind, std::string where, std::string_view text);
/// From a data URL. Other URLs are a problem: nothing is fetched here.
Picture picture_of_url(std::string kind, std::string where, std::string_view url);

/// The pictures of one conversation.
class Pictures {
 public:
  /// The marker that stands for it in a text.
  std::string add(Picture picture);
  /// The marker of one that was added.
  std::string marker(std::size_t i) const { return markers_.marker(i); }
  /// Another one in its place, with the same marker.
  void replace(std::size_t i, Picture picture) { all_[i] = std::make_shared<const Picture>(std::move(picture)); }
  /// Drops those behind the first `count`: the next ones have their markers again.
  void keep_first(std::size_t count) { all_.resize(std::min(count, all_.size())); }
  std::size_t size() const { return all_.size(); }
  bool empty() const { return all_.empty(); }
  const Picture& operator[](std::size_t i) const { return *all_[i]; }
  const text::Markers& markers() const { return markers_; }

 private:
  std::vector<std::shared_ptr<const Picture>> all_;  // shared: jobs are copied
  text::Markers markers_;                            // drawn with the first picture
  bool is_drawn_ = false;
};

/// "[image: this model reads text only]"
std::string note_of(std::string_view what);

/// What becomes of the pictures of a conversation, by their index.
struct Seen {
  std::vector<std::string> inserts;              // for text::Conversation; empty where no picture is seen
  std::vector<std::vector<vision::Grid>> grids;  // the tokens of its views; empty where the picture is not seen
};

/// `spec`: how the model wants pictures; null: it sees none. The markers of what it does not see become notes: pictures
/// before the assistant's last message, and what tools have answered, which would have every later turn refused.
/// Errors: invalid_argument (a new picture of a user that is not seen; the message begins with its place).
Expected<Seen> settle_pictures(const vision::Spec* spec, const Pictures& pictures, Json& messages);

/// The most pictures of one request, and the most bytes of one's file, as OpenAI has it.
inline constexpr std::size_t kMostPictures = 500, kMostPictureBytes = 20u << 20;

}  // namespace millrace::generate
