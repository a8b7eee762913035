//! What features of ext4 change for programs: dates, directories of very many, storage counted in blocks, large blocks, damage that
//! only sums show.

use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{
    BlockDevice, BlockNo, Caller, Consistency, FallocateMode, FileKind, FileSystem, InodeNo, Le, MemDevice,
    RenameMode, SetAttr, SetTime, Timestamp,
};
use fstitch_fs::ext2::Ext2;
use fstitch_fs::ext2::file_map;
use fstitch_fs::ext2::layout::checksum::block_bitmap_sum;
use fstitch_fs::ext2::layout::extent::{EE_START_LO, Entries, Expected, Node};
use fstitch_fs::ext2::layout::group::{BG_BLOCK_BITMAP_CSUM_LO, GroupDescriptor};
use fstitch_fs::ext2::layout::inode::{DiskInode, HUGE_FILE_FL, I_BLOCKS, I_FLAGS, place};
use fstitch_fs::ext2::layout::superblock::Superblock;
use fstitch_fs::ext2::mkfs::{MkfsFeatures, MkfsJournal, MkfsOptions, mkfs};

use super::kernel;
use super::support::{Scratch, have, run};
use super::tree::{Tree, fill};
use super::{device, e2fsck_is_content, made, mounted, recovered};

const CALLER: Caller = Caller { uid: 0, gid: 0, tid: 1, umask: 0 };

fn create(fs: &dyn FileSystem, name: &str) -> InodeNo {
    let mode = FileKind::Regular.mode_bits() | 0o644;
    fs.mknod(&CALLER, fs.root(), name.as_bytes(), mode, 0).unwrap().attr.ino
}

fn shape_of(image: &[u8]) -> Superblock {
    Superblock::parse(&image[1024..2048], to_u64(image.len())).unwrap()
}

/// The bytes of a descriptor, and where they are.
fn descriptor(image: &[u8], group: u32) -> (usize, GroupDescriptor) {
    let shape = shape_of(image);
    let (block, offset) = shape.descriptor_place(group);
    let at = to_usize(block) * to_usize(shape.block_size) + offset;
    (at, GroupDescriptor::raw(&image[at..at + shape.descriptor_size()]))
}

/// Where an inode is.
fn inode_at(image: &[u8], ino: InodeNo) -> usize {
    let (shape, ino) = (shape_of(image), u32::try_from(ino.0).unwrap());
    let (_, group) = descriptor(image, shape.group_of_inode(ino));
    let (block, offset) = place(&shape, group.inode_table, ino);
    to_usize(block.get()) * to_usize(shape.block_size) + offset
}

#[test]
fn dates_after_2038_come_back_with_their_nanoseconds() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-dates");
    let device = device(made(&scratch, &[]));
    let dates = [-1_000_000_000, -1, 0, (1 << 31) - 1, 1 << 31, 1 << 32, 10_000_000_000, 15_032_385_535];
    let fs = mounted(&device, Consistency::Ordered);
    for (at, secs) in dates.into_iter().enumerate() {
        let ino = create(&fs, &format!("f{at}"));
        let time = SetTime::At(Timestamp { secs, nanos: 123_456_789 });
        fs.setattr(&CALLER, ino, &SetAttr { mtime: Some(time), atime: Some(time), ..SetAttr::default() })
            .unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(&scratch, "dates", &device.image());
    let fs = mounted(&device, Consistency::Ordered);
    for (at, secs) in dates.into_iter().enumerate() {
        let attr = fs.lookup(fs.root(), format!("f{at}").as_bytes()).unwrap().attr;
        let wanted = Timestamp { secs, nanos: 123_456_789 };
        assert_eq!((attr.mtime, attr.atime), (wanted, wanted), "{secs}");
    }
    let ours = Tree::of(&fs);
    fs.unmount().unwrap();
    if let Some(theirs) = kernel::tree(&scratch, &device.image()) {
        theirs.expect(&ours, "the kernel's dates");
    }
}

#[test]
fn storage_counted_in_blocks_is_as_much_as_before() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-huge");
    let made = device(made(&scratch, &["-b", "4096"]));
    let fs = mounted(&made, Consistency::Ordered);
    let ino = create(&fs, "f");
    fs.write(&CALLER, ino, 0, &[7; 100_000]).unwrap();
    let blocks = fs.getattr(ino).unwrap().blocks;
    fs.unmount().unwrap();
    drop(fs);
    // As a file is that has more than 2^48 sectors.
    let mut image = made.image();
    let (at, sums) = (inode_at(&image, ino), shape_of(&image).sums);
    let raw = &mut image[at..at + 256];
    I_FLAGS.put(raw, I_FLAGS.get(raw) | HUGE_FILE_FL);
    I_BLOCKS.put(raw, I_BLOCKS.get(raw) / 8);
    sums.seal_inode(u32::try_from(ino.0).unwrap(), raw);
    e2fsck_is_content(&scratch, "counted in blocks", &image);
    let device = device(image);
    let fs = mounted(&device, Consistency::Ordered);
    assert_eq!(fs.getattr(ino).unwrap().blocks, blocks);
    fs.write(&CALLER, ino, 200_000, &[8; 50_000]).unwrap();
    assert!(fs.getattr(ino).unwrap().blocks > blocks);
    fs.setattr(&CALLER, ino, &SetAttr { size: Some(5000), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.getattr(ino).unwrap().blocks, 16);
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(&scratch, "changed", &device.image());
}

