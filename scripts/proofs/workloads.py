"""Loads for the crash test. Each runs as a process of its own and is ended by the mount's death.

    workloads.py KIND DIRECTORY SEED JOURNAL

JOURNAL is a file outside the mount. Before a file that was promised stable is removed, `forget PATH` is written
there; after an fsync has returned, `keep PATH SIZE HASH`.
"""

import errno
import hashlib
import io
import os
import random
import sys
import tarfile


class Load:
    """A directory to work in, a source of randomness, and the journal of promises."""

    def __init__(self, directory, seed, journal):
        self.top, self.random = directory, random.Random(seed)
        self.journal = open(journal, "a", buffering=1, encoding="utf-8")
        self.kept = []

    def bytes(self, most):
        return self.random.randbytes(self.random.randrange(most))

    def keep(self, number):
        """Writes a file, makes it stable, and only then promises it."""
        path = f"{self.top}/kept-{number % 7}"
        os.makedirs(path, exist_ok=True)
        path = f"{path}/{number}"
        data = self.bytes(60_000)
        with open(path, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self.journal.write(f"keep {os.path.relpath(path, self.top)} {len(data)} {hashlib.sha256(data).hexdigest()}\n")
        self.kept.append(path)

    def drop(self):
        """Removes a promised file, having taken the promise back."""
        if self.kept:
            path = self.kept.pop(self.random.randrange(len(self.kept)))
            self.journal.write(f"forget {os.path.relpath(path, self.top)}\n")
            os.unlink(path)


def archive(source):
    """A tar archive of some hundred small and a few large files."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for number in range(400):
            size = source.choice([0, 10, 900, 1500, 5000, 20_000, 70_000, 400_000]) if number % 40 else 2_000_000
            info = tarfile.TarInfo(f"tree/{number % 13}/{number % 5}/file-{number}-{'n' * source.randrange(40)}")
            info.size = source.randrange(size + 1)
            info.mtime = 1_000_000_000 + number
            tar.addfile(info, io.BytesIO(source.randbytes(info.size)))
    return target.getvalue()


def untar(load):
    """Unpacks, renames, truncates, links and deletes trees, over and over."""
    data = archive(load.random)
    for turn in range(1000):
        directory = f"{load.top}/turn-{turn}"
        os.mkdir(directory)
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                tar.extract(member, directory, filter="data" if hasattr(tarfile, "data_filter") else None)
                if load.random.random() < 0.02:
                    load.keep(load.random.randrange(10**9))
        change(load, directory)
        os.rename(directory, f"{load.top}/moved-{turn}")
        if turn >= 1:
            remove(load, f"{load.top}/moved-{turn - 1}")


def change(load, directory):
    """Renames within and between directories, replaces, truncates and overwrites."""
    files = [os.path.join(at, name) for at, _, names in os.walk(directory) for name in names]
    load.random.shuffle(files)
    for number, path in enumerate(files[:150]):
        kind = number % 6
        if kind == 0:
            os.rename(path, f"{os.path.dirname(path)}/renamed-{number}")
        elif kind == 1:
            os.rename(path, f"{directory}/tree/up-{number}")
        elif kind == 2:
            os.truncate(path, load.random.randrange(os.path.getsize(path) + 100_000))
        elif kind == 3:
            with open(path, "r+b") as file:
                file.seek(load.random.randrange(200_000))
                file.write(load.bytes(30_000))
        elif kind == 4:
            os.link(path, f"{directory}/tree/link-{number}")
        else:
            os.symlink("t" * load.random.randrange(1, 200), f"{directory}/tree/symlink-{number}")
        if load.random.random() < 0.05:
            load.drop()
    subtree = f"{directory}/tree/{load.random.randrange(13)}"
    if os.path.isdir(subtree):
        os.rename(subtree, f"{directory}/directory-moved")
    files = [path for path in files if os.path.exists(path)]
    os.rename(files[-1], files[-2])


def remove(load, directory):
    for at, directories, names in os.walk(directory, topdown=False):
        for name in names:
            os.unlink(os.path.join(at, name))
        for name in directories:
            os.rmdir(os.path.join(at, name))
    os.rmdir(directory)


def postmark(load):
    """Mail-server-like: many small files created, appended, read and deleted in a few directories."""
    for number in range(10):
        os.mkdir(f"{load.top}/mail-{number}")
    files, made = [], 0

    def create():
        nonlocal made
        made += 1
        path = f"{load.top}/mail-{load.random.randrange(10)}/{made}"
        with open(path, "wb", buffering=0) as file:
            left = load.random.randrange(500, 100_000)
            while left > 0:
                file.write(load.random.randbytes(min(left, 4096)))
                left -= 4096
        files.append(path)

    for _ in range(100):
        create()
    for turn in range(10**6):
        choice = load.random.random()
        if choice < 0.35 or len(files) < 50:
            create()
        elif choice < 0.65:
            os.unlink(files.pop(load.random.randrange(len(files))))
        elif choice < 0.85:
            with open(load.random.choice(files), "ab", buffering=0) as file:
                file.write(load.bytes(8000))
        elif choice < 0.97:
            with open(load.random.choice(files), "rb") as file:
                file.read()
        elif choice < 0.99:
            load.keep(turn)
        else:
            load.drop()


def main():
    kind, directory, seed, journal = sys.argv[1:]
    load = Load(directory, int(seed), journal)
    try:
        {"untar": untar, "postmark": postmark}[kind](load)
    except OSError as failure:
        # The mount was killed: that is how every run ends. Anything else is a failure of its own, and so is to end early.
        print(failure, file=sys.stderr, flush=True)
        if failure.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO):
            raise
        if failure.errno == errno.ENOENT and os.path.isdir(directory) and os.path.exists(f"{directory}/lost+found"):
            raise


if __name__ == "__main__":
    main()
