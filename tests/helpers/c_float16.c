// SPDX-License-Identifier: Apache-2.0
/* The conversions of float16 that the runtime has for RISC-V: the bits of a half number are the
   lower ones of a float, all others set. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

float conv_widen(float held);
float conv_narrow(float value);
float conv_narrowd(double value);

static float widened(uint32_t half) {
  float held;
  half |= 0xffff0000;
  memcpy(&held, &half, 4);
  return conv_widen(held);
}

static uint32_t narrowed(float value) {
  float held = conv_narrow(value);
  uint32_t bits;
  memcpy(&bits, &held, 4);
  return bits >> 16 == 0xffff ? bits & 0xffff : ~0u;
}

static uint32_t narrowedd(double value) {
  float held = conv_narrowd(value);
  uint32_t bits;
  memcpy(&bits, &held, 4);
  return bits >> 16 == 0xffff ? bits & 0xffff : ~0u;
}

static int is(int right, const char* what, uint32_t half) {
  if (!right) printf("%s %04x\n", what, half);
  return right;
}

int main(void) {
  int right = 1;
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    float value = widened(half);
    int exponent = half < 0x400 ? 1 : (int)(half >> 10);
    float wanted = ldexpf((float)(half < 0x400 ? half : (half & 0x3ff) | 0x400), exponent - 25);
    right &= is(value == wanted && widened(half | 0x8000) == -wanted, "wide", half);
    right &= is(narrowed(value) == half && narrowed(-value) == (half | 0x8000), "narrow", half);
    float next = half == 0x7bff ? 65536 : widened(half + 1), between = (value + next) / 2;
    right &= is(narrowed(between) == half + (half & 1), "half-way", half);
    right &= is(narrowed(nextafterf(between, value)) == half, "below half-way", half);
    right &= is(narrowed(nextafterf(between, next)) == half + 1, "above half-way", half);
    double middle = between; /* less than float32 can tell from it, on either side */
    right &= is(narrowedd(middle) == half + (half & 1), "half-way of float64", half);
    right &= is(narrowedd(nextafter(middle, value)) == half, "below half-way of float64", half);
    right &= is(narrowedd(nextafter(middle, next)) == half + 1, "above half-way of float64", half);
    right &= is(narrowedd(-nextafter(middle, value)) == (half | 0x8000), "negative", half);
  }
  right &= is(narrowedd(1e300) == 0x7c00 && narrowedd(-INFINITY) == 0xfc00, "infinity", 0x7c00);
  right &= is(narrowedd(1e-300) == 0 && narrowedd(-1e-300) == 0x8000, "tiny", 0);
  right &= is((narrowedd(NAN) & 0x7fff) > 0x7c00, "not a number", 0x7e00);
  right &= is(widened(0x7c00) == INFINITY && widened(0xfc00) == -INFINITY, "infinity", 0x7c00);
  right &= is(narrowed(INFINITY) == 0x7c00 && narrowed(-1e30f) == 0xfc00, "infinity", 0x7c00);
  right &= is(isnan(widened(0x7e01)) && (narrowed(NAN) & 0x7fff) > 0x7c00, "not a number", 0x7e00);
  return !right;
}
