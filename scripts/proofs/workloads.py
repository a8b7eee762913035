"""Loads for the crash test. Each runs as a process of its own and is ended by the mount's death.

    workloads.py KIND DIRECTORY SEED JOURNAL [unsynced]

JOURNAL is a file outside the mount. Before a file that was promised stable is removed, `forget PATH` is written
there; after an fsync has returned, `keep PATH SIZE HASH`. After a commit of git's that a sync made stable, `commit PATH COMMIT HASH`
with the hash of its archive; after one of SQLite's, which syncs what it relies on, `rows PATH COUNT`.

With `unsynced` nothing is synced, and all of that is promised when it has returned: for file systems that need no sync.
"""

import errno
import hashlib
import io
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tarfile


class Load:
    """A directory to work in, a source of randomness, and the journal of promises."""

    def __init__(self, directory, seed, journal, syncs=True):
        self.top, self.random, self.syncs = directory, random.Random(seed), syncs
        self.journal = open(journal, "a", buffering=1, encoding="utf-8")
        self.kept = []

    def often(self, share):
        """Whether to promise something now: ten times as often where that takes no sync."""
        return self.random.random() < share * (1 if self.syncs else 10)

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
            if self.syncs:
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
                if load.often(0.02):
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


def snapshots(load):
    """Snapshots of a tree by hard links, as rsync and cp -al make them: changed by replacing, the oldest removed."""
    os.mkdir(f"{load.top}/snapshot-0")
    for number in range(120):
        os.makedirs(f"{load.top}/snapshot-0/{number % 7}/{number % 3}", exist_ok=True)
        with open(f"{load.top}/snapshot-0/{number % 7}/{number % 3}/{number}", "wb") as file:
            file.write(load.bytes(9000))
    for turn in range(1, 10**6):
        new = f"{load.top}/snapshot-{turn}"
        shutil.copytree(f"{load.top}/snapshot-{turn - 1}", new, copy_function=os.link)
        for _ in range(12):
            at = f"{new}/{load.random.randrange(7)}/{load.random.randrange(3)}"
            path = f"{at}/{load.random.choice(os.listdir(at) or ['new'])}"
            with open(f"{at}/temporary", "wb") as file:
                file.write(load.bytes(9000))
            os.rename(f"{at}/temporary", path)
        if load.often(0.5):
            load.keep(load.random.randrange(10**9))
        if load.random.random() < 0.2:
            load.drop()
        if turn > 3:
            remove(load, f"{load.top}/snapshot-{turn - 4}")


def git(load):
    """Commits of changed, new and removed files, each promised once it is synced. Without gc: git relies on the order of changes in
    different directories there, which soft updates do not promise."""
    top = f"{load.top}/repository"
    environment = dict(os.environ, HOME=load.top, GIT_CONFIG_NOSYSTEM="1", GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@example.org")
    environment.update(GIT_COMMITTER_NAME="a", GIT_COMMITTER_EMAIL="a@example.org")

    def ran(*words):
        synced = "all" if load.syncs else "none"
        done = subprocess.run(["git", "-C", top, "-c", f"core.fsync={synced}", "-c", "gc.auto=0", *words], capture_output=True, env=environment)
        if done.returncode != 0:
            # git's own message says what; the mount is gone, or main() finds that it is not.
            raise OSError(errno.EIO, f"git {words[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout

    os.mkdir(top)
    ran("init", "-q", "-b", "main")
    if load.syncs:
        sync(top)
    files = []
    for turn in range(10**6):
        for number in range(10):
            if files and load.random.random() < 0.3:
                os.unlink(files.pop(load.random.randrange(len(files))))
            at = f"{top}/{load.random.randrange(9)}"
            os.makedirs(at, exist_ok=True)
            files.append(f"{at}/{turn}-{number}")
            with open(files[-1], "wb") as file:
                file.write(load.bytes(20_000))
        ran("add", "-A")
        ran("commit", "-q", "-m", f"turn {turn}")
        commit = ran("rev-parse", "HEAD").decode().strip()
        archived = hashlib.sha256(ran("archive", commit)).hexdigest()
        if turn % 2 == 0 or not load.syncs:
            if load.syncs:
                sync(f"{top}/.git")
            load.journal.write(f"commit repository {commit} {archived}\n")


def sync(directory):
    """Makes everything below a directory stable, by what POSIX promises: each file, and each directory for its names."""

    def failed(error):
        # Walking passes over a directory that cannot be read, as on a mount that was killed: nothing of it would be synced.
        raise error

    for at, _, names in os.walk(directory, onerror=failed):
        for path in (*(f"{at}/{name}" for name in names), at):
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def row(number):
    """What row `number` of the data base holds."""
    return hashlib.sha256(str(number).encode()).hexdigest() * (1 + number % 40)


def sqlite(load):
    """Transactions of a few rows, some of which change others, each promised when it is committed."""
    mode = load.random.choice(["delete", "wal", "truncate", "persist"])
    path = f"{load.top}/data.db"
    try:
        base = sqlite3.connect(path, isolation_level=None)
        base.execute(f"pragma journal_mode={mode}")
        # `extra` syncs the directory after the journal was removed: only then is a commit durable.
        base.execute(f"pragma synchronous={'extra' if load.syncs else 'off'}")
        base.execute("create table t (id integer primary key, turn integer, text text)")
        count = 0
        for turn in range(10**6):
            base.execute("begin immediate")
            for _ in range(load.random.randrange(1, 60)):
                base.execute("insert into t values (?, ?, ?)", (count, turn, row(count)))
                count += 1
            base.execute("update t set turn = ? where id % 17 = ?", (turn, load.random.randrange(17)))
            base.execute("commit")
            # SQLite passes over a directory that cannot be opened, to sync what it removed: then the mount was killed within the commit.
            os.close(os.open(load.top, os.O_RDONLY))
            load.journal.write(f"rows data.db {count}\n")
            if turn % 20 == 19:
                load.keep(turn)
    except sqlite3.Error as failure:
        raise OSError(errno.EIO, f"sqlite: {failure}") from failure


LOADS = {"untar": untar, "postmark": postmark, "git": git, "sqlite": sqlite, "snapshots": snapshots}


def main():
    kind, directory, seed, journal, *how = sys.argv[1:]
    load = Load(directory, int(seed), journal, syncs=how != ["unsynced"])
    try:
        LOADS[kind](load)
    except OSError as failure:
        # The mount was killed: that is how every run ends. Anything else is a failure of its own, and so is to end early.
        print(failure, file=sys.stderr, flush=True)
        if failure.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO):
            raise
        if failure.errno in (errno.ENOENT, errno.EIO) and os.path.exists(f"{directory}/lost+found"):
            raise


if __name__ == "__main__":
    main()
