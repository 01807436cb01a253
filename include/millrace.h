/* Millrace's C API: an engine that runs language models larger than memory; and, usable without it, the loader that
 * reads files at the disk's speed, a pool of file pieces, and matrix products of GGUF types.
 *
 * Conventions
 *   Handles are opaque. *_close frees what *_open made; closing NULL does nothing.
 *   A function that can fail returns a millrace_status; MILLRACE_OK is 0. millrace_last_error() then returns one line
 *   that says what failed and what to do, on the same thread, until that thread's next failing call. Functions write
 *   their out parameters only on success.
 *   Text is UTF-8 and ends with a zero byte; the library copies what it keeps. The caller owns memory returned through
 * a pointer to a pointer and frees it with millrace_free(). Structs begin with struct_size. Set them up with their
 * *_init, then change the members you need. A newer library accepts the structs of an older header, because *_init
 * passes the size that the caller's header knows. No call ends the process, throws, or writes to standard output;
 * warnings go to standard error.
 *
 * Threads
 *   Every function may be called from any thread. Many threads may use an engine at once: their requests share each
 * pass over the weights. Callbacks run on the calling thread. Do not close an engine or a loader while another thread
 * is in a call that uses it.
 */
#ifndef MILLRACE_H_
#define MILLRACE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if !defined(_WIN32)
#define MILLRACE_API __attribute__((visibility("default")))
#elif defined(MILLRACE_BUILDS_LIBRARY)
#define MILLRACE_API __declspec(dllexport)
#else
#define MILLRACE_API __declspec(dllimport)
#endif

typedef enum millrace_status {
  MILLRACE_OK = 0,
  MILLRACE_INVALID_ARGUMENT = 1, /* an argument is not valid */
  MILLRACE_NOT_FOUND = 2,        /* a file or a key is missing */
  MILLRACE_CORRUPT = 3,          /* the bytes of a file contradict its format */
  MILLRACE_UNSUPPORTED = 4,      /* this version cannot do it */
  MILLRACE_IO_ERROR = 5,         /* the disk failed */
  MILLRACE_OUT_OF_BUDGET = 6,    /* does not fit; the message names what would fit */
  MILLRACE_CANCELLED = 7,
  MILLRACE_UNAVAILABLE = 8, /* try again later: the queue is full, or the engine is closing */
  MILLRACE_INTERNAL = 9     /* a bug in Millrace, caught without a crash */
} millrace_status;

MILLRACE_API const char* millrace_version(void);
/* The calling thread's last error; "" before the first one. Valid until the thread's next failing call. */
MILLRACE_API const char* millrace_last_error(void);
MILLRACE_API void millrace_free(void* memory);

/* ---- Engine ---------------------------------------------------------------------------------------------------- */

typedef struct millrace_engine millrace_engine;

typedef struct millrace_options {
  size_t struct_size;
  const char* model_path; /* a GGUF file, or the first part of a split one */
  const char* device;     /* "auto" (default), "cpu", "cuda" */
  uint64_t ram_bytes;     /* limit on memory beyond what the process holds now; 0: what the machine can spare */
  uint64_t vram_bytes;    /* limit on GPU memory; 0: what is free */
  int64_t context_tokens; /* of one request; 0: the model's, or what fits */
  int64_t max_sequences;  /* requests computed at once; 0: 1 */
  int threads;            /* 0: all processors */
  const char* speculate;  /* Speculation: a pass verifies several guessed tokens; the answer is the same. "auto"
                             (default): where passes are slow; "off"; or a number of tokens */
  const char* draft_path; /* draft model: a small GGUF file of the same vocabulary, under the same limits; or "self",
                             "self:K": the model's own first (K) layers; "mtp": its block for multi-token prediction;
                             NULL: none */
} millrace_options;

MILLRACE_API void millrace_options_init_sized(millrace_options* options, size_t size);
#define millrace_options_init(options) millrace_options_init_sized((options), sizeof *(options))
MILLRACE_API millrace_status millrace_open(const millrace_options* options, millrace_engine** engine);
/* Cancels requests that still run. */
MILLRACE_API void millrace_close(millrace_engine* engine);

/* A plan: where the weights will be stored and the predicted speed. Reads no weights. */
typedef enum millrace_form { MILLRACE_TEXT = 0, MILLRACE_JSON = 1 } millrace_form;
MILLRACE_API millrace_status millrace_plan(const millrace_options* options, millrace_form form, char** plan);
/* The plan of an open engine. */
MILLRACE_API millrace_status millrace_engine_plan(millrace_engine* engine, millrace_form form, char** plan);

/* Token ids of `length` bytes of text. With parse_special, "<|im_end|>" and similar names become the special tokens;
 * pass 0 for text from users. */
