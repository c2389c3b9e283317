/*
 * Licensed to the Apache Software Foundation (ASF) under one
 * or more contributor license agreements.  See the NOTICE file
 * distributed with this work for additional information
 * regarding copyright ownership.  The ASF licenses this file
 * to you under the Apache License, Version 2.0 (the
 * "License"); you may not use this file except in compliance
 * with the License.  You may obtain a copy of the License at
 *
 *   http://www.apache.org/licenses/LICENSE-2.0
 *
 * Unless required by applicable law or agreed to in writing,
 * software distributed under the License is distributed on an
 * "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY
 * KIND, either express or implied.  See the License for the
 * specific language governing permissions and limitations
 * under the License.
 */

/*!
 * \file output_padding.h
 * \brief The rule for the output padding of transposed convolutions.
 */
#ifndef TVM_RELAX_OP_NN_OUTPUT_PADDING_H_
#define TVM_RELAX_OP_NN_OUTPUT_PADDING_H_

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cstdint>

namespace tvm {
namespace relax {

/*!
 * \brief Whether each output padding is at least 0 and smaller than the stride or the dilation.
 *
 * Up to the stride it chooses among the outputs whose convolution has the size of the input; a
 * dilation leaves positions that no tap meets, and so do PyTorch and ONNX allow it.
 */
inline bool IsOutputPaddingValid(const ffi::Array<int64_t>& output_padding,
                                 const ffi::Array<int64_t>& strides,
                                 const ffi::Array<int64_t>& dilation) {
  for (size_t i = 0; i < output_padding.size(); ++i) {
    int64_t limit = std::max<int64_t>(strides[i], dilation[i]);
    if (output_padding[i] < 0 || output_padding[i] >= limit) return false;
  }
  return true;
}

}  // namespace relax
}  // namespace tvm

#endif  // TVM_RELAX_OP_NN_OUTPUT_PADDING_H_
