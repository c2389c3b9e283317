// SPDX-License-Identifier: Apache-2.0
/* Runs kernels in C on the arrays of files: CASES, in "cases.h", says which.

   driver FOLDER CALLERS: each of so many threads calls every kernel twice, with a result of its
   own; all results must have the same bits, and the first is written. */

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, LINE = 64 };

typedef struct {
  const char* name;
  int (*call)(void* const* pointers);
  int count;
  struct {
    size_t bytes, width;
  } arguments[MOST];
} Case;

#include "cases.h"

enum { COUNT = sizeof cases / sizeof *cases };

static void* operands[COUNT][MOST];
static void* expected[COUNT];

static void stop(const char* what, const char* name) {
  fprintf(stderr, "%s: %s: %s\n", name, what, conv_last_error());
  exit(1);
}

/* Memory that begins one element behind a cache line: kernels may ask for no more. */
static char* memory(size_t bytes, size_t width) {
  char* line = aligned_alloc(LINE, (bytes + width + LINE - 1) / LINE * LINE);
  if (!line) exit(2);
  return line + width;
}

static void give_back(void* memory, size_t width) { free((char*)memory - width); }

static FILE* file(const char* folder, const char* name, int number, const char* mode) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s_%d.bin", folder, name, number);
  FILE* found = fopen(path, mode);
  if (!found) perror(path), exit(2);
  return found;
}

static void* call_all(void* none) {
  for (int i = 0; i < COUNT; ++i) {
    const Case* one = &cases[i];
    int last = one->count - 1;
    size_t bytes = one->arguments[last].bytes, width = one->arguments[last].width;
    void* pointers[MOST];
    memcpy(pointers, operands[i], sizeof pointers);
    pointers[last] = memory(bytes, width);
    for (int again = 0; again < 2; ++again) {
      memset(pointers[last], 77, bytes);
      if (one->call(pointers)) stop("failed", one->name);
      if (memcmp(pointers[last], expected[i], bytes)) stop("another result", one->name);
    }
    give_back(pointers[last], width);
  }
  return none;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  int callers = atoi(argv[2]);
  for (int i = 0; i < COUNT; ++i) {
    const Case* one = &cases[i];
    int last = one->count - 1;
    for (int j = 0; j <= last; ++j) {
      size_t bytes = one->arguments[j].bytes;
      operands[i][j] = memory(bytes, one->arguments[j].width);
      if (j == last) break;
      FILE* from = file(argv[1], one->name, j, "rb");
      if (fread(operands[i][j], 1, bytes, from) != bytes) stop("file too short", one->name);
      fclose(from);
    }
    expected[i] = operands[i][last];
    memset(expected[i], 55, one->arguments[last].bytes);
    if (one->call(operands[i])) stop("failed", one->name);
    FILE* to = file(argv[1], one->name, last, "wb");
    fwrite(expected[i], 1, one->arguments[last].bytes, to);
    fclose(to);
  }
  pthread_t threads[16];
  for (int i = 0; i < callers; ++i) pthread_create(&threads[i], NULL, call_all, NULL);
  for (int i = 0; i < callers; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < COUNT; ++i) {
    for (int j = 0; j < cases[i].count; ++j) {
      give_back(operands[i][j], cases[i].arguments[j].width);
    }
  }
  return 0;
}
