// Writes a GGUF model anew with its weights in another type. Pieces of a tensor are read, decoded, encoded and written
// by many threads with about 2 MiB each, whatever the model's size; the file appears under its name when it is whole.
// Thread-safety: functions without shared state; one call uses its own threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"
#include "modelfile/gguf.h"
#include "tensor/dtype.h"

namespace millrace::modelfile {

/// What a model is quantized to. All but q4_k_m name the type of nearly every matrix; choose_dtype() has the
/// exceptions.
enum class QuantizeType { f16, bf16, q8_0, q4_0, q6_k, q4_k, q4_k_m };

/// A type's name as users write it ("Q4_K_M") and its number in general.file_type (llama.cpp's llama_ftype).
struct QuantizeTypeInfo {
  QuantizeType type;
  std::string_view name;
  std::uint32_t file_type;
};
std::span<const QuantizeTypeInfo> quantize_types();

/// By name in any case; "Q4_K_S" is another name of Q4_K. Errors: unsupported, listing the names there are.
Expected<QuantizeType> quantize_type_from_name(std::string_view name);

/// What a mixture must know of the whole model.
struct MixtureContext {
  std::int64_t layers = 0;
  bool tied_head = false;  // no output.weight: token_embd is the head too
};

/// The type that `tensor` gets.
///  * One-dimensional tensors, norms, biases and routers (ffn_gate_inp) are F32; integer tensors stay what they are.
///  * In Q4_0, Q4_K and Q4_K_M the head (output.weight, or token_embd.weight where tied) is Q6_K.
///  * In Q4_K_M attn_v and ffn_down (of experts too) are Q6_K in the first eighth and the last eighth of the layers and
///    in every third layer between.
///  * A row that is not whole super-blocks of 256 gets Q8_0, and one that is not whole blocks of 32 gets F16.
DType choose_dtype(QuantizeType type, const TensorInfo& tensor, const MixtureContext& context);

struct QuantizeOptions {
  QuantizeType type = QuantizeType::q4_k_m;
  /// By a tensor's whole name: its type, in place of what choose_dtype() says. Types divide its rows and can be
  /// encoded.
  std::map<std::string, DType, std::less<>> types = {};
  int threads = 0;  // 0: the processors this process may use
  /// Called on the calling thread with bytes of input worked off and in all; last with done == total.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress = {};
  // Of this model's identity: substitutes of its layers are written (modelfile/substitute.h), those matrices that
  // become smaller. Empty: a model is.
  std::string substitute_of = {};
  const std::atomic<bool>* cancel = nullptr;  // polled; the call then ends with `cancelled` and leaves no file
};

/// Reads `in` (any of its splits; float or quantized, which is decoded first) and writes `out` as one file, replacing a
/// file of that name. Tensors that have their type already are copied unchanged.
/// Errors: those of Model::open; invalid_argument (`out` is a file of the input; types for tensors that are not there);
/// corrupt (a weight that is NaN or infinite, naming its tensor); unsupported (weights beyond F16's range; substitutes
/// of which none is smaller); io_error; cancelled. No error leaves a file.
Status quantize(const std::string& in, const std::string& out, const QuantizeOptions& options = {});

}  // namespace millrace::modelfile
