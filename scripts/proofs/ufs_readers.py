"""Volumes of UFS that we have written, as others read them.

Volumes of UFS1 and UFS2 in both orders of bytes and several sizes of blocks and fragments, some made by us and some by Debian's makefs,
are filled through a mount, changed in every way that moves fragments and maps, and killed in the middle once. After recovery each is read by
  - Debian's kernel under qemu (its ufs module), all of them in one boot,
  - dissect.ffs, a reader in Python (little-endian volumes, where it is installed),
  - sleuthkit (`fls` and `icat`),
  - GRUB (grub-fstest; little-endian volumes),
  - fuse-ufs, a file system in Rust (UFS2, where it is installed; it ends a part of a directory at a removed name),
and every name, kind, size, target and every byte must be what our own mount shows. Others' names for what is wrong would be ours to explain.
"""

import hashlib
import os
import random
import re
import shutil
import stat
import subprocess
import sys
import time

import common
import guests

# Version, order of bytes, block, fragment, and whether makefs makes it.
SHAPES = (
    ("ufs1", "little", 8192, 1024, False), ("ufs1", "big", 16384, 2048, False),
    ("ufs2", "little", 32768, 4096, False), ("ufs2", "big", 16384, 2048, False),
    ("ufs1", "little", 4096, 512, False), ("ufs2", "little", 16384, 4096, False),
    ("ufs2", "little", 8192, 1024, True), ("ufs1", "big", 8192, 1024, True),
    ("ufs1", "little", 16384, 2048, True), ("ufs2", "big", 32768, 4096, True),
)
SIZE = 48 << 20
# What listings say of an empty file.
EMPTY = f"0 {hashlib.md5(b'').hexdigest()}"
# Seconds that the machine may take.
PATIENCE = 900

FIRST = """#!/busybox sh
export PATH=/
for name in mount umount insmod sh cat grep find md5sum readlink stat dd; do /busybox ln -s busybox /$name; done
mount -t devtmpfs none /dev
exec </dev/console >/dev/console 2>&1
mount -t proc none /proc
mount -t sysfs none /sys
for module in $(cat /modules); do insmod $module || echo "> no $module"; done
echo
no=0
for type in $(cat /types); do
    letter=$(echo abcdefghijklmnopqrstuvwxyz | dd bs=1 skip=$no count=1 2>/dev/null)
    if mount -t ufs -o ro,ufstype=$type /dev/vd$letter /at; then
        cd /at
        find . | while read -r path; do
            if [ -L "$path" ]; then echo "> $no l $path $(readlink "$path")"
            elif [ -d "$path" ]; then echo "> $no d $path $(stat -c %a "$path")"
            elif [ -f "$path" ]; then echo "> $no f $path $(stat -c %s "$path") $(md5sum <"$path")"
            else echo "> $no o $path"
            fi
        done
        cd /
        umount /at
        echo "> $no end"
    else
        echo "> $no refused"
    fi
    no=$((no + 1))
done
echo "> all"
echo o >/proc/sysrq-trigger
"""


def fill(top, seed):
    """Files that end in fragments, behind one and two levels of pointers, and in holes; names, links."""
    source = random.Random(seed)
    for directory in ("few", "many", "few/deep", "few/deep/er"):
        os.mkdir(f"{top}/{directory}")
    for no in range(600):
        with open(f"{top}/many/{'n' * (no % 200)}{no}", "wb") as file:
            file.write(source.randbytes(source.choice((0, 1, 511, 512, 900, 3000, 5000, 9000, 17000))))
    for name, size in (("small", 100), ("blocks", 60_000), ("one-level", 700_000), ("two-levels", 5_000_000)):
        with open(f"{top}/few/{name}", "wb") as file:
            file.write(source.randbytes(size))
    with open(f"{top}/few/holes", "wb") as file:
        for at in (0, 300_000, 4_000_000, 9_000_001):
            file.seek(at)
            file.write(source.randbytes(3000))
    os.symlink("few/small", f"{top}/short")
    os.symlink("x" * 700, f"{top}/few/long")
    os.link(f"{top}/few/small", f"{top}/few/deep/er/again")


