//! `fsck` of damaged volumes: what leads to files comes back, and what is lost is told.

mod owners;
mod roots;
mod unread;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{FileKind, FileSystem, InodeNo, MemDevice, RepairMode, RepairOptions, Timestamp};
use fstitch_fs::waffle::layout::pointer::Ref;
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

/// Two bits of any block are changed: every file is there afterwards, under its name but for the one whose name has them, and whole but
/// for the one whose contents have them.
#[test]
fn one_damaged_block_takes_no_other_files_with_it() {
    for is_compressed in [false, true] {
        let image = if is_compressed { populated_with(true) } else { populated() };
        let before = files(&Arc::new(MemDevice::from_image(4096, image.clone())));
        let (mut whole, mut told) = (0, BTreeMap::<&str, u32>::new());
        let mut contents = 0;
        for number in used(&image) {
            if contents > 20 && contents % 8 != 0 {
                // One block of a large file is like the next one.
                contents += 1;
                continue;
            }
            for at in [0, 20, 1234, 4000] {
                let mut damaged = image.clone();
                block(&mut damaged, number).unwrap()[at] ^= 0x24;
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
                    // Another byte of contents is the same.
                    contents += 1;
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
        assert!(whole > 40, "{whole} of all that was damaged, and {told:?}");
    }
}

/// One bit of any block: that one is what the sum says, and all is as before, contents and snapshots as well.
#[test]
fn one_bit_is_restored() {
    for is_compressed in [false, true] {
        let image = if is_compressed { populated_with(true) } else { populated() };
        let root = Root::find(&image).unwrap().unwrap();
        let mut seed = fstitch_core::Seed::new(7);
        let all: Vec<u64> = used(&image).into_iter().filter(|_| seed.below(6) == 0).collect();
        assert!(all.len() > 20);
        for number in all.into_iter().chain([root.map.block, root.trees.root.block, root.place()]) {
            let mut damaged = image.clone();
            block(&mut damaged, number).unwrap()[usize::try_from(seed.below(4096)).unwrap()] ^=
                1 << seed.below(8);
            let (left, mended, device) = mend(damaged);
            assert!(left.is_empty() && mended == 1, "block {number}: {left:?}, {mended}");
            assert!(device.image() == image, "block {number}");
        }
    }
}

/// The same of a table of trees that has more blocks than one, without which no tree is found.
#[test]
fn one_bit_of_the_table_of_trees_is_restored() {
    let device = made(1024);
    let fs = mount(&device);
    file(&fs, fs.root(), "file", b"contents").unwrap();
    for number in 0..20 {
        fs.make_snapshot(format!("s{number}").as_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    let image = device.image();
    let root = Root::find(&image).unwrap().unwrap();
    assert_eq!(root.trees.height, 1);
    let node = root.trees.root.block;
    let leaf = Ref::slot(block(&mut image.clone(), node).unwrap(), 1).block;
    let mut damaged = image.clone();
    block(&mut damaged, node).unwrap()[7] ^= 2;
    block(&mut damaged, leaf).unwrap()[700] ^= 8;
    let (left, mended, device) = mend(damaged);
    assert!(left.is_empty() && mended == 2, "{left:?}, {mended}");
    assert!(device.image() == image);
}

/// The block of a device that begins with these bytes.
fn place_of(device: &MemDevice, bytes: &[u8]) -> u64 {
    let image = device.image();
    u64::try_from(image.chunks(4096).position(|block| block.starts_with(bytes)).unwrap()).unwrap()
}

/// The volume with a bit of a block changed.
fn flipped(device: &MemDevice, number: u64) -> Arc<MemDevice> {
    let mut image = device.image();
    block(&mut image, number).unwrap()[1234] ^= 0x24;
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
        for (at, mask) in [(8, 3), (9, 3), (40, 5)] {
            let mut damaged = image.clone();
            block(&mut damaged, number).unwrap()[at] ^= mask;
            let (left, changes, device) = mend(damaged);
            if changes == 0 {
                break;
            }
            mended += 1;
            assert!(
                left.iter().all(|(code, _)| *code != "block-moved"),
                "block {number}, byte {at}: {left:?}"
            );
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

/// Fills a block with what nothing can be made of.
fn ruined(image: &mut [u8], number: u64) {
    let bytes = block(image, number).unwrap();
    bytes
        .iter_mut()
        .zip(0_u8..=250)
        .for_each(|(byte, n)| *byte = byte.wrapping_mul(31).wrapping_add(n) ^ 0xa5);
}

/// A block of inodes that was written over another one: what that had is lost, and what the first one has stays its own.
#[test]
fn a_misdirected_block_of_inodes_takes_nothing_from_its_owner() {
    let image = populated();
    let before = files(&Arc::new(MemDevice::from_image(4096, image.clone())));
    let root = Root::find(&image).unwrap().unwrap();
    let at = usize::try_from(root.trees.root.block).unwrap() * 4096;
    let node = usize::try_from(Ref::read(&image[at..at + 4096], 40).block).unwrap() * 4096;
    let leaf = |n: usize| Ref::slot(&image[node..node + 4096], n).block;
    // Inodes 32 to 47, and those from 208 on, among which is the large file.
    let (lost, owner) = (leaf(2), leaf(13));
    let mut damaged = image.clone();
    let bytes = block(&mut damaged, owner).unwrap().to_vec();
    block(&mut damaged, lost).unwrap().copy_from_slice(&bytes);
    let (left, mended, device) = mend(damaged);
    assert!(left.is_empty() && mended > 0, "{left:?}");
    let after = files(&device);
    let whole = before.iter().filter(|(ino, _)| !(32..48).contains(*ino));
    assert!(whole.clone().count() > 100);
    for (ino, was) in whole {
        assert_eq!(after.get(ino).map(|is| &is.1), Some(&was.1), "inode {ino}");
    }
    for ino in 32..48 {
        // A short link or an empty file proves nothing of itself, and has nothing of anybody's.
        let is_bare =
            after.get(&ino).is_none_or(|(_, read)| read.as_ref().is_none_or(|read| read.len() < 10));
        assert!(is_bare, "inode {ino} has what is another one's");
    }
    mount(&device).unmount().unwrap();
    is_clean(&device);
}

/// Damage next to what a snapshot has is no reason why the snapshot should stay for ever.
#[test]
fn a_snapshot_beside_damage_can_be_removed() {
    let device = made(2048);
    let fs = mount(&device);
    let large = file(&fs, fs.root(), "large", &noise(900_000, 3)).unwrap();
    fs.make_snapshot(b"one").unwrap();
    fs.write(&CALLER, large, 0, &noise(4096, 5)).unwrap();
    fs.unmount().unwrap();
    let leaf = place_of(&device, &noise(4096, 5));
    let device = flipped(&device, place_of(&device, &leaf.to_le_bytes()));
    let fs = mount(&device);
    fs.remove_snapshot(b"one").unwrap();
    fs.unmount().unwrap();
    let fs = mount(&device);
    assert!(fs.snapshots().is_empty());
    fs.unlink(&CALLER, fs.root(), b"large").unwrap();
    fs.unmount().unwrap();
    let (left, _, device) = mend(device.image());
    assert!(left.is_empty(), "{left:?}");
    assert!(Root::read(&*device).unwrap().free > 1900);
}

/// A directory in a directory, both of which have lost their names: what is in them keeps its own.
#[test]
fn nameless_directories_keep_what_they_have() {
    let device = made(1024);
    let fs = mount(&device);
    let inner = fs.mkdir(&CALLER, fs.root(), b"inner", 0o755).unwrap().attr.ino;
    let outer = fs.mkdir(&CALLER, fs.root(), b"outer", 0o755).unwrap().attr.ino;
    assert!(inner < outer);
    file(&fs, inner, "in-inner", b"inner").unwrap();
    file(&fs, fs.root(), "top", b"top").unwrap();
    fs.rename(&CALLER, (fs.root(), b"inner"), (outer, b"inner"), fstitch_core::RenameMode::Replace).unwrap();
    fs.unmount().unwrap();
    let mut image = device.image();
    for dir in [fs.root(), outer] {
        let head = [&b"WFDR"[..]].concat();
        let is_leaf = |block: &[u8]| block.starts_with(&head) && block[8..16] == dir.get().to_le_bytes();
        let all: Vec<u64> = used(&image)
            .into_iter()
            .filter(|&number| is_leaf(block(&mut image.clone(), number).unwrap()))
            .collect();
        assert_eq!(all.len(), 1);
        ruined(&mut image, all[0]);
    }
    let (left, mended, device) = mend(image);
    assert!(left.is_empty() && mended > 0, "{left:?}");
    let after = files(&device);
    let path = |ino: InodeNo| String::from_utf8_lossy(&after[&ino.get()].0).into_owned();
    assert_eq!(path(outer), format!("/lost+found/#{outer}"));
    assert_eq!(path(inner), format!("/lost+found/#{inner}"));
    assert!(
        after.values().any(|(path, read)| path.ends_with(b"/in-inner") && read.as_deref() == Some(b"inner"))
    );
}

/// A map of which nothing can be read says nothing is free as long as a node is unread.
#[test]
fn a_lost_map_frees_nothing_that_is_unread() {
    let device = made(40_000);
    let fs = mount(&device);
    let contents = noise(2_000_000, 3);
    file(&fs, fs.root(), "large", &contents).unwrap();
    file(&fs, fs.root(), "small", b"small").unwrap();
    fs.unmount().unwrap();
    let mut image = device.image();
    let leaf = place_of(&device, &contents[..4096]);
    ruined(&mut image, place_of(&device, &leaf.to_le_bytes()));
    let top = Root::read(&*device).unwrap().map.block;
    ruined(&mut image, top);
    // There is no room to say so: all of the first region is in use as far as anybody knows.
    let (left, _, device) = mend(image);
    assert!(!left.is_empty());
    // If it can be mounted all the same, who takes all that there is does not get it.
    if let Ok(fs) = mount_with(&device, Options::default()) {
        let more = |no| file(&fs, fs.root(), &format!("more-{no}"), &noise(1 << 20, no)).map(drop);
        let _ = (0..200).try_for_each(more);
        let _ = fs.unmount();
    }
    let image = device.image();
    for block in contents.chunks_exact(4096) {
        assert!(image.chunks(4096).any(|there| there == block), "a block of the file was given away");
    }
}

/// Numbers of inodes that nobody can have need no memory.
#[test]
fn an_end_of_inodes_far_away_is_left() {
    let image = populated();
    let root = Root::find(&image).unwrap().unwrap();
    for end in [1_u64 << 39, 1 << 20] {
        let mut damaged = image.clone();
        block(&mut damaged, root.trees.root.block).unwrap()[72..80].copy_from_slice(&end.to_le_bytes());
        believed(&mut damaged);
        let (left, _, _) = mend(damaged);
        assert!(!left.is_empty());
    }
    // One that is too low is raised: the inodes behind it are there.
    let mut damaged = image;
    block(&mut damaged, root.trees.root.block).unwrap()[72..80].copy_from_slice(&100_u64.to_le_bytes());
    block(&mut damaged, root.trees.root.block).unwrap()[80..96].fill(0);
    believed(&mut damaged);
    let (left, mended, _) = mend(damaged);
    assert!(left.is_empty() && mended > 0, "{left:?}");
}

/// A name that is damaged is none: its file gets another one, and no file has a name that nobody gave it.
#[test]
fn a_damaged_name_is_not_believed() {
    let image = populated();
    let name = b"a-name-that-takes-some-room-100";
    let mut damaged = image.clone();
    let mut changed = 0;
    for number in used(&image) {
        let bytes = block(&mut damaged, number).unwrap();
        if let Some(at) = bytes.windows(name.len()).position(|window| window == name) {
            bytes[at] = b'A';
            bytes[at + 2] = b'N';
            changed += 1;
        }
    }
    assert_eq!(changed, 1);
    let before = files(&Arc::new(MemDevice::from_image(4096, image)));
    let (left, mended, device) = mend(damaged);
    assert!(left.is_empty() && mended > 0, "{left:?}");
    let after = files(&device);
    let lost = after.iter().filter(|(ino, (path, _))| before.get(*ino).is_some_and(|(was, _)| was != path));
    let lost: Vec<String> = lost.map(|(_, (path, _))| String::from_utf8_lossy(path).into_owned()).collect();
    assert!(lost.len() == 1 && lost[0].starts_with("/lost+found/#"), "{lost:?}");
}

/// A node and a block below it are both damaged: what proves nothing of itself is not taken for right.
#[test]
fn what_proves_nothing_is_not_believed() {
    let image = populated();
    let before = files(&Arc::new(MemDevice::from_image(4096, image.clone())));
    let root = Root::find(&image).unwrap().unwrap();
    let at = usize::try_from(root.trees.root.block).unwrap() * 4096;
    let node = Ref::read(&image[at..at + 4096], 40).block;
    let slots = usize::try_from(node).unwrap() * 4096;
    let leaf = Ref::slot(&image[slots..slots + 4096], 2).block;
    let mut damaged = image;
    ruined(&mut damaged, leaf);
    block(&mut damaged, node).unwrap()[3000] ^= 0x24;
    let (left, mended, device) = mend(damaged);
    assert!(left.is_empty() && mended > 0, "{left:?}");
    let after = files(&device);
    for (ino, was) in before.iter().filter(|(ino, _)| !(32..48).contains(*ino)) {
        assert_eq!(after.get(ino).map(|is| &is.1), Some(&was.1), "inode {ino}");
    }
}
