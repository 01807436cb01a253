#include "exec/router_ahead.h"

#include <algorithm>

#include "base/median.h"

namespace millrace::exec {

std::vector<RouterAhead> routers_ahead(const Program& program) {
  std::vector<RouterAhead> routers;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const Step& step = program.steps[i];
    if (step.kind != Step::Kind::moe) continue;
    RouterAhead ahead;
    ahead.layer = step.layer;
    ahead.router = step.weight;
    ahead.experts = step.experts;
    if (!step.experts.of_tokens.none()) {  // no state says which they are
      routers.push_back(ahead);
      continue;
    }
    for (std::size_t before = i; before-- > 0;) {
      const Step& from = program.steps[before];
      if (!from.writes(step.b)) continue;
      if (from.kind == Step::Kind::rms_norm && !(from.a == step.b)) {
        ahead.state = from.a;
        ahead.norm = from.weight;
        ahead.eps = from.eps;
      }
      break;
    }
    routers.push_back(ahead);
  }
  return routers;
}

void PrefetchTrial::passed(double seconds) {
  if (!trying_) {
    if (--left_ > 0) return;
    trying_ = true;
    done_ = 0;
    for (auto& times : seconds_) times.clear();
    return;
  }
  if (done_ % kTurn > 0) seconds_[turn() % 2].push_back(seconds);
  if (++done_ == kTurn * kTurns) decide();
}

void PrefetchTrial::decide() {
  on_ = median_of(seconds_[1]) < kGain * median_of(seconds_[0]);
  rests_ = on_ ? 1 : std::min(rests_ * 2, kMostRests);
  left_ = kRest * rests_;
  trying_ = false;
}

}  // namespace millrace::exec
