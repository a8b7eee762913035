//! `fsck` of damaged volumes: what leads to files comes back, and what is lost is told.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{FileKind, FileSystem, InodeNo, MemDevice, RepairMode, RepairOptions, Timestamp};
use fstitch_fs::waffle::{Options, Root, Waffle, check};

use crate::damage::{believed, block, populated, populated_with, used};
use crate::rig::{CALLER, contents, file, is_clean, made, mount, mount_with, names, noise};

/// What is left after mending, by its code, and how many changes it took. Mending again changes nothing.
pub fn mended(image: Vec<u8>) -> (Vec<(&'static str, String)>, u64) {
    let (left, mended, _) = mend(image);
    (left, mended)
}

/// The same with the volume.
pub fn mend(image: Vec<u8>) -> (Vec<(&'static str, String)>, u64, Arc<MemDevice>) {
    let device = Arc::new(MemDevice::from_image(4096, image));
    let options = RepairOptions { mode: RepairMode::Yes, now: Timestamp { secs: 5000, nanos: 0 } };
    let report = check::repair(Arc::clone(&device) as _, options).unwrap();
    let again = check::repair(Arc::clone(&device) as _, options).unwrap();
    assert_eq!(again.mended, 0, "mended twice: {:?} then {:?}", report.left.findings, again.left.findings);
    let left = report.left.findings.iter().map(|finding| (finding.code, finding.text.clone())).collect();
    (left, report.mended, device)
}

/// All files by their inodes: a path of each, and what is in it if that can be read.
fn files(device: &Arc<MemDevice>) -> BTreeMap<u64, (Vec<u8>, Option<Vec<u8>>)> {
    let fs = mount_with(device, Options { read_only: true, ..Options::default() }).unwrap();
    let mut files = BTreeMap::new();
    let mut open = vec![(fs.root(), Vec::new())];
    while let Some((dir, path)) = open.pop() {
        for name in names(&fs, dir) {
            let attr = fs.lookup(dir, &name).unwrap().attr;
            let path = [&path[..], b"/", &name].concat();
            if attr.kind == FileKind::Directory {
                open.push((attr.ino, path.clone()));
            }
            let read = if attr.kind == FileKind::Regular {
                contents(&fs, attr.ino).ok()
            } else {
                Some(target(&fs, attr.ino))
            };
            files.insert(attr.ino.get(), (path, read));
        }
    }
    files
}

fn target(fs: &Waffle, ino: InodeNo) -> Vec<u8> {
    fs.readlink(ino).unwrap_or_default()
}

/// A bit of any block is changed: every file is there afterwards, under its name but for the one whose name has the bit, and whole but
/// for the one whose contents have it.
#[test]
fn one_damaged_block_takes_no_other_files_with_it() {
    for is_compressed in [false, true] {
        let image = if is_compressed { populated_with(true) } else { populated() };
        let before = files(&Arc::new(MemDevice::from_image(4096, image.clone())));
        let (mut whole, mut told) = (0, BTreeMap::<&str, u32>::new());
        for number in used(&image) {
            for at in [0, 20, 1234, 4000] {
                let mut damaged = image.clone();
                block(&mut damaged, number).unwrap()[at] ^= 4;
                let (left, mended, device) = mend(damaged);
                for (code, _) in &left {
                    *told.entry(code).or_default() += 1;
                }
                if left.iter().any(|(code, _)| *code == "volume") {
                    // The one table without which nothing can be found.
                    assert_eq!(mended, 0);
                    continue;
                }
                whole += u32::from(left.is_empty());
                if mended == 0 && at == 20 {
                    // Contents: another bit of them is the same.
                    break;
                }
                let after = files(&device);
                let missing: Vec<&u64> = before.keys().filter(|ino| !after.contains_key(*ino)).collect();
                assert!(missing.len() <= 1, "block {number}: {missing:?}");
                let changed =
                    before.iter().filter(|(ino, (_, was))| after.get(*ino).is_some_and(|(_, is)| is != was));
                assert!(changed.count() <= 1, "block {number}");
                let renamed = after.iter().find(|(ino, (path, _))| {
                    let is_lost = path.starts_with(b"/lost+found");
                    !is_lost && before.get(*ino).is_none_or(|(was, _)| was != path)
                });
                assert_eq!(renamed, None, "block {number}: a name that was none");
                let moved = after.values().filter(|(path, _)| {
                    path.strip_prefix(b"/lost+found/").is_some_and(|name| !name.contains(&b'/'))
                });
                let moved = moved.count();
                // Byte 0 is in the place of a leaf with names, which nobody can find then.
                assert!(
                    moved <= 1 || at == 0,
                    "block {number}, byte {at}: {moved} files without names, {left:?}"
                );
            }
        }
        assert!(whole > 60, "{whole} of all that was damaged, and {told:?}");
    }
}

/// The block of a device that begins with these bytes.
fn place_of(device: &MemDevice, bytes: &[u8]) -> u64 {
    let image = device.image();
    u64::try_from(image.chunks(4096).position(|block| block.starts_with(bytes)).unwrap()).unwrap()
}

/// The volume with a bit of a block changed.
fn flipped(device: &MemDevice, number: u64) -> Arc<MemDevice> {
    let mut image = device.image();
    block(&mut image, number).unwrap()[1234] ^= 4;
    Arc::new(MemDevice::from_image(4096, image))
}

/// A file goes although the node above its contents is damaged; what was below is found to be nobody's, and is free when that is mended.
#[test]
fn a_file_with_a_damaged_node_can_be_removed() {
    let device = made(2048);
    let fs = mount(&device);
    file(&fs, fs.root(), "large", &noise(900_000, 3)).unwrap();
    file(&fs, fs.root(), "small", b"small").unwrap();
    fs.make_snapshot(b"one").unwrap();
    let late = file(&fs, fs.root(), "late", &noise(900_000, 4)).unwrap();
    fs.unmount().unwrap();
    let free = Root::read(&*device).unwrap().free;
    for (contents, of_snapshot) in [(3, true), (4, false)] {
        let leaf = place_of(&device, &noise(4096, contents));
        let device = flipped(&device, place_of(&device, &leaf.to_le_bytes()));
        let fs = mount(&device);
        if of_snapshot {
            fs.unlink(&CALLER, fs.root(), b"large").unwrap();
            fs.remove_snapshot(b"one").unwrap();
        } else {
            // Somebody has it open.
            let held = fs.lookup(fs.root(), b"late").unwrap().attr.ino;
            assert_eq!(held, late);
            fs.unlink(&CALLER, fs.root(), b"late").unwrap();
            fs.forget(held, 1);
        }
        fs.unmount().unwrap();
        let found = check::check(Arc::clone(&device) as _).unwrap();
        assert!(
            found.findings.iter().all(|finding| ["block-leaked", "map-more"].contains(&finding.code)),
            "{:#?}",
            found.findings
        );
        assert!(!found.is_clean());
        let (left, mended, device) = mend(device.image());
        assert!(left.is_empty() && mended > 0, "{left:?}");
        assert!(Root::read(&*device).unwrap().free > free + 200);
        assert_eq!(files(&device).len(), 2, "the others");
    }
}

/// A list of files without names that is damaged is no reason why the others should not be used.
#[test]
fn a_volume_with_a_damaged_list_of_orphans_is_mounted() {
    let mut image = populated();
    let device = Arc::new(MemDevice::from_image(4096, image.clone()));
    let records = Root::read(&*device).unwrap().trees.root.block;
    block(&mut image, records).unwrap()[88] = 17;
    believed(&mut image);
    let device = Arc::new(MemDevice::from_image(4096, image));
    let fs = mount(&device);
    file(&fs, fs.root(), "new", b"new").unwrap();
    fs.unmount().unwrap();
    let (left, mended, device) = mend(device.image());
    assert!(left.is_empty() && mended > 0, "{left:?}");
    // Those that had been unlinked go now.
    let fs = mount(&device);
    fs.unmount().unwrap();
    is_clean(&device);
}

/// Of a node that snapshots have as well, or have another one of, the head gets one that is right; whatever is done with that, the blocks
/// of the snapshots stay theirs.
#[test]
fn what_is_saved_from_a_node_is_no_snapshots() {
    let device = made(1024);
    let fs = mount(&device);
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for number in 0..200 {
        file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), &[7; 100]).unwrap();
    }
    fs.make_snapshot(b"one").unwrap();
    for number in 0..60 {
        file(&fs, dir, &format!("another-name-that-takes-room-{number}"), &[8; 100]).unwrap();
    }
    fs.unmount().unwrap();
    let image = device.image();
    let mut mended = 0;
    for number in used(&image) {
        // Generations of the first references of nodes, by much and by little.
        for (at, mask) in [(8, 1), (8, 2), (9, 1), (40, 1), (40, 2), (24, 1)] {
            let mut damaged = image.clone();
            block(&mut damaged, number).unwrap()[at] ^= mask;
            let (left, changes, device) = mend(damaged);
            if changes == 0 {
                break;
            }
            mended += 1;
            let Ok(fs) = mount_with(&device, Options::default()) else { panic!("block {number}: {left:?}") };
            let dir = fs.lookup(fs.root(), b"dir").or_else(|_| {
                let lost = fs.lookup(fs.root(), b"lost+found")?.attr.ino;
                fs.lookup(lost, format!("#{dir}").as_bytes())
            });
            let dir = dir.unwrap().attr.ino;
            for name in names(&fs, dir) {
                fs.unlink(&CALLER, dir, &name).unwrap();
            }
            fs.unmount().unwrap();
            let found = check::check(Arc::clone(&device) as _).unwrap();
            let taken = found.findings.iter().find(|finding| finding.code == "block-free-in-use");
            assert_eq!(taken, None, "block {number}, byte {at}");
        }
    }
    assert!(mended > 10, "{mended}");
}
