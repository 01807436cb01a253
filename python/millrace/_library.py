"""The C API of include/millrace.h as ctypes sees it: structs, prototypes, errors. Nothing here is public."""
import ctypes
import os
import pathlib

_c = ctypes


class Options(_c.Structure):
    _fields_ = [("struct_size", _c.c_size_t), ("model_path", _c.c_char_p), ("device", _c.c_char_p),
                ("ram_bytes", _c.c_uint64), ("vram_bytes", _c.c_uint64), ("context_tokens", _c.c_int64),
                ("max_sequences", _c.c_int64), ("threads", _c.c_int), ("speculate", _c.c_char_p),
                ("draft_path", _c.c_char_p)]


class Request(_c.Structure):
    _fields_ = [("struct_size", _c.c_size_t), ("messages_json", _c.c_char_p), ("prompt", _c.c_char_p),
                ("prompt_tokens", _c.POINTER(_c.c_int32)), ("prompt_token_count", _c.c_size_t), ("max_tokens", _c.c_int64),
                ("temperature", _c.c_double), ("top_k", _c.c_int), ("top_p", _c.c_double), ("min_p", _c.c_double),
                ("repeat_penalty", _c.c_double), ("seed", _c.c_uint64), ("stop", _c.POINTER(_c.c_char_p)),
                ("stop_count", _c.c_size_t)]


class Result(_c.Structure):
    _fields_ = [("struct_size", _c.c_size_t), ("finish", _c.c_int), ("prompt_tokens", _c.c_int64),
                ("answer_tokens", _c.c_int64), ("prompt_seconds", _c.c_double), ("answer_seconds", _c.c_double)]


class Counters(_c.Structure):
    _fields_ = [("struct_size", _c.c_size_t), ("passes", _c.c_uint64), ("bytes_from_disk", _c.c_uint64),
                ("bytes_used", _c.c_uint64), ("expert_hits", _c.c_uint64), ("expert_misses", _c.c_uint64),
                ("stall_ns", _c.c_uint64), ("ram_granted_bytes", _c.c_uint64), ("ram_cap_bytes", _c.c_uint64),
                ("vram_granted_bytes", _c.c_uint64), ("vram_cap_bytes", _c.c_uint64), ("context_tokens", _c.c_int64)]


class LoaderOptions(_c.Structure):
    _fields_ = [("struct_size", _c.c_size_t), ("backend", _c.c_char_p), ("queue_depth", _c.c_int),
                ("request_bytes", _c.c_uint64)]


TextCallback = _c.CFUNCTYPE(_c.c_int, _c.c_void_p, _c.POINTER(_c.c_char), _c.c_size_t)


class MillraceError(Exception):
    """What went wrong and what to do, in one line; `code` is the library's name for it, such as "out_of_budget"."""

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


_CODES = ("ok", "invalid_argument", "not_found", "corrupt", "unsupported", "io_error", "out_of_budget", "cancelled",
          "unavailable", "internal")


def _open() -> _c.CDLL:
    named = os.environ.get("MILLRACE_LIBRARY")
    beside = pathlib.Path(__file__).with_name("libmillrace.so.0")
    path = named or (str(beside) if beside.exists() else "libmillrace.so.0")
    try:
        return _c.CDLL(path)
    except OSError as error:
        raise ImportError(f"millrace needs the library libmillrace.so.0, which cannot be loaded ({error}): build it with "
                          "'make' and set MILLRACE_LIBRARY to its path, or install Millrace's package") from error


lib = _open()


def _declare() -> None:
    p, size, u64, i64, text = _c.c_void_p, _c.c_size_t, _c.c_uint64, _c.c_int64, _c.c_char_p
    out, ids = _c.POINTER(_c.c_void_p), _c.POINTER(_c.c_int32)
    size_out = _c.POINTER(size)
    prototypes = {
        "millrace_open": [_c.POINTER(Options), out], "millrace_plan": [_c.POINTER(Options), _c.c_int, out],
        "millrace_engine_plan": [p, _c.c_int, out], "millrace_tokenize": [p, text, size, _c.c_int, out, size_out],
        "millrace_detokenize": [p, ids, size, _c.c_int, out, size_out],
        "millrace_chat_tokens": [p, text, text, text, out, size_out],
        "millrace_generate": [p, _c.POINTER(Request), TextCallback, p, _c.POINTER(Result)],
        "millrace_embed": [p, _c.POINTER(text), size, _c.c_int, out, size_out],
        "millrace_read_counters": [p, _c.POINTER(Counters)],
        "millrace_loader_open": [text, _c.POINTER(LoaderOptions), out],
        "millrace_loader_enqueue": [p, u64, u64, p, _c.c_int, _c.POINTER(u64)],
        "millrace_loader_enqueue_device": [p, u64, u64, p, _c.POINTER(u64)],
        "millrace_loader_submit": [p], "millrace_loader_wait": [p, u64],
        "millrace_loader_poll": [p, u64, _c.POINTER(_c.c_int)], "millrace_loader_allocate": [u64, u64, out, out],
        "millrace_dequantize": [_c.c_uint32, p, size, i64, i64, p, _c.c_int],
        "millrace_gemv": [_c.c_uint32, p, size, i64, i64, p, p, _c.c_int]}
    for name, arguments in prototypes.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, _c.c_int
    for name in ("millrace_close", "millrace_cancel", "millrace_loader_close", "millrace_free"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [p], None
    for name in ("millrace_version", "millrace_last_error"):
        getattr(lib, name).argtypes, getattr(lib, name).restype = [], text
    lib.millrace_loader_backend.argtypes, lib.millrace_loader_backend.restype = [p], text
    lib.millrace_loader_file_bytes.argtypes, lib.millrace_loader_file_bytes.restype = [p], u64


_declare()


def check(status: int) -> None:
    if status != 0:
        code = _CODES[status] if status < len(_CODES) else "internal"
        raise MillraceError(code, lib.millrace_last_error().decode(errors="replace"))


def defaults(struct, init: str):
    """A struct with the library's defaults."""
    made = struct()
    getattr(lib, init + "_sized")(_c.byref(made), _c.c_size_t(_c.sizeof(struct)))
    return made


def take(pointer: _c.c_void_p, length: int) -> bytes:
    """A copy of what the library gave, which goes back to it."""
    try:
        return _c.string_at(pointer.value, length) if pointer.value else b""
    finally:
        lib.millrace_free(pointer)
