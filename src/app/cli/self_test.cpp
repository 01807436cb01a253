#include "app/cli/self_test.h"

#include <xxhash.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "base/bytes.h"
#include "base/os/scratch_file.h"
#include "base/os/system_name.h"
#include "device/cpu.h"
#include "device/host_memory.h"
#include "kernels/kernels.h"
#include "storage/storage.h"
#include "tensor/codec.h"
#include "tensor/dtype.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

struct Report {
  std::string text;
  int failed = 0;

  void line(std::string_view what, std::string_view found) { text += fmt::format("  {:<14}{}\n", what, found); }
  void fail(std::string_view what, std::string_view found) {
    line(what, fmt::format("FAILED: {}", found));
    ++failed;
  }
};

// ---- storage

constexpr std::uint64_t kFileBytes = 32 * kMiB, kReadBytes = kMiB;
constexpr std::uint64_t kTail = 777;  // the file ends inside a block

struct TestFile {
  os::ScratchFile file;
  std::vector<std::byte> bytes;
};

Expected<TestFile> make_file(const fs::path& folder) {
  MR_ASSIGN_OR_RETURN(os::ScratchFile file, os::ScratchFile::make(folder.string()));
  std::vector<std::byte> bytes(kFileBytes + kTail);
  std::mt19937_64 random(1);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  MR_RETURN_IF_ERROR(file.write(bytes));
  MR_RETURN_IF_ERROR(file.flush_to_disk());
  return TestFile{std::move(file), std::move(bytes)};
}

/// All of the file at once, then a few bytes at odd places. The rate of the former, in bytes per second.
Expected<double> read_back(storage::Backend& backend, const TestFile& file) {
  MR_ASSIGN_OR_RETURN(const auto memory,
                      device::HostBuffer::reserve(kFileBytes + storage::kMaxAlignment, device::Pages::normal));
  const std::uint64_t all = file.bytes.size();
  std::vector<storage::Read> reads;
  for (std::uint64_t offset = 0; offset < all; offset += kReadBytes)
    reads.push_back({0, offset, std::min(kReadBytes, all - offset), memory.data() + offset});
  storage::Completion completion;
  const auto begin = std::chrono::steady_clock::now();
  backend.submit(reads, completion);
  MR_RETURN_IF_ERROR(completion.wait());
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
  if (std::memcmp(memory.data(), file.bytes.data(), all) != 0) return error(Code::io_error, "other bytes were read");
  for (const std::uint64_t offset : {std::uint64_t{1}, std::uint64_t{511}, 5 * kMiB - 3, all - kTail - 5}) {
    std::byte* const at = memory.data() + offset % storage::kMaxAlignment;  // congruent to the offset
    const storage::Read odd{0, offset, 600, at};
    backend.submit({&odd, 1}, completion);
    MR_RETURN_IF_ERROR(completion.wait());
    if (std::memcmp(at, file.bytes.data() + offset, 600) != 0)
      return error(Code::io_error, "600 bytes at {} are others", offset);
  }
  MR_RETURN_IF_ERROR(backend.health());
  return static_cast<double>(all) / taken.count();
}

void test_storage(const fs::path& folder, Report& report) {
  report.text += fmt::format("\nstorage: a new file of {} in {}\n", format_bytes(kFileBytes + kTail), folder.string());
  const auto file = make_file(folder);
  if (!file.ok()) return report.fail("the file", file.status().message());
  for (const storage::BackendKind kind : storage::backend_kinds()) {
    if (kind == storage::BackendKind::automatic) continue;
    const std::string_view name = storage::backend_name(kind);
    const auto backend = storage::open_backend({file->file.path()}, {.kind = kind});
    if (!backend.ok()) {
      if (backend.status().code() != Code::unsupported)
        report.fail(name, backend.status().message());
      else
        report.line(name, "not here: " + backend.status().message());
      continue;
    }
    const auto rate = read_back(**backend, *file);
    if (!rate.ok()) {
      report.fail(name, rate.status().message());
      continue;
    }
    const storage::BackendTraits& traits = (*backend)->traits();
    report.line(name,
                fmt::format("right bytes at {}/s{}, alignment {} B", format_bytes(static_cast<std::uint64_t>(*rate)),
                            traits.bypasses_page_cache ? "" : " through the system's cache", traits.alignment));
  }
}

// ---- kernels

constexpr std::int64_t kCols = 768, kWeightRows = 21, kRows = 5;

/// Numbers of a few bits, the same on every system.
std::vector<float> numbers(std::int64_t count, std::mt19937& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<std::int32_t>(random() % 4001) - 2000) / 512.0F;
  return values;
}

std::size_t rounded_up(std::int64_t bytes) { return static_cast<std::size_t>(bytes + 63) / 64 * 64; }

struct Inputs {
  DType dtype;
  std::vector<std::byte> weight;
  std::vector<float> x;
};

