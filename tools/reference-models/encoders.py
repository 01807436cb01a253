"""Makes the reference encoders: tiny random models that embed texts, and the states that transformers computes of them.

    python3 encoders.py OUT_DIR [NAME...]

Writes NAME.gguf and NAME.bin for each of MODELS: texts in several scripts and of several lengths, the tokens that the
tokenizers library makes of them, and in the place of logits each token's last state, in float32 and with eager
attention (tests/data/reference/README.md). Weights are drawn so that F16 holds them exactly. Each tensor, and each
point of a model's `variants`, has to be felt in the states: what is not is printed with "WARN".

Cross-encoders are cross-NAME.gguf and cross-NAME.json: pairs of texts, and the logit that transformers gives each.
"""

import copy
import dataclasses
import io
import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import tokenizers
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "demo-model"))

import gguf
import reference as reference_file

LEAST_FELT = 1e-4  # relative change of all states when a tensor or a point is another
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ("the a of and to in is was for on that with he she it as at by from an be this are or had his her not which "
         "but have one all they you were their there what so up out if about who get when time state words token "
         "embed model text long short run cafe naive uber strasse moscow").split()
PIECES = "ing ed er s ly ness tion un able th e n st ##".split()
TEXTS = [
    "",
    "the",
    "The text model embeds short words, and long ones: running, unstateable naïvetés!",
    "Café — Straße — ÜBER naïve? (1.5 + 2) = $3.5 [MASK] [x] ‘quoted’ … e-mail@example.org #tag",
    "Москва и Київ; ἀρχή και τέλος. שלום עולם, مرحبا بالعالم",
    "中文和日本語のテキスト 한국어 문장 ไทย हिन्दी 😀 a\u200bb\u00adc\tx\ny\u3000z",
    "one time they were all there, and what he had was not it: " * 4,
    "a" * 120 + " " + "x" * 100 + " " + "th" * 30,
]


def characters(cased):
    found = set("".join(TEXTS) + "abcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    cleaned = tokenizers.normalizers.BertNormalizer(lowercase=True).normalize_str("".join(sorted(found)))
    whole = tokenizers.normalizers.BertNormalizer(lowercase=False, strip_accents=False).normalize_str("".join(sorted(found)))
    return sorted({c for c in (whole if cased else cleaned) if not c.isspace()} - {"中", "한", "😀"})  # these are unknown


def vocabulary(cased):
    words = SPECIALS + list(WORDS)
    if cased:
        words += ["The", "Caf", "Москва"]
    singles = characters(cased)
    words += singles + ["##" + c for c in singles] + ["##" + piece for piece in PIECES if piece != "##"]
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def tokenizer_of(words, cased):
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=not cased)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(SPECIALS)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])])
    return made


def spelled(word):
    """As GGUF has it: U+2581 before what begins a word."""
    if word in SPECIALS:
        return word
    return word[2:] if word.startswith("##") and len(word) > 2 else "▁" + word


def word_piece_keys(words):
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": [spelled(word) for word in words],
        "tokenizer.ggml.token_type": [CONTROL if word in SPECIALS else NORMAL for word in words],
        "tokenizer.ggml.bos_token_id": words["[CLS]"],
        "tokenizer.ggml.eos_token_id": words["[SEP]"],
        "tokenizer.ggml.cls_token_id": words["[CLS]"],
        "tokenizer.ggml.seperator_token_id": words["[SEP]"],
        "tokenizer.ggml.unknown_token_id": words["[UNK]"],
        "tokenizer.ggml.padding_token_id": words["[PAD]"],
        "tokenizer.ggml.mask_token_id": words["[MASK]"],
    }


BERT_TOP = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}
BERT_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


