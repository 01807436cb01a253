"""`make test-transformers`: the models of tools/reference-models/vision.py, as transformers saves them, converted with their towers.

The mmproj file that `convert` writes has the numbers of the one in tests/data/vision, whose rows and answers the tests of the engine
hold to transformers'. Gemma 4 12B, of which that folder has the embedder alone, is made whole. Needs the packages of
transformers.txt; $MILLRACE is the program.
Usage: towers_check.py [NAME...]
"""
import pathlib
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "tools/reference-models")]
import checkpoints  # noqa: E402
import vision  # noqa: E402
from transformers_check import millrace  # noqa: E402

TOWERS = ROOT / "tests/data/vision"


def unified(folder):
    """A whole one; returns the numbers of its embedder by GGUF's names."""
    text = dict(vision.zoo.GEMMA4_MOE.config) | {"enable_moe_block": False, "use_bidirectional_attention": "vision"}
    known = transformers.Gemma4UnifiedTextConfig().to_dict()
    text = {key: value for key, value in text.items() if key in known or key in ("global_head_dim", "num_global_key_value_heads")}
    sight = {"patch_size": vision.GEMMA4_PATCH, "pooling_kernel_size": vision.GEMMA4_MERGE, "mm_embed_dim": 32, "mm_posemb_size": vision.GEMMA4_LINES,
             "output_proj_dims": 32}
    config = transformers.Gemma4UnifiedConfig(text_config=text, vision_config=sight, **vision.GEMMA4_TOKENS)
    net = transformers.Gemma4UnifiedForConditionalGeneration(config).float()
    torch.manual_seed(3)
    with torch.no_grad():
        for values in net.parameters():
            values.normal_(0, 0.3)
            values.copy_(values.half().float())
    net.save_pretrained(folder)
    made = {}
    for name, values in net.state_dict().items():
        if name.startswith("model.embed_vision."):
            made |= dict(vision.gemma4_unified_tensors(name, values.numpy()))
    return {name: (list(values.shape[::-1]), values.ravel().tolist()) for name, values in made.items()}


def saved(model, folder):
    net = vision.build(model)
    with torch.no_grad():
        vision.fill(model, net)
    net.save_pretrained(folder)
    given = checkpoints.Gguf(TOWERS / f"{model.name}-mmproj.gguf").tensors
    return {name: (shape, checkpoints.floats_of(kind, values)) for name, (kind, shape, values) in given.items()}


def check(name, make):
    """None, or what is wrong."""
    with tempfile.TemporaryDirectory() as room:
        folder = pathlib.Path(room)
        wanted = make(folder / "checkpoint")
        checkpoints.write_tokenizer(folder / "checkpoint")
        ran = millrace("convert", folder / "checkpoint", "-o", folder / "model.gguf", "--dtype", "f16")
        if ran.returncode != 0 or "left out" in ran.stderr:
            return ran.stderr.strip()
        made = checkpoints.Gguf(folder / "mmproj-model-F16.gguf").tensors
        if name == "qwen2vl-quick":  # its file has both the other way round
            made = {one.replace("ffn_up", "-").replace("ffn_down", "ffn_up").replace("-", "ffn_down"): values for one, values in made.items()}
        if set(made) != set(wanted):
            return f"tensors: {sorted(set(made) ^ set(wanted))}"
        for one, (kind, shape, values) in made.items():
            if (shape, checkpoints.floats_of(kind, values)) != wanted[one]:
                return f"{one} differs"
        shown = millrace("show", folder / "model.gguf")
        return None if "vision" in shown.stdout else f"shown without sight: {shown.stdout}{shown.stderr}"


def main():
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    cases = {model.name: lambda folder, model=model: saved(model, folder) for model in vision.MODELS
             if not model.compose and not model.without_class}
    cases["gemma4-unified"] = unified
    names = sys.argv[1:] or list(cases)
    if unknown := set(names) - set(cases):
        sys.exit(f"no such model: {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    failed = 0
    for name in names:
        wrong = check(name, cases[name])
        failed += wrong is not None
        print(f"{name}: {wrong or 'the same'}", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
