// What a run moved and guessed, in words: lines below an answer, and of --stats.
#include <fmt/core.h>

#include <algorithm>

#include "app/cli/command.h"
#include "base/bytes.h"

namespace millrace::cli {

std::string describe_seat(const engine::DraftSeat& seat) {
  if (seat.words.empty()) return {};
  return fmt::format("{}: {}{}\n", seat.what, seat.place == engine::DraftPlace::none ? "left out; " : "", seat.words);
}

std::string describe_drafts(const engine::LoadCounters& load) {
  const auto drafts = std::find_if(load.drafts.rbegin(), load.drafts.rend(),
                                   [](const engine::DraftCounters& one) { return one.drafted > 0; });
  if (drafts == load.drafts.rend()) return {};
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return 100 * static_cast<double>(part) / static_cast<double>(whole);
  };
  std::string out =
      fmt::format("drafts: {:.2f} tokens a pass; {} of {} by {} were right ({:.1f} %; by place", load.tokens_a_turn(),
                  drafts->right, drafts->drafted, drafts->drafter, share(drafts->right, drafts->drafted));
  for (std::size_t place = 0; place < drafts->drafted_at.size() && drafts->drafted_at[place] > 0; ++place)
    out += fmt::format(" {:.0f}", share(drafts->right_at[place], drafts->drafted_at[place]));
  return out + fmt::format("), guessed in {:.1f} ms\n", drafts->seconds * 1000);
}

std::string describe_experts(const engine::Engine& engine, std::int64_t decoded_tokens) {
  const residency::StoreCounters store = engine.store_counters();
  const bool gpu = engine.vram_budget() != nullptr;
  const auto uses = store.hits + store.misses;
  if (uses == 0) return {};
  std::string out = fmt::format("experts: {} used, {:.1f} % found in {}, {} {}", uses,
                                100.0 * static_cast<double>(store.hits) / static_cast<double>(uses),
                                gpu ? "VRAM" : "memory", store.misses, gpu ? "not" : "read from disk");
  if (decoded_tokens > 0)
    out += fmt::format(" ({:.1f} a token)", static_cast<double>(store.misses) / static_cast<double>(decoded_tokens));
  out += fmt::format("\n         {}\n", store.experts.describe());
  if (store.guesses.any()) out += fmt::format("guesses: {}\n", store.guesses.describe());
  return out;
}

std::string render_stats(const engine::Engine& engine, double seconds, std::int64_t decoded_tokens,
                         const residency::Rates& rates) {
  const auto store = engine.store_counters();
  const auto disk = engine.storage().counters();
  const double busy = static_cast<double>(disk.busy_ns) * 1e-9;
  const auto rate = [](double bytes, double time) {
    return time > 0 ? fmt::format("{}/s", format_bytes(static_cast<std::uint64_t>(bytes / time))) : std::string("-");
  };
  const auto calibrated = [](double r) {
    return r > 0 ? fmt::format("{}/s", format_bytes(static_cast<std::uint64_t>(r))) : std::string("not measured");
  };
  std::string out;
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}\n", "tier", "moved", "rate",
                     rates.brief ? "measured briefly" : "calibrated");
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}   {} reads by {}\n", "disk", format_bytes(disk.bytes),
                     rate(static_cast<double>(disk.bytes), busy), calibrated(rates.disk), disk.reads,
                     engine.storage().traits().name);
  const residency::Budget* vram = engine.vram_budget();
  out += fmt::format("{:<6} {:>10} {:>14} {:>18}   {}\n", vram != nullptr ? "vram" : "ram",
                     format_bytes(store.bytes_used), rate(static_cast<double>(store.bytes_used), seconds),
                     calibrated(vram != nullptr ? rates.device_memory : rates.ram), engine.executor().describe());
  out += describe_experts(engine, decoded_tokens);
  out += describe_drafts(engine.load());
  if (vram != nullptr)
    return out + fmt::format("VRAM: {} of {} granted\n", format_bytes(vram->reserved_bytes()),
                             format_bytes(vram->cap_bytes()));
  out += fmt::format("waited for the disk {:.0f} % of the time; memory: {} of {} granted\n",
                     seconds > 0 ? 100.0 * static_cast<double>(store.stall_ns) * 1e-9 / seconds : 0.0,
                     format_bytes(engine.budget().reserved_bytes()), format_bytes(engine.budget().cap_bytes()));
  return out;
}

}  // namespace millrace::cli
