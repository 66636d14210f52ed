#!/usr/bin/env bash
# A release: the wheel for glibc 2.28, twice, from two folders, with the same bytes; deb, rpm, tarball and SBOM from it, twice; each artefact tested in clean
# systems. Files in out/release. Takes two builds of the wheel (`LINKWISE_TEST_ONE_BUILD=1`: one, and says so). A release that was cut off goes on where it
# was, if the sources are the same.
#
#   scripts/release.sh
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
# Everything that a release needs, before the first build.
missing=()
needs() { have "$1" || missing+=("$1 ($2)"); }
needs readelf binutils
needs python3 python3
needs dpkg-deb dpkg
needs rpmbuild rpm
needs xz xz-utils
needs mmdebstrap mmdebstrap
needs curl curl
[ "$(id -u)" = 0 ] || missing+=("root's rights (for chroot)")
scripts/build-wheel.sh --has-zig || missing+=("zig (python3 -m pip install ziglang)")
if [ ${#missing[@]} != 0 ]; then
  printf '%s; ' "${missing[@]}" | sed 's/; $/\n/; s/^/error: a release needs, and this machine lacks: /' >&2
  exit 1
fi
require_rust
rm -rf out/release out/second
mkdir -p out/release out/second
# build SOURCE TARGET OUT: the wheel of the sources in SOURCE, built in the folder TARGET.
build() {
  local machine cflags
  machine=$(rustc -vV | sed -n 's/^host: //p')
  # build-wheel.sh takes the paths out of Rust's code; the C of SQLite and ring names its files, too.
  cflags="-ffile-prefix-map=$1=linkwise -ffile-prefix-map=$2=target -ffile-prefix-map=${CARGO_HOME:-$HOME/.cargo}=cargo"
  (cd "$1" && env "CFLAGS_${machine//-/_}=$cflags" CARGO_TARGET_DIR="$2" scripts/build-wheel.sh "$3")
}
# sources [PATH...]: what git knows or does not ignore.
sources() {
  git ls-files -z --cached --others --exclude-standard -- "$@" | while IFS= read -r -d '' file; do
    if [ -e "$file" ] || [ -L "$file" ]; then printf '%s\0' "$file"; fi # not one that the working tree has deleted
  done
}
copy_sources() {
  mkdir -p "$1"
  sources | tar --null --no-recursion -T - -cf - | tar -C "$1" -xf -
}
say "release: 1 of 4: the wheel"
build "$root" "${CARGO_TARGET_DIR:-$root/target}" "$root/out"
wheel=$(find out -maxdepth 1 -name "linkwise-*manylinux_2_28_$(uname -m).whl" -printf '%T@ %p\n' | sort -rn | sed -n '1s/^[^ ]* //p')
[ -n "$wheel" ] || fail "the wheel is not for glibc 2.28"
if [ "${LINKWISE_TEST_ONE_BUILD:-}" = 1 ]; then
  say "SKIP release: the wheel was built once (LINKWISE_TEST_ONE_BUILD)"
else
  say "release: 2 of 4: the wheel again, from nothing, from a copy of the sources in a folder whose name has another length"
  # The files of this working tree, not of the last commit: both builds are of the same sources. The folder is named after those of the wheel and
  # kept until the release is done, so that one that was cut off, or failed in a later test, goes on.
  second=${LINKWISE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/linkwise}/release
  elsewhere=$second/$(sources crates integrations lab python Cargo.toml Cargo.lock scripts/{build-wheel.sh,wheel.py,lib.sh} | xargs -0 sha256sum | sha256sum | cut -c1-16)
  [ -d "$elsewhere" ] || rm -rf "$second"
  copy_sources "$elsewhere/another/folder"
  build "$elsewhere/another/folder" "$elsewhere/target" "$root/out/second"
  cmp "$wheel" out/second/*.whl || fail "two builds of the wheel differ"
  say "two builds of the wheel have the same bytes"
fi
say "release: 3 of 4: packages"
scripts/build-packages.sh "$wheel" out/release
scripts/build-packages.sh "$wheel" out/second/release >/dev/null
diff out/release/SHA256SUMS out/second/release/SHA256SUMS || fail "two builds of the packages differ"
rm -rf out/second
say "two builds of the packages have the same bytes"
say "release: 4 of 4: tests in clean systems"
scripts/test-packages.sh out/release
rm -rf "${second:-}"