@dataclasses.dataclass
class Encoder:
    name: str
    config: object  # of transformers
    build: object  # makes the network of a config
    names: object  # the GGUF name of a parameter; None: it has none
    keys: dict
    cased: bool = False
    variants: dict = dataclasses.field(default_factory=dict)  # points of the configuration that must be felt
    tokenize: object = None  # ids of a text; None: WordPiece of vocabulary(cased)
    given: dict = dataclasses.field(default_factory=dict)  # of the configuration, which transformers changes when it is made
    shift: float = 0  # what GGUF adds to norms' weights
    dense: int = 0  # channels between two matrices that the states go through
    pair: object = None  # (ids, types) of two texts; None: that tokenizer's
    texts: list = dataclasses.field(default_factory=lambda: TEXTS)


def bert_name(name):
    if name in BERT_TOP:
        return BERT_TOP[name]
    if not name.startswith("encoder.layer."):
        return None  # the pooler, which no sentence vector goes through
    layer, part = name.removeprefix("encoder.layer.").split(".", 1)
    part, end = part.rsplit(".", 1)
    return f"blk.{layer}.{BERT_LAYER[part]}.{end}"


def bert(name, pooling, cased, **changes):
    values = dict(vocab_size=len(vocabulary(cased)), hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                  intermediate_size=96, max_position_embeddings=160, type_vocab_size=2, layer_norm_eps=1e-3,
                  hidden_act="gelu") | changes
    return Encoder(name, transformers.BertConfig(**values),
                   lambda config: transformers.BertModel(config, add_pooling_layer=False), bert_name, {
                       "general.architecture": "bert",
                       "general.name": name,
                       "bert.block_count": values["num_hidden_layers"],
                       "bert.context_length": values["max_position_embeddings"],
                       "bert.embedding_length": values["hidden_size"],
                       "bert.feed_forward_length": values["intermediate_size"],
                       "bert.attention.head_count": values["num_attention_heads"],
                       "bert.attention.layer_norm_epsilon": values["layer_norm_eps"],
                       "bert.attention.causal": False,
                       "bert.pooling_type": pooling,
                   }, cased, {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-12, "num_attention_heads": 2})


# What a unigram tokenizer's character map replaces: code points, and those that stand for them.
CHARACTER_MAP = [("ﬁ", "fi"), ("Ａ", "A"), ("ｅ\u0301", "é"), ("e\u0301", "é"), ("\t", " "), ("\n", " "), ("\u3000", " "),
                 ("\u200b", ""), ("…", "..."), ("½", "1⁄2")]
UNIGRAM_TEXTS = [*TEXTS, "  ﬁnd  Ａ   caf\u0065\u0301\u200b, ½ of it… ", "<x>a<x> b", "\t \n"]


def trained_unigram(folder):
    """A sentencepiece model of UNIGRAM_TEXTS, whose character map is CHARACTER_MAP."""
    rules = folder / "rules.tsv"
    code_points = lambda text: " ".join(f"{ord(c):X}" for c in text)  # noqa: E731
    rules.write_text("".join(f"{code_points(a)}\t{code_points(b)}\n" for a, b in sorted(CHARACTER_MAP)))
    unseen = str.maketrans("", "", "中한😀ไ$")  # these are unknown
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text.translate(unseen) for text in UNIGRAM_TEXTS * 4 if text.strip()]), model_writer=made,
        vocab_size=300, model_type="unigram", normalization_rule_tsv=str(rules), character_coverage=1.0,
        user_defined_symbols=["<x>"], hard_vocab_limit=False,
        bos_id=0, pad_id=1, eos_id=2, unk_id=3, minloglevel=2, num_threads=1)
    rules.unlink()
    return made.getvalue()


