// SPDX-License-Identifier: Apache-2.0
/* All that kernels need when they run: threads, scratch memory, checks of arguments, a line about
   what went wrong. C11; one of CONV_KERNELS_OPENMP, CONV_KERNELS_PTHREADS and CONV_KERNELS_SERIAL
   is defined. */

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sched_getaffinity */
#endif

#include "conv_kernels.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conv_kernels_call.h"

/* ------------------------------------------------------------------ errors */

static _Thread_local char last_error[512];

const char* conv_last_error(void) { return last_error; }

const char* conv_status_text(int status) {
  switch (status) {
    case CONV_OK:
      return "no error";
    case CONV_NULL_POINTER:
      return "an argument is a null pointer";
    case CONV_MISALIGNED:
      return "an argument is not a multiple of the size of its elements";
    case CONV_OVERLAP:
      return "the result overlaps an operand";
    case CONV_NO_MEMORY:
      return "there is no scratch memory";
    case CONV_FAILED:
      return "the kernel refused its arguments";
    default:
      return "no status of a kernel";
  }
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int fail(int status, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_error, sizeof last_error, format, values);
  va_end(values);
  return status;
}

/* Kernels compare their arguments with what they were built for, and say here what differs. */
void conv_kernels_set_error(const char* kind, const char** parts, int32_t count) {
  size_t used = (size_t)snprintf(last_error, sizeof last_error, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof last_error; ++i) {
    if (parts[i]) {
      used += (size_t)snprintf(last_error + used, sizeof last_error - used, "%s", parts[i]);
    }
  }
}

/* ------------------------------------------------------------------ threads */

/* What a kernel's tasks are handed: their number decides which part of the work each does. */
typedef struct {
  void* sync_handle;
  int32_t num_task;
} Environment;

typedef int (*Task)(int number, Environment* environment, void* closure);

static atomic_int most_threads;

void conv_set_threads(int threads) { atomic_store(&most_threads, threads > 0 ? threads : 0); }

#if defined(CONV_KERNELS_OPENMP)

#include <omp.h>

int conv_get_threads(void) {
  int threads = atomic_load(&most_threads);
  return threads ? threads : omp_get_max_threads();
}

static int launch(Task task, void* closure, int tasks) {
  int failed = 0;
  if (tasks <= 0) tasks = conv_get_threads();
  Environment environment = {NULL, tasks};
#pragma omp parallel for num_threads(tasks) schedule(static, 1) reduction(| : failed)
  for (int i = 0; i < tasks; ++i) failed |= task(i, &environment, closure) != 0;
  return failed ? -1 : 0;
}

#elif defined(CONV_KERNELS_PTHREADS)

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static int usable_processors(void) {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

int conv_get_threads(void) {
  int threads = atomic_load(&most_threads);
  return threads ? threads : usable_processors();
}

/* A call that is under way: it lives on the stack of its caller, who waits until nothing is left.
   Everything here is read and written under `lock`. */
typedef struct Job {
  Task task;
  void* closure;
  Environment environment;
  int next, left, failed; /* the next task to begin, tasks that have not ended */
  pthread_cond_t ended;
  struct Job* after;
} Job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begun = PTHREAD_COND_INITIALIZER;
static Job* jobs; /* with tasks that nobody has begun */
static int workers;

/* Begin and end one task of a job of `jobs`. */
static void run_one(Job* job) {
  int number = job->next++;
  if (job->next == job->environment.num_task) {
    Job** place = &jobs;
    while (*place != job) place = &(*place)->after;
    *place = job->after;
  }
  pthread_mutex_unlock(&lock);
  int failed = job->task(number, &job->environment, job->closure) != 0;
  pthread_mutex_lock(&lock);
  job->failed |= failed;
  if (--job->left == 0) pthread_cond_signal(&job->ended);
}

static void* work(void* none) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (jobs == NULL) pthread_cond_wait(&begun, &lock);
    run_one(jobs);
  }
  return none;
}

