# SPDX-License-Identifier: Apache-2.0
# Cross-compiling for Linux on aarch64; tests run under qemu. Debian:
#   apt-get install qemu-user-static gcc-aarch64-linux-gnu g++-aarch64-linux-gnu
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L /usr/aarch64-linux-gnu)
# Programs such as Python are this machine's.
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
