"""Trains the demo models on one GPU: a Qwen3-MoE of 16 experts and a Llama draft model that shares its tokenizer.

    python3 train.py OUT_DIR [SECONDS_MOE] [SECONDS_DRAFT] [DOCUMENTS_PER_WORKER]

Writes Hugging Face style checkpoints (bf16 safetensors, in shards), tokenizer files, and reference logits (float32,
computed from the bf16 weights in float32 arithmetic). Prints the share of held-out questions answered exactly.
Needs PyTorch with CUDA, numpy, safetensors and tokenizers; transformers, where it is there, checks the export.
"""

import argparse
import functools
import json
import math
import multiprocessing
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn

import corpus

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
END_OF_TEXT, END_OF_TURN = 0, 2  # ids of the first and the last of them
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # Qwen 2's pre-tokenizer
TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MAX_POSITIONS = 2048
ROPE_THETA = 1e4
NORM_EPSILON = 1e-6
BATCH, CONTEXT = 48, 1024
WORKERS = 16
SHARD_BYTES = 14 * 2**20
REFERENCE_TEXTS = [
    "The capital of France is",
    "<|im_start|>user\nWhat is 23 + 45?<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time there was a little fox named Mia. More than anything, Mia loved a red lantern.",
]

started = time.time()


def log(*words):
    print(f"[{time.time() - started:6.1f}s]", *words, flush=True)


# --- text to tokens ---------------------------------------------------------------------------------------------------


def make_tokenizer(out_dir):
    """Byte-level BPE trained on 60,000 documents; it finds fewer merges than the 4,096 tokens it may have."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.documents(7, 60000), trainer)
    tokenizer.save(str(out_dir / "tokenizer.json"))
    return tokenizer


def encode_worker(out_dir, documents, worker):
    """The tokens of one worker's documents, each followed by <|endoftext|>."""
    tokenizer = Tokenizer.from_file(str(out_dir / "tokenizer.json"))
    tokens = []
    for encoding in tokenizer.encode_batch(corpus.documents(1000 + worker, documents)):
        tokens += encoding.ids
        tokens.append(END_OF_TEXT)
    return np.array(tokens, dtype=np.uint16)


def encode_corpus(out_dir, documents_per_worker):
    encode = functools.partial(encode_worker, out_dir, documents_per_worker)
    with multiprocessing.get_context("fork").Pool(WORKERS) as pool:
        data = np.concatenate(pool.map(encode, range(WORKERS)))
    log(f"{len(data) / 1e6:.1f}M tokens")
    return torch.from_numpy(data.astype(np.int32)).cuda()


