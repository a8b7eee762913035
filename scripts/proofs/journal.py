"""Dirty ext3 journals of the kernel's and of debugfs's making, replayed by us, by e2fsck and by the kernel: one result."""

import contextlib
import json
import os
import random

import common
import trees

MAGIC = b"\xc0\x3b\x39\x98"


def combinations(quick):
    for block_size in (1024, 2048, 4096):
        for mode in ("ordered", "journal", "writeback"):
            if not quick or (block_size, mode) in ((1024, "ordered"), (2048, "writeback"), (4096, "journal")):
                yield block_size, mode


def make(image, block_size, *extra, size="64M"):
    common.run("mke2fs", "-q", "-F", "-t", "ext3", "-b", str(block_size), *extra, image, size)


def fsync(*paths):
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def work(top, seed):
    """Changes of every kind in several transactions; returns files that are open and have no name any more."""
    source = random.Random(seed)
    many = f"{top}/many"
    os.mkdir(many)
    for index in range(400):
        trees.write(f"{many}/file-{index}", source.randbytes(source.randrange(3000)))
    trees.write(f"{top}/large", source.randbytes(3_000_000))
    fsync(top)
    # Directory blocks and indirect blocks are freed and become data: without revocations a replay would ruin it.
    held = [open(f"{top}/large", "rb"), open(f"{many}/file-7", "rb")]  # pylint: disable=consider-using-with
    for index in range(400):
        if index % 5:
            os.unlink(f"{many}/file-{index}")
    os.unlink(f"{top}/large")
    fsync(top)
    os.rename(many, f"{top}/renamed")
    for index in range(0, 400, 5):
        os.unlink(f"{top}/renamed/file-{index}")
    os.rmdir(f"{top}/renamed")
    fsync(top)
    for index in range(40):
        # Contents that look like the journal's own blocks.
        trees.write(f"{top}/magic-{index}", MAGIC + source.randbytes(5000))
    fsync(f"{top}/magic-0", f"{top}/magic-39", top)
    trees.write(f"{top}/data", source.randbytes(2_000_000))
    os.link(f"{top}/data", f"{top}/other-name")
    os.symlink("x" * 100, f"{top}/symlink")
    os.setxattr(f"{top}/data", "user.name", b"v" * 200)
    os.truncate(f"{top}/data", 1_000_001)
    fsync(f"{top}/data", top)
    # This may be in no whole transaction; what is there after a replay is for all three to agree on.
    trees.write(f"{top}/late", b"late")
    return held


def dirty_image(image, directory, block_size, mode, *extra, kind="ext3"):
    """Leaves `image` as the kernel would if the power went."""
    make(image, block_size, "-J", "size=4", *extra)
    live = f"{image}.live"
    os.rename(image, live)
    with common.kernel_mount(live, directory, f"rw,commit=300,data={mode}", kind=kind):
        trees.every_kind(directory, 5, block_size, 256)
        common.run("sync", "-f", directory)
        held = work(directory, 6)
        common.copy_sparse(live, image)
        for file in held:
            file.close()
    os.unlink(live)


def tree(image, directory, *options):
    with common.kernel_mount(image, directory, ",".join(("ro", *options)), kind="ext3"):
        return common.manifest(directory, atime=True)


def is_dirty(binary, image, *journal):
    info = json.loads(common.run(binary, "info", "--json", *journal, image).stdout)
    return info["journal"]["state"].startswith("dirty")


def require_dirty(binary, image, *journal):
    if not is_dirty(binary, image, *journal):
        raise common.Failure("the journal is not dirty: nothing would be tested")


