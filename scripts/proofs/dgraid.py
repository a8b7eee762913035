"""Copies a tree into a volume with the policy `d-graid`, and counts the files that are whole on one disk, and again on one other.

It looks at the disks themselves: the homes of a file's blocks by the volume's own pointers (debugfs, on the parts of the volume joined to one image),
its copies by what the spares of each disk hold. Empty files, links and whatever else has no blocks are not counted.
"""

import collections
import hashlib
import json
import os
import struct

import common


def parts(disks, shown, block_size):
    """Of each disk: where its part of the volume begins in it, and blocks of that and of its spares."""
    found = []
    for path, disk in zip(disks, shown["disks"]):
        with open(path, "rb") as file:
            label = file.read(block_size)
        first, zone = struct.unpack_from("<QQ", label, 40)
        found.append((first + zone, disk["blocks"], disk["spares"]))
    return found


def join(disks, where, block_size, image):
    """The volume as one image."""
    with open(image, "wb") as to:
        for path, (start, blocks, _) in zip(disks, where):
            with open(path, "rb") as file:
                file.seek(start * block_size)
                for _ in range(blocks):
                    to.write(file.read(block_size))


def spares(disks, where, block_size):
    """Of each disk the hashes of what its spares hold."""
    found = []
    for path, (start, blocks, count) in zip(disks, where):
        with open(path, "rb") as file:
            file.seek((start + blocks) * block_size)
            found.append({hashlib.blake2b(file.read(block_size)).digest() for _ in range(count)})
    return found


def blocks_of(image, names, work):
    """The blocks of files, as the volume has them, those with pointers included."""
    script = os.path.join(work, "commands")
    with open(script, "w", encoding="utf-8") as file:
        file.writelines(f'blocks "/{name}"\n' for name in names)
    said = common.run("debugfs", "-f", script, image).stdout.split("\n")
    answers = [line for line in said if not line.startswith("debugfs:")]
    return {name: [int(word) for word in line.split()] for name, line in zip(names, answers)}


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--disks", type=int, default=4, help="how many disks")
    parser.add_argument("--size", default="256M", help="the size of each")
    parser.add_argument("tree", nargs="?", default=os.path.join(common.REPOSITORY, "crates"), help="what is copied")
    options = parser.parse_args()
    common.require(commands=("debugfs",))
    binary, block_size = common.program(options), 4096
    with common.workdir(options, "dgraid") as work:
        disks = [f"{work}/disk{number}" for number in range(options.disks)]
        listed = ",".join(disks)
        common.run(binary, "mkfs", "ext3", "-q", "-b", str(block_size), "--policy", "d-graid", listed, options.size)
        common.run(binary, "cp", "-q", "-r", options.tree, f"{listed}:/tree")
        shown = json.loads(common.run(binary, "disk", "list", "--json", listed).stdout)
        where = parts(disks, shown, block_size)
        image = f"{work}/joined"
        join(disks, where, block_size, image)
        count(options.tree, image, (where, spares(disks, where, block_size)), work)


def count(tree, image, placed, work):
    """Counts, and prints."""
    where, copies = placed
    block_size = 4096
    starts = [sum(blocks for _, blocks, _ in where[:no]) for no in range(len(where))]
    sizes = {}
    for top, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(top, name)
            if os.path.isfile(path) and not os.path.islink(path) and os.path.getsize(path):
                sizes[os.path.join("tree", os.path.relpath(path, tree))] = os.path.getsize(path)
    whole, mirrored, homes = 0, 0, collections.Counter()
    with open(image, "rb") as file:
        for name, blocks in blocks_of(image, sorted(sizes), work).items():
            disks = {max(no for no, start in enumerate(starts) if start <= block) for block in blocks}
            if len(disks) != 1:
                continue
            whole += 1
            own = disks.pop()
            homes[own] += 1
            sums = set()
            for block in blocks:
                file.seek(block * block_size)
                sums.add(hashlib.blake2b(file.read(block_size)).digest())
            mirrored += any(sums <= there for no, there in enumerate(copies) if no != own)
    total = len(sizes)
    print(f"{total} files with contents: {whole} ({100 * whole / total:.1f} %) whole on one disk, "
          f"{mirrored} ({100 * mirrored / total:.1f} %) whole again on another; homes by disk: {dict(sorted(homes.items()))}")


if __name__ == "__main__":
    main()
