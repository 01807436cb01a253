"""A stand-in for llama-bench, for the tests of scripts that measure beside it: it knows the flags that they use, fails with more than four
layers on the GPU, and hangs with -slow."""
import pathlib
import stat

TEXT = """#!/usr/bin/env python3
import json, sys, time
arguments = sys.argv[1:]
if "--help" in arguments:
    print("-fa, --flash-attn <on|off|auto>\\n-ncmoe, --n-cpu-moe <n>\\n-lm, --load-mode <none|mmap>")
    sys.exit(0)
value = lambda flag: arguments[arguments.index(flag) + 1]
if "-slow" in arguments: time.sleep(60)
if int(value("-ngl")) > 4:
    print("ggml_backend_cuda_buffer_type_alloc_buffer: allocating failed: out of memory", file=sys.stderr)
    sys.exit(1)
tests = []
for flash in value("-fa").split(","):
    for threads in value("-t").split(","):
        flags = {"flash_attn": int(flash == "on"), "n_threads": int(threads)}
        tests += [{"n_prompt": int(p), "n_gen": 0, "avg_ts": 100.0 if flash == "on" else 90.0, **flags} for p in value("-p").split(",") if int(p)]
        if int(value("-n")): tests.append({"n_prompt": 0, "n_gen": int(value("-n")), "avg_ts": 10.0 if flash == "on" else 9.0, **flags})
print(json.dumps(tests))
"""


def write_llama_bench(folder):
    """The program's path."""
    path = pathlib.Path(folder) / "llama-bench"
    path.write_text(TEXT)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
