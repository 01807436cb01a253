// The rotation of kernels/rotation.h, by a workgroup of kThreads over its shared `head`; `factor` is an argument. All have
// passed a barrier since `head` was written.
void rotate(uint head_dim, uint span) {
  for (uint h = 1u; h < span; h *= 2u) {
    for (uint p = gl_LocalInvocationID.x; p < head_dim / 2u; p += kThreads) {
      uint i = p / h * 2u * h + p % h;
      precise float sum = head[i] + head[i + h];
      precise float difference = head[i] - head[i + h];
      head[i] = sum;
      head[i + h] = difference;
    }
    barrier();
  }
  for (uint i = gl_LocalInvocationID.x; i < head_dim; i += kThreads) {
    precise float y = head[i] * factor;
    head[i] = y;
  }
  barrier();
}
