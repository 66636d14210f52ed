#!/usr/bin/env bash
# Runs aws-ofi-nccl's functional tests on the network plugin under AddressSanitizer and under ThreadSanitizer. Needs a checkout of
# aws-ofi-nccl, libopenmpi-dev, and a nightly toolchain with rust-src; prints SKIP without them.
#
#   LINKWISE_OFI_TESTS=CHECKOUT scripts/sanitize-net.sh [address|thread]...
#
# The standard library is built with the sanitizer, too, since ThreadSanitizer must see its locks. The tests' programs and the MPI library
# are not compiled with it: reports whose stacks lie in the MPI library alone are suppressed.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
[ -n "${LINKWISE_OFI_TESTS:-}" ] || { say "SKIP sanitize-net: LINKWISE_OFI_TESTS names no checkout of aws-ofi-nccl"; exit 0; }
have mpicxx || { say "SKIP sanitize-net: there is no mpicxx (libopenmpi-dev)"; exit 0; }
root=$(rustc +nightly --print sysroot 2>/dev/null) || { say "SKIP sanitize-net: no nightly toolchain"; exit 0; }
[ -d "$root/lib/rustlib/src" ] || { say "SKIP sanitize-net: rustup component add rust-src --toolchain nightly"; exit 0; }
target=$(rustc +nightly -vV | sed -n 's/^host: //p')
own_target=${CARGO_TARGET_DIR:-$PWD/target}
scratch=$(mktemp -d)
suppressed=$scratch/suppressed
trap 'rm -rf "$scratch"' EXIT
printf 'called_from_lib:%s\n' libmpi.so libopen-pal.so libopen-rte.so libpmix.so libevent_core libevent_pthreads >"$suppressed"
# A library with an error of each kind, to show that a report would be seen.
cat >"$scratch/wrong.rs" <<'END'
static mut COUNT: u64 = 0;
fn count() { for _ in 0..100_000 { unsafe { let at = &raw mut COUNT; at.write_volatile(at.read_volatile() + 1) } } }
#[unsafe(no_mangle)]
pub extern "C" fn thread() { let other = std::thread::spawn(count); count(); other.join().unwrap(); }
#[unsafe(no_mangle)]
pub extern "C" fn address() {
    let eight = vec![1u8; 8];
    unsafe { println!("{}", std::hint::black_box(eight.as_ptr()).add(8).read_volatile()) }
}
END
cat >"$scratch/host.c" <<'END'
#include <dlfcn.h>
int main(int c, char **v) {
  void *l = c == 3 ? dlopen(v[1], RTLD_NOW) : 0;
  void (*f)(void) = l ? (void (*)(void))dlsym(l, v[2]) : 0;
  if (!f) return 2;
  f();
  return 0;
}
END
[ $# -gt 0 ] || set -- address thread
for sanitizer in "$@"; do
  case $sanitizer in
    address) runtime=asan ;;
    thread) runtime=tsan ;;
    *) fail "unknown sanitizer $sanitizer: address or thread" ;;
  esac
  archive=$root/lib/rustlib/$target/lib/librustc-nightly_rt.$runtime.a
  rustc +nightly -O -Zsanitizer="$sanitizer" -Cunsafe-allow-abi-mismatch=sanitizer --edition 2024 --crate-type cdylib -o "$scratch/libwrong.so" "$scratch/wrong.rs"
  cc -rdynamic "$scratch/host.c" -o "$scratch/host" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -ldl -lpthread -lm -lrt -lstdc++
  status=0
  ASAN_OPTIONS="detect_leaks=0 exitcode=66" TSAN_OPTIONS="suppressions=$suppressed ignore_noninstrumented_modules=1 exitcode=66" \
    "$scratch/host" "$scratch/libwrong.so" "$sanitizer" >"$scratch/said" 2>&1 || status=$?
  [ "$status" = 66 ] && grep -q Sanitizer "$scratch/said" || fail "the $sanitizer sanitizer does not report a wrong library (status $status)"
  built=$own_target/sanitize-net/$sanitizer
  say "building the plugin with the $sanitizer sanitizer"
  CARGO_TARGET_DIR=$built RUSTFLAGS="-Zsanitizer=$sanitizer -Cdebug-assertions" \
    cargo +nightly build -Zbuild-std --locked -p nccl-net --target "$target"
  LINKWISE_OFI_PLUGIN=$built/$target/debug/liblinkwise_nccl_net.so \
    LINKWISE_OFI_RUNTIME=$archive \
    ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="suppressions=$suppressed ignore_noninstrumented_modules=1 halt_on_error=0 exitcode=66" \
    "$(dirname "$0")/cargo.sh" test --locked --workspace --test functional -- --nocapture
  say "no report of the $sanitizer sanitizer"
done
