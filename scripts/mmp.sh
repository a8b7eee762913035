#!/bin/sh
# A volume with feature mmp, used by us and by the kernel: each refuses what the other uses, takes over what a crash has left, and leaves
# it free. About three minutes, most of them waits of the protocol. FSTITCH=PROGRAM
set -u
[ $# -eq 0 ] || { sed -n '2,3s/^# //p' "$0"; exit 0; }
fstitch=${FSTITCH:-fstitch}
dir=$(mktemp -d "${TMPDIR:-/tmp}/fstitch-mmp-XXXXXX")
failed=0

fail() {
    echo "FAIL $1"
    failed=1
}

end() {
    "$fstitch" umount "$dir/ours" >/dev/null 2>&1
    umount "$dir/kernel" 2>/dev/null
    rm -rf "$dir"
}
trap end EXIT

[ "$(id -u)" = 0 ] || { echo "SKIP mmp: only root mounts by the kernel"; exit 0; }
echo text >"$dir/a.txt"
mkdir "$dir/ours" "$dir/kernel"
"$fstitch" mkfs ext4 -O mmp -b 4096 "$dir/a" 64M >/dev/null || fail "making a volume"
is_free() { dumpe2fs -h "$1" 2>/dev/null | grep -qi 'mmp_sequence: *0xff4d4d50'; }

# Ours, and a copy for the kernel that is another disk to this machine: what it cannot see is our lock.
"$fstitch" mount "$dir/a" "$dir/ours" || fail "mounting it"
echo ours >"$dir/ours/file"
sync
is_free "$dir/a" && fail "it does not say that it is in use"
loop=$(losetup -f --show "$dir/a")
mount "$loop" "$dir/kernel" 2>/dev/null && fail "the kernel has mounted what we use" && umount "$dir/kernel"
# Nor do we, by another name of the same disk, whatever is asked: what this machine remembers of the block is no answer.
for what in "cp $dir/a.txt $loop:/" "fsck -y -f $loop" "tune -L other $loop" "resize $loop 96M" "mount $loop $dir/kernel"; do
    said=$("$fstitch" $what 2>&1) && fail "$what changes what is in use"
    echo "$said" | grep -q "in use\|mmp" || fail "the message of $what does not say why: $said"
done
losetup -d "$loop"
"$fstitch" umount "$dir/ours" || fail "unmounting it"
is_free "$dir/a" || fail "it is in use when nobody uses it"
e2fsck -fn "$dir/a" >/dev/null 2>&1 || fail "e2fsck complains"

# The kernel's, through another name of the same disk.
loop=$(losetup -f --show "$dir/a")
mount "$loop" "$dir/kernel" || fail "the kernel does not mount it"
[ "$(cat "$dir/kernel/file")" = ours ] || fail "the kernel reads something else"
other=$(losetup -f --show "$dir/a")
said=$("$fstitch" mount "$other" "$dir/ours" 2>&1) && fail "we have mounted what the kernel uses"
echo "$said" | grep -q "in use" || fail "the message does not say why: $said"
said=$("$fstitch" fsck -y -f "$other" 2>&1) && fail "we have mended what the kernel uses"
echo "$said" | grep -q "in use" || fail "the message of fsck does not say why: $said"
losetup -d "$other"
# A crash of the kernel's user: the disk as it is now.
cp "$dir/a" "$dir/crashed"
# A superblock that is damaged, as we see it, says all the same who uses the volume.
printf '\377' | dd of="$loop" bs=1 seek=$((1024 + 0x3fc)) conv=notrunc 2>/dev/null
other=$(losetup -f --show "$loop")
said=$("$fstitch" fsck -y -f "$other" 2>&1) && fail "we have mended what the kernel uses, by a damaged superblock"
echo "$said" | grep -q "in use" || fail "the message of fsck does not say why: $said"
losetup -d "$other"
umount "$dir/kernel"
losetup -d "$loop"
"$fstitch" mount "$dir/crashed" "$dir/ours" || fail "what a crash has left is not taken over"
[ "$(cat "$dir/ours/file")" = ours ] || fail "something else is there"
# And one of ours.
cp "$dir/crashed" "$dir/again"
"$fstitch" umount "$dir/ours" || fail "unmounting it"
loop=$(losetup -f --show "$dir/again")
mount "$loop" "$dir/kernel" || fail "the kernel does not take over what we have left"
umount "$dir/kernel"
losetup -d "$loop"
# A checker that mends claims, and releases.
"$fstitch" fsck -y -f "$dir/again" >/dev/null 2>&1 || fail "it cannot be checked"
# On a disk that reads and writes 4096 bytes at least, as well.
loop=$(losetup -f --sector-size 4096 --show "$dir/again")
"$fstitch" fsck -y -f "$loop" >/dev/null 2>&1 || fail "it cannot be checked on sectors of 4096 bytes"
losetup -d "$loop"
for image in a crashed again; do
    e2fsck -fn "$dir/$image" >/dev/null 2>&1 || fail "e2fsck complains about $image"
    is_free "$dir/$image" || fail "$image is in use when nobody uses it"
done
# What a check that has crashed leaves is nobody's when somebody says so, and only then.
python3 - "$dir/again" <<'END'
import sys
def crc(seed, data):
    for byte in data:
        seed ^= byte
        for _ in range(8):
            seed = seed >> 1 ^ (0x82f63b78 if seed & 1 else 0)
    return seed
with open(sys.argv[1], "r+b") as image:
    image.seek(1024)
    head = image.read(1024)
    at = int.from_bytes(head[0x168:0x170], "little") * 4096
    image.seek(at)
    block = bytearray(image.read(1024))
    block[4:8] = (0xe24d4d50).to_bytes(4, "little")
    block[1020:] = crc(crc(0xffffffff, head[0x68:0x78]), block[:1020]).to_bytes(4, "little")
    image.seek(at)
    image.write(block)
END
is_free "$dir/again" && fail "it does not say that it is being checked"
"$fstitch" tune -L other "$dir/again" >/dev/null 2>&1 && fail "what is being checked was changed"
"$fstitch" tune --clear-mmp -L other "$dir/again" >/dev/null 2>&1 || fail "the traces of a check cannot be taken away"
is_free "$dir/again" || fail "it is in use when nobody uses it"
[ "$(e2label "$dir/again")" = other ] || fail "and its label was not changed"
"$fstitch" tune --clear-mmp "$dir/a.txt" >/dev/null 2>&1 && fail "a text was taken for a volume"
[ "$failed" = 0 ] && echo "PASS mmp"
exit "$failed"
