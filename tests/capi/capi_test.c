/* The C API from C11: arguments are the demo model's path. Prints what failed; exits with 1 if anything did. */
#include <millrace.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int failures = 0;

#define CHECK(held)                                                                                      \
  do {                                                                                                   \
    if (!(held)) {                                                                                       \
      ++failures;                                                                                        \
      fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #held, millrace_last_error());             \
    }                                                                                                    \
  } while (0)
#define REFUSED(call, code) CHECK((call) == (code) && strlen(millrace_last_error()) > 0)

static const char kQuestion[] = "[{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]";

typedef struct answer {
  char text[4096];
  size_t length, stop_after;
} answer;

static int append(void* user, const char* text, size_t length) {
  answer* all = user;
  if (all->length + length < sizeof all->text) {
    memcpy(all->text + all->length, text, length);
    all->length += length;
  }
  return all->stop_after > 0 && all->length >= all->stop_after;
}

static millrace_options options_for(const char* model) {
  millrace_options options;
  millrace_options_init(&options);
  options.model_path = model;
  options.device = "cpu";
  options.ram_bytes = 200000000;
  options.max_sequences = 4;
  options.threads = 2;
  return options;
}

static millrace_request greedy(void) {
  millrace_request request;
  millrace_request_init(&request);
  request.temperature = 0;
  request.max_tokens = 40;
  return request;
}

static void test_errors(const char* model) {
  millrace_engine* engine = NULL;
  millrace_options options = options_for("/no/such/model.gguf");
  REFUSED(millrace_open(&options, &engine), MILLRACE_NOT_FOUND);
  CHECK(strstr(millrace_last_error(), "/no/such/model.gguf") != NULL && strchr(millrace_last_error(), '\n') == NULL);
  options.model_path = NULL;
  REFUSED(millrace_open(&options, &engine), MILLRACE_INVALID_ARGUMENT);
  options = options_for(model);
  options.device = "abacus";
  REFUSED(millrace_open(&options, &engine), MILLRACE_INVALID_ARGUMENT);
  options = options_for(model);
  options.ram_bytes = 1000;
  REFUSED(millrace_open(&options, &engine), MILLRACE_OUT_OF_BUDGET);
  options.struct_size = 0;
  REFUSED(millrace_open(&options, &engine), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_open(NULL, &engine), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_open(&options, NULL), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_generate(NULL, NULL, NULL, NULL, NULL), MILLRACE_INVALID_ARGUMENT);
  CHECK(engine == NULL);
  millrace_close(NULL);
  millrace_cancel(NULL);
  millrace_free(NULL);
}

static void test_plan(const char* model) {
  const millrace_options options = options_for(model);
  char *text = NULL, *json = NULL;
  CHECK(millrace_plan(&options, MILLRACE_TEXT, &text) == MILLRACE_OK && strstr(text, "ram") != NULL);
  CHECK(millrace_plan(&options, MILLRACE_JSON, &json) == MILLRACE_OK && strncmp(json, "{\"rows\":[{", 10) == 0);
  millrace_free(text);
  millrace_free(json);
}

static void test_tokens(millrace_engine* engine) {
  int32_t* ids = NULL;
  size_t count = 0, length = 0;
  char* text = NULL;
  CHECK(millrace_tokenize(engine, "Hello <|im_end|>", 16, 0, &ids, &count) == MILLRACE_OK && count > 2);
  CHECK(millrace_detokenize(engine, ids, count, 0, &text, &length) == MILLRACE_OK);
  CHECK(length == 16 && strcmp(text, "Hello <|im_end|>") == 0);
  millrace_free(ids);
  millrace_free(text);
  CHECK(millrace_tokenize(engine, "<|im_end|>", 10, 1, &ids, &count) == MILLRACE_OK && count == 1);
  CHECK(millrace_detokenize(engine, ids, count, 0, &text, &length) == MILLRACE_OK && length == 0 && *text == '\0');
  millrace_free(ids);
  millrace_free(text);
  CHECK(millrace_tokenize(engine, NULL, 0, 0, &ids, &count) == MILLRACE_OK && count == 0);
  millrace_free(ids);
  CHECK(millrace_chat_tokens(engine, kQuestion, NULL, NULL, &ids, &count) == MILLRACE_OK && count > 8);
  millrace_free(ids);
  REFUSED(millrace_chat_tokens(engine, "[", NULL, NULL, &ids, &count), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_chat_tokens(engine, "[{}]", NULL, NULL, &ids, &count), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_tokenize(engine, NULL, 5, 0, &ids, &count), MILLRACE_INVALID_ARGUMENT);
}

