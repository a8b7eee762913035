//! Growing volumes: e2fsck and the kernel find nothing amiss, the tree is the same, and whatever write is the last one the volume is the old
//! or the new one and can be grown again.
//!
//! What it prevents: a larger volume with the files of a smaller one missing; a descriptor table over somebody's blocks.

use std::sync::Arc;

use fstitch_core::{Consistency, Error, FileSystem, MemDevice};
use fstitch_fs::ext2::check::check_ext2;
use fstitch_fs::ext2::journal::read_superblock;
use fstitch_fs::ext2::resize::{Resized, resize};

use super::cut::{Cut, Lossy, is_thorough};
use super::support::{Scratch, have, run};
use super::tree::{Tree, change, fill};
use super::{NOW, SHAPES, device, e2fsck_is_content, kernel, made, mounted, recovered};

/// Volumes that soft updates write, as well.
const PLAIN: &[(&str, &[&str])] = &[
    ("ext2", &["-t", "ext2", "-b", "1024"]),
    ("ext2-4K", &["-t", "ext2", "-b", "4096"]),
    ("ext2-dense", &["-t", "ext2", "-b", "1024", "-O", "^sparse_super,^resize_inode", "-g", "4096"]),
    ("ext3", &["-t", "ext3", "-b", "1024"]),
];

fn grow(
    device: &dyn fstitch_core::BlockDevice,
    blocks: u64,
    now: fstitch_core::Timestamp,
) -> fstitch_core::Result<Resized> {
    resize(device, blocks, now, &mut |_, _| {})
}

/// Grows a volume until the power fails: in order, or with only some of what was not flushed. Whether it did not fail.
fn grown_until(below: &MemDevice, writes: usize, (wanted, in_order): (u64, bool)) -> bool {
    let (cut, lossy) = (Cut::after(below, writes), Lossy::after(below, writes, 7));
    if in_order { grow(&cut, wanted, NOW).is_ok() } else { grow(&lossy, wanted, NOW).is_ok() }
}

const OLD: usize = 40 << 20;

/// The image on a device of so many bytes, behind it full of others.
fn larger(mut image: Vec<u8>, bytes: usize, others: u8) -> Arc<MemDevice> {
    image.resize(bytes, others);
    device(image)
}

fn blocks_of(device: &MemDevice) -> u64 {
    read_superblock(device).unwrap().1.blocks_count
}

fn mechanism(device: &MemDevice) -> Consistency {
    let (_, shape) = read_superblock(device).unwrap();
    if shape.has_journal() { Consistency::Ordered } else { Consistency::Soft }
}

/// Sizes, each larger: within the last group, a group that is not worth while, several groups, as much as the table has room for.
const SIZES: [usize; 4] = [(41 << 20) + 5000, (48 << 20) + 9000, 77 << 20, 200 << 20];

#[test]
fn volumes_grow_and_nothing_is_amiss() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-grow");
    let mut grown = 0;
    // A quarter of the shapes by default, and no image of 200 MiB.
    let (every, sizes) = if is_thorough() { (1, &SIZES[..]) } else { (4, &SIZES[..3]) };
    for (name, options) in SHAPES.iter().chain(PLAIN).step_by(every) {
        let image = made(&scratch, options);
        let first = device(image);
        let fs = mounted(&first, mechanism(&first));
        fill(&fs, 1).unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let mut image = first.image();
        assert_eq!(image.len(), OLD);
        for &bytes in sizes {
            // What lies behind the end may be anything: nothing there is believed.
            let device = larger(image.clone(), bytes, 0xa5);
            let block = u64::from(read_superblock(&*device).unwrap().1.block_size);
            let before = blocks_of(&device);
            match grow(&*device, u64::try_from(bytes).unwrap() / block, NOW) {
                Ok(done) => assert_eq!(done.after, blocks_of(&device), "{name}"),
                // Where nothing is reserved the table cannot grow: said by name, and nothing is changed.
                Err(Error::Unsupported(text)) => {
                    assert!(text.contains("are reserved for that"), "{name}: {text}");
                    assert!(device.image()[..image.len()] == image[..], "{name}");
                    println!("{name}, {bytes} bytes: {text}");
                    continue;
                }
                Err(error) => panic!("{name}: {error}"),
            }
            grown += 1;
            let after = blocks_of(&device);
            assert!(after >= before && after * block <= u64::try_from(bytes).unwrap(), "{name}: {after}");
            e2fsck_is_content(&scratch, &format!("{name}, {bytes} bytes"), &device.image());
            image = device.image();
        }
        let device = device(image);
        let again = mounted(&device, mechanism(&device));
        Tree::of(&again).expect(&expected, &format!("{name}: after growing"));
        change(&again, 2).unwrap();
        let expected = Tree::of(&again);
        again.unmount().unwrap();
        drop(again);
        e2fsck_is_content(&scratch, name, &device.image());
        if let Some(found) = kernel::tree(&scratch, &device.image()) {
            found.expect(&expected, &format!("{name}: the kernel's"));
        }
    }
    println!("grown {grown} times");
    assert!(grown > if is_thorough() { 60 } else { 10 }, "only {grown}");
}

