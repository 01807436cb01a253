"""An engine: answers, embeddings, token ids."""
from __future__ import annotations

import ctypes
import dataclasses
import json
import queue
import threading
from typing import Any, Callable, Iterator, Mapping, Sequence

from . import _library as c
from ._array import Array, _Owner

Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Answer:
    text: str
    finish: str  # "stop", "length" or "cancelled"
    prompt_tokens: int
    answer_tokens: int
    prompt_seconds: float
    answer_seconds: float


_FINISH = ("stop", "length", "cancelled")
_POOLING = {"model": 0, "mean": 1, "first": 2, "last": 3}


def _options(model: str, device: str, ram_bytes: int, vram_bytes: int, context_tokens: int, max_sequences: int,
             threads: int, speculate: str, draft: str | None) -> c.Options:
    options = c.defaults(c.Options, "millrace_options_init")
    options.model_path, options.device = str(model).encode(), device.encode()
    options.ram_bytes, options.vram_bytes = ram_bytes, vram_bytes
    options.context_tokens, options.max_sequences, options.threads = context_tokens, max_sequences, threads
    options.speculate, options.draft_path = speculate.encode(), draft and str(draft).encode()
    return options


class Engine:
    """A model that is open. Threads may share it: their requests share each pass over the weights.

    ram_bytes, vram_bytes: caps on memory; 0: what the machine can spare. context_tokens: 0: the model's, or what fits.
    speculate: "auto", "off" or a number of guessed tokens that a pass verifies; draft: a small model's file that guesses,
    or part of the model itself: "self", "self:K" (its first layers), "mtp".
    Raises MillraceError; its code is "out_of_budget" where the model does not fit, and the message says what would.
    """

    def __init__(self, model: str, *, device: str = "auto", ram_bytes: int = 0, vram_bytes: int = 0,
                 context_tokens: int = 0, max_sequences: int = 0, threads: int = 0, speculate: str = "auto",
                 draft: str | None = None):
        self._handle = ctypes.c_void_p()
        options = _options(model, device, ram_bytes, vram_bytes, context_tokens, max_sequences, threads, speculate, draft)
        c.check(c.lib.millrace_open(options, self._handle))

    def close(self) -> None:
        """Ends what still runs. Not while another thread is in a call."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            c.lib.millrace_close(handle)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    def generate(self, prompt: str | Sequence[Message] | Sequence[int], *, on_text: Callable[[str], Any] | None = None,
                 max_tokens: int = -1, temperature: float = 0.8, top_k: int = 40, top_p: float = 0.95, min_p: float = 0.05,
                 repeat_penalty: float = 1.0, seed: int = 0, stop: Sequence[str] = (),
                 tools: Sequence[Mapping[str, Any]] | None = None) -> Answer:
        """Answers a text to go on with, a conversation (messages in OpenAI's form) or token ids.

        on_text gets each piece as it comes, on this thread; returning False ends the answer, and what it raises is raised
        here. temperature 0: always the likeliest token. tools: in OpenAI's form, for a conversation; the answer's text has
        the calls as the model writes them.
        """
        if tools is not None:
            if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
                raise TypeError("tools go with a conversation: give messages, not a text or token ids")
            prompt = self.chat_tokens(prompt, tools=tools)
        request = c.defaults(c.Request, "millrace_request_init")
        if isinstance(prompt, str):
            request.prompt = prompt.encode()
        elif prompt and isinstance(prompt[0], int):
            request.prompt_tokens = (ctypes.c_int32 * len(prompt))(*prompt)
            request.prompt_token_count = len(prompt)
        else:
            request.messages_json = json.dumps(list(prompt)).encode()
        request.max_tokens, request.temperature, request.top_k, request.top_p = max_tokens, temperature, top_k, top_p
        request.min_p, request.repeat_penalty, request.seed = min_p, repeat_penalty, seed
        request.stop = (ctypes.c_char_p * len(stop))(*[text.encode() for text in stop])
        request.stop_count = len(stop)
        pieces: list[str] = []
        raised: list[BaseException] = []

        @c.TextCallback
        def take(_user, text, length):
            try:
                piece = ctypes.string_at(text, length).decode(errors="replace")
                pieces.append(piece)
                return 1 if on_text is not None and on_text(piece) is False else 0
            except BaseException as error:  # C cannot carry it
                raised.append(error)
                return 1

        result = c.defaults(c.Result, "millrace_result_init")
        c.check(c.lib.millrace_generate(self._handle, request, take, None, result))
        if raised:
            raise raised[0]
        return Answer("".join(pieces), _FINISH[result.finish], result.prompt_tokens, result.answer_tokens,
                      result.prompt_seconds, result.answer_seconds)

    def stream(self, prompt: str | Sequence[Message] | Sequence[int], **options: Any) -> Iterator[str]:
        """The pieces of an answer as they come; options are those of generate(). Leaving the loop ends the answer."""
        pieces: queue.Queue[str | None] = queue.Queue()
        stopped = threading.Event()
        raised: list[BaseException] = []

        def take(piece: str) -> bool:
            pieces.put(piece)
            return not stopped.is_set()

        def work() -> None:
            try:
                self.generate(prompt, on_text=take, **options)
            except BaseException as error:
                raised.append(error)
            pieces.put(None)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            while (piece := pieces.get()) is not None:
                yield piece
        finally:
            stopped.set()
            worker.join()
        if raised:
            raise raised[0]

    def embed(self, texts: Sequence[str], pooling: str = "model") -> Array:
        """[texts, dimensions] in float32, each row of length 1. pooling: "model" (as the file says), "mean", "first", "last"."""
        vectors, dimensions = ctypes.c_void_p(), ctypes.c_size_t()
        given = (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])
        c.check(c.lib.millrace_embed(self._handle, given, len(texts), _POOLING[pooling], vectors, dimensions))
        return Array(vectors.value or 0, (len(texts), dimensions.value), "f", _Owner(lambda: c.lib.millrace_free(vectors)))

    def tokenize(self, text: str, *, parse_special: bool = False) -> list[int]:
        """parse_special: "<|im_end|>" and the like become the tokens they name; not for text that came from users."""
        data = text.encode()
        return self._ids(lambda ids, count: c.lib.millrace_tokenize(self._handle, data, len(data), parse_special, ids, count))

    def detokenize(self, ids: Sequence[int], *, with_special: bool = False) -> str:
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        c.check(c.lib.millrace_detokenize(self._handle, (ctypes.c_int32 * len(ids))(*ids), len(ids), with_special, text, length))
        return c.take(text, length.value).decode(errors="replace")

    def chat_tokens(self, messages: Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None,
                    variables: Mapping[str, Any] | None = None) -> list[int]:
        """A conversation as the prompt that the model's chat template makes of it."""
        as_json = [None if value is None else json.dumps(value).encode() for value in (list(messages), tools, variables)]
        return self._ids(lambda ids, count: c.lib.millrace_chat_tokens(self._handle, *as_json, ids, count))

    def plan(self) -> dict[str, Any]:
        """Where the weights live, and how fast that will be."""
        text = ctypes.c_void_p()
        c.check(c.lib.millrace_engine_plan(self._handle, 1, text))
        return json.loads(c.take(text, len(ctypes.string_at(text.value))))

    def counters(self) -> dict[str, int]:
        """Passes, bytes moved, hits and misses of experts, memory granted."""
        read = c.defaults(c.Counters, "millrace_counters_init")
        c.check(c.lib.millrace_read_counters(self._handle, read))
        return {name: getattr(read, name) for name, *_ in read._fields_ if name != "struct_size"}

    def cancel(self) -> None:
        """Ends every answer and every embed, within one pass; from another thread."""
        c.lib.millrace_cancel(self._handle)

    def _ids(self, call) -> list[int]:
        ids, count = ctypes.c_void_p(), ctypes.c_size_t()
        c.check(call(ids, count))
        return list((ctypes.c_int32 * count.value).from_buffer_copy(c.take(ids, 4 * count.value)))


def plan(model: str, *, device: str = "auto", ram_bytes: int = 0, vram_bytes: int = 0, context_tokens: int = 0,
         max_sequences: int = 0, threads: int = 0, speculate: str = "auto", draft: str | None = None) -> dict[str, Any]:
    """The plan of an engine with these options, without reading a weight."""
    text = ctypes.c_void_p()
    options = _options(model, device, ram_bytes, vram_bytes, context_tokens, max_sequences, threads, speculate, draft)
    c.check(c.lib.millrace_plan(options, 1, text))
    return json.loads(c.take(text, len(ctypes.string_at(text.value))))
