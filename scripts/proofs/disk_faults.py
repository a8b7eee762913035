"""Type-aware faults ([C] figure 7, from outside): what programs see when one kind of block fails, of the kernel's ext3 and of mounts that
follow a policy, on the very same disk (`fstitch faults serve`). With --page the table goes into docs/shepherd-results.md."""

import errno
import os
import shutil
import subprocess
import time

import common

KINDS = ("Superblock", "GroupDescriptor", "BlockBitmap", "InodeBitmap", "Inode", "Directory", "Indirect", "Data", "JournalData")
FAULTS = (
    ("read EIO", "error read kind={} times=all"),
    ("read EIO twice", "error read kind={} times=2"),
    ("read corrupt", "corrupted=4 read kind={} times=all"),
    ("write EIO", "error write kind={} times=all"),
    ("write EIO twice", "error write kind={} times=2"),
    ("write torn", "torn write kind={} times=all"),
    ("write lost", "lost write kind={} times=all"),
)
# Whether a policy is followed; the kernel follows its own.
SYSTEMS = (("kernel ext3", None), ("propagate", "propagate"), ("checksum", "checksum"), ("laptop", "laptop"), ("sd-card", "sd-card"))
MARKS = ("<!-- programs: begin -->", "<!-- programs: end -->")
FILES = 24