static void test_generate(millrace_engine* engine) {
  answer all = {{0}, 0, 0};
  millrace_request request = greedy();
  millrace_result result;
  millrace_result_init(&result);
  request.messages_json = kQuestion;
  CHECK(millrace_generate(engine, &request, append, &all, &result) == MILLRACE_OK);
  CHECK(strstr(all.text, "Paris") != NULL);
  CHECK(result.finish == MILLRACE_FINISH_STOP && result.prompt_tokens > 8 && result.answer_tokens > 2);
  CHECK(millrace_generate(engine, &request, NULL, NULL, NULL) == MILLRACE_OK);

  memset(&all, 0, sizeof all);
  const char* stop[] = {"Paris"};
  request.stop = stop;
  request.stop_count = 1;
  CHECK(millrace_generate(engine, &request, append, &all, &result) == MILLRACE_OK && strstr(all.text, "Paris") == NULL);

  memset(&all, 0, sizeof all);
  all.stop_after = 1;
  request = greedy();
  request.prompt = "Once";
  request.max_tokens = -1;
  CHECK(millrace_generate(engine, &request, append, &all, &result) == MILLRACE_OK);
  CHECK(result.finish == MILLRACE_FINISH_CANCELLED || result.finish == MILLRACE_FINISH_STOP);

  const int32_t tokens[] = {300, 301};
  request = greedy();
  request.prompt_tokens = tokens;
  request.prompt_token_count = 2;
  request.max_tokens = 3;
  CHECK(millrace_generate(engine, &request, NULL, NULL, &result) == MILLRACE_OK && result.prompt_tokens == 2);

  request = greedy();
  REFUSED(millrace_generate(engine, &request, NULL, NULL, NULL), MILLRACE_INVALID_ARGUMENT);
  request.prompt = "x";
  request.temperature = -1;
  REFUSED(millrace_generate(engine, &request, NULL, NULL, NULL), MILLRACE_INVALID_ARGUMENT);
  const int32_t wrong[] = {1 << 30};
  request = greedy();
  request.prompt_tokens = wrong;
  request.prompt_token_count = 1;
  REFUSED(millrace_generate(engine, &request, NULL, NULL, NULL), MILLRACE_INVALID_ARGUMENT);
}

typedef struct asker {
  millrace_engine* engine;
  answer all;
  millrace_status status;
} asker;

static void* ask(void* user) {
  asker* self = user;
  millrace_request request = greedy();
  request.messages_json = kQuestion;
  self->status = millrace_generate(self->engine, &request, append, &self->all, NULL);
  return NULL;
}

static void test_threads(millrace_engine* engine) {
  asker askers[4];
  pthread_t threads[4];
  memset(askers, 0, sizeof askers);
  for (int i = 0; i < 4; ++i) {
    askers[i].engine = engine;
    pthread_create(&threads[i], NULL, ask, &askers[i]);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    CHECK(askers[i].status == MILLRACE_OK && strcmp(askers[i].all.text, askers[0].all.text) == 0);
  }
  millrace_counters counters;
  millrace_counters_init(&counters);
  CHECK(millrace_read_counters(engine, &counters) == MILLRACE_OK);
  CHECK(counters.passes > 0 && counters.bytes_used > 0 && counters.ram_granted_bytes <= counters.ram_cap_bytes);
  char* plan = NULL;
  CHECK(millrace_engine_plan(engine, MILLRACE_TEXT, &plan) == MILLRACE_OK && strlen(plan) > 0);
  millrace_free(plan);
}