def change(top, seed):
    """What moves fragments, frees blocks in the middle, and compacts directories."""
    source = random.Random(seed)
    names = sorted(os.listdir(f"{top}/many"))
    for name in names:
        path, what = f"{top}/many/{name}", source.randrange(6)
        if what == 0:
            os.unlink(path)
        elif what == 1:
            with open(path, "ab") as file:
                file.write(source.randbytes(source.randrange(1, 6000)))
        elif what == 2:
            os.truncate(path, source.randrange(0, 12_000))
        elif what == 3:
            os.rename(path, f"{top}/few/deep/{source.randrange(1 << 40)}")
    os.truncate(f"{top}/few/two-levels", 4_321_000)
    os.truncate(f"{top}/few/one-level", 123_457)
    with open(f"{top}/few/blocks", "r+b") as file:
        file.seek(30_000)
        file.write(source.randbytes(40_000))
    os.chmod(f"{top}/few", 0o751)


def tree(top):
    """What our own mount shows, as the others' listings say it."""
    found = {"d .": oct(os.stat(top).st_mode & 0o7777)[2:]}
    for parent, directories, files in os.walk(top):
        for name in directories + files:
            path = os.path.join(parent, name)
            inner, status = "./" + os.path.relpath(path, top), os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[f"l {inner}"] = os.readlink(path)
            elif stat.S_ISDIR(status.st_mode):
                found[f"d {inner}"] = oct(status.st_mode & 0o7777)[2:]
            else:
                with open(path, "rb") as file:
                    found[f"f {inner}"] = f"{status.st_size} {hashlib.md5(file.read()).hexdigest()}"
    return found


def make(binary, work, no, shape):
    """A volume with a history. Returns its image, and what is in it."""
    version, order, block, fragment, by_others = shape
    image, at = f"{work}/{no}.img", f"{work}/at"
    if by_others:
        os.makedirs(f"{work}/empty", exist_ok=True)
        letter = {"little": "le", "big": "be"}[order]
        options = f"version={version[-1]},bsize={block},fsize={fragment}"
        common.run("makefs", "-t", "ffs", "-B", letter, "-s", str(SIZE), "-f", "3000", "-o", options, image, f"{work}/empty")
    else:
        words = ["-b", str(block), "-f", str(fragment), *(["--order", "big"] if order == "big" else [])]
        common.run(binary, "mkfs", version, "-q", *words, image, f"{SIZE >> 10}K")
    with common.Mount(binary, image, at):
        fill(at, no)
    mount = common.Mount(binary, image, at)
    change(at, no)
    if no % 2:
        time.sleep(0.3)
        mount.kill()
        mount.detach()
        common.run(binary, "fsck", "-p", image, ok=(0, 1))
    else:
        mount.umount()
    common.clean(binary, image, version)
    with common.Mount(binary, image, at, "-o", "ro"):
        return image, tree(at)


def initramfs(path, modules, types):
    files = guests.module_files(modules, ("virtio_pci", "virtio_blk", "ufs"))
    entries = {name: None for name in ("dev", "proc", "sys", "at")}
    entries |= {f"m{no}.ko": guests.read(file) for no, file in enumerate(files)}
    entries["modules"] = "".join(f"/m{no}.ko\n" for no in range(len(files))).encode()
    entries["types"] = "\n".join(types).encode()
    entries["busybox"] = guests.read(os.path.realpath(shutil.which("busybox")))
    entries["init"] = FIRST.encode()
    guests.archive(path, entries)


