/* Millrace's C API: language models larger than memory, and by themselves the loader that feeds them and the products
 * that they are made of.
 *
 * Conventions
 *   Handles are opaque. What *_open made, *_close frees; closing NULL does nothing.
 *   A function that can fail returns a millrace_status; MILLRACE_OK is 0. What went wrong, and what to do, is one line
 *   from millrace_last_error(), on the same thread, until that thread's next call that fails. Out parameters are
 *   written on success alone.
 *   Text is UTF-8, ends with a zero byte, and is copied where it is kept. Memory given out through a pointer to a
 *   pointer is the caller's and goes back through millrace_free().
 *   Structs begin with struct_size and are set up by their *_init; a member left alone has its default. A newer
 * library takes the structs of an older header: *_init tells it the size that the caller's header knows. No call ends
 * the process, throws, or writes to standard output; warnings go to standard error.
 *
 * Threads
 *   Every function may be called from any thread. An engine may be used by many threads at once: their requests share
 *   each pass over the weights. Callbacks come on the thread that called. An engine or a loader must not be closed
 * while another thread is in a call that uses it.
 */
#ifndef MILLRACE_H_
#define MILLRACE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MILLRACE_API __attribute__((visibility("default")))

typedef enum millrace_status {
  MILLRACE_OK = 0,
  MILLRACE_INVALID_ARGUMENT = 1, /* the caller's words are off */
  MILLRACE_NOT_FOUND = 2,        /* a file or a key is missing */
  MILLRACE_CORRUPT = 3,          /* bytes that cannot be what they claim to be */
  MILLRACE_UNSUPPORTED = 4,      /* this version cannot do it */
  MILLRACE_IO_ERROR = 5,         /* the disk failed */
  MILLRACE_OUT_OF_BUDGET = 6,    /* does not fit; the message names what would */
  MILLRACE_CANCELLED = 7,
  MILLRACE_UNAVAILABLE = 8, /* not now: too much waits already, or it is shutting down */
  MILLRACE_INTERNAL = 9     /* a bug of ours, met without crashing */
} millrace_status;

MILLRACE_API const char* millrace_version(void);
/* Of this thread; "" before the first failure. Valid until the thread's next call that fails. */
MILLRACE_API const char* millrace_last_error(void);
MILLRACE_API void millrace_free(void* memory);

/* ---- Engine ---------------------------------------------------------------------------------------------------- */

typedef struct millrace_engine millrace_engine;

typedef struct millrace_options {
  size_t struct_size;
  const char* model_path; /* a GGUF file; the first of its splits */
  const char* device;     /* "auto" (default), "cpu", "cuda" */
  uint64_t ram_bytes;     /* cap on memory beyond what the process holds now; 0: what the machine can spare */
  uint64_t vram_bytes;    /* cap on device memory; 0: what is free */
  int64_t context_tokens; /* of one sequence; 0: the model's, or what fits */
  int64_t max_sequences;  /* requests computed side by side; 0: 1 */
  int threads;            /* 0: all processors */
  const char* speculate;  /* Guessed tokens, of which a pass verifies several; the answer is the same. "auto" (default):
                             where passes are slow; "off"; a number of them */
  const char* draft_path; /* a small model of the same vocabulary that guesses, in VRAM or RAM under the same caps; or
                             "self", "self:K": the model's own first (K) layers; "mtp": its block for multi-token
                             prediction; NULL: none */
} millrace_options;

MILLRACE_API void millrace_options_init_sized(millrace_options* options, size_t size);
#define millrace_options_init(options) millrace_options_init_sized((options), sizeof *(options))
MILLRACE_API millrace_status millrace_open(const millrace_options* options, millrace_engine** engine);
/* Ends what still runs. */
MILLRACE_API void millrace_close(millrace_engine* engine);

/* Where the weights will live and how fast that will be, without reading any. */
typedef enum millrace_form { MILLRACE_TEXT = 0, MILLRACE_JSON = 1 } millrace_form;
MILLRACE_API millrace_status millrace_plan(const millrace_options* options, millrace_form form, char** plan);
/* The same for an engine that is open. */
MILLRACE_API millrace_status millrace_engine_plan(millrace_engine* engine, millrace_form form, char** plan);

/* Ids of `length` bytes of text. parse_special: "<|im_end|>" and the like become the tokens they name; leave it 0 for
 * text that came from users. */
MILLRACE_API millrace_status millrace_tokenize(millrace_engine* engine, const char* text, size_t length,
                                               int parse_special, int32_t** ids, size_t* count);
/* Bytes of `count` ids, `length` of them, and a zero byte. with_special: control tokens are spelled out. */
MILLRACE_API millrace_status millrace_detokenize(millrace_engine* engine, const int32_t* ids, size_t count,
                                                 int with_special, char** text, size_t* length);
