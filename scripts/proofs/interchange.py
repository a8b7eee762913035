"""Trees of every kind of file cross between our ext2 and the kernel's, both ways, for all block and inode sizes."""

import os

import common
import trees


def combinations(quick):
    for block_size in (1024, 2048, 4096):
        inode_size = 128
        while inode_size <= block_size:
            if not quick or (block_size, inode_size) in ((1024, 128), (2048, 512), (4096, 256)):
                yield block_size, inode_size
            inode_size *= 2


def make(binary, ours, image, block_size, inode_size):
    """An image of our making, or of mke2fs's."""
    if ours:
        common.run(binary, "mkfs", "ext2", "-q", "-b", str(block_size), "-I", str(inode_size), "-N", "4096", image, "64M")
    else:
        sizes = ["-b", str(block_size), "-I", str(inode_size), "-N", "4096"]
        common.run("mke2fs", "-q", "-F", "-t", "ext2", *sizes, image, "64M")


def kernel_to_us(binary, work, made_by_us, block_size, inode_size):
    image, directory = f"{work}/k.img", f"{work}/k"
    make(binary, made_by_us, image, block_size, inode_size)
    with common.kernel_mount(image, directory):
        trees.every_kind(directory, 1, block_size, inode_size)
        expected = common.manifest(directory)
    with common.Mount(binary, image, directory, "-o", "noatime"):
        found = common.manifest(directory)
    common.same_trees(expected, found, "written by the kernel, read by us")
    common.e2fsck_clean(image)
    with common.Mount(binary, image, directory):
        change(directory)
        expected = common.manifest(directory)
    common.e2fsck_clean(image)
    with common.kernel_mount(image, directory, "ro"):
        found = common.manifest(directory)
    common.same_trees(expected, found, "written by the kernel, changed by us, read by the kernel")


def us_to_kernel(binary, work, made_by_us, block_size, inode_size):
    image, directory = f"{work}/u.img", f"{work}/u"
    make(binary, made_by_us, image, block_size, inode_size)
    with common.Mount(binary, image, directory):
        trees.every_kind(directory, 2, block_size, inode_size)
        expected = common.manifest(directory)
    common.e2fsck_clean(image)
    with common.kernel_mount(image, directory, "ro"):
        found = common.manifest(directory)
    common.same_trees(expected, found, "written by us, read by the kernel")
    with common.kernel_mount(image, directory):
        change(directory)
        expected = common.manifest(directory)
    with common.Mount(binary, image, directory, "-o", "ro"):
        found = common.manifest(directory)
    common.same_trees(expected, found, "written by us, changed by the kernel, read by us")
    common.e2fsck_clean(image)


def change(directory):
    """Changes a bit of everything in a tree that the other side wrote."""
    many = f"{directory}/names/many"
    for index, name in enumerate(sorted(os.listdir(many))):
        if index % 3 == 0:
            os.unlink(f"{many}/{name}")
        elif index % 3 == 1:
            os.rename(f"{many}/{name}", f"{many}/renamed-{name}"[: len(many) + 250])
    for index in range(300):
        trees.write(f"{many}/new-{index}", b"new")
    os.truncate(f"{directory}/holes/double", 7)
    os.truncate(f"{directory}/sizes/1", 100_000)
    os.setxattr(f"{directory}/attributes/shared-b", "user.shared", b"t" * 300)
    os.removexattr(f"{directory}/attributes/shared-c", "user.shared")
    os.unlink(f"{directory}/links/two")
    os.rename(f"{directory}/names/deep", f"{directory}/sizes/deep")


def copied(binary, work, block_size, inode_size):
    """The same tree through `fstitch cp`, in and out, without any mount."""
    image, directory, source = f"{work}/c.img", f"{work}/c", f"{work}/source"
    os.mkdir(source)
    trees.every_kind(source, 3, block_size, inode_size)
    os.unlink(f"{source}/holes/triple")
    expected = common.manifest(source, holes=False)
    make(binary, True, image, block_size, inode_size)
    common.run(binary, "cp", "-r", f"{source}/.", f"{image}:/")
    common.e2fsck_clean(image)
    with common.kernel_mount(image, directory, "ro"):
        found = common.manifest(directory, holes=False)
    common.same_trees(expected, found, "copied into an image, read by the kernel")
    common.run(binary, "cp", "-r", f"{image}:/", f"{work}/back")
    found = common.manifest(f"{work}/back", holes=False)
    common.same_trees(expected, found, "copied into an image and back")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="three combinations of block and inode sizes only")
    options = parser.parse_args()
    common.require(root=True, fuse=True, loop=True, commands=("mke2fs", "e2fsck"))
    binary = common.program(options)
    summary = common.Summary("interchange with the kernel")
    for number, (block_size, inode_size) in enumerate(combinations(options.quick)):
        name = f"{block_size}-byte blocks, {inode_size}-byte inodes"
        cases = {
            "kernel to us": lambda work: kernel_to_us(binary, work, number % 2 == 1, block_size, inode_size),
            "us to kernel": lambda work: us_to_kernel(binary, work, number % 2 == 0, block_size, inode_size),
        }
        if inode_size > 128:
            cases["cp without a mount"] = lambda work: copied(binary, work, block_size, inode_size)
        for title, case in cases.items():
            with summary.case(f"{name}: {title}"), common.workdir(options, "interchange") as work:
                case(work)
    summary.end()


if __name__ == "__main__":
    main()
