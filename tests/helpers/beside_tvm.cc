// SPDX-License-Identifier: Apache-2.0
// The kernel "grad" twice in one process, from a library of TVM and in C: neither takes the other's
// names, though this program shows all that it has to the libraries that it loads.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "grad.h"

namespace ffi = tvm::ffi;

struct Memory {
  void AllocData(DLTensor* t) {
    t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) + 63) / 64 * 64);
  }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

static ffi::Tensor Made(ffi::Shape shape) {
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(Memory(), shape, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    static_cast<float*>(tensor.data_ptr())[i] = static_cast<float>(i * 7919 % 13 - 6);
  }
  return tensor;
}

static float* Values(const ffi::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

int main(int, char** argv) {
  ffi::Tensor data = Made({2, 8, 12, 11}), seed = Made({2, 10, 6, 6});
  ffi::Tensor theirs = Made({10, 8, 3, 3}), ours = Made({10, 8, 3, 3});
  static_assert(GRAD_DATA_ELEMENTS == 2 * 8 * 12 * 11 && GRAD_GRAD_ELEMENTS == 2 * 10 * 6 * 6);
  for (int again = 0; again < 3; ++again) {
    if (grad(Values(data), Values(seed), Values(ours))) return 1;
    ffi::Module library = ffi::Module::LoadFromFile(argv[1]);
    (*library->GetFunction("grad"))(data, seed, theirs);
  }
  try {  // an error of TVM's is TVM's
    (*ffi::Module::LoadFromFile(argv[1])->GetFunction("grad"))(data, data, theirs);
    return 2;
  } catch (const ffi::Error& error) {
    if (*conv_last_error()) return 3;
  }
  if (grad(nullptr, Values(seed), Values(ours)) != CONV_NULL_POINTER) return 4;
  bool same = std::memcmp(Values(ours), Values(theirs), 4 * GRAD_RESULT_ELEMENTS) == 0;
  std::puts(same ? "the same" : "different");
  return same ? 0 : 5;
}
