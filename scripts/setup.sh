#!/usr/bin/env bash
# Installs what a purpose needs and this machine lacks: setup.sh build|optimized|demo|test|proofs|studies|bench|bpfs.
# Only Debian's package manager is known here; elsewhere, and without root or sudo, it says what is missing and
# goes on, because every purpose has a reduced form that works without.
set -euo pipefail

purpose=${1:?"usage: setup.sh build|optimized|demo|test|proofs|studies|bench|bpfs"}
missing=()

need() { # need COMMAND PACKAGE
    if ! PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; then
        missing+=("$2")
    fi
}

if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install Rust's toolchain from https://rustup.rs, then run this again" >&2
    exit 1
fi
need cc gcc
case "$purpose" in
build) ;;
optimized)
    need mke2fs e2fsprogs
    need fusermount3 fuse3
    # The compiler's own tool, which comes with rustup.
    if command -v rustup >/dev/null 2>&1 && ! rustup component list --installed | grep -q '^llvm-tools'; then
        rustup component add llvm-tools
    fi
    ;;
demo)
    need fusermount3 fuse3
    need e2fsck e2fsprogs
    ;;
test | proofs)
    need fusermount3 fuse3
    need e2fsck e2fsprogs
    need dumpe2fs e2fsprogs
    need python3 python3-minimal
    need setfattr attr
    need setfacl acl
    need losetup mount
    need valgrind valgrind
    need pkg-config pkg-config
    need mandoc mandoc
    need zsh zsh
    need fish fish
    need dot graphviz
    # File systems that fsck must tell from its own.
    need mkfs.vfat dosfstools
    need mkfs.xfs xfsprogs
    need mkfs.btrfs btrfs-progs
    # UFS volumes.
    need makefs makefs
    need fsstat sleuthkit
    need grub-fstest grub-common
    # Clients of the NBD server.
    need nbdinfo libnbd-bin
    need nbdcopy libnbd-bin
    need nbdsh python3-libnbd
    need qemu-img qemu-utils
    need qemu-io qemu-utils
    need fio fio
    need sqlite3 sqlite3
    # It boots a kernel that has a driver for Minix, and one that has persistent memory.
    [ "$purpose" = test ] || need qemu-system-x86_64 qemu-system-x86
    [ "$purpose" = test ] || need ndctl ndctl
    [ "$purpose" = test ] || need busybox busybox-static
    # A Debian root that boots, and an image with partitions.
    [ "$purpose" = test ] || need mmdebstrap mmdebstrap
    [ "$purpose" = test ] || need sfdisk fdisk
    ;;
bench)
    need fusermount3 fuse3
    need e2fsck e2fsprogs
    need fuse2fs fuse2fs
    need losetup mount
    need xz xz-utils
    need git git
    need sqlite3 sqlite3
    need postmark postmark
    need fio fio
    # Beside our NBD server.
    need nbdkit nbdkit
    [ -e /usr/src/linux-source-6.1.tar.xz ] || missing+=(linux-source-6.1)
    ;;
bpfs)
    need fusermount3 fuse3
    need mke2fs e2fsprogs
    need mkfs.xfs xfsprogs
    need mkfs.btrfs btrfs-progs
    need losetup mount
    need xz xz-utils
    need postmark postmark
    need bonnie++ bonnie++
    need make make
    need ld.gold binutils
    need dpkg-source dpkg-dev
    # What Apache is built with.
    need apr-1-config libapr1-dev
    need apu-1-config libaprutil1-dev
    need pcre2-config libpcre2-dev
    [ -e /usr/src/linux-source-6.1.tar.xz ] || missing+=(linux-source-6.1)
    ;;
studies)
    need fusermount3 fuse3
    need e2fsck e2fsprogs
    need python3 python3-minimal
    need losetup mount
    need make make
    need dpkg-source dpkg-dev
    need git git
    need svn subversion
    need eatmydata eatmydata
    need doveconf dovecot-core
    [ -e /usr/lib/dovecot/imap ] || missing+=(dovecot-imapd)
    [ -e /usr/include/dovecot/config.h ] || missing+=(dovecot-dev)
    ;;
*)
    echo "unknown purpose: $purpose" >&2
    exit 2
    ;;
esac

[ ${#missing[@]} -eq 0 ] && exit 0

run=()
if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
        run=(sudo)
    else
        echo "missing: ${missing[*]} (install them as root: apt-get install ${missing[*]}); going on without" >&2
        exit 0
    fi
fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "missing: ${missing[*]} (no apt-get here: install them with your package manager); going on without" >&2
    exit 0
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -qq
"${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
