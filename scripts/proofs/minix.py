"""MinixLLD against the kernel's Minix: the same traces of operations say the same and give the same trees.

Debian's kernel has a driver for Minix; it is booted under qemu with a volume that util-linux's mkfs.minix -3 has made, and a
program of our own as its first process (minix/trace.c). The same program plays the same traces on a mount of MinixLLD here.
Compared is what every operation said, errors and what was read, and after each part the tree: kinds, modes, links, owners, times that
were set, sizes, contents, targets, devices; once more after a remount. fsck.minix judges the kernel's volume, and our fsck ours.
"""

import difflib
import os
import platform
import random
import shutil
import subprocess

import common
import traces

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "minix", "trace.c")
# What the kernel of a Debian machine needs for a disk of qemu's, and for Minix; those that are built in have no file.
MODULES = ("virtio_pci", "virtio_blk", "minix")
SIZE = "256M"
# Seconds until a kernel that does not end is ended.
PATIENCE = 600


def debian_kernel(options, work):
    """The kernel and the directory of its modules: as given, or Debian's newest, fetched and unpacked."""
    if options.kernel:
        return os.path.abspath(options.kernel), os.path.abspath(options.modules)
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        common.skip("no Debian here to take a kernel from: give --kernel and --modules")
    depends = common.run("apt-cache", "depends", "linux-image-amd64", ok=None).stdout.split()
    packages = [word for word in depends if word.startswith("linux-image-")]
    if len(packages) < 2:
        common.skip("apt-cache knows no linux-image-amd64 (apt-get update may help)")
    os.makedirs(f"{work}/package")
    if subprocess.run(["apt-get", "download", packages[1]], cwd=f"{work}/package", capture_output=True, check=False).returncode:
        common.skip(f"the package {packages[1]} cannot be downloaded here (apt-get update may help)")
    common.run("dpkg-deb", "-x", f"{work}/package/{os.listdir(f'{work}/package')[0]}", f"{work}/kernel")
    shutil.rmtree(f"{work}/package")
    version = os.listdir(f"{work}/kernel/lib/modules")[0]
    return f"{work}/kernel/boot/vmlinuz-{version}", f"{work}/kernel/lib/modules/{version}"


def depends(path):
    """The modules that a module needs, which it says of itself."""
    said = read(path).split(b"\0depends=", 1)
    return said[1].split(b"\0", 1)[0].decode().split(",") if len(said) > 1 else []


def module_files(directory):
    """The modules that are needed, those that others need first."""
    found = {}
    for parent, _, names in os.walk(directory):
        for name in names:
            if name.endswith(".ko"):
                found[name.removesuffix(".ko").replace("-", "_")] = os.path.join(parent, name)
    order = []

    def add(module):
        if module not in found or found[module] in order:
            return
        for other in depends(found[module]):
            add(other.replace("-", "_"))
        order.append(found[module])

    for module in MODULES:
        add(module)
    if not any("/minix.ko" in path for path in order):
        common.skip("this kernel has no module for Minix")
    return order


def archive(path, entries):
    """An archive as the kernel unpacks it (cpio's newc): name → contents, or None for a directory."""
    with open(path, "wb") as file:
        for no, (name, data) in enumerate([*entries.items(), ("TRAILER!!!", b"")]):
            mode = 0o040755 if data is None else 0o100755
            fields = [no + 1, mode, 0, 0, 1, 0, len(data or b""), 0, 0, 0, 0, len(name.encode()) + 1, 0]
            head = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
            file.write(head + bytes(-len(head) % 4) + (data or b"") + bytes(-len(data or b"") % 4))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def lines_of(text):
    return [line.rstrip("\r") for line in text.split("\n") if line.startswith("> ")]


def in_the_kernel(work, kernel, modules, parts, image):
    """Boots the kernel, which plays all parts, and returns what was said of each."""
    files = module_files(modules)
    entries = {"dev": None, "at": None, "init": read(f"{work}/trace")}
    entries |= {f"m{no}.ko": read(path) for no, path in enumerate(files)}
    entries["modules"] = "".join(f"/m{no}.ko\n" for no in range(len(files))).encode()
    entries |= {f"trace.{no}": read(path) for no, path in enumerate(parts)}
    archive(f"{work}/initramfs", entries)
    words = [
        "qemu-system-x86_64", "-accel", "tcg", "-m", "512", "-nographic", "-no-reboot", "-kernel", kernel, "-initrd",
        f"{work}/initramfs", "-append", "console=ttyS0 quiet loglevel=0 panic=-1 rdinit=/init", "-nic", "none", "-drive",
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
    parser.add_argument("--kernel", metavar="FILE", help="a kernel to boot instead of Debian's")
    parser.add_argument("--modules", metavar="DIR", help="the directory of its modules")
    options = parser.parse_args()
    if bool(options.kernel) != bool(options.modules):
        parser.error("--kernel and --modules go together")
    if platform.machine() != "x86_64":
        common.skip("the kernel that is booted is one for x86_64")
    common.require(
        root=True, fuse=True, commands=("qemu-system-x86_64", "mkfs.minix", "fsck.minix", "cc")
    )
    binary = common.program(options)
    summary = common.Summary(f"MinixLLD and the kernel's Minix (seed {options.seed})")
    with common.workdir(options, "minix") as work:
        if common.run("cc", "-O2", "-static", "-o", f"{work}/trace", SOURCE, ok=None).returncode:
            common.skip("cc cannot link a static program here")
        kernel, modules = debian_kernel(options, work)
        for seed in range(options.seed, options.seed + options.seeds):
            with summary.case(f"{os.path.basename(kernel)}, seed {seed}"):
                os.makedirs(f"{work}/{seed}")
                shutil.copy(f"{work}/trace", f"{work}/{seed}")
                exercise(options, binary, f"{work}/{seed}", kernel, modules, seed)
    summary.end()


if __name__ == "__main__":
    main()
