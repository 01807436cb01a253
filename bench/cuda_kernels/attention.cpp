// Attention over keys and values, and what stores them. Bytes of a few-bit cache are counted as if all of it had few
// bits; its first and newest blocks have more.
#include <fmt/format.h>

#include "cuda_kernels/shapes.h"

namespace millrace::bench {
namespace {

using namespace kernels::cuda;

struct Heads {
  std::string_view name;
  int heads, kv_heads, head_dim, rotary, window;
  bool norms = false, sinks = false;
};
constexpr Heads kHeads[] = {{"8B", 32, 8, 128, 128, 0},
                            {"70B", 64, 8, 128, 128, 0},
                            {"30B-A3B", 32, 4, 128, 128, 0, true},
                            {"gpt-oss", 64, 8, 64, 64, 0, false, true},
                            {"gpt-oss, window 128", 64, 8, 64, 64, 128, false, true},
                            {"Gemma 27B, window 1024", 32, 16, 128, 128, 1024, true},
                            {"35B-A3B, heads of 256", 16, 2, 256, 64, 0, true},
                            {"Gemma 4, heads of 512", 32, 4, 512, 128, 0, true}};
constexpr DType kCaches[] = {DType::f16, DType::f32, DType::q8_0, DType::q4_0, DType::q3_k, DType::q2_0};

/// In f16 every model, in the other formats one.
bool has(const Heads& m, DType dtype) { return dtype == DType::f16 || m.name == "8B"; }
std::string_view name_of(DType dtype) {
  return dtype == DType::q3_k ? "q3" : dtype == DType::q2_0 ? "q2" : info(dtype).name;
}

/// Tiles as the executor cuts them.
std::vector<RowTile> tiles_of(int rows, int before, int most, bool by_blocks) {
  std::vector<RowTile> tiles;
  for (int r = 0; r < rows; ++r) {
    const bool parts = by_blocks && (before + r) % kBlockTokens == 0;
    if (tiles.empty() || parts || tiles.back().rows >= most) tiles.push_back({r, 0, 0, 0});
    ++tiles.back().rows;
    tiles.back().last_position = before + r;
  }
  return tiles;
}

void time_rope_store(Suite& suite, const Heads& m, DType dtype, int rows) {
  suite.time("rope_store", fmt::format("{}, KV {}", m.name, name_of(dtype)), rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, 2048, rows == kPromptRows);
    const std::int64_t kv = std::int64_t{rows} * m.kv_heads * m.head_dim;
    RopeStoreCall call;
    call.rows = pass.view;
    call.kv = kv_view(c, pass, dtype, m.kv_heads, m.head_dim);
    call.q = c.changes<float>(std::int64_t{rows} * m.heads * m.head_dim);
    call.k = c.reads<float>(kv);
    call.v = c.reads<float>(kv);
    call.heads = m.heads;
    if (m.norms) {
      call.q_norm = c.vector(m.head_dim);
      call.k_norm = c.vector(m.head_dim);
      call.eps = 1e-6F;
    }
    call.cos_sin = c.reads<float>(std::int64_t{rows} * m.rotary);
    call.rotary = m.rotary;
    call.neox = m.norms || m.sinks;
    c.moves(2.0 * static_cast<double>(kv_row_bytes(dtype, m.head_dim)) * m.kv_heads * rows);
    return [=](cudaStream_t stream) { return rope_store(call, stream); };
  });
}

void time_attending(Suite& suite, const Heads& m, DType dtype, int rows, int before) {
  const bool prompt = rows == kPromptRows;
  const std::string name = fmt::format("{}, KV {}, {} {}", m.name, name_of(dtype), prompt ? "behind" : "over",
                                       context(prompt ? before : before + 1));
  suite.time("attention", name, rows, [=](Case& c) {
    const PassRows pass = pass_rows(c, rows, before, prompt);
    const int group = m.heads / m.kv_heads, cols = m.heads * m.head_dim;
    AttentionCall call;
    call.rows = pass.view;
    call.kv = kv_view(c, pass, dtype, m.kv_heads, m.head_dim);
    call.q = c.reads<float>(std::int64_t{rows} * cols);
    call.heads = m.heads;
    call.scale = 0.1F;
    call.window = m.window;
    if (m.sinks) call.sinks = c.vector(m.heads);
    call.floats = false;
    call.out = call.kv.rotation > 0 ? c.room<float>(std::int64_t{rows} * cols) : nullptr;
    call.out_q8 = c.q8_room(rows, cols);
    call.max_position = (pass.longest + kAttentionChunk - 1) / kAttentionChunk * kAttentionChunk;
    if (prompt) {
      const auto tiles = tiles_of(rows, before, attention_tile_rows(group), kv_has_few_bits(dtype));
      call.tiles = c.holds(tiles);
      call.tile_count = static_cast<std::int32_t>(tiles.size());
    }
    // Rows in tiles whose heads are wide are worked 64 at once.
    call.workspace = c.room<std::byte>(static_cast<std::int64_t>(
        attention_workspace_bytes(std::min(rows, 64), m.heads, m.head_dim, call.max_position)));
    const int window = m.window > 0 ? m.window : pass.longest;
    double visible = 0;  // keys of all rows
    for (int r = 0; r < rows; ++r) visible += std::min(window, (prompt ? before + r : before) + 1);
    const double keys = prompt ? std::min(window + rows - 1, pass.longest) : visible;  // of all sequences
    c.moves(2.0 * static_cast<double>(kv_row_bytes(dtype, m.head_dim)) * m.kv_heads * keys);
    const double macs = 2.0 * visible * cols;
    if (dtype == DType::f16)
      c.multiplies_bf16(macs);
    else if (dtype != DType::f32)
      c.multiplies_int8(macs);
    return [=](cudaStream_t stream) { return attention(call, stream); };
  });
}

}  // namespace

void time_attention(Suite& suite) {
  for (const Heads& m : kHeads)
    for (const DType dtype : kCaches) {
      if (!has(m, dtype)) continue;
      for (const int rows : kAllRows) time_rope_store(suite, m, dtype, rows);
      for (const int rows : kFewRows) {
        time_attending(suite, m, dtype, rows, 2047);
        if (rows < 64 && m.window == 0) time_attending(suite, m, dtype, rows, 15999);
      }
      time_attending(suite, m, dtype, kPromptRows, 0);
      if (m.window == 0) time_attending(suite, m, dtype, kPromptRows, 16000);
    }
  // What comes behind attention over a rotated cache.
  for (const int rows : kAllRows)
    suite.time("rotate_heads", "8B, to int8", rows, [=](Case& c) {
      float* const x = c.reads<float>(std::int64_t{rows} * 32 * 128);
      const Q8 out = c.q8_room(rows, 32 * 128);
      return [=](cudaStream_t stream) { return rotate_heads(x, rows * 32, 128, 128, false, out, stream); };
    });
}

}  // namespace millrace::bench
