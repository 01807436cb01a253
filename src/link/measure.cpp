#include "link/measure.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "link/message.h"

namespace millrace::link {
namespace {

using Clock = std::chrono::steady_clock;

/// Who is asked answers so much later: a rank waits longer than a pause lasts for another's stage, too.
constexpr std::chrono::microseconds kHeld{5000};

double middle(std::vector<double>& values) {
  const auto half = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), half, values.end());
  return *half;
}

class WayMeter {
 public:
  WayMeter(Link& link, const WayEffort& effort) : link_(link), effort_(effort) {}

  Expected<std::vector<WaySpeed>> lead() {
    std::vector<WaySpeed> ways;
    for (int from = 0; from < link_.size(); ++from) {
      const int to = (from + 1) % link_.size();
      if (from > 0 && link_.size() == 2) break;  // the same two
      if (from == 0) {
        MR_ASSIGN_OR_RETURN(const WaySpeed way, measure(to));
        ways.push_back(way);
        continue;
      }
      Writer(message_, MessageKind::measure).number(std::int32_t{to});
      MR_RETURN_IF_ERROR(link_.send(from, message_));
      MR_RETURN_IF_ERROR(answer());
      Reader reader(message_);
      const auto seconds = reader.number<double>();
      ways.push_back({from, to, seconds, reader.number<double>()});
      MR_RETURN_IF_ERROR(reader.status());
    }
    const Writer done(message_, MessageKind::measured);
    MR_RETURN_IF_ERROR(link_.send_others(message_));
    return ways;
  }

  /// Every other rank's part, until rank 0 is done.
  Status follow() {
    for (;;) {
      MR_RETURN_IF_ERROR(answer());
      Reader reader(message_);
      if (reader.kind() == MessageKind::measured) return {};
      MR_ASSIGN_OR_RETURN(const WaySpeed way, measure(reader.number<std::int32_t>()));
      Writer writer(message_, MessageKind::measured);
      writer.number(way.seconds);
      writer.number(way.bytes_per_second);
      MR_RETURN_IF_ERROR(link_.send(0, message_));
    }
  }

 private:
  /// Answers what is to be answered until a message says something else (measure, measured): message_.
  Status answer() {
    for (;;) {
      MR_ASSIGN_OR_RETURN(const int from, link_.receive(message_));
      Reader reader(message_);
      if (reader.kind() == MessageKind::measure || reader.kind() == MessageKind::measured) return {};
      if (reader.kind() != MessageKind::echo)
        return error(Code::internal, "{} sent something else than what measures the way", link_.name(from));
      if (reader.number<std::uint32_t>() != 0) std::this_thread::sleep_for(kHeld);
      const Writer echo(message_, MessageKind::echo);
      MR_RETURN_IF_ERROR(link_.send(from, message_));
    }
  }

  /// Seconds until the other one's answer is here. `held`: he waits before he answers.
  Expected<double> ask(int to, bool held, std::size_t bytes) {
    Writer writer(message_, MessageKind::echo);
    writer.number(std::uint32_t{held});
    writer.floats(bytes / sizeof(float));
    const Clock::time_point begin = Clock::now();
    MR_RETURN_IF_ERROR(link_.send(to, message_));
    MR_ASSIGN_OR_RETURN(const int from, link_.receive(answer_));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    if (from != to || Reader(answer_).kind() != MessageKind::echo)
      return error(Code::internal, "{} spoke while another was asked", link_.name(from));
    return seconds;
  }

  Expected<WaySpeed> measure(int to) {
    std::vector<double> held, whole;
    for (int i = 0; i < effort_.short_messages; ++i) {
      MR_ASSIGN_OR_RETURN(const double seconds, ask(to, true, 0));
      held.push_back(seconds);
    }
    WaySpeed way{link_.rank(), to};
    way.seconds = std::max(middle(held) - std::chrono::duration<double>(kHeld).count(), 0.0) / 2;
    for (int i = 0; i < effort_.long_messages; ++i) {
      MR_ASSIGN_OR_RETURN(const double seconds, ask(to, false, effort_.long_bytes));
      whole.push_back(seconds);
    }
    const double longest = middle(whole);
    // What is left beside the answer's way; never so little that a rate is nonsense.
    way.bytes_per_second = static_cast<double>(effort_.long_bytes) / std::max(longest - way.seconds, longest / 2);
    return way;
  }

  Link& link_;
  const WayEffort effort_;
  std::vector<std::byte> message_, answer_;
};

}  // namespace

Expected<std::vector<WaySpeed>> measure_ways(Link& link, const WayEffort& effort) {
  WayMeter meter(link, effort);
  if (link.rank() == 0) return meter.lead();
  MR_RETURN_IF_ERROR(meter.follow());
  return std::vector<WaySpeed>();
}

}  // namespace millrace::link
