// SPDX-License-Identifier: Apache-2.0
#ifndef CONV_KERNELS_H
#define CONV_KERNELS_H

/* What all kernels of a library share: dtypes, return codes, the line of an error, threads.

   A kernel is a function `int NAME(const TYPE* operand, ..., TYPE* result)` of its own header. It
   reads its operands and writes all of its result; any number of threads may call kernels at once.
   A pointer has to be a multiple of the size of its elements, not of a vector. The result must not
   overlap an operand. Scratch memory is allocated by each call and given back by it. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The bits of a number: compilers differ in what they call these dtypes. */
typedef uint16_t conv_float16;  /* IEEE 754 binary16 */
typedef uint16_t conv_bfloat16; /* the upper half of a float */

/* What a kernel returns. */
enum conv_status {
  CONV_OK = 0,
  CONV_NULL_POINTER = 1, /* an argument is a null pointer */
  CONV_MISALIGNED = 2,   /* an argument is not a multiple of the size of its elements */
  CONV_OVERLAP = 3,      /* the result overlaps an operand */
  CONV_NO_MEMORY = 4,    /* there is no scratch memory; the result is undefined */
  CONV_FAILED = 5        /* the kernel refused its arguments: a fault of this library */
};

/* One line about the last call by this thread: what was wrong with it, empty if nothing was. */
const char* conv_last_error(void);

/* What a return code means, in a few words. */
const char* conv_status_text(int status);

/* The most threads that one call runs on, from now on; 0: as many as this process may use, or, with
   OpenMP, as OpenMP says. */
void conv_set_threads(int threads);

/* The most threads that one call runs on. */
int conv_get_threads(void);

#ifdef __cplusplus
}
#endif
#endif
