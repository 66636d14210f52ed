#!/usr/bin/env bash
# The whole test of integrations/kubernetes on real control planes: builds them if they are missing (scripts/build-kubernetes.sh), then kills the
# controller at every write, and runs 500 gangs under kills of the controller, the API server and etcd and cuts of the network, on every release.
#
#   scripts/test-kubernetes.sh [RELEASE...]      default: 1.36.3 1.35.4
#
# LINKWISE_TEST_KUBERNETES_GANGS sets the number of gangs, LINKWISE_TEST_KUBERNETES_SEED the random seed. Needs Go 1.26; no root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
[ $# -gt 0 ] || set -- 1.36.3 1.35.4
scripts/build-kubernetes.sh "$@"
scripts/build-helm.sh
export LINKWISE_TEST_KUBERNETES_LONG=1 LINKWISE_TEST_KUBERNETES_GANGS=${LINKWISE_TEST_KUBERNETES_GANGS:-500}
for release in "$@"; do
  say "Kubernetes $release"
  export LINKWISE_TEST_KUBERNETES_RELEASE=$release
  for test in install cluster; do
    cargo test --locked --quiet --workspace --test "$test" -- --nocapture --test-threads=1
  done
done
