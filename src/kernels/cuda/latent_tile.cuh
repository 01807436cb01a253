// Latent attention on the f16 tensor cores, for latent.cu; contract in latent.h.
#pragma once

#include "kernels/cuda/launchers.h"

namespace millrace::kernels::cuda {

/// Whether a cache of such latents goes this way: f16 or q8_0, in steps of sixteen channels.
bool latent_tiles_take(const LatentAttentionCall& call);
/// No row sees more keys.
std::int32_t most_latent_keys(const LatentAttentionCall& call);
/// REQUIRES: latent_tiles_take(call).
cudaError_t latent_tiles(const LatentAttentionCall& call, cudaStream_t stream);

}  // namespace millrace::kernels::cuda
