// Placeholders in a conversation's texts (for pictures) that are replaced after the template is rendered. A marker
// contains an unpredictable number, drawn per conversation, so that no text can contain one by chance or intent. It is
// plain ASCII without quotes, which templates and JSON do not change. Thread-safety: values.
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
  std::string prefix_;  // empty: no markers
};

}  // namespace millrace::text