# --- the models -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int  # of one expert, where there are experts
    experts: int = 0  # 0: Llama; otherwise Qwen3-MoE, which also norms queries and keys
    experts_used: int = 0

    @property
    def moe(self):
        return self.experts > 0


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + NORM_EPSILON)
        return normed.type_as(x) * self.weight.type_as(x)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        c, width = config, config.width
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(width), RMSNorm(width)
        self.q = linear(width, c.heads * c.head_dim)
        self.k = linear(width, c.kv_heads * c.head_dim)
        self.v = linear(width, c.kv_heads * c.head_dim)
        self.o = linear(c.heads * c.head_dim, width)
        if c.moe:
            self.q_norm, self.k_norm = RMSNorm(c.head_dim), RMSNorm(c.head_dim)
            self.router = linear(width, c.experts)
            self.gate = nn.Parameter(torch.randn(c.experts, c.ff, width) * width**-0.5)
            self.up = nn.Parameter(torch.randn(c.experts, c.ff, width) * width**-0.5)
            self.down = nn.Parameter(
                torch.randn(c.experts, width, c.ff) * c.ff**-0.5 / math.sqrt(2 * c.layers)
            )
        else:
            self.gate, self.up, self.down = linear(width, c.ff), linear(width, c.ff), linear(c.ff, width)

    def attention(self, x, cos, sin):
        batch, tokens, _ = x.shape
        q, k, v = (
            project(x).view(batch, tokens, -1, self.config.head_dim).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        if self.config.moe:
            q, k = self.q_norm(q), self.k_norm(k)
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True, enable_gqa=True
        )
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def dense(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))

    def experts(self, x):
        """All experts on all tokens, weighted by the router (most weights 0). Also the load-balancing loss."""
        c = self.config
        batch, tokens, _ = x.shape
        probabilities = self.router(x).float().softmax(-1)
        weights, chosen = probabilities.topk(c.experts_used, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixture = torch.zeros_like(probabilities).scatter(-1, chosen, weights)
        load = (mixture > 0).float().mean((0, 1)) * probabilities.mean((0, 1))
        balance_loss = c.experts * load.sum() / c.experts_used

        flat, wide = x.reshape(-1, c.width), c.experts * c.ff
        n = flat.shape[0]
        gate = (flat @ self.gate.view(wide, -1).to(x.dtype).t()).view(n, c.experts, c.ff)
        up = (flat @ self.up.view(wide, -1).to(x.dtype).t()).view(n, c.experts, c.ff)
        hidden = F.silu(gate) * up * mixture.view(n, c.experts, 1).to(x.dtype)
        down = self.down.permute(0, 2, 1).reshape(wide, -1).to(x.dtype)
        return (hidden.view(n, wide) @ down).view(batch, tokens, -1), balance_loss

    def forward(self, x, cos, sin):
        x = x + self.attention(self.input_layernorm(x), cos, sin)
        normed = self.post_attention_layernorm(x)
        if not self.config.moe:
            return x + self.dense(normed), x.new_zeros(())
        mixed, balance_loss = self.experts(normed)
        return x + mixed, balance_loss


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        for layer in self.layers:
            for name, parameter in layer.named_parameters():
                if parameter.dim() != 2:
                    continue  # norms and stacked experts keep what they have
                adds_to_residual = name.startswith(("o.", "down."))
                std = 0.02 / math.sqrt(2 * config.layers) if adds_to_residual else 0.02
                nn.init.normal_(parameter, std=std)
        frequencies = ROPE_THETA ** (-torch.arange(0, config.head_dim, 2).float() / config.head_dim)
        angles = torch.outer(torch.arange(MAX_POSITIONS).float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, ids):
        """Logits [batch, tokens, vocab], with the embedding as the head, and the mean load-balancing loss."""
        x = self.embed(ids)
        tokens = ids.shape[1]
        cos, sin = self.cos[:tokens].to(x.dtype), self.sin[:tokens].to(x.dtype)
        balance_loss = 0.0
        for layer in self.layers:
            x, loss = layer(x, cos, sin)
            balance_loss = balance_loss + loss
        logits = F.linear(self.norm(x), self.embed.weight.to(x.dtype))
        return logits, balance_loss / len(self.layers)


# --- training ---------------------------------------------------------------------------------------------------------


def make_optimizer(model, rate):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), fused=True)


def batches(data):
    """Endless (inputs, targets) [BATCH, CONTEXT] in random order, each row once before any comes again."""
    rows = (len(data) - 1) // CONTEXT
    inputs = data[: rows * CONTEXT].view(rows, CONTEXT)
    targets = data[1 : rows * CONTEXT + 1].view(rows, CONTEXT)
    order, taken = torch.randperm(rows, device="cuda"), 0
    while True:
        if taken + BATCH > rows:
            order, taken = torch.randperm(rows, device="cuda"), 0
        chosen = order[taken : taken + BATCH]
        taken += BATCH
        yield inputs[chosen].long(), targets[chosen].long()


def learning_rate(peak, step, fraction):
    """100 steps of warm-up, then a cosine over the time given, down to 2 %."""
    cosine = 0.5 * (1 + math.cos(math.pi * fraction))
    return peak * min(1, (step + 1) / 100) * (0.02 + 0.98 * cosine)


