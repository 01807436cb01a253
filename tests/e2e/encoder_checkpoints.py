"""Random checkpoints of encoders as transformers and sentence-transformers save them, with tokenizers of their kinds."""
import json
import pathlib

import checkpoints
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
XLM_ROBERTA = ROOT / "tests/data/encoders/xlm-roberta.gguf"  # its vocabulary and its map of characters
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SHAPE = dict(hidden_size=48, num_hidden_layers=4, num_attention_heads=3, intermediate_size=80)


def ends(tokenizer, first, last):
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(each, tokenizer.token_to_id(each)) for each in (first, last)])


def word_piece(texts, lowercase):
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=900, special_tokens=SPECIALS, show_progress=False))
    ends(made, "[CLS]", "[SEP]")
    return made


def byte_pairs(texts, composes):
    made = tokenizers.Tokenizer(models.BPE())
    if composes:
        made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>"] if not composes else SPECIALS
    made.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=900, special_tokens=specials, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    if composes:
        ends(made, "[CLS]", "[SEP]")
    else:
        made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return made


def unigram():
    keys = checkpoints.Gguf(XLM_ROBERTA).keys
    words, scores = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.scores"]
    made = tokenizers.Tokenizer(models.Unigram(list(zip(words, map(float, scores))), unk_id=3))
    made.normalizer = normalizers.Precompiled(bytes(keys["tokenizer.ggml.precompiled_charsmap"]))
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    ends(made, "<s>", "</s>")
    return made


def save(folder, network, tokenizer, pooling, most_tokens=None, changes=None):
    """`changes`: of config.json, whose keys are others in a model's own code."""
    torch.manual_seed(len(folder.name))
    with torch.no_grad():
        for name, values in network.named_parameters():
            if values.ndim > 1:
                values.normal_(0, 0.5 if "embeddings" in name else 1.4 / values.shape[-1] ** 0.5)
            else:
                values.add_(torch.randn_like(values) * 0.2)
    network.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    if changes:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({"word_embedding_dimension": SHAPE["hidden_size"],
                                                              f"pooling_mode_{pooling}": True}))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": most_tokens, "do_lower_case": False}))


def bert(folder, texts, lowercase=True, pooling="mean_tokens"):
    tokenizer = word_piece(texts, lowercase)
    config = transformers.BertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=300, **SHAPE)
    save(folder, transformers.BertModel(config).eval(), tokenizer, pooling, 256)


def xlm_roberta(folder, _):
    tokenizer = unigram()
    config = transformers.XLMRobertaConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=300, type_vocab_size=1,
                                           **SHAPE)
    save(folder, transformers.XLMRobertaModel(config).eval(), tokenizer, "cls_token")


def roberta(folder, texts):
    tokenizer = byte_pairs(texts, composes=False)
    config = transformers.RobertaConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=300, type_vocab_size=1, **SHAPE)
    save(folder, transformers.RobertaModel(config).eval(), tokenizer, "mean_tokens")


def nomic_bert(folder, texts):
    tokenizer = word_piece(texts, True)
    config = transformers.NomicBertConfig(vocab_size=tokenizer.get_vocab_size() + 3, max_position_embeddings=300, **SHAPE)
    save(folder, transformers.NomicBertModel(config).eval(), tokenizer, "mean_tokens")


def jina_v3(folder, texts):
    tokenizer = word_piece(texts, True)
    config = transformers.JinaEmbeddingsV3Config(vocab_size=tokenizer.get_vocab_size() + 3, max_position_embeddings=300, type_vocab_size=1, **SHAPE)
    save(folder, transformers.JinaEmbeddingsV3Model(config).eval(), tokenizer, "mean_tokens")


def modern_bert(folder, texts):
    tokenizer = byte_pairs(texts, composes=True)
    config = transformers.ModernBertConfig(vocab_size=tokenizer.get_vocab_size(), max_position_embeddings=300, local_attention=32,
                                           pad_token_id=0, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3, **SHAPE)
    save(folder, transformers.ModernBertModel(config).eval(), tokenizer, "mean_tokens")


MAKERS = {
    "bert": bert,
    "bert-cased": lambda folder, texts: bert(folder, texts, lowercase=False, pooling="cls_token"),
    "xlm-roberta": xlm_roberta,
    "roberta": roberta,
    "nomic-bert": nomic_bert,
    "modern-bert": modern_bert,
    "jina-v3": jina_v3,
}
