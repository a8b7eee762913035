//! Examples of all commands, and what to read beside their pages. A test has the parser of the arguments read each.

/// The words of a command, a command line, and what it is for.
const EXAMPLES: &[(&str, &str, &str)] = &[
    ("", "fstitch mkfs ext2 disk.img 1G", "makes a volume in a file"),
    ("", "fstitch mount disk.img /mnt", "mounts it"),
    ("", "fstitch umount /mnt", "unmounts it, and returns when everything is on the medium"),
    ("", "fstitch cp -r rootfs/. disk.img:/", "copies a tree into it, without a mount"),
    ("", "fstitch fsck disk.img", "checks it, and asks before it repairs"),
    ("mkfs", "fstitch mkfs ext3 disk.img 1G", "makes an ext3 volume in a new file"),
    ("mkfs ext2", "fstitch mkfs ext2 disk.img 1G", "makes a volume in a new file"),
    (
        "mkfs ext2",
        "fstitch mkfs ext2 -m 0 -E root_owner=0:0 disk.img 256M",
        "as root's, with all of its room for everybody",
    ),
    ("mkfs ext2", "fstitch mkfs ext2 -L backup /dev/sdx1", "on a partition"),
    ("mkfs ext3", "fstitch mkfs ext3 -J size=16 disk.img 1G", "with a journal of 16 MiB"),
    (
        "mkfs ext3",
        "fstitch mkfs ext3 -J device=log.img disk.img 1G",
        "with the journal that `mkfs journal` made",
    ),
    ("mkfs ext4", "fstitch mkfs ext4 disk.img 1G", "as mke2fs makes it"),
    (
        "mkfs ext4",
        "fstitch mkfs ext4 -O orphan_file,^64bit -G 32 disk.img 1G",
        "with other features, and the tables of 32 groups together",
    ),
    (
        "mkfs minixlld",
        "fstitch mkfs minixlld disk.img 1G",
        "makes a logical disk with a file system in a new file",
    ),
    ("mkfs bpfs", "fstitch mkfs bpfs disk.img 1G", "makes a BPFS in a new file"),
    ("mkfs bpfs", "fstitch mkfs bpfs -E log_size=67108864 disk.img 8G", "with a log of 64 MiB"),
    (
        "mkfs ufs1",
        "fstitch mkfs ufs1 --order big disk.img 1G",
        "for a machine whose numbers begin with the highest byte",
    ),
    ("mkfs ufs2", "fstitch mkfs ufs2 disk.img 1G", "as FreeBSD's newfs makes it"),
    (
        "mkfs ufs2",
        "fstitch mkfs ufs2 --soft-updates --snap -L home disk.img 1G",
        "with soft updates, and a place for snapshots",
    ),
    (
        "mkfs waffle",
        "fstitch mkfs waffle -L builds disk.img 10G",
        "a volume with snapshots, whose every block has a sum",
    ),
    ("snapshot", "fstitch snapshot create disk.img monday", "keeps the volume as it is now"),
    ("snapshot create", "fstitch snapshot create disk.img monday", "it can be read in `.snapshots/monday`"),
    (
        "snapshot create",
        "fstitch snapshot create /mnt monday",
        "of a volume that is mounted, under the programs that use it",
    ),
    ("snapshot list", "fstitch snapshot list disk.img", "in the order in which they were made"),
    ("snapshot list", "fstitch snapshot list --json disk.img", "for scripts"),
    ("snapshot remove", "fstitch snapshot remove disk.img monday", "frees what no other one has"),
    (
        "snapshot clone",
        "fstitch snapshot clone disk.img monday trial",
        "`fstitch mount -o tree=trial disk.img /mnt` mounts it",
    ),
    (
        "snapshot send",
        "fstitch snapshot send disk.img monday",
        "to standard output: a file, or `ssh … receive`",
    ),
    (
        "snapshot send",
        "fstitch snapshot send --since monday /mnt tuesday",
        "what changed since, of a mounted volume",
    ),
    (
        "snapshot receive",
        "fstitch snapshot receive backup.img disk",
        "in the tree `disk`, from standard input",
    ),
    ("snapshot remove", "fstitch snapshot remove --clone disk.img trial", "with all that was changed in it"),
    ("lld", "fstitch lld format disk.lld 10G", "makes a logical disk in a new file"),
    ("lld", "fstitch lld serve disk.lld --socket lld.sock", "serves its volumes over NBD"),
    ("lld format", "fstitch lld format disk.lld 10G", "in a new file"),
    ("lld format", "fstitch lld format --compress lz4 disk.lld 10G", "one that compresses what is cold"),
    ("lld format", "fstitch lld format -b 512 -s 64K disk.lld 64M", "a small one, with blocks of 512 bytes"),
    ("lld info", "fstitch lld info disk.lld", "shows how much is free, and the volumes"),
    ("lld check", "fstitch lld check disk.lld", "reads and compares everything"),
    (
        "lld check",
        "fstitch lld check --maps-only --json disk.lld",
        "not the contents of blocks, for programs",
    ),
    ("lld dump", "fstitch lld dump disk.lld", "shows every segment with its chunks"),
    (
        "lld dump",
        "fstitch lld dump --segment 3 --records disk.lld",
        "shows what one of them says has happened",
    ),
    ("lld stats", "fstitch lld stats control.sock", "shows what a server's disk has done"),
    ("lld volume", "fstitch lld volume create disk.lld root 20G", "makes a volume"),
    (
        "lld volume create",
        "fstitch lld volume create disk.lld root 20G",
        "which takes nothing until it is written",
    ),
    ("lld volume list", "fstitch lld volume list disk.lld", "with what each of them takes"),
    ("lld volume resize", "fstitch lld volume resize disk.lld root 30G", "makes it larger"),
    ("lld volume remove", "fstitch lld volume remove disk.lld root", "with all that is in it"),
    ("lld serve", "fstitch lld serve disk.lld --socket lld.sock", "over a Unix socket"),
    (
        "lld serve",
        "fstitch lld serve disk.lld --listen 127.0.0.1:10809 --control control.sock",
        "over TCP to this machine, and with units",
    ),
    ("lld unit", "fstitch lld unit control.sock ./install.sh", "all that the command changes, or nothing"),
    ("mkfs journal", "fstitch mkfs journal log.img 64M", "makes a journal in a file of its own"),
    ("mount", "fstitch mount disk.img /mnt", "mounts an image"),
    (
        "mount",
        "fstitch mount -o ro,partition=1 disk.img /mnt",
        "for reading, the first partition of a whole disk",
    ),
    ("mount", "fstitch mount -o consistency=full,commit=15 disk.img /mnt", "with everything in the journal"),
    ("mount", "fstitch mount -o durability=process disk.img /mnt", "a BPFS that is flushed for syncs alone"),
    ("mount", "fstitch mount --stack stack.toml", "mounts volumes in files of volumes"),
    ("umount", "fstitch umount /mnt", "unmounts, and waits until everything is on the medium"),
    ("umount", "fstitch umount --lazy /mnt", "takes a mount in use out of sight"),
    ("umount", "fstitch umount --stack stack.toml", "unmounts all volumes of a stack"),
    ("fsck", "fstitch fsck -n -f disk.img", "only checks, also a volume that is marked clean"),
    ("fsck", "fstitch fsck -p disk.img", "mends what a crash left"),
    ("fsck", "fstitch fsck --online /mnt", "checks a mounted volume"),
    ("ls", "fstitch ls -l disk.img:/etc", "lists a directory of an image"),
    ("ls", "fstitch ls -R --json disk.img", "everything in it, for programs"),
    ("cp", "fstitch cp -r rootfs/. disk.img:/", "copies what is in a directory into an image"),
    ("cp", "fstitch cp -r disk.img:/var/log ./logs", "copies a directory out of it"),
    ("cat", "fstitch cat disk.img:/etc/hostname", "prints a file of an image"),
    ("rm", "fstitch rm -r disk.img:/var/cache", "removes a directory in an image"),
    ("mkdir", "fstitch mkdir -p disk.img:/srv/data", "makes a directory, and those above it"),
    ("mv", "fstitch mv disk.img:/etc/old disk.img:/etc/new", "renames inside an image"),
    ("ln", "fstitch ln -s /etc/hostname disk.img:/name", "makes a symbolic link"),
    ("chmod", "fstitch chmod -R u+rwX disk.img:/home", "changes modes"),
    ("chown", "fstitch chown -R 1000:1000 disk.img:/home", "changes owners"),
    ("touch", "fstitch touch disk.img:/etc/empty", "makes an empty file"),
    ("truncate", "fstitch truncate -s 1M disk.img:/file", "changes a file's size"),
    ("fallocate", "fstitch fallocate -l 64M disk.img:/file", "gives a file blocks"),
    ("fallocate", "fstitch fallocate -c -o 1M -l 4K disk.img:/file", "takes 4 KiB out of a file of ext4"),
    ("fuse2fs", "fstitch fuse2fs disk.img /mnt -o ro", "mounts as fuse2fs does"),
    ("info", "fstitch info disk.img", "shows what a volume is"),
    ("info", "fstitch info --groups --json disk.img", "with its block groups, for programs"),
    ("tune", "fstitch tune --journal disk.img", "gives a volume a journal: it is ext3 then"),
    ("tune", "fstitch tune --no-journal disk.img", "takes it away"),
    (
        "tune",
        "fstitch tune -m 1 -e remount-ro disk.img",
        "reserves 1 %, and has kernels stop writing on damage",
    ),
    ("quota", "fstitch quota disk.img", "shows what everybody has"),
    ("quota", "fstitch quota --set user:1000 --space 1G:2G disk.img", "limits the files of a user"),
    ("resize", "fstitch resize disk.img 2G", "grows the volume, and its image file if that is shorter"),
    ("resize", "fstitch resize /mnt 4G", "grows a volume that is mounted, under the programs that use it"),
    ("resize", "fstitch resize disk.img 500M", "shrinks it again, and the file with it"),
    ("resize", "fstitch resize --json /dev/sdb1", "to all of its device, for programs"),
    ("info", "fstitch info --extents disk.img:/file", "shows where a file's blocks lie"),
    ("tune", "fstitch tune --policy laptop disk.img", "has it notice and survive faults of its disk"),
    (
        "faults",
        "fstitch faults serve disk.img 'error read kind=Inode' /mnt",
        "with one inode that cannot be read",
    ),
    (
        "faults serve",
        "fstitch faults serve disk.img 'error write kind=Directory times=all' /mnt",
        "its image is /mnt/image",
    ),
    ("scrub", "fstitch scrub disk.img", "of a volume that nobody uses"),
    ("scrub", "fstitch scrub --rate 20M /mnt", "of a mounted one, at 20 MiB a second"),
    ("health", "fstitch health /mnt", "in one word, with cause and remedy"),
    ("health", "fstitch health --json disk.img", "for programs"),
    ("disk", "fstitch disk list /mnt", "shows the disks of a volume, and how they stand"),
    ("disk list", "fstitch disk list --json a.img,b.img", "for programs, of a volume that nobody uses"),
    (
        "disk replace",
        "fstitch disk replace /mnt 1 new.img",
        "puts another disk in the place of disk 1, and rebuilds it",
    ),
    ("disk add", "fstitch disk add /mnt spare.img", "adds a hot spare"),
    ("disk remove", "fstitch disk remove /mnt spare.img", "takes it away again"),
    ("disk rebuild", "fstitch disk rebuild a.img,b.img", "goes on with rebuilding, without a mount"),
    ("journal", "fstitch journal dump disk.img", "lists what is in the journal"),
    ("journal dump", "fstitch journal dump disk.img", "lists transactions, and why the log ends"),
    (
        "journal dump",
        "fstitch journal dump --journal log.img disk.img",
        "of a journal on a device of its own",
    ),
    ("status", "fstitch status", "shows this user's mounts, also those whose daemon is dead"),
    ("status", "fstitch status --json /mnt", "one of them, for programs"),
    ("stats", "fstitch stats /mnt", "shows the counters of a mount"),
    ("graph", "fstitch graph /mnt", "lists the blocks that are not on the medium, and why"),
    ("graph", "fstitch graph --dot --limit 50 /mnt", "for Graphviz: `| dot -Tsvg > graph.svg`"),
    ("graph", "fstitch graph --json disk.img", "of the mount that has this image, for programs"),
    ("trace", "fstitch trace record /mnt -o trace.jsonl", "records until Ctrl-C"),
    ("trace", "fstitch trace show trace.jsonl", "shows what was written when, and what waited"),
    ("trace record", "fstitch trace record /mnt -o trace.jsonl --seconds 10", "records for ten seconds"),
    ("trace show", "fstitch trace show trace.jsonl", "shows a trace epoch by epoch"),
    ("trace show", "fstitch trace show --json trace.jsonl", "for programs"),
    (
        "depend",
        "fstitch depend 'sort < in > out' 'rm in'",
        "`in` is not gone unless all of `out` is on the disk",
    ),
    ("order", "fstitch order -- git gc", "fsync orders, and does not wait"),
    ("order", "fstitch order --durable-every 5s -- make", "and a crash loses no more than five seconds"),
    ("policy", "fstitch policy list", "shows what comes with the program"),
    ("policy", "fstitch policy explain laptop inode write --fault eio", "says what will happen"),
    ("policy list", "fstitch policy list", "shows what comes with the program"),
    ("policy show", "fstitch policy show laptop", "prints its text, to begin one of your own with"),
    ("policy show", "fstitch policy show --chains d-graid", "what holds for each kind of block"),
    (
        "policy check",
        "fstitch policy check mine.toml",
        "names the line that cannot be right, and what would be",
    ),
    ("policy check", "fstitch policy check --disks 3 mine.toml", "for a volume on three disks"),
    ("policy explain", "fstitch policy explain laptop inode write --fault eio", "says what will happen"),
    (
        "policy explain",
        "fstitch policy explain defence-in-depth inode read --fault corrupt --lost copies,repair",
        "when that is lost, too",
    ),
    ("crash", "fstitch crash run seq1", "cuts the power at every moment of all workloads of one operation"),
    ("crash run", "fstitch crash run seq2 --sample 5000", "a sample of the workloads of two operations"),
    (
        "crash run",
        "fstitch crash run seq1 --fs ext3 --consistency full",
        "on ext3, with everything in the journal",
    ),
    ("crash groups", "fstitch crash groups --programs 0..50", "runs fifty random programs of patchgroups"),
    ("crash list", "fstitch crash list", "shows the workloads"),
    (
        "crash replay-log",
        "fstitch crash replay-log base.img log --states 5000",
        "judges what a recorded mount could have left",
    ),
    ("crash mount", "fstitch crash mount --record log disk.img /mnt", "mounts, and logs what is written"),
    ("crash cut", "fstitch crash cut /mnt --survivors seed=7", "some of what was volatile survives"),
    ("bench", "fstitch bench --quick", "races for a few minutes"),
    ("bench", "fstitch bench --only small --contenders fuse-soft,fuse2fs", "one workload and two contenders"),
    ("bench", "fstitch bench --tables lld --json", "measures logical disks"),
    ("demo", "fstitch demo", "fills a volume, kills the writer, and looks at what is left"),
    ("completions", "fstitch completions bash", "prints what bash reads"),
    ("man", "fstitch man man1", "writes the manual pages into a directory"),
];

