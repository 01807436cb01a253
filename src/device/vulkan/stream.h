// Streams of a Vulkan device: a stream collects commands in a command buffer, which goes to its queue when somebody
// waits for it, or when there are many. Behind the last command of every submission its timeline semaphore counts one
// up; an event is a number of that count. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "device/device.h"
#include "device/vulkan/driver.h"

namespace millrace::device::vulkan {

/// What commands use and must outlive them, such as memory that holds a copy's bytes.
using Held = std::vector<std::shared_ptr<const void>>;

/// Puts commands on a stream, or into the pass that is recorded from it, behind all that came before. No stream: they
/// are done when this returns. Errors: io_error, out_of_budget.
Status put(StreamRef stream, const std::function<Status(VkCommandBuffer, Held&)>& commands);

/// A kernel's work: so many workgroups, with these arguments as push constants.
struct Dispatch {
  const Kernel* kernel = nullptr;
  std::vector<std::uint32_t> constants;
  std::vector<std::byte> arguments;
  std::uint32_t groups[3] = {1, 1, 1};
};
/// Puts kernels on a stream that may run beside one another; what comes before has ended. Counted.
Status launch(StreamRef stream, std::span<const Dispatch> dispatches);

/// Waits until a stream has done all that came onto it.
Status finish(StreamRef stream);
/// Hands all streams' commands to their queues and waits until the device has done them.
Status drain();

}  // namespace millrace::device::vulkan
