// The number of processors that this process may use: its affinity mask, bounded by the CPU quota of its cgroups.
// Sources: sched_getaffinity(2); the kernel's cgroup-v1 (cpu.cfs_quota_us) and cgroup-v2 (cpu.max) documents.
// Thread-safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace millrace::os {

/// The processors of the calling thread's affinity mask, in ascending order; {0} if unknown.
std::vector<int> allowed_processors();

/// The machine's online processors.
int online_processors();

/// The tightest CPU quota, in processors, of the cgroups named in `self_cgroup` (the text of /proc/self/cgroup) and of
/// all their parents, as found under `mount` (usually /sys/fs/cgroup). 0: no quota.
double cgroup_cpu_quota(std::string_view self_cgroup, const std::string& mount);

}  // namespace millrace::os
