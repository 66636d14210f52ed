#!/usr/bin/env bash
# Builds etcd and the control plane of a Kubernetes release from the Go module proxy into the folder of binaries of lab/kubernetes.
#
#   scripts/build-kubernetes.sh [RELEASE...]      default: 1.36.3
#
# The folder is LINKWISE_TEST_KUBERNETES_BIN, or ~/.cache/linkwise/kubernetes; the binaries lie in a folder per release. A program that is there already
# is not built again. The first release takes about 8 minutes on 2 idle cores, 3 GB of Go's build cache and 2.2 GB of memory. Needs Go 1.26.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

have go || fail "Go is missing; install Go 1.26 or newer (go.dev/dl, or apt-get install golang) and try again"
export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=-mod=mod
folder=${LINKWISE_TEST_KUBERNETES_BIN:-$HOME/.cache/linkwise/kubernetes}
programs=(etcd kube-apiserver kube-scheduler kube-controller-manager)

# module RELEASE FOLDER: a module whose dependencies are those of this release. Kubernetes requires its staging modules at v0.0.0, because they lie in
# its own tree; each is replaced by the module that was published with the release.
module() {
  local release=$1 staging=v0.${1#1.} source
  go mod download "k8s.io/kubernetes@v$release" || fail "the module proxy has no k8s.io/kubernetes@v$release"
  source=$(go env GOMODCACHE)/k8s.io/kubernetes@v$release
  {
    printf 'module linkwise.test/control-plane\n\n'
    grep -E '^go [0-9.]+$' "$source/go.mod"
    printf '\nrequire k8s.io/kubernetes v%s\n\nreplace (\n' "$release"
    sed -n 's#^\t\(k8s.io/[a-z-]*\) => ./staging/.*#\1#p' "$source/go.mod" | while read -r name; do printf '\t%s => %s %s\n' "$name" "$name" "$staging"; done
    printf ')\n'
  } >"$2/go.mod"
  cp "$source/go.sum" "$2/go.sum"
  chmod u+w "$2/go.sum"
  {
    printf '//go:build tools\n\npackage tools\n\nimport (\n\t_ "go.etcd.io/etcd/server/v3"\n'
    printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' kube-apiserver kube-controller-manager kube-scheduler
    printf ')\n'
  } >"$2/tools.go"
  (cd "$2" && go mod tidy)
}

for release in "${@:-1.36.3}"; do
  out=$folder/$release
  missing=()
  for program in "${programs[@]}"; do [ -x "$out/$program" ] || missing+=("$program"); done
  [ ${#missing[@]} -gt 0 ] || { say "$release: all programs are in $out"; continue; }
  mkdir -p "$out"
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  say "$release: modules"
  module "$release" "$work" >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the modules of Kubernetes $release could not be fetched"; }
  flags="-s -w -X k8s.io/component-base/version.gitVersion=v$release -X k8s.io/component-base/version.gitMajor=1"
  flags="$flags -X k8s.io/component-base/version.gitMinor=$(cut -d. -f2 <<<"$release") -X k8s.io/client-go/pkg/version.gitVersion=v$release"
  for program in "${missing[@]}"; do
    begin=$SECONDS package=k8s.io/kubernetes/cmd/$program
    [ "$program" != etcd ] || package=go.etcd.io/etcd/server/v3
    # An interrupted build must not leave half a program.
    (cd "$work" && nice -n 10 go build -trimpath -ldflags "$flags" -o "$out/.$program" "$package") || fail "$program $release does not build"
    mv "$out/.$program" "$out/$program"
    say "$release: $program, $((SECONDS - begin)) s, $(du -h "$out/$program" | cut -f1)"
  done
  rm -rf "$work"
done
