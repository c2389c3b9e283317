#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Build a wheel of TVM from its sources, for CPUs, with LLVM and nothing else.
#
#     scripts/build_tvm.sh TREE OUT
#
# TREE is a checkout of TVM with 3rdparty/tvm-ffi and its submodules; OUT gets the wheel.
# A second build in the same tree compiles what has changed.  The first takes about 75 minutes of
# one core.  Variables: LLVM_CONFIG (llvm-config-19), CC (clang-19), CXX (clang++-19), PYTHON
# (python3), VERSION (0.28.dev0, what the wheel calls itself).
#
# Needed from Debian: llvm-19-dev clang-19 lld-19 ccache zlib1g-dev libzstd-dev libxml2-dev; from pip
# cmake (3.26 or newer) and ninja, on the PATH.
set -eu

if [ $# -ne 2 ]; then
    sed -n '3,13p' "$0" >&2
    exit 2
fi
tree=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
export CC="${CC:-clang-19}" CXX="${CXX:-clang++-19}"
llvm_config=${LLVM_CONFIG:-llvm-config-19}

for needed in "$CC" "$CXX" ld.lld-19 ccache cmake ninja "$llvm_config"; do
    command -v "$needed" > /dev/null || { echo "build_tvm.sh: $needed is missing" >&2; exit 2; }
done
for folder in . dlpack libbacktrace; do
    test -n "$(ls "$tree/3rdparty/tvm-ffi/3rdparty/$folder" 2> /dev/null)" || {
        echo "build_tvm.sh: 3rdparty/tvm-ffi/3rdparty/$folder is empty, git submodule update --init --recursive" >&2
        exit 2
    }
done

# A checkout without tags has no version of its own.
export SETUPTOOLS_SCM_PRETEND_VERSION="${VERSION:-0.28.dev0}"
exec "${PYTHON:-python3}" -m pip wheel "$tree" --no-deps --wheel-dir "$out" --verbose \
    --config-settings=cmake.define.USE_LLVM="$llvm_config --link-shared" \
    --config-settings=cmake.define.USE_Z3=OFF \
    --config-settings=cmake.define.HIDE_PRIVATE_SYMBOLS=ON \
    --config-settings=cmake.define.CMAKE_C_COMPILER_LAUNCHER=ccache \
    --config-settings=cmake.define.CMAKE_CXX_COMPILER_LAUNCHER=ccache \
    --config-settings=cmake.define.CMAKE_SHARED_LINKER_FLAGS=-fuse-ld=lld-19
