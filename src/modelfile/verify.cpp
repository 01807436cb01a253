#include "modelfile/verify.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <utility>

#include "base/thread_pool.h"
#include "modelfile/escape.h"
#include "modelfile/file_io.h"
#include "tensor/codec.h"

namespace millrace::modelfile {
namespace {

constexpr std::int64_t kStepElements = 4096;         // decoded at a time: stays in the L1 cache
constexpr std::int64_t kPieceElements = 256 * 1024;  // read at a time: whole blocks of every dtype

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

/// One thread's room.
struct Room {
  std::vector<std::byte> bytes;
  std::array<float, kStepElements> step;
  std::unique_ptr<XXH3_state_t, FreeState> state{XXH3_createState()};
};

/// The first element that is no number, or none (-1). What a block's scales are not, its elements are not either.
std::int64_t first_bad(DType dtype, const std::byte* bytes, std::int64_t count, Room& room) {
  for (std::int64_t at = 0; at < count; at += kStepElements) {
    const std::int64_t n = std::min(kStepElements, count - at);
    decode_row(dtype, bytes + row_bytes(dtype, at), n, room.step.data());
    bool finite = true;
    for (std::int64_t i = 0; i < n; ++i) finite &= std::isfinite(room.step[static_cast<std::size_t>(i)]);
    if (finite) continue;
    for (std::int64_t i = 0; i < n; ++i)
      if (!std::isfinite(room.step[static_cast<std::size_t>(i)])) return at + i;
  }
  return -1;
}

std::string hash_text(const XXH3_state_t& state) {
  const XXH128_hash_t hash = XXH3_128bits_digest(&state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

class Verifier {
 public:
  Verifier(const Model& model, const VerifyOptions& options) : model_(model), options_(options) {}

  Expected<std::vector<VerifiedTensor>> run() {
    MR_ASSIGN_OR_RETURN(files_, open_files(model_.paths()));
    const int threads = options_.threads > 0 ? options_.threads : ThreadPool::usable_processors();
    ThreadPool pool({.threads = threads, .pin = false});
    std::vector<Room> rooms(static_cast<std::size_t>(pool.threads()));
    const auto count = static_cast<std::int64_t>(model_.tensors().size());
    std::vector<VerifiedTensor> found(static_cast<std::size_t>(count));
    std::vector<Status> statuses(rooms.size());
    pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end, int thread) {
      Status& status = statuses[static_cast<std::size_t>(thread)];
      for (std::int64_t t = begin; t < end && !failed_.load(std::memory_order_relaxed); ++t) {
        status = check(model_.tensors()[static_cast<std::size_t>(t)], rooms[static_cast<std::size_t>(thread)],
                       found[static_cast<std::size_t>(t)], thread);
        if (!status.ok()) failed_ = true;
      }
    });
    for (const Status& status : statuses) MR_RETURN_IF_ERROR(status);
    if (options_.progress) options_.progress(done_, done_);
    return found;
  }

 private:
  Status check(const TensorInfo& tensor, Room& room, VerifiedTensor& found, int thread) {
    found.name = tensor.name;
    XXH3_128bits_reset(room.state.get());
    const std::int64_t elements = tensor.cols() * tensor.rows();
    const bool numbers = info(tensor.dtype).computable;
    for (std::int64_t at = 0; at < elements; at += kPieceElements) {
      if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed))
        return error(Code::cancelled, "it was cancelled");
      const std::int64_t n = std::min(kPieceElements, elements - at);
      room.bytes.resize(static_cast<std::size_t>(row_bytes(tensor.dtype, n)));
      const std::uint64_t place = tensor.offset + static_cast<std::uint64_t>(row_bytes(tensor.dtype, at));
      MR_RETURN_IF_ERROR(files_[static_cast<std::size_t>(tensor.file)].read_at(place, room.bytes));
      XXH3_128bits_update(room.state.get(), room.bytes.data(), room.bytes.size());
      const std::int64_t bad =
          numbers && found.trouble.empty() ? first_bad(tensor.dtype, room.bytes.data(), n, room) : -1;
      if (bad >= 0) {
        const std::int64_t index = at + bad, block = info(tensor.dtype).block_elements;
        found.trouble = fmt::format("number {} of row {} is NaN or infinite{}", index % tensor.cols(),
                                    index / tensor.cols(), block > 1 ? " (its block's scale is none)" : "");
      }
      done_ += room.bytes.size();
      if (thread == 0 && options_.progress) options_.progress(done_, model_.tensor_bytes());
    }
    found.hash = hash_text(*room.state);
    return {};
  }

  const Model& model_;
  const VerifyOptions& options_;
  std::vector<File> files_;
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> done_ = 0;
};

std::string shape_text(const TensorInfo& tensor) {
  return fmt::format("{} {} x {}", info(tensor.dtype).name, tensor.cols(), tensor.rows());
}

}  // namespace

Expected<std::vector<VerifiedTensor>> verify(const Model& model, const VerifyOptions& options) {
  return Verifier(model, options).run();
}

std::vector<std::string> differences(const Model& a, const std::vector<VerifiedTensor>& of_a, const Model& b,
                                     const std::vector<VerifiedTensor>& of_b) {
  std::map<std::string_view, std::string_view> hashes;
  for (const VerifiedTensor& tensor : of_b) hashes[tensor.name] = tensor.hash;
  std::vector<std::string> lines;
  for (const VerifiedTensor& tensor : of_a) {
    const std::string name = escape(tensor.name, 120);
    const TensorInfo *mine = a.find(tensor.name), *other = b.find(tensor.name);
    if (other == nullptr) {
      lines.push_back(fmt::format("tensor '{}' is only in the first file", name));
    } else if (mine->dtype != other->dtype || mine->shape != other->shape) {
      lines.push_back(fmt::format("tensor '{}' is {} in the first file and {} in the second", name, shape_text(*mine),
                                  shape_text(*other)));
    } else if (hashes[tensor.name] != tensor.hash) {
      lines.push_back(fmt::format("tensor '{}' holds other weights", name));
    }
  }
  for (const TensorInfo& tensor : b.tensors())
    if (a.find(tensor.name) == nullptr)
      lines.push_back(fmt::format("tensor '{}' is only in the second file", escape(tensor.name, 120)));
  return lines;
}

}  // namespace millrace::modelfile
