"""MinixLLD against the kernel's Minix: the same traces of operations say the same and give the same trees.

Debian's kernel has a driver for Minix; it is booted under qemu with a volume that util-linux's mkfs.minix -3 has made, and a
program of our own as its first process (minix/trace.c). The same program plays the same traces on a mount of MinixLLD here.
Compared is what every operation said, errors and what was read, and after each part the tree: kinds, modes, links, owners, times that
were set, sizes, contents, targets, devices; once more after a remount. fsck.minix judges the kernel's volume, and our fsck ours.
"""

import difflib
import os
import random
import shutil
import subprocess

import common
import guests
import traces
from guests import lines_of, read

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "minix", "trace.c")
# What the kernel of a Debian machine needs for a disk of qemu's, and for Minix; those that are built in have no file.
MODULES = ("virtio_pci", "virtio_blk", "minix")
SIZE = "256M"
# Seconds until a kernel that does not end is ended.
PATIENCE = 600


def in_the_kernel(work, kernel, modules, parts, image):
    """Boots the kernel, which plays all parts, and returns what was said of each."""
    files = guests.module_files(modules, MODULES)
    if not any("/minix.ko" in path for path in files):
        common.skip("this kernel has no module for Minix")
    entries = {"dev": None, "at": None, "init": read(f"{work}/trace")}
    entries |= {f"m{no}.ko": read(path) for no, path in enumerate(files)}
    entries["modules"] = "".join(f"/m{no}.ko\n" for no in range(len(files))).encode()
    entries |= {f"trace.{no}": read(path) for no, path in enumerate(parts)}
    guests.archive(f"{work}/initramfs", entries)
    words = [
        "qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-nographic", "-no-reboot", "-kernel", kernel, "-initrd",
        f"{work}/initramfs", "-append", "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check rdinit=/init", "-nic", "none", "-drive",
        f"file={image},format=raw,if=virtio,cache=unsafe",
    ]
    done = subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False)
    said = done.stdout.decode("utf-8", "replace")
    found = lines_of(said)
    if not found or found[-1] != "> end":
        raise common.Failure(f"the kernel did not come to the end:\n{said[-2000:]}{done.stderr.decode()[-1000:]}")
    parts_said, part = [], None
    for line in found[:-1]:
        if line.startswith("> part "):
            parts_said.append(part := [])
        else:
            part.append(line)
    return parts_said


def on_a_mount(binary, work, parts, name="ours"):
    """The same on a fresh volume of MinixLLD."""
    image, directory, said = f"{work}/{name}.img", f"{work}/{name}", []
    common.make_volume(binary, common.MINIXLLD, 4096, image, SIZE)
    for part in parts:
        with common.Mount(binary, image, directory):
            played = common.run(f"{work}/trace", "play", directory, part).stdout
            played += common.run(f"{work}/trace", "tree", directory, "tree").stdout
        with common.Mount(binary, image, directory):
            played += common.run(f"{work}/trace", "tree", directory, "tree again").stdout
        said.append(lines_of(played))
    common.clean(binary, image, common.MINIXLLD)
    return said


def same(kernels, ours, part):
    """Fails with the first differences, if there are any."""
    if kernels == ours:
        return
    with open(part, encoding="utf-8") as file:
        trace = file.read().split("\n")
    differences = [line for line in difflib.unified_diff(kernels, ours, "the kernel's Minix", "MinixLLD", lineterm="", n=0)][:40]
    played = [line.split()[1] for line in differences if line.startswith(("->", "+>"))]
    asked = [f"{no}: {trace[int(no) - 1]}" for no in dict.fromkeys(played) if no.isdigit()][:10]
    raise common.Failure("\n  ".join(["they differ:", *differences, "what was asked:", *asked]))


def write_parts(options, work, seed):
    trace, parts = traces.Trace(random.Random(seed)), []
    for no in range(options.parts):
        parts.append(f"{work}/trace.{no}")
        with open(parts[-1], "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in trace.lines(options.operations))
    return parts


def sees_what_is_left_out(binary, work, parts, ours):
    """A trace without one of its writes gives other trees: what is compared would show it."""
    with open(parts[0], encoding="utf-8") as file:
        trace = file.readlines()
    # Behind the answers of the operations is the tree: what is still in it is missed.
    tree = {line.split()[1] for line in ours[0][len(trace):]}
    made = [
        no for no, line in enumerate(trace)
        if line.startswith("create\t") and ours[0][no].endswith(" ok") and line.split("\t")[1] in tree
    ]
    if not made:
        raise common.Failure("nothing is left of what the trace makes")
    trace[made[-1]] = "read\tmissing\t0\t0\n"
    with open(f"{work}/short.trace", "w", encoding="utf-8") as file:
        file.writelines(trace)
    said = on_a_mount(binary, work, [f"{work}/short.trace"], "short")
    if said[0][len(trace):] == ours[0][len(trace):]:
        raise common.Failure("a file that was not made is not missed")


def exercise(options, binary, work, kernel, modules, seed):
    parts = write_parts(options, work, seed)
    image = f"{work}/kernels.img"
    common.run("truncate", "-s", SIZE, image)
    common.run("mkfs.minix", "-3", "-i", "20000", image)
    kernels = in_the_kernel(work, kernel, modules, parts, image)
    common.run("fsck.minix", "-f", image)
    ours = on_a_mount(binary, work, parts)
    if len(kernels) != len(ours):
        raise common.Failure(f"the kernel has played {len(kernels)} parts of {len(ours)}")
    for part, theirs, own in zip(parts, kernels, ours):
        same(theirs, own, part)
    operations = [line for said in ours for line in said[: options.operations]]
    succeeded = sum(line.endswith(" ok") for line in operations)
    trees = [len(said) - options.operations for said in ours]
    print(f"     {len(operations)} operations, {succeeded} of which succeeded; trees of {sum(trees)} lines", flush=True)
    sees_what_is_left_out(binary, work, parts, ours)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--seeds", type=int, default=3, help="traces, each on fresh volumes (default 3)")
    parser.add_argument("--parts", type=int, default=4, help="parts of a trace, a remount after each (default 4)")
    parser.add_argument("--operations", type=int, default=2500, help="operations of a part (default 2500)")
    guests.kernel_options(parser)
    options = parser.parse_args()
    guests.check_options(parser, options)
    common.require(
        root=True, fuse=True, commands=("qemu-system-x86_64", "mkfs.minix", "fsck.minix", "cc")
    )
    binary = common.program(options)
    summary = common.Summary(f"MinixLLD and the kernel's Minix (seed {options.seed})")
    with common.workdir(options, "minix") as work:
        if common.run("cc", "-O2", "-static", "-o", f"{work}/trace", SOURCE, ok=None).returncode:
            common.skip("cc cannot link a static program here")
        kernel, modules = guests.debian_kernel(options, work)
        for seed in range(options.seed, options.seed + options.seeds):
            with summary.case(f"{os.path.basename(kernel)}, seed {seed}"):
                os.makedirs(f"{work}/{seed}")
                shutil.copy(f"{work}/trace", f"{work}/{seed}")
                exercise(options, binary, f"{work}/{seed}", kernel, modules, seed)
    summary.end()


if __name__ == "__main__":
    main()
