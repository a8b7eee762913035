//! Seeded damage and seeded crash states: each is found under its own name and in the right class, the
//! reference agrees, and mending leaves nothing for either.

use std::fs;
use std::sync::Mutex;

use fstitch_core::lock::Unpoisoned;
use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, CheckReport, FindingClass, Geometry, Le, ManualClock,
    MemDevice, Result, Timestamp,
};
use fstitch_core::{RepairMode, RepairOptions};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_patch::{Cache, CacheOptions};

use crate::corpus::{SHAPES, Shape, debugfs, image};
use crate::repair::repair;
use crate::support::{Scratch, e2fsck_image, have};

/// A change made with debugfs, and what must be found.
struct Case {
    name: &'static str,
    script: &'static str,
    class: FindingClass,
    code: &'static str,
    /// The reference does not mind.
    tolerated: bool,
}

const fn damage(name: &'static str, script: &'static str, code: &'static str) -> Case {
    Case { name, script, class: FindingClass::Corrupt, code, tolerated: false }
}

const fn crash(name: &'static str, script: &'static str, code: &'static str) -> Case {
    Case { name, script, class: FindingClass::Allowed, code, tolerated: false }
}

/// What soft updates may leave. In SHAPES[0], block 2900 is free.
const CRASHES: &[Case] = &[
    crash("a leaked block", "setb 2900", "block-leaked"),
    crash("leaked blocks", "setb 2900 20", "block-leaked"),
    crash("a leaked inode", "seti <500>", "inode-leaked"),
    crash("a deleted name, the inode still there", "unlink slow", "inode-unreferenced"),
    crash("a deleted directory, the inode still there", "unlink d3", "inode-unreferenced"),
    crash("one name of three deleted", "unlink indirect", "links-high"),
    crash("a raised link count", "sif fast links_count 7", "links-high"),
    crash("a raised link count of a directory", "sif d5 links_count 9", "links-high"),
    crash("links not counted any more", "feature dir_nlink\nsif d5 links_count 1", "links-uncounted"),
    crash("links gone, not yet freed", "unlink fifo\nsif <FIFO> links_count 0", "inode-unlinked"),
    crash("stale block count", "sif holes blocks 2", "inode-block-count"),
    crash("blocks beyond the end", "sif indirect size 1000", "blocks-beyond-size"),
    crash("length behind in a directory", "sif many size 2048", "dir-size-behind"),
    Case {
        tolerated: true,
        ..crash("counters of the superblock", "ssv free_blocks_count 7", "superblock-counters")
    },
    crash("counters of a group", "set_bg 0 free_blocks_count 7", "group-counters"),
    crash("two names of a directory", "ln d5/e a/second", "dir-two-names"),
    crash("two names in one directory", "ln d5/e d5/second", "dir-two-names"),
    Case { tolerated: true, ..crash("not unmounted", "ssv state 0", "superblock-not-clean") },
];

