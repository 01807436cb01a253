// Words that stand for something else in the texts of a conversation (a picture) until the template has laid it out. A
// marker has a number that nobody can guess, drawn for each conversation, so that no text can hold one by chance or by
// intent; it is plain ASCII without quotes, which templates and JSON leave as it is. Thread-safety: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace millrace::text {

class Markers {
 public:
  /// Finds nothing.
  Markers() = default;
  /// `number`: a random one.
  explicit Markers(std::uint64_t number);

  /// REQUIRES: made with a number.
  std::string marker(std::size_t index) const;

  struct Found {
    std::size_t begin = 0, end = 0, index = 0;
  };
  /// The first at `from` or behind it.
  std::optional<Found> find(std::string_view text, std::size_t from = 0) const;

 private:
  std::string prefix_;  // empty: there are none
};

}  // namespace millrace::text
