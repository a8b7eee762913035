"""Volumes that grow while they are mounted: under programs that write, and with the mount killed in the middle.

Each run makes a small volume, lets two programs write on it, and has it grow step by step. One of them makes every file stable and notes that;
the other one does not. The daemon is killed at some moment of some step. Afterwards the volume mounts, has one of the sizes that it was given,
all that was noted is there, and both checkers find nothing but what the mechanism allows.
"""

import multiprocessing
import os
import random
import subprocess
import time

import common

MIB = 1 << 20
KINDS = (("ordered", "ext4"), ("full", "ext4"), ("ordered", "ext3"), ("metadata", "ext3"), ("soft", "ext2"))
FIRST = 16
STEPS = 4


def note_stable(directory, noted):
    """Files that are stable before their numbers are noted."""
    number = 0
    try:
        while True:
            path = f"{directory}/stable{number}"
            with open(path, "wb", buffering=0) as file:
                file.write(contents(number))
                os.fsync(file)
            with open(noted, "a", encoding="ascii") as log:
                log.write(f"{number}\n")
            number += 1
    except OSError:
        # The mount is dead; or full, as the other program leaves it, until it has grown.
        return


def fill(directory, seed):
    """Files that come and go."""
    draw = random.Random(seed)
    try:
        while True:
            name = f"{directory}/{draw.randrange(40)}"
            if draw.random() < 0.3 and os.path.exists(name):
                os.unlink(name)
            else:
                with open(name, "wb", buffering=0) as file:
                    file.write(b"\xcd" * draw.randrange(100_000))
    except OSError:
        return


def contents(number):
    return f"{number} ".encode() * (1 + number % 700)


def programs(directory, noted, seed):
    for name in ("kept", "others"):
        os.makedirs(f"{directory}/{name}")
    started = [
        multiprocessing.Process(target=note_stable, args=(f"{directory}/kept", noted)),
        multiprocessing.Process(target=fill, args=(f"{directory}/others", seed)),
    ]
    for program in started:
        program.start()
    return started


def end(started):
    for program in started:
        program.kill()
    for program in started:
        program.join()


def steps(draw):
    """Sizes in MiB."""
    sizes = [FIRST]
    for _ in range(STEPS):
        sizes.append(sizes[-1] + draw.randrange(1, 60))
    return sizes


def exercise(binary, at, kind, draw, latest):
    mechanism, named = kind
    image, directory, noted = f"{at}/g.img", f"{at}/m", f"{at}/noted"
    block_size = draw.choice((1024, 4096))
    common.run(binary, "mkfs", named, "-q", "-b", str(block_size), image, f"{FIRST}M")
    open(noted, "w", encoding="ascii").close()
    sizes, killed_in = steps(draw), draw.randrange(1, STEPS + 2)
    grown = FIRST
    with common.Mount(binary, image, directory, "-o", f"consistency={mechanism}") as mount:
        started = programs(directory, noted, draw.random())
        for step, size in enumerate(sizes[1:], 1):
            time.sleep(draw.random() * 0.2)
            command = [binary, "resize", directory, f"{size}M"]
            if step == killed_in:
                resize = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                time.sleep(draw.random() * latest)
                mount.kill()
                mount.detach()
                resize.wait(timeout=60)
                break
            common.run(*command)
            grown = size
        end(started)
        if killed_in > STEPS:
            mount.umount()
    judge(binary, (image, directory, noted), kind, [size for size in sizes if size >= grown][:2])


def judge(binary, paths, kind, sizes):
    image, directory, noted = paths
    with common.Mount(binary, image, directory, "-o", f"consistency={kind[0]}") as mount:
        with open(noted, encoding="ascii") as log:
            numbers = [int(line) for line in log.read().split("\n")[:-1]]
        for number in numbers:
            with open(f"{directory}/kept/stable{number}", "rb") as file:
                if file.read() != contents(number):
                    raise common.Failure(f"stable{number} is not what was made stable")
        # What a crash has left is reclaimed meanwhile.
        common.run(binary, "fsck", "--online", "-p", directory, ok=(0, 1))
        mount.umount()
    report = common.fsck(binary, image, "-n")
    if report["findings"]:
        raise common.Failure(f"our checker finds {report['findings']}")
    common.e2fsck_clean(image)
    said = common.run("dumpe2fs", "-h", image).stdout
    fields = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    has = int(fields["Block count"]) * int(fields["Block size"]) / MIB
    # A last group that would hold little more than its own metadata is left out.
    if not any(size - 9 <= has <= size for size in sizes):
        raise common.Failure(f"it has {has} MiB, expected one of {sizes}")
    print(f"  {len(numbers)} files were stable, {has:.0f} MiB of {sizes}")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=50, help="runs of each mechanism (default 50)")
    parser.add_argument("--seconds", type=float, default=0.3, help="latest moment of a kill (default 0.3)")
    parser.add_argument("--seed", default=None, help="what everything is drawn from (default: the time)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck", "dumpe2fs"))
    binary = common.program(options)
    seed = options.seed if options.seed is not None else str(time.time_ns())
    summary = common.Summary(f"{options.runs} runs of each mechanism (seed {seed})")
    for number in range(options.runs):
        for kind in KINDS:
            draw = random.Random(f"{seed} {number} {kind}")
            name = f"{kind[0]} on {kind[1]}, run {number}, seed {seed}"
            with summary.case(name), common.workdir(options, "grow") as at:
                exercise(binary, at, kind, draw, options.seconds)
    summary.end()


if __name__ == "__main__":
    main()
