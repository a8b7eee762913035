"""A journal of 1024 blocks under four writers that unpack, remove, append and fsync: no deadlock, bounded memory."""

import contextlib
import os
import random
import shutil
import subprocess
import tarfile
import threading
import time

import common

WRITERS = 4
JOURNAL_BLOCKS = 1024
# Beside the cache: the program, its threads, inodes in memory.
OVERHEAD = 128 << 20


def sources(work, count):
    """Archives of parts of a real tree, one for each writer."""
    top = "/usr/include"
    names = sorted(os.listdir(top)) if os.path.isdir(top) else []
    archives = []
    for writer in range(count):
        path = f"{work}/{writer}.tar"
        with tarfile.open(path, "w") as archive:
            taken = 0
            for name in names[writer::count]:
                if taken > 8 << 20:
                    break
                archive.add(f"{top}/{name}", arcname=name)
                taken = archive.offset
        archives.append(path)
    return archives


class Writer(threading.Thread):
    """Unpacks, appends with fsync, removes, until the time is up."""

    def __init__(self, top, archive, deadline, seed):
        super().__init__(daemon=True)
        self.top, self.archive, self.deadline = top, archive, deadline
        self.random = random.Random(seed)
        self.steps, self.rounds, self.failure = 0, 0, None

    def run(self):
        try:
            while time.monotonic() < self.deadline:
                self.round()
                self.rounds += 1
        except Exception as failure:  # pylint: disable=broad-exception-caught
            self.failure = failure

    def round(self):
        directory = f"{self.top}/{self.rounds}"
        os.mkdir(directory)
        with tarfile.open(self.archive) as archive:
            for index, member in enumerate(archive):
                archive.extract(member, directory, filter="fully_trusted")
                self.steps += 1
                if index % 20 == 0:
                    self.append()
                if time.monotonic() > self.deadline:
                    break
        shutil.rmtree(directory)
        self.steps += 1

    def append(self):
        with open(f"{self.top}/log", "ab") as log:
            log.write(self.random.randbytes(self.random.randrange(1, 20_000)))
            log.flush()
            os.fsync(log.fileno())
            if log.tell() > 2 << 20:
                os.truncate(log.fileno(), self.random.randrange(1000))
        self.steps += 1


def peak_memory(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        line = next(line for line in status if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def watch(writers, mount, patience):
    """Waits for the writers. Fails when nothing has gone on for too long."""
    seen, since = -1, time.monotonic()
    while any(writer.is_alive() for writer in writers):
        time.sleep(0.2)
        steps = sum(writer.steps for writer in writers)
        if steps != seen:
            seen, since = steps, time.monotonic()
        elif time.monotonic() - since > patience:
            # Whoever waits in the kernel for the daemon must be let go, or the script never ends.
            mount.kill()
            mount.detach()
            raise common.Failure(f"no progress for {patience} s after {seen} steps")
    for writer in writers:
        if writer.failure:
            raise common.Failure(f"a writer failed: {writer.failure!r}")


def exercise(options, mechanism, cache_bytes, work):
    binary = common.program(options)
    image, directory = f"{work}/s.img", f"{work}/s"
    size = f"size={JOURNAL_BLOCKS >> 10}"
    common.run(binary, "mkfs", "ext3", "-q", "-b", "1024", "-J", size, image, "192M")
    archives = sources(work, WRITERS)
    extra = ["-o", f"consistency={mechanism}", "--cache-size", str(cache_bytes)]
    with common.Mount(binary, image, directory, *extra) as mount:
        deadline = time.monotonic() + options.seconds
        writers = []
        for index, archive in enumerate(archives):
            os.mkdir(f"{directory}/{index}")
            writers.append(Writer(f"{directory}/{index}", archive, deadline, options.seed + index))
        for writer in writers:
            writer.start()
        watch(writers, mount, options.patience)
        with contextlib.suppress(subprocess.SubprocessError):
            common.run("sync", "-f", directory, timeout=options.patience)
        peak, steps = peak_memory(mount.pid), sum(writer.steps for writer in writers)
    print(f"     {steps} steps, peak {peak >> 20} MiB", flush=True)
    if peak > cache_bytes + OVERHEAD:
        raise common.Failure(f"{peak >> 20} MiB of memory with a cache of {cache_bytes >> 20} MiB")
    common.e2fsck_clean(image)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="for each case")
    parser.add_argument("--patience", type=int, default=60, help="seconds without progress that are a failure")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    summary = common.Summary(f"journal stress, {options.seconds} s each")
    for mechanism in common.JOURNALED:
        for name, cache_bytes in (("cache of 64 MiB", 64 << 20), ("cache of 2 MiB", 2 << 20)):
            with summary.case(f"{mechanism}, {name}"), common.workdir(options, "stress") as work:
                exercise(options, mechanism, cache_bytes, work)
    summary.end()


if __name__ == "__main__":
    main()
