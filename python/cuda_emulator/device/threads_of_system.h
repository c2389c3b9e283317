// SPDX-License-Identifier: Apache-2.0
// Threads of a block as threads of the system, for ThreadSanitizer. Gates use the system's futex
// directly: a lock of the C library would order threads that meet at no barrier, and hide races.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>

extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
static void ordered_before(void* gate) { __tsan_release(gate); }
static void ordered_after(void* gate) { __tsan_acquire(gate); }

static int gates_lock;
static unsigned threads_waiting;

static void lock_gates() {
  while (__atomic_exchange_n(&gates_lock, 1, __ATOMIC_ACQUIRE)) sched_yield();
}
static void unlock_gates() { __atomic_store_n(&gates_lock, 0, __ATOMIC_RELEASE); }

static void sleep_on(const unsigned* word, unsigned seen) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

static void wake(const unsigned* word) {
  // With the gates locked: whoever waits for this word no longer does.
  for (unsigned i = 0; i < block_threads; i++) {
    if (waiting[i].what && waiting[i].word == word) {
      waiting[i].what = nullptr;
      threads_waiting--;
    }
  }
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
}

static void fault_if_stuck() {
  if (threads_waiting && threads_waiting + threads_ended() == block_threads) fault_stuck();
}

static void wait_until_changed(const unsigned* word, unsigned seen, const char* what, int line) {
  lock_gates();
  if (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen) {
    waiting[thread_number] = {what, line, word, seen};
    threads_waiting++;
    fault_if_stuck();
  }
  unlock_gates();
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == seen) sleep_on(word, seen);
}

static void begin_gates();

struct Work {
  const std::vector<size_t>* sequence;
  KernelCall call;
  const emu_argument* arguments;
};
static Work work;
static unsigned blocks_done, threads_done;

// Every thread of a block has ended; the last one makes ready for the next block.
static void between_blocks() {
  lock_gates();
  ended[thread_number] = true;
  unsigned seen = blocks_done;
  ordered_before(&blocks_done);
  if (++threads_done == block_threads) {
    threads_done = 0;
    ordered_after(&blocks_done);  // of the block before, another one may have been the last
    std::fill(ended, ended + block_threads, false);
    begin_block();
    begin_gates();
    __atomic_add_fetch(&blocks_done, 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &blocks_done, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0);
    unlock_gates();
  } else {
    fault_if_stuck();
    unlock_gates();
    while (__atomic_load_n(&blocks_done, __ATOMIC_ACQUIRE) == seen) sleep_on(&blocks_done, seen);
  }
  ordered_after(&blocks_done);
}

static void* thread_main(void* number) {
  thread_number = (unsigned)(size_t)number;
  threadIdx = index_of(thread_number, blockDim);
  for (size_t block : *work.sequence) {
    blockIdx = index_of(block, gridDim);
    work.call(work.arguments);
    between_blocks();
  }
  return nullptr;
}

static void run_blocks(const std::vector<size_t>& sequence, KernelCall call,
                       const emu_argument* arguments, int) {
  work = {&sequence, call, arguments};
  std::fill(ended, ended + block_threads, false);
  std::fill(waiting, waiting + block_threads, Waiting());
  threads_waiting = 0;
  begin_block();
  begin_gates();
  std::vector<pthread_t> threads(block_threads);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  for (size_t i = 0; i < block_threads; i++) {
    if (pthread_create(&threads[i], &attributes, thread_main, (void*)i)) {
      emu_fault("internal", "the system gives only %zu threads", i);
    }
  }
  for (pthread_t& thread : threads) pthread_join(thread, nullptr);
}