/* A model drafts for itself, or its first layers do. */
static void test_drafts(const char* model, const char* draft) {
  millrace_options options = options_for(model);
  options.speculate = "3";
  options.draft_path = draft;
  millrace_engine* engine = NULL;
  CHECK(millrace_open(&options, &engine) == MILLRACE_OK);
  if (engine == NULL) return;
  millrace_request request = greedy();
  request.messages_json = kQuestion;
  CHECK(millrace_generate(engine, &request, NULL, NULL, NULL) == MILLRACE_OK);
  millrace_counters counters;
  millrace_counters_init(&counters);
  CHECK(millrace_read_counters(engine, &counters) == MILLRACE_OK);
  CHECK(counters.drafts > 0 && counters.drafts_right > 0 && counters.drafts_right <= counters.drafts);
  CHECK(counters.drafts_at[0] + counters.drafts_at[1] + counters.drafts_at[2] == counters.drafts);
  CHECK(counters.drafts_right_at[0] > 0 && counters.drafts_at[3] == 0);
  CHECK(counters.draft_passes > 0 && counters.draft_seconds > 0 && counters.verify_seconds >= 0);
  CHECK(counters.tokens_a_pass > 1);
  millrace_close(engine);
}

static double dot(const float* a, const float* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += (double)a[i] * b[i];
  return sum;
}

static atomic_int embedding;

static void* cancel_again_and_again(void* user) {
  const struct timespec soon = {0, 20000000};
  while (atomic_load(&embedding)) {
    nanosleep(&soon, NULL);
    millrace_cancel(user);
  }
  return NULL;
}

static void test_embed(millrace_engine* engine) {
  const char* texts[] = {"A fox found a lantern.", "A fox found a lamp.", "What is the capital of France?", NULL};
  float *vectors = NULL, *one = NULL;
  size_t dimensions = 0, same = 0;
  CHECK(millrace_embed(engine, texts, 3, MILLRACE_POOLING_MODEL, &vectors, &dimensions) == MILLRACE_OK);
  CHECK(vectors != NULL && dimensions > 8);
  if (vectors == NULL) return;
  for (size_t i = 0; i < 3; ++i) {
    const float* own = vectors + i * dimensions;
    CHECK(dot(own, own, dimensions) > 0.9999 && dot(own, own, dimensions) < 1.0001);
    CHECK(millrace_embed(engine, &texts[i], 1, MILLRACE_POOLING_LAST, &one, &same) == MILLRACE_OK);
    CHECK(same == dimensions && memcmp(one, own, dimensions * sizeof(float)) == 0);
    millrace_free(one);
  }
  CHECK(dot(vectors, vectors + dimensions, dimensions) > dot(vectors, vectors + 2 * dimensions, dimensions));
  CHECK(millrace_embed(engine, texts, 1, MILLRACE_POOLING_MEAN, &one, &same) == MILLRACE_OK);
  CHECK(memcmp(one, vectors, dimensions * sizeof(float)) != 0);
  millrace_free(one);
  CHECK(millrace_embed(engine, NULL, 0, MILLRACE_POOLING_MODEL, &one, &same) == MILLRACE_OK && same == dimensions);
  millrace_free(one);
  millrace_free(vectors);

  REFUSED(millrace_embed(NULL, texts, 1, MILLRACE_POOLING_MODEL, &one, &same), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_embed(engine, NULL, 1, MILLRACE_POOLING_MODEL, &one, &same), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_embed(engine, texts, 4, MILLRACE_POOLING_MODEL, &one, &same), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_embed(engine, texts, 1, (millrace_pooling)9, &one, &same), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_embed(engine, texts, 1, MILLRACE_POOLING_MODEL, NULL, &same), MILLRACE_INVALID_ARGUMENT);

  static const char* many[20000]; /* far more than can be done until it is cancelled */
  for (int i = 0; i < 20000; ++i) many[i] = texts[i % 3];
  pthread_t thread;
  atomic_store(&embedding, 1);
  pthread_create(&thread, NULL, cancel_again_and_again, engine);
  REFUSED(millrace_embed(engine, many, 20000, MILLRACE_POOLING_MODEL, &one, &same), MILLRACE_CANCELLED);
  atomic_store(&embedding, 0);
  pthread_join(thread, NULL);
}