def train(config, data, seconds, rate, tag):
    torch.manual_seed(0)
    model = Model(config).cuda()
    log(tag, f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters")
    compiled = torch.compile(model)
    optimizer = make_optimizer(model, rate)
    step, begin = 0, None
    for inputs, targets in batches(data):
        fraction = 0.0 if begin is None else (time.time() - begin) / seconds
        if fraction >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(rate, step, fraction)
        with torch.autocast("cuda", torch.bfloat16):
            logits, balance_loss = compiled(inputs)
            loss = F.cross_entropy(logits.float().view(-1, config.vocab), targets.view(-1))
        (loss + 0.01 * balance_loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step == 3:  # the clock starts when compiling is over
            torch.cuda.synchronize()
            begin = time.time()
        if step % 200 == 0:
            seen = step * BATCH * CONTEXT / 1e6
            log(tag, f"step {step} loss {loss.item():.4f} aux {float(balance_loss):.3f} tokens {seen:.0f}M")
    log(tag, f"done: {step} steps, loss {loss.item():.4f}")
    return model


# --- evaluation -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def answer_greedily(model, tokenizer, prompts, limit=48):
    """Greedy answers through the chat template, all prompts side by side (causal: padding behind a row is harmless)."""
    rows = [
        tokenizer.encode(f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n").ids
        for prompt in prompts
    ]
    answers = [[] for _ in rows]
    live = set(range(len(rows)))
    for _ in range(limit):
        longest = max(len(row) for row in rows)
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            logits, _ = model(ids)
        for j in list(live):
            token = int(logits[j, len(rows[j]) - 1].argmax())
            if token == END_OF_TURN:
                live.discard(j)
            else:
                rows[j].append(token)
                answers[j].append(token)
        if not live:
            break
    return [tokenizer.decode(answer) for answer in answers]


def evaluate(model, tokenizer, n=240):
    questions = corpus.held_out(n)
    right, wrong = 0, []
    for begin in range(0, n, 60):
        part = questions[begin : begin + 60]
        answers = answer_greedily(model, tokenizer, [prompt for prompt, _ in part])
        for (prompt, wanted), got in zip(part, answers):
            right += got == wanted
            if got != wanted and len(wrong) < 6:
                wrong.append((prompt[-60:], wanted, got))
    log(f"exact answers {right}/{n}")
    for row in wrong:
        log("  wrong:", row)


# --- export -----------------------------------------------------------------------------------------------------------


def hugging_face_tensors(model):
    """The weights in bf16 under the names that transformers gives them."""
    config = model.config
    tensors = {"model.embed_tokens.weight": model.embed.weight, "model.norm.weight": model.norm.weight}
    for i, layer in enumerate(model.layers):
        prefix = f"model.layers.{i}."
        for name in ("q", "k", "v", "o"):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = getattr(layer, name).weight
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = getattr(layer, name).weight
        if not config.moe:
            for name in ("gate", "up", "down"):
                tensors[f"{prefix}mlp.{name}_proj.weight"] = getattr(layer, name).weight
            continue
        tensors[prefix + "self_attn.q_norm.weight"] = layer.q_norm.weight
        tensors[prefix + "self_attn.k_norm.weight"] = layer.k_norm.weight
        tensors[prefix + "mlp.gate.weight"] = layer.router.weight
        for expert in range(config.experts):
            for name in ("gate", "up", "down"):
                tensors[f"{prefix}mlp.experts.{expert}.{name}_proj.weight"] = getattr(layer, name)[expert]
    return {name: t.detach().to(torch.bfloat16).cpu().contiguous() for name, t in tensors.items()}


def save_shards(tensors, folder):
    shards, current, current_bytes = [], {}, 0
    for name, tensor in tensors.items():
        tensor_bytes = tensor.numel() * 2
        if current_bytes + tensor_bytes > SHARD_BYTES:
            shards.append(current)
            current, current_bytes = {}, 0
        current[name] = tensor
        current_bytes += tensor_bytes
    shards.append(current)
    if len(shards) == 1:
        files = ["model.safetensors"]
    else:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        index = {
            "metadata": {"total_size": sum(tensor.numel() * 2 for tensor in tensors.values())},
            "weight_map": {name: file for shard, file in zip(shards, files) for name in shard},
        }
        write_json(folder / "model.safetensors.index.json", index, indent=1)
    for shard, file in zip(shards, files):
        save_file(shard, folder / file, metadata={"format": "pt"})


def hugging_face_config(c):
    settings = {
        "vocab_size": c.vocab,
        "hidden_size": c.width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "rms_norm_eps": NORM_EPSILON,
        "rope_theta": ROPE_THETA,
        "max_position_embeddings": MAX_POSITIONS,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": None,
        "eos_token_id": END_OF_TURN,
        "initializer_range": 0.02,
    }
    if not c.moe:
        llama = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "intermediate_size": c.ff}
        return settings | llama | {"mlp_bias": False}
    return settings | {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": c.experts,
        "num_experts_per_tok": c.experts_used,
        "moe_intermediate_size": c.ff,
        "intermediate_size": c.ff,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def write_json(path, value, indent=None):
    path.write_text(json.dumps(value, indent=indent))


@torch.no_grad()
def reference_logits(model, tokenizer):
    """Text, tokens and logits of three prompts: the bf16 weights, computed with in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = Model(model.config).cuda().float()
    reference.load_state_dict({k: v.to(torch.bfloat16).float() for k, v in model.state_dict().items()})
    arrays = {}
    for j, text in enumerate(REFERENCE_TEXTS):
        ids = tokenizer.encode(text).ids
        logits, _ = reference(torch.tensor([ids], device="cuda"))
        arrays[f"logits_{j}"] = logits[0].float().cpu().numpy()
        arrays[f"tokens_{j}"] = np.array(ids, np.int32)
        arrays[f"text_{j}"] = np.array(text)
    return arrays


@torch.no_grad()
def check_with_transformers(folder, arrays, tag):
    """The same weights through an implementation that is not ours; skipped in words where it is not installed."""
    try:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda().eval()
        ids = torch.tensor([arrays["tokens_2"].tolist()], device="cuda")
        difference = (model(ids).logits[0].float().cpu() - torch.tensor(arrays["logits_2"])).abs().max().item()
        log(tag, f"largest logit difference to transformers' own implementation: {difference:.2e}")
    except Exception as failure:  # whatever transformers raises, the export itself is complete
        log(tag, "transformers check failed:", repr(failure)[:300])


def export(model, tag, tokenizer, out_dir):
    folder = out_dir / tag
    folder.mkdir(parents=True, exist_ok=True)
    save_shards(hugging_face_tensors(model), folder)
    write_json(folder / "config.json", hugging_face_config(model.config), indent=1)
    generation = {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
    write_json(folder / "generation_config.json", generation)
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": MAX_POSITIONS,
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", tokenizer_config, indent=1)
    tokenizer.save(str(folder / "tokenizer.json"))
    arrays = reference_logits(model, tokenizer)
    np.savez_compressed(folder / "reference_logits.npz", **arrays)
    log("exported", tag, [f"{file.name} {file.stat().st_size >> 20} MiB" for file in sorted(folder.iterdir())])
    check_with_transformers(folder, arrays, tag)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out_dir", type=Path)
    parser.add_argument("seconds_moe", type=float, nargs="?", default=240)
    parser.add_argument("seconds_draft", type=float, nargs="?", default=60)
    parser.add_argument("documents_per_worker", type=int, nargs="?", default=50000)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    arguments.out_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer(arguments.out_dir)
    vocab = tokenizer.get_vocab_size()
    log("tokenizer", vocab)
    data = encode_corpus(arguments.out_dir, arguments.documents_per_worker)
    moe = Config(
        vocab=vocab, width=256, layers=6, heads=4, kv_heads=2, head_dim=64, ff=256, experts=16, experts_used=2
    )
    draft = Config(vocab=vocab, width=128, layers=3, heads=2, kv_heads=1, head_dim=64, ff=384)
    for tag, config, seconds, rate in (
        ("demo-moe", moe, arguments.seconds_moe, 2e-3),
        ("demo-draft", draft, arguments.seconds_draft, 4e-3),
    ):
        model = train(config, data, seconds, rate, tag)
        evaluate(model, tokenizer)
        export(model, tag, tokenizer, arguments.out_dir)


if __name__ == "__main__":
    main()
