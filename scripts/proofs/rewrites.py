"""Loads that end and begin blocks' lives while the flusher writes: nothing may panic, fail or be left behind.

Several programs at once on one mount: one writes a large file over and over, some overwrite files with O_TRUNC and append to
them, one makes and removes a small file, one keeps hard-link snapshots of a tree. By every mechanism, with caches from the smallest to
one that is never full, on small and large blocks. Afterwards the mount must be sound, fsync and unmounting succeed, and both checkers
find nothing.
"""

import itertools
import multiprocessing
import os
import random
import time

import common

CACHES = (1_258_291, 4 << 20, 64 << 20)
BLOCK_SIZES = (1024, 4096)
PIECE = b"\xcd" * 65536
FILES = 200


def large_file(directory, _number):
    """One file, written anew."""
    with open(f"{directory}/large", "wb", buffering=0) as file:
        for _ in range(400):
            file.write(PIECE[:16384])


def overwrite(directory, _number):
    """A file of some size in place of another one."""
    with open(f"{directory}/{random.randrange(FILES)}", "wb", buffering=0) as file:
        for _ in range(random.randrange(20)):
            file.write(PIECE)


def append(directory, _number):
    with open(f"{directory}/{random.randrange(FILES)}", "ab", buffering=0) as file:
        file.write(b"a line of text\n")


def come_and_go(directory, _number):
    """A file that never lives to be written."""
    name = f"{directory}/gone"
    with open(name, "wb", buffering=0) as file:
        file.write(PIECE[:1000])
    os.unlink(name)


def snapshots(directory, number):
    """A tree of hard links for each state of another tree; the oldest goes."""
    tree, places = f"{directory}/tree", [f"d{n}" for n in range(6)]
    if number == 0:
        for place in places:
            os.makedirs(f"{tree}/{place}")
            for name in range(8):
                write(f"{tree}/{place}/f{name}", number)
    for place in places:
        os.makedirs(f"{directory}/snapshot{number}/{place}")
        for name in os.listdir(f"{tree}/{place}"):
            os.link(f"{tree}/{place}/{name}", f"{directory}/snapshot{number}/{place}/{name}")
        write(f"{tree}/{place}/new", number)
        os.rename(f"{tree}/{place}/new", f"{tree}/{place}/f{number % 8}")
    if number >= 3:
        oldest = f"{directory}/snapshot{number - 3}"
        for place in places:
            for name in os.listdir(f"{oldest}/{place}"):
                os.unlink(f"{oldest}/{place}/{name}")
            os.rmdir(f"{oldest}/{place}")
        os.rmdir(oldest)


def write(name, number):
    with open(name, "w", encoding="ascii") as file:
        file.write(f"{number}\n")


def repeat(load, directory, seed, until, failures):
    """Does one thing again and again until it is time."""
    random.seed(seed)
    os.makedirs(directory, exist_ok=True)
    number = 0
    try:
        # Once in any case: on a busy machine a program may start late.
        while number == 0 or time.monotonic() < until:
            load(directory, number)
            number += 1
    except OSError as error:
        failures.put(f"{load.__name__}, repetition {number}: {error}")


def work(directory, seed, seconds):
    """All loads at once. Returns what failed."""
    failures = multiprocessing.Queue()
    until = time.monotonic() + seconds
    loads = (large_file, overwrite, overwrite, append, come_and_go, snapshots)
    homes = ("", "files", "files", "files", "", "snapshots")
    programs = [
        multiprocessing.Process(target=repeat, args=(load, f"{directory}/{home}", seed + at, until, failures))
        for at, (load, home) in enumerate(zip(loads, homes))
    ]
    for program in programs:
        program.start()
    for program in programs:
        program.join()
    return [failures.get() for _ in range(failures.qsize())]


def sync(directory):
    """fsync of the root makes everything stable."""
    root = os.open(directory, os.O_RDONLY)
    os.fsync(root)
    os.close(root)


def exercise(binary, at, case, seed, seconds):
    (mechanism, kind), cache, block_size = case
    image, directory = f"{at}/r.img", f"{at}/m"
    common.make_volume(binary, mechanism, block_size, image, "256M", kind)
    options = ("-o", f"consistency={mechanism}", "--cache-size", str(cache))
    with common.Mount(binary, image, directory, *options) as mount:
        failures = work(directory, seed, seconds)
        said = common.run(binary, "status", directory).stdout
        if failures or "FAILED" in said:
            raise common.Failure("\n".join([*failures, said]))
        sync(directory)
        mount.umount()
    report = common.fsck(binary, image, "-n")
    if report["findings"]:
        raise common.Failure(f"our checker finds {report['findings']}")
    common.e2fsck_clean(image)
    os.unlink(image)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=50, help="rounds over all combinations (default 50)")
    parser.add_argument("--seconds", type=float, default=2, help="seconds for each combination (default 2)")
    parser.add_argument("--sample", type=int, metavar="N", help="only so many combinations of each round")
    parser.add_argument("--seed", default=None, help="what the loads are drawn from (default: the time)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    binary = common.program(options)
    seed = options.seed if options.seed is not None else str(time.time_ns())
    draw = random.Random(seed)
    summary = common.Summary("rewrites")
    for number in range(options.rounds):
        kinds = [(mechanism, "ext3") for mechanism in common.MECHANISMS]
        kinds += [(mechanism, "ext4") for mechanism in common.JOURNALED]
        cases = list(itertools.product(kinds, CACHES, BLOCK_SIZES))
        if options.sample:
            cases = sorted(draw.sample(cases, options.sample))
        for case in cases:
            (mechanism, kind), cache, block_size = case
            name = f"round {number}, {mechanism}{' on ext4' if kind == 'ext4' else ''}, cache {cache >> 10} KiB, {block_size}-byte blocks, seed {seed}"
            with summary.case(name), common.workdir(options, "rewrites") as at:
                exercise(binary, at, case, draw.randrange(1 << 32), options.seconds)
    summary.end()


if __name__ == "__main__":
    main()