#[test]
fn a_directory_has_more_subdirectories_than_links_are_counted() {
    const COUNT: usize = 65_100;
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-many");
    let path = scratch.path("many.img");
    let file = path.to_str().unwrap();
    let (code, said) = run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", "1024", "-N", "70000", file, "200M"]);
    assert_eq!(code, 0, "{said}");
    let device = device(std::fs::read(&path).unwrap());
    let fs = mounted(&device, Consistency::Ordered);
    let parent = fs.mkdir(&CALLER, fs.root(), b"parent", 0o755).unwrap().attr.ino;
    for at in 0..COUNT {
        fs.mkdir(&CALLER, parent, format!("{at}").as_bytes(), 0o755).unwrap();
    }
    assert_eq!(fs.getattr(parent).unwrap().nlink, 1, "too many to count");
    fs.sync().unwrap();
    for at in 0..20 {
        fs.rmdir(&CALLER, parent, format!("{at}").as_bytes()).unwrap();
    }
    assert_eq!(fs.getattr(parent).unwrap().nlink, 1, "nobody knows how many are left");
    fs.rename(&CALLER, (parent, b"500"), (fs.root(), b"moved"), RenameMode::Replace).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(&scratch, "many", &device.image());
}

/// The kernel mounts no blocks larger than a page: here we and e2fsck judge each other.
#[test]
fn blocks_larger_than_a_page() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-large");
    for (size, volume) in [("8192", "64M"), ("16384", "64M"), ("32768", "96M"), ("65536", "192M")] {
        let path = scratch.path("large.img");
        let file = path.to_str().unwrap();
        let (code, said) = run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", size, file, volume]);
        assert_eq!(code, 0, "{said}");
        let image = std::fs::read(&path).unwrap();
        let ours = MemDevice::from_image(1024, vec![0xa7; image.len()]);
        let options = MkfsOptions {
            features: MkfsFeatures::EXT4,
            journal: MkfsJournal::Suitable,
            block_size: Some(size.parse().unwrap()),
            ..MkfsOptions::new([5; 16], [6; 16], Timestamp { secs: 1_700_000_000, nanos: 0 })
        };
        mkfs(&ours, &options, &mut |_, _| {}).unwrap();
        e2fsck_is_content(&scratch, size, &ours.image());
        used(&scratch, size, device(image));
        used(&scratch, size, device(ours.image()));
    }
}

/// Fills a volume, changes it, and has it judged.
fn used(scratch: &Scratch, size: &str, device: Arc<MemDevice>) {
    let fs = mounted(&device, Consistency::Ordered);
    fill(&fs, 5).unwrap();
    let written = Tree::of(&fs);
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(scratch, size, &device.image());
    let fs = mounted(&device, Consistency::Full);
    Tree::of(&fs).expect(&written, size);
    super::change(&fs, 6).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(scratch, size, &device.image());
}

/// Where a tree of extents has no room for the parts that a write leaves on both sides, blocks before it are zeroed and become contents,
/// but none behind the file's end, where nothing is zeroed.
#[test]
fn without_room_for_a_node_an_extent_is_written_up_to_the_end() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-parts");
    let device = device(made(&scratch, &["-b", "1024"]));
    let fs = mounted(&device, Consistency::Ordered);
    let file = create(&fs, "parts");
    let write = |block: u64| fs.write(&CALLER, file, block * 1024, &[7; 1024]);
    write(0).and_then(|_| write(10)).unwrap();
    fs.fallocate(&CALLER, file, 20 << 10, 40 << 10, FallocateMode::AllocateKeepSize).unwrap();
    let rest = create(&fs, "rest");
    let (mut at, mut len) = (0, 1 << 26);
    while len >= 1024 {
        match fs.fallocate(&CALLER, rest, at, len, FallocateMode::Allocate) {
            Ok(()) => at += len,
            Err(_) => len /= 2,
        }
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, 0);
    write(40).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let runs = file_map::read(&*device, file.get()).unwrap().runs;
    let runs: Vec<_> = runs.iter().map(|run| (run.logical, run.blocks, run.unwritten)).collect();
    assert_eq!(runs, [(0, 1, false), (10, 1, false), (20, 21, false), (41, 19, true)]);
    e2fsck_is_content(&scratch, "parts", &device.image());
}

