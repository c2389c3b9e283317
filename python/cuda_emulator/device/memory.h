// SPDX-License-Identifier: Apache-2.0
// Tensors in a reserved range with forbidden pages around each, and the shared memory of a block.
#pragma once

struct Tensor {
  std::string name;
  size_t bytes = 0;
  long long offset = -1;  // in the file of data; -1: a workspace, which starts as poison
  size_t shift = 0;       // bytes behind a multiple of ALIGNMENT at which it begins
  char* start = nullptr;
  char* page_end = nullptr;  // what lies between the end and this is a margin
};

static const unsigned char POISON = 0xff;  // NaN in every floating format
static const unsigned char MARGIN = 0xfd;  // not what a NaN that is computed looks like
static const size_t PAGE = 4096, ALIGNMENT = 256;
static const size_t RANGE = (size_t)1 << 34, SHARED_RANGE = (size_t)2 << 20;
static const size_t SHARED_UNASKED = 48 << 10;  // of a block that has no larger dynamic part
static const size_t GAP = 256;
static size_t most_shared;  // of a block, on the architecture that the kernels are made for

static std::vector<Tensor> tensors;
static char *range_start, *range_next;
static const char* running_kernel;
static unsigned block_threads;

// What a tool is to know of an access by this file on behalf of a kernel.
#if defined(EMU_WATCH) || defined(EMU_TSAN)
extern "C" {
void __tsan_read_range(void*, size_t);
void __tsan_write_range(void*, size_t);
}
static void emu_read(const void* p, size_t bytes) { __tsan_read_range((void*)p, bytes); }
static void emu_write(void* p, size_t bytes) { __tsan_write_range(p, bytes); }
#else
static void emu_read(const void*, size_t) {}
static void emu_write(void*, size_t) {}
#endif

#ifdef EMU_ASAN
extern "C" void __asan_poison_memory_region(const volatile void*, size_t);
extern "C" void __asan_unpoison_memory_region(const volatile void*, size_t);
static void forbid(void* p, size_t bytes) { __asan_poison_memory_region(p, bytes); }
static void allow(void* p, size_t bytes) { __asan_unpoison_memory_region(p, bytes); }
#else
static void forbid(void*, size_t) {}
static void allow(void*, size_t) {}
#endif

#ifdef EMU_WATCH
static void forget(const char* start, size_t bytes);
#else
static void forget(const char*, size_t) {}
#endif

static void ordered_before(void*);
static void ordered_after(void*);

static void reserve_memory() {
  void* range = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) emu_fault("internal", "no room for tensors");
  range_start = (char*)range;
  mprotect(range_start, SHARED_RANGE, PROT_READ | PROT_WRITE);
  range_next = range_start + SHARED_RANGE;
}

static size_t up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

// As far to the right as its alignment lets it, next to pages that nobody may touch.
static void allocate(Tensor& tensor, int data) {
  size_t taken = up(tensor.shift + std::max<size_t>(tensor.bytes, 1), ALIGNMENT);
  size_t room = up(taken, PAGE);
  size_t guard = up(std::max(room, (size_t)1 << 20), PAGE);
  char* first = range_next + guard;
  range_next = first + room + guard;
  if (range_next > range_start + RANGE) emu_fault("internal", "the tensors are too large");
  mprotect(first, room, PROT_READ | PROT_WRITE);
  memset(first, MARGIN, room);
  tensor.start = first + room - taken + tensor.shift;
  tensor.page_end = first + room;
  memset(tensor.start, POISON, tensor.bytes);
  for (size_t done = 0; tensor.offset >= 0 && done < tensor.bytes;) {
    ssize_t got = pread(data, tensor.start + done, tensor.bytes - done, tensor.offset + (off_t)done);
    if (got <= 0) emu_fault("internal", "the data cannot be read");
    done += (size_t)got;
  }
  forbid(first, (size_t)(tensor.start - first));
  forbid(tensor.start + tensor.bytes, (size_t)(tensor.page_end - tensor.start) - tensor.bytes);
}

// Writes between the end of a tensor and its last page.
__attribute__((no_sanitize("address"))) static void check_margins() {
  for (const Tensor& tensor : tensors) {
    for (const char* p = tensor.start + tensor.bytes; p < tensor.page_end; p++) {
      if ((unsigned char)*p != MARGIN) {
        emu_fault("out-of-bounds", "write %zu bytes past the end of tensor %s (%zu bytes)",
                  (size_t)(p - tensor.start) - tensor.bytes, tensor.name.c_str(), tensor.bytes);
      }
    }
  }
}

// ---- shared memory --------------------------------------------------------------------------

struct SharedArray {
  int id;
  const char* name;
  char* start;
  size_t bytes;
};
static SharedArray shared_arrays[256];
static int shared_count;
static char* shared_next;
static size_t shared_used, dynamic_bytes;
static int shared_lock;