/* A conversation in OpenAI's form (a JSON array of messages; tools: a JSON array or NULL; variables: a JSON object for
 * the chat template, such as {"enable_thinking": false}, or NULL), as the prompt that the model's chat template makes
 * of it. Text of messages never becomes a special token. */
MILLRACE_API millrace_status millrace_chat_tokens(millrace_engine* engine, const char* messages_json,
                                                  const char* tools_json, const char* variables_json, int32_t** ids,
                                                  size_t* count);

typedef struct millrace_request {
  size_t struct_size;
  /* One of these three. */
  const char* messages_json;    /* a conversation, as for millrace_chat_tokens */
  const char* prompt;           /* text to go on with, special tokens parsed */
  const int32_t* prompt_tokens; /* [prompt_token_count] */
  size_t prompt_token_count;

  int64_t max_tokens;    /* -1 (default): to the end of the context */
  double temperature;    /* 0.8; 0: always the likeliest token */
  int top_k;             /* 40; 0: all */
  double top_p;          /* 0.95 */
  double min_p;          /* 0.05 */
  double repeat_penalty; /* 1: none */
  uint64_t seed;
  const char* const* stop; /* [stop_count] strings that end the answer */
  size_t stop_count;
} millrace_request;

typedef enum millrace_finish {
  MILLRACE_FINISH_STOP = 0,     /* the model's end, or a stop string */
  MILLRACE_FINISH_LENGTH = 1,   /* max_tokens, or the context is full */
  MILLRACE_FINISH_CANCELLED = 2 /* the callback said so, or millrace_cancel */
} millrace_finish;

typedef struct millrace_result {
  size_t struct_size;
  millrace_finish finish;
  int64_t prompt_tokens, answer_tokens;
  double prompt_seconds, answer_seconds;
} millrace_result;

/* A piece of the answer: whole characters, `length` bytes, no zero byte after them. Anything but 0 ends the answer. */
typedef int (*millrace_text_callback)(void* user, const char* text, size_t length);

MILLRACE_API void millrace_request_init_sized(millrace_request* request, size_t size);
#define millrace_request_init(request) millrace_request_init_sized((request), sizeof *(request))
MILLRACE_API void millrace_result_init_sized(millrace_result* result, size_t size);
#define millrace_result_init(result) millrace_result_init_sized((result), sizeof *(result))
/* Blocks until the answer has ended. callback and result may be NULL. */
MILLRACE_API millrace_status millrace_generate(millrace_engine* engine, const millrace_request* request,
                                               millrace_text_callback callback, void* user, millrace_result* result);

/* How the states of a text's tokens become one vector. */
typedef enum millrace_pooling {
  MILLRACE_POOLING_MODEL = 0, /* as the file says; the last token's where it says nothing */
  MILLRACE_POOLING_MEAN = 1,
  MILLRACE_POOLING_FIRST = 2,
  MILLRACE_POOLING_LAST = 3
} millrace_pooling;

/* The embeddings of `count` texts, computed side by side: *vectors is [count, *dimensions] and goes back through
 * millrace_free(); each has length 1. Blocks until all are there; millrace_cancel ends it with MILLRACE_CANCELLED. A
 * text that is empty or longer than the context is MILLRACE_INVALID_ARGUMENT. */
MILLRACE_API millrace_status millrace_embed(millrace_engine* engine, const char* const* texts, size_t count,
                                            millrace_pooling pooling, float** vectors, size_t* dimensions);

/* Ends every answer that is being written, and every millrace_embed, within one pass. */
MILLRACE_API void millrace_cancel(millrace_engine* engine);

#define MILLRACE_DRAFT_PLACES 31 /* guessed tokens of a request in a pass at most */

typedef struct millrace_counters {
  size_t struct_size;
  uint64_t passes;
  uint64_t bytes_from_disk; /* of weights */
  uint64_t bytes_used;      /* of weights, by the kernels */
  uint64_t expert_hits, expert_misses;
  uint64_t stall_ns; /* waited for the disk */
  uint64_t ram_granted_bytes, ram_cap_bytes;
  uint64_t vram_granted_bytes, vram_cap_bytes; /* 0 without a GPU */
  int64_t context_tokens;
  uint64_t cold_expert_misses, most_expert_misses; /* of the first pass that used experts; of any behind it, at most */
  double steady_expert_misses;                     /* a pass, lately */
  uint64_t experts_resident;                       /* in slots now */
  uint64_t drafts, drafts_right;                   /* guessed tokens that passes verified, and that became answers' */
  uint64_t drafts_at[MILLRACE_DRAFT_PLACES], drafts_right_at[MILLRACE_DRAFT_PLACES]; /* the first guess, the second */
  uint64_t draft_passes;                                                             /* that verified some */
  double draft_seconds, verify_seconds; /* of guessing; what those passes took more than others */
  double tokens_a_pass;                 /* that a request gets of one, on average */
} millrace_counters;

