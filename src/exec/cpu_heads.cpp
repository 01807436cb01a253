// Products by heads of the CPU executor: what latent attention makes of queries, and of what it has summed.
#include <algorithm>

#include "exec/cpu_executor.h"
#include "tensor/codec.h"

namespace millrace::exec {

/// Head h of row r is row r * heads + h of x, [rows * heads, x_head], and of out.
struct CpuExecutor::HeadProduct {
  WeightRef weight;
  HeadWeights form;
  std::int64_t heads = 0, rows = 0;
  std::int64_t n = 0, k = 0;  // of a head's matrix, as it lies
  const float* x = nullptr;
  float* out = nullptr;
  std::int64_t x_head = 0, out_head = 0;

  std::int64_t taken() const { return form.transposed ? n : k; }  // channels of a head of x
  std::int64_t made() const { return form.transposed ? k : n; }   // of a head of out
  /// Where head h's matrix begins: a weight, and a row of it.
  WeightRef weight_of(std::int64_t h) const {
    return form.parts ? WeightRef{weight.unit, weight.part + static_cast<std::int32_t>(h)} : weight;
  }
  std::int64_t first_row(std::int64_t h) const { return form.parts ? 0 : h * n; }
};

/// Rows [begin, end) of a head's matrix.
struct CpuExecutor::HeadRows {
  std::int64_t head = 0, begin = 0, end = 0;
  const std::byte* bytes = nullptr;
};

void CpuExecutor::matmul_heads(Act out, WeightRef weight, Act x, std::int64_t heads, HeadWeights form) {
  if (!ready() || rows_of(x) == 0) return;
  const residency::Part& matrix = part(weight);
  const HeadProduct product{
      weight,      form,    heads,     rows_of(x),         form.parts ? matrix.rows : matrix.rows / heads,
      matrix.cols, data(x), data(out), cols_of(x) / heads, cols_of(out) / heads};
  const std::int64_t left = product.x_head - product.taken();
  if ((!form.parts && matrix.rows % heads != 0) || left < 0 || product.made() + left != product.out_head) {
    fail(error(Code::internal, "{} is [{}, {}] where {} heads of {} channels become heads of {}", matrix.name,
               matrix.rows, matrix.cols, heads, product.x_head, product.out_head));
    return;
  }
  if (form.transposed)
    add_rows_of_heads(product);
  else
    multiply_heads(product);
  if (left == 0 || failed()) return;
  for_rows(product.rows * heads, left, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      std::copy_n(product.x + i * product.x_head + product.taken(), left,
                  product.out + i * product.out_head + product.made());
  });
}

/// Hands the rows of all heads' matrices to `take`, in order. `run` is called where what was taken has to be used,
/// because its bytes may go: before a piece that is not there yet, behind `most` of them, and at the end.
void CpuExecutor::for_heads(const HeadProduct& product, std::size_t most, FunctionRef<void(const HeadRows&)> take,
                            FunctionRef<void()> run) {
  std::size_t taken = 0;
  for (std::int64_t h = 0; h < product.heads; ++h) {
    const WeightRef ref = product.weight_of(h);
    const std::int64_t first = product.first_row(h), row = row_bytes(part(ref).dtype, product.k);
    for (const Piece& piece : pieces_.pieces(ref)) {
      const std::int64_t begin = std::max(first, piece.row_begin), end = std::min(first + product.n, piece.row_end);
      if (begin >= end) continue;
      const std::byte* bytes = taken > 0 && taken < most ? lease_if_ready(piece) : nullptr;
      if (bytes == nullptr) {
        if (taken > 0) run();
        taken = 0;
        bytes = ready() ? lease_now(piece) : nullptr;
      }
      if (bytes == nullptr) return;
      take({h, begin - first, end - first, bytes + (begin - piece.row_begin) * row});
      ++taken;
    }
  }
  run();
}

void CpuExecutor::multiply_heads(const HeadProduct& product) {
  const std::int64_t rows = product.rows, heads = product.heads;
  Input all;
  all.x = product.x;
  all.cols = product.x_head;
  all.rows = rows;
  auto* index = at<std::int32_t>(layout_.head_rows);  // [heads, rows]
  for (std::int64_t h = 0; h < heads; ++h)
    for (std::int64_t r = 0; r < rows; ++r) index[h * rows + r] = static_cast<std::int32_t>(r * heads + h);
  if (kernels::uses_q8(part(product.weight).dtype)) {
    all.q8 = kernels::q8_rows_at(at<std::byte>(layout_.input_q8), rows * heads, product.k);
    for_rows(rows * heads, product.k, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * product.k;
      table_.quantize_q8(all.x + begin * product.x_head, product.x_head, end - begin, product.k,
                         {all.q8.q + first, all.q8.d + first / 32, all.q8.sum16 + first / 16});
    });
  }
  jobs_.clear();
  const auto take = [&](const HeadRows& of) {
    Input input = all;
    input.index = index + of.head * rows;
    input.name = ++inputs_;
    const WeightRef weight = product.weight_of(of.head);
    const Target target{weight, product.out + of.head * product.out_head, heads * product.out_head, {}};
    jobs_.push_back(make_job(weight, of.bytes, of.begin, of.end, target, input, Effect::store));
  };
  for_heads(product, jobs_.capacity(), take, [&] {
    run_jobs();
    jobs_.clear();
  });
}

/// out = the sum over the matrix's rows, ascending, of row i, as its dtype decodes, times channel i of x: one fma each.
void CpuExecutor::add_rows_of_heads(const HeadProduct& product) {
  for_rows(product.rows * product.heads, product.k, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) std::fill_n(product.out + i * product.out_head, product.k, 0.0f);
  });
  std::vector<HeadRows> wave;  // of heads that differ: each is a thread's
  const auto run = [&] {
    pool_.parallel_for(std::ssize(wave), 1, [&](std::int64_t first, std::int64_t last, int thread) {
      for (std::int64_t i = first; i < last; ++i) add_rows_of_head(product, wave[static_cast<std::size_t>(i)], thread);
    });
    wave.clear();
    keep_last_lease();
  };
  const auto take = [&](const HeadRows& of) {
    if (!wave.empty() && wave.back().head == of.head) run();
    wave.push_back(of);
  };
  for_heads(product, jobs_.capacity(), take, run);
}

void CpuExecutor::add_rows_of_head(const HeadProduct& product, const HeadRows& of, int thread) const {
  const DType dtype = part(product.weight_of(of.head)).dtype;
  auto* const row = reinterpret_cast<float*>(thread_memory(thread) + layout_.thread_latents);
  for (std::int64_t i = of.begin; i < of.end; ++i) {
    decode_row(dtype, of.bytes + (i - of.begin) * row_bytes(dtype, product.k), product.k, row);
    for (std::int64_t r = 0; r < product.rows; ++r) {
      const std::int64_t at = r * product.heads + of.head;
      table_.add_scaled(product.out + at * product.out_head, row, product.x[at * product.x_head + i], product.k);
    }
  }
}

}  // namespace millrace::exec
