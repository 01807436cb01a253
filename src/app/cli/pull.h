// Fetching a model from the command line, for verbs that need one.
#pragma once

#include <memory>
#include <string>

#include "app/cli/command.h"
#include "app/cli/progress.h"
#include "app/store/pull.h"

namespace millrace::cli {

/// With bars and messages, as `millrace pull` does it. The exit code; what failed was told.
int pull_model(const std::string& name, const Program& program);

/// Prints each stage once; a bar while bytes come.
class PullPrinter {
 public:
  explicit PullPrinter(bool quiet) : quiet_(quiet) {}
  void operator()(const store::PullEvent& event);

 private:
  const bool quiet_;
  std::string last_;
  std::unique_ptr<Progress> bar_;
};

/// How a fetch goes on where a hub fails.
struct FetchFlags {
  int connections = 4, attempts = 6, retry_ms = 500, stall_seconds = 30;
};
void add_fetch_flags(CLI::App& command, FetchFlags& flags);
/// The environment's endpoint and token, the flags, Ctrl-C and the printer, which outlives them.
store::PullOptions pull_options(const FetchFlags& flags, PullPrinter& printer);

}  // namespace millrace::cli
