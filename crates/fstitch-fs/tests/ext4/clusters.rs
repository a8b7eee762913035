//! Volumes whose blocks are taken in clusters, changed by us and by the kernel's driver in turns, until they are full, and with the power cut.
//!
//! What it prevents: a cluster of two files, one that is freed while its file has blocks of it or stays in use when it has none, a block
//! at another place than its cluster has for it, and counts in blocks where they are of clusters.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Caller, Consistency, Errno, FallocateMode, FileKind,
    FileSystem, InodeNo, Le, ManualClock, MemDevice, RepairMode, Result, Seed, SetAttr,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::layout::checksum::{Sums, seal_superblock};
use fstitch_fs::ext2::layout::extent::{EE_START_LO, EXTENT_HEADER};
use fstitch_fs::ext2::layout::inode::{I_BLOCK, I_BLOCKS, I_FLAGS, place};
use fstitch_fs::ext2::layout::superblock::{S_STATE, STATE_ERROR, Superblock};
use fstitch_fs::uhfs::Uhfs;

use super::cut::{Lossy, is_thorough};
use super::kernel;
use super::shifts::{Act, Answer};
use super::support::{Scratch, e2fsck_image, have, run};
use super::tree::{Tree, bytes};
use super::{NOW, device, e2fsck_is_content, made, mounted, recovered};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };
/// What `mke2fs -t ext4` is told: blocks of all sizes, small groups, clusters of two blocks and of many.
const SHAPES: [(u64, &[&str]); 4] = [
    (1024, &["-O", "bigalloc", "-b", "1024", "-C", "4096", "-g", "1024"]),
    (1024, &["-O", "bigalloc", "-b", "1024", "-C", "65536"]),
    (2048, &["-O", "bigalloc,^metadata_csum,uninit_bg", "-b", "2048", "-C", "4096", "-g", "512"]),
    (4096, &["-O", "bigalloc,^flex_bg", "-b", "4096", "-C", "16384"]),
];
const MECHANISMS: [Consistency; 3] = [Consistency::Ordered, Consistency::Metadata, Consistency::Full];
/// Files that are worked on.
const FILES: u64 = 5;

/// What becomes of one of the files.
enum Step {
    Act(Act),
    /// A few bytes more at its end.
    Append(Vec<u8>),
    Remove,
}

/// A random step, on blocks of `unit` bytes.
fn draw(seed: &mut Seed, unit: u64) -> Step {
    let data = |seed: &mut Seed, len: u64| bytes(&mut Seed::new(seed.below(u64::MAX)), to_usize(len));
    let (at, len) = (seed.below(90) * unit, (1 + seed.below(14)) * unit);
    let crooked = if seed.chance(1, 3) { seed.below(unit) } else { 0 };
    let whole = |mode, words| Step::Act(Act::Fallocate(mode, words, at, len));
    match seed.below(20) {
        0..=4 => Step::Act(Act::Write { offset: at + crooked, bytes: data(seed, 1 + len / 4) }),
        5..=9 => {
            let len = 1 + seed.below(unit);
            Step::Append(data(seed, len))
        }
        10..=12 => whole(FallocateMode::PunchHole, &["-p"]),
        13 => whole(FallocateMode::ZeroRangeKeepSize, &["-z", "-n"]),
        14 => whole(FallocateMode::AllocateKeepSize, &["-n"]),
        15 => whole(FallocateMode::Allocate, &[]),
        16 | 17 => Step::Act(Act::Truncate(at + crooked)),
        18 => Step::Act(Act::Truncate(0)),
        _ => Step::Remove,
    }
}