def wire_fields(data):
    """(number, value) of each field of a protocol buffer's message."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            value |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                return value

    while at < len(data):
        tag = number()
        size = {0: None, 1: 8, 5: 4}.get(tag & 7, -1)
        if size is None:
            yield tag >> 3, number()
            continue
        size = number() if size < 0 else size
        yield tag >> 3, data[at:at + size]
        at += size


def unigram_keys(model):
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    count = pieces.get_piece_size()
    normalizer = dict(wire_fields(next(value for number, value in wire_fields(model) if number == 3)))

    def kind(piece):
        if pieces.is_unknown(piece):
            return UNKNOWN
        return CONTROL if pieces.is_control(piece) else USER_DEFINED if pieces.id_to_piece(piece) == "<x>" else NORMAL

    return {
        "tokenizer.ggml.model": "t5",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.token_type_count": 1,
        "tokenizer.ggml.tokens": [pieces.id_to_piece(piece) for piece in range(count)],
        "tokenizer.ggml.scores": [float(pieces.get_score(piece)) for piece in range(count)],
        "tokenizer.ggml.token_type": [kind(piece) for piece in range(count)],
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
        "tokenizer.ggml.precompiled_charsmap": list(normalizer[2]),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": True,
    }


def xlm_roberta(folder):
    model = trained_unigram(folder)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    config = transformers.XLMRobertaConfig(
        vocab_size=pieces.get_piece_size(), hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=96, max_position_embeddings=162, type_vocab_size=1, layer_norm_eps=1e-3, pad_token_id=1,
        bos_token_id=0, eos_token_id=2)
    keys = common_keys("bert", config, 1e-3, CLS) | {"bert.context_length": 160} | unigram_keys(model)
    return Encoder("xlm-roberta", config, lambda config: transformers.XLMRobertaModel(config, add_pooling_layer=False),
                   bert_name, keys, tokenize=lambda text: [0, *pieces.encode(text), 2], texts=UNIGRAM_TEXTS,
                   pair=lambda a, b: ([0, *pieces.encode(a), 2, 2, *pieces.encode(b), 2], None),
                   variants={"pad_token_id": 0})


def layer_name(name, top, parts):
    """Of parameters "layers.N.PART.END"."""
    if name in top:
        return top[name]
    _, layer, part = name.split(".", 2)
    part, end = part.rsplit(".", 1)
    return f"blk.{layer}.{parts[part]}.{end}"


def common_keys(architecture, config, eps, pooling):
    return {
        "general.architecture": architecture,
        "general.name": architecture,
        f"{architecture}.block_count": config.num_hidden_layers,
        f"{architecture}.context_length": config.max_position_embeddings,
        f"{architecture}.embedding_length": config.hidden_size,
        f"{architecture}.feed_forward_length": config.intermediate_size,
        f"{architecture}.attention.head_count": config.num_attention_heads,
        f"{architecture}.attention.layer_norm_epsilon": eps,
        f"{architecture}.attention.causal": False,
        f"{architecture}.pooling_type": pooling,
    }


NOMIC_TOP = {key.replace("embeddings.position", "-"): value for key, value in BERT_TOP.items()}
NOMIC_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "attn_output_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_mlp_layernorm": "layer_output_norm",
}


def nomic_bert():
    config = transformers.NomicBertConfig(
        vocab_size=len(vocabulary(False)), hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
        intermediate_size=64, max_position_embeddings=160, type_vocab_size=2, layer_norm_eps=1e-3, head_dim=16,
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default"})
    keys = common_keys("nomic-bert", config, 1e-3, MEAN) | {"nomic-bert.rope.freq_base": 1000.0}
    return Encoder("nomic-bert", config, lambda config: transformers.NomicBertModel(config, add_pooling_layer=False),
                   lambda name: layer_name(name, NOMIC_TOP, NOMIC_LAYER), keys, False, {
                       "hidden_act": "gelu",
                       "layer_norm_eps": 1e-12,
                       "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
                   })


JINA_LAYER = NOMIC_LAYER | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}


def jina_bert_v3(folder):
    model = trained_unigram(folder)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    config = transformers.JinaEmbeddingsV3Config(
        vocab_size=pieces.get_piece_size(), hidden_size=48, num_hidden_layers=2, num_attention_heads=3, intermediate_size=96,
        max_position_embeddings=160, type_vocab_size=1, layer_norm_eps=1e-3, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        rope_parameters={"rope_theta": 1000.0, "rope_type": "default"})
    keys = common_keys("jina-bert-v3", config, 1e-3, MEAN) | {"jina-bert-v3.rope.freq_base": 1000.0} | unigram_keys(model)
    return Encoder("jina-bert-v3", config, lambda config: transformers.JinaEmbeddingsV3Model(config, add_pooling_layer=False),
                   lambda name: layer_name(name, NOMIC_TOP, JINA_LAYER), keys,
                   tokenize=lambda text: [0, *pieces.encode(text), 2], texts=UNIGRAM_TEXTS,
                   variants={"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-12,
                             "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})


MODERN_TOP = {
    "embeddings.tok_embeddings.weight": "token_embd.weight",
    "embeddings.norm.weight": "token_embd_norm.weight",
    "final_norm.weight": "output_norm.weight",
}
MODERN_LAYER = {
    "attn_norm": "attn_norm",
    "attn.Wqkv": "attn_qkv",
    "attn.Wo": "attn_output",
    "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up",
    "mlp.Wo": "ffn_down",
}


def modern_bert():
    rope = {"full_attention": {"rope_theta": 160000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}
    config = transformers.ModernBertConfig(
        vocab_size=len(vocabulary(False)), hidden_size=48, num_hidden_layers=4, num_attention_heads=3,
        intermediate_size=48, max_position_embeddings=160, local_attention=16, norm_eps=1e-3, pad_token_id=0,
        bos_token_id=None, eos_token_id=None, cls_token_id=2, sep_token_id=3, rope_parameters=rope)
    keys = common_keys("modern-bert", config, 1e-3, MEAN) | {
        "modern-bert.rope.freq_base": 160000.0,
        "modern-bert.rope.freq_base_swa": 10000.0,
        "modern-bert.attention.sliding_window": 16,
    }
    return Encoder("modern-bert", config, transformers.ModernBertModel,
                   lambda name: layer_name(name, MODERN_TOP, MODERN_LAYER), keys, False, {
                       "hidden_activation": "gelu_pytorch_tanh",
                       "norm_eps": 1e-12,
                       "local_attention": 18,
                       "rope_parameters": rope | {"sliding_attention": rope["full_attention"]},
                   })


LLAMA_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA_TOP = {"embed_tokens.weight": "token_embd.weight", "norm.weight": "output_norm.weight"}
GEMMA_LAYER = LLAMA_LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
DENSE = {"dense_2.weight": "dense_2.weight", "dense_3.weight": "dense_3.weight"}


def rms_keys(architecture, config):
    keys = common_keys(architecture, config, 1e-3, MEAN)
    keys[f"{architecture}.attention.layer_norm_rms_epsilon"] = keys.pop(f"{architecture}.attention.layer_norm_epsilon")
    return keys | {f"{architecture}.attention.head_count_kv": config.num_key_value_heads}


def eurobert():
    config = transformers.EuroBertConfig(
        vocab_size=len(vocabulary(False)), hidden_size=48, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1,
        intermediate_size=64, max_position_embeddings=160, rms_norm_eps=1e-3, pad_token_id=0, bos_token_id=2, eos_token_id=3,
        mask_token_id=4, rope_parameters={"rope_theta": 1000.0, "rope_type": "default"})
    keys = rms_keys("eurobert", config) | {"eurobert.rope.freq_base": 1000.0}
    return Encoder("eurobert", config, transformers.EuroBertModel, lambda name: layer_name(name, LLAMA_TOP, LLAMA_LAYER), keys, False,
                   {"hidden_act": "gelu", "rms_norm_eps": 1e-12,
                    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}})


def gemma_embedding():
    window = 16
    rope = {"full_attention": {"rope_theta": 100000.0, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1000.0, "rope_type": "default"}}
    config = transformers.Gemma3TextConfig(
        vocab_size=len(vocabulary(False)), hidden_size=48, num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=1,
        head_dim=16, intermediate_size=64, max_position_embeddings=160, rms_norm_eps=1e-3, pad_token_id=0, bos_token_id=2,
        eos_token_id=3, sliding_window=window, query_pre_attn_scalar=16, use_bidirectional_attention=True,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=rope)
    keys = rms_keys("gemma-embedding", config) | {
        "gemma-embedding.rope.freq_base": 100000.0, "gemma-embedding.rope.freq_base_swa": 1000.0,
        "gemma-embedding.attention.sliding_window": window, "gemma-embedding.attention.sliding_window_pattern": 2,
        "gemma-embedding.attention.key_length": 16, "gemma-embedding.attention.value_length": 16}
    return Encoder("gemma-embedding", config, transformers.Gemma3TextModel,
                   lambda name: layer_name(name, LLAMA_TOP | DENSE, GEMMA_LAYER), keys, False,
                   {"sliding_window": 18, "rms_norm_eps": 1e-12, "use_bidirectional_attention": False,
                    "rope_parameters": rope | {"sliding_attention": rope["full_attention"]}},
                   given={"sliding_window": window}, shift=1, dense=80)


class Experts(torch.nn.Module):
    """Nomic's mixture: a softmax over all experts, whose two largest weigh what these give."""

    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.router = torch.nn.Linear(dim, experts, bias=False)
        self.w1 = torch.nn.Parameter(torch.zeros(experts, hidden, dim))
        self.w2 = torch.nn.Parameter(torch.zeros(experts, dim, hidden))

    def forward(self, x):
        weights, chosen = torch.softmax(self.router(x), dim=-1).topk(2, dim=-1)
        of_each = torch.einsum("edh,...eh->...ed", self.w2, torch.nn.functional.gelu(torch.einsum("ehd,...d->...eh", self.w1, x)))
        return (weights.unsqueeze(-1) * of_each.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, x.shape[-1]))).sum(-2)


