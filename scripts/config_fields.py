#!/usr/bin/env python3
"""Writes src/convert/config_fields.cpp: what transformers makes of config.json, one entry for each class `convert` knows.

Needs transformers (the version in tests/e2e/transformers.txt). Nothing in the file is written by hand: defaults
are those of the class's fields, the fields that change a result are those that the modelling code reads.
Usage: scripts/config_fields.py [--check]   (--check: fail if the file differs from what the installed version gives)
"""
import ast
import dataclasses
import importlib
import inspect
import json
import pathlib
import sys

import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "src/convert/config_fields.cpp"

# model_type: (module of transformers.models, config class)
CLASSES = {
    "llama": ("llama", "LlamaConfig"), "mistral": ("mistral", "MistralConfig"),
    "llama4_text": ("llama4", "Llama4TextConfig"), "ministral3": ("ministral3", "Ministral3Config"), "mixtral": ("mixtral", "MixtralConfig"),
    "qwen2": ("qwen2", "Qwen2Config"), "qwen3": ("qwen3", "Qwen3Config"), "qwen3_moe": ("qwen3_moe", "Qwen3MoeConfig"),
    "qwen3_next": ("qwen3_next", "Qwen3NextConfig"), "qwen3_5_text": ("qwen3_5", "Qwen3_5TextConfig"),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeTextConfig"), "gemma3_text": ("gemma3", "Gemma3TextConfig"),
    "qwen4_exp_text": ("qwen4_exp", "Qwen4ExpTextConfig"),
    "gemma3n_text": ("gemma3n", "Gemma3nTextConfig"), "gemma4_text": ("gemma4", "Gemma4TextConfig"),
    "gpt_oss": ("gpt_oss", "GptOssConfig"), "granite": ("granite", "GraniteConfig"),
    "granitemoehybrid": ("granitemoehybrid", "GraniteMoeHybridConfig"), "phi3": ("phi3", "Phi3Config"),
    "glm4_moe": ("glm4_moe", "Glm4MoeConfig"), "minimax_m2": ("minimax_m2", "MiniMaxM2Config"),
    "minimax_m3_vl_text": ("minimax_m3_vl", "MiniMaxM3VLTextConfig"),
    "deepseek_v2": ("deepseek_v2", "DeepseekV2Config"), "deepseek_v3": ("deepseek_v3", "DeepseekV3Config"),
    "glm4_moe_lite": ("glm4_moe_lite", "Glm4MoeLiteConfig"), "lfm2": ("lfm2", "Lfm2Config"),
    "lfm2_moe": ("lfm2_moe", "Lfm2MoeConfig"), "mamba": ("mamba", "MambaConfig"), "falcon_mamba": ("falcon_mamba", "FalconMambaConfig"),
    "jamba": ("jamba", "JambaConfig"), "mamba2": ("mamba2", "Mamba2Config"),
    "nemotron_h": ("nemotron_h", "NemotronHConfig"),
    "qwen2_vl_text": ("qwen2_vl", "Qwen2VLTextConfig"), "qwen3_vl_text": ("qwen3_vl", "Qwen3VLTextConfig"),
    "qwen3_vl_moe_text": ("qwen3_vl_moe", "Qwen3VLMoeTextConfig"), "qwen2_moe": ("qwen2_moe", "Qwen2MoeConfig"),
    "seed_oss": ("seed_oss", "SeedOssConfig"), "smollm3": ("smollm3", "SmolLM3Config"), "arcee": ("arcee", "ArceeConfig"),
    "granitemoe": ("granitemoe", "GraniteMoeConfig"), "granitemoeshared": ("granitemoeshared", "GraniteMoeSharedConfig"),
    "ernie4_5": ("ernie4_5", "Ernie4_5Config"), "ernie4_5_moe": ("ernie4_5_moe", "Ernie4_5_MoeConfig"),
    "glm4v_text": ("glm4v", "Glm4vTextConfig"), "glm4": ("glm4", "Glm4Config"), "gemma": ("gemma", "GemmaConfig"), "olmoe": ("olmoe", "OlmoeConfig"),
    "dots1": ("dots1", "Dots1Config"), "hunyuan_v1_dense": ("hunyuan_v1_dense", "HunYuanDenseV1Config"),
    "hunyuan_v1_moe": ("hunyuan_v1_moe", "HunYuanMoEV1Config"), "hy_v3": ("hy_v3", "HYV3Config"),
    "exaone_moe": ("exaone_moe", "ExaoneMoeConfig"), "exaone4": ("exaone4", "Exaone4Config"),
    "olmo2": ("olmo2", "Olmo2Config"), "olmo3": ("olmo3", "Olmo3Config"), "gemma2": ("gemma2", "Gemma2Config"),
    "glm": ("glm", "GlmConfig"), "cohere": ("cohere", "CohereConfig"), "cohere2": ("cohere2", "Cohere2Config"),
    "stablelm": ("stablelm", "StableLmConfig"), "starcoder2": ("starcoder2", "Starcoder2Config"),
    "nemotron": ("nemotron", "NemotronConfig"), "phi": ("phi", "PhiConfig"), "phimoe": ("phimoe", "PhimoeConfig"),
    "afmoe": ("afmoe", "AfmoeConfig"), "laguna": ("laguna", "LagunaConfig"),
    "mistral4": ("mistral4", "Mistral4Config"), "deepseek_v32": ("deepseek_v32", "DeepseekV32Config"),
    "deepseek_v4": ("deepseek_v4", "DeepseekV4Config"),
    "glm_moe_dsa": ("glm_moe_dsa", "GlmMoeDsaConfig"), "mimo_v2_flash": ("mimo_v2_flash", "MiMoV2FlashConfig"),
    "jais2": ("jais2", "Jais2Config"), "kimi_linear": ("kimi_linear", "KimiLinearConfig"),
    "bailing_hybrid": ("bailing_hybrid", "BailingHybridConfig"),
    "cohere2_moe": ("cohere2_moe", "Cohere2MoeConfig"), "gpt2": ("gpt2", "GPT2Config"),
    "gpt_bigcode": ("gpt_bigcode", "GPTBigCodeConfig"), "gpt_neox": ("gpt_neox", "GPTNeoXConfig"),
    "falcon": ("falcon", "FalconConfig"), "falcon_h1": ("falcon_h1", "FalconH1Config"), "bloom": ("bloom", "BloomConfig"), "mpt": ("mpt", "MptConfig"),
    "bert": ("bert", "BertConfig"), "xlm-roberta": ("xlm_roberta", "XLMRobertaConfig"), "roberta": ("roberta", "RobertaConfig"),
    "nomic_bert": ("nomic_bert", "NomicBertConfig"), "modernbert": ("modernbert", "ModernBertConfig"),
    "eurobert": ("eurobert", "EuroBertConfig"), "jina_embeddings_v3": ("jina_embeddings_v3", "JinaEmbeddingsV3Config"), "step3p5": ("step3p7", "Step3p7TextConfig"),
}