def contents(number):
    """What file `number` holds: enough for indirect blocks."""
    line = f"file {number} " * 9 + "\n"
    return (line * (120_000 // len(line) + 1))[:120_000].encode()


def made(binary, image, policy):
    """A volume with a tree, and whatever the policy keeps of it."""
    source = f"{image}.tree"
    os.makedirs(f"{source}/d")
    for number in range(FILES):
        with open(f"{source}/d/f{number}", "wb") as file:
            file.write(contents(number))
    os.symlink("f1" + "/x" * 50, f"{source}/d/link")
    follow = ["--policy", policy] if policy else []
    common.run(binary, "mkfs", "ext3", "-q", "-b", "4096", "-I", "128", "-d", source, *follow, image, "64M")
    shutil.rmtree(source)


class Mounted:
    """The image on its faulty disk, mounted by the kernel or by us."""

    def __init__(self, binary, image, directory, policy):
        self.binary, self.faulty, self.at = binary, f"{directory}/faulty", f"{directory}/at"
        self.loop = None
        os.makedirs(self.faulty, exist_ok=True)
        os.makedirs(self.at, exist_ok=True)
        for _ in range(100):
            # Whoever served the image before may not have ended yet.
            if common.run(binary, "faults", "serve", image, "", self.faulty, ok=(0, 1)).returncode == 0:
                break
            time.sleep(0.1)
        self.ours = policy is not None
        if self.ours:
            common.run(binary, "mount", "-o", "cache_size=4M", f"{self.faulty}/image", self.at)
        else:
            found = common.run("losetup", "--find", "--show", "--direct-io=on", f"{self.faulty}/image")
            self.loop = found.stdout.strip()
            common.run("mount", "-t", "ext3", self.loop, self.at)

    def plan(self, text):
        with open(f"{self.faulty}/plan", "w", encoding="ascii") as file:
            file.write(text)

    def forget(self):
        """Nothing of the volume stays in memory that need not."""
        subprocess.run(["sync", "-f", self.at], check=False, capture_output=True)
        if self.ours:
            common.run(self.binary, "umount", "-q", self.at)
            common.run(self.binary, "mount", "-o", "cache_size=4M", f"{self.faulty}/image", self.at)
        else:
            with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
                file.write("3")

    def leave(self):
        """Unmounts, on a disk that fails still: what a journal holds goes home now."""
        if self.ours:
            subprocess.run([self.binary, "umount", "-q", self.at], check=False, capture_output=True)
        for _ in range(50):
            if not os.path.ismount(self.at):
                break
            subprocess.run(["umount", self.at], check=False, capture_output=True)
            time.sleep(0.1)

    def end(self):
        self.leave()
        if self.loop:
            subprocess.run(["losetup", "--detach", self.loop], check=False, capture_output=True)
        for _ in range(300):
            subprocess.run(["umount", self.faulty], check=False, capture_output=True)
            if not os.path.ismount(self.faulty):
                break
            time.sleep(0.1)


def call(seen, what, *arguments):
    """One call: whether it is right, wrong without an error, or fails and how."""
    try:
        answer = what(*arguments)
    except OSError as error:
        name = errno.errorcode.get(error.errno, str(error.errno))
        seen[name] = seen.get(name, 0) + 1
        return
    key = "WRONG" if answer is False else "ok"
    seen[key] = seen.get(key, 0) + 1


def write_new(path, data):
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_is_right(path, number):
    with open(path, "rb") as file:
        # A damaged length is no reason to read for ever.
        return file.read(200_000) == contents(number)


def use(at):
    """Some sixty calls of twenty kinds; what became of them."""
    seen = {}
    call(seen, lambda: len(os.listdir(f"{at}/d")) == FILES + 1)
    for number in range(12):
        call(seen, lambda number=number: os.stat(f"{at}/d/f{number}").st_size == 120_000)
        call(seen, read_is_right, f"{at}/d/f{number}", number)
    call(seen, lambda: os.readlink(f"{at}/d/link") == "f1" + "/x" * 50)
    call(seen, lambda: os.statvfs(at).f_blocks > 0)
    call(seen, lambda: os.listxattr(f"{at}/d/f1") == [])
    for number in range(4):
        call(seen, write_new, f"{at}/d/new{number}", contents(number)[:30_000])
    call(seen, os.mkdir, f"{at}/made")
    call(seen, write_new, f"{at}/made/in", b"in it")
    call(seen, os.rename, f"{at}/d/f20", f"{at}/made/moved")
    call(seen, os.link, f"{at}/d/f21", f"{at}/made/linked")
    call(seen, os.symlink, "x" * 100, f"{at}/made/symlink")
    call(seen, os.chmod, f"{at}/d/f22", 0o600)
    call(seen, os.utime, f"{at}/d/f22", (1, 1))
    call(seen, os.truncate, f"{at}/d/f23", 60_000)
    call(seen, os.unlink, f"{at}/d/f19")
    call(seen, os.mkdir, f"{at}/gone")
    call(seen, os.rmdir, f"{at}/gone")
    for path in (f"{at}/made", f"{at}/d", at):
        call(seen, sync, path)
    return seen


def later(binary, image, policy):
    """What e2fsck says, on a disk that is well again. Of a volume that follows a policy, after `fsck -p`, which a volume that was in trouble asks
    for, and after the policy was taken away, which brings home what was moved, and restores what can be."""
    if policy:
        subprocess.run([binary, "fsck", "-fp", image], check=False, capture_output=True)
    if policy and subprocess.run([binary, "tune", "--policy", "none", image], check=False, capture_output=True).returncode:
        return "kept"
    done = subprocess.run(["e2fsck", "-fy", image], check=False, capture_output=True, text=True, errors="replace")
    if done.returncode not in (0, 1):
        return "damage"
    # A journal that is replayed and a volume that is marked clean again are nothing that was wrong.
    return "mended" if "? yes" in done.stdout else "sound"


def cell(binary, directory, pristine, policy, kind, plan):
    image = f"{directory}/disk.img"
    shutil.copyfile(pristine, image)
    mounted = Mounted(binary, image, directory, policy)
    try:
        mounted.forget()
        mounted.plan(plan.format(kind))
        seen = use(mounted.at)
        with open("/proc/mounts", encoding="ascii", errors="replace") as file:
            lines = [line.split() for line in file if line.split()[1] == mounted.at]
        if lines and "ro" in lines[-1][3].split(","):
            seen["read-only"] = 1
        mounted.leave()
        with open(f"{mounted.faulty}/struck", encoding="ascii") as file:
            struck = sum(int(line.split()[1]) for line in file)
        mounted.plan("")
    finally:
        mounted.end()
    return seen, struck, later(binary, image, policy)


def show(seen, struck, after):
    """A cell: nothing came of it, or what did."""
    if not struck:
        return "·"
    errors = ", ".join(f"{count} {name}" for name, count in sorted(seen.items()) if name not in ("ok", "WRONG", "read-only"))
    said = []
    if "WRONG" in seen:
        said.append(f"**{seen['WRONG']} wrong**")
    if errors:
        said.append(errors)
    if "read-only" in seen:
        said.append("read-only")
    if after != "sound":
        said.append({"damage": "**damage**", "kept": "keeps its policy"}.get(after, "mended by e2fsck"))
    return "; ".join(said) or "✓"


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind of block")
    parser.add_argument("--system", action="append", help="only this system")
    parser.add_argument("--page", help="write the table into this page, between its marks")
    options = parser.parse_args()
    common.require(root=True, fuse=True, loop=True, commands=("e2fsck", "losetup"))
    binary = common.program(options)
    systems = [pair for pair in SYSTEMS if not options.system or pair[0] in options.system]
    rows = []
    with common.workdir(options, "faults") as directory:
        pristine = {}
        for name, policy in systems:
            pristine[name] = f"{directory}/{name.replace(' ', '-')}.img"
            made(binary, pristine[name], policy)
        for kind in options.kind or KINDS:
            for fault, plan in FAULTS:
                cells = []
                for name, policy in systems:
                    cells.append(show(*cell(binary, directory, pristine[name], policy, kind, plan)))
                rows.append((kind, fault, cells))
                print(f"{kind:16} {fault:16} " + " | ".join(f"{name}: {text}" for (name, _), text in zip(systems, cells)), flush=True)
    if options.page:
        head = "| block | fault | " + " | ".join(name for name, _ in systems) + " |\n|---|---|" + "---|" * len(systems) + "\n"
        table = head + "".join(f"| {kind} | {fault} | " + " | ".join(cells) + " |\n" for kind, fault, cells in rows)
        with open(options.page, encoding="utf-8") as file:
            text = file.read()
        before, _, rest = text.partition(MARKS[0])
        _, _, after = rest.partition(MARKS[1])
        with open(options.page, "w", encoding="utf-8") as file:
            file.write(f"{before}{MARKS[0]}\n\n{table}\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
