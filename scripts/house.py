#!/usr/bin/env python3
"""Counts how far the house is from its plan (docs/internals/architecture.md), and prints each figure beside its record and its goal.

    scripts/house.py            the table; exit status 1 where a figure is worse than its record in RECORDS
    scripts/house.py --where    the files behind each figure, too

A figure may fall, never rise: a change that lowers one lowers its record as well. A change that has to raise one (a new
feature is new lines) raises the record in RECORDS where everybody sees it.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".c"}

# Headers of POSIX and Linux. Those of C and of C++ that every system has (csignal's names are two) are not among them.
POSIX = re.compile(
    r"^\s*#\s*include\s+<((?:arpa|linux|net|netinet|sys)/\w+\.h|(?:dirent|dlfcn|elf|fcntl|glob|grp|ifaddrs|link|malloc|netdb|poll"
    r"|pthread|pwd|sched|semaphore|signal|spawn|strings|syslog|termios|ucontext|unistd|wordexp)\.h|csignal)>", re.M)
# CUDA's headers, ours that only CUDA's backend has, and CUDA's names.
CUDA = re.compile(r"#\s*include\s+(?:<(?:cuda|cufile|nvml|nvtx)\w*|\"(?:device/cuda_|kernels/cuda/))|\bcuda[A-Z]\w*|\bCU(?:file|device|event|stream)\w*")
BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.S)
LINE_COMMENT = re.compile(r"//[^\n]*")
STRUCT = re.compile(r"^struct (\w*Options)\b[^;{]*\{\n(.*?)^\};", re.M | re.S)
PLANNING = re.compile(r"^(?:residency/(?:plan\w*|homes\w*|predict\w*)|engine/(?:setup\w*|\w*_plan|\w*_setup|limits\w*|gpu/plan|gpu/setup))\.(?:h|cpp)$")
WORDS = ("expert", "draft", "shard")

# What keeps weights in more than one memory and copies them from one to the other.
MOVING = re.compile(r"^residency/(?:ordered_ring|chunk_ring|tile_\w+|slot_table|ram_fill"
                    r"|gpu/(?:stream|bounce|copies|table|spare\w*|expert_slots|expert_waves|experts))\.(?:h|cpp)$")

# The worst that each figure may be, and what it has to become; goal None: less than it is.
RECORDS = {
    "posix": (0, 0),
    "cuda": (0, 0),
    "cuda_files": (0, 0),
    "planning": (4744, 2600),  # 4,281 before demand was a value of its own, KV was counted by chunks, and encoders had no longer contexts than positions; then vision towers, on the GPU too, and what more memory would bring; then rates that name DirectStorage; then models on paper that a GPU refuses; then GPUs by Vulkan, which share no rows and are named, and the memory of adapters, in VRAM too; 4,425 before the assembly over several GPUs was counted; then control vectors, and plans for several GPUs that are not here; then heads that guess, whose units have a table of their own beside a GPU; then kernels that replace those a GPU computes otherwise, and keys and values apart on 7.5; then a cache of a table's rows
    "moving": (3019, 1900),
    "options": (12, 12),
    "expert": (214, 90),  # 189 before readers, families of mixtures and options had files of their own; then encoders of mixtures; then CUDA's launchers apart from the contracts; then Vulkan's mixtures, and launches that it lacks, and adapters of experts; then Llama 4, a mixture with files of its own in model/ and convert/; then DeepSeek V4, likewise; then conversions of Kimi Linear and Ling 3, and of Laguna, and of MiniMax-M3, in files of their own; then the self-test of a GPU's kernels and its contract; then Step-3.5's conversion, and Qwen3.8-Flash-Next's, and Jamba's
    "draft": (91, 45),  # 82 before heads in files of their own (EAGLE-3): their reader, their conversion, and their place beside a GPU; then Gemma 4's assistant, and what drafts with it
    "shard": (26, 12),  # 24 before Qwen3.8-Flash-Next, whose checkpoints call the pieces of its table so
    "lines": (174_000, None),  # to the next thousand; 132,000 before the architectures beyond the first 22, 134,000 before indexers, 135,000 before GPT-2 to Apertus, 136,000 before encoders and their tokenizers, 137,000 before pictures, cross-encoders and prompts by int8, 143,000 before Gemma 4's towers and mmproj files by convert, 145,000 before pictures in chats and by URL, 146,000 before towers that see tiles, GLM's and Kimi's, 147,000 before towers on the GPU, and base/os for Windows, 150,000 before the page's first run and its history, and storage and memory on Windows, 153,000 before Vulkan, thinking budgets, plans for other machines, an editor of lines and LoRA adapters, 159,000 before Gemma 3n and Llama 4, 160,000 before adapters of stored models, and of few rows in front of products, 161,000 before control vectors and jina-bert-v2, 162,000 before draft heads, their conversion, and layers with a state by Vulkan, 164,000 before compressed attention and mixed residual streams (DeepSeek V4), 166,000 before indexers on the GPU, 167,000 before blocks that KV heads choose (MiniMax-M3), Ling 3 and thirty more families on GPUs, 168,000 before tags within tags, prompts of architectures without a template, and the conversion of Step-3.5, 169,000 before GPUs of 7.5, their self-test, and doctor's, 170,000 before CUDA's runtime over the driver's functions, 171,000 before n-grams, gated streams and pooled index keys (Qwen3.8-Flash-Next), 172,000 before Laguna and Gemma 4's assistant, 173,000 before Falcon-H1, Mamba and Jamba and their conversion, and Qwen3.8-Flash-Next's
}


class Row:
    def __init__(self, name, what, number, files=()):
        self.name, self.what, self.number, self.files = name, what, number, list(files)
        self.record, self.goal = RECORDS[name]


def read(path):
    return path.read_text(errors="replace")


def code_of(text):
    return LINE_COMMENT.sub("", BLOCK_COMMENT.sub("", text))


def fields(body):
    """The data members of a struct's body."""
    body = code_of(body)
    for _ in range(8):  # inner types and bodies, from the inside out
        body = re.sub(r"\{[^{}]*\}", "", body)
    count = 0
    for statement in body.split(";"):
        statement = " ".join(statement.split())
        if not statement or re.match(r"(using|friend|static|enum|struct|class|template|typedef)\b", statement):
            continue
        head = re.split(r"=", statement)[0]
        if "(" in re.sub(r"<[^=;]*>", "", head):
            continue  # a function
        for _ in range(4):
            statement = re.sub(r"<[^<>]*>|\([^()]*\)", "", statement)
        count += statement.count(",") + 1
    return count


