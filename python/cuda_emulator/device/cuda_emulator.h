// SPDX-License-Identifier: Apache-2.0
// What CUDA C++ of TVM needs to compile as C++17 for the CPU: keywords, types, intrinsics.
// No header of CUDA is used. Whatever needs to know of other threads is in runtime.cpp.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))

// ---- threads -------------------------------------------------------------------------------

struct emu_index {
  unsigned x, y, z;
};
typedef emu_index uint3;
struct dim3 : emu_index {
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : emu_index{x, y, z} {}
};

#ifdef EMU_THREADS
#define EMU_OF_THREAD __thread
#else
#define EMU_OF_THREAD
#endif
extern EMU_OF_THREAD emu_index threadIdx, blockIdx;
extern emu_index blockDim, gridDim;
static const int warpSize = 32;

extern "C" {
[[noreturn]] void emu_fault(const char* kind, const char* format, ...);
void emu_block_barrier(int line);
void emu_warp_barrier(unsigned mask, const char* what, int line);
unsigned emu_active_mask();
// The value of lane `from` of this warp; a lane that takes no part has no value.
uint64_t emu_shuffle(unsigned mask, uint64_t value, int from, int line);
unsigned emu_vote(unsigned mask, bool value, int line);
unsigned emu_lane();
// Room of one array in shared memory; the same for all threads of a block.
void* emu_shared_array(int id, const char* name, size_t bytes, size_t alignment);
void* emu_dynamic_shared(const char* name, size_t alignment);
unsigned emu_to_shared(const void* address);
void* emu_from_shared(unsigned offset);
void emu_copy_async(unsigned to, const void* from, int bytes, int taken);
void emu_copy_commit();
void emu_copy_wait(int groups_left);
void emu_ldmatrix(unsigned* out, unsigned from, int count, int transposed, int line);
void emu_mma_f32_f16(float* sums, const unsigned* a, const unsigned* b, int line);
void emu_mma_f32_bf16(float* sums, const unsigned* a, const unsigned* b, int line);
void emu_mma_f16_f16(unsigned* sums, const unsigned* a, const unsigned* b, int line);
void emu_mma_f32_tf32(float* sums, const unsigned* a, const unsigned* b, int line);
void emu_mma_s32(int* sums, const unsigned* a, const unsigned* b, int signs, int line);
void emu_atomic_begin(const void* address, size_t bytes);
void emu_atomic_end();
}

#define __syncthreads() emu_block_barrier(__LINE__)
#define EMU_FIRST(first, ...) first
#define __syncwarp(...) emu_warp_barrier(EMU_FIRST(__VA_ARGS__ __VA_OPT__(, ) 0xffffffffu), "__syncwarp", __LINE__)
#define __activemask() emu_active_mask()
inline void __threadfence() {}
inline void __threadfence_block() {}

template <class To, class From>
inline To emu_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "an operand of inline PTX has another width");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
template <class To, class From>
inline void emu_set(To& to, const From& from) {
  to = emu_bits<To>(from);
}

// ---- half and bfloat16 ----------------------------------------------------------------------

