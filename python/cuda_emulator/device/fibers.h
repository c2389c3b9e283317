// SPDX-License-Identifier: Apache-2.0
// Threads of a block as fibers: each runs until it has to wait, then the next one does.
#pragma once

#if defined(EMU_UCONTEXT)
// To try what other processors take.
#elif defined(__x86_64__)
// Keeps what a call keeps. swapcontext would ask the system for the mask of signals each time.
asm(R"(
.text
.p2align 4
.globl emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_switch,.-emu_switch
)");
static const size_t SAVED_WORDS = 6;
#define EMU_OWN_SWITCH
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl emu_switch
.type emu_switch,%function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch,.-emu_switch
)");
static const size_t SAVED_WORDS = 20, RETURN_WORD = 11;
#define EMU_OWN_SWITCH
#endif

static KernelCall current_call;
static const emu_argument* current_arguments;

#ifdef EMU_ASAN
extern "C" void __sanitizer_start_switch_fiber(void**, const void*, size_t);
extern "C" void __sanitizer_finish_switch_fiber(void*, const void**, size_t*);
#endif
static const size_t STACK = 256 << 10;
static char* stacks;
static const void* scheduler_stack;
static size_t scheduler_stack_size;

static void fiber_arrived() {
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_size);
#endif
}

static void leave_fiber();

static void fiber_main() {
  fiber_arrived();
  current_call(current_arguments);
  ended[thread_number] = true;
  for (;;) leave_fiber();
}

#ifdef EMU_OWN_SWITCH
extern "C" void emu_switch(void** keep, void* go_on);
static void *fiber_places[1024], *scheduler_place;

static void prepare_fiber(unsigned number) {
  void** top = (void**)(stacks + (number + 1) * STACK) - 2;
#ifdef __x86_64__
  *--top = nullptr;  // where fiber_main would return to; keeps the stack aligned as after a call
  *--top = (void*)fiber_main;
  top -= SAVED_WORDS;
  std::fill(top, top + SAVED_WORDS, nullptr);
#else
  top -= SAVED_WORDS;
  std::fill(top, top + SAVED_WORDS, nullptr);
  top[RETURN_WORD] = (void*)fiber_main;
#endif
  fiber_places[number] = top;
}
static void jump_to_fiber(unsigned number) { emu_switch(&scheduler_place, fiber_places[number]); }
static void jump_to_scheduler() { emu_switch(&fiber_places[thread_number], scheduler_place); }
#else
#include <ucontext.h>
static ucontext_t fiber_places[1024], scheduler_place;

static void prepare_fiber(unsigned number) {
  getcontext(&fiber_places[number]);
  fiber_places[number].uc_stack.ss_sp = stacks + number * STACK;
  fiber_places[number].uc_stack.ss_size = STACK;
  makecontext(&fiber_places[number], fiber_main, 0);
}
static void jump_to_fiber(unsigned number) { swapcontext(&scheduler_place, &fiber_places[number]); }
static void jump_to_scheduler() { swapcontext(&fiber_places[thread_number], &scheduler_place); }
#endif

static void enter_fiber(unsigned number) {
#ifdef EMU_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, stacks + number * STACK, STACK);
#endif
  jump_to_fiber(number);
#ifdef EMU_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

static void leave_fiber() {
#ifdef EMU_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_stack_size);
#endif
  jump_to_scheduler();
  fiber_arrived();
}

static void lock_gates() {}
static void unlock_gates() {}
static void wake(const unsigned*) {}
static void ordered_before(void*) {}
static void ordered_after(void*) {}

static void wait_until_changed(const unsigned* word, unsigned seen, const char* what, int line) {
  waiting[thread_number] = {what, line, word, seen};
  while (*word == seen) leave_fiber();
  waiting[thread_number].what = nullptr;
}

static void run_block(std::vector<unsigned>& turns, bool shuffled, std::mt19937& random) {
  for (unsigned i = 0; i < block_threads; i++) {
    prepare_fiber(i);
    ended[i] = false;
    waiting[i].what = nullptr;
  }
  for (unsigned left = block_threads; left;) {
    if (shuffled) std::shuffle(turns.begin(), turns.end(), random);
    bool went_on = false;
    for (unsigned i : turns) {
      if (ended[i] || (waiting[i].what && *waiting[i].word == waiting[i].seen)) continue;
      thread_number = i;
      threadIdx = index_of(i, blockDim);
      enter_fiber(i);
      went_on = true;
      left -= ended[i];
    }
    if (left && !went_on) fault_stuck();
  }
}

static void begin_gates();

static void run_blocks(const std::vector<size_t>& sequence, KernelCall call,
                       const emu_argument* arguments, int order) {
  if (!stacks) {
    void* room = mmap(nullptr, 1024 * STACK, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) emu_fault("internal", "no room for stacks");
    stacks = (char*)room;
  }
  current_call = call;
  current_arguments = arguments;
  std::vector<unsigned> turns(block_threads);
  for (unsigned i = 0; i < block_threads; i++) turns[i] = order == 1 ? block_threads - 1 - i : i;
  std::mt19937 random((unsigned)order);
  for (size_t block : sequence) {
    blockIdx = index_of(block, gridDim);
    begin_block();
    begin_gates();
    run_block(turns, order > 1, random);
  }
}
