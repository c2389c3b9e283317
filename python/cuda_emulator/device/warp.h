// SPDX-License-Identifier: Apache-2.0
// Barriers, and what lanes of a warp do together. Fragments lie as the PTX ISA describes them.
#pragma once

struct BlockGate {
  unsigned passed, arrived;
  int line;
};
struct WarpGate {
  unsigned passed[32];  // by each lane
  unsigned masks[32];   // of those who wait
  const char* what[32];
  unsigned arrived;
};
struct Lane {
  uint64_t word;
  unsigned a[4], b[2];
  const char* row;
};
static BlockGate block_gate;
static WarpGate warp_gates[32];
static Lane lanes[1024];

struct Copy {
  char* to;
  const char* from;
  int bytes, taken;
};
static std::vector<std::vector<Copy>> copies[1024];  // of each thread: groups, the last one open

#ifdef EMU_WATCH
static void watch_block_barrier();
static void watch_warp_barrier(unsigned warp);
static void watch_begin_block();
static void watch_begin_launch();
static void watch_end_launch();
static void expect(const char* start, size_t bytes);
static void watch_reserve();
#else
static void watch_block_barrier() {}
static void watch_warp_barrier(unsigned) {}
static void watch_begin_block() {}
static void watch_begin_launch() {}
static void watch_end_launch() {}
static void expect(const char*, size_t) {}
static void watch_reserve() {}
#endif

static unsigned warp_number() { return thread_number / 32; }
unsigned emu_lane() { return thread_number % 32; }
static Lane* warp_lanes() { return lanes + thread_number / 32 * 32; }
static Lane& own_lane() { return lanes[thread_number]; }

static unsigned existing_lanes() {
  unsigned count = std::min(32u, block_threads - warp_number() * 32);
  return count == 32 ? ~0u : (1u << count) - 1;
}

unsigned emu_active_mask() {
  unsigned mask = existing_lanes();
  for (unsigned i = 0; i < 32; i++) {
    unsigned thread = warp_number() * 32 + i;
    if (thread < block_threads && ended[thread]) mask &= ~(1u << i);
  }
  return mask;
}

static void begin_gates() {
  block_gate = BlockGate();
  for (unsigned i = 0; i < (block_threads + 31) / 32; i++) warp_gates[i] = WarpGate();
  for (unsigned i = 0; i < block_threads; i++) copies[i].assign(1, {});
  watch_begin_block();
}

void emu_block_barrier(int line) {
  lock_gates();
  if (block_gate.arrived && block_gate.line != line) {
    emu_fault("divergence", "threads of a block wait at __syncthreads of line %d and of line %d",
              block_gate.line, line);
  }
  block_gate.line = line;
  unsigned seen = block_gate.passed;
  ordered_before(&block_gate);
  if (++block_gate.arrived == block_threads) {
    block_gate.arrived = 0;
    watch_block_barrier();
    __atomic_add_fetch(&block_gate.passed, 1, __ATOMIC_RELEASE);
    wake(&block_gate.passed);
    unlock_gates();
  } else {
    unlock_gates();
    wait_until_changed(&block_gate.passed, seen, "__syncthreads", line);
  }
  ordered_after(&block_gate);
}

static bool all_arrived(const WarpGate& gate, unsigned needed, unsigned mask, const char* what) {
  if ((gate.arrived & needed) != needed) return false;
  for (unsigned i = 0; i < 32; i++) {
    if (!(needed >> i & 1)) continue;
    if (gate.masks[i] != mask || gate.what[i] != what) {
      emu_fault("divergence", "lanes of a warp wait at %s with mask %08x and at %s with mask %08x",
                what, mask, gate.what[i], gate.masks[i]);
    }
  }
  return true;
}

// Lanes meet. Only __syncwarp orders their accesses of memory as well: others merely happen to.
static void meet(unsigned mask, const char* what, int line, bool orders = false) {
  WarpGate& gate = warp_gates[warp_number()];
  unsigned lane = emu_lane(), needed = mask & existing_lanes();
  if (!(mask >> lane & 1)) {
    emu_fault("divergence", "%s of line %d with mask %08x, which leaves out lane %u that calls it",
              what, line, mask, lane);
  }
  lock_gates();
  unsigned seen = gate.passed[lane];
  gate.arrived |= 1u << lane;
  gate.masks[lane] = mask;
  gate.what[lane] = what;
  if (orders) ordered_before(&gate);
  if (all_arrived(gate, needed, mask, what)) {
    gate.arrived &= ~needed;
    if (orders) watch_warp_barrier(warp_number());
    for (unsigned i = 0; i < 32; i++) {
      if (!(needed >> i & 1)) continue;
      __atomic_add_fetch(&gate.passed[i], 1, __ATOMIC_RELEASE);
      wake(&gate.passed[i]);
    }
    unlock_gates();
  } else {
    unlock_gates();
    wait_until_changed(&gate.passed[lane], seen, what, line);
  }
  if (orders) ordered_after(&gate);
}