class TwoLayers(torch.nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(dim, hidden), torch.nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(torch.nn.functional.gelu(self.fc1(x)))


def nomic_bert_moe_network(config):
    """transformers' Nomic, with the biases, the feed-forwards and the experts that nomic-embed-text-v2-moe has of its own."""
    net = transformers.NomicBertModel(config, add_pooling_layer=False)
    dim, hidden = config.hidden_size, config.intermediate_size
    for index, layer in enumerate(net.layers):
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(layer.self_attn, name, torch.nn.Linear(dim, dim))
        layer.mlp = Experts(dim, hidden, 5) if index % 2 == 1 else TwoLayers(dim, hidden)
    return net


NOMIC_MOE_LAYER = NOMIC_LAYER | {"mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "mlp.router": "ffn_gate_inp"}


def nomic_moe_name(name):
    if name.endswith((".w1", ".w2")):
        return f"blk.{name.split('.')[1]}.{'ffn_up_exps' if name.endswith('1') else 'ffn_down_exps'}.weight"
    return layer_name(name, NOMIC_TOP, NOMIC_MOE_LAYER)


def nomic_bert_moe():
    model, name = nomic_bert(), "nomic-bert-moe"
    config = type(model.config)(**(model.config.to_dict() | {"num_hidden_layers": 3}))
    keys = common_keys(name, config, 1e-3, MEAN) | {
        f"{name}.rope.freq_base": 1000.0, f"{name}.expert_count": 5, f"{name}.expert_used_count": 2, f"{name}.moe_every_n_layers": 2}
    return Encoder(name, config, nomic_bert_moe_network, nomic_moe_name, keys, False, {"layer_norm_eps": 1e-12})


MEAN, CLS = 1, 2
MODELS = [bert("bert", MEAN, False), bert("bert-cased", CLS, True, num_attention_heads=6), nomic_bert(),
          modern_bert(), eurobert(), gemma_embedding(), nomic_bert_moe()]


def draw(net, seed):
    random = np.random.default_rng(seed)
    weights = {}
    for name, values in net.state_dict().items():
        shape = tuple(values.shape)
        scale = 0.5 if "embeddings" in name else 1.4 / np.sqrt(shape[-1]) if len(shape) > 1 else 0.2
        drawn = random.normal(0, scale, shape) + (1 if name.endswith("orm.weight") else 0)
        weights[name] = drawn.astype(np.float16).astype(np.float32)
    return weights


def draw_dense(model, seed):
    random, width = np.random.default_rng(seed + 1000), model.config.hidden_size
    shapes = {"dense_2.weight": (model.dense, width), "dense_3.weight": (width, model.dense)} if model.dense else {}
    return {name: (random.normal(0, 1, shape) / np.sqrt(shape[1])).astype(np.float16).astype(np.float32) for name, shape in shapes.items()}


def states_of(model, weights, tokens, changes=None):
    config = type(model.config)(**(model.config.to_dict() | model.given | (changes or {})))
    config._attn_implementation = "eager"
    net = model.build(config).float().eval()
    net.load_state_dict({name: torch.from_numpy(values) for name, values in weights.items() if name not in DENSE})
    with torch.no_grad():
        states = [net(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy() for ids in tokens]
    return [rows @ weights["dense_2.weight"].T @ weights["dense_3.weight"].T for rows in states] if model.dense else states


def change(states, others):
    difference = sum(float(np.square(a - b).sum()) for a, b in zip(states, others))
    return np.sqrt(difference / sum(float(np.square(a).sum()) for a in states))


def check_felt(model, weights, tokens, states):
    for name, values in weights.items():
        uneven = (values * (1 + 0.5 * (np.arange(values.size).reshape(values.shape) % 2))).astype(np.float32)
        felt = change(states, states_of(model, weights | {name: uneven}, tokens))
        # A key's bias adds the same to all scores of a query.
        if model.names(name) is not None and felt < LEAST_FELT and not name.endswith("key.bias"):
            print(f"WARN {model.name}: {name} changes the states by {felt:.2g} alone")
    for key, value in model.variants.items():
        felt = change(states, states_of(model, weights, tokens, {key: value}))
        print(f"{model.name}: {key} {value} changes the states by {felt:.2g}{' WARN' if felt < LEAST_FELT else ''}")


def make(model, out):
    keys, tokenize = model.keys, model.tokenize
    if tokenize is None:
        words = vocabulary(model.cased)
        tokenizer = tokenizer_of(words, model.cased)
        tokenize = lambda text: tokenizer.encode(text).ids  # noqa: E731
        keys = keys | word_piece_keys(words)
    tokens = [tokenize(text) for text in model.texts]
    weights = draw(model.build(model.config), len(model.name)) | draw_dense(model, len(model.name))
    states = states_of(model, weights, tokens)
    check_felt(model, weights, tokens, states)
    tensors = []
    for name, values in weights.items():
        if (ours := model.names(name)) is None:
            continue
        if ours == "position_embd.weight":
            values = values[-keys[f"{keys['general.architecture']}.context_length"]:]  # RoBERTa's first rows are padding's
        if ours.endswith("norm.weight"):
            values = values + np.float32(model.shift)
        floats = values.ndim == 1 or ours in ("position_embd.weight", "token_types.weight")
        tensors.append((ours, values, gguf.TENSOR_F32 if floats else gguf.TENSOR_F16))
    (out / f"{model.name}.gguf").write_bytes(gguf.pack(keys, tensors))
    (out / f"{model.name}.bin").write_bytes(reference_file.pack(
        (text, np.array(ids, np.int32).tobytes(), row.astype(np.float32).tobytes(), len(ids), row.shape[1])
        for text, ids, row in zip(model.texts, tokens, states)))
    print(f"{model.name}: {model.config.vocab_size} tokens; texts of {', '.join(str(len(ids)) for ids in tokens)}")


@dataclasses.dataclass
class Cross:
    """What ranks pairs of texts by an encoder's states."""
    build: object
    prefix: str  # of the encoder's parameters
    head: dict  # GGUF names of its own
    changes: dict = dataclasses.field(default_factory=dict)


CROSS = {
    "bert": Cross(transformers.BertForSequenceClassification, "bert.", {
        "bert.pooler.dense.weight": "cls.weight", "bert.pooler.dense.bias": "cls.bias",
        "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias"}),
    "xlm-roberta": Cross(transformers.XLMRobertaForSequenceClassification, "roberta.", {
        "classifier.dense.weight": "cls.weight", "classifier.dense.bias": "cls.bias",
        "classifier.out_proj.weight": "cls.output.weight", "classifier.out_proj.bias": "cls.output.bias"}),
    "modern-bert": Cross(transformers.ModernBertForSequenceClassification, "model.", {
        "head.dense.weight": "cls.weight", "head.norm.weight": "cls.norm.weight",
        "classifier.weight": "cls.output.weight", "classifier.bias": "cls.output.bias"}, {"classifier_pooling": "mean"}),
}
QUERY = "what are the long words of the text?"
RANK = 4


def logits_of(net, pairs):
    found = []
    for ids, types in pairs:
        more = {} if types is None else {"token_type_ids": torch.tensor([types])}
        with torch.no_grad():
            found.append(float(net(input_ids=torch.tensor([ids]), **more).logits[0, 0]))
    return np.array(found)


def make_cross(model, cross, out):
    config = copy.deepcopy(model.config)
    config.num_labels = 1
    for key, value in cross.changes.items():
        setattr(config, key, value)
    config._attn_implementation = "eager"
    net = cross.build(config).float().eval()
    weights = draw(net, len(model.name) + 100)
    documents = [text.replace("[MASK]", "(mask)") for text in model.texts]  # here a text never has special tokens
    keys = dict(model.keys) | {f"{model.keys['general.architecture']}.pooling_type": RANK, "tokenizer.ggml.add_sep_token": model.pair is not None}
    if model.pair is None:
        words = vocabulary(model.cased)
        tokenizer = tokenizer_of(words, model.cased)
        keys |= word_piece_keys(words)
        typed = model.name == "bert"
        pairs = [(one.ids, one.type_ids if typed else None) for one in (tokenizer.encode(QUERY, text) for text in documents)]
    else:
        pairs = [model.pair(QUERY, text) for text in documents]

    def run(values):
        net.load_state_dict({name: torch.from_numpy(each) for name, each in values.items()})
        return logits_of(net, pairs)

    logits = run(weights)
    for name, values in weights.items():
        if name in cross.head and np.abs(run(weights | {name: values * 1.5}) - logits).max() < LEAST_FELT:
            print(f"WARN cross-{model.name}: {name} does not change the logits")
    run(weights)
    if pairs[0][1] is not None and np.abs(logits_of(net, [(ids, [0] * len(ids)) for ids, _ in pairs]) - logits).max() < 1e-2:
        print(f"WARN cross-{model.name}: types of tokens do not change the logits")
    tensors = []
    for name, values in weights.items():
        if (ours := cross.head.get(name) or model.names(name.removeprefix(cross.prefix))) is None:
            continue
        if ours == "position_embd.weight":
            values = values[-keys["bert.context_length"]:]
        floats = values.ndim == 1 or ours in ("position_embd.weight", "token_types.weight")
        tensors.append((ours, values, gguf.TENSOR_F32 if floats else gguf.TENSOR_F16))
    (out / f"cross-{model.name}.gguf").write_bytes(gguf.pack(keys, tensors))
    (out / f"cross-{model.name}.json").write_text(json.dumps({
        "query": QUERY, "documents": documents, "logits": logits.tolist(), "tokens": sum(len(ids) for ids, _ in pairs)},
        ensure_ascii=False, indent=1) + "\n")
    print(f"cross-{model.name}: logits {logits.round(3).tolist()}")


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: encoders.py OUT_DIR [NAME...]")
    wanted = sys.argv[2:]
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for model in [*MODELS, xlm_roberta(out), jina_bert_v3(out)]:
        if not wanted or model.name in wanted:
            make(model, out)
        if model.name in CROSS and (not wanted or f"cross-{model.name}" in wanted):
            make_cross(model, CROSS[model.name], out)


if __name__ == "__main__":
    main()
