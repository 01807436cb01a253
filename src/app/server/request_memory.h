// What a request makes the server hold - its body as it arrives, the JSON made of it, its prompt, its answer - as
// grants of the budget that all requests share (ModelManager::requests()). Thread-safety: of one connection's thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/status.h"
#include "base/work_grant.h"
#include "residency/budget.h"

namespace millrace::server {

class RequestMemory final : public WorkGrant {
 public:
  static constexpr const char* kBodies = "request bodies";
  static constexpr const char* kWork = "requests";

  /// `gone`: asked whether somebody waits for the answer still. The budget outlives this.
  RequestMemory(residency::Budget& budget, std::function<bool()> gone);

  /// More bytes of the body have come. What others hold now is waited for, two seconds at most. Each byte counts once,
  /// or twice where its length was not told: a text that grows is copied. False: there is no room for them.
  bool take_body(std::uint64_t bytes, bool length_known);
  bool take(std::uint64_t bytes) override;  // waits likewise
  bool take_now(std::uint64_t bytes) { return work_.try_grow(bytes); }
  void give_back(std::uint64_t bytes) noexcept override;
  bool cancelled() const override { return gone_(); }

  /// Why the last take() failed: out_of_budget where this request would not fit alone, unavailable where others are in
  /// its way. Ok: none failed.
  Status refusal() const;
  /// The request is answered.
  void clear();
  std::uint64_t cap_bytes() const { return budget_.cap_bytes(); }

 private:
  bool grow(residency::Reservation& part, std::uint64_t bytes);

  residency::Budget& budget_;
  const std::function<bool()> gone_;
  residency::Reservation body_, work_;
  std::uint64_t refused_ = 0;  // bytes this request would have held; 0: nothing was refused
};

}  // namespace millrace::server
