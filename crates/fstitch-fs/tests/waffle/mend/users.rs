//! A block that damaged references give several users, or that nobody could give up: whoever has it by right keeps it, and it becomes free
//! when they are gone.

use std::sync::Arc;

use fstitch_core::{Errno, Error, FileSystem, MemDevice};
use fstitch_fs::waffle::layout::inode::{INODE_BYTES, Slot};
use fstitch_fs::waffle::layout::pointer::Ref;
use fstitch_fs::waffle::layout::record::{RECORD_BYTES, Record};
use fstitch_fs::waffle::{Root, Waffle};

use super::{mend, place_of};
use crate::damage::{believed, believed_above, block, inode_of};
use crate::rig::{CALLER, contents, file, is_clean, made, mount, names, noise};

const FILE: u16 = 0x8000;
const DIRECTORY: u16 = 0x4000;
const BLOCK: usize = 4096;

fn bytes(image: &[u8], number: u64) -> &[u8] {
    &image[usize::try_from(number).unwrap() * BLOCK..][..BLOCK]
}

/// The contents' fork of the inode that has this many bytes or names.
fn top(image: &[u8], kind: u16, size: u64) -> Ref {
    let (leaf, byte) = inode_of(image, kind, size);
    Ref::read(bytes(image, leaf), byte + 96)
}

/// Takes whatever is free, so that nothing that somebody has is.
fn take_all(fs: &Waffle) -> Vec<String> {
    let name = |number: u64| format!("new-{number}");
    let made =
        (0..600).take_while(|&number| file(fs, fs.root(), &name(number), &noise(64_000, number)).is_ok());
    let mut names: Vec<String> = made.map(name).collect();
    // The last blocks.
    let rest = |number: &u64| file(fs, fs.root(), &name(*number), &noise(4000, *number)).is_ok();
    names.extend((600..640).take_while(rest).map(name));
    fs.sync().unwrap();
    names
}

