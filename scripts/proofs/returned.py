"""Operations one after the other, of which is known exactly what they leave: a load, and the tree that must be there.

    returned.py DIRECTORY SEED JOURNAL

The operations follow from the seed and from the tree that those before have left, which is kept beside (`Model`). JOURNAL is a file
outside the mount: `begin N` is written before an operation, `done N` when it has returned. So whoever reads it can make the same
tree again (`judge`): after a kill each operation that has returned is there and no other, but the one that was under way, which
is there or not; of a write that the kernel has split, any number of its pieces; of a shared mapping that is synced, any of its pages.
"""

import contextlib
import itertools
import mmap
import os
import random
import stat
import sys

import common

PAGE = 4096


class Node:
    """A file, a directory or a symbolic link."""

    def __init__(self, kind, mode=0o755, data=b""):
        self.kind, self.mode, self.data, self.xattrs = kind, mode, data, {}

    def copy(self):
        other = Node(self.kind, self.mode, self.data)
        other.xattrs = dict(self.xattrs)
        return other

    def seen(self):
        return (self.kind, self.mode, self.data, tuple(sorted(self.xattrs.items())))


class Model:
    """Paths and what is there; hard links are one node."""

    def __init__(self):
        self.nodes = {"": Node("dir")}

    def paths(self, *kinds):
        return sorted(path for path, node in self.nodes.items() if path and node.kind in kinds)

    def seen(self):
        """What can be seen, and which paths are one file."""
        groups = {}
        for path, node in self.nodes.items():
            groups.setdefault(id(node), []).append(path)
        return {path: (node.seen(), tuple(sorted(groups[id(node)]))) for path, node in self.nodes.items() if path}

    def snapshot(self):
        """The same tree apart from this one."""
        other, copies = Model(), {}
        other.nodes = {path: copies.setdefault(id(node), node.copy()) for path, node in self.nodes.items()}
        return other

    def apply(self, operation):
        what, path, *rest = operation
        if what == "create":
            self.nodes[path] = Node("file", rest[0])
        elif what == "mkdir":
            self.nodes[path] = Node("dir", rest[0])
        elif what == "symlink":
            self.nodes[path] = Node("link", 0o777, rest[0].encode())
        elif what == "link":
            self.nodes[rest[0]] = self.nodes[path]
        elif what in ("unlink", "rmdir"):
            del self.nodes[path]
        elif what == "rename":
            moved = [name for name in self.nodes if name == path or name.startswith(path + "/")]
            self.nodes |= {rest[0] + name[len(path) :]: self.nodes.pop(name) for name in moved}
        elif what == "chmod":
            self.nodes[path].mode = rest[0]
        elif what == "xattr":
            self.nodes[path].xattrs["user.x"] = rest[0]
        elif what == "truncate":
            data = self.nodes[path].data
            self.nodes[path].data = data[: rest[0]] + bytes(max(0, rest[0] - len(data)))
        else:
            offset, data = rest
            old = self.nodes[path].data
            old += bytes(max(0, offset - len(old)))
            self.nodes[path].data = old[:offset] + data + old[offset + len(data) :]

    def between(self, operation):
        """The trees that an operation under way may have left."""
        if operation[0] not in ("write", "map"):
            ways = [[], [operation]]
        else:
            what, path, offset, data = operation
            borders = [0, *(at - offset for at in range(offset // PAGE * PAGE, offset + len(data), PAGE) if at > offset), len(data)]
            pieces = [("write", path, offset + start, data[start:end]) for start, end in itertools.pairwise(borders)]
            if what == "write":
                ways = [pieces[:count] for count in range(len(pieces) + 1)]
            else:
                ways = [way for count in range(len(pieces) + 1) for way in itertools.combinations(pieces, count)]
        trees = []
        for way in ways:
            tree = self.snapshot()
            for piece in way:
                tree.apply(piece)
            trees.append(tree)
        return trees


def sizes(source):
    """Lengths and places: words, borders of pages, some pages."""
    return source.choice([source.randrange(1, 20), 4096 - source.randrange(20), 4096, source.randrange(60_000)])


def draw(model, source, number):
    """The next operation."""
    files, dirs = model.paths("file"), ["", *model.paths("dir")]
    new = lambda: (source.choice(dirs) + "/" if dirs else "").lstrip("/") + f"{number}-{'n' * source.randrange(30)}"
    leaves = model.paths("file", "link")
    empty = [path for path in dirs if path and not any(name.startswith(path + "/") for name in model.nodes)]
    if len(files) < 5:
        return ("create", new(), 0o644)
    what = source.choices(
        ["create", "write", "truncate", "mkdir", "rmdir", "symlink", "link", "unlink", "move", "over", "tree", "chmod", "xattr", "map"],
        [12, 30, 6, 4, 2, 3, 4, 10, 8, 5, 2, 3, 4, 4],
    )[0]
    path = source.choice(files)
    size = len(model.nodes[path].data)
    if what == "write":
        offset = source.choice([0, size, max(0, size - 5), source.randrange(size + 1), source.randrange(200_000)])
        return ("write", path, offset, source.randbytes(sizes(source) + 1))
    if what == "map" and size > 0:
        offset = source.randrange(size)
        return ("map", path, offset, source.randbytes(min(size - offset, source.randrange(1, 7000))))
    if what == "truncate":
        return ("truncate", path, source.choice([0, size // 2, size + sizes(source)]))
    if what == "rmdir" and empty:
        return ("rmdir", source.choice(empty))
    if what == "tree" and empty:
        return ("rename", source.choice(empty), f"moved-{number}")
    if what == "unlink" and len(files) > 40 - 20 * source.random():
        return ("unlink", source.choice(leaves))
    if what == "over":
        other = source.choice(files)
        # A name of the same file stays: POSIX has rename do nothing then.
        if model.nodes[other] is not model.nodes[path]:
            return ("rename", path, other)
    choices = {
        "mkdir": ("mkdir", new(), 0o700),
        "symlink": ("symlink", new(), "t" * source.randrange(1, 200)),
        "link": ("link", path, new()),
        "move": ("rename", path, new()),
        "chmod": ("chmod", path, source.choice([0o600, 0o640, 0o755])),
        "xattr": ("xattr", path, source.randbytes(sizes(source) % 2000)),
    }
    return choices.get(what, ("create", new(), 0o644))


def operations(seed):
    """Each operation with the tree before it, for ever."""
    model, source = Model(), random.Random(seed)
    for number in range(10**9):
        operation = draw(model, source, number)
        yield number, model, operation
        model.apply(operation)


def carry_out(top, operation):
    """One operation, by one system call beside opening and closing."""
    what, path, *rest = operation
    path = f"{top}/{path}"
    if what == "create":
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, rest[0]))
    elif what == "mkdir":
        os.mkdir(path, rest[0])
    elif what == "symlink":
        os.symlink(rest[0], path)
    elif what in ("link", "rename"):
        getattr(os, what)(path, f"{top}/{rest[0]}")
    elif what in ("unlink", "rmdir"):
        getattr(os, what)(path)
    elif what in ("chmod", "truncate"):
        getattr(os, what)(path, rest[0])
    elif what == "xattr":
        os.setxattr(path, "user.x", rest[0])
    elif what == "map":
        store_in_mappings(path, *rest)
    else:
        file = os.open(path, os.O_WRONLY)
        try:
            written = os.pwrite(file, rest[1], rest[0])
        finally:
            os.close(file)
        if written != len(rest[1]):
            raise common.Failure(f"{written} of {len(rest[1])} bytes were written")


def store_in_mappings(path, offset, data):
    """Stores into a private mapping, which changes nothing, and into a shared one, which is there when it was synced."""
    with open(path, "r+b") as file:
        before = os.pread(file.fileno(), len(data), offset)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as private:
            private[offset : offset + len(data)] = data
            if os.pread(file.fileno(), len(data), offset) != before:
                raise common.Failure("a private mapping has changed its file")
        with mmap.mmap(file.fileno(), 0) as shared:
            shared[offset : offset + len(data)] = data
            shared.flush()


def found(top):
    """What is there, as `Model.seen` has it."""
    nodes, inodes = {}, {}
    for at, directories, names in os.walk(top):
        for name in directories + names:
            path = os.path.join(at, name)
            status, relative = os.lstat(path), os.path.relpath(path, top)
            kind = {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "link"}[stat.S_IFMT(status.st_mode)]
            data = os.readlink(path).encode() if kind == "link" else b""
            if kind == "file":
                with open(path, "rb") as file:
                    data = file.read()
            node = Node(kind, stat.S_IMODE(status.st_mode), data)
            if kind != "link":
                node.xattrs = {key: os.getxattr(path, key) for key in os.listxattr(path) if key.startswith("user.")}
            nodes[relative] = inodes.setdefault(status.st_ino, node)
            if kind == "file" and status.st_nlink < 1:
                raise common.Failure(f"{relative} has {status.st_nlink} names")
    model = Model()
    model.nodes |= nodes
    return model.seen()


def judge(top, seed, journal):
    """Fails unless all that had returned is there. Returns how many operations that are."""
    lines = []
    # Who was killed before the first operation has not begun one.
    with contextlib.suppress(FileNotFoundError), open(journal, encoding="utf-8") as file:
        lines = [line.split() for line in file if line.endswith("\n")]
    begun = max((int(line[1]) for line in lines if line[0] == "begin"), default=-1)
    done = max((int(line[1]) for line in lines if line[0] == "done"), default=-1)
    for number, model, operation in operations(seed):
        if number <= done:
            continue
        there = found(top)
        trees = model.between(operation) if begun > done else [model]
        if not any(tree.seen() == there for tree in trees):
            raise common.Failure(f"{done + 1} operations had returned; {operation[:3]} was under way: " + differences(trees[0].seen(), there))
        return done + 1
    raise AssertionError("there is always another operation")


def differences(expected, there):
    """The first paths that differ, in words."""
    paths = sorted(path for path in set(expected) | set(there) if expected.get(path) != there.get(path))
    about = lambda one: "nothing" if one is None else f"{one[0][0]} {oct(one[0][1])} of {len(one[0][2])} bytes, {len(one[1])} names"
    return "; ".join(f"{path}: {about(expected.get(path))} became {about(there.get(path))}" for path in paths[:5])


def main():
    top, seed, journal = sys.argv[1:]
    os.umask(0)
    with open(journal, "ab", buffering=0) as notes:
        for number, _, operation in operations(int(seed)):
            notes.write(f"begin {number}\n".encode())
            carry_out(top, operation)
            notes.write(f"done {number}\n".encode())


if __name__ == "__main__":
    main()
