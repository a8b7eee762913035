//! Volumes of 2^32 blocks and more, in sparse files: what lies behind block 2^32 is what it was, whoever wrote it.
//!
//! What it prevents: the high half of a number that is not written, or not read, so that something is looked for, or freed, 16 TiB
//! before where it lies.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use fstitch_core::num::to_usize;
use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockWrite, Consistency, Error, FallocateMode, FileKind, FileSystem,
    InodeNo, ManualClock, RepairMode, RepairOptions, Result, SetAttr, XattrSetMode,
};
use fstitch_fs::arrange::{Arrangement, open};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::check::{check_ext2, repair_ext2};
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::layout::checksum::place;
use fstitch_fs::ext2::layout::extent::{EE_START_HI, EXTENT_HEADER, Entries, Node};
use fstitch_fs::ext2::layout::group::GroupDescriptor;
use fstitch_fs::ext2::layout::inode::{self, DiskInode, I_FILE_ACL_HIGH};
use fstitch_fs::ext2::resize::resize;
use fstitch_fs::uhfs::Uhfs;

use super::cut::{Lossy, is_thorough};
use super::support::{Scratch, SparseFile, e2fsck, have, run};
use super::tree::{CALLER, Tree};
use super::{NOW, kernel, recovered};

/// The first block that 32 bits do not name.
const FAR: u64 = 1 << 32;
const BLOCK: u32 = 4096;
/// Directories that the kernel spreads.
const DIRS: usize = 24;
/// What names are hashed with: so that they are in the same places each time.
const SEED: &str = "hash_seed=5a5a5a5a-5a5a-5a5a-5a5a-5a5a5a5a5a5a";
/// Shapes of volumes: what `mke2fs` is told, and by which mechanisms they are written. Few inodes and large flexible groups, so that
/// there is little to write.
const SHAPES: [(&str, &str, &[Consistency]); 3] = [
    ("journal", "meta_bg,^resize_inode", &[Consistency::Ordered, Consistency::Metadata, Consistency::Full]),
    ("no-csum", "meta_bg,^resize_inode,^metadata_csum,uninit_bg", &[Consistency::Ordered]),
    ("soft", "meta_bg,^resize_inode,^has_journal", &[Consistency::Soft]),
];

/// A new volume of so many blocks in a file; `None`, said aloud, where there can be none.
fn made(scratch: &Scratch, features: &str, blocks: u64) -> Option<PathBuf> {
    let path = scratch.path("large.img");
    let file = std::fs::File::create(&path).unwrap();
    if let Err(error) = file.set_len(blocks * u64::from(BLOCK)) {
        println!("skipped: no file of {blocks} blocks here: {error}");
        return None;
    }
    let text = path.to_str().unwrap();
    let inodes = (blocks.div_ceil(32_768) * 16).to_string();
    let journal: &[&str] = if features.contains("^has_journal") { &[] } else { &["-J", "size=16"] };
    let all =
        ["-q", "-F", "-t", "ext4", "-b", "4096", "-O", features, "-G", "1024", "-N", &inodes, "-E", SEED];
    let (code, said) = run("mke2fs", &[&all, journal, &[text]].concat());
    assert_eq!(code, 0, "{said}");
    Some(path)
}

/// A volume of 20 TiB with directories that the kernel has spread over it, and the names of those whose inodes lie behind block 2^32. The
/// kernel puts a directory below the root where the hash of its name says.
fn spread(scratch: &Scratch, features: &str) -> Option<(PathBuf, Vec<String>)> {
    let path = made(scratch, features, 5 << 30)?;
    kernel::in_place(scratch, &path, |root| {
        for at in 0..DIRS {
            std::fs::create_dir(root.join(format!("d{at}"))).unwrap();
        }
    })?;
    let device = SparseFile::open(&path, BLOCK);
    let fs = mounted(Arc::new(SparseFile::open(&path, BLOCK)), Consistency::Ordered, true);
    let far = |name: &String| inode_of(&device, at(&fs, name)).1.0.get() >= FAR;
    let names: Vec<String> = (0..DIRS).map(|at| format!("d{at}")).filter(far).collect();
    assert!(names.len() >= 3 && names.len() < DIRS / 2, "a fifth of them: {names:?}");
    Some((path, names))
}

fn mounted(device: Arc<dyn BlockDevice>, mechanism: Consistency, read_only: bool) -> Uhfs<Ext2> {
    let mut arrangement =
        Arrangement { consistency: (!read_only).then_some(mechanism), ..Arrangement::default() };
    (arrangement.cache.read_only, arrangement.fs.read_only) = (read_only, read_only);
    open::<Ext2>(device, &arrangement, Arc::new(ManualClock::new())).unwrap().0
}