void emu_warp_barrier(unsigned mask, const char* what, int line) { meet(mask, what, line, true); }

uint64_t emu_shuffle(unsigned mask, uint64_t value, int from, int line) {
  own_lane().word = value;
  meet(mask, "__shfl_sync", line);
  bool takes_part = (mask & existing_lanes()) >> from & 1;
  uint64_t got = takes_part ? warp_lanes()[from].word : ~(uint64_t)0;
  meet(mask, "__shfl_sync", line);
  return got;
}

unsigned emu_vote(unsigned mask, bool value, int line) {
  own_lane().word = value;
  meet(mask, "a vote", line);
  unsigned votes = 0;
  for (unsigned i = 0; i < 32; i++) {
    if ((mask & existing_lanes()) >> i & 1) votes |= (unsigned)warp_lanes()[i].word << i;
  }
  meet(mask, "a vote", line);
  return votes;
}

// ---- copies that arrive later ---------------------------------------------------------------

void emu_copy_async(unsigned to, const void* from, int bytes, int taken) {
  Copy copy = {(char*)emu_from_shared(to), (const char*)from, bytes, taken};
  if (to % (unsigned)bytes || (taken && (size_t)from % (size_t)bytes)) {
    emu_fault("misaligned", "cp.async of %d bytes %s an address that is no multiple of it", bytes,
              to % (unsigned)bytes ? "to" : "from");
  }
  if (taken < 0 || taken > bytes) emu_fault("launch", "cp.async takes %d of %d bytes", taken, bytes);
  emu_write(copy.to, (size_t)bytes);
  memset(copy.to, POISON, (size_t)bytes);  // for whoever reads it before it is waited for
  expect(copy.to, (size_t)bytes);
  copies[thread_number].back().push_back(copy);
}

void emu_copy_commit() { copies[thread_number].emplace_back(); }

void emu_copy_wait(int groups_left) {
  auto& groups = copies[thread_number];
  size_t open = groups_left < 0 ? 0 : 1;  // wait_all waits for what is not committed, too
  size_t left = groups_left < 0 ? 0 : (size_t)groups_left;
  while (groups.size() > left + open) {
    for (const Copy& copy : groups.front()) {
      emu_read(copy.from, (size_t)copy.taken);
      emu_write(copy.to, (size_t)copy.bytes);
      memcpy(copy.to, copy.from, (size_t)copy.taken);
      memset(copy.to + copy.taken, 0, (size_t)(copy.bytes - copy.taken));
    }
    groups.erase(groups.begin());
  }
  if (groups.empty()) groups.emplace_back();
}

// ---- matrices -------------------------------------------------------------------------------

void emu_ldmatrix(unsigned* out, unsigned from, int count, int transposed, int line) {
  if (from % 16) emu_fault("misaligned", "ldmatrix from an address that is no multiple of 16");
  own_lane().row = (const char*)emu_from_shared(from);
  meet(~0u, "ldmatrix", line);
  int lane = (int)emu_lane(), of_four = lane % 4 * 2;
  for (int matrix = 0; matrix < count; matrix++) {
    uint16_t pair[2];
    for (int i = 0; i < 2; i++) {
      int row = transposed ? of_four + i : lane / 4, column = transposed ? lane / 4 : of_four + i;
      const char* element = warp_lanes()[8 * matrix + row].row + 2 * column;
      emu_read(element, 2);
      memcpy(&pair[i], element, 2);
    }
    out[matrix] = pair[0] | (unsigned)pair[1] << 16;
  }
  meet(~0u, "ldmatrix", line);
}