/// Everything goes, and nothing is left behind.
fn emptied(device: &Arc<MemDevice>, what: &str) {
    let fs = mount(device);
    let mut open = vec![fs.root()];
    let mut dirs = Vec::new();
    while let Some(dir) = open.pop() {
        for name in names(&fs, dir) {
            let attr = fs.lookup(dir, &name).unwrap().attr;
            fs.forget(attr.ino, 1);
            if attr.kind == fstitch_core::FileKind::Directory {
                open.push(attr.ino);
                dirs.push((dir, name));
            } else {
                fs.unlink(&CALLER, dir, &name).unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
    for (dir, name) in dirs.into_iter().rev() {
        fs.rmdir(&CALLER, dir, &name).unwrap();
    }
    fs.unmount().unwrap();
    let found = fstitch_fs::waffle::check::check(Arc::clone(device) as _).unwrap();
    assert!(found.is_clean(), "{what}: {:#?}", found.findings);
}

/// A reference of generation 0 is older than everything that may be given up. What it leads to is what it says, so it gets a generation, and
/// the block becomes free with its last user.
#[test]
fn a_reference_of_no_generation_is_given_up_as_others_are() {
    let device = made(512);
    let fs = mount(&device);
    let one = file(&fs, fs.root(), "one", &noise(20_000, 1)).unwrap();
    fs.setxattr(&CALLER, one, b"user.a", &[9; 100], fstitch_core::XattrSetMode::Set).unwrap();
    let two = file(&fs, fs.root(), "two", b"").unwrap();
    assert_eq!(fs.share(&CALLER, (one, 0), (two, 0), 16_384).unwrap(), 16_384);
    file(&fs, fs.root(), "small", b"small").unwrap();
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for number in 0..120 {
        file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), b"x").unwrap();
    }
    fs.unmount().unwrap();
    is_clean(&device);
    let image = device.image();
    let root = Root::find(&image).unwrap().unwrap();
    let record = Record::decode(&bytes(&image, root.trees.root.block)[..RECORD_BYTES], 0);
    let inodes = record.unwrap().unwrap().inodes.root.block;
    let (leaf, byte) = inode_of(&image, FILE, 20_000);
    let (of_small, small) = inode_of(&image, FILE, 5);
    let (of_dir, dir) = inode_of(&image, DIRECTORY, 120);
    // Where the reference is.
    let planted = [
        ("a block of a file", top(&image, FILE, 20_000).block, 4 * 32),
        ("a block that files share, of the first one", top(&image, FILE, 20_000).block, 32),
        ("a block that files share, of the second one", top(&image, FILE, 16_384).block, 32),
        ("the only block of a file", of_small, small + 96),
        ("a node of a file", leaf, byte + 96),
        ("attributes", leaf, byte + 128),
        ("a block of a directory", top(&image, DIRECTORY, 120).block, 32),
        ("a node of a directory", of_dir, dir + 96),
        ("a block of inodes", inodes, 32),
        ("a node of inodes", root.trees.root.block, 40),
    ];
    for (what, number, at) in planted {
        let mut damaged = image.clone();
        let reference = Ref::read(bytes(&damaged, number), at);
        assert!(!reference.is_none() && reference.birth > 0, "{what}");
        Ref { birth: 0, ..reference }.write(block(&mut damaged, number).unwrap(), at);
        believed(&mut damaged);
        let (left, mended, device) = mend(damaged);
        assert!(left.is_empty() && mended > 0, "{what}: {left:?}");
        let fs = mount(&device);
        for (name, len) in [("one", 20_000), ("two", 16_384)] {
            let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
            assert!(contents(&fs, ino).unwrap() == noise(20_000, 1)[..len], "{what}: {name}");
        }
        fs.unmount().unwrap();
        emptied(&device, what);
    }
}

/// A file that has a block of a directory as its own is told, whichever of them is met first; when the directory changes, the file keeps
/// what it has.
#[test]
fn a_block_of_a_file_and_of_something_else_is_told_and_stays() {
    let device = made(512);
    let fs = mount(&device);
    file(&fs, fs.root(), "early", &noise(9000, 1)).unwrap();
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for number in 0..120 {
        file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), b"x").unwrap();
    }
    file(&fs, fs.root(), "late", &noise(10_000, 2)).unwrap();
    fs.unmount().unwrap();
    let image = device.image();
    let root = Root::find(&image).unwrap().unwrap();
    let record = Record::decode(&bytes(&image, root.trees.root.block)[..RECORD_BYTES], 0);
    let of_inodes = Ref::slot(bytes(&image, record.unwrap().unwrap().inodes.root.block), 3);
    let names_above = top(&image, DIRECTORY, 120);
    let of_names = Ref::slot(bytes(&image, names_above.block), 1);
    for (name, size) in [("early", 9000), ("late", 10_000)] {
        for (what, target) in [("names", of_names), ("a node", names_above), ("inodes", of_inodes)] {
            let mut damaged = image.clone();
            let node = top(&image, FILE, size).block;
            target.write(block(&mut damaged, node).unwrap(), 0);
            believed(&mut damaged);
            let (left, _, device) = mend(damaged);
            let codes: Vec<&str> = left.iter().map(|(code, _)| *code).collect();
            assert_eq!(codes, ["block-used-twice"], "{name} has {what}: {left:?}");
            let fs = mount(&device);
            let ino = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
            let read = contents(&fs, ino).unwrap();
            assert!(read[..BLOCK] == *bytes(&image, target.block), "{name} has {what}");
            let dir = fs.lookup(fs.root(), b"dir").unwrap().attr.ino;
            for number in 0..60 {
                let name = format!("a-name-that-takes-some-room-{number}");
                fs.unlink(&CALLER, dir, name.as_bytes()).unwrap();
            }
            fs.sync().unwrap();
            take_all(&fs);
            assert!(contents(&fs, ino).is_ok_and(|now| now == read), "{name} has {what}");
            fs.unmount().unwrap();
        }
    }
}