fn of_file(path: &Path) -> Arc<dyn BlockDevice> {
    Arc::new(SparseFile::open(path, BLOCK))
}

fn at(fs: &dyn FileSystem, path: &str) -> InodeNo {
    fs.walk(format!("/{path}").as_bytes()).unwrap().attr.ino
}

fn block_of(device: &dyn BlockDevice, block: u64) -> Vec<u8> {
    let mut data = vec![0; to_usize(BLOCK)];
    let view = fstitch_fs::view::BlockView::new(device, to_usize(BLOCK));
    view.read(BlockNo(block), BlockKind::Data, &mut data).unwrap();
    data
}

/// An inode, and where it lies.
fn inode_of(device: &dyn BlockDevice, ino: InodeNo) -> (DiskInode, (BlockNo, usize)) {
    let shape = read_superblock(device).unwrap().1;
    let number = u32::try_from(ino.get()).unwrap();
    let (block, offset) = shape.descriptor_place(shape.group_of_inode(number));
    let raw = block_of(device, block);
    let group = GroupDescriptor::raw(&raw[offset..offset + shape.descriptor_size()]);
    let at = inode::place(&shape, group.inode_table, number);
    let raw = block_of(device, at.0.get());
    let raw = &raw[at.1..at.1 + usize::from(shape.inode_size)];
    (DiskInode::parse(raw, ino, at.0, &shape).unwrap(), at)
}

/// The nodes below an inode's root.
fn nodes_of(device: &dyn BlockDevice, ino: InodeNo) -> Vec<u64> {
    let blocks = read_superblock(device).unwrap().1.blocks_count;
    match Node::parse_root(&inode_of(device, ino).0.block, BlockNo(0), blocks).unwrap().entries {
        Entries::Inner(nodes) => nodes.iter().map(|index| index.node).collect(),
        Entries::Leaf(_) => Vec::new(),
    }
}

fn is_right(name: &str, path: &Path) {
    let (code, said) = e2fsck(path);
    assert_eq!(code, 0, "{name}: {said}");
    let report = check_ext2(&*of_file(path)).unwrap();
    assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
}

/// What is done in a directory, step by step: extents, nodes, blocks of attributes and of names come and go.
fn step(fs: &dyn FileSystem, dir: &str, number: usize) -> Result<()> {
    let path = |name: &str| format!("{dir}/{name}");
    let dir = at(fs, dir);
    let make = |name: &str| fs.mknod(&CALLER, dir, name.as_bytes(), FileKind::Regular.mode_bits() | 0o644, 0);
    let data = |len: usize, first: u8| (0..len).map(|at| first ^ at.to_le_bytes()[0]).collect::<Vec<u8>>();
    match number {
        0 => make("pieces").map(drop),
        1 => {
            let ino = at(fs, &path("pieces"));
            (0..9).try_for_each(|at| fs.write(&CALLER, ino, at * 20_000, &data(5000, 3)).map(drop))
        }
        2 => fs.symlink(&CALLER, dir, b"long", &b"elsewhere/".repeat(30)).map(drop),
        3 => {
            let ino = at(fs, &path("pieces"));
            fs.setxattr(&CALLER, ino, b"user.large", &data(3000, 9), XattrSetMode::Set)
        }
        4 => fs.mkdir(&CALLER, dir, b"names", 0o755).map(drop),
        5 => {
            let (from, to) = (at(fs, &path("pieces")), at(fs, &path("names")));
            (0..120).try_for_each(|at| {
                let name = format!("a name that is not short at all, with its number {at}");
                fs.link(&CALLER, from, to, name.as_bytes()).map(drop)
            })
        }
        6 => {
            let ino = at(fs, &path("pieces"));
            fs.setxattr(&CALLER, ino, b"user.large", &data(2900, 200), XattrSetMode::Set)
        }
        7 => {
            let set = SetAttr { size: Some(30_000), ..SetAttr::default() };
            fs.setattr(&CALLER, at(fs, &path("pieces")), &set).map(drop)
        }
        8 => {
            let ino = at(fs, &path("pieces"));
            fs.removexattr(&CALLER, ino, b"user.large")
        }
        9 => fs.unlink(&CALLER, dir, b"long"),
        _ => unreachable!("there are {STEPS}"),
    }
}

/// Steps of [`step`], and how many of them only add.
const STEPS: usize = 10;
const ADDING: usize = 6;

