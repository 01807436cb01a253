"""Language models larger than memory: a thin layer over libmillrace.

    with millrace.Engine("model.gguf", ram_bytes=8_000_000_000) as engine:
        engine.generate([{"role": "user", "content": "Hello"}], on_text=lambda piece: print(piece, end=""))

The library is looked for at MILLRACE_LIBRARY, beside this file, and where the system has its libraries.
"""
from ._array import Array
from ._library import MillraceError, lib as _lib
from .compute import dequantize, gemv
from .engine import Answer, Engine, plan
from .loader import Loader, ModelFile, Tensor, load_file

__version__: str = _lib.millrace_version().decode()
__all__ = ["Answer", "Array", "Engine", "Loader", "MillraceError", "ModelFile", "Tensor", "dequantize", "gemv",
           "load_file", "plan"]
