//! New volumes: what is made of every shape is whole, is what newfs would make, and the same each time.

use std::fs;
use std::sync::atomic::{AtomicU32, Ordering};

use fstitch_core::{
    BlockDevice, BlockNo, BlockRead, BlockWrite, Error, FileKind, FileSystem, Geometry, IoOp, MemDevice,
    Result, Timestamp,
};
use fstitch_fs::ufs::layout::superblock::{Superblock, Version};
use fstitch_fs::ufs::mkfs::{MkfsOptions, MkfsSummary, Optimise, mkfs};
use fstitch_fs::ufs::order::Order;

use super::newgroup::{Numbers, recount};
use super::support::{Scratch, run};
use super::{checked, opened, shapes};

pub const NOW: Timestamp = Timestamp { secs: 1_700_000_000, nanos: 5 };
const ID: [u32; 2] = [0x1234_5678, 0x9abc_def0];

pub fn options((version, order, block, fragment): (u32, &str, u32, u32)) -> MkfsOptions {
    let version = if version == 1 { Version::One } else { Version::Two };
    let mut options = MkfsOptions::new(version, ID, NOW);
    options.order = if order == "le" { Order::Little } else { Order::Big };
    options.block_size = Some(block);
    options.fragment_size = Some(fragment);
    options
}

/// A volume on a device of so many bytes that held something else.
pub fn made(options: &MkfsOptions, bytes: u64) -> Result<(Vec<u8>, MkfsSummary)> {
    let dirt: Vec<u8> = (0..bytes).map(|at| u8::try_from(at * 7 % 251).unwrap()).collect();
    let device = MemDevice::from_image(512, dirt);
    let made = mkfs(&device, options, &mut |_, _| {})?;
    Ok((device.image(), made))
}

/// Everything that must be true of a new volume.
fn is_whole(name: &str, options: &MkfsOptions, image: &[u8], made: &MkfsSummary) {
    let fs = opened(image).unwrap_or_else(|error| panic!("{name}: {error}"));
    let report = fs.check().unwrap();
    assert!(report.is_clean(), "{name}: {:#?}", report.findings);
    let sb = fs.format().superblock();
    assert_eq!(
        (sb.totals, sb.groups, sb.group_inodes),
        (made.totals, made.plan.groups, made.plan.group_inodes)
    );
    assert_eq!((sb.fragments, sb.data_fragments), (made.plan.fragments, made.plan.data_fragments), "{name}");
    assert_eq!(
        (sb.version, sb.order, sb.id, sb.is_clean),
        (options.version, options.order, ID, true),
        "{name}"
    );
    let frag = u64::from(sb.fragments_per_block());
    let directories = 1 + u64::from(options.snap) + u64::from(options.lost_found);
    let free = sb.totals.blocks * frag + sb.totals.fragments;
    assert_eq!(free, sb.data_fragments - directories, "{name}: the directories have a fragment each");
    assert_eq!(sb.totals.directories, directories, "{name}");
    assert_eq!(sb.totals.inodes, u64::from(sb.inodes()) - 2 - directories, "{name}");
    let root = fs.getattr(fs.root()).unwrap();
    assert_eq!((root.kind, root.perm, root.size), (FileKind::Directory, 0o755, 512), "{name}");
    assert_eq!(u64::from(root.nlink), 1 + directories, "{name}");
    assert_eq!((root.mtime, root.ctime, (root.uid, root.gid)), (NOW, NOW, options.owner), "{name}");
    recount(name, image, sb);
    copies_agree(name, image, sb);
}

/// All copies of the superblock are it, but for where they lie.
fn copies_agree(name: &str, image: &[u8], sb: &Superblock) {
    let at = |byte: u64| {
        let byte = usize::try_from(byte).unwrap();
        image[byte..byte + 1376].to_vec()
    };
    let mut first = at(sb.at);
    let numbers = Numbers { order: sb.order };
    for group in 0..sb.groups {
        let place = (sb.group_start(group) + u64::from(sb.parts[0])) * u64::from(sb.fragment_size);
        let copy = at(place);
        assert_eq!(numbers.long(&copy, 992), place, "{name}: group {group}");
        first[992..1000].copy_from_slice(&copy[992..1000]);
        assert!(copy == first, "{name}: the copy in group {group}");
    }
}

