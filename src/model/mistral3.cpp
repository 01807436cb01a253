// Ministral 3: Llama's layers with YaRN and queries that grow with their position beyond the first context.
// Source: Ministral 3's model cards (2025); keys as in the GGUF specification.
#include "model/architectures.h"
#include "model/hyperparameters.h"
#include "model/keys.h"

namespace millrace::model {

Expected<DecoderSpec> mistral3_spec(const modelfile::Model& file, const Hyperparameters& hp) {
  MR_ASSIGN_OR_RETURN(DecoderSpec spec, llama_spec(file, hp));
  Keys keys(file);
  const exec::Temperature temperature = read_temperature(keys);
  MR_RETURN_IF_ERROR(keys.status());
  for (LayerSpec& layer : spec.layers) layer.attention.temperature = temperature;
  return spec;
}

}  // namespace millrace::model