/// What one instruction set computes with one type: products of one row and of several, in the CPU's summation order
/// and in a GPU's.
Expected<std::vector<float>> products(const kernels::Table& table, const Inputs& in) {
  const std::size_t q8 = rounded_up(kernels::q8_bytes(kRows, kCols));
  const std::size_t own = rounded_up(table.matmul_workspace_bytes(kCols)),
                    segments = rounded_up(table.matmul_segments_workspace_bytes(kCols));
  MR_ASSIGN_OR_RETURN(const auto memory, device::HostBuffer::reserve(q8 + own + segments, device::Pages::normal));
  kernels::MatmulArgs args;
  args.dtype = in.dtype;
  args.weight = in.weight.data();
  args.weight_rows = kWeightRows;
  args.cols = kCols;
  args.x = in.x.data();
  args.x_stride = kCols;
  args.x_q8 = kernels::q8_rows_at(memory.data(), kRows, kCols);
  if (kernels::uses_q8(in.dtype)) table.quantize_q8(in.x.data(), kCols, kRows, kCols, args.x_q8);
  args.y_stride = kWeightRows;
  std::vector<float> y(static_cast<std::size_t>(2 * (kRows + 1) * kWeightRows));
  args.y = y.data();
  for (const bool of_gpu : {false, true})
    for (const std::int64_t rows : {std::int64_t{1}, kRows}) {
      args.x_rows = rows;
      args.workspace = memory.data() + q8 + (of_gpu ? own : 0);
      (of_gpu ? table.matmul_segments : table.matmul)(args);
      args.y += rows * kWeightRows;
    }
  return y;
}

/// Norms, a gate and softmax, on which every model's tokens depend.
std::vector<float> functions(const kernels::Table& table, const std::vector<float>& x) {
  std::vector<float> weight(x.begin(), x.begin() + kCols), out(x.size()), all;
  const auto keep = [&all](const std::vector<float>& values) { all.insert(all.end(), values.begin(), values.end()); };
  table.rms_norm(x.data(), weight.data(), kRows, kCols, 1e-5F, out.data());
  keep(out);
  table.layer_norm(x.data(), weight.data(), nullptr, kRows, kCols, 1e-5F, out.data());
  keep(out);
  std::vector<float> gate = x;
  table.gate_mul(kernels::Activation::silu, 0, gate.data(), out.data(), static_cast<std::int64_t>(gate.size()));
  keep(gate);
  std::vector<float> scores = x;
  table.softmax(scores.data(), static_cast<std::int64_t>(scores.size()));
  keep(scores);
  std::vector<float> capped = x;
  table.softcap(capped.data(), 3, static_cast<std::int64_t>(capped.size()));
  keep(capped);
  return all;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

Status test_kernels(Report& report) {
  std::mt19937 random(2);
  const std::vector<float> x = numbers(kRows * kCols, random);
  std::vector<device::Isa> isas;
  for (const device::Isa isa : device::kIsas)
    if (isa != device::Isa::plain && device::has_isa(isa)) isas.push_back(isa);
  std::vector<std::string> others(isas.size());  // names of what differs
  std::uint64_t digest = 0;
  int types = 0;
  const auto compare = [&](std::string_view what, const std::vector<float>& plain, const auto& compute) -> Status {
    digest = XXH3_64bits_withSeed(plain.data(), plain.size() * sizeof(float), digest);
    for (std::size_t i = 0; i < isas.size(); ++i) {
      MR_ASSIGN_OR_RETURN(const std::vector<float> found, compute(kernels::table(isas[i])));
      if (!same_bits(plain, found)) others[i] += fmt::format(" {}", what);
    }
    return {};
  };
  const kernels::Table& plain = kernels::table(device::Isa::plain);
  for (const DTypeInfo& type : all_dtypes()) {
    if (!type.computable) continue;
    ++types;
    const std::int64_t row = row_bytes(type.dtype, kCols);
    Inputs in{type.dtype, std::vector<std::byte>(static_cast<std::size_t>(kWeightRows * row)), x};
    for (std::int64_t i = 0; i < kWeightRows; ++i)
      encode_row(type.dtype, numbers(kCols, random).data(), kCols, in.weight.data() + i * row);
    const auto compute = [&in](const kernels::Table& table) { return products(table, in); };
    MR_ASSIGN_OR_RETURN(const std::vector<float> expected, compute(plain));
    MR_RETURN_IF_ERROR(compare(type.name, expected, compute));
  }
  const auto compute = [&x](const kernels::Table& table) -> Expected<std::vector<float>> {
    return functions(table, x);
  };
  MR_RETURN_IF_ERROR(compare("functions", functions(plain, x), compute));

  report.text += fmt::format("\nkernels: products with {} types of weights, norms, gates, softmax\n", types);
  for (std::size_t i = 0; i < isas.size(); ++i) {
    const std::string_view name = device::isa_name(isas[i]);
    if (others[i].empty())
      report.line(name, "the bits of the plain kernels");
    else
      report.fail(name, "other bits than the plain kernels in" + others[i]);
  }
  // The same for one version of Millrace on every machine and system.
  report.line("digest", fmt::format("{:016x}", digest));
  return {};
}

}  // namespace

SelfTest run_self_test(const std::string& path) {
  std::error_code code;
  fs::path folder = path.empty() ? "." : path;
  if (!fs::is_directory(folder, code)) folder = folder.has_parent_path() ? folder.parent_path() : ".";
  Report report;
  report.text = fmt::format("Self-test of millrace {}: attach all of this to a report.\n\n", MILLRACE_VERSION);
  report.line("system", os::system_name());
  report.line("processor",
              fmt::format("{}; kernels: {}", device::cpu_model_name(), device::isa_name(device::best_isa())));
  test_storage(folder, report);
  if (const Status status = test_kernels(report); !status.ok()) report.fail("kernels", status.message());
  report.text += report.failed == 0 ? "\nPassed.\n" : fmt::format("\n{} FAILED.\n", report.failed);
  return {std::move(report.text), report.failed == 0};
}

}  // namespace millrace::cli