MILLRACE_API millrace_status millrace_tokenize(millrace_engine* engine, const char* text, size_t length,
                                               int parse_special, int32_t** ids, size_t* count);
/* The text of `count` ids: `length` bytes and a zero byte. With with_special, control tokens appear by name. */
MILLRACE_API millrace_status millrace_detokenize(millrace_engine* engine, const int32_t* ids, size_t count,
                                                 int with_special, char** text, size_t* length);
/* The prompt that the model's chat template makes of a conversation in OpenAI's form. messages: a JSON array; tools: a
 * JSON array or NULL; variables: a JSON object for the template, such as {"enable_thinking": false}, or NULL. The text
 * of messages never becomes a special token. */
MILLRACE_API millrace_status millrace_chat_tokens(millrace_engine* engine, const char* messages_json,
                                                  const char* tools_json, const char* variables_json, int32_t** ids,
                                                  size_t* count);

typedef struct millrace_request {
  size_t struct_size;
  /* One of these three. */
  const char* messages_json;    /* a conversation, as for millrace_chat_tokens */
  const char* prompt;           /* text to continue, special tokens parsed */
  const int32_t* prompt_tokens; /* [prompt_token_count] */
  size_t prompt_token_count;

  int64_t max_tokens;    /* -1 (default): until the context is full */
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
  MILLRACE_FINISH_CANCELLED = 2 /* by the callback, or by millrace_cancel */
} millrace_finish;

typedef struct millrace_result {
  size_t struct_size;
  millrace_finish finish;
  int64_t prompt_tokens, answer_tokens;
  double prompt_seconds, answer_seconds;
} millrace_result;

/* Receives a piece of the answer: whole characters, `length` bytes, without a zero byte. A return value other than 0
 * ends the answer. */
typedef int (*millrace_text_callback)(void* user, const char* text, size_t length);

MILLRACE_API void millrace_request_init_sized(millrace_request* request, size_t size);
#define millrace_request_init(request) millrace_request_init_sized((request), sizeof *(request))
MILLRACE_API void millrace_result_init_sized(millrace_result* result, size_t size);
#define millrace_result_init(result) millrace_result_init_sized((result), sizeof *(result))
/* Blocks until the answer ends. callback and result may be NULL. */
MILLRACE_API millrace_status millrace_generate(millrace_engine* engine, const millrace_request* request,
                                               millrace_text_callback callback, void* user, millrace_result* result);

/* How a text's token states become one vector. */
typedef enum millrace_pooling {
  MILLRACE_POOLING_MODEL = 0, /* the file's own; if it names none, the last token */
  MILLRACE_POOLING_MEAN = 1,
  MILLRACE_POOLING_FIRST = 2,
  MILLRACE_POOLING_LAST = 3
} millrace_pooling;

/* Computes the embeddings of `count` texts together: *vectors is [count, *dimensions], each vector of length 1; free it
 * with millrace_free(). Blocks until all are done; millrace_cancel ends it with MILLRACE_CANCELLED. A text that is
 * empty or longer than the context fails with MILLRACE_INVALID_ARGUMENT. */
MILLRACE_API millrace_status millrace_embed(millrace_engine* engine, const char* const* texts, size_t count,
                                            millrace_pooling pooling, float** vectors, size_t* dimensions);

/* Ends every running millrace_generate and millrace_embed within one pass. */
MILLRACE_API void millrace_cancel(millrace_engine* engine);

#define MILLRACE_DRAFT_PLACES 31 /* guessed tokens of a request in one pass, at most */

typedef struct millrace_counters {
  size_t struct_size;
  uint64_t passes;
  uint64_t bytes_from_disk; /* weights read from the disk */
  uint64_t bytes_used;      /* weights read by the kernels */
  uint64_t expert_hits, expert_misses;
  uint64_t stall_ns; /* time spent waiting for the disk */
  uint64_t ram_granted_bytes, ram_cap_bytes;
  uint64_t vram_granted_bytes, vram_cap_bytes; /* 0 without a GPU */
  int64_t context_tokens;
  uint64_t cold_expert_misses, most_expert_misses; /* of the first pass that used experts; the most of a later one */
  double steady_expert_misses;                     /* per pass, recently */
  uint64_t experts_resident;                       /* experts in memory now */
  uint64_t drafts, drafts_right;                   /* guessed tokens that passes verified, and accepted */
  uint64_t drafts_at[MILLRACE_DRAFT_PLACES],
      drafts_right_at[MILLRACE_DRAFT_PLACES]; /* by place: the first guess, the second, ... */
  uint64_t draft_passes;                      /* passes that verified guesses */
  double draft_seconds, verify_seconds;       /* spent guessing; extra time of the passes that verified */
  double tokens_a_pass;                       /* of one request, on average */
} millrace_counters;