static void test_older_struct(millrace_engine* engine) {
  /* A caller whose header ended after `finish`. */
  millrace_result result;
  memset(&result, 0x5a, sizeof result);
  result.struct_size = offsetof(millrace_result, prompt_tokens);
  millrace_request request = greedy();
  request.messages_json = kQuestion;
  CHECK(millrace_generate(engine, &request, NULL, NULL, &result) == MILLRACE_OK);
  CHECK(result.finish == MILLRACE_FINISH_STOP && result.prompt_tokens == 0x5a5a5a5a5a5a5a5a);
}

/* Memory that is given back is the system's, pieces in use stay, and slots come back. */
static void test_unmap(millrace_pool* pool, uint32_t slots) {
  const void *kept = NULL, *data = NULL;
  millrace_pool_counters counters;
  millrace_pool_counters_init(&counters);
  CHECK(millrace_pool_acquire(pool, 1, &kept) == MILLRACE_OK);
  for (uint32_t i = 0; i < slots; ++i)
    if (i > 1) CHECK(millrace_pool_release(pool, i) == MILLRACE_OK);
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK);
  const uint64_t mapped = counters.mapped_bytes;
  uint64_t unmapped = 0;
  CHECK(millrace_pool_unmap(pool, mapped, &unmapped) == MILLRACE_OK && unmapped > 0);
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK);
  CHECK(counters.slots < slots && counters.slots >= 1 && counters.mapped_bytes == mapped - unmapped);
  CHECK(millrace_pool_acquire(pool, 1, &data) == MILLRACE_OK && data == kept);
  CHECK(millrace_pool_map(pool, 0) == MILLRACE_OK);
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK);
  CHECK(counters.slots == slots && counters.mapped_bytes == mapped);
}

/* Pieces of a file, most of them out of memory; each is what the file says, and the counters tell the truth. */
static void test_pool(const char* path) {
  enum { kPieces = 40, kBytes = 30011 };
  FILE* file = fopen(path, "rb");
  static char expected[kPieces * kBytes + 77];
  CHECK(file != NULL && fread(expected, 1, sizeof expected, file) == sizeof expected);
  if (file != NULL) fclose(file);
  millrace_loader_options loader_options;
  millrace_loader_options_init(&loader_options);
  loader_options.backend = "pread";
  millrace_loader* loader = NULL;
  CHECK(millrace_loader_open(path, &loader_options, &loader) == MILLRACE_OK);
  millrace_piece pieces[kPieces];
  for (int i = 0; i < kPieces; ++i) pieces[i] = (millrace_piece){77 + (uint64_t)i * kBytes, kBytes - i};
  millrace_pool_options options;
  millrace_pool_options_init(&options);
  millrace_pool* pool = NULL;
  options.memory_bytes = 100;
  REFUSED(millrace_pool_open(loader, pieces, kPieces, &options, &pool), MILLRACE_OUT_OF_BUDGET);
  options.memory_bytes = 300000;
  options.policy = "fifo";
  REFUSED(millrace_pool_open(loader, pieces, kPieces, &options, &pool), MILLRACE_INVALID_ARGUMENT);
  options.policy = "lru";
  millrace_piece outside = {millrace_loader_file_bytes(loader) - 5, 6};
  REFUSED(millrace_pool_open(loader, &outside, 1, &options, &pool), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_pool_open(loader, pieces, 0, &options, &pool), MILLRACE_INVALID_ARGUMENT);
  CHECK(millrace_pool_open(loader, pieces, kPieces, &options, &pool) == MILLRACE_OK);
  millrace_pool_counters counters;
  millrace_pool_counters_init(&counters);
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK && counters.slots >= 4 && counters.slots <= 10);
  const int slots = (int)counters.slots;

  const void* data = NULL;
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kPieces; i += 2) {
      const uint32_t next[2] = {(i * 7) % kPieces, (i * 7 + 1) % kPieces};
      CHECK(millrace_pool_prefetch(pool, next, 2) == MILLRACE_OK);
      for (int k = 0; k < 2; ++k) {
        CHECK(millrace_pool_acquire(pool, next[k], &data) == MILLRACE_OK);
        CHECK(memcmp(data, expected + pieces[next[k]].offset, pieces[next[k]].bytes) == 0);
      }
      CHECK(millrace_pool_release(pool, next[0]) == MILLRACE_OK && millrace_pool_release(pool, next[1]) == MILLRACE_OK);
    }
  }
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK);
  CHECK(counters.misses > 3 * kPieces / 2 && counters.evictions > 0 && counters.bytes_from_disk > 2u * kPieces * kBytes);
  for (int i = 0; i < slots; ++i) CHECK(millrace_pool_acquire(pool, (uint32_t)i, &data) == MILLRACE_OK);
  REFUSED(millrace_pool_acquire(pool, kPieces - 1, &data), MILLRACE_UNAVAILABLE);
  const uint64_t misses = counters.misses + (uint64_t)slots;
  CHECK(millrace_pool_acquire(pool, 1, &data) == MILLRACE_OK); /* once more: it is there */
  CHECK(millrace_pool_release(pool, 1) == MILLRACE_OK);
  CHECK(memcmp(data, expected + pieces[1].offset, pieces[1].bytes) == 0);
  CHECK(millrace_pool_read_counters(pool, &counters) == MILLRACE_OK && counters.misses <= misses);
  CHECK(millrace_pool_release(pool, 0) == MILLRACE_OK);
  REFUSED(millrace_pool_release(pool, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_pool_acquire(pool, kPieces, &data), MILLRACE_INVALID_ARGUMENT);
  const uint32_t bad = kPieces;
  REFUSED(millrace_pool_prefetch(pool, &bad, 1), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_pool_release_on(pool, 2, NULL), MILLRACE_INVALID_ARGUMENT);
  test_unmap(pool, (uint32_t)slots);
  millrace_pool_close(pool); /* with pieces that are still acquired */
  millrace_loader_close(loader);

  loader_options.backend = "mmap";
  CHECK(millrace_loader_open(path, &loader_options, &loader) == MILLRACE_OK);
  REFUSED(millrace_pool_open(loader, pieces, kPieces, &options, &pool), MILLRACE_UNSUPPORTED);
  options.memory = "tape";
  REFUSED(millrace_pool_open(loader, pieces, kPieces, &options, &pool), MILLRACE_INVALID_ARGUMENT);
  millrace_loader_close(loader);
}

