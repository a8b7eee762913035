"""A bootable Debian root, made by `fstitch mkfs ext4 -d` from a tar archive, boots under qemu to a shell, and its power is cut in mid-boot.

Debian's tools make the archive (mmdebstrap); a service of ours in it writes and syncs small files from early on and says each on the serial
line when it is on the disk. After a cut (qemu is killed at a random moment between the mount of the root and a few seconds behind
the shell) the image holds the kernel's journal as it was. Copies of it are recovered by us, by the kernel and by `e2fsck -p`: the trees are the
same, both checkers find nothing, and every file is there that was said to be on the disk. The machine then boots again from the copy that
we recovered and changed, and after the last cut to its shell, which is asked something, and is shut down: both checkers find nothing.

And an image as boards boot from, a table of partitions with FAT and ext4, is changed in place with `--partition`.
"""

import os
import random
import re
import select
import shutil
import subprocess
import tarfile
import time
from io import BytesIO

import common
import guests

MODULES = ("crc32c_generic", "virtio_pci", "virtio_blk", "ext4")
SIZE = "1G"
# Seconds until a machine that says nothing is ended.
PATIENCE = 600
EPOCH = "1700000000"

FIRST = """#!/busybox sh
export PATH=/
for name in mount insmod sh cat switch_root sleep; do /busybox ln -s busybox /$name; done
mount -t devtmpfs none /dev
exec </dev/console >/dev/console 2>&1
mount -t proc none /proc
for module in $(cat /modules); do insmod $module || echo "> no $module"; done
mount -t ext4 /dev/vda /mnt || echo '> no root'
echo
echo '> mounted'
mount -t devtmpfs none /mnt/dev
exec switch_root /mnt /sbin/init
"""

WORKER = """#!/bin/sh
mkdir -p /var/worked
from=$(ls /var/worked | sort -n | tail -n 1)
no=$((${from:-0} + 1))
while :; do
    for part in 1 2 3 4 5 6 7 8; do echo "$no.$part $(cat /proc/uptime)"; done > /var/worked/.new
    echo "end of $no" >> /var/worked/.new
    sync /var/worked/.new && mv /var/worked/.new /var/worked/$no && sync /var/worked && echo "> synced $no" > /dev/console
    echo "$no" >> /var/log/worked
    rm -rf /var/tree.$((no - 3))
    cp -r /etc/systemd /var/tree.$no
    no=$((no + 1))
done
"""

UNITS = {
    "worker": "[Unit]\nDefaultDependencies=no\nAfter=systemd-remount-fs.service\nConflicts=shutdown.target\nBefore=shutdown.target\n"
    "[Service]\nExecStart=/worker\n[Install]\nWantedBy=sysinit.target\n",
    "shell": "[Unit]\nAfter=basic.target\n[Service]\nExecStart=/bin/sh -c 'echo; echo \"> shell\"; exec /bin/sh'\n"
    "StandardInput=tty-force\nStandardOutput=tty\nTTYPath=/dev/ttyS0\n[Install]\nWantedBy=multi-user.target\n",
}


def root_archive(options, work):
    """A Debian root as a tar archive, with our service in it."""
    path = f"{work}/archive.tar"
    if options.root:
        shutil.copyfile(options.root, path)
    else:
        # A mirror that stands still is as good: nobody runs this root for long.
        old = "--aptopt=Acquire::Check-Valid-Until \"false\""
        words = ["mmdebstrap", "--quiet", "--variant=minbase", "--include=systemd-sysv,udev", old, options.suite, path]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            common.skip(f"no Debian root can be fetched here: {done.stderr.strip().splitlines()[-3:]}")
    with tarfile.open(path, "a") as archive:

        def add(name, text, mode=0o644, target=None):
            info = tarfile.TarInfo(f"./{name}")
            info.mode, info.mtime, info.size = mode, int(EPOCH), len(text)
            if target:
                info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info, BytesIO(text.encode()))

        add("worker", WORKER, 0o755)
        for name, unit in UNITS.items():
            add(f"etc/systemd/system/{name}.service", unit)
            wanted = re.search("WantedBy=(.*)", unit).group(1)
            add(f"etc/systemd/system/{wanted}.wants/{name}.service", "", 0o777, f"../{name}.service")
        # Nobody else reads the line.
        add("etc/systemd/system/serial-getty@ttyS0.service", "", 0o777, "/dev/null")
    return path