#[test]
fn what_lies_behind_block_2_32_is_the_same_to_all() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-large");
    // With a journal and without one, where only a sample is taken: the reference reads 20 TiB of descriptors three times for each.
    let (shapes, mechanisms_max) = if is_thorough() { (1, 3) } else { (2, 1) };
    for (name, features, mechanisms) in SHAPES.into_iter().step_by(shapes) {
        let Some((path, dirs)) = spread(&scratch, features) else { return };
        for (&mechanism, dir) in mechanisms.iter().zip(&dirs).take(mechanisms_max) {
            let name = format!("{name}, {mechanism}");
            let fs = mounted(of_file(&path), mechanism, false);
            (0..ADDING).for_each(|number| step(&fs, dir, number).unwrap());
            let (pieces, names) = (at(&fs, &format!("{dir}/pieces")), at(&fs, &format!("{dir}/names")));
            let expected = Tree::of(&fs);
            let report = fs.check().unwrap();
            assert_eq!(report.total, 0, "{name}: {:?}", report.findings);
            fs.unmount().unwrap();
            drop(fs);
            let device = of_file(&path);
            for ino in [pieces, names] {
                let map = file_map::read(&*device, ino.get()).unwrap();
                assert!(map.runs.iter().all(|run| run.physical >= FAR), "{name}: {:?}", map.runs);
            }
            let nodes = nodes_of(&*device, pieces);
            assert!(!nodes.is_empty() && nodes.iter().all(|&node| node >= FAR), "{name}: {nodes:?}");
            assert!(inode_of(&*device, pieces).0.xattr_block >= FAR, "{name}");
            is_right(&name, &path);
            let found = kernel::in_place(&scratch, &path, |root| {
                // The kernel adds to what is there, and shares and changes the block of attributes.
                let dir = root.join(dir);
                std::fs::write(dir.join("theirs"), vec![7; 300_000]).unwrap();
                std::fs::copy(dir.join("pieces"), dir.join("names/copied")).unwrap();
            });
            assert!(found.is_some(), "it was mounted before");
            let theirs = kernel::tree_in_place(&scratch, &path).unwrap();
            let ours = |tree: &Tree| {
                let mut tree = tree.clone();
                tree.0.retain(|path, _| !path.ends_with(b"/theirs") && !path.ends_with(b"/copied"));
                // The kernel has the time.
                tree.0
                    .values_mut()
                    .filter(|item| item.kind == FileKind::Directory)
                    .for_each(|item| item.mtime = (0, 0));
                tree
            };
            ours(&theirs).expect(&ours(&expected), &format!("{name}: the kernel's"));
            let fs = mounted(of_file(&path), mechanism, false);
            Tree::of(&fs).expect(&theirs, &format!("{name}: ours again"));
            fs.unlink(&CALLER, at(&fs, &format!("{dir}/names")), b"copied").unwrap();
            fs.unlink(&CALLER, at(&fs, dir), b"theirs").unwrap();
            (ADDING..STEPS).for_each(|number| step(&fs, dir, number).unwrap());
            let expected = Tree::of(&fs);
            fs.unmount().unwrap();
            drop(fs);
            is_right(&format!("{name}, smaller"), &path);
            kernel::tree_in_place(&scratch, &path).unwrap().expect(&expected, &name);
        }
    }
}

