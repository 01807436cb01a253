// Any line as a request of a batch, and as a line of its output. What is read must be answerable, and the answer must
// be read again under the same name.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "app/batch/request.h"

namespace {

using namespace millrace;

void must_answer(const std::string& line, const std::string& custom_id, std::int64_t number) {
  const auto answered = batch::parse_answered(line);
  if (!answered.ok() || answered->custom_id != custom_id) std::abort();
  if (custom_id.empty() && answered->line_number != number) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view line(reinterpret_cast<const char*>(data), size);
  batch::Request request;
  batch::Refusal refusal;
  if (batch::parse_request(line, 7, request, refusal)) {
    const bool embeds = request.endpoint == batch::Endpoint::embeddings;
    if (request.custom_id != batch::custom_id_of(line, 7) || request.jobs.empty() != embeds) std::abort();
    if (embeds) {
      must_answer(batch::embeddings_line(request, {{1, -2.5f}, {}}, 3, "model"), request.custom_id, 0);
      return 0;
    }
    const std::vector<generate::Answer> answers(request.jobs.size() * static_cast<std::size_t>(request.jobs[0].n));
    must_answer(batch::answer_line(request, answers, {}, "model"), request.custom_id, 0);
  } else if (refusal.code.empty()) {
    must_answer(batch::failure_line(refusal.custom_id, refusal.status), refusal.custom_id, 0);
  } else {
    must_answer(batch::refusal_line(refusal.custom_id, refusal.code, refusal.status, 7), refusal.custom_id, 7);
  }
  (void)batch::parse_answered(line);
  return 0;
}
