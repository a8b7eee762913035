#!/usr/bin/env bash
# Undefined behaviour in the modules that allow unsafe code: Miri where nothing but memory is touched, and AddressSanitizer where the
# kernel is asked. Needs a nightly toolchain with the components miri and rust-src.
#
#   module                          Miri                                       AddressSanitizer
#   fstitch-client-c/src/lib.rs     its tests                                  its tests
#   fstitch-client/src/kernel.rs    no: ioctls of our own                      its tests, which make no ioctl: a mount is needed
#   fstitch-lld-c/src/lib.rs        those without files                        its tests
#   fstitch-disk/src/sys.rs         no: preadv, ioctls, locks                  all tests of the crate
#   fstitch-disk/src/ring.rs        no: io_uring, a mapping of the kernel's    all tests of the crate
#   fstitch-fuse/src/transport/ring no: io_uring, a mapping of the kernel's    its unit tests; mounts by `--mounted`
#
# --mounted adds the tests of mounts: root and /dev/fuse are needed.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/sanitize

known="crates/fstitch-client-c/src/lib.rs
crates/fstitch-client/src/kernel.rs
crates/fstitch-disk/src/ring.rs
crates/fstitch-disk/src/sys.rs
crates/fstitch-fuse/src/transport/ring.rs
crates/fstitch-lld-c/src/lib.rs"
if [ "$(grep -rl '^#!\[allow(unsafe_code)\]' crates/*/src | sort)" != "$known" ]; then
    echo "the table above is not that of the modules that allow unsafe code" >&2
    exit 1
fi

part() {
    echo "== $1"
    shift
    "$@"
}

miri() {
    # The tests open files that are not there.
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test --locked -p fstitch-client-c --lib
    cargo +nightly miri test --locked -p fstitch-lld-c --lib -- boundary layout
}

address() {
    RUSTFLAGS="-Zsanitizer=address --cap-lints warn" \
        cargo +nightly test --locked --target "$host" "$@"
}

part "Miri: fstitch-client-c, fstitch-lld-c" miri
part "AddressSanitizer: fstitch-disk" address -p fstitch-disk
part "AddressSanitizer: fstitch-client, fstitch-client-c, fstitch-fuse, fstitch-lld-c" \
    address -p fstitch-client -p fstitch-client-c -p fstitch-fuse -p fstitch-lld-c --lib
if [ "${1:-}" = --mounted ]; then
    part "AddressSanitizer: mounts" address -p fstitch-fuse --test mounted
fi
echo "== nothing found"