#[test]
fn what_is_made_of_every_shape_is_whole() {
    let mut count = 0;
    for shape in shapes() {
        let fragment = u64::from(shape.3);
        for bytes in [2 << 20, 5_000_000, (9 << 20) + 3 * fragment, (24 << 20) + fragment + 511] {
            for most in [None, Some(shape.2 / 8)] {
                let mut options = options(shape);
                options.fragments_per_group = most;
                (options.snap, options.lost_found) = (bytes > 5_000_000, most.is_some());
                options.owner = (7, u32::from(most.is_some()));
                let name = format!("{shape:?}, {bytes} bytes, {most:?}");
                let (image, made) = made(&options, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
                is_whole(&name, &options, &image, &made);
                count += 1;
            }
        }
    }
    assert_eq!(count, 160);
}

#[test]
fn sizes_around_that_of_a_group_are_made_or_refused_and_none_is_half_made() {
    for shape in [(1, "le", 4096, 512), (2, "be", 8192, 1024), (2, "le", 4096, 4096), (1, "be", 65_536, 8192)]
    {
        let (mut refused, mut whole) = (0, 0);
        for fragments in (1..700).chain(1500..1700) {
            let mut options = options(shape);
            options.fragments_per_group = Some(512);
            let bytes = fragments * u64::from(shape.3);
            let name = format!("{shape:?}, {fragments} fragments");
            let device = MemDevice::new(512, bytes / 512);
            match mkfs(&device, &options, &mut |_, _| {}) {
                Ok(made) => {
                    whole += 1;
                    if whole % 7 == 0 || fragments % 8 != 0 {
                        is_whole(&name, &options, &device.image(), &made);
                    }
                }
                Err(Error::Unsupported(_)) => {
                    refused += 1;
                    assert!(device.image().iter().all(|&byte| byte == 0), "{name}: nothing is written");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert!(refused > 20 && whole > 500, "{shape:?}: {refused} refused, {whole} made");
    }
}

/// The BSDs reckon with the structure as it is in memory, 176 bytes, and NetBSD's kernel mounts no volume that says another size.
#[test]
fn groups_have_the_size_that_the_systems_reckon() {
    let mut differ = 0;
    for (version, (block, fragment)) in [Version::One, Version::Two]
        .into_iter()
        .flat_map(|version| [(version, (4096, 512)), (version, (8192, 1024))])
    {
        for kib in 6000..9000 {
            let mut options = MkfsOptions::new(version, ID, NOW);
            (options.block_size, options.fragment_size) = (Some(block), Some(fragment));
            let plan = fstitch_fs::ufs::mkfs::Plan::new(&options, kib << 10).unwrap();
            let tables = if version == Version::One { 4 + 2 } else { 0 };
            let blocks = plan.group_fragments / (block / fragment);
            let maps = plan.group_inodes.div_ceil(8) + plan.group_fragments.div_ceil(8);
            let clusters = if plan.clusters > 0 { plan.clusters * 4 + blocks.div_ceil(8) } else { 0 };
            let bytes = 176 + 4 + tables + maps + clusters;
            assert_eq!(plan.group_size, bytes.next_multiple_of(fragment), "{version:?}, {kib} KiB");
            differ += u32::from((bytes - 8).next_multiple_of(fragment) != plan.group_size);
        }
    }
    assert!(differ > 0, "some are a fragment longer by that");
}

#[test]
fn by_default_it_is_what_newfs_makes() {
    let plan = |version, bytes| {
        let options = MkfsOptions { device_is_zero: true, ..MkfsOptions::new(version, ID, NOW) };
        fstitch_fs::ufs::mkfs::Plan::new(&options, bytes).unwrap()
    };
    // As newfs prints it: 4 cylinder groups of 256.03MB, 8193 blks, 32896 inodes.
    let large = plan(Version::Two, 1 << 30);
    assert_eq!((large.block_size, large.fragment_size, large.superblock_at), (32_768, 4096, 65_536));
    assert_eq!(large.parts[..3], [24, 32, 40]);
    assert_eq!(large.groups, 4);
    assert_eq!(large.group_fragments / 8, 8193);
    assert_eq!(large.group_inodes, 32_896);
    // 17 cylinder groups of 625.22MB, 20007 blks, 80128 inodes.
    let full = plan(Version::Two, 10 << 30);
    assert_eq!((full.groups, full.group_fragments / 8, full.group_inodes), (17, 20_007, 80_128));
    assert_eq!(full.group_size, 32_768);
    // The same where transfers have 128 KiB at most: 626.09MB, 20035 blks, 80256 inodes.
    let options = MkfsOptions { max_contiguous: Some(4), ..MkfsOptions::new(Version::Two, ID, NOW) };
    let full = fstitch_fs::ufs::mkfs::Plan::new(&options, 10 << 30).unwrap();
    assert_eq!((full.group_fragments / 8, full.group_inodes), (20_035, 80_256));
    // UFS1 counts the inodes of a group in 16 bits.
    let old = plan(Version::One, 8 << 30);
    assert!(old.group_inodes < 0x8000 && old.superblock_at == 8192, "{old:?}");
    let tiny = plan(Version::Two, 1 << 20);
    assert_eq!((tiny.block_size, tiny.fragment_size), (8192, 1024));
}

#[test]
fn the_same_options_make_the_same_bytes_whatever_the_blocks_of_the_device() {
    for shape in shapes() {
        let mut options = options(shape);
        options.lost_found = true;
        let first = {
            let device = MemDevice::new(512, 16 << 11);
            mkfs(&device, &options, &mut |_, _| {}).unwrap();
            device.image()
        };
        for unit in [512_u32, 4096, 65_536] {
            options.device_is_zero = unit != 512;
            let device = MemDevice::new(unit, (16 << 20) / u64::from(unit));
            mkfs(&device, &options, &mut |_, _| {}).unwrap();
            assert!(device.image() == first, "{shape:?}: in blocks of {unit} bytes");
        }
        options.device_is_zero = false;
        options.id[1] += 1;
        let (other, _) = made(&options, 16 << 20).unwrap();
        assert!(other != first);
    }
}

#[test]
fn options_are_where_they_belong() {
    let mut options = options((2, "be", 16_384, 2048));
    options.label = b"a-Label_9".to_vec();
    options.min_free = 3;
    options.soft_updates = true;
    options.max_contiguous = Some(1);
    options.blocks_per_file = Some(77);
    options.metadata_fragments = Some(21);
    (options.average_file_bytes, options.average_directory_files) = (1000, 5);
    let (image, made) = made(&options, 12 << 20).unwrap();
    is_whole("options", &options, &image, &made);
    let sb = Superblock::read(&MemDevice::from_image(512, image.clone())).unwrap();
    assert_eq!((&sb.label[..], sb.reserved, sb.flags), (&b"a-Label_9"[..], 3, 2));
    let (raw, numbers) = (&image[65_536..], Numbers { order: Order::Big });
    // Little is kept free, so space is saved; runs of one block are no runs.
    let found = [128, 88, 92, 1316, 1196, 1200].map(|at| numbers.word(raw, at));
    assert_eq!(found, [1, 1, 77, 0, 1000, 5]);
    assert_eq!(numbers.long(raw, 880), 16, "whole blocks");
    options.optimise = Some(Optimise::Time);
    let (image, _) = super::mkfs::made(&options, 12 << 20).unwrap();
    assert_eq!(numbers.word(&image[65_536..], 128), 0);
    // Where FreeBSD's fsck looks how to find copies.
    let recovery = [65_516, 65_520, 65_524, 65_528, 65_532].map(|at| numbers.word(&image, at));
    assert_eq!(recovery, [0x1954_0119, 2, sb.parts[0], sb.group_fragments, sb.groups]);
}

#[test]
fn what_cannot_be_is_refused_by_name_before_anything_is_written() {
    let usual = options((2, "le", 8192, 1024));
    let old = options((1, "le", 8192, 1024));
    let with = |change: &dyn Fn(&mut MkfsOptions)| {
        let mut options = usual.clone();
        change(&mut options);
        options
    };
    let cases: [(MkfsOptions, u64, &str); 15] = [
        (with(&|options| options.block_size = Some(2048)), 8 << 20, "blocks of 2048 bytes"),
        (with(&|options| options.block_size = Some(131_072)), 8 << 20, "blocks of 131072 bytes"),
        (with(&|options| options.block_size = Some(12_288)), 8 << 20, "blocks of 12288 bytes"),
        (with(&|options| options.fragment_size = Some(512)), 8 << 20, "fragments of 512 bytes"),
        (with(&|options| options.fragment_size = Some(16_384)), 8 << 20, "fragments of 16384 bytes"),
        (with(&|options| options.fragment_size = Some(3000)), 8 << 20, "fragments of 3000 bytes"),
        (with(&|options| options.min_free = 100), 8 << 20, "100 percent"),
        (with(&|options| options.label = vec![b'x'; 32]), 8 << 20, "the label"),
        (with(&|options| options.label = b"a b".to_vec()), 8 << 20, "the label `a b`"),
        (with(&|options| options.id = [0, 0]), 8 << 20, "identifier"),
        (with(&|options| options.bytes_per_inode = Some(0)), 8 << 20, "0 bytes for an inode"),
        (with(&|options| options.metadata_fragments = Some(1 << 20)), 8 << 20, "fragments for metadata"),
        (with(&|options| options.size = Some(9 << 20)), 8 << 20, "on a device of"),
        (usual.clone(), 80 << 10, "a volume of 81920 bytes"),
        (old, 0, "a volume of 0 bytes"),
    ];
    for (options, bytes, said) in cases {
        let device = MemDevice::new(512, bytes / 512);
        let error = mkfs(&device, &options, &mut |_, _| {}).unwrap_err();
        assert!(
            matches!(&error, Error::Unsupported(_)) && error.to_string().contains(said),
            "{error}: {said}"
        );
        assert!(device.image().iter().all(|&byte| byte == 0));
    }
    let huge = MkfsOptions { block_size: None, fragment_size: Some(512), ..usual };
    let huge = MkfsOptions { version: Version::One, ..huge };
    let error = fstitch_fs::ufs::mkfs::Plan::new(&huge, 1 << 41).unwrap_err();
    assert!(error.to_string().contains("2^31 - 1 are the most"), "{error}");
}

/// A device that fails from one request on.
struct Failing {
    device: MemDevice,
    left: AtomicU32,
}

impl Failing {
    fn step(&self) -> Result<()> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        match left {
            0 => Err(Error::io(IoOp::Write, BlockNo(0), std::io::Error::other("cut"))),
            _ => Ok(()),
        }
    }
}

impl BlockDevice for Failing {
    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read(&self, reads: &mut [BlockRead<'_>]) -> Result<()> {
        self.device.read(reads)
    }

    fn write(&self, writes: &[BlockWrite<'_>]) -> Result<()> {
        self.step()?;
        self.device.write(writes)
    }

    fn flush(&self) -> Result<()> {
        self.step()?;
        self.device.flush()
    }

    fn discard(&self, start: BlockNo, count: u64) -> Result<()> {
        self.device.discard(start, count)
    }
}

#[test]
fn a_device_on_which_making_was_cut_short_is_no_volume() {
    // The new one's superblock lies elsewhere than the old one's, or at the same place; and where 64 KiB blocks put its first copy.
    let two = (2, "le", 8192, 1024);
    for (old, new) in [
        (two, (1, "le", 8192, 1024)),
        (two, two),
        (two, (1, "be", 65_536, 8192)),
        ((1, "le", 4096, 512), two),
    ] {
        let (before, _) = made(&options(old), 6 << 20).unwrap();
        let mut cuts = 0;
        loop {
            let device = MemDevice::from_image(512, before.clone());
            let device = Failing { device, left: AtomicU32::new(cuts) };
            let ended = mkfs(&device, &options(new), &mut |_, _| {});
            let found = Superblock::read(&device.device);
            match (ended, cuts) {
                (Ok(made), _) => {
                    assert!(is_clean(&device.device.image()), "{old:?}, {new:?}");
                    let found = found.unwrap();
                    assert_eq!((found.version, found.groups), (made.plan.version, made.plan.groups));
                    break;
                }
                // Nothing was written yet.
                (Err(_), 0) => assert!(device.device.image() == before),
                (Err(error), _) => {
                    assert!(matches!(error, Error::Io { .. }), "{error}");
                    // But for the last flush: all is there.
                    let is_volume = found.is_ok();
                    assert!(!is_volume || is_clean(&device.device.image()), "{old:?}, {new:?}: after {cuts}");
                }
            }
            cuts += 1;
        }
        assert!(cuts > 8, "{cuts}");
    }
}

fn is_clean(image: &[u8]) -> bool {
    checked(image).unwrap().is_clean()
}

#[test]
fn sleuthkit_reads_it() {
    if run_version("fsstat").is_none() {
        println!("skipped: sleuthkit is not installed");
        return;
    }
    let scratch = Scratch::new("ufs-mkfs-tsk");
    for shape in shapes() {
        let mut options = options(shape);
        options.label = b"of-mkfs".to_vec();
        options.lost_found = true;
        let (image, made) = made(&options, 12 << 20).unwrap();
        let path = scratch.path("made.img");
        fs::write(&path, &image).unwrap();
        let path = path.to_str().unwrap();
        let (code, said) = run("fsstat", &["-f", "ufs", path]);
        assert_eq!(code, 0, "{shape:?}: {said}");
        for line in [
            format!("Fragment Size: {}", shape.3),
            format!("Block Size: {}", shape.2),
            format!("Number of Cylinder Groups: {}", made.plan.groups),
            format!("Num of Avail Full Blocks: {}\n", made.totals.blocks),
            format!("Num of Avail Fragments: {}\n", made.totals.fragments),
            format!("Num of Avail Inodes: {}\n", made.totals.inodes),
            format!("Num of Directories: {}\n", made.totals.directories),
        ] {
            assert!(said.contains(&line), "{shape:?}: no `{line}` in {said}");
        }
        let (code, names) = run("fls", &["-f", "ufs", path]);
        assert!(code == 0 && names.contains("d/d 3:\tlost+found"), "{shape:?}: {names}");
    }
}

fn run_version(tool: &str) -> Option<()> {
    std::process::Command::new(tool).arg("-V").output().is_ok().then_some(())
}