def largest_options(files):
    found = [(fields(body), name, path) for path, text in files.items() for name, body in STRUCT.findall(text)]
    return max(found, default=(0, "", ""))


def rows():
    src = ROOT / "src"
    files = {str(path.relative_to(src)): read(path) for path in sorted(src.rglob("*")) if path.suffix in SOURCES}
    at = lambda *rooms: [name for name in files if not name.startswith(rooms)]
    posix = [name for name in at("base/os/", "storage/", "device/") if POSIX.search(files[name])]
    cuda = [name for name in at("device/", "kernels/") if CUDA.search(code_of(files[name]))]
    named = [name for name in at("device/", "kernels/") if pathlib.Path(name).name.startswith("cuda_")]
    lines = sum(text.count("\n") for text in files.values())
    count, options, where = largest_options(files)
    found = [
        Row("posix", "files outside base/os, storage/ and device/ that include POSIX headers", len(posix), posix),
        Row("cuda", "files outside device/ and kernels/ that include CUDA headers or use its names", len(cuda), cuda),
        Row("cuda_files", "files named cuda_* outside device/ and kernels/", len(named), named),
    ]
    for name, what, pattern in (("planning", "lines of planning and assembling", PLANNING),
                                ("moving", "lines that move weights", MOVING)):
        counted = {file: text.count("\n") for file, text in files.items() if pattern.match(file)}
        found.append(Row(name, what, sum(counted.values()), [f"{lines:5} {file}" for file, lines in counted.items()]))
    found.append(Row("options", f"fields of the largest options struct ({options} in {where})", count))
    for word in WORDS:
        knowing = [name for name, text in files.items() if re.search(word, text, re.I)]
        found.append(Row(word, f"source files that know the word '{word}'", len(knowing), knowing))
    found.append(Row("lines", "lines of src/", lines))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--where", action="store_true", help="name the files behind each figure")
    arguments = parser.parse_args()
    worse = []
    print(f"{'today':>8}  {'record':>8}  {'goal':>6}  what is counted")
    for row in rows():
        goal = "fewer" if row.goal is None else f"{row.goal:,}"
        print(f"{row.number:>8,}  {row.record:>8,}  {goal:>6}  {row.what}")
        if arguments.where:
            print("".join(f"{'':28}{name}\n" for name in row.files), end="")
        if row.number > row.record:
            worse.append(row)
    for row in worse:
        print(f"house: {row.number:,} {row.what}, more than the {row.record:,} on record (--where names the files); undo "
              "that, or say in RECORDS of scripts/house.py why it has to be", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
