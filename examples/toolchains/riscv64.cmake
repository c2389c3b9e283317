# SPDX-License-Identifier: Apache-2.0
# Cross-compiling for Linux on riscv64; tests run under qemu. Debian:
#   apt-get install qemu-user-static gcc-riscv64-linux-gnu g++-riscv64-linux-gnu
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR riscv64)
set(CMAKE_C_COMPILER riscv64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER riscv64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-riscv64-static -L /usr/riscv64-linux-gnu)
# Programs such as Python are this machine's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
