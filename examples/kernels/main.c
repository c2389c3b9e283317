// SPDX-License-Identifier: Apache-2.0
/* decoder [RUNS]: runs both kernels, compares them with loops, and times them. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "layers.h"

enum { INS = 128, OUTS = 64, IN = 16, OUT = 32, K = 4, STRIDE = 2, PADDING = 1 };

static float data[UP_DATA_ELEMENTS], weight[UP_WEIGHT_ELEMENTS], bias[UP_OPERAND0_ELEMENTS];
static float packed[UP_PACKED_ELEMENTS], result[UP_RESULT_ELEMENTS];
static float gradient[UP_GRADIENT_RESULT_ELEMENTS];
static double sums[UP_RESULT_ELEMENTS], products[UP_WEIGHT_ELEMENTS];

/* Calls meet(output position, input position, kernel position) for all that belong together. */
static void for_all(void (*meet)(int, int, int)) {
  for (int i = 0; i < IN * IN; ++i) {
    for (int k = 0; k < K * K; ++k) {
      int y = i / IN * STRIDE + k / K - PADDING, x = i % IN * STRIDE + k % K - PADDING;
      if (y >= 0 && y < OUT && x >= 0 && x < OUT) meet(y * OUT + x, i, k);
    }
  }
}

static void add_to_result(int out, int in, int k) {
  for (int c = 0; c < INS; ++c) {
    for (int o = 0; o < OUTS; ++o) {
      sums[o * OUT * OUT + out] +=
          (double)data[c * IN * IN + in] * weight[(c * OUTS + o) * K * K + k];
    }
  }
}

static void add_to_gradient(int out, int in, int k) {
  for (int c = 0; c < INS; ++c) {
    for (int o = 0; o < OUTS; ++o) {
      products[(c * OUTS + o) * K * K + k] +=
          (double)data[c * IN * IN + in] * result[o * OUT * OUT + out];
    }
  }
}

static double error_of(const float* got, const double* wanted, int count) {
  double error = 0, largest = 0;
  for (int i = 0; i < count; ++i) {
    double difference = fabs(got[i] - wanted[i]);
    if (!(difference <= error)) error = difference; /* a NaN counts */
    largest = fmax(largest, fabs(wanted[i]));
  }
  return error / largest;
}

static int run_up(void) { return up(data, packed, bias, result); }
static int run_gradient(void) { return up_gradient(data, result, gradient); }

static int compare(const void* a, const void* b) {
  double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static double milliseconds(int (*run)(void), int runs) {
  double* times = malloc(sizeof(double) * (size_t)runs);
  for (int i = 0; i < runs; ++i) {
    struct timespec from, to;
    clock_gettime(CLOCK_MONOTONIC, &from);
    run();
    clock_gettime(CLOCK_MONOTONIC, &to);
    times[i] = (double)(to.tv_sec - from.tv_sec) * 1e3 + (double)(to.tv_nsec - from.tv_nsec) * 1e-6;
  }
  qsort(times, (size_t)runs, sizeof(double), compare);
  double median = times[runs / 2];
  free(times);
  return median;
}

int main(int argc, char** argv) {
  int runs = argc > 1 ? atoi(argv[1]) : 0;
  srand(0);
  for (int i = 0; i < UP_DATA_ELEMENTS; ++i) data[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (int i = 0; i < UP_WEIGHT_ELEMENTS; ++i) weight[i] = (float)rand() / (float)RAND_MAX - 0.5f;
  for (int i = 0; i < OUTS; ++i) bias[i] = (float)i / OUTS;

  if (up_pack(weight, packed) || run_up() || run_gradient()) {
    fprintf(stderr, "%s\n", conv_last_error());
    return 1;
  }
  for_all(add_to_result);
  for (int i = 0; i < UP_RESULT_ELEMENTS; ++i) sums[i] = fmax(0, sums[i] + bias[i / (OUT * OUT)]);
  for_all(add_to_gradient);
  double errors[] = {error_of(result, sums, UP_RESULT_ELEMENTS),
                     error_of(gradient, products, UP_WEIGHT_ELEMENTS)};
  printf("up: error %.2g, gradient: error %.2g of the largest value\n", errors[0], errors[1]);
  if (runs > 0) {
    printf("up: %.3f ms, gradient: %.3f ms, %d threads\n", milliseconds(run_up, runs),
           milliseconds(run_gradient, runs), conv_get_threads());
  }
  /* float32 sums of up to 512 products. */
  return errors[0] < 1e-5 && errors[1] < 1e-5 ? 0 : 1;
}
