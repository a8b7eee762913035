"""fsx (crates.io): random operations on one file against a model, on 1 KiB and 4 KiB blocks."""

import os

import common
import tools

# Not empty: the kernel refuses an empty posix_fallocate itself, which the suite takes for a file system without it.
CONFIG = """
flen = 1048576
[opsize]
max = 65536
min = 1
[weights]
close_open = 1.0
invalidate = 1.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
read = 10.0
write = 10.0
mapread = 5.0
mapwrite = 5.0
posix_fallocate = 3.0
punch_hole = 5.0
sendfile = 1.0
copy_file_range = 1.0
"""


def exercise(options, binary, fsx, work, block_size, mechanism, extra):
    image, directory = f"{work}/f.img", f"{work}/f"
    common.make_volume(binary, mechanism, block_size, image, "64M", common.journaled_kind(options))
    config = f"{work}/fsx.toml"
    with open(config, "w", encoding="utf-8") as file:
        file.write(CONFIG)
    with common.Mount(binary, image, directory, *common.asked(mechanism, options.also), *extra):
        operations = ["-N", str(options.operations), "-S", str(options.seed)]
        common.run(fsx, "-f", config, *operations, "-P", work, f"{directory}/file")
    common.clean(binary, image, mechanism)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    common.mechanism(parser)
    common.formats(parser)
    common.more_options(parser)
    options = parser.parse_args()
    common.require(root=True, fuse=True, commands=("e2fsck",))
    binary, fsx = common.program(options), tools.crate("fsx", "0.3")
    print(f"seed {options.seed}")
    summary = common.Summary(f"fsx, {options.operations} operations (seed {options.seed})")
    caches = (("default cache", []), ("cache of 1 MiB", ["--cache-size", "1M"]))
    for mechanism in common.mechanisms(options):
        for block_size, (name, extra) in ((size, cache) for size in common.block_sizes(mechanism) for cache in caches):
            case = f"{mechanism}, {block_size}-byte blocks, {name}"
            with summary.case(case), common.workdir(options, "fsx") as work:
                exercise(options, binary, fsx, work, block_size, mechanism, extra)
    summary.end()


if __name__ == "__main__":
    main()