MILLRACE_API void millrace_counters_init_sized(millrace_counters* counters, size_t size);
#define millrace_counters_init(counters) millrace_counters_init_sized((counters), sizeof *(counters))
MILLRACE_API millrace_status millrace_read_counters(millrace_engine* engine, millrace_counters* counters);

/* ---- Loader: files to memory at the disk's speed --------------------------------------------------------------- */

typedef struct millrace_loader millrace_loader;

typedef struct millrace_loader_options {
  size_t struct_size;
  const char* backend;    /* "auto" (default), "pread-direct", "pread", "mmap"; Linux: "io_uring"; Windows:
                             "directstorage" */
  int queue_depth;        /* requests in flight; 0: 32 */
  uint64_t request_bytes; /* the loader splits large reads into requests of this size; 0: 1 MiB */
  /* Reads into GPU memory. "auto" (default): cuFile if the disk then writes to the GPU directly, otherwise page-locked
     memory of the loader; "cufile": cuFile or an error; "ring": page-locked memory */
  const char* device_reads;
} millrace_loader_options;

MILLRACE_API void millrace_loader_options_init_sized(millrace_loader_options* options, size_t size);
#define millrace_loader_options_init(options) millrace_loader_options_init_sized((options), sizeof *(options))
/* options may be NULL. */
MILLRACE_API millrace_status millrace_loader_open(const char* path, const millrace_loader_options* options,
                                                  millrace_loader** loader);
/* Waits for reads in flight. */
MILLRACE_API void millrace_loader_close(millrace_loader* loader);

/* The chosen backend, such as "io_uring+O_DIRECT"; valid while the loader is open. */
MILLRACE_API const char* millrace_loader_backend(const millrace_loader* loader);
/* The backend of reads into memory of the calling thread's current CUDA device; "" before the first such read. */
MILLRACE_API const char* millrace_loader_device_backend(const millrace_loader* loader);
MILLRACE_API uint64_t millrace_loader_file_bytes(const millrace_loader* loader);

/* Queues a read of [offset, offset + bytes) into host memory at `destination` and returns its handle in *read;
 * millrace_loader_submit starts it. Any destination works. The read needs no copy if destination and offset are equal
 * modulo 4096 and whole_blocks is not 0, which allows the loader to overwrite the whole 4096-byte blocks around the
 * read.
 */
MILLRACE_API millrace_status millrace_loader_enqueue(millrace_loader* loader, uint64_t offset, uint64_t bytes,
                                                     void* destination, int whole_blocks, uint64_t* read);
/* Queues a read into memory of the calling thread's current CUDA device, as options.device_reads says. The bytes arrive
 * after the submit; no stream may use the destination before millrace_loader_wait returns. Fails with
 * MILLRACE_UNSUPPORTED without CUDA or a GPU. */
MILLRACE_API millrace_status millrace_loader_enqueue_device(millrace_loader* loader, uint64_t offset, uint64_t bytes,
                                                            void* device_destination, uint64_t* read);
/* Starts all queued reads. */
MILLRACE_API millrace_status millrace_loader_submit(millrace_loader* loader);
/* Sets *done to 1 if the read has ended, successfully or not; millrace_loader_wait returns which. */
MILLRACE_API millrace_status millrace_loader_poll(millrace_loader* loader, uint64_t read, int* done);
/* Blocks until a submitted read has ended, and releases its handle. All bytes have arrived, or the error is returned.
 */
MILLRACE_API millrace_status millrace_loader_wait(millrace_loader* loader, uint64_t read);
/* Allocates aligned memory for a read without copies: `bytes` at `offset` and the blocks around them. Pass *begin as
 * the destination, and free *block with millrace_free(). */
MILLRACE_API millrace_status millrace_loader_allocate(uint64_t offset, uint64_t bytes, void** block, void** begin);

/* ---- Pool: pieces of a file (experts) that do not all fit into memory; those in use are in memory ---------------- */

/* One thread at a time uses a pool. */
typedef struct millrace_pool millrace_pool;

typedef struct millrace_piece {
  uint64_t offset, bytes;
} millrace_piece;

typedef struct millrace_pool_options {
  size_t struct_size;
  uint64_t memory_bytes; /* memory for all pieces together; required */
  const char* policy;    /* which piece to evict: "lru" (default), "lfu" or "auto" */
  const char* memory; /* "host" (default), or "device": memory of the opening thread's current CUDA device, which must
                         also be current on every thread that uses the pool. The loader's device_reads apply */
} millrace_pool_options;

typedef struct millrace_pool_counters {
  size_t struct_size;
  uint64_t hits, misses, evictions; /* acquired or prefetched pieces found, not found; pieces evicted */
  uint64_t bytes_from_disk;
  uint64_t stall_ns;     /* time that millrace_pool_acquire waited */
  uint64_t slots;        /* pieces that fit; each slot is as large as the largest piece */
  uint64_t mapped_bytes; /* memory allocated now: on a GPU, slots get memory when first used */
} millrace_pool_counters;