const DAMAGES: &[Case] = &[
    damage("a used block marked free", "freeb 120", "block-marked-free"),
    damage("a used inode marked free", "freei d5", "inode-marked-free"),
    damage("a pointer beyond the end", "sif indirect block[2] 99999", "pointer-invalid"),
    damage("a pointer into metadata", "sif indirect block[2] 5", "block-shared"),
    damage("two owners", "sif indirect block[2] 0x200\nsif holes block[1] 0x200", "block-shared"),
    damage("a low link count", "sif indirect links_count 1", "links-low"),
    damage("a low link count of a directory", "sif a links_count 2", "links-low"),
    damage(
        "a name of a freed inode",
        "sif d2/file links_count 0\nsif d2/file dtime 1700000000",
        "dirent-unused-inode",
    ),
    damage("a deletion time", "sif slow dtime 1700000000", "inode-dtime"),
    damage("no kind", "sif slow mode 0", "inode-bad-mode"),
    damage("a directory without a kind", "sif d5 mode 0755", "inode-mode-not-directory"),
    damage("a directory turned into a pipe", "sif d5 mode 010755", "inode-mode-not-directory"),
    damage("a directory turned into a device", "sif a/b mode 060700", "inode-mode-not-directory"),
    damage("a directory of an impossible kind", "sif a mode 0170755", "inode-mode-not-directory"),
    damage("a hole in a directory", "sif many block[1] 0", "dir-hole"),
    damage("an odd length of a directory", "sif many size 1500", "dir-bad-size"),
    damage("a directory without blocks", "sif d5/e block[0] 0", "dir-without-blocks"),
    damage("a link without length", "sif slow size 0", "symlink-bad"),
    damage("a link of another length", "sif fast size 3", "symlink-bad"),
    damage("an attribute block that is none", "sif indirect file_acl 600", "xattr-bad-block"),
    damage("an attribute block outside", "sif indirect file_acl 88888", "xattr-bad-pointer"),
    damage("a file turned into a pipe", "sif d2/file mode 010644", "dirent-file-type"),
    damage("flags of another format", "sif d2/file flags 0x10000000", "inode-bad-flags"),
    damage("an index on a plain directory", "sif d5 flags 0x1000", "index-bad"),
    damage("a journal that is none", "ssv journal_inum 8", "superblock-journal"),
    damage("a bitmap outside its group", "set_bg 0 block_bitmap 99999", "group-descriptor"),
    damage("no resize inode", "sif <7> block[DIND] 0", "resize-inode"),
    damage("a reserved inode in use", "sif <9> mode 0100644", "inode-reserved"),
    damage("names of the root", "ln / d5/root", "dirent-names-root"),
    damage("no root", "sif / mode 0100755", "root-not-directory"),
    damage("a directory inside itself", "ln d5 d5/e/up\nunlink d5", "dir-cycle"),
    damage(
        "large file without the feature",
        "feature -large_file\nsif holes size 3000000000",
        "large-file-feature",
    ),
];

/// Applies `case` to an image.
fn seeded(scratch: &Scratch, healthy: &[u8], case: &Case) -> Vec<u8> {
    let path = scratch.path("seeded");
    fs::write(&path, healthy).expect("an image");
    let fifo = inode_of(scratch, &path, "fifo");
    debugfs(scratch, &path, &case.script.replace("FIFO", &fifo));
    fs::read(&path).expect("the image")
}

/// The number of an inode as debugfs knows it.
fn inode_of(_scratch: &Scratch, path: &std::path::Path, name: &str) -> String {
    let (_, text) =
        crate::support::run("debugfs", &["-R", &format!("stat {name}"), path.to_str().expect("plain")]);
    text.split_whitespace().nth(1).expect("Inode: N").to_owned()
}

/// Where the first block of a file lies.
fn first_block(path: &std::path::Path, name: &str) -> usize {
    let ask = format!("bmap {name} 0");
    let (_, text) = crate::support::run("debugfs", &["-R", &ask, path.to_str().expect("plain path")]);
    text.lines().find_map(|line| line.trim().parse().ok()).expect("a block number")
}

fn has(report: &CheckReport, case: &Case) -> bool {
    report.findings.iter().any(|found| found.code == case.code && found.class == case.class)
}

#[test]
fn seeded_crash_states_are_allowed_and_mended() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("seeded-crash");
    let healthy = image(&scratch, &SHAPES[0]);
    for case in CRASHES {
        let bytes = seeded(&scratch, &healthy, case);
        let device = MemDevice::from_image(1024, bytes.clone());
        let report = check_ext2(&device).expect("readable");
        assert!(has(&report, case), "{}: {:#?}", case.name, report.findings);
        assert_eq!(report.corrupt, 0, "{}: {:#?}", case.name, report.findings);
        let (code, text) = e2fsck_image(&scratch, "image", &bytes);
        assert_eq!(code == 0, case.tolerated, "{}: {text}", case.name);
        let mended = repair(&device, RepairMode::Preen).expect("readable");
        assert!(mended.left.is_clean(), "{}: {:#?}", case.name, mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "image", &device.image());
        assert_eq!(code, 0, "{}: {text}", case.name);
        let again = repair(&device, RepairMode::Yes).expect("readable");
        assert!(again.found.is_clean() && again.mended == 0, "{}: {:#?}", case.name, again.found);
    }
}