/// The words of a command, and pages to read beside those above and below it.
const RELATED: &[(&str, &[&str])] = &[
    ("", &["mount.fuse.fstitch(8)", "patchgroup(3)", "mke2fs(8)", "e2fsck(8)"]),
    ("mkfs ext2", &["fstitch-tune(1)", "fstitch-mount(1)", "mke2fs(8)"]),
    ("mkfs ext3", &["fstitch-tune(1)", "fstitch-mount(1)", "mke2fs(8)"]),
    ("mkfs journal", &["fstitch-tune(1)"]),
    ("mount", &["fstitch-umount(1)", "fstitch-status(1)", "mount.fuse.fstitch(8)", "fusermount3(1)"]),
    ("umount", &["fstitch-mount(1)", "fstitch-status(1)", "fusermount3(1)"]),
    ("fsck", &["fstitch-info(1)", "e2fsck(8)", "fsck(8)"]),
    ("ls", &["fstitch-cp(1)", "fstitch-cat(1)"]),
    ("cp", &["fstitch-ls(1)", "fstitch-cat(1)", "cp(1)"]),
    ("cat", &["fstitch-ls(1)", "fstitch-cp(1)"]),
    ("info", &["fstitch-journal-dump(1)", "fstitch-tune(1)", "dumpe2fs(8)"]),
    ("tune", &["fstitch-mkfs(1)", "fstitch-info(1)", "tune2fs(8)"]),
    ("quota", &["fstitch-tune(1)", "repquota(8)", "setquota(8)"]),
    ("resize", &["fstitch-mkfs(1)", "fstitch-tune(1)", "resize2fs(8)"]),
    ("snapshot create", &["fstitch-snapshot-list(1)", "fstitch-snapshot-remove(1)"]),
    ("snapshot list", &["fstitch-snapshot-create(1)", "fstitch-info(1)"]),
    ("snapshot send", &["fstitch-snapshot-receive(1)", "fstitch-snapshot-list(1)"]),
    ("snapshot receive", &["fstitch-snapshot-send(1)", "fstitch-snapshot-list(1)"]),
    ("snapshot clone", &["fstitch-snapshot-list(1)", "fstitch-mount(1)"]),
    ("snapshot remove", &["fstitch-snapshot-create(1)", "fstitch-snapshot-list(1)"]),
    ("journal dump", &["fstitch-info(1)", "debugfs(8)"]),
    ("scrub", &["fstitch-health(1)", "fstitch-tune(1)", "fstitch-policy(1)"]),
    ("health", &["fstitch-scrub(1)", "fstitch-policy(1)"]),
    ("disk", &["fstitch-health(1)", "fstitch-scrub(1)", "fstitch-policy(1)"]),
    ("status", &["fstitch-stats(1)", "fstitch-umount(1)"]),
    ("stats", &["fstitch-status(1)", "fstitch-graph(1)", "fstitch-trace(1)"]),
    ("graph", &["fstitch-trace(1)", "fstitch-stats(1)", "dot(1)"]),
    ("trace record", &["fstitch-graph(1)"]),
    ("trace show", &["fstitch-graph(1)"]),
    ("depend", &["fstitch-order(1)", "patchgroup(3)"]),
    ("order", &["fstitch-depend(1)", "patchgroup(3)", "fsync(2)"]),
];

