"""Makes trees that hold every kind of file, with contents and attributes out of a seed."""

import os
import random
import socket
import stat
import struct


def acl(user, group):
    """A POSIX access list in the kernel's form: owner, one user, group, mask, others."""
    undefined = 0xFFFFFFFF
    entries = [(1, 6, undefined), (2, 4, user), (4, 5, undefined), (8, 4, group), (16, 7, undefined), (32, 4, undefined)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def write(path, data, at=0):
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.seek(at)
        file.write(data)


def every_kind(top, seed, block_size, inode_size):
    """Fills the directory `top` (as root)."""
    source = random.Random(seed)
    sizes(top, source, block_size)
    holes(top, source, block_size)
    links(top, source)
    devices(top)
    directories(top, source)
    attributes(top, source, inode_size)
    times(top, source, inode_size)


def sizes(top, source, block_size):
    """Files that end around the borders of direct, indirect and double indirect blocks."""
    os.mkdir(f"{top}/sizes")
    pointers = block_size // 4
    borders = [0, 1, 59, 60, block_size - 1, block_size, block_size + 1, 12 * block_size, 12 * block_size + 1]
    borders += [13 * block_size, (12 + pointers) * block_size - 1, (12 + pointers) * block_size + 1]
    for size in sorted(set(borders)):
        write(f"{top}/sizes/{size}", source.randbytes(size))


def holes(top, source, block_size):
    """Sparse files, also with data reached through double and triple indirect blocks."""
    os.mkdir(f"{top}/holes")
    pointers = block_size // 4
    places = {
        "start": 0,
        "direct": 5 * block_size,
        "indirect": 100 * block_size,
        "double": (12 + pointers + 5) * block_size,
        "triple": (12 + pointers + pointers * pointers + 3) * block_size,
    }
    for name, place in places.items():
        write(f"{top}/holes/{name}", source.randbytes(block_size), place)
    with open(f"{top}/holes/all", "wb") as file:
        file.truncate(64 * block_size)
    with open(f"{top}/holes/many", "wb") as file:
        for index in range(0, 60, 3):
            file.seek(index * block_size)
            file.write(source.randbytes(block_size))


def links(top, source):
    os.mkdir(f"{top}/links")
    write(f"{top}/links/one", source.randbytes(100))
    os.link(f"{top}/links/one", f"{top}/links/two")
    os.link(f"{top}/links/one", f"{top}/sizes/three")
    for length in (1, 59, 60, 61, 255, 1000):
        os.symlink("x" * length, f"{top}/links/symlink-{length}")
    os.symlink("one", f"{top}/links/to-one")


def devices(top):
    os.mkdir(f"{top}/special")
    os.mkfifo(f"{top}/special/fifo", 0o640)
    os.mknod(f"{top}/special/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(f"{top}/special/large-minor", stat.S_IFBLK | 0o600, os.makedev(8, 70_000))
    os.mknod(f"{top}/special/large-major", stat.S_IFBLK | 0o600, os.makedev(259, 3))
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(f"{top}/special")
        listening.bind("socket")
        os.chdir(here)


def directories(top, source):
    os.mkdir(f"{top}/names")
    deep = f"{top}/names/deep"
    for level in range(20):
        deep = deep if level == 0 else f"{deep}/{level}"
        os.mkdir(deep)
    os.mkdir(f"{top}/names/many")
    for index in range(700):
        name = f"{index}-" + "n" * source.randrange(0, 200)
        write(f"{top}/names/many/{name}", b"" if index % 7 else source.randbytes(10))
    for index in range(0, 700, 3):
        prefix = f"{index}-"
        victim = next(name for name in os.listdir(f"{top}/names/many") if name.startswith(prefix))
        os.unlink(f"{top}/names/many/{victim}")
    write(f"{top}/names/" + "l" * 255, b"long")
    write(os.fsencode(f"{top}/names/") + b"\xff\xfe bytes \n", b"odd")
    write(f"{top}/names/\N{GREEK SMALL LETTER ALPHA}", b"utf-8")


def attributes(top, source, inode_size):
    os.mkdir(f"{top}/attributes")
    modes = [0o000, 0o644, 0o755, 0o4755, 0o2755, 0o1777, 0o7777]
    for mode in modes:
        path = f"{top}/attributes/mode-{mode:04o}"
        write(path, b"x")
        os.chown(path, source.choice([0, 1000, 65_535, 65_536, 4_000_000_000]), source.choice([0, 100_000]))
        os.chmod(path, mode)
    path = f"{top}/attributes/xattrs"
    write(path, b"x")
    os.setxattr(path, "user.small", b"value")
    os.setxattr(path, "user.empty", b"")
    os.setxattr(path, "trusted.secret", source.randbytes(40))
    os.setxattr(path, "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 10, 0, 0, 0))
    os.setxattr(path, "user.large", source.randbytes(500))
    for name in ("a", "b", "c"):
        # The same values, so that the block that holds them may be shared.
        write(f"{top}/attributes/shared-{name}", b"x")
        os.setxattr(f"{top}/attributes/shared-{name}", "user.shared", b"s" * 400)
    write(f"{top}/attributes/acl", b"x")
    os.setxattr(f"{top}/attributes/acl", "system.posix_acl_access", acl(1000, 100_000))
    os.mkdir(f"{top}/attributes/acl-directory")
    os.setxattr(f"{top}/attributes/acl-directory", "system.posix_acl_default", acl(1001, 1002))
    write(f"{top}/attributes/acl-directory/inherits", b"x")
    os.setxattr(f"{top}/attributes", "user.on-directory", b"d" * 60)


def times(top, source, inode_size):
    os.mkdir(f"{top}/times")
    seconds = [1, 1_000_000_000, 0x7FFFFFFF, -1, -0x80000000]
    if inode_size > 128:
        seconds += [0x80000000, 0x100000000, 15_032_385_535]
    for second in seconds:
        nanos = source.randrange(1_000_000_000) if inode_size > 128 else 0
        path = f"{top}/times/{second}"
        write(path, b"t")
        os.utime(path, ns=(second * 1_000_000_000 + nanos, second * 1_000_000_000 + nanos))