/// Whoever of many users goes, the others keep what they have, and what is below it.
#[test]
fn a_block_of_many_users_goes_with_the_last_one() {
    let device = made(512);
    let fs = mount(&device);
    // The one that has the node as its contents is met first, or last.
    file(&fs, fs.root(), "first", &noise(13_000, 7)).unwrap();
    for number in 0..4 {
        file(&fs, fs.root(), &format!("of-{number}"), &noise(9000 + number * 100, 1)).unwrap();
    }
    file(&fs, fs.root(), "last", &noise(14_000, 8)).unwrap();
    fs.unmount().unwrap();
    let image = device.image();
    let shared = top(&image, FILE, 9000);
    for (name, size) in [("first", 13_000), ("last", 14_000), ("", 0)] {
        let mut damaged = image.clone();
        for number in 1..4 {
            let (leaf, byte) = inode_of(&image, FILE, 9000 + number * 100);
            shared.write(block(&mut damaged, leaf).unwrap(), byte + 96);
        }
        if size > 0 {
            shared.write(block(&mut damaged, top(&image, FILE, size).block).unwrap(), 0);
        }
        believed(&mut damaged);
        let (left, _, device) = mend(damaged);
        assert!(!left.is_empty(), "{name}");
        assert!(left.iter().all(|(code, _)| *code == "block-used-twice"), "{name}: {left:?}");
        // What is in memory tells nothing: a mount that has seen none of it reads.
        let read = |name: &str| {
            let fs = mount(&device);
            let read = contents(&fs, fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino);
            fs.unmount().unwrap();
            read
        };
        let names: Vec<String> = (0..4).map(|number| format!("of-{number}")).collect();
        let of_files: Vec<Vec<u8>> = names.iter().map(|name| read(name).unwrap()).collect();
        for contents in &of_files {
            assert!(contents[..9000] == of_files[0][..9000], "{name}");
        }
        let of_block = (size > 0).then(|| read(name).unwrap());
        // Each of these leaves those before it what they have.
        for (at, gone) in names.iter().enumerate().rev() {
            let fs = mount(&device);
            fs.unlink(&CALLER, fs.root(), gone.as_bytes()).unwrap();
            fs.sync().unwrap();
            let taken = take_all(&fs);
            fs.unmount().unwrap();
            for (other, was) in names.iter().zip(&of_files).take(at) {
                assert!(read(other).is_ok_and(|now| now == *was), "{name}: {other} without {gone}");
            }
            if let Some(was) = &of_block {
                assert!(read(name).is_ok_and(|now| now == *was), "{name} without {gone}");
            }
            let fs = mount(&device);
            for new in taken {
                fs.unlink(&CALLER, fs.root(), new.as_bytes()).unwrap();
            }
            fs.unmount().unwrap();
        }
        // What nobody counted has no users now, and a check says so.
        let (left, _, device) = mend(device.image());
        assert_eq!(left, [], "{name}");
        emptied(&device, name);
    }
}

/// Files that share blocks of three leaves of counts, beside another one.
fn with_counts() -> Arc<MemDevice> {
    const LEN: usize = 10 << 20;
    let device = made(8192);
    let fs = mount(&device);
    file(&fs, fs.root(), "victim", &noise(9000, 7)).unwrap();
    let one = file(&fs, fs.root(), "one", &noise(LEN, 1)).unwrap();
    let two = file(&fs, fs.root(), "two", b"").unwrap();
    let len = u64::try_from(LEN).unwrap();
    assert_eq!(fs.share(&CALLER, (one, 0), (two, 0), len).unwrap(), len);
    fs.unmount().unwrap();
    device
}

/// A count has an end before the number that says that nobody has counted.
#[test]
fn more_references_than_can_be_counted_are_refused() {
    let mut image = with_counts().image();
    let top = Root::find(&image).unwrap().unwrap().shared.root.block;
    let leaves: Vec<Ref> = (0..8).map(|leaf| Ref::slot(bytes(&image, top), leaf)).collect();
    for leaf in leaves.iter().filter(|leaf| !leaf.is_none()) {
        let counts = block(&mut image, leaf.block).unwrap().chunks_exact_mut(4);
        counts
            .filter(|count| count[0] == 1)
            .for_each(|count| count.copy_from_slice(&[0xfe, 0xff, 0xff, 0xff]));
    }
    believed(&mut image);
    let fs = mount(&Arc::new(MemDevice::from_image(4096, image)));
    let one = fs.lookup(fs.root(), b"one").unwrap().attr.ino;
    let three = file(&fs, fs.root(), "three", b"").unwrap();
    match fs.share(&CALLER, (one, 0), (three, 0), 4096) {
        Err(Error::Errno(errno)) => assert_eq!(errno, Errno::MLINK),
        other => panic!("{other:?}"),
    }
}

/// Counts that cannot be known end no commit, and are made anew from what is there.
#[test]
fn damaged_counts_are_made_anew_and_end_no_commit() {
    let image = with_counts().image();
    let root = Root::find(&image).unwrap().unwrap();
    let leaves: Vec<u64> = (0..8)
        .map(|leaf| Ref::slot(bytes(&image, root.shared.root.block), leaf))
        .filter(|leaf| !leaf.is_none())
        .map(|leaf| leaf.block)
        .collect();
    assert!(leaves.len() > 2, "{leaves:?}");
    let mut all = vec![leaves.clone(), vec![root.shared.root.block]];
    all.extend(leaves.iter().map(|&leaf| vec![leaf]));
    for damaged in all {
        let mut image = image.clone();
        damaged.iter().for_each(|&leaf| block(&mut image, leaf).unwrap().fill(0x5a));
        let (left, mended, device) = mend(image.clone());
        assert!(left.is_empty() && mended > 0, "{damaged:?}: {left:?}");
        emptied(&device, "counts");
        let device = Arc::new(MemDevice::from_image(4096, image));
        let fs = mount(&device);
        for number in 0..40 {
            // What would give up blocks of which nobody knows who has them fails.
            let _ = file(&fs, fs.root(), &format!("new-{number}"), &noise(200_000, number));
            fs.sync().unwrap_or_else(|error| panic!("{damaged:?}: {error}"));
        }
        let one = fs.lookup(fs.root(), b"one").unwrap().attr.ino;
        assert!(contents(&fs, one).unwrap() == noise(10 << 20, 1), "{damaged:?}");
        fs.unmount().unwrap();
        let (left, _, device) = mend(device.image());
        assert_eq!(left, [], "{damaged:?}");
        emptied(&device, "counts");
    }
}

