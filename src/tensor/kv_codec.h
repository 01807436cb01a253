// How 32 channels of a token's key or value become few bits: what the store of every executor gives, bit for bit.
//
// Q4: a channel is d * q, d a float16 and q in -8..7. Not a number counts as 0, and magnitudes above kLargestEncodable
// as that. The extreme is the least channel if its magnitude is at least the largest channel's, else the largest. Of
// four scales the one with the least squared error is taken, the first of equal ones: the extreme divided by -8, -7.5,
// -8.5 and -9, rounded to float16 (at most the largest finite one). With each, q = x * (1 / d), rounded to the nearest
// integer (ties to even) and held within -8..7, or 0 where d is 0. The squares of the errors x - d * q are added as a
// tree of neighbours: channels 2i and 2i + 1, then pairs, and so on; each operation is rounded once.
// So a scale serves the extreme's sign with all of the eight steps that this side has, and errors are 4 % smaller than
// those of the first scale alone (root of the mean square, of normal numbers).
//
// Thread-safety: pure functions.
#pragma once

#include <cstdint>

namespace millrace {

constexpr int kKvGroup = 32;  // channels with one scale

struct KvGroup {
  std::uint16_t d = 0;
  std::int8_t q[kKvGroup] = {};
};

KvGroup encode_kv_q4(const float* x);  // x: [kKvGroup]

}  // namespace millrace
