"""Checkpoints of encoders: what `convert` makes of one is the reference file that its weights are from."""
import base64
import json
import pathlib
import tempfile
import unittest

import checkpoints
from harness import ROOT, Case

REFERENCE = ROOT / "tests/data/encoders"
BERT = ({"token_embd": "embeddings.word_embeddings", "position_embd": "embeddings.position_embeddings",
         "token_types": "embeddings.token_type_embeddings", "token_embd_norm": "embeddings.LayerNorm"}, "encoder.layer",
        {"attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
         "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
         "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm"})
NOMIC = (BERT[0], "layers",
         {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
          "attn_output_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
          "ffn_down": "mlp.down_proj", "layer_output_norm": "post_mlp_layernorm"})
OWN_NOMIC = (BERT[0] | {"token_embd_norm": "emb_ln"}, "encoder.layers",  # by the code that its models are published with
             {"attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "ffn_gate": "mlp.fc12", "ffn_up": "mlp.fc11",
              "ffn_down": "mlp.fc2", "layer_output_norm": "norm2"})
MODERN = ({"token_embd": "embeddings.tok_embeddings", "token_embd_norm": "embeddings.norm", "output_norm": "final_norm"}, "layers",
          {"attn_norm": "attn_norm", "attn_qkv": "attn.Wqkv", "attn_output": "attn.Wo", "ffn_norm": "mlp_norm", "ffn_up": "mlp.Wi",
           "ffn_down": "mlp.Wo"})
EURO = ({"token_embd": "embed_tokens", "output_norm": "norm"}, "layers",
        {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"})
BERT_HEAD = {"cls": "pooler.dense", "cls.output": "classifier"}
ROBERTA_HEAD = {"cls": "classifier.dense", "cls.output": "classifier.out_proj"}
MODERN_HEAD = {"cls": "head.dense", "cls.norm": "head.norm", "cls.output": "classifier"}
START = "▁"  # before what begins a word


def their_name(name, names, head, prefix):
    top, layers, parts = names
    stem, end = name.rsplit(".", 1)
    if stem in head:
        return f"{prefix if stem == 'cls' and head is BERT_HEAD else ''}{head[stem]}.{end}"
    if stem in top:
        return f"{prefix}{top[stem]}.{end}"
    _, layer, part = stem.split(".")
    return f"{prefix}{layers}.{layer}.{parts[part]}.{end}"


def word_piece(file):
    words = file.keys["tokenizer.ggml.tokens"]
    cased = not file.keys.get("tokenizer.ggml.normalizer.lowercase", not any(word.startswith(START + "The") for word in words))
    specials = [number for number, kind in enumerate(file.keys["tokenizer.ggml.token_type"]) if kind == 3]
    vocabulary = {word if number in specials else word.removeprefix(START) if word.startswith(START) else f"##{word}": number
                  for number, word in enumerate(words)}
    return {
        "added_tokens": [{"id": number, "content": words[number], "special": True} for number in specials],
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": not cased},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
                  "vocab": vocabulary}}


def unigram(file):
    words, kinds = file.keys["tokenizer.ggml.tokens"], file.keys["tokenizer.ggml.token_type"]
    special = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}  # noqa: E731
    text = lambda name: {"Sequence": {"id": name, "type_id": 0}}  # noqa: E731
    return {
        "added_tokens": [{"id": number, "content": word, "special": kind == 3}
                         for number, (word, kind) in enumerate(zip(words, kinds)) if kind in (3, 4)],
        "normalizer": {"type": "Precompiled",
                       "precompiled_charsmap": base64.b64encode(bytes(file.keys["tokenizer.ggml.precompiled_charsmap"])).decode()},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": START, "prepend_scheme": "always", "split": True}]},
        "post_processor": {"type": "TemplateProcessing", "single": [special("<s>"), text("A"), special("</s>")],
                           "pair": [special("<s>"), text("A"), special("</s>"), special("</s>"), text("B"), special("</s>")]},
        "model": {"type": "Unigram", "unk_id": 3, "vocab": [list(pair) for pair in zip(words, file.keys["tokenizer.ggml.scores"])]}}