def kernel_trees(options, work, images, types):
    """What the kernel shows of each image; None where it refuses it."""
    kernel, modules = guests.debian_kernel(options, work)
    initramfs(f"{work}/initramfs", modules, types)
    words = ["qemu-system-x86_64", "-accel", "tcg", "-m", "512M", "-nographic", "-no-reboot", "-nic", "none", "-kernel", kernel]
    words += ["-initrd", f"{work}/initramfs", "-append", "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check rdinit=/init"]
    for image in images:
        words += ["-drive", f"file={image},format=raw,if=virtio,readonly=on"]
    said = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE, check=False).stdout
    lines = guests.lines_of(said.decode("utf-8", "replace"))
    if "> all" not in lines:
        raise common.Failure(f"the machine ended early:\n{said.decode('utf-8', 'replace')[-1500:]}")
    trees = [{} for _ in images]
    for line in lines:
        found = re.match(r"> (\d+) ([dlfo]) (\S+) ?(.*)", line)
        if found:
            trees[int(found[1])][f"{found[2]} {found[3]}"] = found[4].removesuffix("  -")
    return [found if f"> {no} end" in lines else None for no, found in enumerate(trees)]


def by_dissect(image):
    """What dissect.ffs shows: everything but modes."""
    from dissect.ffs import FFS  # pylint: disable=import-outside-toplevel

    found = {}
    with open(image, "rb") as file:
        todo = [(".", FFS(file).root)]
        while todo:
            path, node = todo.pop()
            if node.is_dir():
                found[f"d {path}"] = None
                # It lists what has no inode: a removed name at the start of its part of the directory.
                names = [(name, child) for name, child in node.listdir().items() if name not in (".", "..") and child.inum]
                todo += [(f"{path}/{name}", child) for name, child in names]
            elif node.is_symlink():
                found[f"l {path}"] = node.link
            else:
                found[f"f {path}"] = f"{node.size} {hashlib.md5(node.open().read()).hexdigest()}"
    return found


def by_sleuthkit(image, version):
    """What sleuthkit shows: kinds of names, and bytes of files."""
    listed = common.run("fls", "-f", version, "-r", "-p", "-u", image).stdout
    found = {"d .": None}
    for line in listed.splitlines():
        kind, number, path = re.match(r"([\w-])/\S+ (\d+):\t(.*)", line).groups()
        if path.startswith("$"):
            continue
        if kind == "r":
            data = subprocess.run(["icat", "-f", version, image, number], capture_output=True, check=True).stdout
            found[f"f ./{path}"] = f"{len(data)} {hashlib.md5(data).hexdigest()}"
        else:
            found[f"{kind} ./{path}"] = None
    return found


def by_grub(image):
    """What GRUB shows: names of directories and files, and bytes. It follows links, and lists names that were removed, as empty files."""
    found, todo = {}, [""]
    while todo:
        inner = todo.pop()
        found[f"d .{inner}"] = None
        for name in common.run("grub-fstest", image, "ls", f"(loop0){inner}/").stdout.split():
            path = f"{inner}/{name.removesuffix('/')}"
            if name in ("./", "../"):
                continue
            if name.endswith("/"):
                todo.append(path)
                continue
            read = subprocess.run(["grub-fstest", image, "cat", f"(loop0){path}"], capture_output=True, check=False)
            if read.returncode == 0:
                found[f"f .{path}"] = f"{len(read.stdout)} {hashlib.md5(read.stdout).hexdigest()}"
    return found


def known(ours, theirs, may_be):
    """Theirs without what `may_be` takes for removed and we do not have."""
    return {name: value for name, value in theirs.items() if name in ours or not may_be(value)}


def by_fuse_ufs(work, image):
    """What fuse-ufs shows, through a mount of its own."""
    at = f"{work}/theirs"
    os.makedirs(at, exist_ok=True)
    common.run("fuse-ufs", image, at)
    try:
        for _ in range(100):
            if os.path.ismount(at):
                break
            time.sleep(0.05)
        return tree(at)
    finally:
        common.run("fusermount3", "-u", at)


