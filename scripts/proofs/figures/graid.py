"""Figure 14: D-GRAID. How many files are left when disks die, and what copies of metadata cost."""

import os
import random
import statistics
import time

import common
import plots
from figures import volumes
from figures.volumes import Contender

DISKS = 10
DIRECTORIES, FILES = 50, 20
# Copies of superblocks, descriptors and directories, and whether inodes have as many or are there twice, like the files; and the policy that is shipped.
SHIPPED = "as shipped"
LINES = ((1, False), (2, False), (4, False), (10, False), (4, True), (10, True), SHIPPED)
SPEED_DISKS, SPEED_COPIES, SPEED_DIRECTORIES = 4, (1, 2, 3, 4), 20


def contents(directory, number):
    return f"file {number} of {directory} ".encode().ljust(32) * 128


def fill(top, directories=DIRECTORIES, synchronously=False):
    """Files of 4 KiB, a thousand in fifty directories; how long that takes."""
    started = time.monotonic()
    for directory in range(directories):
        os.mkdir(f"{top}/d{directory}")
        for number in range(FILES):
            descriptor = os.open(f"{top}/d{directory}/f{number}", os.O_CREAT | os.O_WRONLY, 0o644)
            os.write(descriptor, contents(directory, number))
            if synchronously:
                os.fsync(descriptor)
            os.close(descriptor)
    return time.monotonic() - started


def left(top):
    """How many of the files are found and whole; one that is not what was written is no answer."""
    whole = 0
    for directory in range(DIRECTORIES):
        for number in range(FILES):
            try:
                with open(f"{top}/d{directory}/f{number}", "rb") as file:
                    found = file.read()
            except OSError:
                continue
            if found != contents(directory, number):
                raise common.Failure(f"d{directory}/f{number} is not what was written, and no error said so")
            whole += 1
    return whole


def available(setting, image, gone):
    """Files that are left without these disks, in percent; none if there is no volume any more."""
    disks = [("missing" if number in gone else disk) for number, disk in enumerate(image.split(","))]
    at = f"{setting.work}/at"
    os.makedirs(at, exist_ok=True)
    if common.run(setting.binary, "mount", "-o", "ro,cache_size=8M", ",".join(disks), at, ok=None).returncode:
        return 0.0
    try:
        return 100 * left(at) / (DIRECTORIES * FILES)
    finally:
        common.run(setting.binary, "umount", "-q", at)


def availability(setting, data):
    """With so many copies, how much is left when so many disks are gone."""
    found = data.setdefault("figure14", {}).setdefault("available", {})
    source = random.Random(1)
    # Disks die in one order after the other, the same for every policy, so a line never rises.
    orders = [source.sample(range(DISKS), DISKS) for _ in range(1 if setting.quick else 5)]
    for line in LINES[:: 3 if setting.quick else 1]:
        if line == SHIPPED:
            name, policy = SHIPPED, "d-graid"
        else:
            copies, inodes = line
            name, policy = f"{copies} and inodes" if inodes else str(copies), volumes.dgraid(copies, inodes)
        contender = Contender(f"d-graid {name}", policy, DISKS)
        # Of small blocks, so that groups are small and directories, which go to one each, are on all disks.
        image = volumes.make(setting.binary, setting.work, contender, 32 * DISKS, 1024)
        with volumes.mounted(setting.binary, image, f"{setting.work}/at") as mount:
            fill(mount.directory)
        points = []
        for dead in range(0, DISKS, 4 if setting.quick else 1):
            several = [available(setting, image, set(order[:dead])) for order in orders[: None if dead else 1]]
            points.append([dead, round(statistics.mean(several), 2), min(several), max(several)])
        points.append([DISKS, 0.0, 0.0, 0.0])
        found[name] = points
        print(f"figure 14 copies {name}: " + ", ".join(f"{dead} gone {mean:.1f} %" for dead, mean, _, _ in points), flush=True)
        for disk in image.split(","):
            os.remove(disk)
        if points[0][1] != 100 or (line != (1, False) and len(points) > 9 and points[1][1] != 100):
            raise common.Failure("files are gone that have a copy on another disk")
        setting.save(data)


def speed(setting, data):
    """Seconds for files that are written synchronously, by copies of metadata, on four disks."""
    found = data.setdefault("figure14", {})["seconds"] = {}
    for _ in range(1 if setting.quick else 3):
        for copies in SPEED_COPIES[:: 3 if setting.quick else 1]:
            contender = Contender(f"d-graid {copies}", volumes.dgraid(copies), SPEED_DISKS)
            image = volumes.make(setting.binary, setting.work, contender, 64 * SPEED_DISKS)
            with volumes.mounted(setting.binary, image, f"{setting.work}/at") as mount:
                seconds = fill(mount.directory, 3 if setting.quick else SPEED_DIRECTORIES, synchronously=True)
            found.setdefault(str(copies), []).append(round(seconds, 3))
            for disk in image.split(","):
                os.remove(disk)
    for copies, numbers in found.items():
        print(f"figure 14 {copies} copies of metadata on {SPEED_DISKS} disks: {statistics.median(numbers):.3f} s", flush=True)
    setting.save(data)


def draw(data, out):
    found = data.get("figure14", {})
    if "available" not in found or "seconds" not in found:
        return
    series = [(f"{copies}", [(dead, mean) for dead, mean, _, _ in points]) for copies, points in found["available"].items()]
    one = statistics.median(found["seconds"]["1"])
    groups = [(copies, [tuple(pick(numbers) / one for pick in (statistics.median, min, max))]) for copies, numbers in found["seconds"].items()]
    plots.write(
        f"{out}/d-graid.svg",
        lambda top: plots.lines(f"Files left of {DIRECTORIES * FILES}, {DISKS} disks", "disks that are gone; lines: copies of metadata", "%", series, top=top),
        lambda top: plots.bars(f"Files written synchronously, {SPEED_DISKS} disks, by copies of metadata", "time, to one copy", groups, [""], top=top, line=1),
    )
