// A file of requests worked off: read line by line, answered side by side in shared passes, written as they finish.
// A bounded number of them is in memory at a time.
// Thread-safety: one thread calls; the engine has its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "app/batch/index.h"
#include "app/batch/lines.h"
#include "app/batch/output.h"
#include "app/generate/job.h"
#include "engine/service.h"

namespace millrace::batch {

struct Counts {
  std::int64_t answered = 0;  // by this run, failures included
  std::int64_t failed = 0;    // among them
  std::string first_failure;  // "line 3: why"; empty: none failed
  std::int64_t prompt_tokens = 0, answer_tokens = 0;
};

struct Options {
  std::string model;                   // its name in the answers
  generate::Defaults defaults;         // of its Modelfile
  std::int64_t in_flight = 8;          // answers asked of the engine at once; a request of many counts for all of them
  std::uint64_t line_bytes = 1 << 20;  // of their lines, where more than one is in flight
  std::function<void(const Counts&)> on_progress;  // some times a second
};

/// Until every request of `input` that `index` does not know as answered has its line in `output`. A request that fails
/// gets a line that says so. Errors: cancelled (`stop` was set: what is not answered has no line, and the next run goes
/// on from there), io_error (input or output), and what ended many requests in a row: then the engine or the disk is at
/// fault, not they.
Status work_off(engine::Service& service, LineReader input, const Index& index, Output& output, const Options& options,
                const std::atomic<bool>& stop, Counts& counts);

}  // namespace millrace::batch
