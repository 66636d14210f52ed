#!/usr/bin/env bash
# Builds the HOST half of NCCL from a source checkout with a C++ compiler alone (no nvcc, no GPU), for the bench where wheels are not wanted: kernels
# become empty functions, the CUDA runtime becomes stubs that the bench's emulation replaces. Tried with tag v2.27.7-1.
#
#   scripts/build-nccl-host.sh NCCL_CHECKOUT OUT CUDA_INCLUDE...
#
# CUDA_INCLUDE: include folders of the wheels nvidia-cuda-runtime-cu12, nvidia-cuda-nvcc-cu12 (crt/) and nvidia-cuda-cccl-cu12 (nv/).
# Then put OUT/libnccl.so.2 into the cache: ~/.cache/linkwise/nccl/VERSION/ (crates/nccl-bench/README.md). Do not commit these files.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,9p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
src=$(realpath "$1") out=$2
shift 2
mkdir -p "$out"/{inc,gen,sym,o}
out=$(realpath "$out")
includes=()
for folder in "$@"; do includes+=("-I$(realpath "$folder")"); done
number() { sed -n "s/^NCCL_$1 *:= *\([0-9]*\).*/\1/p" "$src/makefiles/version.mk" | head -n 1; }
major=$(number MAJOR) minor=$(number MINOR) patch=$(number PATCH)
cd "$src"

sed -e "s/\${nccl:Major}/$major/;s/\${nccl:Minor}/$minor/;s/\${nccl:Patch}/$patch/;s/\${nccl:Suffix}//;s/\${nccl:Version}/$((major * 10000 + minor * 100 + patch))/" \
  src/nccl.h.in >"$out/inc/nccl.h"
python3 src/device/generate.py "$out/gen" >/dev/null
[ ! -f src/device/symmetric/generate.py ] || python3 src/device/symmetric/generate.py "$out/sym" >/dev/null
export OUT=$out
export FLAGS="-include dlfcn.h -std=c++17 -O1 -fPIC -w -DCUDA_MAJOR=12 -DCUDA_MINOR=9 -DPROFAPI -DNVTX_NO_IMPL -DNVTX_DISABLE \
-I$out/inc -Isrc/include -Isrc/include/plugin -Isrc -Isrc/device ${includes[*]}"
# enhcompat.cc has weak versions of runtime functions, which would win over the stubs.
{
  find src -name '*.cc' | grep -v -e src/device/ -e enhcompat.cc -e ras/client.cc
  ls "$out"/gen/host_table.cc "$out"/sym/*.cc 2>/dev/null || true
} | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} bash -c 'g++ $FLAGS -c "{}" -o "$OUT/o/$(echo "{}" | tr / _).o"'

cd "$out"
g++ -shared -o undefined.so o/*.o -lpthread -ldl -lrt
undefined() { nm -D --undefined-only undefined.so | awk '{ print $2 }' | grep -vE '@|^_ITM|__gmon|__cxa|_ZTH'; }
# Stubs of 16 bytes each: the emulation writes its jumps there. Kernels are never run.
{
  echo '#define STUB(name) __asm__(".text\n.globl " #name "\n.type " #name ",@function\n.p2align 4\n" #name ": mov $801, %eax\nret\n.skip 10, 0x90\n.size " #name ", 16\n");'
  undefined | grep -E '^cuda' | sed 's/.*/STUB(&)/'
  undefined | grep -vE '^cuda' | awk '{ print "long " $1 "(void) { return 0; }" }'
} >stubs.c
gcc -c -fPIC -w -o stubs.o stubs.c
g++ -shared -Wl,-soname,libnccl.so.2 -o libnccl.so.2 o/*.o stubs.o -lpthread -ldl -lrt
ls -l "$out/libnccl.so.2"
