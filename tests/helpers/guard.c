// SPDX-License-Identifier: Apache-2.0
// Memory between pages that nobody may touch, for arguments of kernels and in place of TVM's workspaces.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { void *start; size_t mapped; } Block;

static size_t page(void) { return (size_t)sysconf(_SC_PAGESIZE); }

// A block whose last bytes, but for alignment to 64, lie in front of a forbidden page; another lies before it.
void *guarded_alloc(uint64_t bytes) {
  size_t p = page(), whole = (bytes + 63) / 64 * 64, mapped = (whole + sizeof(Block) + p - 1) / p * p;
  char *start = mmap(NULL, mapped + 2 * p, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) abort();
  mprotect(start, p, PROT_NONE);
  mprotect(start + p + mapped, p, PROT_NONE);
  char *data = start + p + mapped - whole;
  memset(start + p, 0xff, mapped);  // NaN: what is read before it is written shows
  Block block = {start, mapped + 2 * p};
  memcpy(start + p, &block, sizeof block);  // whole leaves room for it in front
  return data;
}

void guarded_free(void *data) {
  size_t p = page();
  char *first = (char *)((uintptr_t)data / p * p);
  Block block;
  memcpy(&block, first, sizeof block);
  while (block.start != first - p) {  // the block is longer than a page: its head lies further in front
    first -= p;
    memcpy(&block, first, sizeof block);
  }
  munmap(block.start, block.mapped);
}

void *alloc_workspace(int type, int id, uint64_t bytes, int code, int bits) { return guarded_alloc(bytes); }

int free_workspace(int type, int id, void *data) {
  guarded_free(data);
  return 0;
}
