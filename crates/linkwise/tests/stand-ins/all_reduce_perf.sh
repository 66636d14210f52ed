#!/bin/sh
# Stands in for nccl-tests' all_reduce_perf where a document's block needs it: rows in its form, times made up (TREE/SIMPLE 60 us,
# AUTO 100, others 140; each with a wobble of 3 us). Reads -b -e -f -N.
n=1 f=2
while [ $# -gt 0 ]; do case "$1" in -b) b=$2;; -e) e=$2;; -f) f=$2;; -N) n=$2;; esac; shift; done
case "$NCCL_ALGO/$NCCL_PROTO" in TREE/SIMPLE) base=60;; /) base=100;; *) base=140;; esac
echo "# nccl-tests version 2.17.1 nccl-headers=22809 nccl-library=22809"
echo "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong"
i=0
while [ $i -lt "$n" ]; do
  s=$b
  while [ "$s" -le "$e" ]; do
    t=$((base * 100 + (i * 37) % 300))
    printf '%d %d float sum -1 %d.%02d 1.0 1.0 0 %d.50 1.0 1.0 0\n' "$s" $((s / 4)) $((t / 100)) $((t % 100)) $((t / 100))
    s=$((s * f))
  done
  i=$((i + 1))
done
echo "# Avg bus bandwidth    : 1.0"
