"""What a reference checkpoint is, and the shapes that most of them have. Needs Python alone."""

from dataclasses import dataclass, field

VOCABULARY = 80  # convert.py has the words
PROMPT, ANSWER = 64, 16  # tokens of a reference
TIED_STD = 0.2  # of embeddings that are also the head: larger ones make the last token the likeliest next one


@dataclass
class Reference:
    """A sequence of prompt + ANSWER tokens and its logits."""

    name: str  # NAME.bin
    context: int = 256  # what the engine is to be opened with; Phi-3's factors depend on it
    positions: int = 0  # how far positions reach while the logits are computed, if that decides (Phi-3 again)
    prompt: int = PROMPT  # tokens of the prompt


@dataclass
class Model:
    name: str  # NAME.gguf
    architecture: str  # GGUF's name
    module: str  # of transformers.models
    config_class: str
    model_class: str
    config: dict
    references: list = field(default_factory=list)  # [Reference(name)] unless given
    variants: dict = field(default_factory=dict)  # {what is read wrongly: changes to `config`}
    logit_std: float = 3.0
    embedding_std: float = 0.5
    norm_shift: float = 0.0  # what the architecture adds to the weights of its norms
    gains: dict = field(default_factory=dict)  # {part of a parameter's name: factor on its standard deviation}
    mxfp4: bool = False  # experts hold only values that MXFP4 has; NAME.gguf has them in MXFP4, NAME-f16.gguf in F16
    unsplit: bool = False  # NAME-unsplit.gguf has attn_kv_b in one, as files of before 2025 have it
    unsplit_only: bool = False  # NAME.gguf has attn_kv_b in one
    vision: dict = field(default_factory=dict)  # vision_config of a class that sees, too; its text alone is asked
    # What convert.py does not know of the architecture: GGUF's keys, each a value or the name of one in `config`;
    # transformers' names within a layer and GGUF's, without .weight; whether GGUF rotates neighbours where transformers
    # rotates halves, or the other way round.
    keys: dict = field(default_factory=dict)
    names: dict = field(default_factory=dict)
    neighbours: bool = False
    halves: int = 0  # GGUF rotates halves where transformers rotates neighbours, of so many channels of a head
    transposed: bool = False  # the checkpoint's matrices are [inputs, outputs]
    grouped: int = 0  # q, k and v of so many heads, which share a key, after each other in one tensor
    fused: bool = False  # GGUF has q, k and v in one tensor, all q first, where transformers has three
    without_class: bool = False  # transformers has no class of its own: a relative's computes the same

    def __post_init__(self):
        if not self.references:
            self.references = [Reference(self.name)]

    def files(self):
        """Names without ending of its GGUF files."""
        endings = [""] + ["-f16"] * self.mxfp4 + ["-unsplit"] * self.unsplit
        return [self.name + ending for ending in endings]


def rope(theta=1e4, **more):
    return {"rope_type": "default", "rope_theta": theta, **more}


def config(**changes):
    """Two layers of width 32, 4 heads of 64 (the smallest that a GPU attends with) sharing 2 KV heads."""
    return {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_parameters": rope(), "tie_word_embeddings": False,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **changes,
    }


def without(values, *names):
    return {name: value for name, value in values.items() if name not in names}


def small(**changes):
    """Two layers with a feed-forward of 32 and two heads of 64 that share one KV head."""
    return config(**({"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32} | changes))