struct emu_half_format {
  static float widen(uint16_t bits) { return (float)emu_bits<_Float16>(bits); }
  static uint16_t narrow(float value) { return emu_bits<uint16_t>((_Float16)value); }
};
struct emu_bfloat_format {
  static float widen(uint16_t bits) { return emu_bits<float>((uint32_t)bits << 16); }
  static uint16_t narrow(float value) {
    uint32_t bits = emu_bits<uint32_t>(value);
    if (value != value) return (uint16_t)0x7fff;
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
  }
};
// Arithmetic is of float, rounded once: for + - * / that is what CUDA's own types give.
template <class Format>
struct emu_narrow {
  uint16_t bits;
  emu_narrow() = default;
  template <class T, class = typename std::enable_if<std::is_arithmetic<T>::value>::type>
  emu_narrow(T value) : bits(Format::narrow((float)value)) {}
  template <class Other>
  explicit emu_narrow(emu_narrow<Other> other) : bits(Format::narrow((float)other)) {}
  operator float() const { return Format::widen(bits); }
  emu_narrow& operator+=(emu_narrow b) { return *this = *this + b; }
  emu_narrow& operator-=(emu_narrow b) { return *this = *this - b; }
  emu_narrow& operator*=(emu_narrow b) { return *this = *this * b; }
  emu_narrow& operator/=(emu_narrow b) { return *this = *this / b; }
  emu_narrow operator-() const { return made((uint16_t)(bits ^ 0x8000)); }
  static emu_narrow made(uint16_t bits) {
    emu_narrow value;
    value.bits = bits;
    return value;
  }
  friend emu_narrow operator+(emu_narrow a, emu_narrow b) { return (float)a + (float)b; }
  friend emu_narrow operator-(emu_narrow a, emu_narrow b) { return (float)a - (float)b; }
  friend emu_narrow operator*(emu_narrow a, emu_narrow b) { return (float)a * (float)b; }
  friend emu_narrow operator/(emu_narrow a, emu_narrow b) { return (float)a / (float)b; }
  friend bool operator<(emu_narrow a, emu_narrow b) { return (float)a < (float)b; }
  friend bool operator>(emu_narrow a, emu_narrow b) { return (float)a > (float)b; }
  friend bool operator<=(emu_narrow a, emu_narrow b) { return (float)a <= (float)b; }
  friend bool operator>=(emu_narrow a, emu_narrow b) { return (float)a >= (float)b; }
  friend bool operator==(emu_narrow a, emu_narrow b) { return (float)a == (float)b; }
  friend bool operator!=(emu_narrow a, emu_narrow b) { return (float)a != (float)b; }
};
typedef emu_narrow<emu_half_format> __half;
typedef emu_narrow<emu_bfloat_format> __nv_bfloat16;
typedef __half half;
typedef __nv_bfloat16 nv_bfloat16;
typedef __half __half_raw;

template <class T>
struct alignas(4) emu_pair {
  T x, y;
  emu_pair() = default;
  emu_pair(T x, T y) : x(x), y(y) {}
  friend emu_pair operator+(emu_pair a, emu_pair b) { return {a.x + b.x, a.y + b.y}; }
  friend emu_pair operator-(emu_pair a, emu_pair b) { return {a.x - b.x, a.y - b.y}; }
  friend emu_pair operator*(emu_pair a, emu_pair b) { return {a.x * b.x, a.y * b.y}; }
  friend emu_pair operator/(emu_pair a, emu_pair b) { return {a.x / b.x, a.y / b.y}; }
};
typedef emu_pair<__half> __half2;
typedef emu_pair<__nv_bfloat16> __nv_bfloat162;
typedef __half2 half2;
typedef __nv_bfloat162 nv_bfloat162;

