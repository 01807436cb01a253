// Runs of a window's sequences, as layers with a state go through them: kernels/gpu/recurrent.h, StateRun. Behind
// numerics.glsl.
struct StateRun {
  uint64_t before, after;
  int first_row, rows, sequence_row, sequence_has_more;
};
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Runs { StateRun v[]; };

bool is_empty(StateRun run) { return run.rows == 0 && run.after == 0ul; }
