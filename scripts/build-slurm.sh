#!/usr/bin/env bash
# Builds Slurm's plugins of linkwise, burst_buffer_linkwise.so and spank_linkwise.so, for the installed slurmctld. The controller loads a plugin only if its version is
# exactly its own, and does not start otherwise, so this builds from the distribution's source package of the same version.
#
#   scripts/build-slurm.sh [OUT]               OUT/burst_buffer_linkwise.so; default: out/slurm
#   scripts/build-slurm.sh OUT SOURCE          the same from a source tree of Slurm in which ./configure has run
#
# The source is kept in ${XDG_CACHE_HOME:-~/.cache}/linkwise/slurm/VERSION; the lists of packages of the system stay as they are.
# Needs gcc, make, patch and apt-get with the distribution's addresses. CFLAGS adds options, for example -fsanitize=address.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
out=${1:-out/slurm} source=${2:-}
here=$root/integrations/slurm

# fetch PACKAGE VERSION FOLDER: the patched and configured source of a Debian package.
fetch() {
  local package=$1 version=$2 folder=$3 work
  work=$(mktemp -d "$(dirname "$folder")/fetch.XXXXXX")
  # shellcheck disable=SC2064 # the folder of now
  trap "rm -rf '$work'" EXIT
  mkdir -p "$work/lists/partial" "$work/tree"
  # shellcheck disable=SC2016 # apt's own variables
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u | sed 's/^/deb-src /' >"$work/all"
  # All archives together, then each by itself: one may list a file that it no longer has.
  local line uri file hash apt=(apt-get -q -o APT::Sandbox::User=root -o "Dir::Etc::sourcelist=$work/list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists" \
    -o Acquire::Check-Valid-Until=false)
  while read -r line; do
    printf '%s\n' "$line" | sed 's/;/\n/g' >"$work/list"
    { "${apt[@]}" update && (cd "$work" && "${apt[@]}" source --download-only "$package=$version"); } >"$work/log" 2>&1 </dev/null && break
    rm -f "$work/$package"_*
  done < <(tr '\n' ';' <"$work/all" && echo && cat "$work/all")
  if ! compgen -G "$work/${package}_*.dsc" >/dev/null; then
    [ -n "${LINKWISE_TEST_SLURM_UNPATCHED:-}" ] || { tail -n 5 "$work/log" >&2; fail "cannot fetch the source package $package $version"; }
    # For tests only: upstream's part alone. If a patch changes a structure, the plugin can end the controller.
    cp "$work/all" "$work/list"
    read -r uri file _ hash < <("${apt[@]}" --print-uris source "$package=$version" 2>/dev/null | tr -d "'" | grep -F '.orig.tar.') || uri=
    if [ -z "$uri" ] || ! (cd "$work" && /usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "$uri" "$file" "$hash") >"$work/log" 2>&1; then
      tail -n 5 "$work/log" >&2
      fail "cannot fetch upstream's source of $package $version"
    fi
    say "note: without the patches of the distribution, which its archive does not have"
  fi
  tar xf "$work/$package"_*.orig.tar.* -C "$work/tree" --strip-components=1
  ! compgen -G "$work/${package}_*.debian.tar.*" >/dev/null || tar xf "$work/$package"_*.debian.tar.* -C "$work/tree"
  # Patches of the distribution may change private headers.
  { grep -v '^ *\(#\|$\)' "$work/tree/debian/patches/series" 2>/dev/null || true; } | while read -r name _; do
    patch -d "$work/tree" -p1 -s -f <"$work/tree/debian/patches/$name" >/dev/null || fail "the patch $name does not apply"
  done
  # Only config.h and slurm_version.h are needed; authentication and other libraries have no part in the headers that the plugin includes.
  (cd "$work/tree" && ./configure --prefix=/usr --sysconfdir=/etc/slurm --without-munge --without-rpath --disable-debug \
    --enable-multiple-slurmd >configure.log 2>&1) || { tail -n 5 "$work/tree/configure.log" >&2; fail "Slurm's ./configure failed"; }
  mv -T "$work/tree" "$folder"
}

if [ -z "$source" ]; then
  have slurmctld || fail "no slurmctld here; install it, or name a configured source tree"
  read -r package version < <(dpkg-query -W -f '${source:Package} ${source:Version}\n' slurmctld 2>/dev/null) ||
    fail "slurmctld is not from a Debian package; name the configured source tree that it was built from"
  cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/linkwise/slurm
  source=$cache/$version
  mkdir -p "$cache"
  [ -f "$source/config.h" ] || fetch "$package" "$version" "$source"
  want=$(slurmctld -V | awk '{ print $2 }')
else
  want=
fi
found=$(sed -n 's/^#define SLURM_VERSION_STRING "\(.*\)"/\1/p' "$source/config.h")
[ -z "$want" ] || [ "$found" = "$want" ] || fail "slurmctld is $want, its source says $found"
release=$(printf '%s' "$found" | cut -d. -f1-2)
[ -f "$here/slurm-$release.h" ] || fail "no shim for Slurm $release; there are: $(cd "$here" && printf '%s ' slurm-*.h)"
mkdir -p "$out"
# shellcheck disable=SC2086 # several options
gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -Wno-sign-compare -fPIC -shared -I"$source" -I"$source/slurm" \
  -DSHIM="\"slurm-$release.h\"" ${CFLAGS:-} -o "$out/burst_buffer_linkwise.so" "$here/linkwise.c" -lpthread
gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -Wno-unused-parameter -fPIC -shared -I"$source" -o "$out/spank_linkwise.so" "$here/spank.c"
say "$out/burst_buffer_linkwise.so and spank_linkwise.so for Slurm $found"