inline __half __float2half_rn(float v) { return v; }
inline __half __float2half(float v) { return v; }
inline __half __double2half(double v) { return emu_bits<__half>((_Float16)v); }
inline float __half2float(__half v) { return v; }
inline __half __ushort_as_half(unsigned short v) { return __half::made(v); }
inline unsigned short __half_as_ushort(__half v) { return v.bits; }
inline __nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline __nv_bfloat16 __float2bfloat16(float v) { return v; }
inline float __bfloat162float(__nv_bfloat16 v) { return v; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short v) { return __nv_bfloat16::made(v); }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 v) { return v.bits; }
inline __half2 make_half2(__half x, __half y) { return {x, y}; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __half2 __half2half2(__half x) { return {x, x}; }
inline __half2 __float2half2_rn(float x) { return {x, x}; }
inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline __half __low2half(__half2 v) { return v.x; }
inline __half __high2half(__half2 v) { return v.y; }
inline float __low2float(__half2 v) { return v.x; }
inline float __high2float(__half2 v) { return v.y; }
inline __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
inline float __low2float(__nv_bfloat162 v) { return v.x; }
inline float __high2float(__nv_bfloat162 v) { return v.y; }

#define EMU_NARROW_FUNCTIONS(T, T2)                                                           \
  inline T __hadd(T a, T b) { return a + b; }                                                 \
  inline T __hsub(T a, T b) { return a - b; }                                                 \
  inline T __hmul(T a, T b) { return a * b; }                                                 \
  inline T __hdiv(T a, T b) { return a / b; }                                                 \
  inline T __hneg(T a) { return -a; }                                                         \
  inline T __habs(T a) { return T::made((uint16_t)(a.bits & 0x7fff)); }                       \
  inline T __hfma(T a, T b, T c) { return (double)(float)a * (float)b + (float)c; }           \
  inline T __hmax(T a, T b) { return std::fmax((float)a, (float)b); }                         \
  inline T __hmin(T a, T b) { return std::fmin((float)a, (float)b); }                         \
  inline bool __hgt(T a, T b) { return a > b; }                                               \
  inline bool __hge(T a, T b) { return a >= b; }                                              \
  inline bool __hlt(T a, T b) { return a < b; }                                               \
  inline bool __hle(T a, T b) { return a <= b; }                                              \
  inline bool __heq(T a, T b) { return a == b; }                                              \
  inline bool __hne(T a, T b) { return a != b; }                                              \
  inline bool __hisnan(T a) { return a != a; }                                                \
  inline T hexp(T a) { return std::exp((float)a); }                                           \
  inline T hexp2(T a) { return std::exp2((float)a); }                                         \
  inline T hexp10(T a) { return std::pow(10.0f, (float)a); }                                  \
  inline T hlog(T a) { return std::log((float)a); }                                           \
  inline T hlog2(T a) { return std::log2((float)a); }                                         \
  inline T hlog10(T a) { return std::log10((float)a); }                                       \
  inline T hsqrt(T a) { return std::sqrt((float)a); }                                         \
  inline T hrsqrt(T a) { return 1.0f / std::sqrt((float)a); }                                 \
  inline T hrcp(T a) { return 1.0f / (float)a; }                                              \
  inline T hsin(T a) { return std::sin((float)a); }                                           \
  inline T hcos(T a) { return std::cos((float)a); }                                           \
  inline T hfloor(T a) { return std::floor((float)a); }                                       \
  inline T hceil(T a) { return std::ceil((float)a); }                                         \
  inline T htrunc(T a) { return std::trunc((float)a); }                                       \
  inline T hrint(T a) { return std::nearbyint((float)a); }                                    \
  inline T2 __hadd2(T2 a, T2 b) { return a + b; }                                             \
  inline T2 __hsub2(T2 a, T2 b) { return a - b; }                                             \
  inline T2 __hmul2(T2 a, T2 b) { return a * b; }                                             \
  inline T2 __h2div(T2 a, T2 b) { return a / b; }                                             \
  inline T2 __hfma2(T2 a, T2 b, T2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; } \
  inline T2 __hmax2(T2 a, T2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }              \
  inline T2 __hmin2(T2 a, T2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }
EMU_NARROW_FUNCTIONS(__half, __half2)
EMU_NARROW_FUNCTIONS(__nv_bfloat16, __nv_bfloat162)

// ---- vectors --------------------------------------------------------------------------------

#define EMU_VECTOR_TYPES(T, name)                                                             \
  struct name##1 {                                                                            \
    T x;                                                                                      \
  };                                                                                          \
  struct alignas(2 * sizeof(T)) name##2 {                                                     \
    T x, y;                                                                                   \
  };                                                                                          \
  struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) name##4 {                           \
    T x, y, z, w;                                                                             \
  };                                                                                          \
  inline name##1 make_##name##1(T x) { return {x}; }                                          \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                  \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
#define EMU_VECTOR_TYPE_3(T, name)                                                            \
  struct name##3 {                                                                            \
    T x, y, z;                                                                                \
  };                                                                                          \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }
