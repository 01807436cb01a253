// One line a request, once it is answered: who asked what of which model, how it ended, and how long it took.
// Thread-safety: write() from any thread; a RequestRecord belongs to its connection's.
#pragma once

#include <httplib.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "app/generate/run.h"

namespace millrace::server {

enum class LogFormat { off, text, json };

/// What becomes known of a request while it is worked on.
struct RequestRecord {
  std::string id;  // told to the client as X-Request-Id
  std::chrono::steady_clock::time_point begin;
  std::string model, problem;                                // empty: none
  std::vector<std::shared_ptr<const generate::Meter>> runs;  // one a prompt
  generate::Totals totals;                                   // of work that is no run, such as embeddings
};
RequestRecord new_record();

class RequestLog {
 public:
  explicit RequestLog(LogFormat format) : format_(format) {}
  /// To stderr. Questions that programs ask again and again (health, metrics, the page's own) are left out where they
  /// went well.
  void write(const httplib::Request& request, const httplib::Response& response, const RequestRecord& record) const;

 private:
  const LogFormat format_;
};

}  // namespace millrace::server
