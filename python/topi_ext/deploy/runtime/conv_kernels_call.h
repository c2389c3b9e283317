// SPDX-License-Identifier: Apache-2.0
#ifndef CONV_KERNELS_CALL_H
#define CONV_KERNELS_CALL_H

/* Between the functions that are generated for each kernel and the runtime; not for users. */

#include <stdint.h>

typedef struct {
  const char* name;
  const int64_t* shape;
  int32_t rank;
  uint8_t code, bits; /* of the dtype, as DLPack numbers them */
} conv_kernels_argument;

/* A function of TVM's calling convention: (self, arguments, their number, result). */
typedef int (*conv_kernels_entry)(void*, void*, int32_t, void*);

#define CONV_KERNELS_MOST_ARGUMENTS 16

/* Check the pointers, of which the last is the result's, and run a kernel on them. */
int conv_kernels_call(const char* kernel, conv_kernels_entry entry,
                      const conv_kernels_argument* arguments, const void* const* pointers,
                      int count);

/* The same for weights that need no packing: copied. */
int conv_kernels_copy(const char* kernel, const conv_kernels_argument* arguments,
                      const void* const* pointers);

#endif
