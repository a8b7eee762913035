"""Resident memory stays below the cache's size and 64 MiB, and what requests by way of io_uring may take, whatever is written. Pages of the
program's own file are not counted: all its processes share them, and the kernel takes them back when it likes."""

import json
import os

import common

SLACK = 64 << 20
CHUNK = 1 << 20


def slots(binary, directory):
    """Most bytes of requests that come by way of io_uring: up to 16 slots of a MiB for each processor."""
    status = json.loads(common.run(binary, "status", "--json", directory).stdout)
    return (os.cpu_count() * 16) << 20 if status[0]["transport"] == "io_uring" else 0


def resident_peak(pid):
    """The most memory that a process had beside pages of files, in bytes."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        fields = dict(line.split(":", 1) for line in file)
    most, of_files = (int(fields[name].split()[0]) << 10 for name in ("VmHWM", "RssFile"))
    return most - of_files


def large_file(directory, size):
    data = os.urandom(CHUNK)
    with open(f"{directory}/large", "wb", buffering=0) as file:
        for _ in range(size // CHUNK):
            file.write(data)
        os.fsync(file.fileno())


def many_files(directory, size):
    """The same bytes as small files in few directories, so that directories and inodes weigh as well."""
    data = os.urandom(8192)
    for number in range(size // len(data)):
        if number % 20_000 == 0:
            at = f"{directory}/{number}"
            os.mkdir(at)
        with open(f"{at}/{number}", "wb", buffering=0) as file:
            file.write(data)


def exercise(binary, work, options, block_size, load):
    image, directory = f"{work}/m.img", f"{work}/m"
    size = options.bytes if load is large_file else options.bytes // 8
    volume = size + size // 4 + (64 << 20)
    inodes = str(max(16_384, size // 4096))
    common.run(binary, "mkfs", "ext2", "-q", "-b", str(block_size), "-N", inodes, image, f"{volume >> 10}K")
    with common.Mount(binary, image, directory, "--cache-size", str(options.cache)) as mount:
        load(directory, size)
        peak = resident_peak(mount.pid)
        counted = mount.stats()["cache"]["memory_peak_bytes"]
        limit = options.cache + SLACK + slots(binary, directory)
    print(f"     peak {peak >> 20} MiB, counted {counted >> 20} MiB, limit {limit >> 20} MiB", flush=True)
    if peak >= limit:
        raise common.Failure(f"{peak} bytes were resident; the limit is {limit}")
    if block_size == 4096:
        common.e2fsck_clean(image)
    os.unlink(image)


def bpfs(binary, work, options):
    """What a mount of BPFS has in memory when it begins, and when its contents were read and others written."""
    image, directory, small = f"{work}/b.img", f"{work}/m", options.bytes // 16
    common.run(binary, "mkfs", "bpfs", "-q", image, f"{(2 * options.bytes + (64 << 20)) >> 10}K")
    with common.Mount(binary, image, directory, "--cache-size", str(options.cache)):
        many_files(directory, small)
        large_file(directory, options.bytes // 2)
    with common.Mount(binary, image, directory, "--cache-size", str(options.cache)) as mount:
        begins = resident_peak(mount.pid)
        common.run("sh", "-c", f"cat {directory}/*/* {directory}/large >{directory}/again")
        peak = resident_peak(mount.pid)
        # A page for each small file leads to its contents; half a log's blocks that are not home yet, and their copies.
        limit = options.cache + SLACK + slots(binary, directory) + small // 2 * 5 // 4 + (64 << 20)
    print(f"     {begins >> 20} MiB mounted, peak {peak >> 20} MiB, limit {limit >> 20} MiB", flush=True)
    if begins >= limit - options.cache or peak >= limit:
        raise common.Failure(f"{begins} bytes were resident at first, {peak} at most; the limit is {limit}")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--bytes", type=int, default=4 << 30, help="bytes to write (default 4 GiB)")
    parser.add_argument("--cache", type=int, default=64 << 20, help="cache size in bytes (default 64 MiB)")
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    binary = common.program(options)
    summary = common.Summary("resident memory")
    for block_size in (1024, 4096):
        for load in (large_file, many_files):
            name = f"{block_size}-byte blocks, {load.__name__.replace('_', ' ')}"
            with summary.case(name), common.workdir(options, "memory") as work:
                exercise(binary, work, options, block_size, load)
    with summary.case("bpfs, what was written and read"), common.workdir(options, "memory") as work:
        bpfs(binary, work, options)
    summary.end()


if __name__ == "__main__":
    main()