/// Copies the volume in a file over one that is there, which stays the same file.
fn copy(from: &Path, to: &Path) {
    let (code, said) = run("cp", &["--sparse=always", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert_eq!(code, 0, "{said}");
}

#[test]
fn a_cut_at_any_write_leaves_the_state_before_or_after_a_step() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-large-cut");
    for (shape, features, mechanisms) in [SHAPES[0], SHAPES[2]] {
        let Some((path, dirs)) = spread(&scratch, features) else { return };
        let (dir, below) = (&dirs[1], scratch.path("cut.img"));
        copy(&path, &below);
        let device: &'static SparseFile = Box::leak(Box::new(SparseFile::open(&below, BLOCK)));
        let mechanism = mechanisms[0];
        let states: Vec<Tree> = {
            let fs = mounted(of_file(&below), mechanism, false);
            let after = |number| {
                step(&fs, dir, number).unwrap();
                Tree::of(&fs)
            };
            std::iter::once(Tree::of(&fs)).chain((0..STEPS).map(after)).collect()
        };
        let every = if is_thorough() { 1 } else { 79 };
        let mut cuts = 0;
        for left in (0..).step_by(every) {
            copy(&path, &below);
            let lossy = Lossy::after(device, left, u64::try_from(left).unwrap());
            let mut done = 0;
            let arrangement = Arrangement { consistency: Some(mechanism), ..Arrangement::default() };
            // Opening it writes, too.
            let opened = open::<Ext2>(Arc::new(lossy), &arrangement, Arc::new(ManualClock::new()));
            if let Ok((fs, ..)) = opened {
                while done < STEPS && step(&fs, dir, done).and_then(|()| fs.sync()).is_ok() {
                    done += 1;
                }
            }
            let name = format!("{shape}, {left} writes, {done} steps");
            if mechanism == Consistency::Soft {
                let report = check_ext2(device).unwrap();
                assert_eq!(report.corrupt, 0, "{name}: {:#?}", report.findings);
                let options = RepairOptions { mode: RepairMode::Preen, now: NOW };
                let repaired = repair_ext2(device, options).unwrap();
                assert_eq!(repaired.left.total, 0, "{name}: {:#?}", repaired.left.findings);
            } else {
                recovered(device);
                let report = check_ext2(device).unwrap();
                assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
                let found = Tree::of(&mounted(of_file(&below), mechanism, true));
                let allowed = &states[done..=(done + 1).min(STEPS)];
                if !allowed.contains(&found) {
                    found.expect(&states[done], &name);
                }
            }
            if cuts % 9 == 0 || done == STEPS {
                is_right(&name, &below);
                assert!(kernel::tree_in_place(&scratch, &below).is_some());
            }
            cuts += 1;
            if done == STEPS {
                break;
            }
        }
        println!("{shape}: {cuts} cuts");
        assert!(cuts * every > 60, "{shape}: {cuts} cuts, every {every}");
    }
}

#[test]
fn volumes_grow_over_block_2_32_and_back() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-large-grow");
    let (small, large) = (FAR - 5 * 32_768, FAR + 200 * 32_768 + 5000);
    let Some(path) = made(&scratch, "meta_bg,^resize_inode", small) else { return };
    let fs = mounted(of_file(&path), Consistency::Ordered, false);
    fs.mkdir(&CALLER, fs.root(), b"d", 0o755).unwrap();
    (0..STEPS).for_each(|number| step(&fs, "d", number).unwrap());
    let expected = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let set_len = |blocks: u64| {
        std::fs::File::options().write(true).open(&path).unwrap().set_len(blocks * u64::from(BLOCK)).unwrap();
    };
    set_len(large);
    let before = scratch.path("before.img");
    copy(&path, &before);
    let below: &'static SparseFile = Box::leak(Box::new(SparseFile::open(&path, BLOCK)));
    let (mut sizes, mut cuts) = ([false; 2], 0);
    // Behind the first few hundred writes come copies of descriptors.
    let (step, far_step) = if is_thorough() { (1, 61) } else { (151, 1499) };
    for left in (0..900).step_by(step).chain((900..20_000).step_by(far_step)) {
        copy(&before, &path);
        let done = resize(&Lossy::after(below, left, 3), large, NOW, &mut |_, _| {});
        recovered(below);
        let name = format!("{left} writes");
        let report = check_ext2(below).unwrap();
        assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
        let now = read_superblock(below).unwrap().1.blocks_count;
        assert!(now == small || now == large, "{name}: {now}");
        sizes[usize::from(now == large)] = true;
        cuts += 1;
        if done.is_ok() {
            break;
        }
    }
    println!("{cuts} cuts");
    assert!(sizes == [true, true], "{sizes:?}");
    assert_eq!(resize(below, large, NOW, &mut |_, _| {}).unwrap().after, large);
    is_right("grown", &path);
    if let Some(found) = kernel::tree_in_place(&scratch, &path) {
        found.expect(&expected, "the kernel's");
    }
    // The count of free blocks goes below 2^32, and comes back.
    let fs = mounted(of_file(&path), Consistency::Ordered, false);
    assert!(fs.statfs().unwrap().blocks_free > FAR);
    let file =
        fs.mknod(&CALLER, fs.root(), b"long", FileKind::Regular.mode_bits() | 0o644, 0).unwrap().attr.ino;
    fs.fallocate(&CALLER, file, 0, 26 << 30, FallocateMode::Allocate).unwrap();
    assert!(fs.statfs().unwrap().blocks_free < FAR);
    fs.unmount().unwrap();
    drop(fs);
    is_right("fuller", &path);
    let fs = mounted(of_file(&path), Consistency::Ordered, false);
    fs.unlink(&CALLER, fs.root(), b"long").unwrap();
    fs.unmount().unwrap();
    drop(fs);
    is_right("emptier", &path);
    let back = resize(below, small, NOW, &mut |_, _| {}).unwrap();
    assert_eq!((back.before, back.after), (large, small));
    is_right("shrunk", &path);
    Tree::of(&mounted(of_file(&path), Consistency::Ordered, true)).expect(&expected, "shrunk");
}