def write_checkpoint(folder, file, names, config, prefix="", pooling="pooling_mode_mean_tokens", tokenizer=word_piece, rows_before=0,
                     head=None):
    """The checkpoint that a reference file was made of, as transformers and sentence-transformers save it."""
    folder.mkdir(exist_ok=True)
    architecture = file.keys["general.architecture"]
    keys = {key.removeprefix(f"{architecture}."): value for key, value in file.keys.items()}
    kinds = {0: "F32", 1: "F16"}
    tensors = {}
    for name, (kind, shape, data) in file.tensors.items():
        if name == "position_embd.weight" and rows_before:
            shape, data = [shape[0], shape[1] + rows_before], b"\0" * (4 * shape[0] * rows_before) + data
        tensors[their_name(name, names, head or {}, prefix)] = (kinds[kind], shape[::-1], data)
    if head is None and names is BERT:
        tensors[prefix + "pooler.dense.bias"] = ("F32", [1], b"\0" * 4)
        tensors[prefix + "embeddings.position_ids"] = ("I64", [1, 1], b"\0" * 8)
    checkpoints.write_safetensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps({
        "vocab_size": len(file.keys["tokenizer.ggml.tokens"]), "hidden_size": keys["embedding_length"],
        "num_hidden_layers": keys["block_count"], "num_attention_heads": keys["attention.head_count"],
        "intermediate_size": keys["feed_forward_length"], "max_position_embeddings": keys["context_length"] + rows_before} | config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(file)))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": keys["embedding_length"],
                                                              "pooling_mode_max_tokens": False, pooling: True}))
    (folder / "modules.json").write_text(json.dumps([{"idx": 0, "type": "sentence_transformers.models.Transformer"},
                                                     {"idx": 1, "type": "sentence_transformers.models.Pooling"},
                                                     {"idx": 2, "type": "sentence_transformers.models.Normalize"}]))


EPS = 1e-3  # of the reference encoders' norms
BERT_CONFIG = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "layer_norm_eps": EPS, "type_vocab_size": 2,
               "position_embedding_type": "absolute"}
XLM_CONFIG = {"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"], "layer_norm_eps": EPS, "type_vocab_size": 1,
              "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
