// SPDX-License-Identifier: Apache-2.0
/* Wrong arguments, no memory, no threads, forks: prints a line for each fault, and ends with 0 where
   all the others of a program's doings are right. Kernels: up (bias, packed) and grad. */

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "grad.h"
#include "up.h"

static int without_memory, without_threads;

void* __real_aligned_alloc(size_t alignment, size_t bytes);
void* __wrap_aligned_alloc(size_t alignment, size_t bytes) {
  return without_memory ? NULL : __real_aligned_alloc(alignment, bytes);
}

#ifndef SHARED_THREADS
int __real_pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int __wrap_pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                          void* argument) {
  return without_threads ? EAGAIN : __real_pthread_create(thread, attributes, run, argument);
}
#endif

static float data[UP_DATA_ELEMENTS + 1], weight[UP_WEIGHT_ELEMENTS], bias[UP_OPERAND0_ELEMENTS];
static float packed[UP_PACKED_ELEMENTS], result[UP_RESULT_ELEMENTS], again[UP_RESULT_ELEMENTS];

static void say(int status) { printf("%d %s\n", status, conv_last_error()); }

static int same(void) {
  memset(again, 55, sizeof again);
  int status = up(data, packed, bias, again);
  return status == CONV_OK && !*conv_last_error() && !memcmp(again, result, sizeof result);
}

static int same_in_child(void) {
  pid_t child = fork();
  if (child == 0) {
    alarm(20); /* a child that hangs dies */
    _exit(!(same() && same()));
  }
  int status;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int main(void) {
  for (int i = 0; i <= UP_DATA_ELEMENTS; ++i) data[i] = (float)(i * 7919 % 13 - 6);
  for (int i = 0; i < UP_WEIGHT_ELEMENTS; ++i) weight[i] = (float)(i * 104729 % 11 - 5);
  for (int i = 0; i < UP_OPERAND0_ELEMENTS; ++i) bias[i] = (float)i;
  int right = 1;
  conv_set_threads(1);
  right &= conv_get_threads() == 1;
  right &= up_pack(weight, packed) == CONV_OK && up(data, packed, bias, result) == CONV_OK;
  without_threads = 1;
  conv_set_threads(3);
  right &= conv_get_threads() == (EXPECT_THREADS ? 3 : 1) && same();
  without_threads = 0;
  for (int threads = 1; threads < 7; ++threads) {
    conv_set_threads(threads);
    right &= same();
  }
  if (CAN_FORK) right &= same_in_child() && same();
  conv_set_threads(-1);
  right &= conv_get_threads() >= 1 && same();

  say(up(NULL, packed, bias, result));
  say(up(data, packed, bias, NULL));
  say(up((const float*)((const char*)data + 2), packed, bias, again));
  say(up(data, packed, again + 5, again));
  say(up(again + 9, packed, bias, again));
  say(up_pack(packed + 1, packed));
  say(grad(data, data, data));
  without_memory = 1;
  say(up(data, packed, bias, again));
  without_memory = 0;
  right &= same(); /* and the line is empty again */
  for (int status = -1; status < 7; ++status) puts(conv_status_text(status));
  return !right;
}
