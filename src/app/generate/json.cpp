#include "app/generate/json.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/generate/take_apart.h"

namespace millrace::generate {
namespace {

using Members = Json::object_t;

/// Of members of one key the last value, at the first one's place.
void settle_twins(Members& members) {
  if (members.size() < 2) return;
  std::vector<std::uint32_t> order(members.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const int side = members.begin()[a].first.compare(members.begin()[b].first);
    return side != 0 ? side < 0 : a < b;
  });
  std::vector<std::uint32_t> gone;
  for (std::size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const auto key = members.begin() + order[begin];
    for (end = begin + 1; end < order.size() && members.begin()[order[end]].first == key->first; ++end)
      gone.push_back(order[end]);
    if (end > begin + 1) key->second = std::move(members.begin()[order[end - 1]].second);
  }
  if (gone.empty()) return;
  std::sort(gone.begin(), gone.end());
  Members kept;
  kept.reserve(members.size() - gone.size());
  auto next = gone.begin();
  for (std::uint32_t i = 0; i < members.size(); ++i) {
    auto& [key, value] = members.begin()[i];
    if (next != gone.end() && *next == i)
      ++next;
    else
      kept.emplace_back(key, std::move(value));
  }
  members = std::move(kept);
}

/// Room for twice as many. std::vector copies pairs of a constant key with their values, whatever these hold.
void widen(Members& members) {
  Members wider;
  wider.reserve(std::max<std::size_t>(4, 2 * members.size()));
  for (auto& [key, value] : members) wider.emplace_back(key, std::move(value));
  members = std::move(wider);
}

/// Builds the value, and appends members without looking for their keys until their object ends.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json& root) : root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Members&>();
    if (members.size() == members.capacity()) widen(members);
    members.emplace_back(std::move(name), nullptr);
    return true;
  }
  bool start_object(std::size_t) override { return open(Json::value_t::object); }
  bool start_array(std::size_t) override { return open(Json::value_t::array); }
  bool end_object() override {
    settle_twins(open_.back()->get_ref<Members&>());
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t place, const std::string&, const nlohmann::detail::exception&) override {
    bad_at_ = place;
    return false;
  }
  std::size_t bad_at() const { return bad_at_; }

 private:
  template <typename T>
  bool put(T&& value) {
    *place() = std::forward<T>(value);
    return true;
  }
  bool open(Json::value_t kind) {
    if (open_.size() >= static_cast<std::size_t>(kMostNesting)) return false;
    Json* const at = place();
    *at = Json(kind);
    open_.push_back(at);
    return true;
  }
  /// Where the next value belongs.
  Json* place() {
    if (open_.empty()) return &root_;
    if (open_.back()->is_array()) return &open_.back()->get_ref<Json::array_t&>().emplace_back();
    return &open_.back()->get_ref<Members&>().back().second;
  }

  Json& root_;
  std::size_t bad_at_ = 0;
  std::vector<Json*> open_;  // none of them grows while a later one is open
};

/// The code unit of \\uXXXX at `at`; -1 where there is none.
int code_unit(std::string_view text, std::size_t at) {
  if (at + 6 > text.size() || text[at] != '\\' || text[at + 1] != 'u') return -1;
  int unit = 0;
  const auto [end, problem] = std::from_chars(text.data() + at + 2, text.data() + at + 6, unit, 16);
  return problem == std::errc() && end == text.data() + at + 6 ? unit : -1;
}

/// The text with \\ufffd for each half of a surrogate pair, and U+FFFD for one in UTF-8; nothing where it has none.
std::optional<std::string> without_half_pairs(std::string_view text) {
  std::optional<std::string> mended;
  const auto replace = [&](std::size_t at, std::string_view with) {
    if (!mended) mended.emplace(text);
    mended->replace(at, with.size(), with);
  };
  const auto is = [](int unit, int first) { return unit >= first && unit < first + 0x400; };
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\') {
      const int unit = code_unit(text, i);
      if (is(unit, 0xD800) && is(code_unit(text, i + 6), 0xDC00)) {
        i += 11;
      } else if (is(unit, 0xD800) || is(unit, 0xDC00)) {
        replace(i, "\\ufffd");
        i += 5;
      } else {
        ++i;  // an escaped backslash begins no escape
      }
    } else if (text[i] == '\xED' && i + 2 < text.size() && static_cast<unsigned char>(text[i + 1]) >= 0xA0) {
      replace(i, "\xEF\xBF\xBD");
      i += 2;
    }
  }
  return mended;
}

}  // namespace

Json parse_json(std::string_view text, std::size_t* bad_at) {
  const std::optional<std::string> mended = without_half_pairs(text);
  if (mended) text = *mended;  // of the same length
  Json value;
  Builder builder(value);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return value;
  } catch (...) {
    take_apart(value);
    throw;
  }
  if (bad_at != nullptr) *bad_at = builder.bad_at();
  return Json(Json::value_t::discarded);
}

void take_apart(Json& value) noexcept {
  if (auto* const items = value.get_ptr<Json::array_t*>(); items != nullptr) {
    for (Json& item : *items) take_apart(item);
    items->clear();
  } else if (auto* const members = value.get_ptr<Json::object_t*>(); members != nullptr) {
    for (auto& [name, member] : *members) take_apart(member);
    members->clear();
  }
}

std::string word(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_wide(const Json& value) {
  if (value.is_object() && value.size() > kMostMembers) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), is_wide);
}

}  // namespace millrace::generate
