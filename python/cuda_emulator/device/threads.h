// SPDX-License-Identifier: Apache-2.0
// Threads of a block, and how one waits for others: a word that changes when it may go on.
#pragma once

typedef void (*KernelCall)(const emu_argument*);

EMU_OF_THREAD emu_index threadIdx, blockIdx;
emu_index blockDim, gridDim;

static EMU_OF_THREAD unsigned thread_number;

struct Waiting {
  const char* what;  // null: runs
  int line;
  const unsigned* word;
  unsigned seen;
};
static Waiting waiting[1024];
static bool ended[1024];

static emu_index index_of(size_t number, const emu_index& extent) {
  return {(unsigned)(number % extent.x), (unsigned)(number / extent.x % extent.y),
          (unsigned)(number / extent.x / extent.y)};
}

static unsigned threads_ended() { return (unsigned)std::count(ended, ended + block_threads, true); }

// Everybody waits or has ended, and nobody's word will change.
static void fault_stuck() {
  char places[600];
  size_t used = 0;
  bool said[1024] = {};
  for (unsigned i = 0; i < block_threads && used < sizeof places - 100; i++) {
    if (ended[i] || said[i]) continue;
    unsigned same = 0;
    for (unsigned j = i; j < block_threads; j++) {
      if (!ended[j] && waiting[j].line == waiting[i].line && waiting[j].what == waiting[i].what) {
        said[j] = true;
        same++;
      }
    }
    thread_number = i;
    used += (size_t)snprintf(places + used, sizeof places - used, "%u at %s of line %d, ", same,
                             waiting[i].what, waiting[i].line);
  }
  threadIdx = index_of(thread_number, blockDim);
  emu_fault("divergence", "threads wait for ever: %s%u have ended", places, threads_ended());
}

#ifdef EMU_THREADS
#include "threads_of_system.h"
#else
#include "fibers.h"
#endif
