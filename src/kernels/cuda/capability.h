// For which compute capability the code that the current device runs was written. Thread-safe.
#pragma once

namespace millrace::kernels::cuda {

/// 10 major + minor. Below the device's own where its code was made from an older capability's PTX: what that lacks
/// (clusters, dependent launches, the copy engine) the kernels then do not use, and nobody may ask it of them. 0: there
/// is no device, or no code for it. Asked of the driver once a device.
int compiled_capability();

}  // namespace millrace::kernels::cuda