#[test]
fn seeded_damage_is_found_by_name_and_mended() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("seeded-damage");
    let healthy = image(&scratch, &SHAPES[0]);
    for case in DAMAGES {
        let bytes = seeded(&scratch, &healthy, case);
        let device = MemDevice::from_image(1024, bytes.clone());
        let report = check_ext2(&device).expect("readable");
        assert!(has(&report, case), "{}: {:#?}", case.name, report.findings);
        let (code, text) = e2fsck_image(&scratch, "image", &bytes);
        assert_eq!(code == 0, case.tolerated, "{}: {text}", case.name);
        let preened = repair(&device, RepairMode::Preen).expect("readable");
        assert_eq!(preened.mended, 0, "{}: preening must keep off damage", case.name);
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{}: {:#?}", case.name, mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "image", &device.image());
        assert_eq!(code, 0, "{}: {text}", case.name);
        let again = repair(&device, RepairMode::Yes).expect("readable");
        assert!(again.found.is_clean(), "{}: {:#?}", case.name, again.found);
    }
}

#[test]
fn a_directory_of_a_bad_mode_keeps_what_is_in_it() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("bad-mode");
    let healthy = image(&scratch, &SHAPES[0]);
    let path = scratch.path("image");
    for mode in ["0", "010755", "020700", "0170755"] {
        fs::write(&path, &healthy).expect("an image");
        let inside = inode_of(&scratch, &path, "a/b/c");
        debugfs(&scratch, &path, &format!("sif a mode {mode}\nsif a/b mode {mode}\n"));
        let device = MemDevice::from_image(1024, fs::read(&path).expect("the image"));
        assert!(repair(&device, RepairMode::Yes).expect("readable").left.is_clean(), "{mode}");
        fs::write(&path, device.image()).expect("an image");
        assert_eq!(inode_of(&scratch, &path, "a/b/c"), inside, "{mode}");
        let (code, text) = crate::support::e2fsck(&path);
        assert_eq!(code, 0, "{mode}: {text}");
    }
}

/// The files of an image in a directory of their own.
fn dumped(scratch: &Scratch, name: &str, bytes: &[u8]) -> String {
    let (path, dir) = (scratch.path("image"), scratch.path(name));
    fs::write(&path, bytes).expect("an image");
    fs::create_dir_all(&dir).expect("a directory");
    let dir = dir.to_str().expect("plain path").to_owned();
    crate::support::run("debugfs", &["-R", &format!("rdump / {dir}"), path.to_str().expect("plain path")]);
    dir
}

