#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# without_python.sh PROGRAM MODEL_FOLDER [ARGUMENT ...]: copies a program, its shared libraries and a
# model into an empty folder, and runs it with that for its root, where nothing else is: no Python.
# Where this user may not change the root, with an empty environment and the copied libraries only.
set -eu
program=$1 model=$2
shift 2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/lib" "$root/model" "$root/tmp"
cp "$program" "$root/program"
cp "$model"/* "$root/model"
# "name => path (address)", and the loader, which is named by its path alone.
for file in "$program" "$model/model.so"; do
  ldd "$file" | sed -nE 's/^[^=]*=> (\/[^ ]+) \(.*$/\1/p'
done | sort -u | while read -r library; do cp -L "$library" "$root/lib/"; done
loader=$(ldd "$program" | sed -nE 's/^[[:space:]]*(\/[^ ]*ld[^ ]*) \(.*$/\1/p')
mkdir -p "$root$(dirname "$loader")"
cp -L "$loader" "$root$loader"

for way in "chroot" "unshare --map-root-user chroot"; do
  status=0
  env -i PATH="$PATH" LD_LIBRARY_PATH=/lib $way "$root" /program >/dev/null 2>&1 || status=$?
  if [ "$status" = 2 ]; then # the program itself, which wants an argument
    echo "its root: the program, $(du -sLk "$root/lib" | cut -f1) KB of libraries, and the model"
    env -i PATH="$PATH" LD_LIBRARY_PATH=/lib TVM_NUM_THREADS="${TVM_NUM_THREADS:-1}" \
      $way "$root" /program /model "$@"
    exit
  fi
done
echo "the root cannot be changed here: an empty environment and the copied libraries"
env -i LD_LIBRARY_PATH="$root/lib" TVM_NUM_THREADS="${TVM_NUM_THREADS:-1}" \
  "$root/program" "$root/model" "$@"