static void begin_launch(size_t dynamic, unsigned threads) {
  dynamic_bytes = dynamic;
  block_threads = threads;
  if (threads > 1024) emu_fault("launch", "%u threads in a block, at most 1024", threads);
}

__attribute__((no_sanitize("address"))) static void poison(char* start, size_t bytes) {
  allow(start, bytes);
  memset(start, POISON, bytes);
  forget(start, bytes);
}

static void begin_block() {
  // Nothing of the block before is left, neither values nor places.
  shared_count = 0;
  shared_used = 0;
  shared_next = range_start + 1024;  // offset 0 is no address
  forbid(range_start, SHARED_RANGE);
}

static void* shared_room(int id, const char* name, size_t bytes, size_t alignment) {
  for (int i = 0; i < shared_count; i++) {
    if (shared_arrays[i].id == id) return shared_arrays[i].start;
  }
  shared_used += bytes;
  // The driver is asked for more than it gives unasked where the dynamic part alone is so large.
  size_t most = dynamic_bytes < SHARED_UNASKED ? SHARED_UNASKED : most_shared;
  if (shared_used > most) {
    emu_fault("launch", "%zu bytes of shared memory, %zu of them dynamic: at most %zu", shared_used,
              dynamic_bytes, most);
  }
  if (shared_count == 256) emu_fault("internal", "more than 256 shared arrays in a kernel");
  char* start = (char*)up((size_t)shared_next, std::max(alignment, (size_t)16));
  shared_next = (char*)up((size_t)(start + bytes), 16) + GAP;
  poison(start, bytes);
  shared_arrays[shared_count++] = {id, name, start, bytes};
  return start;
}

void* emu_shared_array(int id, const char* name, size_t bytes, size_t alignment) {
  while (__atomic_exchange_n(&shared_lock, 1, __ATOMIC_ACQUIRE)) {
  }
  // The first one fills the room with poison, before any other may use it.
  ordered_after(&shared_lock);
  void* start = shared_room(id, name, bytes, alignment);
  ordered_before(&shared_lock);
  __atomic_store_n(&shared_lock, 0, __ATOMIC_RELEASE);
  return start;
}

void* emu_dynamic_shared(const char* name, size_t alignment) {
  return emu_shared_array(-1, name, dynamic_bytes, std::max(alignment, (size_t)128));
}

unsigned emu_to_shared(const void* address) {
  size_t offset = (size_t)((const char*)address - range_start);
  if (offset >= SHARED_RANGE) emu_fault("address-space", "a shared address of what is not shared");
  return (unsigned)offset;
}

void* emu_from_shared(unsigned offset) { return range_start + offset; }

// ---- what an address is ---------------------------------------------------------------------

static bool within(const char* p, const char* start, size_t bytes) {
  return p >= start && p < start + bytes;
}

static const char* name_nearest(const char* p, char* text, size_t size) {
  size_t nearest = ~(size_t)0;
  auto offer = [&](const char* what, const char* name, const char* start, size_t bytes) {
    bool before = p < start;
    size_t far = before ? (size_t)(start - p) : (size_t)(p - start) - bytes;
    if (far >= nearest) return;
    nearest = far;
    snprintf(text, size, "%zu bytes %s of %s %s (%zu bytes)", far,
             before ? "before the start" : "past the end", what, name, bytes);
  };
  if (within(p, range_start, SHARED_RANGE)) {
    for (int i = 0; i < shared_count; i++) {
      const SharedArray& array = shared_arrays[i];
      offer("shared array", array.name, array.start, array.bytes);
    }
  } else {
    for (const Tensor& t : tensors) offer("tensor", t.name.c_str(), t.start, t.bytes);
  }
  return text;
}

// The tensor or shared array that holds all these bytes, in words; null: none does.
static const char* holder(const char* p, size_t bytes, char* text, size_t size) {
  auto say = [&](const char* what, const char* name, const char* start) {
    snprintf(text, size, "at byte %zu of %s %s", (size_t)(p - start), what, name);
    return text;
  };
  for (int i = 0; i < shared_count; i++) {
    const SharedArray& a = shared_arrays[i];
    if (within(p, a.start, a.bytes) && p + bytes <= a.start + a.bytes) {
      return say("shared array", a.name, a.start);
    }
  }
  for (const Tensor& t : tensors) {
    if (within(p, t.start, t.bytes) && p + bytes <= t.start + t.bytes) {
      return say("tensor", t.name.c_str(), t.start);
    }
  }
  return nullptr;
}

static void describe_address(char* text, size_t size, const void* address) {
  const char* p = (const char*)address;
  if (holder(p, 1, text, size)) return;
  if (within(p, range_start, RANGE)) {
    name_nearest(p, text, size);
  } else {
    snprintf(text, size, "at address %p, far from any tensor", address);
  }
}