/* Where there is no GPU, what needs one is refused; where there is one, cuda_capi's tests go on from here. */
static void test_device(const char* path) {
  millrace_loader_options loader_options;
  millrace_loader_options_init(&loader_options);
  millrace_loader* loader = NULL;
  loader_options.device_reads = "pigeon";
  REFUSED(millrace_loader_open(path, &loader_options, &loader), MILLRACE_INVALID_ARGUMENT);
  loader_options.device_reads = "ring";
  CHECK(millrace_loader_open(path, &loader_options, &loader) == MILLRACE_OK);
  CHECK(strcmp(millrace_loader_device_backend(loader), "") == 0);
  const millrace_piece piece = {0, 1000};
  millrace_pool_options options;
  millrace_pool_options_init(&options);
  options.memory = "device";
  options.memory_bytes = 1000;
  millrace_pool* pool = NULL;
  REFUSED(millrace_pool_open(loader, &piece, 1, &options, &pool), MILLRACE_OUT_OF_BUDGET);
  options.memory_bytes = 2 << 20;
  const millrace_status opened = millrace_pool_open(loader, &piece, 1, &options, &pool);
  if (opened == MILLRACE_UNSUPPORTED) {
    uint64_t read = 0;
    REFUSED(millrace_loader_enqueue_device(loader, 0, 1000, &read, &read), MILLRACE_UNSUPPORTED);
    fprintf(stderr, "skipped: device memory (%s)\n", millrace_last_error());
  } else {
    CHECK(opened == MILLRACE_OK && strlen(millrace_loader_device_backend(loader)) > 0);
    millrace_pool_close(pool);
  }
  millrace_loader_close(loader);
}

