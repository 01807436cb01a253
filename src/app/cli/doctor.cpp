#include "app/cli/doctor.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <vector>

#include "app/store/suggestions.h"
#include "base/bytes.h"
#include "base/os/disk.h"
#include "base/os/file_info.h"
#include "base/os/folder.h"
#include "base/os/library.h"
#include "base/os/process.h"
#include "base/os/processors.h"
#include "base/os/scratch_file.h"
#include "base/thread_pool.h"
#include "device/cpu.h"
#include "device/gpu.h"
#include "residency/calibrate.h"
#include "storage/backends.h"
#include "storage/storage.h"

namespace millrace::cli {
namespace {

namespace fs = std::filesystem;

// What /proc, /sys and cgroups hold, NVIDIA's driver and cuFile: nothing of it is asked for on Windows.
#if defined(_WIN32)
constexpr bool kOnLinux = false;
#else
constexpr bool kOnLinux = true;
#endif

enum class Mark { ok, could_be_better, missing };

struct Finding {
  Mark mark = Mark::ok;
  std::string what, found;
  std::string change{};  // empty: nothing
};
using Findings = std::vector<Finding>;

std::string_view mark_text(Mark mark) {
  switch (mark) {
    case Mark::ok:
      return "ok";
    case Mark::could_be_better:
      return "!";
    case Mark::missing:
      return "-";
  }
  return "?";
}

/// The first line of a small file of /proc or /sys; empty when it cannot be read.
std::string first_line(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string whole_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// ---- processor and memory

Finding find_processor() {
  const device::Isa isa = device::best_isa();
  Finding finding = {.what = "processor",
                     .found = fmt::format("{}; kernels: {}", device::cpu_model_name(), device::isa_name(isa))};
  if (isa == device::Isa::plain) {
    finding.mark = Mark::could_be_better;
    finding.change =
        "this processor (or its virtual machine) shows no AVX2: expose the host's CPU to the guest, or expect "
        "a fraction of the speed";
  }
  return finding;
}

Finding find_cores() {
  const int online = os::online_processors();
  const std::size_t allowed = os::allowed_processors().size();
  Finding finding = {
      .what = "cores",
      .found = fmt::format("{} of {} usable; affinity allows {}", ThreadPool::usable_processors(), online, allowed)};
  if (kOnLinux) {
    const double quota = os::cgroup_cpu_quota(whole_text("/proc/self/cgroup"), "/sys/fs/cgroup");
    finding.found += "; cgroup quota " + (quota > 0 ? fmt::format("{:.1f}", quota) : std::string("none"));
  }
  if (ThreadPool::usable_processors() < online) {
    finding.mark = Mark::could_be_better;
    finding.change =
        kOnLinux ? "give the process more: taskset and cpusets set the affinity, docker --cpus or CPUQuota= the quota"
                 : "give the process more: start /affinity sets it, or Details in the Task Manager";
  }
  return finding;
}

Findings find_memory(const device::MemoryLimits& limits) {
  Findings findings;
  findings.push_back({.what = "memory",
                      .found = fmt::format("{} in all, {} available", format_bytes(limits.total_bytes),
                                           format_bytes(limits.available_bytes))});
  if (limits.available_bytes < limits.total_bytes / 2) {
    findings.back().mark = Mark::could_be_better;
    findings.back().change = "other programs hold more than half of it: what they free becomes room for weights";
  }
  if (!kOnLinux) return findings;
  const bool limited = limits.cgroup_bytes < limits.total_bytes;
  findings.push_back(
      {.what = "cgroup memory limit",
       .found = limited ? format_bytes(limits.cgroup_bytes) : std::string("none below the machine's memory")});
  if (limited) {
    findings.back().mark = Mark::could_be_better;
    findings.back().change =
        "keep --ram below it, or raise it (docker --memory, MemoryMax=); the page cache counts too";
  }
  return findings;
}

Finding find_huge_pages() {
  const std::string modes = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const std::size_t open = modes.find('['), close = modes.find(']');
  if (open == std::string::npos || close == std::string::npos) {
    return {.mark = Mark::missing, .what = "huge pages", .found = "this kernel offers none on demand"};
  }
  const std::string mode = modes.substr(open + 1, close - open - 1);
  if (mode != "never")
    return {.what = "huge pages", .found = fmt::format("{}: weights are read into 2 MiB pages", mode)};
  return {.mark = Mark::could_be_better,
          .what = "huge pages",
          .found = "never: reads go into 4 KiB pages, on some disks at half the speed",
          .change = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"};
}

Finding find_locked_memory() {
  const auto limit = os::locked_memory_limit();
  if (!limit) return {.mark = Mark::missing, .what = "locked memory", .found = "not known"};
  if (limit->bytes == UINT64_MAX) return {.what = "locked memory", .found = "unlimited"};
  return {
      .what = "locked memory",
      .found = fmt::format("limit {}: enough for the CPU", format_bytes(limit->bytes)),
      .change = limit->bytes < limit->highest_bytes ? "ulimit -l unlimited, should registered buffers be refused" : ""};
}

// ---- disk

constexpr const char* kDirectReads = kOnLinux ? "O_DIRECT" : "unbuffered reads";

/// Tries it with `file`, or with a small file in that folder.
Finding find_direct_reads(const fs::path& file) {
  std::error_code code;
  std::optional<os::ScratchFile> scratch;
  if (fs::is_directory(file, code)) {
    auto made = os::ScratchFile::make(file.string());
    if (made.ok() && made->write(std::vector<std::byte>(64 * kKiB)).ok()) scratch = std::move(*made);
  }
  auto opened = storage::open_backend({scratch ? scratch->path() : file.string()},
                                      {.kind = storage::BackendKind::pread_direct, .threads = 1});
  if (opened.ok()) {
    return {.what = kDirectReads, .found = fmt::format("works here, in blocks of {} B", (*opened)->traits().alignment)};
  }
  if (opened.status().code() != Code::unsupported) {
    return {.mark = Mark::missing,
            .what = kDirectReads,
            .found = "not tried: " + opened.status().message(),
            .change = "name a model file, or a directory you may write to"};
  }
  return {.mark = Mark::could_be_better,
          .what = kDirectReads,
          .found = opened.status().message(),
          .change = fmt::format("put models on {} on a local disk: reads then bypass the page cache",
                                kOnLinux ? "ext4 or xfs" : "NTFS")};
}

Finding find_system_way() {
  storage::SystemWay way = storage::system_way();
  return {.mark = way.works      ? Mark::ok
                  : way.expected ? Mark::could_be_better
                                 : Mark::missing,
          .what = std::move(way.name),
          .found = std::move(way.found),
          .change = std::move(way.change)};
}

Finding find_read_ahead(const fs::path& path) {
  const auto info = os::file_info(path.string());
  if (!info.ok()) {
    return {.mark = Mark::missing,
            .what = "disk",
            .found = fmt::format("{}: {}", path.string(), info.status().message()),
            .change = "name a model file or a directory"};
  }
  const auto disk = os::find_disk(info->volume);
  if (!disk) {
    return {.mark = Mark::missing,
            .what = "disk",
            .found = fmt::format("no block device behind {} ({}): a memory, network or overlay file system",
                                 path.string(), os::volume_name(info->volume))};
  }
  if (!kOnLinux) return {.what = "disk", .found = disk->name};
  const std::string kib = disk->read_ahead_bytes ? fmt::format("{}", *disk->read_ahead_bytes / kKiB) : "?";
  Finding finding = {.what = "disk", .found = fmt::format("{}; read-ahead {} KiB", disk->name, kib)};
  if (disk->read_ahead_bytes && *disk->read_ahead_bytes < 128 * kKiB) {
    finding.mark = Mark::could_be_better;
    finding.change = fmt::format("sudo blockdev --setra 8192 /dev/{} helps mapped and buffered reads", disk->name);
  }
  return finding;
}

Finding find_rates(const Expected<residency::Rates>& rates) {
  if (!rates.ok()) {
    return {.mark = Mark::could_be_better,
            .what = "measured rates",
            .found = "none for this machine and disk",
            .change = "run 'millrace calibrate' once (half a minute), and plans predict speeds"};
  }
  const auto per_second = [](double rate) {
    return rate > 0 ? format_bytes(static_cast<std::uint64_t>(rate)) + "/s" : std::string("not measured");
  };
  return {.what = "measured rates",
          .found = fmt::format("disk {}{}, RAM {}, decode kernels {}{}", per_second(rates->disk),
                               rates->directstorage > 0 ? " by DirectStorage" : "", per_second(rates->ram),
                               per_second(rates->cpu_decode), rates->brief ? "; measured briefly" : "")};
}

// ---- GPU

/// The first of these libraries that this machine has.
std::optional<os::Library> find_library(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const auto library = os::Library::load(name); library.ok()) return *library;
  return std::nullopt;
}

/// The PCI devices that are display or 3D controllers made by NVIDIA.
std::vector<fs::path> nvidia_devices() {
  std::vector<fs::path> devices;
  const fs::path all = "/sys/bus/pci/devices";
  const Status ignored = os::for_each_name(all.string(), [&](const std::string& name) {
    const bool display = first_line(all / name / "class").starts_with("0x03");
    if (display && first_line(all / name / "vendor") == "0x10de") devices.push_back(all / name);
  });
  std::sort(devices.begin(), devices.end());
  return devices;
}

Finding find_link(const fs::path& device) {
  const auto read = [&](const char* name) { return first_line(device / name); };
  const std::string speed = read("current_link_speed"), width = read("current_link_width");
  const std::string best_speed = read("max_link_speed"), best_width = read("max_link_width");
  if (speed.empty() || width.empty()) {
    return {
        .mark = Mark::missing, .what = "PCIe link", .found = device.filename().string() + ": not told by the kernel"};
  }
  Finding finding = {
      .what = "PCIe link",
      .found = fmt::format("{}: {} x{} of {} x{}", device.filename().string(), speed, width, best_speed, best_width)};
  if (width != best_width) {
    finding.mark = Mark::could_be_better;
    finding.change = "fewer lanes than the card has: try another slot, or the firmware's bifurcation setting";
  } else if (speed != best_speed) {
    finding.change = "an idle card lowers its speed; if it stays low under load, look at the slot and the firmware";
  }
  return finding;
}

Finding find_driver(bool has_gpu) {
  const auto cuda = find_library({"libcuda.so.1"});
  std::string version = first_line("/proc/driver/nvidia/version");
  const std::string_view prefix = "NVRM version: ";
  if (version.starts_with(prefix)) version.erase(0, prefix.size());
  if (!cuda || version.empty()) {
    Finding finding = {.mark = Mark::missing,
                       .what = "NVIDIA driver",
                       .found = fmt::format("kernel module {}, libcuda {}", version.empty() ? "absent" : version,
                                            cuda ? "found" : "absent")};
    if (has_gpu) {
      finding.mark = Mark::could_be_better;
      finding.change = "install the NVIDIA driver; in a container, pass the GPU in (docker --gpus all)";
    }
    return finding;
  }
  int supported = 0;
  int (*get)(int*) = nullptr;
  cuda->find("cuDriverGetVersion", get);
  if (get != nullptr) (void)get(&supported);
  return {.what = "NVIDIA driver",
          .found = fmt::format("{}; CUDA up to {}.{}", version, supported / 1000, supported % 1000 / 10)};
}

Finding find_cufile(bool has_gpu) {
  if (!find_library({"libcufile.so.0", "libcufile.so"})) {
    return {.mark = Mark::missing,
            .what = "cuFile",
            .found = "libcufile absent",
            .change = has_gpu ? "install it (package libcufile) for reads from disk straight to the GPU" : ""};
  }
  std::error_code code;
  if (fs::exists("/proc/driver/nvidia-fs", code)) {
    return {.what = "cuFile", .found = "libcufile with nvidia-fs: direct reads to the GPU"};
  }
  return {.mark = Mark::could_be_better,
          .what = "cuFile",
          .found = "libcufile in compatibility mode: reads go through host memory",
          .change = "load nvidia-fs, or use a kernel and driver with PCI P2P DMA"};
}

/// What this program itself can do with the GPUs.
Findings find_cuda(const Expected<std::vector<device::Gpu>>& gpus, bool has_gpu) {
  if (!gpus.ok()) {
    const bool built = !device::built_cuda_version().empty();
    return {{.mark = has_gpu ? Mark::could_be_better : Mark::missing,
             .what = "CUDA",
             .found = gpus.status().message(),
             .change = has_gpu && !built ? "install the CUDA toolkit, then build again" : ""}};
  }
  Findings findings;
  for (const device::Gpu& gpu : *gpus)
    findings.push_back(
        {.what = "CUDA",
         .found = fmt::format("cuda:{} {}, {} of memory, compute {}.{}; the driver speaks {}, built with {}", gpu.index,
                              gpu.name, format_bytes(gpu.total_bytes), gpu.major, gpu.minor,
                              device::driver_cuda_version(), device::built_cuda_version())});
  return findings;
}

/// The same where the GPU part is Vulkan's.
Findings find_vulkan(const Expected<std::vector<device::Gpu>>& gpus) {
  if (!gpus.ok()) return {{.mark = Mark::missing, .what = "Vulkan", .found = gpus.status().message()}};
  Findings findings;
  for (const device::Gpu& gpu : *gpus)
    findings.push_back(
        {.mark = gpu.lacks.empty() ? Mark::ok : Mark::missing,
         .what = "Vulkan",
         .found = fmt::format("vulkan:{} {}, {} of memory, {}{}{}", gpu.index, gpu.name, format_bytes(gpu.total_bytes),
                              gpu.driver, gpu.lacks.empty() ? "" : "; cannot compute here, it lacks ", gpu.lacks)});
  return findings;
}

Findings find_gpu(const Expected<std::vector<device::Gpu>>& gpus) {
  if (!kOnLinux && device::built_cuda_version().empty())
    return {{.mark = Mark::missing, .what = "GPU", .found = "this build has no GPU part: the CPU computes"}};
  if (!kOnLinux) return find_cuda(gpus, false);
  const std::vector<fs::path> devices = nvidia_devices();
  Findings findings;
  if (devices.empty()) {
    findings.push_back(
        {.mark = Mark::missing, .what = "GPU", .found = "no NVIDIA GPU on the PCI bus: the CPU computes"});
  } else {
    findings.push_back({.what = "GPU", .found = fmt::format("{} NVIDIA on the PCI bus", devices.size())});
  }
  for (const fs::path& device : devices) findings.push_back(find_link(device));
  findings.push_back(find_driver(!devices.empty()));
  const bool vulkan = device::gpu_kind() == "vulkan";
  for (Finding& finding : vulkan ? find_vulkan(gpus) : find_cuda(gpus, !devices.empty()))
    findings.push_back(std::move(finding));
  findings.push_back(find_cufile(!devices.empty()));
  return findings;
}

// ---- the first three lines

/// The first that is read from no slower memory than `tier`; the suggestions begin with the largest.
const store::Suggestion* best_from(const std::vector<store::Suggestion>& models, std::string_view tier) {
  const auto found = std::find_if(models.begin(), models.end(), [&](const store::Suggestion& one) {
    return one.tier == tier || (tier == "ram" && one.tier == "vram");
  });
  return found == models.end() ? nullptr : &*found;
}

/// What runs well here, what limits it, what to do.
std::string summarize(const Findings& findings, const device::MemoryLimits& limits,
                      const Expected<residency::Rates>& rates, const Expected<std::vector<device::Gpu>>& gpus) {
  constexpr double kShareOfRam = 0.9;                          // for weights; the rest is for context and others
  constexpr double kShareOfVram = 0.9, kContextOfGpu = 0.8e9;  // the driver's own part
  const auto ram = static_cast<double>(std::min(limits.available_bytes, limits.cgroup_bytes)) * kShareOfRam;
  const double rate = rates.ok() ? rates->cpu_decode : 0;
  const auto bytes = [](double count) { return format_bytes(static_cast<std::uint64_t>(std::max(count, 0.0))); };
  const bool has_gpu = device::gpus_are_for_auto() && gpus.ok() && !gpus->empty();
  store::MachineRoom room = {.ram_bytes = ram, .ram_rate = rate, .disk_rate = rates.ok() ? rates->disk : 0};
  if (has_gpu) {
    room.vram_bytes = static_cast<double>(gpus->front().total_bytes) * kShareOfVram - kContextOfGpu;
    room.vram_rate = rates.ok() ? rates->device_memory : 0;
  }
  const std::vector<store::Suggestion> models = store::suggest_models(room);
  const store::Suggestion* const best = best_from(models, has_gpu ? "vram" : "ram");
  std::string example, limit;
  if (best != nullptr) example = fmt::format(", such as {} ({})", best->name, bytes(best->file_bytes));
  if (best != nullptr && best->tokens_per_second > 0)
    example += fmt::format(" at about {:.3g} tok/s", best->tokens_per_second);
  std::string runs = fmt::format("models of up to {} from RAM{}", bytes(ram), example);
  if (has_gpu) {
    runs = fmt::format("models of up to {} from VRAM{}; of up to {} with weights in RAM", bytes(room.vram_bytes),
                       example, bytes(room.vram_bytes + ram));
    limit = fmt::format("{} of VRAM: what does not fit crosses PCIe from RAM, or is computed by the CPU",
                        format_bytes(gpus->front().total_bytes));
  } else {
    limit = rate > 0 ? fmt::format(
                           "the CPU reads weights at {}/s; a token reads all weights of a dense model, and "
                           "a tenth or less of a mixture",
                           bytes(rate))
                     : "the CPU reads weights from RAM, at a rate that was not measured yet";
  }
  std::string next = "`millrace plan MODEL` predicts the speed of any model, before a download";
  for (const Finding& finding : findings)
    if (finding.mark == Mark::could_be_better && !finding.change.empty()) {
      next = fmt::format("{}: {}", finding.what, finding.change);
      break;
    }
  return fmt::format("runs well   {}\nlimited by  {}\nto do       {}\n\n", runs, limit, next);
}

std::string render(const Findings& findings) {
  std::size_t width = 0;
  for (const Finding& finding : findings) width = std::max(width, finding.what.size());
  std::string text;
  for (const Finding& finding : findings) {
    text += fmt::format("{:>3}  {:<{}}  {}\n", mark_text(finding.mark), finding.what, width, finding.found);
    if (!finding.change.empty()) text += fmt::format("     {:<{}}    to change: {}\n", "", width, finding.change);
  }
  return text;
}

}  // namespace

std::string render_doctor(const std::string& path) {
  const fs::path looked_at = path.empty() ? "." : path;
  const device::MemoryLimits limits = device::memory_limits();
  const auto rates = residency::load_rates(looked_at.string());
  const auto gpus = device::gpus();
  Findings findings = {find_processor(), find_cores()};
  const auto add = [&](const Findings& more) { findings.insert(findings.end(), more.begin(), more.end()); };
  add(find_memory(limits));
  if (kOnLinux) add({find_huge_pages(), find_locked_memory()});
  add({find_read_ahead(looked_at), find_direct_reads(looked_at)});
  add({find_system_way(), find_rates(rates)});
  add(find_gpu(gpus));
  return summarize(findings, limits, rates, gpus) + render(findings) +
         "\nok: fine   !: could be better   -: not there\n";
}

}  // namespace millrace::cli