EMU_VECTOR_TYPES(signed char, char)
EMU_VECTOR_TYPES(unsigned char, uchar)
EMU_VECTOR_TYPES(short, short)
EMU_VECTOR_TYPES(unsigned short, ushort)
EMU_VECTOR_TYPES(int, int)
EMU_VECTOR_TYPES(unsigned, uint)
EMU_VECTOR_TYPES(long long, longlong)
EMU_VECTOR_TYPES(unsigned long long, ulonglong)
EMU_VECTOR_TYPES(float, float)
EMU_VECTOR_TYPES(double, double)
EMU_VECTOR_TYPE_3(signed char, char)
EMU_VECTOR_TYPE_3(unsigned char, uchar)
EMU_VECTOR_TYPE_3(short, short)
EMU_VECTOR_TYPE_3(unsigned short, ushort)
EMU_VECTOR_TYPE_3(int, int)
EMU_VECTOR_TYPE_3(long long, longlong)
EMU_VECTOR_TYPE_3(float, float)
EMU_VECTOR_TYPE_3(double, double)
inline uint3 make_uint3(unsigned x, unsigned y, unsigned z) { return {x, y, z}; }
inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
inline __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }

// ---- arithmetic -----------------------------------------------------------------------------

template <class A, class B, class = typename std::enable_if<std::is_arithmetic<A>::value &&
                                                            std::is_arithmetic<B>::value>::type>
inline typename std::common_type<A, B>::type min(A a, B b) {
  typename std::common_type<A, B>::type x = a, y = b;
  return y < x || x != x ? y : x;
}
template <class A, class B, class = typename std::enable_if<std::is_arithmetic<A>::value &&
                                                            std::is_arithmetic<B>::value>::type>
inline typename std::common_type<A, B>::type max(A a, B b) {
  typename std::common_type<A, B>::type x = a, y = b;
  return x < y || x != x ? y : x;
}
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }
inline float __expf(float a) { return std::exp(a); }
inline float __exp10f(float a) { return std::pow(10.0f, a); }
inline float __logf(float a) { return std::log(a); }
inline float __log2f(float a) { return std::log2(a); }
inline float __log10f(float a) { return std::log10(a); }
inline float __sinf(float a) { return std::sin(a); }
inline float __cosf(float a) { return std::cos(a); }
inline float __tanf(float a) { return std::tan(a); }
inline float __powf(float a, float b) { return std::pow(a, b); }
inline float __saturatef(float a) { return a > 0 ? a < 1 ? a : 1 : 0; }
inline int __float_as_int(float a) { return emu_bits<int>(a); }
inline unsigned __float_as_uint(float a) { return emu_bits<unsigned>(a); }
inline float __int_as_float(int a) { return emu_bits<float>(a); }
inline float __uint_as_float(unsigned a) { return emu_bits<float>(a); }
inline long long __double_as_longlong(double a) { return emu_bits<long long>(a); }
inline double __longlong_as_double(long long a) { return emu_bits<double>(a); }
inline int __float2int_rn(float a) { return (int)std::nearbyint(a); }
inline int __float2int_rz(float a) { return (int)a; }
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a ? __builtin_clz((unsigned)a) : 32; }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return (unsigned)((unsigned long long)a * b >> 32);
}
inline int __mul24(int a, int b) { return a * b; }
template <class A, class B, class Sum>
inline Sum emu_dot4(unsigned a, unsigned b, Sum sum) {
  unsigned total = (unsigned)sum;
  for (int i = 0; i < 4; i++) total += (unsigned)((int)(A)(a >> 8 * i) * (int)(B)(b >> 8 * i));
  return (Sum)total;
}
inline int __dp4a(int a, int b, int c) {
  return emu_dot4<int8_t, int8_t>((unsigned)a, (unsigned)b, c);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  return emu_dot4<uint8_t, uint8_t>(a, b, c);
}
inline int __dp4a(char4 a, char4 b, int c) {
  return __dp4a(emu_bits<int>(a), emu_bits<int>(b), c);
}
inline unsigned __dp4a(uchar4 a, uchar4 b, unsigned c) {
  return __dp4a(emu_bits<unsigned>(a), emu_bits<unsigned>(b), c);
}
// To ten bits of mantissa: nearest, ties away from zero.
inline unsigned emu_to_tf32(float value) {
  unsigned bits = emu_bits<unsigned>(value);
  return value - value != 0 ? bits : (bits + 0x1000u) & ~0x1fffu;
}