#[test]
fn a_copy_of_a_shared_block_takes_nobodys_place() {
    if !have("debugfs") || !have("diff") {
        return;
    }
    let scratch = Scratch::new("shared-copy");
    let healthy = image(&scratch, &SHAPES[0]);
    let path = scratch.path("image");
    // One file has a block of another one, and the bitmap says of what is used that it is free.
    let before = dumped(&scratch, "before", &healthy);
    let mut files: Vec<_> = (2..12).map(|n| format!("d{n}/file")).collect();
    files.sort_by_key(|name| inode_of(&scratch, &path, name).parse::<u32>().expect("a number"));
    let block = first_block(&path, &files[0]);
    debugfs(&scratch, &path, &format!("sif holes block[1] {block}\n"));
    let mut bytes = fs::read(&path).expect("the image");
    let bitmap = 1024 * usize::try_from(Le::u32(&bytes, 2048)).expect("small");
    bytes[bitmap..bitmap + 1024].iter_mut().for_each(|byte| *byte = !*byte);
    // Block 2900 is free, and the last one that may be taken.
    bytes[bitmap + 2899 / 8] &= !(1 << (2899 % 8));
    let device = MemDevice::from_image(1024, bytes);
    let report = repair(&device, RepairMode::Yes).expect("readable");
    let shared = report.found.findings.iter().filter(|finding| finding.code == "block-shared").count();
    assert_eq!(shared, 1, "{:#?}", report.found.findings);
    assert!(report.left.is_clean(), "{:#?}", report.left.findings);
    let after = dumped(&scratch, "after", &device.image());
    let (_, differ) = crate::support::run("diff", &["-rq", "--no-dereference", &before, &after]);
    let others = differ.lines().filter(|line| line.starts_with("Files") && !line.contains("/holes"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(!differ.contains("Only in"), "{differ}");
    let copied = fs::read(format!("{after}/holes")).expect("the file");
    assert_eq!(copied[1024..1024 + 700], [0x41; 700], "it has its own copy");
    for at in [0, 9_000, 30_000, 290_000, 700_000, 70_000_000] {
        assert_eq!(copied[at..at + 18], *b"data between holes", "at {at}");
    }
}

/// A change of a directory block, given its start in the image.
type Change = fn(&mut [u8]);

#[test]
fn damaged_directory_blocks_are_found_and_salvaged() {
    if !have("debugfs") {
        return;
    }
    let cases: &[(&str, &str, Change)] = &[
        ("zeros", "dir-first-names", |block| block.fill(0)),
        ("length 0", "dirent-structure", |block| Le::put_u16(block, 24 + 4, 0)),
        ("length beyond the block", "dirent-structure", |block| Le::put_u16(block, 24 + 4, 2000)),
        ("odd length", "dirent-structure", |block| Le::put_u16(block, 24 + 4, 21)),
        ("inode too large", "dirent-bad-inode", |block| Le::put_u32(block, 24, 70_000)),
        ("reserved inode", "dirent-bad-inode", |block| Le::put_u32(block, 24, 5)),
        ("a slash", "dirent-bad-name", |block| block[24 + 8] = b'/'),
        ("a nameless name", "dirent-bad-name", |block| block[24 + 6] = 0),
        ("no dot", "dir-first-names", |block| block[8] = b'x'),
        ("another dot", "dir-dot-wrong", |block| Le::put_u32(block, 0, 2)),
        ("another parent", "dir-dotdot-wrong", |block| Le::put_u32(block, 12, 2)),
        ("another kind", "dirent-file-type", |block| block[24 + 7] = 5),
    ];
    let scratch = Scratch::new("seeded-block");
    let healthy = image(&scratch, &SHAPES[0]);
    let path = scratch.path("image");
    fs::write(&path, &healthy).expect("an image");
    let block = first_block(&path, "a/b");
    for (name, code, change) in cases {
        let mut bytes = healthy.clone();
        change(&mut bytes[block * 1024..block * 1024 + 1024]);
        let device = MemDevice::from_image(1024, bytes.clone());
        let report = check_ext2(&device).expect("readable");
        assert!(report.findings.iter().any(|f| f.code == *code), "{name}: {:#?}", report.findings);
        assert!(report.corrupt > 0, "{name}");
        assert_ne!(e2fsck_image(&scratch, "judge", &bytes).0, 0, "{name}");
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{name}: {:#?}", mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "judge", &device.image());
        assert_eq!(code, 0, "{name}: {text}");
    }
}

#[test]
fn superblocks_and_descriptors_come_back_from_their_copies() {
    if !have("debugfs") {
        return;
    }
    let cases: &[(&str, &str, Change)] = &[
        ("block count", "superblock-damaged", |image| Le::put_u32(image, 1024 + 4, 999_999)),
        ("inode count", "superblock-damaged", |image| Le::put_u32(image, 1024, 5)),
        ("another revision", "superblock-damaged", |image| Le::put_u32(image, 1024 + 76, 0)),
        ("another first inode", "superblock-damaged", |image| Le::put_u32(image, 1024 + 84, 400)),
        ("fragments", "superblock-fragments", |image| Le::put_u32(image, 1024 + 36, 4096)),
        ("no superblock at all", "superblock-damaged", |image| image[..2048].fill(0)),
        ("no descriptors", "group-descriptor", |image| image[2048..3072].fill(0)),
        ("an odd descriptor", "group-descriptor", |image| Le::put_u32(image, 2048 + 32 + 8, 3)),
    ];
    let scratch = Scratch::new("seeded-super");
    let shape = Shape { name: "groups", options: &["-b", "1024", "-N", "2048"], size: "20M" };
    let healthy = image(&scratch, &shape);
    for (name, code, change) in cases {
        let mut bytes = healthy.clone();
        change(&mut bytes);
        let device = MemDevice::from_image(4096, bytes.clone());
        let report = check_ext2(&device).expect("readable");
        assert!(report.findings.iter().any(|f| f.code == *code), "{name}: {:#?}", report.findings);
        assert_ne!(e2fsck_image(&scratch, "judge", &bytes).0, 0, "{name}");
        let mended = repair(&device, RepairMode::Yes).expect("readable");
        assert!(mended.left.is_clean(), "{name}: {:#?}", mended.left.findings);
        let (code, text) = e2fsck_image(&scratch, "judge", &device.image());
        assert_eq!(code, 0, "{name}: {text}");
    }
}

#[test]
fn a_superblock_that_others_would_read_otherwise_is_not_mounted() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("not-mounted");
    let healthy = image(&scratch, &SHAPES[0]);
    let mount = |change: fn(&mut [u8])| {
        let mut bytes = healthy.clone();
        change(&mut bytes);
        let device = std::sync::Arc::new(MemDevice::from_image(1024, bytes));
        let clock = std::sync::Arc::new(ManualClock::new());
        Ext2::open(Cache::new(device, CacheOptions::default(), clock)).map(drop)
    };
    mount(|_| ()).expect("a sound volume");
    let refused = mount(|image| Le::put_u32(image, 1024 + 76, 0)).expect_err("another revision");
    assert!(refused.to_string().contains("revision"), "{refused}");
}

/// A device that remembers the order of writes; flushes are not needed, because nothing is reordered here.
struct Recorder {
    device: MemDevice,
    writes: Mutex<Vec<(BlockNo, Vec<u8>)>>,
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        let mut log = self.writes.lock().unpoisoned();
        log.extend(writes.iter().map(|write| (write.block, write.data.to_vec())));
        self.device.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

#[test]
fn a_crash_while_mending_a_crash_does_no_damage() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("mending-crash");
    let healthy = image(&scratch, &SHAPES[0]);
    let mut prefixes = 0;
    for case in CRASHES {
        let mut bytes = seeded(&scratch, &healthy, case);
        let device = MemDevice::from_image(1024, bytes.clone());
        let recorder = Recorder { device, writes: Mutex::default() };
        let now = Timestamp { secs: 1_800_000_000, nanos: 0 };
        let options = RepairOptions { mode: RepairMode::Preen, now };
        assert!(repair_ext2(&recorder, options).expect("readable").left.is_clean(), "{}", case.name);
        for (n, (block, data)) in recorder.writes.into_inner().expect("unlocked").into_iter().enumerate() {
            let start = block.index() * 1024;
            bytes[start..start + 1024].copy_from_slice(&data);
            let report = check_ext2(&MemDevice::from_image(1024, bytes.clone())).expect("readable");
            assert_eq!(report.corrupt, 0, "{} after write {n}: {:#?}", case.name, report.findings);
            prefixes += 1;
        }
    }
    assert!(prefixes > CRASHES.len(), "mending wrote something");
}

#[test]
fn a_directory_renamed_into_one_without_a_name_stays_where_it_was() {
    if !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("rename-into-new");
    let path = scratch.path("image");
    fs::write(&path, image(&scratch, &SHAPES[0])).expect("an image");
    let file = path.to_str().expect("plain path").to_owned();
    debugfs(&scratch, &path, "mkdir a/new\nln d5/e a/new/e\nsif a/new links_count 3\n");
    let new: u32 = inode_of(&scratch, &path, "a/new").parse().expect("a number");
    let moved = inode_of(&scratch, &path, "d5/e");
    let (_, text) = crate::support::run("debugfs", &["-R", "bmap d5/e 0", &file]);
    let block: usize = text.lines().find_map(|line| line.trim().parse().ok()).expect("a block number");
    debugfs(&scratch, &path, "unlink a/new");
    // The rename has switched `..`, its old name is still there, and the new parent has no name yet.
    let mut bytes = fs::read(&path).expect("the image");
    Le::put_u32(&mut bytes, block * 1024 + 12, new);
    let device = MemDevice::from_image(1024, bytes);
    let report = check_ext2(&device).expect("readable");
    assert_eq!(report.corrupt, 0, "{:#?}", report.findings);
    assert!(report.findings.iter().any(|found| found.code == "dir-two-names"), "{:#?}", report.findings);
    assert!(repair(&device, RepairMode::Preen).expect("readable").left.is_clean());
    fs::write(&path, device.image()).expect("an image");
    assert_eq!(inode_of(&scratch, &path, "d5/e"), moved, "the old name still holds");
    let (code, text) = crate::support::e2fsck(&path);
    assert_eq!(code, 0, "{text}");
}