static void test_loader(const char* path, const char* backend) {
  FILE* file = fopen(path, "rb");
  unsigned char* expected = malloc(1 << 20);
  if (file == NULL || expected == NULL || fread(expected, 1, 1 << 20, file) != 1 << 20) {
    CHECK(!"the file can be read");
    return;
  }
  fclose(file);
  millrace_loader_options options;
  millrace_loader_options_init(&options);
  options.backend = backend;
  options.queue_depth = 4;
  millrace_loader* loader = NULL;
  const millrace_status opened = millrace_loader_open(path, &options, &loader);
  if (opened == MILLRACE_UNSUPPORTED) { /* not on this file system */
    free(expected);
    return;
  }
  CHECK(opened == MILLRACE_OK && strlen(millrace_loader_backend(loader)) > 0);
  const uint64_t size = millrace_loader_file_bytes(loader), offsets[] = {0, 1, 4095, 4096, 70001}, bytes = 100003;
  unsigned char* out[5];
  void *block = NULL, *begin = NULL;
  uint64_t reads[5], direct = 0;
  CHECK(size > 1 << 20);
  for (int i = 0; i < 5; ++i) {
    out[i] = malloc(bytes);
    CHECK(millrace_loader_enqueue(loader, offsets[i], bytes, out[i], 0, &reads[i]) == MILLRACE_OK);
  }
  int done = 0;
  REFUSED(millrace_loader_wait(loader, reads[0]), MILLRACE_INVALID_ARGUMENT);
  CHECK(millrace_loader_allocate(70001, bytes, &block, &begin) == MILLRACE_OK);
  CHECK(millrace_loader_enqueue(loader, 70001, bytes, begin, 1, &direct) == MILLRACE_OK);
  CHECK(millrace_loader_submit(loader) == MILLRACE_OK);
  while (!done && millrace_loader_poll(loader, reads[4], &done) == MILLRACE_OK) {
  }
  for (int i = 0; i < 5; ++i) {
    CHECK(millrace_loader_wait(loader, reads[i]) == MILLRACE_OK);
    CHECK(memcmp(out[i], expected + offsets[i], bytes) == 0);
    free(out[i]);
  }
  CHECK(millrace_loader_wait(loader, direct) == MILLRACE_OK && memcmp(begin, expected + 70001, bytes) == 0);
  REFUSED(millrace_loader_wait(loader, direct), MILLRACE_NOT_FOUND);
  REFUSED(millrace_loader_enqueue(loader, size - 1, 2, begin, 0, &direct), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_loader_enqueue(loader, UINT64_MAX, 2, begin, 0, &direct), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_loader_enqueue(loader, 0, 0, begin, 0, &direct), MILLRACE_INVALID_ARGUMENT);
  /* A loader may be closed with reads that nobody waited for, and with some never submitted. */
  CHECK(millrace_loader_enqueue(loader, 70001, bytes, begin, 1, &direct) == MILLRACE_OK);
  CHECK(millrace_loader_submit(loader) == MILLRACE_OK);
  CHECK(millrace_loader_enqueue(loader, 70001, bytes, begin, 1, &direct) == MILLRACE_OK);
  millrace_loader_close(loader);
  millrace_free(block);
  free(expected);
}

