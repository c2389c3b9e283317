// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a launch: threads, barriers, shared memory, and what lanes of a warp do
// together. One of EMU_FIBERS (threads of a block take turns) and EMU_THREADS (each is a thread of
// the system) is defined. This file is compiled without instrumentation by ThreadSanitizer; where it
// touches memory of a kernel it says so by emu_read and emu_write.
#include "cuda_emulator.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

// Where in the program the access is that a fault is about; null: not known.
static EMU_OF_THREAD const void* fault_site;

#include "memory.h"
#include "threads.h"
#include "warp.h"

// ---- faults ---------------------------------------------------------------------------------

static char fault_text[2000];
extern "C" const char __executable_start;  // by the linker

static void print_position(char* text, size_t size) {
  const char* kernel = running_kernel ? running_kernel : "";
  snprintf(text, size, "%s\t%u,%u,%u\t%u,%u,%u", kernel, blockIdx.x, blockIdx.y, blockIdx.z,
           threadIdx.x, threadIdx.y, threadIdx.z);
}

// One line that the process above reads; nothing here allocates, since a handler calls it.
void emu_fault(const char* kind, const char* format, ...) {
  char position[300], message[1000];
  print_position(position, sizeof position);
  va_list given;
  va_start(given, format);
  vsnprintf(message, sizeof message, format, given);
  va_end(given);
  size_t site = fault_site ? (size_t)((const char*)fault_site - &__executable_start) : 0;
  int size = snprintf(fault_text, sizeof fault_text, "\nFAULT\t%s\t%s\t%zx\t%s\n", kind, position,
                      site, message);
  if (write(2, fault_text, (size_t)size) < 0) _exit(71);
  _exit(70);
}

// Where a sanitizer's own report stands.
static void say_position() {
  char position[300];
  print_position(position, sizeof position);
  int size = snprintf(fault_text, sizeof fault_text, "\nAT\t%s\n", position);
  if (write(2, fault_text, (size_t)size) < 0) _exit(71);
}

static const void* site_of(void* context) {
#if defined(__x86_64__)
  return (const void*)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
  return (const void*)((ucontext_t*)context)->uc_mcontext.pc;
#else
  return nullptr;
#endif
}

static void on_signal(int number, siginfo_t* info, void* context) {
  char where[400];
  fault_site = site_of(context);
  if (number == SIGILL || number == SIGTRAP || number == SIGBUS) {
    emu_fault("misaligned", "access through a pointer that its type's alignment does not allow");
  } else if (number == SIGFPE) {
    emu_fault("division", "integer division by zero");
  } else if (info->si_code == SI_KERNEL) {
    emu_fault("misaligned", "vector access at an address that is no multiple of its size, "
                            "or at no address at all");
  }
  describe_address(where, sizeof where, info->si_addr);
  emu_fault("out-of-bounds", "access %s", where);
}

static void catch_signals() {
  static char stack[64 << 10];
  stack_t other = {};
  other.ss_sp = stack;
  other.ss_size = sizeof stack;
  sigaltstack(&other, nullptr);
  struct sigaction action = {};
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  for (int number : {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE}) sigaction(number, &action, nullptr);
}

#ifdef EMU_ASAN
extern "C" {
void* __asan_get_report_address();
int __asan_get_report_access_type();
size_t __asan_get_report_access_size();
const char* __asan_get_report_description();
void __ubsan_on_report() { say_position(); }
void __asan_on_error() {
  char where[400];
  describe_address(where, sizeof where, __asan_get_report_address());
  emu_fault("out-of-bounds", "%s of %zu bytes %s (%s)",
            __asan_get_report_access_type() ? "write" : "read", __asan_get_report_access_size(),
            where, __asan_get_report_description());
}
}
#endif
#ifdef EMU_TSAN
extern "C" void __tsan_on_report(void*) { say_position(); }
#endif

// ---- jobs -----------------------------------------------------------------------------------

struct Launch {
  int kernel;
  dim3 grid, block;
  size_t dynamic_shared;
  std::vector<emu_argument> arguments;
};

static long long number(FILE* file) {
  long long value;
  if (fscanf(file, "%lld", &value) != 1) emu_fault("internal", "the job cannot be read");
  return value;
}

static std::vector<Launch> read_job(const char* path, const char* data_path) {
  FILE* job = fopen(path, "r");
  int data = open(data_path, O_RDWR);
  if (!job || data < 0) emu_fault("internal", "the job cannot be opened");
  most_shared = (size_t)number(job);
  for (long long left = number(job); left > 0; left--) {
    Tensor tensor;
    char name[100];
    tensor.bytes = (size_t)number(job);
    tensor.offset = number(job);
    tensor.shift = (size_t)number(job);
    if (fscanf(job, "%99s", name) != 1) emu_fault("internal", "the job cannot be read");
    tensor.name = name;
    allocate(tensor, data);
    tensors.push_back(tensor);
  }
  close(data);
  std::vector<Launch> launches((size_t)number(job));
  for (Launch& launch : launches) {
    launch.kernel = (int)number(job);
    unsigned sizes[6];
    for (unsigned& size : sizes) size = (unsigned)number(job);
    launch.grid = dim3(sizes[0], sizes[1], sizes[2]);
    launch.block = dim3(sizes[3], sizes[4], sizes[5]);
    launch.dynamic_shared = (size_t)number(job);
    launch.arguments.resize((size_t)number(job));
    for (emu_argument& argument : launch.arguments) {
      char kind;
      if (fscanf(job, " %c", &kind) != 1) emu_fault("internal", "the job cannot be read");
      if (kind == 't') {
        size_t tensor = (size_t)number(job);
        argument.pointer = tensors[tensor].start + number(job);
      } else if (kind == 'i') {
        argument.integer = number(job);
      } else if (fscanf(job, "%la", &argument.real) != 1) {
        emu_fault("internal", "the job cannot be read");
      }
    }
  }
  fclose(job);
  return launches;
}

static void write_results(const char* data_path) {
  int data = open(data_path, O_RDWR);
  for (const Tensor& tensor : tensors) {
    for (size_t done = 0; tensor.offset >= 0 && done < tensor.bytes;) {
      ssize_t wrote = pwrite(data, tensor.start + done, tensor.bytes - done,
                             tensor.offset + (off_t)done);
      if (wrote <= 0) emu_fault("internal", "the results cannot be written");
      done += (size_t)wrote;
    }
  }
  close(data);
}

static void run(const Launch& launch, int order) {
  running_kernel = emu_kernels[launch.kernel].name;
  gridDim = launch.grid;
  blockDim = launch.block;
  size_t blocks = (size_t)gridDim.x * gridDim.y * gridDim.z;
  begin_launch(launch.dynamic_shared, blockDim.x * blockDim.y * blockDim.z);
  watch_begin_launch();
  std::vector<size_t> sequence(blocks);
  for (size_t i = 0; i < blocks; i++) sequence[i] = order == 1 ? blocks - 1 - i : i;
  if (order > 1) std::shuffle(sequence.begin(), sequence.end(), std::mt19937((unsigned)order));
  run_blocks(sequence, emu_kernels[launch.kernel].call, launch.arguments.data(), order);
  watch_end_launch();
  blockIdx = threadIdx = {0, 0, 0};
  check_margins();
}

int main(int count, char** given) {
  if (count != 4) return 72;
  int order = atoi(given[3]);
  catch_signals();
  reserve_memory();
  watch_reserve();
  for (const Launch& launch : read_job(given[1], given[2])) run(launch, order);
  running_kernel = nullptr;
  write_results(given[2]);
  fflush(nullptr);
  _exit(0);
}