/// What a file holds after an act.
fn change(contents: &mut Vec<u8>, act: &Act) {
    let grow = |contents: &mut Vec<u8>, end: usize| contents.resize(contents.len().max(end), 0);
    match act {
        Act::Write { offset, bytes } => {
            let at = to_usize(*offset);
            grow(contents, at + bytes.len());
            contents[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Act::Truncate(size) => contents.resize(to_usize(*size), 0),
        Act::Fallocate(mode, _, offset, len) => {
            let (at, end) = (to_usize(*offset), to_usize(offset + len));
            if *mode == FallocateMode::Allocate {
                grow(contents, end);
            }
            if matches!(mode, FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize) {
                let to = end.min(contents.len());
                contents[at.min(to)..to].fill(0);
            }
        }
    }
}

/// Files by name, as they should be.
#[derive(Default)]
struct Model(BTreeMap<String, Vec<u8>>);

/// Who carries steps out.
trait Worker {
    fn act(&self, name: &str, act: &Act);
    fn remove(&self, name: &str);
}

impl Model {
    /// So many random steps, by whom, and here.
    fn work(&mut self, seed: &mut Seed, unit: u64, steps: usize, worker: &dyn Worker) {
        for _ in 0..steps {
            let name = format!("file{}", seed.below(FILES));
            let act = match draw(seed, unit) {
                Step::Act(act) => act,
                Step::Append(bytes) => {
                    Act::Write { offset: to_u64(self.0.get(&name).map_or(0, Vec::len)), bytes }
                }
                Step::Remove => {
                    if self.0.remove(&name).is_some() {
                        worker.remove(&name);
                    }
                    continue;
                }
            };
            worker.act(&name, &act);
            change(self.0.entry(name).or_default(), &act);
        }
    }

    fn expect(&self, tree: &Tree, what: &str) {
        for (name, contents) in &self.0 {
            let found = &tree.0[format!("/{name}").as_bytes()];
            assert!(found.contents == *contents, "{what}: {name} has other contents");
        }
        let files = tree.0.keys().filter(|path| path.starts_with(b"/file")).count();
        assert_eq!(files, self.0.len(), "{what}");
    }
}

struct Ours<'a>(&'a Uhfs<Ext2>);

impl Ours<'_> {
    fn ino(&self, name: &str) -> InodeNo {
        self.file(name).unwrap()
    }

    /// The file, made if there is none.
    fn file(&self, name: &str) -> Result<InodeNo> {
        let mode = FileKind::Regular.mode_bits() | 0o644;
        let entry = match self.0.walk(name.as_bytes()) {
            Err(error) if error.errno() == Errno::NOENT => {
                self.0.mknod(&CALLER, self.0.root(), name.as_bytes(), mode, 0)?
            }
            found => found?,
        };
        self.0.forget(entry.attr.ino, 1);
        Ok(entry.attr.ino)
    }

    fn try_act(&self, name: &str, act: &Act) -> Result<()> {
        let ino = self.file(name)?;
        match act {
            Act::Write { offset, bytes } => self.0.write(&CALLER, ino, *offset, bytes).map(drop),
            Act::Truncate(size) => self.0.setattr(&CALLER, ino, &cut(*size)).map(drop),
            Act::Fallocate(mode, _, offset, len) => self.0.fallocate(&CALLER, ino, *offset, *len, *mode),
        }
    }
}

fn cut(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

impl Worker for Ours<'_> {
    fn act(&self, name: &str, act: &Act) {
        self.try_act(name, act).unwrap();
    }

    fn remove(&self, name: &str) {
        self.0.unlink(&CALLER, self.0.root(), name.as_bytes()).unwrap();
    }
}

struct Theirs<'a>(&'a Path);

impl Worker for Theirs<'_> {
    fn act(&self, name: &str, act: &Act) {
        let path = self.0.join(name);
        let file = std::fs::File::options().create(true).truncate(false).write(true).open(&path).unwrap();
        match act {
            Act::Write { offset, bytes } => file.write_all_at(bytes, *offset).unwrap(),
            Act::Truncate(size) => file.set_len(*size).unwrap(),
            Act::Fallocate(_, words, offset, len) => {
                let (offset, len) = (offset.to_string(), len.to_string());
                let range = ["-o", &offset, "-l", &len, path.to_str().unwrap()];
                let (code, said) = run("fallocate", &[*words, &range].concat());
                assert_eq!(code, 0, "{said}");
            }
        }
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.0.join(name)).unwrap();
    }
}

