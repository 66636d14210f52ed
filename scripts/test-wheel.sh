#!/usr/bin/env bash
# Installs the wheel of out/ into a fresh virtual environment without the package index, does the main job with its command and its module,
# checks that `linkwise run` finds the plugin of the wheel, and removes it again. Builds the wheel first if there is none.
#
#   scripts/test-wheel.sh [WHEEL]
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
wheel=${1:-}
newest() { find out -maxdepth 1 -name 'linkwise-*.whl' -printf '%T@ %p\n' 2>/dev/null | sort -rn | sed -n '1s/^[^ ]* //p'; }
[ -n "$wheel" ] || wheel=$(newest)
[ -n "$wheel" ] || { scripts/build-wheel.sh out; wheel=$(newest); }
[ -f "$wheel" ] || fail "no wheel $wheel"
wheel=$(realpath "$wheel")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Nothing of the checkout and of an outer environment may help.
for name in $(env | sed -n 's/^\(LINKWISE_[A-Z_]*\|NCCL_[A-Z_]*\|PYTHON[A-Z]*\)=.*/\1/p'); do unset "$name"; done
PATH=$(printf '%s' "$PATH" | tr ':' '\n' | grep -v "^$root" | paste -sd:)
check() { say "ok: $1"; }

begin=$(date +%s)
python3 -m venv venv
venv/bin/pip install --quiet --no-index "$wheel"
check "installed $(basename "$wheel") without the package index"
bin=$work/venv/bin
"$bin/linkwise" --version | grep -qx "linkwise $(venv/bin/python -c 'import linkwise; print(linkwise.__version__)')" || fail "versions differ"
"$bin/linkwise" nccl explain --cluster h100 | grep -qi 'ring' || fail "nccl explain names no algorithm"
check "linkwise nccl explain --cluster h100"

# The main job: measure (simulated), fit, place; the module gives the command's answer.
"$bin/linkwise" measure --cluster h100 --backend simulated --samples 20 --store r.db >measure.log 2>&1 || fail "measure: $(cat measure.log)"
"$bin/linkwise" fit --store r.db --cluster h100 -o model.json >fit.log 2>&1 || fail "fit: $(cat fit.log)"
"$bin/linkwise" place --cluster h100 --model model.json --gpus 12 --format json >answer.json || fail "place"
venv/bin/python - <<'PY' || fail "the module's answer differs from the command's"
import json, linkwise
with open("answer.json") as file:
    told = json.load(file)
told = told[0] if isinstance(told, list) else told
choice = linkwise.Engine(cluster="h100", model="model.json").place(12)
assert choice.gpus == told["gpus"], (choice.gpus, told)
assert choice.predicted_busbw_gb_per_s == told["predicted_busbw_gb_per_s"]
PY
check "measure, fit and place; the module answers as the command does"

"$bin/linkwise" run --observe -- sh -c 'echo "$NCCL_TUNER_PLUGIN"' >plugin.txt 2>run.log || fail "run: $(cat run.log)"
[ "$(cat plugin.txt)" = "$work/venv/lib/liblinkwise_nccl.so" ] || fail "run uses $(cat plugin.txt)"
"$bin/linkwise-plugin-check" "$work/venv/lib/liblinkwise_nccl.so" >check.txt 2>&1 || fail "the plugin cannot be loaded: $(cat check.txt)"
check "linkwise run finds the plugin of the wheel, and it can be loaded"

# Tools that install programs for a user put a link on PATH.
mkdir links && ln -s "$bin/linkwise" links/linkwise
links/linkwise run --observe -- sh -c 'echo "$NCCL_TUNER_PLUGIN"' 2>/dev/null | grep -q "$work/venv/lib/" || fail "through a link the plugin is not found"
check "through a link, as pipx and uv make it"

# From a folder of wheels, as a site keeps them; nothing else is asked.
if have uvx; then
  mkdir wheels && cp "$wheel" wheels/
  UV_CACHE_DIR=$work/uv uvx --no-index --find-links wheels linkwise nccl explain --cluster h100 2>uvx.log | grep -qi 'ring' || fail "uvx: $(cat uvx.log)"
  check "uvx linkwise nccl explain --cluster h100"
else
  say "SKIP test-wheel: uvx linkwise: no uvx (python3 -m pip install uv)"
fi

venv/bin/python -c "
from importlib.metadata import entry_points
(found,) = [e for e in entry_points().select(group='torchrun.handlers') if e.name == 'linkwise']
assert callable(found.load()())" || fail "torchrun would not find the rendezvous"
check "the rendezvous for torchrun is registered"

venv/bin/pip uninstall --quiet --yes linkwise
left=$(find venv -iname '*linkwise*' -not -name '*.pyc' -not -type d)
[ -z "$left" ] || fail "left behind: $left"
check "removed; nothing is left"
say "the wheel works: $(($(date +%s) - begin)) s"
