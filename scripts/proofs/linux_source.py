"""A real tree: a part of Debian's linux-source package is unpacked, compared and deleted."""

import os
import shutil
import subprocess
import time

import common

PACKAGE = "linux-source-6.1"
# About 300 MB of the kernel's tree.
PARTS = ["arch/x86", "block", "drivers/net", "fs", "include", "kernel", "lib", "mm", "net", "tools"]
BYTES_MIN = 200_000_000


def archive(options, work):
    """The package's tar archive, fetched unless it is given."""
    if options.archive:
        return os.path.abspath(options.archive)
    installed = f"/usr/src/{PACKAGE}.tar.xz"
    if os.path.exists(installed):
        return installed
    os.makedirs(f"{work}/package")
    if subprocess.run(["apt-get", "download", PACKAGE], cwd=f"{work}/package", capture_output=True).returncode:
        common.skip(f"the package {PACKAGE} cannot be downloaded here (apt-get update may help)")
    package = os.listdir(f"{work}/package")[0]
    common.run("dpkg-deb", "-x", f"{work}/package/{package}", f"{work}/unpacked")
    return f"{work}/unpacked/usr/src/{PACKAGE}.tar.xz"


def repack(source, work):
    """The chosen parts as an uncompressed archive, so that unpacking measures the file system alone."""
    os.makedirs(f"{work}/reference")
    prefix = PACKAGE
    common.run("tar", "-xJf", source, "-C", f"{work}/reference", *[f"{prefix}/{part}" for part in PARTS])
    common.run("tar", "--format=posix", "-cf", f"{work}/tree.tar", "-C", f"{work}/reference", prefix)
    size = os.path.getsize(f"{work}/tree.tar")
    if size < BYTES_MIN:
        raise common.Failure(f"the tree has only {size} bytes")
    print(f"     {size / 1e6:.0f} MB", flush=True)


def inodes_used(directory):
    """Inodes that `statvfs` counts as used."""
    room = os.statvfs(directory)
    return room.f_files - room.f_ffree


def exercise(options, binary, work, mechanism, block_size, extra):
    image, directory = f"{work}/l.img", f"{work}/l"
    common.make_volume(binary, mechanism, block_size, image, "1G", common.journaled_kind(options))
    extra = [*common.asked(mechanism), *extra]
    with common.Mount(binary, image, directory, *extra):
        times, empty = [time.monotonic()], inodes_used(directory)
        common.run("tar", "-xf", f"{work}/tree.tar", "-C", directory)
        sync_root(directory)
        times.append(time.monotonic())
        expected = common.manifest(f"{work}/reference", holes=False)
        common.same_trees(expected, common.manifest(directory, holes=False), "unpacked and read back")
    common.clean(binary, image, mechanism)
    with common.Mount(binary, image, directory, *extra):
        common.same_trees(expected, common.manifest(directory, holes=False), "unpacked and mounted anew")
        times.append(time.monotonic())
        shutil.rmtree(f"{directory}/{PACKAGE}")
        sync_root(directory)
        times.append(time.monotonic())
        left = inodes_used(directory)
    common.clean(binary, image, mechanism)
    print(f"     unpacked in {times[1] - times[0]:.1f} s, deleted in {times[3] - times[2]:.1f} s", flush=True)
    if left > empty:
        raise common.Failure(f"{left} inodes are in use after deleting everything, and {empty} were before")
    os.unlink(image)


def sync_root(directory):
    """fsync on the root directory makes everything stable; sync(1) does not reach FUSE mounts."""
    file = os.open(directory, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def main():
    parser = common.arguments(__doc__)
    common.mechanism(parser)
    common.formats(parser)
    parser.add_argument("--archive", help=f"{PACKAGE}.tar.xz, if it is here already")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck", "tar", "xz"))
    binary = common.program(options)
    summary = common.Summary("the kernel's source")
    with common.workdir(options, "linux") as work:
        source = archive(options, work)
        repack(source, work)
        caches = (("default cache", []), ("cache of 8 MiB", ["--cache-size", "8M"]))
        for mechanism in common.mechanisms(options):
            for block_size, (name, extra) in ((size, cache) for size in common.block_sizes(mechanism) for cache in caches):
                with summary.case(f"{mechanism}, {block_size}-byte blocks, {name}"):
                    exercise(options, binary, work, mechanism, block_size, extra)
    summary.end()


if __name__ == "__main__":
    main()
