// SPDX-License-Identifier: Apache-2.0
// StructuralCache the calls that -fsanitize=thread puts at every access of memory, knowing what a block,
// a warp and a barrier are: races, reads of what nobody wrote, accesses outside of every tensor.
// Included last by warp.h; only one thread runs at a time.
#pragma once

// Of each byte. A stamp counts barriers of the block, or of the warp; it is unique in a process, so
// a stamp of the block tells the block and the launch as well.
struct Cell {
  unsigned write_block, write_warp;
  unsigned read_block, read_warp[2];
  uint16_t writer, readers[2];  // thread number + 1
  uint8_t state;
};
enum State : uint8_t { UNWRITTEN, WRITTEN, ON_ITS_WAY };
static Cell* shadow;
static unsigned stamp = 1, launch_stamp = 1, block_stamp = 1, warp_stamps[32];
static unsigned phase;  // stamp since the last barrier of the block

static Cell& cell_of(const char* p) { return shadow[p - range_start]; }

static void forget(const char* start, size_t bytes) {
  std::fill(&cell_of(start), &cell_of(start) + bytes, Cell());
}
static void expect(const char* start, size_t bytes) {
  for (const char* p = start; p < start + bytes; p++) cell_of(p).state = ON_ITS_WAY;
}

// A read of what nobody has written yet. Another thread may write it before the next barrier: then it
// is a race, and said so by that write.
static struct {
  bool found;
  unsigned thread;
  const void* site;
  char text[400];
} early;

static void fault_if_early() {
  if (!early.found) return;
  thread_number = early.thread;
  threadIdx = index_of(early.thread, blockDim);
  fault_site = early.site;
  emu_fault("uninitialised", "%s", early.text);
}

static void note_early(const char* p, size_t bytes, bool on_its_way) {
  char where[300];
  if (early.found) return;
  holder(p, 1, where, sizeof where);
  early.found = true;
  early.thread = thread_number;
  early.site = fault_site;
  snprintf(early.text, sizeof early.text, "read of %zu bytes %s, %s", bytes, where,
           on_its_way ? "whose cp.async has not been waited for" : "which nobody has written");
  if (on_its_way) fault_if_early();
}

static void watch_begin_block() {
  fault_if_early();
  block_stamp = phase = ++stamp;
  std::fill(warp_stamps, warp_stamps + 32, stamp);
}
static void watch_block_barrier() {
  fault_if_early();
  phase = ++stamp;
}
static void watch_warp_barrier(unsigned warp) { warp_stamps[warp] = ++stamp; }

// Whether an access of `thread` (+ 1) with these stamps may still be under way for us.
static bool unordered(unsigned thread, unsigned at_block, unsigned at_warp) {
  if (!thread || at_block < launch_stamp) return false;
  if (at_block < block_stamp) return true;  // another block of this launch
  unsigned other = thread - 1;
  if (other == thread_number || at_block != phase) return false;
  return other / 32 != thread_number / 32 || at_warp == warp_stamps[thread_number / 32];
}

[[noreturn]] static void race(const char* now, const char* before, const char* p, size_t bytes,
                              unsigned thread, unsigned at_block) {
  char where[300];
  if (!holder(p, 1, where, sizeof where)) where[0] = 0;
  emu_index other = index_of(thread - 1, blockDim);
  emu_fault("race", "%s of %zu bytes %s after a %s by thread (%u,%u,%u)%s without a barrier between",
            now, bytes, where, before, other.x, other.y, other.z,
            at_block < block_stamp ? " of another block" : "");
}

static bool watched(const char* p) { return p >= range_start && p < range_start + RANGE; }

static const Tensor* last_tensor;

// Whether contents were given, so that its bytes count as written; a fault outside of everything.
static bool bounds(const char* p, size_t bytes, const char* what) {
  auto inside = [&](const char* start, size_t size) {
    return p >= start && p + bytes <= start + size;
  };
  if (p < range_start + SHARED_RANGE) {
    for (int i = 0; i < shared_count; i++) {
      if (inside(shared_arrays[i].start, shared_arrays[i].bytes)) return false;
    }
  } else {
    if (last_tensor && inside(last_tensor->start, last_tensor->bytes)) return last_tensor->offset >= 0;
    for (const Tensor& t : tensors) {
      if (!inside(t.start, t.bytes)) continue;
      last_tensor = &t;
      return t.offset >= 0;
    }
  }
  fault_if_early();  // the address may come from it
  char where[400];
  name_nearest(p, where, sizeof where);
  emu_fault("out-of-bounds", "%s of %zu bytes %s", what, bytes, where);
}

