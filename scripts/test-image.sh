#!/usr/bin/env bash
# Builds the container image from the wheel without any network, on a base that is made here (scripts/clean-root.sh: Debian 12 with Python), and runs the
# image as its user: the first answer, the main job, the server. Needs root, buildah and mmdebstrap; no registry.
#
#   scripts/test-image.sh [WHEEL]        default: the newest wheel for glibc 2.28 in out/
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
wheel=${1:-$(find out -maxdepth 1 -name "linkwise-*-manylinux_2_28_$(uname -m).whl" -printf '%T@ %p\n' 2>/dev/null | sort -rn | sed -n '1s/^[^ ]* //p')}
[ -f "$wheel" ] || fail "no wheel ${wheel:-for glibc 2.28 in out/}; \`make wheel\` makes one"
have buildah || fail "no buildah here; apt-get install buildah"
wheel=$(realpath "$wheel")
base=$(scripts/clean-root.sh bookworm | tail -n 1)
work=$(mktemp -d)
# Storage of its own, in which no other image is; chroot and the host's network namespace need no rights beyond root's.
export BUILDAH_ISOLATION=chroot
store=(--root "$work/store" --runroot "$work/run" --storage-driver vfs)
b() { buildah "${store[@]}" "$@"; }
# shellcheck disable=SC2064
trap "buildah ${store[*]@Q} rm --all >/dev/null 2>&1 || true; buildah ${store[*]@Q} rmi --all --force >/dev/null 2>&1 || true; rm -rf '$work'" EXIT
check() { say "ok: $1"; }

from=$(b from scratch)
b copy -q "$from" "$base" / >/dev/null
b commit -q "$from" localhost/base >/dev/null
b rm "$from" >/dev/null
check "a base of Debian 12, $(du -sm --exclude=proc "$base" | cut -f1) MB"

# The context has the wheel and the recipe's other files, as scripts/build-image.sh leaves them in out/.
mkdir -p "$work/context/out"
cp "$wheel" "$work/context/out/"
b bud -q --pull-never --network none -f packaging/container/Containerfile --build-arg BASE=localhost/base -t localhost/linkwise "$work/context" \
  >"$work/log" 2>&1 || { tail -n 20 "$work/log" >&2; fail "the image cannot be built"; }
check "packaging/container/Containerfile is built without a network"

image=$(b from --pull-never localhost/linkwise)
inside() { b run --network none "$image" -- "$@"; }
[ "$(inside id -u)" = 65532 ] || fail "the image's user is $(inside id -u)"
inside linkwise nccl explain --cluster h100 >"$work/explain" || fail "nccl explain"
grep -qi ring "$work/explain" || fail "nccl explain names no algorithm"
inside linkwise doctor install >"$work/doctor" 2>&1 || { cat "$work/doctor" >&2; fail "doctor install"; }
grep -q 'PASS plugin: ' "$work/doctor" || fail "doctor install does not pass the plugin"
check "as user 65532: nccl explain, doctor install"
# shellcheck disable=SC2016 # expanded in the image
inside sh -ec '
  linkwise measure --cluster h100 --backend simulated --samples 20 --store r.db
  linkwise fit --store r.db --cluster h100 -o model.json
  linkwise place --cluster h100 --model model.json --gpus 12
  linkwise run --observe -- sh -c "test -r \$NCCL_TUNER_PLUGIN"
  linkwise serve --cluster h100 --state site.state --listen 127.0.0.1:7878 & server=$!
  python3 - <<PY
import time, urllib.request
for _ in range(300):
    try:
        assert b"h100" in urllib.request.urlopen("http://127.0.0.1:7878/v1/cluster").read()
        break
    except OSError:
        time.sleep(0.1)
else:
    raise SystemExit("the server does not answer")
PY
  kill $server' >"$work/log" 2>&1 || { tail -n 30 "$work/log" >&2; fail "the main job in the image"; }
grep -q '12 GPUs' "$work/log" || fail "place"
check "measure, fit, place, run, serve in /var/lib/linkwise"
say "the image works"