#[test]
fn files_are_changed_by_us_and_by_the_kernel_in_turns() {
    if !have("mke2fs") || !have("e2fsck") || !have("fallocate") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters");
    for (at, (unit, options)) in SHAPES.iter().enumerate() {
        let mut seed = Seed::new(to_u64(at));
        let (mut image, mut model) = (made(&scratch, options), Model::default());
        for round in 0..3 {
            let what = format!("{options:?}, round {round}");
            let ours = device(image);
            let fs = mounted(&ours, MECHANISMS[(at + round) % 3]);
            for _ in 0..4 {
                model.work(&mut seed, *unit, 40, &Ours(&fs));
                let report = fs.check().unwrap();
                assert_eq!(report.total, 0, "{what}: {:?}", report.findings);
            }
            model.expect(&Tree::of(&fs), &what);
            fs.unmount().unwrap();
            drop(fs);
            e2fsck_is_content(&scratch, &what, &ours.image());
            let Some((theirs, tree)) = kernel::changed(&scratch, &ours.image(), |root| {
                model.work(&mut seed, *unit, 80, &Theirs(root));
            }) else {
                return;
            };
            model.expect(&tree, &format!("{what}: the kernel's"));
            e2fsck_is_content(&scratch, &format!("{what}: the kernel's"), &theirs);
            image = theirs;
        }
    }
}

fn answer(fs: &Uhfs<Ext2>, act: &Act) -> Answer {
    let ours = Ours(fs);
    let failed = ours.try_act("file", act).err().map(|error| error.errno());
    (failed, fs.getattr(ours.ino("file")).unwrap().size)
}

#[test]
fn ranges_come_and_go_in_whole_clusters() {
    if !have("mke2fs") || !have("e2fsck") || !have("fallocate") {
        return;
    }
    let scratch = Scratch::new("ext4-cluster-shifts");
    for (at, (unit, options)) in SHAPES.iter().enumerate() {
        let cluster = options[options.iter().position(|word| *word == "-C").unwrap() + 1];
        let cluster: u64 = cluster.parse().unwrap();
        let mut seed = Seed::new(40 + to_u64(at));
        // Pieces of clusters, so that there are many extents.
        let mut acts: Vec<Act> = (0..60)
            .rev()
            .map(|at| Act::Write {
                offset: at * (cluster / 2 + unit),
                bytes: bytes(&mut seed, to_usize(*unit)),
            })
            .collect();
        for _ in 0..60 {
            let odd = if seed.chance(1, 5) { *unit } else { 0 };
            let range = (seed.below(30) * cluster + odd, (1 + seed.below(3)) * cluster);
            let (mode, words): (_, &[&str]) = match seed.below(5) {
                0 | 1 => (FallocateMode::CollapseRange, &["-c"]),
                2 | 3 => (FallocateMode::InsertRange, &["-i"]),
                _ => (FallocateMode::PunchHole, &["-p"]),
            };
            acts.push(Act::Fallocate(mode, words, range.0, range.1));
            if seed.chance(1, 3) {
                let bytes = bytes(&mut seed, to_usize(2 * unit));
                acts.push(Act::Write { offset: seed.below(100) * unit, bytes });
            }
        }
        let image = made(&scratch, options);
        let ours = device(image.clone());
        let fs = mounted(&ours, MECHANISMS[at % 3]);
        let answers: Vec<Answer> = acts.iter().map(|act| answer(&fs, act)).collect();
        assert!(answers.iter().filter(|answer| answer.0 == Some(Errno::INVAL)).count() > 3);
        let tree = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, "ours", &ours.image());
        let Some((theirs, their_answers)) = kernel::after_acts(&scratch, &image, &acts) else { return };
        for ((act, ours), theirs) in acts.iter().zip(&answers).zip(&their_answers) {
            assert_eq!(ours, theirs, "{act:?}");
        }
        let theirs = Tree::of(&mounted(&device(theirs), Consistency::Ordered));
        assert!(theirs.0[&b"/file"[..]].contents == tree.0[&b"/file"[..]].contents, "{options:?}");
    }
}

/// A volume of so many KiB.
fn small(scratch: &Scratch, options: &[&str], kib: u64) -> Vec<u8> {
    let image = scratch.path("small.img");
    let image = image.to_str().unwrap();
    let _ = std::fs::remove_file(image);
    let (code, said) = run(
        "mke2fs",
        &[&["-q", "-F", "-t", "ext4", "-m", "0"], options, &[image, &format!("{kib}k")]].concat(),
    );
    assert_eq!(code, 0, "{said}");
    std::fs::read(image).unwrap()
}

