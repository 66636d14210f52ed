#!/usr/bin/env bash
# Makes the packages of a release from the wheel, whose programs run with glibc 2.28 and later: nothing is compiled here.
#
#   scripts/build-packages.sh [WHEEL] [OUT]      default: the newest wheel in out/ for this machine, and out/release
#
# A wheel for another machine, such as aarch64, needs the wheel of the same version for this machine beside it: its command writes the manual pages and the
# shells' completion, which are the same for every machine.
#
# OUT gets linkwise_VERSION_amd64.deb, linkwise-VERSION-1.x86_64.rpm (where rpmbuild is), linkwise-VERSION-x86_64-linux.tar.xz, an SBOM
# (CycloneDX) and SHA256SUMS. The same wheel gives the same bytes: names are sorted, times are those of SOURCE_DATE_EPOCH, else of the last commit.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
newest() { find out -maxdepth 1 -name "linkwise-*manylinux_2_28_$(uname -m).whl" -printf '%T@ %p\n' 2>/dev/null | sort -rn | sed -n '1s/^[^ ]* //p'; }
wheel=${1:-$(newest)} out=${2:-out/release}
[ -f "$wheel" ] || fail "no wheel ${wheel:-for glibc 2.28 in out/}; \`make wheel\` makes one"
have dpkg-deb || fail "no dpkg-deb here"
have xz || fail "no xz here; install xz-utils"
version=$(basename "$wheel" | cut -d- -f2)
machine=$(basename "$wheel" .whl | sed 's/.*manylinux_2_28_//')
case $machine in
x86_64) deb_machine=amd64 ;;
aarch64) deb_machine=arm64 ;;
*) fail "$wheel is for $machine; x86_64 or aarch64 was expected" ;;
esac
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 315532800)}
export SOURCE_DATE_EPOCH
umask 022
work=$(mktemp -d)
# shellcheck disable=SC2064 # the folder of now
trap "rm -rf '$work'" EXIT
mkdir -p "$out" "$work/wheel" "$work/man"
out=$(realpath "$out")
python3 -m zipfile -e "$wheel" "$work/wheel"
data=$work/wheel/linkwise-$version.data
chmod 0755 "$data"/scripts/*
command=$data/scripts/linkwise
# The command that runs here: the wheel's, else that of the wheel for this machine.
runs=$command
if [ "$machine" != "$(uname -m)" ]; then
  other=${wheel%"_$machine.whl"}_$(uname -m).whl
  [ -f "$other" ] || fail "no wheel $other, whose command writes the manual pages for those of $machine; \`make wheel\` makes one"
  python3 -m zipfile -e "$other" "$work/here"
  runs=$work/here/linkwise-$version.data/scripts/linkwise
  chmod 0755 "$runs"
fi
[ "$("$runs" --version)" = "linkwise $version" ] || fail "the command of the wheel for $(uname -m) does not run here"
"$runs" man "$work/man"
gzip -9n "$work"/man/*.1
for shell in bash zsh fish; do "$runs" completion $shell >"$work/completion.$shell"; done

# tree FOLDER ZSH: what deb and rpm install; they differ in the folder of zsh's completions.
tree() {
  local to=$1
  install -D -m 0755 "$command" "$to/usr/bin/linkwise"
  install -D -m 0755 "$data/scripts/linkwise-plugin-check" "$to/usr/libexec/linkwise-plugin-check"
  for plugin in "$data"/data/lib/*.so; do install -D -m 0644 "$plugin" "$to/usr/lib/linkwise/$(basename "$plugin")"; done
  install -D -m 0644 packaging/linkwise.service "$to/usr/lib/systemd/system/linkwise.service"
  install -D -m 0644 packaging/serve.env "$to/etc/linkwise/serve.env"
  install -d "$to/usr/share/man/man1"
  install -m 0644 "$work"/man/*.gz "$to/usr/share/man/man1/"
  install -D -m 0644 "$work/completion.bash" "$to/usr/share/bash-completion/completions/linkwise"
  install -D -m 0644 "$work/completion.fish" "$to/usr/share/fish/vendor_completions.d/linkwise.fish"
  install -D -m 0644 "$work/completion.zsh" "$to/usr/share/zsh/$2/_linkwise"
  install -d "$to/usr/share/doc/linkwise"
  install -m 0644 docs/server.md docs/install.md "$to/usr/share/doc/linkwise/"
  gzip -9nc CHANGELOG.md >"$to/usr/share/doc/linkwise/CHANGELOG.md.gz"
}
same_times() { find "$1" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +; }

# deb
deb=$work/deb
tree "$deb" vendor-completions
install -d "$deb/DEBIAN"
# What Debian's policy asks for: a changelog in its own form, and the licence by its name.
changes="linkwise ($version) unstable; urgency=medium

  * /usr/share/doc/linkwise/CHANGELOG.md.gz says what is new.

 -- linkwise <linkwise@localhost>  $(LC_ALL=C date -u -R -d "@$SOURCE_DATE_EPOCH")"
printf '%s\n' "$changes" | gzip -9n >"$deb/usr/share/doc/linkwise/changelog.gz"
cat >"$deb/usr/share/doc/linkwise/copyright" <<'COPYRIGHT'
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the authors of linkwise
License: Apache-2.0
 The full text is in /usr/share/common-licenses/Apache-2.0. The libraries in the
 programs and their licences are in the release's SBOM.
COPYRIGHT
chmod 0644 "$deb"/usr/share/doc/linkwise/*
install -m 0755 packaging/deb/postinst packaging/deb/prerm packaging/deb/postrm "$deb/DEBIAN/"
printf '/etc/linkwise/serve.env\n' >"$deb/DEBIAN/conffiles"
cat >"$deb/DEBIAN/control" <<CONTROL
Package: linkwise
Version: $version
Architecture: $deb_machine
Maintainer: linkwise <linkwise@localhost>
Section: admin
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$deb" | cut -f1)
Depends: libc6 (>= 2.28)
Description: choose GPUs, links and NCCL settings by measured bandwidth
 The command linkwise, its NCCL tuner and network plugins, and a unit for its
 server. Nothing is started: put the site's cluster file into
 /etc/linkwise/cluster.yaml, then start linkwise.service.
CONTROL
(cd "$deb" && find usr etc -type f -print0 | sort -z | xargs -0 md5sum) >"$work/md5sums"
grep -v ' etc/' "$work/md5sums" >"$deb/DEBIAN/md5sums"
same_times "$deb"
dpkg-deb --root-owner-group -Zxz --build "$deb" "$out/linkwise_${version}_$deb_machine.deb" >/dev/null

# rpm
if have rpmbuild; then
  tree "$work/rpm" site-functions
  install -m 0644 LICENSE "$work/rpm/usr/share/doc/linkwise/"
  same_times "$work/rpm"
  rpmbuild --quiet -bb --target "$machine-linux" --define "_topdir $work/rpmbuild" --define "_rpmdir $work/rpms" --define "tree $work/rpm" \
    --define "release_version $version" --define "_buildhost linkwise" --define "use_source_date_epoch_as_buildtime 1" \
    --define "clamp_mtime_to_source_date_epoch 1" --define "_binary_payload w6.xzdio" --define "_docdir /usr/share/doc" \
    packaging/linkwise.spec >"$work/rpm.log" 2>&1 || { tail -n 20 "$work/rpm.log" >&2; fail "rpmbuild"; }
  cp "$work/rpms/$machine"/linkwise-*.rpm "$out/"
else
  say "note: no rpmbuild (apt-get install rpm): no rpm"
fi

# tarball: unpack it anywhere
name=linkwise-$version-$machine-linux
tar=$work/tar/$name
install -d "$tar/bin" "$tar/lib" "$tar/share/man/man1"
install -m 0755 "$data"/scripts/* "$tar/bin/"
install -m 0644 "$data"/data/lib/*.so "$tar/lib/"
install -m 0644 "$work"/man/*.gz "$tar/share/man/man1/"
install -D -m 0644 "$work/completion.bash" "$tar/share/bash-completion/completions/linkwise"
install -D -m 0644 "$work/completion.fish" "$tar/share/fish/vendor_completions.d/linkwise.fish"
install -D -m 0644 "$work/completion.zsh" "$tar/share/zsh/site-functions/_linkwise"
install -m 0644 LICENSE README.md CHANGELOG.md "$tar/"
tar -C "$work/tar" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -cf - "$name" | xz -T1 -6 >"$out/$name.tar.xz"

scripts/sbom.py "$version" >"$out/linkwise-$version.cdx.json"
cp "$wheel" "$out/"
(cd "$out" && find . -maxdepth 1 -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
(cd "$out" && find . -maxdepth 1 -type f -printf '%9s  %P\n' | sort -k2)
