#!/usr/bin/env bash
# Compares real NCCL with 2, 4 and 8 ranks on ONE GPU (real kernels) with the bench's emulation of the same machine: graphs, table and
# decisions must be equal. docs/nccl-on-one-gpu.md lists what is compared.
#
#   scripts/nccl-one-gpu.sh [OUT]      logs go to OUT (out/nccl-one-gpu)
#   LIBNCCL=... LIBCUDART=...          libraries to use; otherwise wheels are fetched with pip (NCCL 2.30.3 or newer is needed)
#   ONLY=emulation                     only the emulated half, with a topology file in TOPOLOGY: needs no GPU
#
# The half with a GPU HAS NOT BEEN RUN YET, because no GPU was available. The emulated half has been run.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
have cc || fail "a C compiler is needed: apt-get install gcc libc6-dev"

out=${1:-out/nccl-one-gpu}
mkdir -p "$out"
out=$(cd "$out" && pwd)
only=${ONLY:-both}
sources=crates/nccl-bench/emulation
ranks_list=(2 4 8)
seconds_max=300 # per run; eight ranks that share one GPU take seconds

# library WHEEL MEMBER: path of one file of a wheel, kept in OUT.
library() {
  local file=$out/${2##*/}
  if [ ! -f "$file" ]; then
    python3 -m pip download -q --no-deps -d "$out/wheel" "$1" >&2
    python3 - "$out/wheel" "$2" "$file" <<'PY'
import glob, os, shutil, sys, zipfile
wheels = glob.glob(sys.argv[1] + "/*.whl")
for w in wheels:
    z = zipfile.ZipFile(w)
    for name in z.namelist():
        if name.endswith(sys.argv[2]):
            with z.open(name) as src, open(sys.argv[3], "wb") as dst: shutil.copyfileobj(src, dst, 1 << 20)
for w in wheels: os.remove(w)
PY
  fi
  [ -f "$file" ] || fail "no $2 in $1"
  printf '%s\n' "$file"
}

nccl=${LIBNCCL:-$(library nvidia-nccl-cu12==2.30.7 lib/libnccl.so.2)}
cc -O2 -std=gnu11 -o "$out/runner" $sources/runner.c -ldl -lpthread
cc -O2 -std=gnu11 -shared -fPIC -fvisibility=hidden -o "$out/libemulation.so" \
  $sources/{config,device,memory,vmm,stream,graph,attach,libc,nvml}.c -ldl -lpthread

# Every fourth power from 1 KiB to 64 MiB, and captured calls.
plan=$out/plan
{
  for name in all_reduce all_gather reduce_scatter broadcast reduce; do
    for power in 10 14 18 22 26; do echo "$name $((1 << power))"; done
  done
  echo "graph all_reduce 1048576"
} >"$plan"

# run NAME RANKS [VAR=VALUE...]: the log is OUT/NAME.RANKS.log
run() {
  local name=$1 ranks=$2
  shift 2
  rm -f "$out/id"
  # Few channels: the kernels of all ranks have to fit on the GPU at once. One process: no MPS is needed.
  env -u NCCL_DEBUG_FILE "$@" LINKWISE_DEVICES=1 NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_NVLS_ENABLE=0 NCCL_MAX_CTAS=4 \
    NCCL_HOSTID=one NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1 NCCL_RAS_ENABLE=0 NCCL_TUNER_PLUGIN=none \
    NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING \
    timeout "$seconds_max" "$out/runner" "$nccl" 0 0 "$ranks" "$ranks" "$out/id" "$plan" both >"$out/$name.$ranks.log" 2>"$out/$name.$ranks.err" || {
    tail -n 5 "$out/$name.$ranks.log" "$out/$name.$ranks.err"
    fail "$name with $ranks ranks did not end well"
  }
}

# NCCL's decisions, without process numbers and sorted, because the order of ranks varies.
decided() {
  sed -n -E 's/^.*NCCL INFO +(Pattern |Ring [0-9]|Trees |Algorithm +\||All(Reduce|Gather)[ :]|ReduceScatter[ :]|Broadcast[ :]|Reduce[ :]|[0-9]+ coll channels)/\1/p; s/^@linkwise (estimate)/\1/p' "$1" |
    grep -E 'Pattern|Ring|Trees|\||Bytes ->|coll channels|estimate' | sort -u
}

topology=${TOPOLOGY:-$out/topology.xml}
different=0
for ranks in "${ranks_list[@]}"; do
  if [ "$only" != emulation ]; then
    have nvidia-smi || fail "no nvidia-smi: this half needs a GPU and its driver (ONLY=emulation runs the other)"
    cudart=${LIBCUDART:-$(library nvidia-cuda-runtime-cu12 lib/libcudart.so.12)}
    run gpu "$ranks" CUDA_VISIBLE_DEVICES=0 LINKWISE_CUDART="$cudart" NCCL_TOPO_DUMP_FILE="$topology"
    [ -f "$topology" ] || fail "NCCL wrote no topology file"
    bus_id=$(nvidia-smi -i 0 --query-gpu=pci.bus_id --format=csv,noheader | tr 'A-Z' 'a-z' | sed 's/^0000//')
    capability=$(nvidia-smi -i 0 --query-gpu=compute_cap --format=csv,noheader | tr -d .)
  else
    [ -f "$topology" ] || fail "TOPOLOGY names a topology file for the emulated half"
    bus_id=$(sed -n 's/.*<pci busid="\([^"]*\)" class="0x0302.*/\1/p' "$topology" | head -n 1)
    capability=$(sed -n 's/.*<gpu .*sm="\([0-9]*\)".*/\1/p' "$topology" | head -n 1)
  fi
  mkdir -p "$out/shm"
  run emulation "$ranks" LD_PRELOAD="$out/libemulation.so" LINKWISE_EMU_BUS_IDS="$bus_id" LINKWISE_EMU_SM="$capability" \
    LINKWISE_EMU_SHARED_MEMORY="$out/shm" NCCL_TOPO_FILE="$topology"
  if grep -q 'not emulated' "$out/emulation.$ranks.err"; then fail "the emulation lacks a function: see $out/emulation.$ranks.err"; fi
  decided "$out/emulation.$ranks.log" >"$out/emulation.$ranks.decided"
  [ -s "$out/emulation.$ranks.decided" ] || fail "no decision in $out/emulation.$ranks.log"
  if [ "$only" = emulation ]; then
    say "$ranks ranks: $(grep -c 'Bytes ->' "$out/emulation.$ranks.decided") decisions in the emulation"
    continue
  fi
  decided "$out/gpu.$ranks.log" >"$out/gpu.$ranks.decided"
  if diff "$out/gpu.$ranks.decided" "$out/emulation.$ranks.decided" >"$out/$ranks.diff"; then
    say "$ranks ranks: GPU and emulation agree in $(wc -l <"$out/gpu.$ranks.decided") lines; sums on the GPU are right"
  else
    different=1
    say "$ranks ranks: $(grep -c '^[<>]' "$out/$ranks.diff") lines differ: $out/$ranks.diff"
  fi
done
exit $different