static void watch_read(const char* start, size_t bytes) {
  if (!watched(start)) return;
  bool given = bounds(start, bytes, "read");
  unsigned warp = warp_stamps[thread_number / 32];
  for (const char* p = start; p < start + bytes; p++) {
    Cell& cell = cell_of(p);
    if (unordered(cell.writer, cell.write_block, cell.write_warp)) {
      race("read", "write", p, bytes, cell.writer, cell.write_block);
    }
    if (cell.state != WRITTEN && !(given && cell.state == UNWRITTEN)) {
      note_early(p, bytes, cell.state == ON_ITS_WAY);
    }
    uint16_t self = (uint16_t)(thread_number + 1);
    if (cell.read_block != phase) {
      cell.read_block = phase;
      cell.readers[0] = self;
      cell.readers[1] = 0;
      cell.read_warp[0] = warp;
    } else if (cell.readers[0] == self) {
      cell.read_warp[0] = warp;
    } else {
      cell.readers[1] = self;
      cell.read_warp[1] = warp;
    }
  }
}

static void watch_write(const char* start, size_t bytes) {
  if (!watched(start)) return;
  bounds(start, bytes, "write");
  for (const char* p = start; p < start + bytes; p++) {
    Cell& cell = cell_of(p);
    if (unordered(cell.writer, cell.write_block, cell.write_warp)) {
      race("write", "write", p, bytes, cell.writer, cell.write_block);
    }
    for (int i = 0; i < 2; i++) {
      if (unordered(cell.readers[i], cell.read_block, cell.read_warp[i])) {
        race("write", "read", p, bytes, cell.readers[i], cell.read_block);
      }
    }
    cell.write_block = phase;
    cell.write_warp = warp_stamps[thread_number / 32];
    cell.writer = (uint16_t)(thread_number + 1);
    cell.state = WRITTEN;
  }
}

// Atomic operations do not race with one another, so they leave no stamp.
static void watch_atomic(const char* start, size_t bytes) {
  if (!watched(start)) return;
  bool given = bounds(start, bytes, "atomic operation");
  for (const char* p = start; p < start + bytes; p++) {
    Cell& cell = cell_of(p);
    if (unordered(cell.writer, cell.write_block, cell.write_warp)) {
      race("atomic operation", "write", p, bytes, cell.writer, cell.write_block);
    }
    if (!given && cell.state != WRITTEN) {
      emu_fault("uninitialised", "atomic operation on what nobody has written");
    }
  }
}

static void watch_begin_launch() { launch_stamp = stamp + 1; }
static void watch_end_launch() { fault_if_early(); }

static void watch_reserve() {
  void* room = mmap(nullptr, RANGE * sizeof(Cell), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) emu_fault("internal", "no room for the watch");
  shadow = (Cell*)room;
}

// The access that the code of a kernel makes is at `site`.
static void from_read(const void* p, size_t bytes, const void* site) {
  fault_site = site;
  watch_read((const char*)p, bytes);
  fault_site = nullptr;
}
static void from_write(const void* p, size_t bytes, const void* site) {
  fault_site = site;
  watch_write((const char*)p, bytes);
  fault_site = nullptr;
}

#define EMU_SITE __builtin_return_address(0)
extern "C" {
#define EMU_WATCHED(n)                                                              \
  void __tsan_read##n(void* p) { from_read(p, n, EMU_SITE); }                       \
  void __tsan_write##n(void* p) { from_write(p, n, EMU_SITE); }                     \
  void __tsan_unaligned_read##n(void* p) { from_read(p, n, EMU_SITE); }             \
  void __tsan_unaligned_write##n(void* p) { from_write(p, n, EMU_SITE); }           \
  void __tsan_volatile_read##n(void* p) { from_read(p, n, EMU_SITE); }              \
  void __tsan_volatile_write##n(void* p) { from_write(p, n, EMU_SITE); }            \
  void __tsan_read_write##n(void* p) {                                              \
    from_read(p, n, EMU_SITE);                                                      \
    from_write(p, n, EMU_SITE);                                                     \
  }
EMU_WATCHED(1)
EMU_WATCHED(2)
EMU_WATCHED(4)
EMU_WATCHED(8)
EMU_WATCHED(16)
void __tsan_read_range(void* p, size_t bytes) { from_read(p, bytes, EMU_SITE); }
void __tsan_write_range(void* p, size_t bytes) { from_write(p, bytes, EMU_SITE); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
// Instrumented code copies by these where clang compiles it.
void* __tsan_memcpy(void* to, const void* from, size_t bytes) {
  from_read(from, bytes, EMU_SITE);
  from_write(to, bytes, EMU_SITE);
  return memcpy(to, from, bytes);
}
void* __tsan_memset(void* to, int value, size_t bytes) {
  from_write(to, bytes, EMU_SITE);
  return memset(to, value, bytes);
}
}
