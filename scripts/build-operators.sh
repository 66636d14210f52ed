#!/usr/bin/env bash
# Builds operators of Kubernetes from the Go module proxy into the folder of binaries of lab/kubernetes, for the test `operators`: JobSet, LeaderWorkerSet, Kueue.
#
#   scripts/build-operators.sh
#
# The folder is LINKWISE_TEST_KUBERNETES_BIN, or ~/.cache/linkwise/kubernetes; an operator is operators/NAME-VERSION/manager, with its own chart beside it. Each is
# built with the dependencies of its release, which the checksums of its go.sum fix. One that is there already is not built again. On 2 cores with a load of
# 12 to 20 they took 231 s, 850 s and 1,100 s. Needs Go 1.26.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

# Name, module, version, package of the program.
operators=(
  "jobset sigs.k8s.io/jobset 0.11.0 ."
  "lws sigs.k8s.io/lws 0.8.0 ./cmd"
  "kueue sigs.k8s.io/kueue 0.17.0 ./cmd/kueue"
)

have go || fail "Go is missing; install Go 1.26 or newer (go.dev/dl, or apt-get install golang) and try again"
export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=-buildvcs=false
folder=${LINKWISE_TEST_KUBERNETES_BIN:-$HOME/.cache/linkwise/kubernetes}/operators

for operator in "${operators[@]}"; do
  read -r name module version package <<<"$operator"
  out=$folder/$name-$version
  if [ -x "$out/manager" ]; then
    say "$name $version: is in $out"
    continue
  fi
  begin=$SECONDS work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  go mod download "$module@v$version" || fail "the module proxy has no $module@v$version"
  # A module in the cache is read-only, and is the main module only from a folder of its own.
  cp -r "$(go env GOMODCACHE)/$module@v$version" "$work/source"
  chmod -R u+w "$work/source"
  (cd "$work/source" && nice -n 10 go build -trimpath -ldflags '-s -w' -o "$work/manager" "$package") || fail "$name $version does not build"
  mkdir -p "$out"
  rm -rf "$out/chart"
  cp -r "$work/source/charts/$name" "$out/chart"
  # An interrupted build must not leave half a program.
  cp "$work/manager" "$out/.manager"
  mv "$out/.manager" "$out/manager"
  rm -rf "$work"
  say "$name $version: $((SECONDS - begin)) s, $(du -h "$out/manager" | cut -f1)"
done
