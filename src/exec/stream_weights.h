// Weights of residual streams by what a row's streams give (Ops::weigh_streams). Pure; any thread.
#pragma once

#include "exec/program.h"

namespace millrace::exec {

/// x [streams] = sigmoid(scale * x + bias) + eps: what a block reads of each stream.
void weigh_read_streams(const StreamWeighing& weighing, float scale, const float* bias, float* x);
/// x [weighing.whole()]: the reads as above, then the writes, then what stays; scales [3], bias as x.
/// REQUIRES: streams <= kMostStreams.
void weigh_streams(const StreamWeighing& weighing, const float* scales, const float* bias, float* x);
/// x [streams] = 2 sigmoid(x).
void weigh_writes(std::int64_t streams, float* x);
/// How far a stream takes what it is compared with, as Ops::gate_streams() has it. x, y: [dim].
float gate_of_stream(const float* x, const float* y, std::int64_t dim);

}  // namespace millrace::exec