class Machine:
    """A machine whose disk is an image."""

    def __init__(self, work, kernel, image):
        words = [
            "qemu-system-x86_64", "-accel", "tcg", "-machine", "pc", "-m", "768M", "-cpu", "max", "-nographic", "-no-reboot", "-nic", "none",
            "-drive", f"file={image},format=raw,if=virtio,cache=writethrough", "-kernel", kernel, "-initrd", f"{work}/initramfs", "-append",
            "console=ttyS0 quiet loglevel=0 panic=-1 no_timer_check rdinit=/init systemd.show_status=0 TERM=dumb",
        ]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.said = ""

    def hear(self, seconds):
        """Takes what is said within so many seconds; false when nothing more will be."""
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            return True
        more = os.read(self.process.stdout.fileno(), 1 << 16)
        self.said += more.decode("utf-8", "replace")
        return bool(more)

    def until(self, pattern, patience=PATIENCE):
        end = time.monotonic() + patience
        while not re.search(pattern, self.said):
            if time.monotonic() > end or not self.hear(1.0):
                raise common.Failure(f"no `{pattern}`:\n{self.said[-2000:]}")

    def ask(self, line):
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()
        while select.select([self.process.stdout], [], [], 0.0)[0] and self.hear(0.0):
            pass
        self.process.stdout.close()
        self.process.stdin.close()

    def synced(self):
        """The last file that was said to be on the disk."""
        return max((int(no) for no in re.findall(r"> synced (\d+)\r?\n", self.said)), default=0)


def initramfs(path, kernel_modules):
    files = guests.module_files(kernel_modules, MODULES)
    entries = {name: None for name in ("dev", "proc", "mnt")}
    entries |= {f"m{no}.ko": guests.read(file) for no, file in enumerate(files)}
    entries["modules"] = "".join(f"/m{no}.ko\n" for no in range(len(files))).encode()
    entries["busybox"] = guests.read(shutil.which("busybox"))
    entries["init"] = FIRST.encode()
    guests.archive(path, entries)


def promised(top, last):
    """Fails unless every file up to the last that was synced is there, whole."""
    for no in range(1, last + 1):
        with open(f"{top}/var/worked/{no}", encoding="utf-8") as file:
            text = file.read()
        if not text.endswith(f"end of {no}\n"):
            raise common.Failure(f"/var/worked/{no} was said to be on the disk and is not whole: {text[-80:]!r}")


def recovered(binary, work, image, last):
    """Recovers copies of an image by us, the kernel and e2fsck. Returns ours, which was written to since."""
    trees, at = {}, f"{work}/at"
    copies = {name: f"{work}/{name}.img" for name in ("ours", "kernel", "e2fsck")}
    for copy in copies.values():
        common.copy_sparse(image, copy)
    with common.Mount(binary, copies["ours"], at, "-o", "noatime"):
        trees["ours"] = common.manifest(at, holes=False)
        promised(at, last)
    common.run("e2fsck", "-p", copies["e2fsck"], ok=(0, 1))
    for name in ("kernel", "e2fsck"):
        with common.kernel_mount(copies[name], at, "rw,noatime", kind="ext4"):
            # What was read of unwritten blocks is in the page cache, where the kernel takes it for data.
            trees[name] = common.manifest(at, holes=False)
            promised(at, last)
        common.same_trees(trees["ours"], trees[name], f"recovered by us, and by {name}")
        os.unlink(copies[name])
    common.clean(binary, copies["ours"], "ordered")
    with common.Mount(binary, copies["ours"], at):
        with open(f"{at}/etc/motd", "a", encoding="utf-8") as file:
            file.write(f"changed after {last}\n")
        shutil.rmtree(f"{at}/var/copied", ignore_errors=True)
        shutil.copytree(f"{at}/etc", f"{at}/var/copied", symlinks=True)
    common.clean(binary, copies["ours"], "ordered")
    os.replace(copies["ours"], image)