/// The log that mke2fs makes has block numbers of 32 bits until somebody mounts the volume.
#[test]
fn a_log_that_nobody_has_written_names_blocks_behind_2_32() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-large-log");
    let Some(path) = made(&scratch, "meta_bg,^resize_inode", FAR + 300 * 32_768) else { return };
    let smaller = FAR + 100 * 32_768 + 5000;
    let done = resize(&*of_file(&path), smaller, NOW, &mut |_, _| {}).unwrap();
    assert_eq!(done.after, smaller);
    is_right("smaller", &path);
}

#[test]
fn a_list_of_reserved_descriptors_does_not_reach_behind_block_2_32() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-large-reserved");
    let Some(path) = made(&scratch, "resize_inode", FAR - 40 * 32_768) else { return };
    std::fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len((FAR + 32_768) * u64::from(BLOCK))
        .unwrap();
    let refused = resize(&*of_file(&path), FAR + 32_768, NOW, &mut |_, _| {}).unwrap_err();
    assert!(matches!(&refused, Error::Unsupported(text) if text.contains("resize_inode")), "{refused}");
    is_right("unchanged", &path);
}

/// What damages a volume.
type Damage<'a> = &'a dyn Fn(&dyn BlockDevice);

#[test]
fn high_halves_that_cannot_be_are_found_and_mended() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-large-damage");
    let Some((path, dirs)) = spread(&scratch, SHAPES[0].1) else { return };
    let fs = mounted(of_file(&path), Consistency::Ordered, false);
    (0..ADDING).for_each(|number| step(&fs, &dirs[0], number).unwrap());
    let pieces = at(&fs, &format!("{}/pieces", dirs[0]));
    fs.unmount().unwrap();
    drop(fs);
    let device = of_file(&path);
    let shape = read_superblock(&*device).unwrap().1;
    let write = |device: &dyn BlockDevice, block: u64, data: &[u8]| {
        device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data }]).unwrap();
    };
    let group = shape.group_of(FAR) + 3000;
    let number = u32::try_from(pieces.get()).unwrap();
    let owner = shape.sums.of_inode(number, inode_of(&*device, pieces).0.generation);
    let node = nodes_of(&*device, pieces)[0];
    let cases: [(&str, Damage<'_>); 4] = [
        ("group-descriptor", &|device| {
            let (block, offset) = shape.descriptor_place(group);
            let mut raw = block_of(device, block);
            let raw_at = &mut raw[offset..offset + shape.descriptor_size()];
            let mut at = GroupDescriptor::raw(raw_at);
            at.inode_table &= u64::from(u32::MAX);
            at.encode_into(raw_at, true);
            shape.sums.seal_descriptor(group, raw_at);
            write(device, block, &raw);
        }),
        ("group-descriptor", &|device| {
            let (block, offset) = shape.descriptor_place(group);
            let mut raw = block_of(device, block);
            let raw_at = &mut raw[offset..offset + shape.descriptor_size()];
            let mut at = GroupDescriptor::raw(raw_at);
            at.block_bitmap |= 1 << 40;
            at.encode_into(raw_at, true);
            write(device, block, &raw);
        }),
        ("pointer-invalid", &|device| {
            let mut raw = block_of(device, node);
            EE_START_HI.put(&mut raw[EXTENT_HEADER..], 2);
            let sum = owner.extent_node(&raw).unwrap();
            place(&mut raw, sum);
            write(device, node, &raw);
        }),
        ("xattr-bad-pointer", &|device| {
            let (_, (block, offset)) = inode_of(device, pieces);
            let mut raw = block_of(device, block.get());
            let raw_at = &mut raw[offset..offset + usize::from(shape.inode_size)];
            I_FILE_ACL_HIGH.put(raw_at, 2);
            shape.sums.seal_inode(number, raw_at);
            write(device, block.get(), &raw);
        }),
    ];
    let below = scratch.path("damaged.img");
    for (code, damage) in cases {
        copy(&path, &below);
        let device = of_file(&below);
        damage(&*device);
        let report = check_ext2(&*device).unwrap();
        assert!(report.findings.iter().any(|found| found.code == code), "{code}: {:#?}", report.findings);
        let repaired = repair_ext2(&*device, RepairOptions { mode: RepairMode::Yes, now: NOW }).unwrap();
        assert_eq!(repaired.left.total, 0, "{code}: {:#?}", repaired.left.findings);
        is_right(code, &below);
    }
}