def three_ways(binary, image, directory):
    """Replays copies of `image`, and compares the trees."""
    require_dirty(binary, image)
    before = open(image, "rb").read()  # pylint: disable=consider-using-with
    copies = {name: f"{image}.{name}" for name in ("fsck", "mount", "e2fsck", "kernel")}
    for copy in copies.values():
        common.copy_sparse(image, copy)
    common.run(binary, "journal", "dump", "--json", image)
    common.run(binary, "fsck", "-p", copies["fsck"])
    with common.Mount(binary, copies["mount"], directory, "-o", "noatime"):
        pass
    common.run("e2fsck", "-p", copies["e2fsck"], ok=(0, 1))
    with common.kernel_mount(copies["kernel"], directory, kind="ext3"):
        pass
    for copy in copies.values():
        common.e2fsck_clean(copy)
    expected = tree(copies["kernel"], directory)
    for name, copy in copies.items():
        common.same_trees(expected, tree(copy, directory), f"replayed by the kernel and by {name}")
    # Readers leave the image alone and see the same.
    with common.Mount(binary, image, directory, "-o", "ro"):
        common.same_trees(expected, common.manifest(directory, atime=True), "replayed by the kernel and in memory")
    found = common.fsck(binary, image, "-n")
    if found["total"] or not found["journal"]["in_memory"]:
        raise common.Failure(f"fsck -n: {found}")
    with open(image, "rb") as file:
        if file.read() != before:
            raise common.Failure("a reader changed the image")
    return expected


def features(binary, image):
    return json.loads(common.run(binary, "info", "--json", image).stdout)["journal"]["features"]


def checksummed(binary, place, block_size, option):
    """The kernel's checksums over whole transactions."""
    image, directory = f"{place}/c.img", f"{place}/c"
    dirty_image(image, directory, block_size, f"writeback,{option}", kind="ext4")
    if "journal_checksum" not in features(binary, image):
        raise common.Failure("the kernel wrote no checksums")
    three_ways(binary, image, directory)


def version_3(binary, place, block_size):
    """The kernel's checksums of every block, on a volume that we only read."""
    image, directory = f"{place}/c.img", f"{place}/c"
    dirty_image(image, directory, block_size, "journal", "-O", "metadata_csum", kind="ext4")
    require_dirty(binary, image)
    if "journal_checksum_v3" not in features(binary, image):
        raise common.Failure("the kernel wrote no checksums of version 3")
    common.run(binary, "journal", "dump", image)
    with common.Mount(binary, image, directory, "-o", "ro"):
        found = common.manifest(directory, atime=True)
    ours = image + ".ours"
    common.copy_sparse(image, ours)
    common.run(binary, "fsck", "-p", ours, ok=(0, 1))
    common.e2fsck_clean(ours)
    with common.kernel_mount(ours, directory, "ro", kind="ext4"):
        common.same_trees(common.manifest(directory, atime=True), found, "replayed by us and in memory")
    with common.kernel_mount(image, directory, kind="ext4"):
        pass
    with common.kernel_mount(image, directory, "ro", kind="ext4"):
        common.same_trees(common.manifest(directory, atime=True), found, "replayed by the kernel and in memory")


def from_kernel(binary, place, block_size, mode):
    image, directory = f"{place}/k.img", f"{place}/k"
    dirty_image(image, directory, block_size, mode)
    found = three_ways(binary, image, directory)
    if found[b"magic-39"]["size"] != 5004:
        raise common.Failure("what was synced is not there")


def debugfs(image, *commands):
    script = "\n".join(commands) + "\n"
    return common.run("debugfs", "-w", "-f", "/dev/stdin", image, input=script).stdout