/// A file that has a block of the table of shared blocks keeps what it has when the table changes.
#[test]
fn a_block_of_a_table_is_not_given_up_while_a_file_has_it() {
    const COUNTS: u64 = 1024;
    let device = with_counts();
    let mut image = device.image();
    let table = Root::find(&image).unwrap().unwrap().shared;
    assert_eq!(table.height, 1);
    // Mending changes the leaf with the count of the block that has two users: not this one.
    let leaves =
        (0..4).map(|leaf| (leaf, Ref::slot(bytes(&image, table.root.block), usize::try_from(leaf).unwrap())));
    let (_, target) =
        leaves.into_iter().find(|(leaf, found)| !found.is_none() && found.block / COUNTS != *leaf).unwrap();
    target.write(block(&mut image, top(&device.image(), FILE, 9000).block).unwrap(), 0);
    believed(&mut image);
    let (left, _, device) = mend(image);
    let codes: Vec<&str> = left.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, ["block-used-twice"], "{left:?}");
    let fs = mount(&device);
    let read = || contents(&fs, fs.lookup(fs.root(), b"victim").unwrap().attr.ino);
    let was = read().unwrap();
    fs.unlink(&CALLER, fs.root(), b"two").unwrap();
    fs.unmount().unwrap();
    let fs = mount(&device);
    take_all(&fs);
    fs.unmount().unwrap();
    // What is in memory tells nothing.
    let fs = mount(&device);
    let now = contents(&fs, fs.lookup(fs.root(), b"victim").unwrap().attr.ino);
    assert!(now.is_ok_and(|now| now == was));
    fs.unlink(&CALLER, fs.root(), b"victim").unwrap();
    fs.unmount().unwrap();
    let (left, _, device) = mend(device.image());
    assert_eq!(left, []);
    emptied(&device, "a table");
}

/// A reference that leads to another file's block, but for one bit what it says: nobody writes there what it should be, and it is told
/// whichever of the files is met first.
#[test]
fn a_block_that_is_nearly_what_another_file_had_stays_its_owners() {
    let device = made(512);
    let fs = mount(&device);
    for (name, byte, len) in [("early", b'x', 100), ("late", b'y', 100)] {
        let bytes = [&[byte][..], &vec![b'.'; len - 1]].concat();
        file(&fs, fs.root(), name, &bytes).unwrap();
    }
    fs.unmount().unwrap();
    let image = device.image();
    let place = |byte: u8| place_of(&device, &[byte, b'.', b'.']);
    let (x, y) = (place(b'x'), place(b'y'));
    for (name, other, from, to) in [("early", "late", x, y), ("late", "early", y, x)] {
        let mut damaged = image.clone();
        let (leaf, byte) = inode_at(&image, from);
        let reference = Ref::read(bytes(&image, leaf), byte);
        Ref { block: to, ..reference }.write(block(&mut damaged, leaf).unwrap(), byte);
        believed_above(&mut damaged);
        let (left, _, device) = mend(damaged);
        assert!(left.iter().any(|(code, _)| *code == "block-damaged"), "{name}: {left:?}");
        let fs = mount(&device);
        let read = |name: &str| contents(&fs, fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino);
        assert!(read(other).unwrap() == bytes(&image, to)[..100], "{other}");
        assert!(matches!(read(name), Err(Error::Corrupt(_))), "{name}");
        fs.unmount().unwrap();
    }
}

/// Where the inode is whose only block of contents is this one: its block, and the byte of its reference there.
fn inode_at(image: &[u8], wanted: u64) -> (u64, usize) {
    let (leaf, _) = inode_of(image, FILE, 100);
    let is_it = |byte: &usize| {
        let found = Slot::decode(&bytes(image, leaf)[*byte..*byte + INODE_BYTES], 1);
        matches!(found, Ok(Slot::Used(inode)) if inode.data.root.block == wanted)
    };
    let byte = (0..16).map(|slot| slot * INODE_BYTES).find(is_it).unwrap();
    (leaf, byte + 96)
}
