#include "app/server/request_log.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include "app/generate/job.h"
#include "app/openai/response.h"
#include "app/server/ollama_request.h"
#include "modelfile/escape.h"

namespace millrace::server {
namespace {

using generate::Json;

constexpr std::size_t kMostWords = 200;  // bytes of what a client wrote, and of a problem

/// All runs of a request together.
struct Summary {
  generate::Totals totals;
  std::optional<double> first_token_s;
  std::string reason;
  double tokens_per_s = 0;
};

Summary summary_of(const RequestRecord& record) {
  Summary sum;
  sum.totals = record.totals;
  sum.reason = record.problem;
  for (const auto& meter : record.runs) {
    const generate::Totals& own = meter->totals;
    sum.totals.prompt_tokens += own.prompt_tokens;
    sum.totals.cached_tokens += own.cached_tokens;
    // What a client left unread was counted by pieces.
    sum.totals.completion_tokens += meter->reason.empty() ? meter->pieces : own.completion_tokens;
    sum.totals.decode_seconds = std::max(sum.totals.decode_seconds, own.decode_seconds);
    if (meter->first_token) {
      const double seconds = std::chrono::duration<double>(*meter->first_token - record.begin).count();
      sum.first_token_s = std::min(sum.first_token_s.value_or(seconds), seconds);
    }
    if (sum.reason.empty()) sum.reason = meter->reason.empty() ? "client gone" : meter->reason;
  }
  if (sum.totals.decode_seconds > 0)
    sum.tokens_per_s = static_cast<double>(sum.totals.completion_tokens) / sum.totals.decode_seconds;
  return sum;
}

bool is_asked_again_and_again(const std::string& path) {
  return path == "/health" || path == "/v1/health" || path == "/metrics" || path == "/api/millrace/live" ||
         path == "/" || path.starts_with("/page/");
}

Json json_line(const httplib::Request& request, int status, const RequestRecord& record, const Summary& sum,
               double seconds) {
  const auto number = [](bool known, double value) { return known ? Json(value) : Json(); };
  const auto rounded = [](double value) { return std::round(value * 1e4) / 1e4; };
  return {{"time", rfc3339(std::chrono::system_clock::now(), 3)},
          {"id", record.id},
          {"client", request.remote_addr},
          {"method", modelfile::escape(request.method, kMostWords)},
          {"path", modelfile::escape(request.path, kMostWords)},
          {"status", status},
          {"model", record.model.empty() ? Json() : Json(modelfile::escape(record.model, kMostWords))},
          {"tokens_in", sum.totals.prompt_tokens},
          {"tokens_cached", sum.totals.cached_tokens},
          {"tokens_out", sum.totals.completion_tokens},
          {"first_token_s", number(sum.first_token_s.has_value(), rounded(sum.first_token_s.value_or(0)))},
          {"tokens_per_s", number(sum.tokens_per_s > 0, rounded(sum.tokens_per_s))},
          {"duration_s", rounded(seconds)},
          {"reason", sum.reason.empty() ? Json() : Json(modelfile::escape(sum.reason, kMostWords))}};
}

std::string text_line(const Json& line, const Summary& sum) {
  const auto word = [&](const char* key) { return line[key].get<std::string>(); };
  std::string text = fmt::format("{} {} {} {}", word("time"), line["status"].get<int>(), word("method"), word("path"));
  if (!line["model"].is_null()) text += fmt::format(" {}", word("model"));
  text += ":";
  if (sum.totals.prompt_tokens > 0) {
    text += fmt::format(" {} in", sum.totals.prompt_tokens);
    if (sum.totals.cached_tokens > 0) text += fmt::format(" ({} cached)", sum.totals.cached_tokens);
    text += fmt::format(", {} out,", sum.totals.completion_tokens);
  }
  if (sum.first_token_s) text += fmt::format(" first token {:.3f} s,", *sum.first_token_s);
  if (sum.tokens_per_s > 0) text += fmt::format(" {:.1f} tok/s,", sum.tokens_per_s);
  text += fmt::format(" {:.3f} s", line["duration_s"].get<double>());
  if (!line["reason"].is_null()) text += fmt::format(", {}", word("reason"));
  return text + fmt::format(" [{} {}]", word("client"), word("id"));
}

}  // namespace

RequestRecord new_record() {
  RequestRecord record;
  record.id = openai::random_id("req_");
  record.begin = std::chrono::steady_clock::now();
  return record;
}

void RequestLog::write(const httplib::Request& request, const httplib::Response& response,
                       const RequestRecord& record) const {
  if (format_ == LogFormat::off) return;
  if (response.status < 400 && is_asked_again_and_again(request.path)) return;
  const Summary sum = summary_of(record);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - record.begin).count();
  const Json json = json_line(request, response.status, record, sum, seconds);
  // In one piece, so that the lines of two threads do not mix.
  const std::string line =
      (format_ == LogFormat::json ? json.dump(-1, ' ', false, Json::error_handler_t::replace) : text_line(json, sum)) +
      "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace millrace::server
