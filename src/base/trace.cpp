#include "base/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "base/open_output.h"

namespace millrace {

std::uint64_t Trace::now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

void Trace::add(std::string row, std::string name, std::uint64_t begin_ns, std::uint64_t end_ns) {
  const MutexLock lock(mutex_);
  spans_.push_back({std::move(row), std::move(name), begin_ns, end_ns});
}

Status Trace::write(const std::string& path) const {
  const MutexLock lock(mutex_);
  std::string text;
  const auto print = [&]<typename... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
  };
  std::uint64_t origin = UINT64_MAX;
  for (const Span& span : spans_) origin = std::min(origin, span.begin_ns);
  const auto microseconds = [](std::uint64_t ns) { return static_cast<double>(ns) * 1e-3; };
  // Names are literals of this program and need no escaping.
  print("{{\"displayTimeUnit\": \"ns\", \"traceEvents\": [");
  std::map<std::string, int> rows;
  const char* separator = "\n";
  for (const Span& span : spans_) {
    const auto [row, fresh] = rows.emplace(span.row, static_cast<int>(rows.size()) + 1);
    if (fresh) {
      print("{}{{\"ph\": \"M\", \"pid\": 1, \"tid\": {}, \"name\": \"thread_name\", \"args\": {{\"name\": \"{}\"}}}}",
            separator, row->second, span.row);
      separator = ",\n";
    }
    print("{}{{\"ph\": \"X\", \"pid\": 1, \"tid\": {}, \"name\": \"{}\", \"ts\": {:.3f}, \"dur\": {:.3f}}}", separator,
          row->second, span.name, microseconds(span.begin_ns - origin), microseconds(span.end_ns - span.begin_ns));
    separator = ",\n";
  }
  print("\n]}}\n");
  MR_ASSIGN_OR_RETURN(os::File file, open_output(path, {.create = os::File::Create::if_missing, .empty = true}));
  if (!file.write(text).ok() || !file.close().ok())
    return error(Code::io_error, "{}: the trace could not be written to its end", path);
  return {};
}

}  // namespace millrace