def same(ours, theirs, who, without=""):
    """Both show the same; nothing is compared of kinds `without`, nor where they say nothing."""
    kept = {name: value for name, value in ours.items() if name[0] not in without}
    theirs = {name: value for name, value in theirs.items() if name[0] not in without}
    wrong = sorted(set(kept) ^ set(theirs))
    wrong += [name for name in kept if name in theirs and theirs[name] is not None and theirs[name] != kept[name]]
    if wrong:
        shown = "\n  ".join(f"{name[:90]}: {str(kept.get(name))[:80]} / {str(theirs.get(name))[:80]}" for name in wrong[:10])
        raise common.Failure(f"{who} shows {len(wrong)} differences (ours / theirs):\n  {shown}")


def dissect_is_there():
    try:
        import dissect.ffs  # pylint: disable=import-outside-toplevel,unused-import
    except ImportError:
        return False
    return True


def is_found(shape):
    """Whether sleuthkit and the kernel find the superblock: makefs puts that of UFS2 where UFS1 has it, and they do not look there."""
    return not (shape[4] and shape[0] == "ufs2")


def main():
    parser = common.arguments(__doc__)
    guests.kernel_options(parser)
    options = parser.parse_args()
    guests.check_options(parser, options)
    common.require(root=True, fuse=True, commands=("makefs", "fls", "icat", "grub-fstest", "qemu-system-x86_64", "busybox"))
    binary, summary = common.program(options), common.Summary("UFS as others read it")
    if not dissect_is_there():
        print("skipped: dissect.ffs is not installed (pip install dissect.ffs)")
    has_fuse_ufs = shutil.which("fuse-ufs") is not None
    if not has_fuse_ufs:
        print("skipped: fuse-ufs is not installed (cargo install fuse-ufs)")
    with common.workdir(options, "ufs-readers") as work:
        made = []
        for no, shape in enumerate(SHAPES):
            name = f"{shape[0]} {shape[1]} {shape[2]}/{shape[3]}{' of makefs' if shape[4] else ''}"
            with summary.case(f"{name}: made, changed, checked"):
                made.append((name, shape, *make(binary, work, no, shape)))
        for name, shape, image, ours in made:
            if is_found(shape):
                with summary.case(f"{name}: sleuthkit"):
                    same(ours, by_sleuthkit(image, shape[0]), "sleuthkit")
            if shape[1] == "little" and dissect_is_there():
                with summary.case(f"{name}: dissect.ffs"):
                    same(ours, by_dissect(image), "dissect.ffs", without="d")
            if shape[1] == "little":
                with summary.case(f"{name}: GRUB"):
                    same(ours, known(ours, by_grub(image), lambda value: value == EMPTY), "GRUB", without="l")
            if has_fuse_ufs and is_found(shape) and shape[0] == "ufs2":
                with summary.case(f"{name}: fuse-ufs"):
                    theirs = by_fuse_ufs(work, image)
                    if len(theirs) < 100:
                        raise common.Failure(f"fuse-ufs shows {len(theirs)} names")
                    same({name: value for name, value in ours.items() if name in theirs}, theirs, "fuse-ufs")
        types = ["ufs2" if shape[0] == "ufs2" else "44bsd" for _, shape, *_ in made]
        try:
            kernels = kernel_trees(options, work, [image for _, _, image, _ in made], types)
        except (common.Failure, subprocess.SubprocessError) as failure:
            print(f"FAIL the kernel: {failure}")
            summary.failed += 1
            kernels = []
        for (name, shape, _, ours), theirs in zip(made, kernels):
            if not is_found(shape):
                continue
            with summary.case(f"{name}: the kernel, {len(ours)} names"):
                if theirs is None:
                    raise common.Failure("the kernel does not mount it")
                same(ours, theirs, "the kernel")
    summary.end()


if __name__ == "__main__":
    sys.exit(main())
