#include "app/cli/picture_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>

#include "app/generate/pictures.h"
#include "app/store/digest.h"
#include "base/bytes.h"
#include "base/os/user_folders.h"
#include "base/shell_words.h"
#include "base/words.h"
#include "image/decode.h"
#include "modelfile/escape.h"
#include "residency/small_file.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

std::string with_home(const std::string& path) {
  const std::string home = os::user_folder(os::UserFolder::home);
  return path.starts_with("~/") && !home.empty() ? home + path.substr(1) : path;
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(with_home(path), ignored);
}

bool looks_like_a_picture(const std::string& path) {
  constexpr std::array<std::string_view, 4> kBegins = {"/", "./", "../", "~/"},
                                            kEnds = {".png", ".jpg", ".jpeg", ".webp"};
  const std::string small = lower(path);
  return std::any_of(kBegins.begin(), kBegins.end(),
                     [&](std::string_view begin) { return small.starts_with(begin); }) &&
         std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return small.ends_with(end); });
}

}  // namespace

Expected<PictureFile> read_picture(const std::string& given) {
  const std::string path = with_home(given);
  std::error_code failure;
  PictureFile file;
  MR_ASSIGN_OR_RETURN(file.bytes, residency::read_small_file(path, generate::kMostPictureBytes));
  const auto header = image::read_header(std::as_bytes(std::span(file.bytes)));
  if (!header.ok())
    return error(Code::invalid_argument, "{}: cannot be shown: {}", modelfile::escape(path), header.status().message());
  file.picture.path = fs::absolute(path, failure).lexically_normal().string();
  file.picture.sha256 = store::sha256_of(file.bytes);
  file.picture.label = fmt::format("{} ({} x {} pixels, {})", modelfile::escape(file.picture.name(), 80), header->width,
                                   header->height, format_bytes(file.bytes.size()));
  return file;
}

std::vector<std::string> picture_paths(std::string_view text) {
  const std::string whole(trim(text));
  if (is_file(whole)) return {whole};
  std::vector<std::string> paths;
  for (ShellWord& word : shell_words(whole)) paths.push_back(std::move(word.text));
  return paths;
}

std::vector<NamedPicture> pictures_named_in(std::string_view text) {
  constexpr std::string_view kBehind = ".,;:!?)";  // of the sentence, not of the path
  std::vector<NamedPicture> found;
  for (ShellWord& word : shell_words(text)) {
    while (!looks_like_a_picture(word.text) && !word.text.empty() && kBehind.find(text[word.end - 1]) != kBehind.npos &&
           word.text.back() == text[word.end - 1]) {
      word.text.pop_back();
      --word.end;
    }
    if (!looks_like_a_picture(word.text) || !is_file(word.text) || !read_picture(word.text).ok()) continue;
    found.push_back({word.begin, word.end, std::move(word.text)});
  }
  return found;
}

}  // namespace millrace::cli