#[test]
fn a_full_volume_has_room_in_clusters_that_are_taken() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-full");
    let options = ["-O", "bigalloc", "-b", "1024", "-C", "16384", "-N", "64"];
    let image = small(&scratch, &options, 8192);
    for mechanism in MECHANISMS {
        let device = device(image.clone());
        let fs = mounted(&device, mechanism);
        let ours = Ours(&fs);
        let write = |name: &str, offset, len| {
            ours.try_act(name, &Act::Write { offset, bytes: vec![7; len] }).map_err(|error| error.errno())
        };
        let before = fs.statfs().unwrap();
        // A block in each of some clusters, and then all that there is.
        for at in 0..20 {
            write("sparse", at * 16_384 + 2048, 1024).unwrap();
        }
        let mut end = 0;
        let full = loop {
            match write("filler", end, 30_000) {
                Ok(()) => end += 30_000,
                Err(error) => break error,
            }
        };
        assert_eq!((full, fs.statfs().unwrap().blocks_free), (Errno::NOSPC, 0));
        // A node of its map has one as well.
        assert_eq!(fs.getattr(ours.ino("sparse")).unwrap().blocks, 21 * 32);
        // What lies in clusters of the file needs none; what does not is refused, and has changed nothing.
        for at in 0..20 {
            write("sparse", at * 16_384 + 5000, 3000).unwrap();
        }
        assert_eq!(write("sparse", 20 * 16_384, 10), Err(Errno::NOSPC));
        assert_eq!(fs.getattr(ours.ino("sparse")).unwrap().blocks, 21 * 32);
        // A hole gives nothing back as long as a block of the cluster is there, and then all of it.
        let punch = |offset, len| {
            ours.act("sparse", &Act::Fallocate(FallocateMode::PunchHole, &["-p"], offset, len));
            fs.statfs().unwrap().blocks_free
        };
        assert_eq!(punch(4096, 4096), 0);
        assert_eq!(punch(2048, 1024), 16);
        assert_eq!(punch(16_384 + 1024, 3 * 16_384), 16 * 4);
        fs.unmount().unwrap();
        drop(fs);
        e2fsck_is_content(&scratch, &format!("{mechanism}: full"), &device.image());
        let fs = mounted(&device, mechanism);
        for name in ["sparse", "filler"] {
            fs.unlink(&CALLER, fs.root(), name.as_bytes()).unwrap();
        }
        fs.sync().unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, before.blocks_free);
        fs.unmount().unwrap();
        e2fsck_is_content(&scratch, &format!("{mechanism}: empty"), &device.image());
    }
}

#[test]
fn space_is_counted_as_the_kernel_counts_it() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-space");
    for (unit, options) in SHAPES {
        let image = made(&scratch, options);
        let mut theirs = Vec::new();
        let changed = kernel::changed(&scratch, &image, |root| {
            Theirs(root).act("file", &Act::Write { offset: 3 * unit, bytes: vec![1; to_usize(5 * unit)] });
            let (code, said) = run("stat", &["-f", "-c", "%f %S", root.to_str().unwrap()]);
            assert_eq!(code, 0, "{said}");
            theirs.extend(said.split_whitespace().map(|word| word.parse::<u64>().unwrap()));
        });
        let Some((image, _)) = changed else { return };
        let fs = mounted(&device(image), Consistency::Ordered);
        let ours = fs.statfs().unwrap();
        // The kernel keeps some clusters for itself.
        assert_eq!(u64::from(ours.block_size), theirs[1]);
        let difference = ours.blocks_free - theirs[0];
        assert!(difference <= ours.blocks / 40 + 64, "{options:?}: {ours:?}, {theirs:?}");
    }
}