// ---- memory ---------------------------------------------------------------------------------

template <class T>
inline T __ldg(const T* p) {
  return *p;
}
template <class T>
inline T __ldcg(const T* p) {
  return *p;
}
inline unsigned emu_address(const void* p) { return emu_to_shared(p); }
#define __cvta_generic_to_shared(p) ((size_t)emu_to_shared((const void*)(p)))
#define EMU_ATOMIC(name, expression)                                                          \
  template <class T, class V>                                                                 \
  __attribute__((no_sanitize("thread"), noinline)) T name(T* address, V operand) {           \
    emu_atomic_begin(address, sizeof(T));                                                     \
    T old = *address, value = (T)operand;                                                     \
    *address = (T)(expression);                                                               \
    emu_atomic_end();                                                                         \
    return old;                                                                               \
  }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicAnd, old& value)

// ---- shuffles -------------------------------------------------------------------------------

template <class T>
inline T emu_shuffled(unsigned mask, T value, int from, int line) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t word = 0;
  memcpy(&word, &value, sizeof value);
  word = emu_shuffle(mask, word, from, line);
  memcpy(&value, &word, sizeof value);
  return value;
}
inline int emu_shuffle_source(char way, int operand, int width) {
  int lane = (int)emu_lane(), first = lane & -width, from = lane;
  if (way == 'd') from = lane + operand < first + width ? lane + operand : lane;
  if (way == 'u') from = lane - operand >= first ? lane - operand : lane;
  if (way == 'x') from = (lane ^ operand) < first + width ? lane ^ operand : lane;
  if (way == 'i') from = first | (operand & (width - 1));
  return from;
}
#define EMU_SHUFFLE(name, way)                                                                \
  template <class T>                                                                          \
  inline T emu_##name(int line, unsigned mask, T value, int operand, int width = 32) {        \
    return emu_shuffled(mask, value, emu_shuffle_source(way, operand, width), line);          \
  }
EMU_SHUFFLE(shfl_down, 'd')
EMU_SHUFFLE(shfl_up, 'u')
EMU_SHUFFLE(shfl_xor, 'x')
EMU_SHUFFLE(shfl, 'i')
#define __shfl_sync(...) emu_shfl(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) emu_shfl_up(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) emu_shfl_down(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) emu_shfl_xor(__LINE__, __VA_ARGS__)
#define __ballot_sync(mask, value) emu_vote(mask, value, __LINE__)
#define __any_sync(mask, value) (emu_vote(mask, value, __LINE__) != 0)
#define __all_sync(mask, value) (emu_vote(mask, !(value), __LINE__) == 0)

// ---- the table of kernels -------------------------------------------------------------------

union emu_argument {
  void* pointer;
  int64_t integer;
  double real;
};
struct emu_kernel {
  const char* name;
  void (*call)(const emu_argument*);
};
extern "C" const emu_kernel emu_kernels[];
extern "C" const int emu_kernel_count;

template <class T>
inline T emu_given(const emu_argument& given) {
  if constexpr (std::is_pointer<T>::value) {
    return (T)given.pointer;
  } else if constexpr (std::is_integral<T>::value) {
    return (T)given.integer;
  } else {
    return (T)given.real;
  }
}
template <class... T, size_t... I>
inline void emu_call_at(void (*kernel)(T...), const emu_argument* given,
                        std::index_sequence<I...>) {
  kernel(emu_given<T>(given[I])...);
}
template <class... T>
inline void emu_call(void (*kernel)(T...), const emu_argument* given) {
  emu_call_at(kernel, given, std::index_sequence_for<T...>());
}