MILLRACE_API void millrace_counters_init_sized(millrace_counters* counters, size_t size);
#define millrace_counters_init(counters) millrace_counters_init_sized((counters), sizeof *(counters))
MILLRACE_API millrace_status millrace_read_counters(millrace_engine* engine, millrace_counters* counters);

/* ---- Loader: files to memory at the disk's speed --------------------------------------------------------------- */

typedef struct millrace_loader millrace_loader;

typedef struct millrace_loader_options {
  size_t struct_size;
  const char* backend;    /* "auto" (default), "io_uring", "pread-direct", "pread", "mmap" */
  int queue_depth;        /* requests in flight; 0: 32 */
  uint64_t request_bytes; /* large reads are cut into requests of this size; 0: 1 MiB */
  /* Into device memory: "auto" (default): by cuFile where the disk then writes there itself, else through page-locked
     memory of the loader; "cufile": by cuFile, or not at all; "ring": through page-locked memory */
  const char* device_reads;
} millrace_loader_options;

MILLRACE_API void millrace_loader_options_init_sized(millrace_loader_options* options, size_t size);
#define millrace_loader_options_init(options) millrace_loader_options_init_sized((options), sizeof *(options))
/* options may be NULL. */
MILLRACE_API millrace_status millrace_loader_open(const char* path, const millrace_loader_options* options,
                                                  millrace_loader** loader);
/* Waits for reads that are under way. */
MILLRACE_API void millrace_loader_close(millrace_loader* loader);

/* What was chosen, such as "io_uring+O_DIRECT"; valid while the loader is open. */
MILLRACE_API const char* millrace_loader_backend(const millrace_loader* loader);
/* The same for reads into memory of the CUDA device current on the calling thread; "" before the first one is planned.
 */
MILLRACE_API const char* millrace_loader_device_backend(const millrace_loader* loader);
MILLRACE_API uint64_t millrace_loader_file_bytes(const millrace_loader* loader);

/* Plans a read of [offset, offset + bytes) into host memory at `destination`; millrace_loader_submit starts it. Any
 * destination will do; where destination and offset agree modulo 4096 and the memory reaches to whole blocks of 4096
 * around the read (whole_blocks is not 0: they may be overwritten), bytes go there without a copy. `read` names it. */
MILLRACE_API millrace_status millrace_loader_enqueue(millrace_loader* loader, uint64_t offset, uint64_t bytes,
                                                     void* destination, int whole_blocks, uint64_t* read);
/* The same into device memory (of the CUDA device current on the calling thread), by options.device_reads: bytes arrive
 * behind the submit, and no stream may use the destination until the read was waited for. MILLRACE_UNSUPPORTED where
 * there is no CUDA, or no GPU. */
MILLRACE_API millrace_status millrace_loader_enqueue_device(millrace_loader* loader, uint64_t offset, uint64_t bytes,
                                                            void* device_destination, uint64_t* read);
/* Starts all that was planned. */
MILLRACE_API millrace_status millrace_loader_submit(millrace_loader* loader);
/* *done is 1 when the read has ended, well or not; millrace_loader_wait tells which. */
MILLRACE_API millrace_status millrace_loader_poll(millrace_loader* loader, uint64_t read, int* done);
/* Blocks until the read has ended (it must be submitted) and forgets it. The bytes are there, all of them, or the error
 * is returned. */
MILLRACE_API millrace_status millrace_loader_wait(millrace_loader* loader, uint64_t read);
/* Aligned memory for reads without copies: `bytes` and the blocks around them, for a read at `offset`. *begin is where
 * the read's bytes go; give *block to millrace_free. */
MILLRACE_API millrace_status millrace_loader_allocate(uint64_t offset, uint64_t bytes, void** block, void** begin);

/* ---- Pool: more pieces of a file (experts) than memory holds, those in use in memory ----------------------------- */

/* One thread at a time uses a pool. */
typedef struct millrace_pool millrace_pool;

typedef struct millrace_piece {
  uint64_t offset, bytes;
} millrace_piece;

typedef struct millrace_pool_options {
  size_t struct_size;
  uint64_t memory_bytes; /* all that the pieces in memory may take; required */
  const char* policy;    /* which piece leaves: "lru" (default), "lfu" or "auto" */
  const char* memory;    /* "host" (default), or "device": of the CUDA device current on the thread that opens the pool,
                            which is to be current on those that use it. Pieces come by the loader's device_reads */
} millrace_pool_options;

