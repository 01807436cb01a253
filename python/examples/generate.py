"""Answers one question:  generate.py MODEL.gguf "What is the capital of France?" [RAM in MB]"""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import millrace

if len(sys.argv) < 3:
    sys.exit(__doc__)
ram_bytes = int(sys.argv[3]) * 1_000_000 if len(sys.argv) > 3 else 0
try:
    with millrace.Engine(sys.argv[1], ram_bytes=ram_bytes) as engine:
        answer = engine.generate([{"role": "user", "content": sys.argv[2]}], temperature=0,
                                 on_text=lambda piece: print(piece, end="", flush=True))
    print(f"\n{answer.answer_tokens / answer.answer_seconds:.1f} tokens a second")
except millrace.MillraceError as error:
    sys.exit(f"error: {error}")