/* A forked child has no workers: it starts its own when it needs them. */
static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
  jobs = NULL;
  workers = 0;
  pthread_cond_init(&begun, NULL);
  pthread_mutex_init(&lock, NULL);
}

static void start_workers(int wanted) {
  static int watches_forks;
  if (!watches_forks) watches_forks = pthread_atfork(before_fork, after_fork, in_child) == 0;
  pthread_attr_t detached;
  if (workers >= wanted || pthread_attr_init(&detached) != 0) return;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  pthread_t thread;
  /* Where no more can be started, those that there are do all tasks, or the caller alone does. */
  while (workers < wanted && pthread_create(&thread, &detached, work, NULL) == 0) ++workers;
  pthread_attr_destroy(&detached);
}

static int launch(Task task, void* closure, int tasks) {
  if (tasks <= 0) tasks = conv_get_threads();
  Job job = {task, closure, {NULL, tasks}, 0, tasks, 0, PTHREAD_COND_INITIALIZER, NULL};
  if (tasks == 1) return task(0, &job.environment, closure) ? -1 : 0;
  pthread_mutex_lock(&lock);
  start_workers(tasks - 1);
  Job** last = &jobs;
  while (*last) last = &(*last)->after;
  *last = &job;
  pthread_cond_broadcast(&begun);
  while (job.next < tasks) run_one(&job);
  while (job.left) pthread_cond_wait(&job.ended, &lock);
  pthread_mutex_unlock(&lock);
  pthread_cond_destroy(&job.ended);
  return job.failed ? -1 : 0;
}

#else

int conv_get_threads(void) { return 1; }

static int launch(Task task, void* closure, int tasks) {
  int failed = 0;
  if (tasks <= 0) tasks = 1;
  Environment environment = {NULL, tasks};
  for (int i = 0; i < tasks; ++i) failed |= task(i, &environment, closure) != 0;
  return failed ? -1 : 0;
}

#endif

/* ------------------------------------------------------------------ scratch memory */

enum { LINE = 64 }; /* bytes of a cache line, and of the longest vector */

static void* allocate(int device_type, int device_id, uint64_t bytes, int code, int bits) {
  (void)device_type, (void)device_id, (void)code, (void)bits;
  if (bytes > SIZE_MAX - LINE) return NULL;
  return aligned_alloc(LINE, (size_t)(bytes + LINE - 1) / LINE * LINE);
}

static int release(int device_type, int device_id, void* memory) {
  (void)device_type, (void)device_id;
  free(memory);
  return 0;
}

/* Kernels call these by pointers, which TVM's loader would set. */
int (*conv_kernels_launch)(Task, void*, int) = launch;
void* (*conv_kernels_allocate)(int, int, uint64_t, int, int) = allocate;
int (*conv_kernels_release)(int, int, void*) = release;

/* ------------------------------------------------------------------ float16 */

#if defined(__riscv)
/* Processors of RISC-V without float16 convert it by calls, for which it lies in the lower half of
   a register of float32, all other bits set. */

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

float conv_widen(float held) {
  uint32_t bits = bits_of(held) & 0xffff, rest = bits & 0x7fff, sign = (bits ^ rest) << 16;
  if (rest >= 0x7c00) return of_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);
  if (rest >= 0x400) return of_bits(sign | ((rest << 13) + 0x38000000));
  return of_bits(sign | bits_of((float)rest * 0x1p-24f));
}

float conv_narrow(float value) {
  uint32_t bits = bits_of(value), rest = bits & 0x7fffffff, sign = (bits ^ rest) >> 16, half;
  if (rest > 0x7f800000) {
    half = 0x7e00; /* not a number */
  } else if (rest >= 0x477ff000) {
    half = 0x7c00; /* halfway behind the largest number, or more: infinity */
  } else if (rest < 0x38800000) {
    /* Below the normal range: the sum is rounded to multiples of 2^-24, to the nearest. */
    half = bits_of(of_bits(rest) + 0.5f) - 0x3f000000;
  } else {
    half = (rest + 0xfff + (rest >> 13 & 1) - 0x38000000) >> 13;
  }
  return of_bits(0xffff0000 | sign | half);
}

