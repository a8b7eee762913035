"""Figure 10, computed: what parity costs in room, and how likely data is lost all the same, by the blocks of a group. Figure 11: how fast parity is."""

import math
import os
import random
import statistics
import time
import mmap

import common
import plots
from figures import volumes
from figures.volumes import Contender

BLOCK, DISK = 4096, 100 * 10**9
# Of the disks that have latent errors at all, errors for each block and year, as the paper has them from its source.
FAILURES = 2.54e-8
# Blocks of data for one of parity; the shepherd takes 2 to 64.
WIDTHS = (2, 4, 8, 10, 16, 32, 64, 255, 1024, 1 << 14, 1 << 18, DISK // BLOCK)
# What the map of owners has of each block of parity, in both halves.
OWNER_BYTES = 2 * 8
# Blocks between two that fail: no two are of one group.
APART = 64


def loss(width):
    """The chance that in a year two blocks or more of one group are lost, on such a disk. Of (1 - f)^n nothing is left in floating point, so by logarithms."""
    blocks = width + 1
    # Two or more of so few expected: the first terms that count, as all of it cannot be told from 1.
    expected = blocks * FAILURES
    none_or_one = blocks * math.log1p(-FAILURES) + math.log1p(blocks * FAILURES / (1 - FAILURES))
    two = -math.expm1(none_or_one) if expected > 1e-3 else blocks * (blocks - 1) / 2 * FAILURES**2
    return -math.expm1(DISK / BLOCK / blocks * math.log1p(-two))


def room(width):
    """The part of the disk that parity and what the maps say of it take."""
    own = BLOCK + OWNER_BYTES
    return 100 * own / (own + width * BLOCK)


def compute(data):
    """Figure 10."""
    data["figure10"] = [[width, room(width), 100 * loss(width)] for width in WIDTHS]
    for width, percent, lost in data["figure10"]:
        print(f"figure 10 {width:>9} blocks: {percent:8.4f} % of the disk, {lost:.2e} % lose data in a year")
    # One part in a hundred thousand is what the paper calls small.
    if not (loss(8) < 1e-5 < loss(DISK // BLOCK) and loss(8) < loss(10) < loss(64)):
        raise common.Failure("the chance of losing data does not grow with the group")


def contents(number):
    """What block `number` of the large file holds."""
    return (f"block {number} of a large file\n".encode() * 200)[:BLOCK]


def sequential_write(path, mib):
    block = os.urandom(1 << 20)
    started = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(mib):
            file.write(block)
        os.fsync(file.fileno())
    return mib / (time.monotonic() - started)


def sequential_read(path):
    """As programs read, with the kernel reading ahead."""
    size, started = os.path.getsize(path), time.monotonic()
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 17):
            pass
    return size / (1 << 20) / (time.monotonic() - started)


def random_blocks(path, numbers, write):
    """Reads or updates single blocks, past the kernel's cache; MB a second. What is read is looked at."""
    page = mmap.mmap(-1, BLOCK)
    descriptor = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_DIRECT)
    started = time.monotonic()
    try:
        for number in numbers:
            if write:
                page[:] = contents(number)
                os.pwrite(descriptor, page, number * BLOCK)
            else:
                os.preadv(descriptor, [page], number * BLOCK)
                if page[:] != contents(number):
                    raise common.Failure(f"block {number} of {path} is not what was written")
        if write:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return len(numbers) * BLOCK / (1 << 20) / (time.monotonic() - started)


def large(path, mib):
    with open(path, "wb") as file:
        for number in range(mib * 256):
            file.write(contents(number))
        file.flush()
        os.fsync(file.fileno())


def one(setting, contender, data):
    """All of a volume's measurements; where it has parity, with blocks that fail as well."""
    binary, work, at = setting.binary, setting.work, f"{setting.work}/at"
    mib, count, rounds = (16, 100, 2) if setting.quick else (192, 1500, 9)
    image = volumes.make(binary, work, contender, 128 if setting.quick else 1024)
    options = ["cache_size=4M"]
    found = {}

    def add(what, number):
        found.setdefault(what, []).append(round(number, 2))

    source = random.Random(1)
    with volumes.mounted(binary, image, at, *options):
        large(f"{at}/large", mib)
    for _ in range(rounds):
        with volumes.mounted(binary, image, at, *options):
            add("sequential write", sequential_write(f"{at}/new", 24))
            add("random update", random_blocks(f"{at}/large", source.sample(range(mib * 256), count), True))
        with volumes.mounted(binary, image, at, *options):
            add("sequential read", sequential_read(f"{at}/large"))
            add("random read", random_blocks(f"{at}/large", source.sample(range(mib * 256), count), False))
    failing(setting, (image, mib, count, rounds), contender, add)
    os.remove(image)
    data["figure11"][contender.name] = found
    for what, numbers in found.items():
        print(f"figure 11 {contender.name:10} {what:28} {statistics.mean(numbers):8.1f} +- {statistics.pstdev(numbers):6.1f} MB/s", flush=True)


def failing(setting, volume, contender, add):
    """Reads of blocks that all fail when they are asked for first, and the same without faults, both on the disk that can fail."""
    binary, at = setting.binary, f"{setting.work}/at"
    image, mib, count, rounds = volume
    homes = volumes.blocks_of(image, "/large")
    if len(homes) != mib * 256:
        raise common.Failure(f"{len(homes)} blocks of the large file are found, not {mib * 256}")
    chosen, last = [], -APART
    for number, home in enumerate(homes):
        if home >= last + APART:
            chosen.append((number, home))
            last = home
    source = random.Random(2)
    with volumes.Faulty(binary, image, f"{setting.work}/faulty") as disk:
        for number in range(rounds):
            some = source.sample(chosen, min(count // 4, len(chosen)))
            for what in ("no fault", "each read fails")[: 2 if "parity" in contender.name else 1]:
                with volumes.mounted(binary, disk.image, at, "cache_size=4M"):
                    plan = "; ".join(f"error read blocks={home}..{home + 1} times=1" for _, home in some)
                    disk.plan(plan if what == "each read fails" else "")
                    add(f"random read, {what}", random_blocks(f"{at}/large", [number for number, _ in some], False))
                    disk.plan("")
        # Once, at the end: the kernel remembers how long the file was.
        struck = sum(disk.struck().values())
        if "parity" in contender.name and struck < rounds * len(some) // 2:
            raise common.Failure(f"only {struck} reads have failed")


def measure(setting, data):
    data.setdefault("figure11", {})
    for contender in (Contender("none", None), Contender("parity", "parity")):
        one(setting, contender, data)
        setting.save(data)


def bar(numbers):
    """Mean, and the standard deviation on both sides."""
    if not numbers:
        return None
    mean, off = statistics.mean(numbers), statistics.pstdev(numbers)
    return (mean, max(0, mean - off), mean + off)


def draw(data, out):
    if "figure10" in data:
        draw_room(data["figure10"], out)
    found = data.get("figure11")
    if not found:
        return
    names = list(found)

    def group(what):
        return (what, [bar(found[name].get(what, [])) for name in names])

    sequential = [group("sequential write"), group("sequential read")]
    single = [group("random update"), group("random read")]
    failed = [group("random read, no fault"), group("random read, each read fails")]
    plots.write(
        f"{out}/parity-throughput.svg",
        lambda top: plots.bars("Sequential, no fault", "MB a second", sequential, names, top=top),
        lambda top: plots.bars("Random blocks of 4 KiB, no fault", "MB a second", single, names, top=top),
        lambda top: plots.bars("Random blocks of 4 KiB, on the disk that can fail", "MB a second", failed, names, top=top),
    )


def draw_room(rows, out):
    spaces = [(width, percent) for width, percent, _ in rows]
    losses = [(width, lost) for width, _, lost in rows]
    plots.write(
        f"{out}/parity-room.svg",
        lambda top: plots.lines("Room that parity takes", "blocks of a group", "% of the disk", [("room", spaces)], top=top, log=(True, False)),
        lambda top: plots.lines(
            "Disks of 100 GB with latent errors that lose data in a year", "blocks of a group", "%", [("loss", losses)], top=top, log=(True, True)
        ),
    )
