/* Answers one question:  generate MODEL.gguf "What is the capital of France?" [RAM in MB]
 *
 * Build against an installed Millrace:  cc generate.c $(pkg-config --cflags --libs millrace) -o generate
 */
#include <millrace.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print(void* user, const char* text, size_t length) {
  (void)user;
  return fwrite(text, 1, length, stdout) == length && fflush(stdout) == 0 ? 0 : 1;
}

/* {"role": "user", "content": QUESTION} in a list, the question escaped. */
static char* one_message(const char* question) {
  static const char head[] = "[{\"role\": \"user\", \"content\": \"", tail[] = "\"}]";
  char* json = malloc(sizeof head + sizeof tail + 6 * strlen(question));
  if (json == NULL) return NULL;
  char* at = json + sprintf(json, "%s", head);
  for (; *question != '\0'; ++question) {
    const unsigned char c = (unsigned char)*question;
    if (c < 0x20 || c == '"' || c == '\\')
      at += sprintf(at, "\\u%04x", c);
    else
      *at++ = (char)c;
  }
  strcpy(at, tail);
  return json;
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s MODEL.gguf QUESTION [RAM in MB]\n", argv[0]);
    return 2;
  }
  millrace_options options;
  millrace_options_init(&options);
  options.model_path = argv[1];
  if (argc > 3) options.ram_bytes = strtoull(argv[3], NULL, 10) * 1000000;

  millrace_engine* engine = NULL;
  if (millrace_open(&options, &engine) != MILLRACE_OK) {
    fprintf(stderr, "error: %s\n", millrace_last_error());
    return 1;
  }
  millrace_request request;
  millrace_request_init(&request);
  char* messages = one_message(argv[2]);
  request.messages_json = messages;
  request.temperature = 0;
  const millrace_status status = millrace_generate(engine, &request, print, NULL, NULL);
  if (status != MILLRACE_OK) fprintf(stderr, "error: %s\n", millrace_last_error());
  printf("\n");
  free(messages);
  millrace_close(engine);
  return status == MILLRACE_OK ? 0 : 1;
}
