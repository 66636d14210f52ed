#!/usr/bin/env bash
# The whole test of integrations/kubernetes on real control planes: builds them and the operators if they are missing (scripts/build-kubernetes.sh,
# scripts/build-operators.sh), then runs gangs of real operators, kills the controller at every write, and runs 500 gangs under kills of the controller, the
# API server and etcd and cuts of the network, on every release.
#
#   scripts/test-kubernetes.sh [RELEASE...]      default: 1.36.3 1.35.4
#
# The gangs come in five parts with a seed each; a part that passed is not run again while the test program is the same. LINKWISE_TEST_KUBERNETES_GANGS sets
# the number of gangs of a part. Needs Go 1.26; no root.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
require_rust
[ $# -gt 0 ] || set -- 1.36.3 1.35.4
scripts/build-kubernetes.sh "$@"
scripts/build-helm.sh
scripts/build-operators.sh
export LINKWISE_TEST_KUBERNETES_GANGS=${LINKWISE_TEST_KUBERNETES_GANGS:-100}
program=$(cargo test --locked --workspace --test cluster --no-run 2>&1 | sed -n 's/^ *Executable .*cluster.* (\(.*\))$/\1/p')
done_parts=${CARGO_TARGET_DIR:-target}/test-kubernetes/$(sha256sum "$program" | cut -c1-16)
mkdir -p "$done_parts"
# part RELEASE NAME TEST ARGUMENTS...: runs tests once.
part() {
  local release=$1 name=$2 test=$3
  shift 3
  if [ -e "$done_parts/$release-$name" ]; then
    say "Kubernetes $release: $name passed before"
    return
  fi
  say "Kubernetes $release: $name"
  LINKWISE_TEST_KUBERNETES_RELEASE=$release cargo test --locked --quiet --workspace --test "$test" -- --nocapture --test-threads=1 --include-ignored "$@"
  touch "$done_parts/$release-$name"
}
for release in "$@"; do
  part "$release" install install
  part "$release" operators operators
  part "$release" cluster cluster --skip measured:: --skip chaos::
  for seed in 1 2 3 4 5; do
    LINKWISE_TEST_KUBERNETES_SEED=$seed part "$release" "$LINKWISE_TEST_KUBERNETES_GANGS gangs of seed $seed" cluster chaos::
  done
done