#[test]
fn growing_may_be_cut_at_every_write() {
    if !have("mke2fs") || !have("e2fsck") {
        return;
    }
    let scratch = Scratch::new("ext4-grow-cut");
    let bytes = 45 << 20;
    // The first and the last at every write, of the others some: the same steps, with other blocks in them. A sample of that by default.
    let shapes: [(&str, &[&str]); 5] = [
        ("1K", &["-b", "1024", "-g", "2048"]),
        ("meta_bg", &["-O", "meta_bg,^resize_inode", "-b", "1024", "-g", "512", "-N", "4096"]),
        ("uninit_bg", &["-O", "^metadata_csum,uninit_bg", "-b", "1024", "-g", "2048"]),
        ("ext3", &["-t", "ext3", "-b", "1024", "-g", "2048"]),
        ("ext2", &["-t", "ext2", "-b", "1024", "-g", "2048"]),
    ];
    let (mut cuts, mut sizes) = (0, Vec::new());
    for (at, (name, options)) in shapes.into_iter().enumerate() {
        let step = match (is_thorough(), at) {
            (true, 0 | 4) => 1,
            (true, _) => 9,
            (false, 0 | 4) => 29,
            (false, _) => 97,
        };
        let first = device(made(&scratch, options));
        let fs = mounted(&first, mechanism(&first));
        fill(&fs, 1).unwrap();
        let expected = Tree::of(&fs);
        fs.unmount().unwrap();
        drop(fs);
        let (image, before) = (first.image(), blocks_of(&first));
        let wanted = u64::try_from(bytes).unwrap() / 1024;
        for writes in (0..).step_by(step) {
            let below = larger(image.clone(), bytes, 0);
            let is_whole = grown_until(&below, writes, (wanted, cuts % 2 == 0));
            let name = format!("{name}, {writes} writes");
            if cuts % (if is_thorough() { 50 } else { 12 }) == 3
                && let Some(theirs) = kernel::tree(&scratch, &below.image())
            {
                theirs.expect(&expected, &format!("{name}: the kernel's"));
            }
            if mechanism(&below) != Consistency::Soft {
                recovered(&*below);
                let report = check_ext2(&*below).unwrap();
                assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
            } else if !is_whole {
                repaired(&scratch, &name, &below);
            }
            let now = blocks_of(&below);
            assert!(now == before || now == wanted, "{name}: {now} blocks");
            sizes.push(now == wanted);
            let below = if below.image().len() == bytes { below } else { larger(below.image(), bytes, 0) };
            grow(&*below, wanted, NOW).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(blocks_of(&below), wanted, "{name}");
            let report = check_ext2(&*below).unwrap();
            assert_eq!(report.total, 0, "{name}: {:#?}", report.findings);
            if cuts % (if is_thorough() { 10 } else { 3 }) == 0 || is_whole {
                e2fsck_is_content(&scratch, &name, &below.image());
                let fs = mounted(&below, mechanism(&below));
                Tree::of(&fs).expect(&expected, &name);
                fs.unmount().unwrap();
            }
            cuts += 1;
            if is_whole {
                break;
            }
        }
    }
    println!("{cuts} cuts");
    assert!(sizes.contains(&false) && sizes.contains(&true));
}

/// Without a journal a cut leaves a volume that is not clean: a check is due, and finds nothing but what growing it has changed.
pub fn repaired(scratch: &Scratch, name: &str, device: &Arc<MemDevice>) {
    let path = scratch.path("repaired.img");
    std::fs::write(&path, device.image()).unwrap();
    let (code, said) = run("e2fsck", &["-fy", path.to_str().unwrap()]);
    assert!(code <= 1, "{name}: {said}");
    let image = std::fs::read(&path).unwrap();
    let block = |at: usize| u64::try_from(at).unwrap();
    for (at, part) in image.chunks(1024).enumerate() {
        let write = fstitch_core::BlockWrite {
            block: fstitch_core::BlockNo(block(at)),
            kind: fstitch_core::BlockKind::Data,
            data: part,
        };
        fstitch_core::BlockDevice::write(&**device, &[write]).unwrap();
    }
}
