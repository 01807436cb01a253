"""Models of which transformers has no class, composed of its parts. Needs transformers.

DeepSeek's first mixtures (GGUF's `deepseek`) and Ling's (`bailingmoe`): Llama's layers, whose feed-forward after the
first ones is OLMoE's mixture with Llama's feed-forward beside it, which all tokens share.
"""

import copy

from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.olmoe.modeling_olmoe import OlmoeSparseMoeBlock


class SharedMixture(OlmoeSparseMoeBlock):
    def __init__(self, config):
        of_experts, shared = copy.deepcopy(config), copy.deepcopy(config)
        of_experts.num_local_experts = config.num_experts
        of_experts.intermediate_size = config.moe_intermediate_size
        shared.intermediate_size = config.moe_intermediate_size * config.n_shared_experts
        super().__init__(of_experts)
        self.shared_experts = LlamaMLP(shared)

    def forward(self, hidden_states):
        return super().forward(hidden_states) + self.shared_experts(hidden_states)


class LlamaWithExpertsConfig(LlamaConfig):
    model_type = "llama_with_experts"


class LlamaWithExpertsForCausalLM(LlamaForCausalLM):
    config_class = LlamaWithExpertsConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers[config.first_k_dense_replace :]:
            layer.mlp = SharedMixture(config)