def boots(options, work, binary, source):
    image = f"{work}/volume.img"
    archive = root_archive(options, work)
    started = time.monotonic()
    common.run(binary, "mkfs", "ext4", "-q", "-L", "root", "-d", archive, image, SIZE, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    print(f"     {os.path.getsize(archive) >> 20} MiB of archive became a volume in {time.monotonic() - started:.1f} s", flush=True)
    common.clean(binary, image, "ordered")
    kernel, modules = guests.debian_kernel(options, work)
    initramfs(f"{work}/initramfs", modules)
    whole = last = 0
    for no in range(options.kills + 1):
        machine = Machine(work, kernel, image)
        try:
            machine.until("> mounted")
            began = time.monotonic()
            if no < options.kills:
                # The first boots to its shell, so that it is known how long that takes.
                if not whole:
                    machine.until("> shell")
                    whole = time.monotonic() - began
                end = began + source.uniform(0.0, 1.2) * whole
                while time.monotonic() < end and machine.hear(0.05):
                    pass
            else:
                machine.until("> shell")
                machine.ask("echo \"> answer $((6 * 7)) $(cat /etc/debian_version) $(tail -n 1 /etc/motd)\"")
                machine.until(rf"> answer 42 \S+ changed after {last}")
                machine.ask("systemctl poweroff")
                machine.process.wait(PATIENCE)
        finally:
            machine.kill()
        after = time.monotonic() - began
        before, last = last, max(last, machine.synced())
        if no < options.kills:
            print(f"     {whole:.1f} s to the shell; cut {after:.1f} s after the mount, {last - before} more files synced", flush=True)
            recovered(binary, work, image, last)
    common.clean(binary, image, "ordered")
    with common.Mount(binary, image, f"{work}/at", "-o", "ro"):
        promised(f"{work}/at", last)


def partitions(work, binary):
    """An image as boards boot from: FAT and ext4 behind a table of partitions."""
    image, at = f"{work}/board.img", f"{work}/at"
    with open(image, "wb") as file:
        file.truncate(160 << 20)
    table = "label: dos\nstart=8192, size=65536, type=c\nstart=73728, type=83\n"
    common.run("sfdisk", "-q", image, input=table)
    common.run("mkfs.vfat", "--offset", "8192", image, str(32 << 10))
    offset = 73728 * 512
    common.run("mke2fs", "-q", "-F", "-t", "ext4", "-E", f"offset={offset}", image, str((160 << 10) - (73728 >> 1)) + "k")
    before = guests.read(image)[: offset]
    for how in ("1", "2"):
        with common.Mount(binary, image, at, "--partition", "2"):
            for part in range(40):
                os.makedirs(f"{at}/home/{how}/{part}")
                with open(f"{at}/home/{how}/{part}/config", "w", encoding="utf-8") as file:
                    file.write(f"hostname={how}.{part}\n" * 100)
            if how == "2":
                shutil.rmtree(f"{at}/home/1")
    common.run("e2fsck", "-fn", f"{image}?offset={offset}")
    common.run(binary, "fsck", "-fn", "--partition", "2", image)
    with common.kernel_mount(image, at, f"ro,offset={offset}", kind="ext4"):
        if os.listdir(f"{at}/home") != ["2"] or len(os.listdir(f"{at}/home/2")) != 40:
            raise common.Failure("the kernel sees another tree")
    if guests.read(image)[: offset] != before:
        raise common.Failure("something before the partition was changed")


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--kills", type=int, default=5, help="cuts before the last boot (default 5)")
    parser.add_argument("--seed", default=None, help="repeats the moments of an earlier invocation")
    parser.add_argument("--suite", default="stable", help="the release of Debian that is booted (default stable)")
    parser.add_argument("--root", metavar="TAR", help="an archive of a root, instead of fetching one")
    guests.kernel_options(parser)
    options = parser.parse_args()
    guests.check_options(parser, options)
    common.require(root=True, fuse=True, loop=True, commands=("qemu-system-x86_64", "busybox", "mkfs.vfat", "sfdisk", "e2fsck"))
    if not options.root:
        common.require(commands=("mmdebstrap",))
    binary = common.program(options)
    seed = options.seed or str(random.SystemRandom().randrange(10**9))
    summary = common.Summary(f"a Debian root that boots (seed {seed})")
    with common.workdir(options, "boot") as work:
        with summary.case("an image of a board, changed in its second partition"):
            partitions(work, binary)
        with summary.case("made from an archive, booted, cut and booted again"):
            boots(options, work, binary, random.Random(seed))
    summary.end()


if __name__ == "__main__":
    main()