# Read by the modelling code, but only to train, to initialise weights, to choose among kernels or to return more.
# tests/e2e/test_transformers.py changes each of these and compares logits.
NO_EFFECT = {
    "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "hidden_dropout", "initializer_range",
    "rescale_prenorm_residual", "time_step_max", "time_step_floor", "chunk_size", "mamba_chunk_size", "use_cache",
    "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "output_attentions", "output_hidden_states",
    "return_dict", "use_return_dict", "pad_token_id", "bos_token_id", "eos_token_id", "use_mamba_kernels",
    "pretraining_tp", "num_logits_to_keep", "max_position_embeddings", "num_labels", "residual_in_fp32",
    "mamba_ssm_cache_dtype", "moe_shared_expert_overlap", "dtype", "problem_type", "num_nextn_predict_layers", "num_mtp_layers",
}


def plain(value):
    """As JSON, without infinities."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"__float__": "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def defaults_of(cls):
    """What a key that is left out means. Fields that every config has are none of a model's."""
    common = {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)} - {"tie_word_embeddings"}
    aliases = cls.attribute_map or {}
    found = {}
    for field in dataclasses.fields(cls):
        if field.name in common or field.name in ("rope_parameters", "initializer_range"):
            continue
        value = field.default
        if value is dataclasses.MISSING:
            value = field.default_factory() if field.default_factory is not dataclasses.MISSING else None
        found[aliases.get(field.name, field.name)] = plain(value)
    return found


