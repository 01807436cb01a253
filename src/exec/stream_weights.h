// Weights of residual streams by what a row's streams give (Ops::weigh_streams). Pure; any thread.
#pragma once

#include "exec/program.h"

namespace millrace::exec {

/// x [streams] = sigmoid(scale * x + bias) + eps: what a block reads of each stream.
void weigh_read_streams(const StreamWeighing& weighing, float scale, const float* bias, float* x);
/// x [weighing.whole()]: the reads as above, then the writes, then what stays; scales [3], bias as x.
/// REQUIRES: streams <= kMostStreams.
void weigh_streams(const StreamWeighing& weighing, const float* scales, const float* bias, float* x);

}  // namespace millrace::exec
