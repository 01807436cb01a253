#include "app/server/request_memory.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/bytes.h"

namespace millrace::server {
namespace {

/// How long a request waits for memory that others hold, and how often it asks.
constexpr std::chrono::milliseconds kPatience{2000}, kPause{5};

}  // namespace

RequestMemory::RequestMemory(residency::Budget& budget, std::function<bool()> gone)
    : budget_(budget), gone_(std::move(gone)) {
  // Nothing is always granted.
  auto body = budget_.reserve(kBodies, 0);
  auto work = budget_.reserve(kWork, 0);
  body_ = std::move(*body);
  work_ = std::move(*work);
}

bool RequestMemory::grow(residency::Reservation& part, std::uint64_t bytes) {
  if (part.try_grow(bytes)) return true;
  refused_ = body_.bytes() + work_.bytes() + bytes;
  if (refused_ > budget_.cap_bytes()) return false;
  // Small servers have room for few at once, whose answers are soon done. Nobody tells when: it is asked for.
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline && !gone_()) {
    std::this_thread::sleep_for(kPause);
    if (!part.try_grow(bytes)) continue;
    refused_ = 0;
    return true;
  }
  return false;
}

bool RequestMemory::take_body(std::uint64_t bytes, bool length_known) {
  return grow(body_, bytes) && (length_known || grow(work_, bytes));
}

bool RequestMemory::take(std::uint64_t bytes) { return grow(work_, bytes); }

void RequestMemory::give_back(std::uint64_t bytes) noexcept {
  // Shrinking cannot fail.
  [[maybe_unused]] const Status status = work_.resize(work_.bytes() - std::min(bytes, work_.bytes()));
}

Status RequestMemory::refusal() const {
  if (refused_ == 0) return {};
  if (refused_ > budget_.cap_bytes())
    return error(Code::out_of_budget,
                 "this request would take {} of memory; all of them together may hold {} (an eighth of --ram, 256 MB "
                 "at most): send less",
                 format_bytes(refused_), format_bytes(budget_.cap_bytes()));
  return error(Code::unavailable, "the memory that requests may hold, {}, is taken by others; try again later",
               format_bytes(budget_.cap_bytes()));
}

void RequestMemory::clear() {
  refused_ = 0;
  [[maybe_unused]] Status status = body_.resize(0);
  status = work_.resize(0);
}

}  // namespace millrace::server