def rotation_of(cls):
    """(rotation where config.json has none, the base where it has one without, the same of partial_rotary_factor)"""
    if "rope_parameters" not in {field.name for field in dataclasses.fields(cls)}:
        return None, None, None
    marked = 12345.0
    rope = dict(cls(rope_theta=marked).rope_parameters)
    theta = cls.default_theta
    if "main" in rope:  # DeepSeek-V4 derives two rotations from other fields
        return None, None, None
    if "full_attention" in rope:  # one for each kind of layer: Gemma 3 by bases alone, Gemma 4 whole
        rope = {kind: own | ({"rope_theta": theta} if own.get("rope_theta") == marked else {}) for kind, own in rope.items()}
        return ({}, theta["global"], None) if isinstance(theta, dict) else (rope, None, None)
    if rope.get("rope_theta") == marked:
        del rope["rope_theta"]
    partial = rope.pop("partial_rotary_factor", None)
    rope.setdefault("rope_type", rope.pop("type", "default"))
    rope.pop("type", None)
    rope.pop("max_position_embeddings", None)
    return (rope if rope != {"rope_type": "default"} else {}), theta, partial if partial != 1.0 else None


class Reads(ast.NodeVisitor):
    """Names that code takes from `config`, `self.config` and what is called like them."""

    def __init__(self):
        self.names = set()

    def visit_Attribute(self, node):
        of = node.value
        name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
        if name in ("config", "text_config"):
            self.names.add(node.attr)
        self.generic_visit(node)

    def visit_Call(self, node):
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) > 1:
            of, what = node.args[:2]
            name = of.id if isinstance(of, ast.Name) else of.attr if isinstance(of, ast.Attribute) else ""
            if name in ("config", "text_config") and isinstance(what, ast.Constant):
                self.names.add(what.value)
        self.generic_visit(node)


def entry(model_type):
    module, name = CLASSES[model_type]
    cls = getattr(importlib.import_module(f"transformers.models.{module}.configuration_{module}"), name)
    modelling = pathlib.Path(inspect.getfile(cls)).with_name(f"modeling_{module}.py").read_text()
    reads = Reads()
    reads.visit(ast.parse(modelling))
    defaults, aliases = defaults_of(cls), cls.attribute_map or {}
    # What the class computes from other fields is felt where the modelling code reads the result.
    derived = Reads()
    own = inspect.getsource(cls)
    derived.names |= {field for field in defaults if own.count(f"self.{field}") > 0}
    felt = {aliases.get(field, field) for field in reads.names | derived.names} & set(defaults)
    rope, theta, partial = rotation_of(cls)
    if theta is not None:
        defaults["rope_theta"] = float(theta)
    if isinstance(cls_theta := getattr(cls, "default_theta", None), dict):
        defaults["rope_local_base_freq"] = float(cls_theta["local"])
    if partial is not None:
        defaults["partial_rotary_factor"] = partial
    if rope:
        defaults["rope_parameters"] = rope
    return {
        "defaults": defaults,
        "aliases": aliases,
        "felt": sorted(felt - NO_EFFECT),
        "partial": 'rope_parameters.get("partial_rotary_factor"' in modelling,
    }


def literal(value):
    return json.dumps(value, sort_keys=True, separators=(", ", ": "))


def wrapped(text, indent="        ", width=116):
    """A raw string of several lines; JSON may be broken behind commas."""
    lines, line = [], ""
    for word in text.split(" "):
        if line and len(line) + 1 + len(word) > width - len(indent):
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return 'R"(' + ("\n" + indent).join(lines + [line]) + ')"'


def render():
    parts = [f"""// What transformers {transformers.__version__} makes of config.json. Written by scripts/config_fields.py; do not edit.
#include "convert/config_fields.h"

namespace millrace::convert {{
namespace {{

// clang-format off
constexpr ConfigClass kClasses[] = {{
"""]
    for model_type in CLASSES:
        found = entry(model_type)
        parts.append(f"""    {{.model_type = "{model_type}",
     .defaults = {wrapped(literal(found["defaults"]))},
     .aliases = {wrapped(literal(found["aliases"]))},
     .felt = {wrapped(literal(found["felt"]))},
     .partial_by_default = {"true" if found["partial"] else "false"}}},
""")
    parts.append("""};
// clang-format on

}  // namespace

std::span<const ConfigClass> config_classes() { return kClasses; }

}  // namespace millrace::convert
""")
    return "".join(parts)


def main():
    text = render()
    if "--check" in sys.argv[1:]:
        if OUT.read_text() != text:
            sys.exit(f"{OUT.relative_to(ROOT)} is not what transformers {transformers.__version__} gives: run {sys.argv[0]}")
        return
    OUT.write_text(text)


if __name__ == "__main__":
    main()