/// The work that is cut: clusters that are shared by appends, holes, and ends in them, and a file without a name.
fn work(fs: &Uhfs<Ext2>) -> Result<()> {
    let ours = Ours(fs);
    let write =
        |name: &str, at: u64, len| ours.try_act(name, &Act::Write { offset: at, bytes: vec![9; len] });
    let punch =
        |name: &str, at, len| ours.try_act(name, &Act::Fallocate(FallocateMode::PunchHole, &[], at, len));
    for round in 0..3 {
        write("a", round * 1000, 1000)?;
        write("b", round * 1000, 1000)?;
    }
    punch("old", 1024, 3072)?;
    write("old", 2048, 900)?;
    fs.sync()?;
    ours.try_act("long", &Act::Truncate(5000))?;
    write("long", 40_000, 3000)?;
    punch("a", 0, 2048)?;
    fs.sync()?;
    fs.unlink(&CALLER, fs.root(), b"old")?;
    ours.try_act("c", &Act::Fallocate(FallocateMode::Allocate, &[], 2048, 9000))?;
    write("c", 6000, 100)?;
    fs.sync()
}

#[test]
fn cut_at_any_write_it_is_recovered_by_us_and_by_e2fsck() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-cut");
    let options = ["-O", "bigalloc", "-b", "1024", "-C", "4096", "-g", "512", "-N", "64"];
    let first = device(small(&scratch, &options, 6144));
    {
        let fs = mounted(&first, Consistency::Ordered);
        let ours = Ours(&fs);
        ours.act("old", &Act::Write { offset: 0, bytes: vec![1; 20_000] });
        ours.act("long", &Act::Write { offset: 0, bytes: vec![2; 60_000] });
        ours.act("kept", &Act::Write { offset: 3000, bytes: vec![3; 9000] });
        fs.unmount().unwrap();
    }
    let image = first.image();
    let below: &'static MemDevice = Box::leak(Box::new(MemDevice::from_image(1024, image.clone())));
    let kept = Tree::of(&mounted(&device(image.clone()), Consistency::Ordered)).0[&b"/kept"[..]].clone();
    for mechanism in MECHANISMS {
        let step = if is_thorough() { 1 } else { 3 };
        let mut cuts = (0..2000).step_by(step);
        let ended = cuts.find(|&left| {
            for (block, data) in (0..).zip(image.chunks(1024)) {
                below.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
            }
            let lossy = Lossy::after(below, left, to_u64(left));
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            let opened = open::<Ext2>(Arc::new(lossy), &arrangement, Arc::new(ManualClock::new()));
            let done = opened.and_then(|(fs, _)| work(&fs).and_then(|()| fs.unmount()));
            let left_there = below.image();
            recovered(below);
            let what = format!("{mechanism}, {left} writes");
            let report = check_ext2(below).unwrap();
            assert_eq!(report.corrupt, 0, "{what}: {:#?}", report.findings);
            let found = Tree::of(&mounted(&device(below.image()), mechanism));
            assert!(found.0[&b"/kept"[..]].contents == kept.contents, "{what}");
            for (path, item) in &found.0 {
                assert!(item.contents.iter().all(|byte| [0, 1, 2, 3, 9].contains(byte)), "{what}: {path:?}");
            }
            // The reference checker replays the log itself, and finds as little to do.
            if left % (4 * step) == 0 {
                e2fsck_is_content(&scratch, &what, &below.image());
                let path = scratch.path("left.img");
                std::fs::write(&path, left_there).unwrap();
                let (code, said) = run("e2fsck", &["-p", path.to_str().unwrap()]);
                assert!(code <= 1, "{what}: {said}");
                let theirs = std::fs::read(&path).unwrap();
                let (code, said) = e2fsck_image(&scratch, "theirs.img", &theirs);
                assert_eq!(code, 0, "{what}: {said}");
                let theirs = Tree::of(&mounted(&device(theirs), mechanism));
                assert!(theirs.0[&b"/kept"[..]].contents == kept.contents, "{what}");
            }
            done.is_ok()
        });
        assert!(ended.is_some_and(|ended| ended > 40), "{mechanism}: {ended:?}");
    }
}

/// An image with what its inodes are found by.
struct Damaged {
    image: Vec<u8>,
    shape: Superblock,
}

impl Damaged {
    fn of(image: Vec<u8>) -> Self {
        let shape = Superblock::parse(&image[1024..2048], to_u64(image.len())).unwrap();
        Self { image, shape }
    }