/* A struct of an older header is shorter: nothing behind it is written, and what it has is set up. */
/* Two rows of two blocks of Q8_0 each: with a scale of 1/2 or 2, the numbers 0 to 31 or their negatives. */
static void test_tensors(void) {
  enum { kRows = 2, kCols = 64, kType = 8, kBlockBytes = 34 };
  unsigned char data[kRows * kCols / 32 * kBlockBytes + 1];
  unsigned char* blocks = data + 1; /* at any alignment */
  float expected[kRows * kCols], out[kRows * kCols], x[kCols], y[kRows] = {0, 0};
  for (int block = 0; block < kRows * kCols / 32; ++block) {
    unsigned char* at = blocks + block * kBlockBytes;
    at[0] = 0;
    at[1] = block % 2 == 0 ? 0x38 : 0x40;
    for (int i = 0; i < 32; ++i) {
      const int q = block < 2 ? i : -i;
      at[2 + i] = (unsigned char)q;
      expected[32 * block + i] = (float)q * (block % 2 == 0 ? 0.5F : 2);
    }
  }
  for (int i = 0; i < kCols; ++i) x[i] = 1;
  const size_t bytes = sizeof data - 1;
  CHECK(millrace_dequantize(kType, blocks, bytes, kRows, kCols, out, 0) == MILLRACE_OK);
  CHECK(memcmp(out, expected, sizeof out) == 0);
  CHECK(millrace_gemv(kType, blocks, bytes, kRows, kCols, x, y, 2) == MILLRACE_OK);
  for (int row = 0; row < kRows; ++row) {
    const double wanted = (row == 0 ? 1 : -1) * 496 * 2.5;
    CHECK(y[row] > wanted - 0.01 && y[row] < wanted + 0.01);
  }
  CHECK(millrace_gemv(0, expected, sizeof expected, kRows, kCols, x, y, 1) == MILLRACE_OK && y[0] == 1240);

  out[0] = y[0] = 42;
  REFUSED(millrace_dequantize(5, blocks, bytes, kRows, kCols, out, 0), MILLRACE_UNSUPPORTED);
  REFUSED(millrace_dequantize(26, blocks, bytes, kRows, kCols, out, 0), MILLRACE_UNSUPPORTED); /* I32 */
  REFUSED(millrace_dequantize(kType, NULL, bytes, kRows, kCols, out, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes, kRows, kCols, NULL, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes, kRows, kCols, out, -1), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes, 0, kCols, out, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes, kRows, kCols - 1, out, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes - 1, kRows, kCols, out, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_dequantize(kType, blocks, bytes, INT64_MAX, INT64_MAX / 32 * 32, out, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_gemv(kType, blocks, bytes, kRows, kCols, NULL, y, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_gemv(kType, blocks, bytes, kRows, kCols, x, NULL, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_gemv(kType, NULL, bytes, kRows, kCols, x, y, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_gemv(kType, blocks, bytes, kRows + 1, kCols, x, y, 0), MILLRACE_INVALID_ARGUMENT);
  REFUSED(millrace_gemv(28, blocks, bytes, kRows, kCols, x, y, 0), MILLRACE_UNSUPPORTED); /* F64 */
  CHECK(out[0] == 42 && y[0] == 42);
}

static void test_structs_of_other_headers(void) {
  millrace_counters counters;
  memset(&counters, 0x5a, sizeof counters);
  const size_t size = offsetof(millrace_counters, bytes_used);
  millrace_counters_init_sized(&counters, size);
  CHECK(counters.struct_size == size && counters.passes == 0 && counters.bytes_from_disk == 0);
  CHECK(counters.bytes_used == 0x5a5a5a5a5a5a5a5a);
  struct {
    millrace_options known;
    char newer[64];
  } options;
  memset(&options, 0x5a, sizeof options);
  millrace_options_init_sized(&options.known, sizeof options);
  CHECK(options.known.struct_size == sizeof options && options.known.threads == 0 && options.newer[63] == 0);
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  test_structs_of_other_headers();
  CHECK(strlen(millrace_version()) > 0 && strcmp(millrace_last_error(), "") == 0);
  test_errors(argv[1]);
  test_plan(argv[1]);
  test_tensors();
  const millrace_options options = options_for(argv[1]);
  millrace_engine* engine = NULL;
  CHECK(millrace_open(&options, &engine) == MILLRACE_OK);
  if (engine != NULL) {
    test_tokens(engine);
    test_generate(engine);
    test_threads(engine);
    test_embed(engine);
    test_older_struct(engine);
  }
  millrace_close(engine);
#ifdef _WIN32
  const char* backends[] = {"auto", "directstorage", "pread-direct", "pread", "mmap"};
#else
  const char* backends[] = {"auto", "io_uring", "pread-direct", "pread", "mmap"};
#endif
  for (int i = 0; i < 5; ++i) test_loader(argv[1], backends[i]);
  test_pool(argv[1]);
  test_device(argv[1]);
  test_drafts(argv[1], argv[1]);
  test_drafts(argv[1], "self:4");
  millrace_loader* loader = NULL;
  REFUSED(millrace_loader_open("/no/such/file", NULL, &loader), MILLRACE_NOT_FOUND);
  if (failures > 0) fprintf(stderr, "%d checks failed\n", failures);
  return failures > 0 ? 1 : 0;
}