/// The examples of the command that `path` calls, each with what it is for.
pub fn of(path: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES.iter().filter(move |(words, ..)| *words == path).map(|(_, line, about)| (*line, *about))
}

/// The pages beside that of the command that `path` calls.
pub fn related(path: &str) -> impl Iterator<Item = &'static str> {
    RELATED.iter().filter(move |(words, _)| *words == path).flat_map(|(_, pages)| pages.iter().copied())
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    /// The words of a line, of which those in quotes are one.
    fn words(line: &str) -> Vec<String> {
        let parts = line.split('\'').enumerate();
        let words = parts.map(|(index, part)| match index % 2 {
            0 => part.split_whitespace().map(str::to_owned).collect(),
            _ => vec![part.to_owned()],
        });
        words.flat_map(|words: Vec<String>| words).collect()
    }

    #[test]
    fn every_example_is_one_that_the_program_understands() {
        for (path, line, _) in EXAMPLES {
            assert!(
                path.is_empty()
                    || line.starts_with(&format!("fstitch {path} "))
                    || line == &format!("fstitch {path}")
                    || *path == "mkfs"
                    || *path == "journal"
                    || *path == "trace"
                    || *path == "lld"
                    || *path == "lld volume"
                    || *path == "policy"
                    || *path == "crash",
                "{line} is no example of `{path}`"
            );
            if let Err(error) = crate::Arguments::try_parse_from(words(line)) {
                panic!("{line}: {error}");
            }
        }
    }

    /// Commands whose arguments only a failure prints.
    const WITHOUT: [&str; 3] = ["crash replay", "crash show", "crash minimise"];

    #[test]
    fn every_command_has_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
            for below in shown {
                let path = format!("{path} {}", below.get_name()).trim_start().to_owned();
                assert!(
                    of(&path).next().is_some() || WITHOUT.contains(&path.as_str()),
                    "`{path}` has no example"
                );
                walk(below, &path);
            }
        }
        walk(&crate::Arguments::command(), "");
    }
}