    fn inode(&self, ino: u32) -> usize {
        let (block, offset) = self.shape.descriptor_place(self.shape.group_of_inode(ino));
        let table = Le::u32(&self.image, to_usize(block) * to_usize(self.shape.block_size) + offset + 8);
        let (block, offset) = place(&self.shape, u64::from(table), ino);
        to_usize(block.get()) * to_usize(self.shape.block_size) + offset
    }

    /// Changes an inode's bytes, and its sum.
    fn change(&mut self, ino: u32, change: impl FnOnce(&mut [u8])) {
        let (at, sums): (usize, Sums) = (self.inode(ino), self.shape.sums);
        let raw = &mut self.image[at..at + usize::from(self.shape.inode_size)];
        change(raw);
        sums.seal_inode(ino, raw);
    }
}

/// The place of extent `no` in an inode's bytes.
const fn extent(no: usize) -> usize {
    I_BLOCK.offset() + EXTENT_HEADER + no * 12
}

/// What is damaged, what it is called, and how.
type Damage = (&'static str, &'static str, Box<dyn Fn(&mut Damaged)>);

/// Damage of four files that begin in the clusters of these blocks with two extents each.
fn damages(inodes: [u32; 4], starts: [u32; 4]) -> Vec<Damage> {
    let start = |raw: &mut [u8], no: usize, to: u32| EE_START_LO.put(&mut raw[extent(no)..], to);
    let begins_at = move |at: usize, to: u32| -> Box<dyn Fn(&mut Damaged)> {
        Box::new(move |damaged| damaged.change(inodes[at], |raw| start(raw, 0, to)))
    };
    let across = move |damaged: &mut Damaged| {
        damaged.change(inodes[3], |raw| {
            start(raw, 0, 30_001);
            start(raw, 1, 30_003);
        });
    };
    let counted = move |damaged: &mut Damaged| damaged.change(inodes[0], |raw| I_BLOCKS.put(raw, 20));
    let pointers = move |damaged: &mut Damaged| {
        damaged.change(inodes[0], |raw| {
            I_FLAGS.put(raw, I_FLAGS.get(raw) & !0x8_0000);
            raw[I_BLOCK.offset()..I_BLOCK.offset() + 60].fill(0);
            for (at, block) in (0..3).zip(starts[0]..) {
                Le::put_u32(raw, I_BLOCK.offset() + 4 * at, block);
            }
        });
    };
    vec![
        ("a cluster of two files", "block-shared", begins_at(0, starts[1])),
        ("an extent across its cluster", "cluster-place", begins_at(1, starts[1] + 1)),
        // The first of the file's blocks in a cluster that nobody has.
        ("two clusters for one", "cluster-place", begins_at(2, 30_000)),
        ("all of a file across its clusters", "cluster-place", Box::new(across)),
        ("storage in blocks", "inode-block-count", Box::new(counted)),
        ("a map of pointers", "cluster-pointers", Box::new(pointers)),
    ]
}

/// Has a damaged volume mended, by us and by e2fsck, and compares what is left.
fn mend(scratch: &Scratch, (what, code): (&str, &str), image: &[u8], before: &Tree) {
    let ours = device(image.to_vec());
    let report = check_ext2(&*ours).unwrap();
    assert!(report.findings.iter().any(|found| found.code == code), "{what}: {:#?}", report.findings);
    let (said_by, said) = e2fsck_image(scratch, "damaged.img", image);
    assert_ne!(said_by, 0, "{what}: {said}");
    let options = fstitch_core::RepairOptions { mode: RepairMode::Yes, now: NOW };
    let mended = repair_ext2(&*ours, options).unwrap();
    assert_eq!(mended.left.total, 0, "{what}: {:#?}", mended.left.findings);
    e2fsck_is_content(scratch, what, &ours.image());
    let path = scratch.path("theirs.img");
    std::fs::write(&path, image).unwrap();
    run("e2fsck", &["-fy", path.to_str().unwrap()]);
    let theirs = Tree::of(&mounted(&device(std::fs::read(&path).unwrap()), Consistency::Ordered));
    let ours = Tree::of(&mounted(&ours, Consistency::Ordered));
    let lost = |tree: &Tree| {
        let is_kept = |(path, item): &(&Vec<u8>, &super::tree::Item)| {
            tree.0.get(*path).is_some_and(|found| found.contents == item.contents)
        };
        before.0.iter().filter(|item| !is_kept(item)).count()
    };
    println!("{what}: {} lost by us, {} by e2fsck", lost(&ours), lost(&theirs));
    assert!(lost(&ours) <= lost(&theirs).min(1), "{what}");
}

