// Which requests a file holds and which of them are answered: 16 bytes a request while the two files are compared, a
// bit each afterwards.
// Thread-safety: one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/batch/lines.h"
#include "base/status.h"

namespace millrace::batch {

class Index {
 public:
  /// Reads the whole file once. Errors: those of LineReader; invalid_argument (a custom_id that two lines have, or no
  /// line that says anything).
  static Expected<Index> of(const std::string& path);

  /// Marks what a line of the output answers. Errors: corrupt (no line of a batch's output), invalid_argument (it
  /// answers what this file does not ask).
  Status mark(std::string_view answered_line);
  /// Lets go of the names: mark() is not called again.
  void freeze() { names_ = {}; }

  std::int64_t requests() const { return requests_; }  // lines that are not blank
  std::int64_t answered() const { return answered_; }
  bool is_answered(std::int64_t line_number) const { return done_[static_cast<std::size_t>(line_number)]; }

 private:
  struct Name {
    std::uint64_t hash = 0;  // of the custom_id
    std::int64_t line = 0;
  };

  std::vector<Name> names_;  // ascending hash
  std::vector<bool> done_;   // by line number, from 1
  std::int64_t requests_ = 0, answered_ = 0;
};

}  // namespace millrace::batch