def from_debugfs(binary, place, block_size, checksum):
    """Transactions and revocations from an independent writer."""
    image, directory = f"{place}/d.img", f"{place}/d"
    make(image, block_size, "-J", "size=4", size="32M")
    source = random.Random(block_size)
    blocks = 40
    for name in ("one", "two"):
        trees.write(f"{place}/{name}", source.randbytes(blocks * block_size))
    debugfs(image, f"write {place}/one one", f"write {place}/two two")
    numbers = common.run("debugfs", "-R", "blocks one", image).stdout.split()
    data = [int(number) for number in numbers][:12] + [int(number) for number in numbers][13:blocks]
    for number in (1, 2, 3):
        trees.write(f"{place}/new-{number}", (MAGIC if number == 2 else b"new!") + source.randbytes(block_size * 8 - 4))
    open_journal = "jo -c" if checksum else "jo"
    run_of = lambda numbers: ",".join(map(str, numbers))  # noqa: E731
    debugfs(
        image,
        open_journal,
        f"jw -b {run_of(data[:8])} {place}/new-1",
        f"jw -b {run_of(data[8:16])} {place}/new-2",
        # Revoked in a later transaction, and written again in a third one. With checksums, debugfs writes a sum over
        # revocations that neither e2fsck nor the kernel accepts.
        "" if checksum else f"jw -r {run_of(data[2:4] + data[10:11])}",
        f"jw -b {run_of(data[3:4])} {place}/new-3",
        # Never committed.
        f"jw -b {run_of(data[20:28])} -c {place}/new-1",
        "jc",
    )
    three_ways(binary, image, directory)
    dump = json.loads(common.run(binary, "journal", "dump", "--json", image).stdout)
    revoked = [r for t in dump["transactions"] for r in t["records"] if r["kind"] == "revoke"]
    escaped = [c for t in dump["transactions"] for r in t["records"] if r["kind"] == "descriptor" for c in r["copies"] if c["escaped"]]
    if (not revoked and not checksum) or not escaped:
        raise common.Failure(f"debugfs wrote no revocation or no escaped copy: {dump}")


def orphans(binary, place, block_size):
    """Lists of orphans: freed and cut by us, by e2fsck and by the kernel."""
    image, directory = f"{place}/o.img", f"{place}/o"
    make(image, block_size, "-J", "size=4")
    names = [f"file-{index}" for index in range(6)] + ["huge"]
    source = random.Random(3)
    with common.kernel_mount(image, directory, kind="ext3"):
        trees.write(f"{directory}/stays", b"with the attributes of those that go")
        os.setxattr(f"{directory}/stays", "user.shared", b"s" * 400)
        for position, name in enumerate(names):
            size = 40 << 20 if name == "huge" else source.randrange(1, 900_000)
            trees.write(f"{directory}/{name}", source.randbytes(size))
            # e2fsck 1.47 takes the attributes of files that it only cuts, so none of those has any.
            if position % 2 == 0:
                os.setxattr(f"{directory}/{name}", "user.shared", b"s" * 400)
    inodes = {}
    for name in names:
        inodes[name] = int(common.run("debugfs", "-R", f"stat {name}", image).stdout.split()[1])
    commands = []
    for position, name in enumerate(names):
        following = inodes[names[position + 1]] if position + 1 < len(names) else 0
        commands += [f"sif <{inodes[name]}> dtime {following}"]
        if position % 2:
            commands += [f"sif <{inodes[name]}> size {1 + position * 1001}"]
        else:
            commands += [f"unlink {name}", f"sif <{inodes[name]}> links_count 0"]
    commands += [f"ssv last_orphan {inodes[names[0]]}"]
    debugfs(image, *commands)
    copies = {name: f"{image}.{name}" for name in ("fsck", "e2fsck", "kernel")}
    for copy in copies.values():
        common.copy_sparse(image, copy)
    report = common.fsck(binary, copies["fsck"], "-p")
    if (report["journal"]["orphans_freed"], report["journal"]["orphans_cut"], report["total"]) != (4, 3, 0):
        raise common.Failure(f"fsck: {report}")
    common.run("e2fsck", "-p", copies["e2fsck"], ok=(0, 1))
    # e2fsck 1.47 leaves wrong counts of blocks in files that it cuts, and mends them in its next run.
    common.run("e2fsck", "-fp", copies["e2fsck"], ok=(0, 1))
    with common.kernel_mount(copies["kernel"], directory, kind="ext3"):
        pass
    expected = without_mtimes(tree(copies["kernel"], directory))
    for name, copy in copies.items():
        common.e2fsck_clean(copy)
        found = without_mtimes(tree(copy, directory))
        common.same_trees(expected, found, f"orphans of the kernel and of {name}")


def without_mtimes(found):
    """The kernel gives a file that it cuts at the mount the time of the mount; e2fsck and we leave the truncation's."""
    for entry in found.values():
        del entry["mtime"]
    return found


@contextlib.contextmanager
def loop_device(image):
    device = common.run("losetup", "--find", "--show", image).stdout.strip()
    try:
        yield device
    finally:
        common.run("losetup", "--detach", device)