#[test]
fn damage_is_mended_without_more_loss_than_by_e2fsck() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-damage");
    let first = device(made(&scratch, SHAPES[0].1));
    let fs = mounted(&first, Consistency::Ordered);
    let ours = Ours(&fs);
    let names = ["one", "two", "three", "four"];
    for (tag, name) in (1..).zip(names) {
        // Two extents in one cluster, and more behind.
        ours.act(name, &Act::Write { offset: 0, bytes: vec![tag; 1024] });
        ours.act(name, &Act::Write { offset: 2048, bytes: vec![tag; 9000] });
    }
    let inodes = names.map(|name| u32::try_from(ours.ino(name).get()).unwrap());
    let before = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let image = first.image();
    let starts = inodes.map(|ino| {
        let map = file_map::read(&*device(image.clone()), u64::from(ino)).unwrap();
        assert_eq!(map.runs.len(), 2, "{map:?}");
        u32::try_from(map.runs[0].physical).unwrap()
    });
    for (what, code, damage) in damages(inodes, starts) {
        let mut damaged = Damaged::of(image.clone());
        damage(&mut damaged);
        mend(&scratch, (what, code), &damaged.image, &before);
    }
}

#[test]
fn without_a_journal_they_are_only_read() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-bare");
    let image = made(&scratch, &["-O", "bigalloc,^has_journal", "-b", "1024"]);
    let refused = open::<Ext2>(device(image.clone()), &Arrangement::default(), Arc::new(ManualClock::new()));
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("bigalloc"), "{refused}");
    let Some((image, expected)) = kernel::filled(&scratch, &image) else { return };
    let mut arrangement = Arrangement::default();
    (arrangement.cache.read_only, arrangement.fs.read_only) = (true, true);
    let fs = open::<Ext2>(device(image), &arrangement, Arc::new(ManualClock::new())).unwrap().0;
    Tree::of(&fs).expect(&expected, "as the kernel has it");
}

#[test]
fn their_size_stays() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-size");
    let mut image = small(&scratch, &["-O", "bigalloc", "-b", "1024"], 20_000);
    image.resize(40_000 << 10, 0);
    let device: Arc<MemDevice> = device(image);
    for blocks in [10_000, 40_000] {
        let refused = fstitch_fs::ext2::resize::resize(&*device, blocks, NOW, &mut |_, _| ()).unwrap_err();
        assert!(refused.to_string().contains("bigalloc"), "{refused}");
    }
}

#[test]
fn nothing_is_reclaimed_where_there_are_errors() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-clusters-errors");
    let image = made(&scratch, SHAPES[0].1);
    let device = device(image);
    let fs = mounted(&device, Consistency::Ordered);
    Ours(&fs).act("file", &Act::Write { offset: 1000, bytes: vec![7; 6000] });
    fs.unmount().unwrap();
    drop(fs);
    // As whoever finds damage leaves it.
    let mut damaged = Damaged::of(device.image());
    S_STATE.put(&mut damaged.image[1024..2048], STATE_ERROR);
    seal_superblock(&mut damaged.image[1024..2048]);
    let device = super::device(damaged.image);
    let fs = mounted(&device, Consistency::Ordered);
    let refusal = fs.reclaim().unwrap().refusal.unwrap_or_default();
    assert!(refusal.contains("clusters"), "{refusal}");
    Ours(&fs).act("other", &Act::Write { offset: 1000, bytes: vec![7; 6000] });
    fs.unmount().unwrap();
    drop(fs);
    let options = fstitch_core::RepairOptions { mode: RepairMode::Yes, now: NOW };
    assert_eq!(repair_ext2(&*device, options).unwrap().left.total, 0);
    e2fsck_is_content(&scratch, "mended", &device.image());
}
