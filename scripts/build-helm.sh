#!/usr/bin/env bash
# Builds Helm from the Go module proxy into the folder of programs of lab/kubernetes, for the test of the chart.
#
#   scripts/build-helm.sh
#
# The folder is LINKWISE_TEST_KUBERNETES_BIN, or ~/.cache/linkwise/kubernetes. A Helm that is there already is not built again. Helm's Kubernetes
# modules are those of the control plane that scripts/build-kubernetes.sh builds, so that Go compiles them once: about 2 minutes after that
# script, 5 minutes without. Needs Go 1.26.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"

helm=3.21.4 staging=v0.36.3
have go || fail "Go is missing; install Go 1.26 or newer (go.dev/dl, or apt-get install golang) and try again"
export GOTOOLCHAIN=local CGO_ENABLED=0 GOFLAGS=-mod=mod
folder=${LINKWISE_TEST_KUBERNETES_BIN:-$HOME/.cache/linkwise/kubernetes}
out=$folder/helm-$helm
[ ! -x "$out" ] || { say "helm $helm: $out"; exit 0; }
mkdir -p "$folder"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
{
  printf 'module linkwise.test/helm\n\ngo 1.26.0\n\nrequire (\n\thelm.sh/helm/v3 v%s\n' "$helm"
  for name in api apiextensions-apiserver apimachinery apiserver cli-runtime client-go component-base kubectl; do printf '\tk8s.io/%s %s\n' "$name" "$staging"; done
  printf ')\n'
} >"$work/go.mod"
printf '//go:build tools\n\npackage tools\n\nimport _ "helm.sh/helm/v3/cmd/helm"\n' >"$work/tools.go"
say "helm $helm: modules"
(cd "$work" && go get helm.sh/helm/v3/cmd/helm@v"$helm") >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "the modules of Helm $helm could not be fetched"; }
# An interrupted build must not leave half a program.
flags="-s -w -X helm.sh/helm/v3/internal/version.version=v$helm"
(cd "$work" && nice -n 10 go build -trimpath -ldflags "$flags" -o "$out.part" helm.sh/helm/v3/cmd/helm) || fail "helm $helm does not build"
mv "$out.part" "$out"
say "helm $helm: $out, $SECONDS s"
