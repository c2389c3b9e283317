// SPDX-License-Identifier: Apache-2.0
/* The threads of the runtime alone: several callers at once, more tasks than threads, tasks that
   take different times, tasks that fail. Each task of each call has to run exactly once. */

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conv_kernels.h"

enum { CALLERS = 4, CALLS = 60, TASKS = 7 };

typedef struct {
  void* sync_handle;
  int number;
} Environment;

typedef struct {
  int runs[TASKS], tasks[TASKS], fails;
} Closure;

extern int (*conv_kernels_launch)(int (*)(int, Environment*, void*), void*, int);

static int task(int number, Environment* environment, void* closure) {
  Closure* one = closure;
  one->runs[number] += 1;
  one->tasks[number] = environment->number;
  for (int i = 0; i < number; ++i) sched_yield();
  if (number % 3 == 0) usleep(50);
  return number == one->fails ? -1 : 0;
}

static void* call(void* right) {
  for (int i = 0; i < CALLS; ++i) {
    Closure one;
    memset(&one, 0, sizeof one);
    one.fails = i % 5 ? TASKS : i % TASKS;
    int status = conv_kernels_launch(task, &one, TASKS);
    if (status != (i % 5 ? 0 : -1)) *(int*)right = 0;
    for (int j = 0; j < TASKS; ++j) {
      if (one.runs[j] != 1 || one.tasks[j] != TASKS) *(int*)right = 0;
    }
  }
  return NULL;
}

int main(void) {
  pthread_t callers[CALLERS];
  int right[CALLERS];
  for (int i = 0; i < CALLERS; ++i) {
    right[i] = 1;
    if (pthread_create(&callers[i], NULL, call, &right[i])) return 2;
  }
  int all = 1;
  for (int i = 0; i < CALLERS; ++i) {
    pthread_join(callers[i], NULL);
    all &= right[i];
  }
  puts(all ? "right" : "wrong");
  return !all;
}
