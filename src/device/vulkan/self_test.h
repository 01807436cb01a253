// What a Vulkan device computes, looked at when it is opened: the standard lets drivers split fma, and divide and take
// roots inexactly (kernels/vulkan/numerics.glsl has this engine's own), so the device shows what it does.
#pragma once

#include "base/status.h"
#include "device/vulkan/driver.h"

namespace millrace::device::vulkan {

/// Chooses the driver's Fma, and finds whether every operation has the processor's bits over some thousand operands:
/// fma, products, sums, differences, own division and square roots, integers, and a product beside a sum that must not
/// become one. The log has the result. Errors: io_error (the device does not compute), and those of pipelines.
Status self_test(Driver& driver);

}  // namespace millrace::device::vulkan