MILLRACE_API void millrace_pool_options_init_sized(millrace_pool_options* options, size_t size);
#define millrace_pool_options_init(options) millrace_pool_options_init_sized((options), sizeof *(options))
MILLRACE_API void millrace_pool_counters_init_sized(millrace_pool_counters* counters, size_t size);
#define millrace_pool_counters_init(counters) millrace_pool_counters_init_sized((counters), sizeof *(counters))
/* Opens a pool of pieces of the loader's file, numbered from 0. The loader must outlive the pool and must not use mmap.
 * Reserves the addresses of all slots; on a GPU it allocates no memory yet. */
MILLRACE_API millrace_status millrace_pool_open(millrace_loader* loader, const millrace_piece* pieces, size_t count,
                                                const millrace_pool_options* options, millrace_pool** pool);
/* Waits for the streams passed to millrace_pool_release_on. */
MILLRACE_API void millrace_pool_close(millrace_pool* pool);
/* Returns at least `bytes` of memory to the system, from slots that are neither acquired nor prefetched; one slot
 * always stays. Sets *unmapped (may be NULL) to the bytes returned. The pool then has fewer slots. */
MILLRACE_API millrace_status millrace_pool_unmap(millrace_pool* pool, uint64_t bytes, uint64_t* unmapped);
/* Takes unmapped slots back and allocates `bytes` of memory now (0: when slots are first used). With
 * MILLRACE_OUT_OF_BUDGET the GPU has less free memory; the pool continues with the slots that have memory. */
MILLRACE_API millrace_status millrace_pool_map(millrace_pool* pool, uint64_t bytes);
/* Starts to read pieces that are not in memory, as far as slots are free, and keeps them until they are acquired or
 * until the next prefetch. Use it for a router's choice while something else computes. */
MILLRACE_API millrace_status millrace_pool_prefetch(millrace_pool* pool, const uint32_t* pieces, size_t count);
/* Waits for the piece's bytes. *data points into the pool's memory; it stays valid and does not move until the piece
 * was released as often as it was acquired. On a GPU, launches on any stream after this call see the bytes. Fails with
 * MILLRACE_UNAVAILABLE if every slot is acquired. */
MILLRACE_API millrace_status millrace_pool_acquire(millrace_pool* pool, uint32_t piece, const void** data);
MILLRACE_API millrace_status millrace_pool_release(millrace_pool* pool, uint32_t piece);
/* Releases a piece that work launched on `stream` (a cudaStream_t) still reads: its slot is not reused before that work
 * ends. Fails with MILLRACE_INVALID_ARGUMENT if the pool is in host memory. */
MILLRACE_API millrace_status millrace_pool_release_on(millrace_pool* pool, uint32_t piece, void* stream);
MILLRACE_API millrace_status millrace_pool_read_counters(millrace_pool* pool, millrace_pool_counters* counters);

/* ---- Tensors: products with the blocks of a model file, on the CPU ---------------------------------------------- */

/* A matrix has `rows` rows of `cols` weights each, stored without gaps at any alignment. `type` is the type's id in
 * GGUF files (0: F32, 1: F16, 2: Q4_0, 8: Q8_0, 12: Q4_K, 30: BF16); every type that the engine computes with is
 * supported. threads: 0 means all processors; the call starts them, fewer for small matrices. Errors:
 * MILLRACE_UNSUPPORTED if the type is unknown or not computed with (integers, F64); MILLRACE_INVALID_ARGUMENT if a
 * pointer is NULL, rows or cols is below 1, cols is not a multiple of the block size, the number of bytes does not
 * match rows and cols, or threads is not from 0 to 1024. */

/* out: [rows, cols], each weight in float32, with the same bits on every machine. */
MILLRACE_API millrace_status millrace_dequantize(uint32_t type, const void* data, size_t data_bytes, int64_t rows,
                                                 int64_t cols, float* out, int threads);
/* y = W x, with W: [rows, cols], x: [cols], y: [rows]; y must not overlap the inputs. This is the engine's own product:
 * for weights in blocks, it first rounds x to 8-bit integers with one scale for every 32, so that y differs from
 * dequantized weights times x by about the error of Q8_0; for F32, F16 and BF16 it uses x unchanged. The result has the
 * same bits on every machine and with any number of threads. A value of x that is not finite shows as a NaN or infinity
 * in y. */
MILLRACE_API millrace_status millrace_gemv(uint32_t type, const void* weight, size_t weight_bytes, int64_t rows,
                                           int64_t cols, const float* x, float* y, int threads);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_H_ */