NOMIC_CONFIG = {"model_type": "nomic_bert", "architectures": ["NomicBertModel"], "layer_norm_eps": EPS, "type_vocab_size": 2,
                "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
MODERN_CONFIG = {"model_type": "modernbert", "architectures": ["ModernBertModel"], "norm_eps": EPS, "local_attention": 16,
                 "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "pad_token_id": 0}
EURO_CONFIG = {"model_type": "eurobert", "architectures": ["EuroBertModel"], "rms_norm_eps": EPS, "num_key_value_heads": 1,
               "hidden_act": "silu", "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}}
CLS = "pooling_mode_cls_token"


def own_nomic(file):
    """Its q, k and v in one matrix, and GPT-2's keys."""
    for layer in range(file.keys["nomic-bert.block_count"]):
        parts = [file.tensors.pop(f"blk.{layer}.attn_{part}.weight") for part in "qkv"]
        kind, shape, _ = parts[0]
        file.tensors[f"blk.{layer}.attn_qkv.weight"] = (kind, [shape[0], 3 * shape[1]], b"".join(data for _, _, data in parts))
    return {"model_type": "nomic_bert", "n_embd": 48, "n_head": 3, "n_layer": 2, "n_inner": 64, "n_positions": 8192,
            "max_trained_positions": 160, "layer_norm_epsilon": EPS, "rotary_emb_base": 1000, "activation_function": "swiglu",
            "qkv_proj_bias": False, "rotary_emb_fraction": 1.0, "type_vocab_size": 2}


class ConvertEncoders(Case):
    def setUp(self):
        self.room = tempfile.TemporaryDirectory()
        self.addCleanup(self.room.cleanup)
        self.folder = pathlib.Path(self.room.name)
        self.source, self.out = self.folder / "encoder", self.folder / "out.gguf"

    def check_same(self, name, file):
        """`out` has the tensors and keys of the reference file."""
        made = checkpoints.Gguf(self.out)
        self.assertEqual(sorted(made.tensors), sorted(file.tensors))
        for tensor in file.tensors:
            self.assertEqual(made.tensors[tensor], file.tensors[tensor], tensor)
        for key, value in file.keys.items():
            if key not in ("general.name", "tokenizer.ggml.token_type", "tokenizer.ggml.token_type_count"):
                self.assertEqual(made.keys.get(key), value, key)

    def test_files_are_the_reference(self):
        text = "Café — the models, Größe and 中 in ÜBER [MASK]"
        for name, names, config, more in (
                ("bert", BERT, BERT_CONFIG, {}), ("bert-cased", BERT, BERT_CONFIG, {"pooling": CLS, "prefix": "bert."}),
                ("xlm-roberta", BERT, XLM_CONFIG, {"pooling": CLS, "prefix": "roberta.", "tokenizer": unigram, "rows_before": 2}),
                ("nomic-bert", NOMIC, NOMIC_CONFIG, {}), ("modern-bert", MODERN, MODERN_CONFIG, {"prefix": "model."}),
                ("eurobert", EURO, EURO_CONFIG, {"prefix": "model."})):
            with self.subTest(name):
                file = checkpoints.Gguf(REFERENCE / f"{name}.gguf")
                write_checkpoint(self.source, file, names, config, **more)
                self.ok("convert", self.source, "-o", self.out)
                self.check_same(name, file)
                self.assertEqual(self.ok("embed", self.out, text).out, self.ok("embed", REFERENCE / f"{name}.gguf", text).out)

    def test_nomics_own_names(self):
        file = checkpoints.Gguf(REFERENCE / "nomic-bert.gguf")
        config = own_nomic(file)
        write_checkpoint(self.source, file, OWN_NOMIC, config)
        self.ok("convert", self.source, "-o", self.out)
        self.check_same("nomic-bert", file)
        self.assertEqual(self.ok("embed", self.out, "the text").out, self.ok("embed", REFERENCE / "nomic-bert.gguf", "the text").out)

    def test_heads_that_rank(self):
        for name, names, config, head, more in (
                ("bert", BERT, BERT_CONFIG | {"architectures": ["BertForSequenceClassification"]}, BERT_HEAD, {"prefix": "bert."}),
                ("xlm-roberta", BERT, XLM_CONFIG | {"architectures": ["XLMRobertaForSequenceClassification"]}, ROBERTA_HEAD,
                 {"prefix": "roberta.", "tokenizer": unigram, "rows_before": 2}),
                ("modern-bert", MODERN, MODERN_CONFIG | {"architectures": ["ModernBertForSequenceClassification"], "classifier_pooling": "mean"},
                 MODERN_HEAD, {"prefix": "model."})):
            with self.subTest(name):
                file = checkpoints.Gguf(REFERENCE / f"cross-{name}.gguf")
                file.keys.pop("tokenizer.ggml.add_sep_token", None)  # of WordPiece files it is left out
                write_checkpoint(self.source, file, names, config, head=head, **more)
                self.ok("convert", self.source, "-o", self.out)
                self.check_same(name, file)
                self.assertEqual(checkpoints.Gguf(self.out).keys.get("tokenizer.ggml.add_sep_token", False), name == "xlm-roberta")

    def test_a_shorter_length_is_kept(self):
        file = checkpoints.Gguf(REFERENCE / "bert.gguf")
        write_checkpoint(self.source, file, BERT, BERT_CONFIG)
        (self.source / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
        self.ok("convert", self.source, "-o", self.out)
        self.assertEqual(checkpoints.Gguf(self.out).keys["bert.context_length"], 64)

    def test_what_would_change_vectors_is_refused_by_name(self):
        file = checkpoints.Gguf(REFERENCE / "bert.gguf")
        for changes, says in (({"hidden_act": "relu"}, "hidden_act"), ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
                              ({"is_decoder": True}, "is_decoder")):
            with self.subTest(changes):
                write_checkpoint(self.source, file, BERT, BERT_CONFIG | changes)
                self.refused("convert", self.source, "-o", self.out, says=says)
        modern = checkpoints.Gguf(REFERENCE / "modern-bert.gguf")
        for changes, says in (({"global_attn_every_n_layers": 2}, "global_attn_every_n_layers"), ({"norm_bias": True}, "norm_bias"),
                              ({"layer_types": ["full_attention"] * 4}, "layer_types")):
            with self.subTest(changes):
                write_checkpoint(self.source, modern, MODERN, MODERN_CONFIG | changes)
                self.refused("convert", self.source, "-o", self.out, says=says)
        write_checkpoint(self.source, file, BERT, BERT_CONFIG, pooling="pooling_mode_max_tokens")
        self.refused("convert", self.source, "-o", self.out, says="pooling_mode_max_tokens")
        write_checkpoint(self.source, file, BERT, BERT_CONFIG)
        (self.source / "sentence_bert_config.json").write_text(json.dumps({"do_lower_case": True}))
        self.refused("convert", self.source, "-o", self.out, says="do_lower_case")
        (self.source / "sentence_bert_config.json").unlink()
        (self.source / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Dense"}]))
        self.refused("convert", self.source, "-o", self.out, says="Dense")
        self.assertEqual(list(self.folder.glob("out.gguf*")), [])


if __name__ == "__main__":
    unittest.main()