/// A bitmap whose sum is wrong is not allocated from: what it calls free may be somebody's.
#[test]
fn a_wrong_sum_of_a_bitmap_is_noticed() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-bitmap");
    let mut image = made(&scratch, &["-b", "1024", "-g", "1024", "-N", "4096"]);
    let shape = shape_of(&image);
    let (at, _) = descriptor(&image, 0);
    let raw = &mut image[at..at + shape.descriptor_size()];
    let sum = block_bitmap_sum(raw);
    BG_BLOCK_BITMAP_CSUM_LO.put(raw, u16::try_from(sum & 0xffff).unwrap() ^ 1);
    shape.sums.seal_descriptor(0, raw);
    let device = device(image);
    let fs = mounted(&device, Consistency::Ordered);
    let (bitmap, contents) = (descriptor(&device.image(), 0).1.block_bitmap, device.image());
    let mode = FileKind::Regular.mode_bits() | 0o644;
    let refused = fs.mknod(&CALLER, fs.root(), b"f", mode, 0).unwrap_err().to_string();
    assert!(refused.contains("checksum"), "{refused}");
    let _ = fs.unmount();
    drop(fs);
    let unit = to_usize(shape.block_size);
    let bytes = |image: &[u8]| image[to_usize(bitmap) * unit..][..unit].to_vec();
    assert!(bytes(&device.image()) == bytes(&contents), "nothing was taken from a map that is not believed");
}

/// A file without a name, of a tree with a damaged node: recovery does not free what others own.
#[test]
fn recovery_looks_at_the_sums_of_nodes() {
    if !have("mke2fs") {
        return;
    }
    let scratch = Scratch::new("ext4-orphan-sums");
    let device_of = device;
    let device = device(made(&scratch, &["-b", "1024"]));
    let fs = mounted(&device, Consistency::Ordered);
    let (gone, kept) = (create(&fs, "gone"), create(&fs, "kept"));
    for at in 0..100 {
        fs.write(&CALLER, gone, 2048 * at, &[7; 1024]).unwrap();
        fs.write(&CALLER, kept, 2048 * at, &[8; 1024]).unwrap();
    }
    fs.unmount().unwrap();
    drop(fs);
    let (own, other) = (first_extent(&device.image(), gone), first_extent(&device.image(), kept));
    let fs = mounted(&device, Consistency::Ordered);
    let held = fs.lookup(fs.root(), b"gone").unwrap().attr.ino;
    fs.unlink(&CALLER, fs.root(), b"gone").unwrap();
    fs.sync().unwrap();
    let mut image = device.image();
    assert_eq!(held, gone);
    drop(fs);
    // The first extent of its first leaf points at another file's block.
    EE_START_LO.put(&mut image[own.0..], u32::try_from(other.1).unwrap());
    let device = device_of(image);
    let found = recovered(&*device as &dyn BlockDevice).unwrap();
    assert!(!found.errors.is_empty(), "{found:?}");
    let fs = mounted(&device, Consistency::Ordered);
    let ino = fs.lookup(fs.root(), b"kept").unwrap().attr.ino;
    let mut read = vec![0; 1024];
    fs.read(ino, 0, &mut read).unwrap();
    assert!(read.iter().all(|&byte| byte == 8));
    let _ = fs.unmount();
    drop(fs);
    // The other file's block is still its own.
    let image = device.image();
    let (shape, (_, group)) = (shape_of(&image), descriptor(&image, 0));
    let bit = other.1 - shape.group_start(0);
    if shape.group_of(other.1) == 0 {
        let byte = image[to_usize(group.block_bitmap) * 1024 + to_usize(bit / 8)];
        assert!(byte >> (bit % 8) & 1 == 1, "a block in use became free");
    }
}

/// Where the entry of a file's first extent is, and the block that it says.
fn first_extent(image: &[u8], ino: InodeNo) -> (usize, u64) {
    let (shape, at) = (shape_of(image), inode_at(image, ino));
    let disk = DiskInode::parse(&image[at..at + 256], ino, BlockNo(0), &shape).unwrap();
    let root = Node::parse_root(&disk.block, BlockNo(0), shape.blocks_count).unwrap();
    let Entries::Inner(nodes) = &root.entries else { panic!("a tree of two levels") };
    let at = to_usize(nodes[0].node) * to_usize(shape.block_size);
    let expected = Expected { depth: Some(0), ..Expected::root(BlockNo(0), shape.blocks_count) };
    let leaf = Node::parse(&image[at..at + to_usize(shape.block_size)], &expected).unwrap();
    let Entries::Leaf(extents) = &leaf.entries else { panic!("a leaf") };
    assert_eq!(u64::from(Le::u32(image, at + 12 + 8)), extents[0].start);
    (at + 12, extents[0].start)
}

/// A directory whose index has nodes below its root, and loses it with the first new name.
#[test]
fn an_index_of_two_levels_becomes_leaves() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let scratch = Scratch::new("ext4-htree");
    let image = made(&scratch, &["-b", "1024", "-N", "12000"]);
    let Some(image) = kernel::with_names(&scratch, &image, 9000) else { return };
    let device = device(image);
    assert!(Ext2::probe(&*device as &dyn BlockDevice).is_ok());
    let fs = mounted(&device, Consistency::Ordered);
    let many = fs.lookup(fs.root(), b"many").unwrap().attr.ino;
    fs.mkdir(&CALLER, many, b"one more", 0o755).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    e2fsck_is_content(&scratch, "two levels", &device.image());
}