def make_external(binary, journal, block_size, ours):
    """A device for a journal, made by mke2fs or by us."""
    if ours:
        common.run(binary, "mkfs", "journal", "-q", "-F", "-b", str(block_size), journal, "8M")
    else:
        common.run("mke2fs", "-q", "-F", "-O", "journal_dev", "-b", str(block_size), journal, "8M")


def external(binary, place, block_size, ours):
    """A journal on a device of its own; mke2fs or we have made both it and the volume."""
    image, journal, directory = f"{place}/x.img", f"{place}/x.journal", f"{place}/x"
    make_external(binary, journal, block_size, ours)
    dirty, dirty_journal = f"{place}/dirty.img", f"{place}/dirty.journal"
    with loop_device(journal) as device:
        if ours:
            common.run(binary, "mkfs", "ext3", "-q", "-J", f"device={device}", image, "64M")
        else:
            make(image, block_size, "-J", f"device={device}")
        options = f"rw,commit=300,journal_path={device}"
        with common.kernel_mount(image, directory, options, kind="ext3"):
            for file in work(directory, 9):
                file.close()
            fsync(directory)
            common.copy_sparse(image, dirty)
            common.copy_sparse(journal, dirty_journal)
    require_dirty(binary, dirty, "--journal", dirty_journal)
    # Another volume's journal is refused, and so is none.
    make_external(binary, journal, block_size, ours)
    refused = common.run(binary, "fsck", "-p", "--journal", journal, dirty, ok=(8,)).stderr
    if "UUID" not in refused:
        raise common.Failure(f"another journal: {refused}")
    common.run(binary, "fsck", "-p", dirty, ok=(8,))
    copies = {}
    for name in ("us", "e2fsck"):
        copies[name] = (f"{place}/{name}.img", f"{place}/{name}.journal")
        common.copy_sparse(dirty, copies[name][0])
        common.copy_sparse(dirty_journal, copies[name][1])
    common.run(binary, "fsck", "-p", "--journal", copies["us"][1], copies["us"][0])
    common.run("e2fsck", "-p", "-j", copies["e2fsck"][1], copies["e2fsck"][0], ok=(0, 1))
    with loop_device(dirty_journal) as device:
        with common.kernel_mount(dirty, directory, f"rw,journal_path={device}", kind="ext3"):
            pass
        expected = tree(dirty, directory, f"journal_path={device}")
    for name, (copy, journal) in copies.items():
        common.run("e2fsck", "-fn", "-j", journal, copy)
        with loop_device(journal) as device:
            common.same_trees(expected, tree(copy, directory, f"journal_path={device}"), f"replayed by the kernel and by {name}")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="three combinations of block sizes and modes only")
    options = parser.parse_args()
    common.require(root=True, fuse=True, loop=True, commands=("mke2fs", "e2fsck", "debugfs", "losetup"))
    binary = common.program(options)
    summary = common.Summary("dirty journals")
    cases = {}
    for block_size, mode in combinations(options.quick):
        cases[f"left by the kernel: data={mode}, {block_size}-byte blocks"] = (from_kernel, block_size, mode)
    for block_size in (1024, 4096):
        for checksum in (False, True):
            name = "with checksums" if checksum else "without checksums"
            cases[f"written by debugfs: {block_size}-byte blocks, {name}"] = (from_debugfs, block_size, checksum)
        for options_of_kernel in ("journal_checksum", "journal_async_commit"):
            cases[f"{options_of_kernel}: {block_size}-byte blocks"] = (checksummed, block_size, options_of_kernel)
        cases[f"checksums of version 3: {block_size}-byte blocks"] = (version_3, block_size)
        cases[f"orphans: {block_size}-byte blocks"] = (orphans, block_size)
        for maker in ("mke2fs", "us"):
            cases[f"external journal made by {maker}: {block_size}-byte blocks"] = (external, block_size, maker == "us")
    for title, (case, *arguments) in cases.items():
        with summary.case(title), common.workdir(options, "journal") as place:
            case(binary, place, *arguments)
    summary.end()


if __name__ == "__main__":
    main()