/* By way of float32, which is rounded to odd: so that what is lost shows in the last bit, and the
   second rounding is as if it were the only one. */
float conv_narrowd(double value) {
  float nearest = (float)value;
  uint32_t bits = bits_of(nearest);
  if (nearest == nearest && (double)nearest != value) {
    double size = nearest < 0 ? -(double)nearest : (double)nearest;
    bits -= size > (value < 0 ? -value : value); /* towards zero */
    bits |= 1;
  }
  return conv_narrow(of_bits(bits));
}
#endif

/* ------------------------------------------------------------------ calls */

/* DLTensor of DLPack 1, and TVMFFIAny of apache-tvm-ffi 0.1. */
typedef struct {
  const void* data;
  int32_t device_type, device_id;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  const int64_t *shape, *strides;
  uint64_t byte_offset;
} Tensor;

typedef struct {
  int32_t type, padding;
  union {
    int64_t number;
    const void* pointer;
  } value;
} Any;

enum { ON_CPU = 1, TENSOR = 7 };

static uintptr_t bytes_of(const conv_kernels_argument* argument) {
  uintptr_t bytes = argument->bits / 8;
  for (int32_t i = 0; i < argument->rank; ++i) bytes *= (uintptr_t)argument->shape[i];
  return bytes;
}

static int check(const char* kernel, const conv_kernels_argument* arguments,
                 const void* const* pointers, int count) {
  last_error[0] = '\0';
  for (int i = 0; i < count; ++i) {
    const char* name = arguments[i].name;
    unsigned width = arguments[i].bits / 8u;
    if (!pointers[i]) {
      return fail(CONV_NULL_POINTER, "%s: %s must not be a null pointer", kernel, name);
    }
    if ((uintptr_t)pointers[i] % width) {
      return fail(CONV_MISALIGNED, "%s: %s=%p must be a multiple of %u bytes", kernel, name,
                  pointers[i], width);
    }
  }
  uintptr_t result = (uintptr_t)pointers[count - 1], size = bytes_of(&arguments[count - 1]);
  for (int i = 0; i < count - 1; ++i) {
    uintptr_t operand = (uintptr_t)pointers[i];
    if (operand < result + size && result < operand + bytes_of(&arguments[i])) {
      return fail(CONV_OVERLAP, "%s: %s must not overlap %s", kernel, arguments[count - 1].name,
                  arguments[i].name);
    }
  }
  return CONV_OK;
}

int conv_kernels_call(const char* kernel, conv_kernels_entry entry,
                      const conv_kernels_argument* arguments, const void* const* pointers,
                      int count) {
  int status = check(kernel, arguments, pointers, count);
  if (status) return status;
  Tensor tensors[CONV_KERNELS_MOST_ARGUMENTS];
  Any values[CONV_KERNELS_MOST_ARGUMENTS], none = {0, 0, {0}};
  for (int i = 0; i < count; ++i) {
    const conv_kernels_argument* one = &arguments[i];
    Tensor tensor = {pointers[i], ON_CPU, 0, one->rank, one->code, one->bits, 1, one->shape, NULL, 0};
    Any value = {TENSOR, 0, {0}};
    value.value.pointer = &tensors[i];
    tensors[i] = tensor;
    values[i] = value;
  }
  if (entry(NULL, values, count, &none) == 0) return CONV_OK;
  /* A kernel that refuses its arguments says why; without memory it says nothing. */
  return last_error[0] ? CONV_FAILED : fail(CONV_NO_MEMORY, "%s: there is no scratch memory", kernel);
}

int conv_kernels_copy(const char* kernel, const conv_kernels_argument* arguments,
                      const void* const* pointers) {
  int status = check(kernel, arguments, pointers, 2);
  if (status) return status;
  /* The last pointer is the result's, which a caller passed as one that may be written to. */
  memcpy((void*)(uintptr_t)pointers[1], pointers[0], bytes_of(&arguments[1]));
  return CONV_OK;
}
