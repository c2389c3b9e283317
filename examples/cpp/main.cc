// SPDX-License-Identifier: Apache-2.0
// run_model FOLDER [RUNS]: runs the model that export_model.py wrote there, compares its result with
// PyTorch's, and times it.

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

struct Memory {  // of the tensors that this program makes
  void AllocData(DLTensor* t) {
    t->data = std::aligned_alloc(64, (ffi::GetDataSize(*t) + 63) / 64 * 64);
  }
  void FreeData(DLTensor* t) { std::free(t->data); }
};

float* Values(const ffi::Tensor& tensor) { return static_cast<float*>(tensor.data_ptr()); }

ffi::Tensor Read(const std::string& file, ffi::Shape shape) {
  ffi::Tensor tensor =
      ffi::Tensor::FromNDAlloc(Memory(), shape, DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  std::streamsize bytes = ffi::GetDataSize(tensor);
  std::ifstream stream(file, std::ios::binary);
  if (!stream.read(reinterpret_cast<char*>(Values(tensor)), bytes)) {
    std::fprintf(stderr, "%s: cannot be read\n", file.c_str());
    std::exit(2);
  }
  return tensor;
}

int Run(const std::string& folder, int runs) {
  ffi::Module library = ffi::Module::LoadFromFile(folder + "/model.so");
  ffi::Module vm = (*library->GetFunction("vm_load_executable"))().cast<ffi::Module>();
  constexpr int kPooledAllocator = 2;
  (*vm->GetFunction("vm_initialization"))(static_cast<int>(kDLCPU), 0, kPooledAllocator);
  ffi::Function model = *vm->GetFunction("main");

  ffi::Tensor input = Read(folder + "/input.bin", {1, 100, 1, 1});
  ffi::Tensor wanted = Read(folder + "/wanted.bin", {1, 3, 64, 64});
  ffi::Tensor got = model(input).cast<ffi::Tensor>();
  float error = 0, largest = 0;
  for (int64_t i = 0; i < wanted.numel(); ++i) {
    float difference = std::fabs(Values(got)[i] - Values(wanted)[i]);
    if (!(difference <= error)) error = difference;  // a NaN counts
    largest = std::max(largest, std::fabs(Values(wanted)[i]));
  }

  std::vector<double> ms;
  for (int i = 0; i < runs; ++i) {
    auto start = std::chrono::steady_clock::now();
    model(input);
    std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
    ms.push_back(took.count());
  }
  std::printf("error %.2g of the largest value", error / largest);
  if (runs) {
    std::sort(ms.begin(), ms.end());
    std::printf(", median %.3f ms, least %.3f ms", ms[runs / 2], ms[0]);
  }
  std::puts("");
  // float32 against PyTorch in float64: five layers, each a rounding of sums of up to 2048 products.
  return error / largest < 1e-5 ? 0 : 1;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "run_model FOLDER [RUNS]\n");
    return 2;
  }
  try {
    return Run(argv[1], argc > 2 ? std::atoi(argv[2]) : 0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
