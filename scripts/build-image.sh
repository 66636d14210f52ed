#!/usr/bin/env bash
# Builds the container image of linkwise and of its controller for Kubernetes: the wheel and linkwise-kubernetes go into out/, and from there into
# packaging/container/Containerfile by podman or docker, whichever is there.
#
#   scripts/build-image.sh [NAME]        default: linkwise:VERSION
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
version=$(awk -F'"' '/^version *=/ { print $2; exit }' Cargo.toml)
name=${1:-linkwise:$version}
scripts/build-wheel.sh out kubernetes
# Of this version, the one that was just built: out/ keeps those of other versions and platforms.
wheel=$(find out -maxdepth 1 -name "linkwise-$version-*-manylinux_2_28_*.whl" -printf '%T@ %p\n' | sort -rn | sed -n '1s/^[^ ]* //p')
[ -n "$wheel" ] || fail "the wheel is not for glibc 2.28: zig is missing (python3 -m pip install ziglang)"
for engine in podman docker; do
  if have $engine && $engine info >/dev/null 2>&1; then
    exec $engine build -f packaging/container/Containerfile --build-arg "WHEEL=$wheel" -t "$name" .
  fi
done
fail "neither podman nor docker runs here; the files of the image are in out/: build it with
  podman build -f packaging/container/Containerfile --build-arg WHEEL=$wheel -t $name ."