// Hands `a` and `b` to the warp; calls product(row, column, index) for the four sums of this lane.
template <class F>
static void matrix_product(const unsigned* a, int words_a, const unsigned* b, int words_b, int line,
                           F product) {
  std::copy(a, a + words_a, own_lane().a);
  std::copy(b, b + words_b, own_lane().b);
  meet(~0u, "mma", line);
  int lane = (int)emu_lane();
  for (int i = 0; i < 4; i++) product(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2, i);
  meet(~0u, "mma", line);
}
// The words of a row of A and of a column of B that hold the elements from k on. A word holds 4
// bytes of k; a lane's words are rows apart by 8, then k apart by 4 words.
static unsigned word_of_a(int row, int k_word) {
  return warp_lanes()[row % 8 * 4 + k_word % 4].a[row / 8 + k_word / 4 * 2];
}
static unsigned word_of_b(int column, int k_word) {
  return warp_lanes()[column * 4 + k_word % 4].b[k_word / 4];
}
// Tensor cores cut off what float32 does not hold of a sum (Ootomo and Yokota, 2022, section 3).
static float cut_off(double sum) {
  float near = (float)sum;
  bool is_larger = std::isfinite(near) && std::fabs((double)near) > std::fabs(sum);
  return is_larger ? std::nextafter(near, 0.0f) : near;
}
template <class Format>
static float dot_of_halves(int row, int column, double sum) {
  for (int k = 0; k < 8; k++) {
    unsigned a = word_of_a(row, k), b = word_of_b(column, k);
    sum += (double)Format::widen((uint16_t)a) * Format::widen((uint16_t)b);
    sum += (double)Format::widen((uint16_t)(a >> 16)) * Format::widen((uint16_t)(b >> 16));
  }
  return cut_off(sum);
}

void emu_mma_f32_f16(float* sums, const unsigned* a, const unsigned* b, int line) {
  matrix_product(a, 4, b, 2, line, [&](int row, int column, int i) {
    sums[i] = dot_of_halves<emu_half_format>(row, column, sums[i]);
  });
}
void emu_mma_f32_bf16(float* sums, const unsigned* a, const unsigned* b, int line) {
  matrix_product(a, 4, b, 2, line, [&](int row, int column, int i) {
    sums[i] = dot_of_halves<emu_bfloat_format>(row, column, sums[i]);
  });
}
void emu_mma_f16_f16(unsigned* sums, const unsigned* a, const unsigned* b, int line) {
  uint16_t narrow[4];
  memcpy(narrow, sums, sizeof narrow);
  matrix_product(a, 4, b, 2, line, [&](int row, int column, int i) {
    float sum = emu_half_format::widen(narrow[i]);
    narrow[i] = emu_half_format::narrow(dot_of_halves<emu_half_format>(row, column, sum));
  });
  memcpy(sums, narrow, sizeof narrow);
}
void emu_mma_f32_tf32(float* sums, const unsigned* a, const unsigned* b, int line) {
  matrix_product(a, 4, b, 2, line, [&](int row, int column, int i) {
    double sum = sums[i];
    for (int k = 0; k < 8; k++) {
      double x = emu_bits<float>(word_of_a(row, k) & ~0x1fffu);
      sum += x * emu_bits<float>(word_of_b(column, k) & ~0x1fffu);
    }
    sums[i] = cut_off(sum);
  });
}
// Of `signs`, bit 0: A is signed; bit 1: B is.
void emu_mma_s32(int* sums, const unsigned* a, const unsigned* b, int signs, int line) {
  matrix_product(a, 4, b, 2, line, [&](int row, int column, int i) {
    for (int k = 0; k < 8; k++) {
      unsigned x = word_of_a(row, k), y = word_of_b(column, k);
      if (signs == 3) sums[i] = emu_dot4<int8_t, int8_t>(x, y, sums[i]);
      if (signs == 2) sums[i] = emu_dot4<uint8_t, int8_t>(x, y, sums[i]);
      if (signs == 1) sums[i] = emu_dot4<int8_t, uint8_t>(x, y, sums[i]);
      if (signs == 0) sums[i] = emu_dot4<uint8_t, uint8_t>(x, y, sums[i]);
    }
  });
}

// ---- atomics --------------------------------------------------------------------------------

static int atomic_lock;
#ifdef EMU_WATCH
static void watch_atomic(const char* p, size_t bytes);
#else
static void watch_atomic(const char*, size_t) {}
#endif

void emu_atomic_begin(const void* address, size_t bytes) {
  if ((size_t)address % bytes) emu_fault("misaligned", "atomic operation on a misaligned address");
  watch_atomic((const char*)address, bytes);
  while (__atomic_exchange_n(&atomic_lock, 1, __ATOMIC_ACQUIRE)) {
  }
}
void emu_atomic_end() { __atomic_store_n(&atomic_lock, 0, __ATOMIC_RELEASE); }
#ifdef EMU_WATCH
#include "watch.h"
#endif