typedef struct millrace_pool_counters {
  size_t struct_size;
  uint64_t hits, misses, evictions; /* pieces acquired or prefetched that were there, that were not, that left */
  uint64_t bytes_from_disk;
  uint64_t stall_ns;     /* millrace_pool_acquire waited */
  uint64_t slots;        /* pieces that memory holds; each takes as much as the largest */
  uint64_t mapped_bytes; /* of memory behind the slots now: a device's is taken when slots are first used */
} millrace_pool_counters;

MILLRACE_API void millrace_pool_options_init_sized(millrace_pool_options* options, size_t size);
#define millrace_pool_options_init(options) millrace_pool_options_init_sized((options), sizeof *(options))
MILLRACE_API void millrace_pool_counters_init_sized(millrace_pool_counters* counters, size_t size);
#define millrace_pool_counters_init(counters) millrace_pool_counters_init_sized((counters), sizeof *(counters))
/* Pieces of the loader's file, named from 0 on. The loader stays open longer than the pool and is not one of mmap.
 * Reserves the addresses of all slots; on a device no memory is taken yet. */
MILLRACE_API millrace_status millrace_pool_open(millrace_loader* loader, const millrace_piece* pieces, size_t count,
                                                const millrace_pool_options* options, millrace_pool** pool);
/* Waits for the streams of millrace_pool_release_on. */
MILLRACE_API void millrace_pool_close(millrace_pool* pool);
/* Gives at least `bytes` of memory back, as far as slots are neither acquired nor prefetched; one stays. *unmapped (may
 * be NULL) is what was given. There are fewer slots from then on. */
MILLRACE_API millrace_status millrace_pool_unmap(millrace_pool* pool, uint64_t bytes, uint64_t* unmapped);
/* Takes back what was given, and makes sure that `bytes` of memory are there now (0: as they are first used).
 * MILLRACE_OUT_OF_BUDGET: the device has less; the pool goes on with the slots that have memory. */
MILLRACE_API millrace_status millrace_pool_map(millrace_pool* pool, uint64_t bytes);
/* Starts to read the pieces that are not there, as far as slots are free, and keeps them for their acquire until the
 * next prefetch: for a router's choice, while something else is computed. */
MILLRACE_API millrace_status millrace_pool_prefetch(millrace_pool* pool, const uint32_t* pieces, size_t count);
/* Waits for the piece's bytes. *data, in the pool's kind of memory, is valid until it was released as often as it was
 * acquired, and does not move until then; on a device, every stream's launches from here on see the bytes.
 * MILLRACE_UNAVAILABLE: every slot is acquired. */
MILLRACE_API millrace_status millrace_pool_acquire(millrace_pool* pool, uint32_t piece, const void** data);
MILLRACE_API millrace_status millrace_pool_release(millrace_pool* pool, uint32_t piece);
/* The same for a piece that what was launched on `stream` (a cudaStream_t) still reads: nothing else comes to its slot
 * before that has ended. MILLRACE_INVALID_ARGUMENT: the pool is in host memory. */
MILLRACE_API millrace_status millrace_pool_release_on(millrace_pool* pool, uint32_t piece, void* stream);
MILLRACE_API millrace_status millrace_pool_read_counters(millrace_pool* pool, millrace_pool_counters* counters);

/* ---- Tensors: a model file's blocks by themselves, on the processor -------------------------------------------- */

/* A matrix is `rows` rows of `cols` weights each, one row behind the other without gaps, at any alignment: blocks of a
 * type that is named by its id in GGUF files (0: F32, 1: F16, 2: Q4_0, 8: Q8_0, 12: Q4_K, 30: BF16), of any type that
 * the engine computes with. threads: 0: all processors; they are started for the call, and fewer for small matrices.
 * MILLRACE_UNSUPPORTED: the type is unknown, or not computed with (integers, F64). MILLRACE_INVALID_ARGUMENT: a pointer
 * is NULL, rows or cols is below 1, cols is not a multiple of the elements of a block, the bytes given are not those of
 * so many rows and cols, or threads is not from 0 to 1024. */

/* out: [rows, cols], what each weight is, in float32: the same bits on every machine. */
MILLRACE_API millrace_status millrace_dequantize(uint32_t type, const void* data, size_t data_bytes, int64_t rows,
                                                 int64_t cols, float* out, int threads);
/* y = W x, with W: [rows, cols], x: [cols], y: [rows], where y overlaps nothing. This is the engine's own product: with
 * weights in blocks, x is first rounded to 8-bit integers with a scale for each 32 of them, so that y differs from
 * dequantized weights times x by about as much as Q8_0 differs from what it was made of; with F32, F16 and BF16 x is
 * taken as it is. The same bits on every machine and with any number of threads. A value of x that is no finite number
 * shows as a NaN or infinity in y. */
MILLRACE_API millrace_status millrace_gemv(uint32_t type, const void* weight, size_t weight_bytes, int64_t rows,
                                           int64_t cols, const float* x, float* y, int threads);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_H_ */
