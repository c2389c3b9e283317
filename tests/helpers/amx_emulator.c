/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the AMX instructions of a process whose processor has none.
 *
 * Preloaded, it grants the permission that kernels ask Linux for, and takes over where the processor
 * stops at an instruction that it does not know: LDTILECFG, TILERELEASE, TILEZERO, TILELOADD,
 * TILESTORED, TDPBF16PS and TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD are read from the instruction's bytes and done on tiles in memory.  What
 * a processor would refuse (a tile that is not configured, sizes that do not match) ends the process
 * with a line that says so.  With AMX_EMULATOR_REFUSES set, it grants nothing.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volumes 1 (chapter 18) and 2.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

typedef struct {
  int rows, bytes;
  unsigned char data[16][64];
} Tile;

static __thread Tile tiles[8];
static __thread int configured;
static unsigned long products;

static void fail(const char *why) {
  fprintf(stderr, "AMX emulator: %s\n", why);
  _exit(3);
}

/* ---------------------------------------------------------------- permission */

long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
  long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
  va_end(list);
  if (number == 158 && a == 0x1023 && b == 18 && !getenv("AMX_EMULATOR_REFUSES")) return 0;
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  long result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  if (result < 0 && result > -4096) {
    errno = (int)-result;
    return -1;
  }
  return result;
}

/* ---------------------------------------------------------------- instructions */

static void configure(const unsigned char *table) {
  if (table[0] != 1 || table[1] != 0) fail("a palette other than 1");
  for (int i = 0; i < 8; i++) {
    Tile *tile = &tiles[i];
    tile->rows = table[48 + i];
    tile->bytes = table[16 + 2 * i] | table[17 + 2 * i] << 8;
    if (tile->rows > 16 || tile->bytes > 64) fail("a tile that is too large");
    if (!tile->rows != !tile->bytes) fail("a tile of rows without columns");
    memset(tile->data, 0, sizeof tile->data);
  }
  configured = 1;
}

static Tile *tile_of(int number) {
  if (number > 7) fail("a tile that does not exist");
  if (!configured || !tiles[number].rows) fail("a tile that is not configured");
  return &tiles[number];
}

static float flushed(float value) { return fpclassify(value) == FP_SUBNORMAL ? 0.0f : value; }

static float widened(const unsigned char *at) {
  uint32_t bits = (uint32_t)(at[0] | at[1] << 8) << 16;
  float value;
  memcpy(&value, &bits, 4);
  return flushed(value);
}

static void check_sizes(const Tile *sums, const Tile *a, const Tile *b) {
  if (a->bytes / 4 != b->rows || sums->rows != a->rows || sums->bytes != b->bytes)
    fail("tiles whose sizes do not match");
}

static uint32_t byte_of(unsigned char byte, int is_signed) {
  return is_signed ? (uint32_t)(signed char)byte : byte;
}

static void multiply_bytes(Tile *sums, const Tile *a, const Tile *b, int signed_a, int signed_b) {
  check_sizes(sums, a, b);
  for (int m = 0; m < sums->rows; m++)
    for (int p = 0; p < b->rows; p++)
      for (int n = 0; n < sums->bytes / 4; n++) {
        uint32_t sum;
        memcpy(&sum, &sums->data[m][4 * n], 4);
        for (int i = 0; i < 4; i++)
          sum += byte_of(a->data[m][4 * p + i], signed_a) * byte_of(b->data[p][4 * n + i], signed_b);
        memcpy(&sums->data[m][4 * n], &sum, 4);
      }
  __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
}

static void multiply(Tile *sums, const Tile *a, const Tile *b) {
  check_sizes(sums, a, b);
  for (int m = 0; m < sums->rows; m++)
    for (int p = 0; p < b->rows; p++)
      for (int n = 0; n < sums->bytes / 4; n++)
        for (int odd = 0; odd < 2; odd++) {
          float sum;
          memcpy(&sum, &sums->data[m][4 * n], 4);
          const float left = widened(&a->data[m][4 * p + 2 * odd]);
          sum = flushed(fmaf(left, widened(&b->data[p][4 * n + 2 * odd]), flushed(sum)));
          memcpy(&sums->data[m][4 * n], &sum, 4);
        }
  __atomic_add_fetch(&products, 1, __ATOMIC_RELAXED);
}

static greg_t register_of(const ucontext_t *context, int number) {
  static const int names[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return context->uc_mcontext.gregs[names[number]];
}

static void on_illegal(int signal_number, siginfo_t *info, void *context_) {
  (void)signal_number, (void)info;
  ucontext_t *context = context_;
  unsigned char *start = (unsigned char *)context->uc_mcontext.gregs[REG_RIP], *code = start;
  if (code[0] != 0xC4 || (code[1] & 31) != 2 || code[2] & 0x84)
    fail("an illegal instruction that is not AMX's");
  const int high_reg = !(code[1] & 128), high_index = !(code[1] & 64), high_base = !(code[1] & 32);
  const int other = ~(code[2] >> 3) & 15, prefix = code[2] & 3, opcode = code[3], modrm = code[4];
  const int mode = modrm >> 6, reg = (modrm >> 3 & 7) | high_reg << 3, rm = modrm & 7;
  code += 5;
  unsigned char *address = NULL;
  greg_t step = 0;
  if (mode != 3) {
    int base = rm, has_base = 1;
    if (rm == 4) {
      const int sib = *code++, index = (sib >> 3 & 7) | high_index << 3;
      base = sib & 7;
      if (index != 4) step = register_of(context, index) << (sib >> 6);
    } else if (opcode == 0x4B) {
      fail("a tile in memory without a step");
    }
    if (mode == 0 && base == 5) has_base = 0;
    if (has_base) address = (unsigned char *)register_of(context, base | high_base << 3);
    int32_t offset = 0;
    if (mode == 1) {
      offset = (signed char)*code++;
    } else if (mode == 2 || !has_base) {
      memcpy(&offset, code, 4);
      code += 4;
    }
    address += offset;
    if (mode == 0 && rm == 5) address += (greg_t)code;
  }
  if (opcode == 0x49 && prefix == 0 && mode != 3) {
    configure(address);
  } else if (opcode == 0x49 && prefix == 0) {
    memset(tiles, 0, sizeof tiles);
    configured = 0;
  } else if (opcode == 0x49 && prefix == 3 && mode == 3) {
    Tile *tile = tile_of(reg);
    memset(tile->data, 0, sizeof tile->data);
  } else if (opcode == 0x4B && prefix >= 1 && mode != 3) {
    Tile *tile = tile_of(reg);
    if (prefix != 2) memset(tile->data, 0, sizeof tile->data);
    for (int row = 0; row < tile->rows; row++, address += step)
      if (prefix == 2)
        memcpy(address, tile->data[row], (size_t)tile->bytes);
      else
        memcpy(tile->data[row], address, (size_t)tile->bytes);
  } else if (opcode == 0x5C && prefix == 2 && mode == 3) {
    multiply(tile_of(reg), tile_of(rm | high_base << 3), tile_of(other));
  } else if (opcode == 0x5E && mode == 3) {
    multiply_bytes(tile_of(reg), tile_of(rm | high_base << 3), tile_of(other), prefix >= 2, prefix & 1);
  } else {
    fail("an instruction of AMX that it does not know");
  }
  context->uc_mcontext.gregs[REG_RIP] += code - start;
}

__attribute__((destructor)) static void end(void) {
  fprintf(stderr, "AMX emulator: %lu products\n", products);
}

__attribute__((constructor)) static void start(void) {
  struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGILL, &action, NULL);
}
