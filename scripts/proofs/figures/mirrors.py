"""Figure 12: where copies are, and what that costs writers and gives readers."""

import os
import random
import statistics
import time
import mmap

import common
import plots
from figures import volumes
from figures.volumes import BLOCK, Contender

CONTENDERS = (Contender("none", None), Contender("near", "mirror-near"), Contender("far", "mirror-far"))


def small_writes(at, count):
    """Milliseconds that it takes to write a file of 4 KiB synchronously, of each."""
    found, block = [], os.urandom(BLOCK)
    for number in range(count):
        started = time.monotonic()
        descriptor = os.open(f"{at}/small{number}", os.O_CREAT | os.O_WRONLY, 0o644)
        os.write(descriptor, block)
        os.fsync(descriptor)
        os.close(descriptor)
        found.append(1000 * (time.monotonic() - started))
    return found


def ends(at, mib, filler):
    """Two files, as far from each other as a file between them makes it."""
    for name, size in (("first", mib), ("filler", filler), ("last", mib)):
        with open(f"{at}/{name}", "wb") as file:
            for _ in range(size):
                file.write(name.encode().ljust(16) * (1 << 16))
            file.flush()
            os.fsync(file.fileno())
    os.remove(f"{at}/filler")


def alternate(at, mib, count, source):
    """Milliseconds that it takes to read a block, in turns from either file, past all caches."""
    page, found = mmap.mmap(-1, BLOCK), []
    both = [(os.open(f"{at}/{name}", os.O_RDONLY | os.O_DIRECT), name.encode().ljust(16) * 256) for name in ("first", "last")]
    for number in range(count):
        descriptor, expected = both[number % 2]
        place = source.randrange(mib * 256) * BLOCK
        started = time.monotonic()
        os.preadv(descriptor, [page], place)
        found.append(1000 * (time.monotonic() - started))
        if page[:] != expected:
            raise common.Failure("a file does not hold what was written")
    for descriptor, _ in both:
        os.close(descriptor)
    return found


def summary(numbers):
    """The middle, and the quarters around it."""
    low, middle, high = statistics.quantiles(numbers, n=4)
    return [round(middle, 4), round(low, 4), round(high, 4), round(statistics.mean(numbers), 4)]


def measure(setting, data):
    found = data.setdefault("figure12", {})
    size, mib, filler, writes, reads = (128, 4, 16, 40, 100) if setting.quick else (1024, 64, 160, 1000, 4000)
    for contender in CONTENDERS:
        image, at = volumes.make(setting.binary, setting.work, contender, size), f"{setting.work}/at"
        with volumes.mounted(setting.binary, image, at):
            ends(at, mib, filler)
        homes = [volumes.blocks_of(image, f"/{name}")[0] for name in ("first", "last")]
        with volumes.mounted(setting.binary, image, at, "cache_size=4M"):
            written = small_writes(at, writes)
            read = alternate(at, mib, reads, random.Random(1))
        os.remove(image)
        found[contender.name] = {
            "write ms": summary(written),
            "read ms": summary(read),
            "MiB apart": (homes[1] - homes[0]) * BLOCK >> 20,
        }
        print(f"figure 12 {contender.name:5} {found[contender.name]} (middle, quarters, mean)", flush=True)
        setting.save(data)


def draw(data, out):
    found = data.get("figure12")
    if not found:
        return
    names = list(found)

    def group(what):
        return [(name, [tuple(found[name][what][:3])]) for name in names]

    plots.write(
        f"{out}/mirrors.svg",
        lambda top: plots.bars("A file of 4 KiB written synchronously", "ms", group("write ms"), [""], top=top),
        lambda top: plots.bars("A block of 4 KiB read, in turns from files at both ends", "ms", group("read ms"), [""], top=top),
    )
