//! Where things are put, and what comes back after something else was there.
//!
//! What it prevents: volumes that fill up with blocks of which little is used, numbers that are taken for those of their earlier lives, names
//! that are found where they were.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, Caller, Errno, FileKind, FileSystem, InodeNo, MemDevice, RenameMode, RepairMode, SetAttr,
    SetTime, Timestamp, XattrSetMode,
};
use fstitch_fs::ufs::Ufs;
use fstitch_fs::ufs::layout::superblock::Version;
use fstitch_fs::ufs::mkfs::{MkfsOptions, mkfs};
use fstitch_fs::ufs::order::Order;
use fstitch_fs::uhfs::{LowLevelFs, Uhfs};

use super::damage::Image;
use super::repair::repaired;
use super::written::writable;
use super::{checked, opened};

/// A new volume of 8 MiB, in blocks of 4 KiB and fragments of 512 bytes.
fn made(version: Version, order: Order) -> Arc<MemDevice> {
    let mut options = MkfsOptions::new(version, [7, 9], Timestamp { secs: 1_700_000_000, nanos: 0 });
    (options.block_size, options.fragment_size, options.order) = (Some(4096), Some(512), order);
    let device = MemDevice::new(512, 16_384);
    mkfs(&device, &options, &mut |_, _| {}).unwrap();
    Arc::new(device)
}

fn mounted(medium: &Arc<MemDevice>) -> Uhfs<Ufs> {
    writable(Arc::<MemDevice>::clone(medium) as Arc<dyn BlockDevice>)
}

fn file(fs: &Uhfs<Ufs>, dir: InodeNo, name: &str) -> InodeNo {
    let mode = FileKind::Regular.mode_bits() | 0o666;
    fs.mknod(&Caller::default(), dir, name.as_bytes(), mode, 0).unwrap().attr.ino
}

#[test]
fn ends_of_files_share_blocks_and_the_reserve_is_the_superusers() {
    let medium = made(Version::Two, Order::Little);
    let fs = mounted(&medium);
    let place = |ino: InodeNo| {
        let inode = fs.format().load(ino).unwrap();
        fs.format().map(&inode, 0, 1).unwrap().start.unwrap().get()
    };
    // The first blocks of contents, which are free again below.
    let early = file(&fs, fs.root(), "early");
    for block in 0..40 {
        fs.write(&Caller::default(), early, block * 4096, &[b'e'; 4096]).unwrap();
    }
    let small: Vec<u64> = (0..16)
        .map(|no| {
            let ino = file(&fs, fs.root(), &format!("small-{no}"));
            fs.write(&Caller::default(), ino, 0, &[b's'; 100]).unwrap();
            place(ino)
        })
        .collect();
    let mut blocks: Vec<u64> = small.iter().map(|at| at / 8).collect();
    blocks.dedup();
    assert!(blocks.len() <= 3, "{small:?}");
    // Also where whole blocks are free before: those stay whole.
    let late = file(&fs, fs.root(), "late");
    fs.write(&Caller::default(), late, 0, &[b's'; 100]).unwrap();
    let partly = place(late) / 8;
    fs.unlink(&Caller::default(), fs.root(), b"early").unwrap();
    fs.forget(early, 1);
    fs.sync().unwrap();
    let last = file(&fs, fs.root(), "last");
    fs.write(&Caller::default(), last, 0, &[b's'; 100]).unwrap();
    assert_eq!(place(last) / 8, partly);
    let long = file(&fs, fs.root(), "long");
    let user = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let fill = |caller: &Caller| {
        let mut at = fs.getattr(long).unwrap().size;
        loop {
            match fs.write(caller, long, at, &[b'l'; 4096]) {
                Ok(done) => at += u64::try_from(done).unwrap(),
                Err(error) => break assert_eq!(error.errno(), Errno::NOSPC),
            }
        }
    };
    fill(&user);
    let left = fs.statfs().unwrap();
    let kept = fs.format().superblock().kept_fragments();
    assert!(left.blocks_free >= kept && left.blocks_free <= kept + 16, "{left:?}, {kept} kept");
    fill(&Caller::default());
    assert!(fs.statfs().unwrap().blocks_free < 16);
    fs.unmount().unwrap();
    assert!(checked(&medium.image()).unwrap().is_clean());
}

/// Where the first fragment of a file is.
fn place(fs: &Uhfs<Ufs>, ino: InodeNo) -> u64 {
    let inode = fs.format().load(ino).unwrap();
    fs.format().map(&inode, 0, 1).unwrap().start.unwrap().get()
}

#[test]
fn what_is_written_together_lies_together_while_there_are_enough_whole_blocks() {
    let medium = made(Version::Two, Order::Little);
    let (fs, caller) = (mounted(&medium), Caller::default());
    let write = |name: &str, len: usize| {
        let ino = file(&fs, fs.root(), name);
        fs.write(&caller, ino, 0, &vec![b'w'; len]).unwrap();
        ino
    };
    let early = place(&fs, write("early", 100)) / 8;
    // Whole blocks, one behind the other, until that one is far away; two of them have room for an end.
    let len = |no| if [60, 110].contains(&no) { 7 * 512 } else { 4096 };
    let blocks: Vec<u64> =
        (0..150).map(|no| place(&fs, write(&format!("whole-{no}"), len(no))) / 8).collect();
    assert!(blocks.windows(2).all(|pair| pair[1] == pair[0] + 1), "{blocks:?}");
    assert_eq!(place(&fs, write("nearby", 100)) / 8, blocks[110]);
    // What is nearby has not gone there: the next room is near that block, and far away.
    let here = place(&fs, write("here", 100)) / 8;
    assert_eq!(here, blocks[149] + 1, "room is left at {early} and {}, far away", blocks[60]);
    assert_eq!(place(&fs, write("beside", 100)) / 8, here);
    // What has more than a quarter of a block at once has one for itself, and grows there.
    let growing = write("growing", 3 * 512);
    let before = place(&fs, growing);
    assert_eq!(before % 8, 0);
    for no in 0..5 {
        write(&format!("small-{no}"), 100);
        fs.write(&caller, growing, (3 + no) * 512, &[b'w'; 512]).unwrap();
    }
    assert_eq!(place(&fs, growing), before, "it has grown in its place");
    // With few whole blocks left in its group, what is left of others is used wherever it is.
    let sb = fs.format().superblock();
    let group_blocks = u64::from(sb.group_fragments / sb.fragments_per_block());
    let mut newest = 0;
    for no in 0.. {
        newest = newest.max(place(&fs, write(&format!("more-{no}"), 4096)) / 8);
        if newest >= group_blocks * 15 / 16 {
            break;
        }
    }
    let last = place(&fs, write("last", 100)) / 8;
    assert!(last <= before / 8 && last + 64 < newest, "{last}, and not near {newest}");
    fs.unmount().unwrap();
    assert!(checked(&medium.image()).unwrap().is_clean());
}

/// The search for blocks that are used in part goes on where it was last.
#[test]
fn what_is_freed_behind_the_search_is_found_on_a_full_volume() {
    let medium = made(Version::Two, Order::Little);
    let (fs, caller) = (mounted(&medium), Caller::default());
    let write = |name: &str, len: usize| {
        let ino = file(&fs, fs.root(), name);
        (ino, fs.write(&caller, ino, 0, &vec![b'w'; len]))
    };
    let (early, done) = write("early", 100);
    done.unwrap();
    for no in 0..80 {
        write(&format!("whole-{no}"), 4096).1.unwrap();
    }
    let (late, done) = write("late", 100);
    done.unwrap();
    assert!(place(&fs, early) / 8 + 64 < place(&fs, late) / 8, "far behind it");
    let ends: Vec<InodeNo> = (0..200).map(|no| file(&fs, fs.root(), &format!("end-{no}"))).collect();
    let long = file(&fs, fs.root(), "long");
    let mut at = 0;
    while let Ok(done) = fs.write(&caller, long, at, &[b'l'; 4096]) {
        at += u64::try_from(done).unwrap();
    }
    let refused = ends.into_iter().find(|&ino| fs.write(&caller, ino, 0, &[b'w'; 100]).is_err());
    let refused = refused.expect("less room than that");
    assert_eq!(fs.statfs().unwrap().blocks_free, 0);
    fs.unlink(&caller, fs.root(), b"early").unwrap();
    fs.forget(early, 1);
    fs.sync().unwrap();
    assert_eq!(fs.write(&caller, refused, 0, &[b'w'; 100]).unwrap(), 100);
    fs.unmount().unwrap();
    assert!(checked(&medium.image()).unwrap().is_clean());
}

#[test]
fn a_file_cut_where_a_tree_begins_keeps_none_of_it() {
    for version in [Version::One, Version::Two] {
        let medium = made(version, Order::Little);
        let (fs, caller) = (mounted(&medium), Caller::default());
        // Pointers in a block of them; those of the inode reach twelve blocks.
        let pointers = if version == Version::One { 1024 } else { 512 };
        for (name, blocks, trees) in [("direct", 12, 0), ("single", 12 + pointers, 1)] {
            let ino = file(&fs, fs.root(), name);
            for block in 0..blocks + 2 {
                fs.write(&caller, ino, block * 4096, &[b'w'; 4096]).unwrap();
            }
            let set = SetAttr { size: Some(blocks * 4096), ..SetAttr::default() };
            fs.setattr(&caller, ino, &set).unwrap();
            assert_eq!(fs.getattr(ino).unwrap().blocks, (blocks + trees) * 8, "{name}");
        }
        fs.unmount().unwrap();
        assert!(checked(&medium.image()).unwrap().is_clean());
    }
}

#[test]
fn a_damaged_name_hides_no_other_however_often_they_are_looked_for() {
    let medium = made(Version::Two, Order::Little);
    let (fs, caller) = (mounted(&medium), Caller::default());
    // One within a fragment, and one that has an index from the start.
    for (name, count) in [("s", 40), ("l", 200)] {
        let dir = fs.mkdir(&caller, fs.root(), name.as_bytes(), 0o755).unwrap().attr.ino;
        for no in 0..count {
            file(&fs, dir, &format!("{name}{no:03}"));
        }
    }
    fs.unmount().unwrap();
    let mut image = medium.image();
    for name in [b"s020", b"l020"] {
        let at = image.windows(4).position(|bytes| bytes == name).unwrap();
        image[at + 1] = b'/';
    }
    let fs = mounted(&super::device(&image).unwrap());
    for (name, last) in [("s", "s039"), ("l", "l199")] {
        let dir = fs.lookup(fs.root(), name.as_bytes()).unwrap().attr.ino;
        for _ in 0..100 {
            fs.lookup(dir, last.as_bytes()).unwrap();
            assert_eq!(fs.lookup(dir, b"none").unwrap_err().errno(), Errno::NOENT);
        }
    }
    fs.mknod(&caller, fs.root(), b"new", FileKind::Regular.mode_bits() | 0o644, 0).unwrap();
    fs.sync().unwrap();
}

#[test]
fn room_of_names_is_used_again_and_they_are_not_found_any_more() {
    let medium = made(Version::One, Order::Big);
    let (fs, caller) = (mounted(&medium), Caller::default());
    let dir = fs.mkdir(&caller, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for no in 0..300 {
        file(&fs, dir, &format!("name-{no:03}"));
    }
    let size = |fs: &Uhfs<Ufs>| fs.getattr(dir).unwrap().size;
    let before = size(&fs);
    for no in 20..60 {
        fs.lookup(dir, format!("name-{no:03}").as_bytes()).map(|found| fs.forget(found.attr.ino, 1)).unwrap();
        fs.unlink(&caller, dir, format!("name-{no:03}").as_bytes()).unwrap();
    }
    // Names over the places of others: what an index still had of these would lead into the middle of one.
    for no in 0..6 {
        file(&fs, dir, &format!("{no}-{}", "\u{ff}".repeat(60)));
    }
    assert_eq!(size(&fs), before);
    for no in 0..300 {
        let found = fs.lookup(dir, format!("name-{no:03}").as_bytes());
        match (20..60).contains(&no) {
            true => assert_eq!(found.unwrap_err().errno(), Errno::NOENT, "{no}"),
            false => drop(found.unwrap()),
        }
    }
    fs.unmount().unwrap();
    assert!(checked(&medium.image()).unwrap().is_clean());
}

#[test]
fn a_number_has_another_generation_in_its_next_life() {
    for version in [Version::One, Version::Two] {
        let (medium, caller) = (made(version, Order::Little), Caller::default());
        let mut lives = Vec::new();
        for _ in 0..3 {
            let fs = mounted(&medium);
            // Some fragments of the table: the first of each is made with the others.
            let names: Vec<String> = (0..12).map(|no| format!("file-{no}")).collect();
            let made: Vec<InodeNo> = names.iter().map(|name| file(&fs, fs.root(), name)).collect();
            let generation = |&ino: &InodeNo| (ino, fs.getattr(ino).unwrap().generation);
            lives.push(made.iter().map(generation).collect::<Vec<_>>());
            for (name, &ino) in names.iter().zip(&made) {
                fs.unlink(&caller, fs.root(), name.as_bytes()).unwrap();
                fs.forget(ino, 1);
            }
            fs.unmount().unwrap();
        }
        for pair in lives.windows(2) {
            for (before, now) in pair[0].iter().zip(&pair[1]) {
                assert!(before.0 == now.0 && before.1 != now.1, "{lives:?}");
            }
        }
    }
}

#[test]
fn numbers_of_devices_are_those_of_the_bsds() {
    for order in [Order::Little, Order::Big] {
        let medium = made(Version::One, order);
        let (fs, caller) = (mounted(&medium), Caller::default());
        // Major number 5, minor number 0x1234, as Linux has them.
        let rdev = 0x34 | 5 << 8 | 0x12 << 20;
        let mode = FileKind::CharDevice.mode_bits() | 0o600;
        let ino = fs.mknod(&caller, fs.root(), b"device", mode, rdev).unwrap().attr.ino;
        assert_eq!(fs.getattr(ino).unwrap().rdev, rdev);
        fs.unmount().unwrap();
        let image = Image::new(medium.image());
        assert_eq!(image.word(image.slot(u32::try_from(ino.0).unwrap(), 0)), 0x0012_0534);
        let again = opened(&image.bytes).unwrap();
        assert_eq!(again.getattr(ino).unwrap().rdev, rdev);
    }
}

#[test]
fn attributes_take_two_blocks() {
    for order in [Order::Little, Order::Big] {
        let medium = made(Version::Two, order);
        let (fs, caller) = (mounted(&medium), Caller::default());
        let ino = file(&fs, fs.root(), "file");
        let free = |fs: &Uhfs<Ufs>| fs.statfs().unwrap().blocks_free;
        fs.sync().unwrap();
        let before = free(&fs);
        let value: Vec<u8> = (0..6000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
        for turn in 0..3_usize {
            fs.setxattr(&caller, ino, b"user.long", &value[turn..], XattrSetMode::Set).unwrap();
            assert_eq!(fs.getxattr(ino, b"user.long").unwrap(), value[turn..]);
        }
        assert_eq!(before - free(&fs), 12, "what the earlier values had is free");
        let no_room = fs.setxattr(&caller, ino, b"user.more", &value, XattrSetMode::Set);
        assert_eq!(no_room.unwrap_err().errno(), Errno::NOSPC);
        fs.unmount().unwrap();
        assert!(checked(&medium.image()).unwrap().is_clean());
        assert_eq!(opened(&medium.image()).unwrap().getxattr(ino, b"user.long").unwrap(), value[2..]);
        let fs = mounted(&medium);
        fs.unlink(&caller, fs.root(), b"file").unwrap();
        fs.unmount().unwrap();
        assert!(checked(&medium.image()).unwrap().is_clean());
    }
}

#[test]
fn a_name_in_lost_and_found_is_nobody_elses() {
    let medium = made(Version::Two, Order::Little);
    let (fs, caller) = (mounted(&medium), Caller::default());
    let found = fs.mkdir(&caller, fs.root(), b"lost+found", 0o700).unwrap().attr.ino;
    let victim = file(&fs, fs.root(), "victim");
    let name = format!("#{:08}", victim.0);
    let other = file(&fs, found, &name);
    for ino in [victim, other] {
        fs.write(&caller, ino, 0, &ino.0.to_le_bytes()).unwrap();
    }
    fs.unmount().unwrap();
    let mut image = Image::new(medium.image());
    let (entry, clean) = (image.entry(2, "victim"), image.superblock(209));
    image.put32(entry, 0);
    image.bytes[clean] = 0;
    let (mended, report) = repaired(&image.bytes, RepairMode::Preen);
    assert!(report.left.is_clean(), "{:#?}", report.left.findings);
    let fs = opened(&mended).unwrap();
    for (name, ino) in [(name.clone(), other), (format!("{name}.1"), victim)] {
        assert_eq!(fs.lookup(found, name.as_bytes()).unwrap().attr.ino, ino, "{name}");
    }
}

#[test]
fn a_file_over_all_groups_gives_all_back() {
    for version in [Version::One, Version::Two] {
        let medium = made(version, Order::Big);
        let (fs, caller) = (mounted(&medium), Caller::default());
        assert!(fs.format().superblock().groups > 1);
        let ino = file(&fs, fs.root(), "file");
        let free = fs.statfs().unwrap().blocks_free;
        let mut at = 0;
        while let Ok(done) = fs.write(&caller, ino, at, &[b'f'; 65_536]) {
            at += u64::try_from(done).unwrap();
        }
        fs.sync().unwrap();
        fs.unlink(&caller, fs.root(), b"file").unwrap();
        fs.forget(ino, 1);
        fs.unmount().unwrap();
        let report = checked(&medium.image()).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!(opened(&medium.image()).unwrap().statfs().unwrap().blocks_free, free);
    }
}

#[test]
fn holes_below_two_levels_and_ends_before_them() {
    for version in [Version::One, Version::Two] {
        let medium = made(version, Order::Little);
        let (fs, caller) = (mounted(&medium), Caller::default());
        let ino = file(&fs, fs.root(), "file");
        let pointers = u64::from(fs.format().superblock().pointers_per_block());
        // The first block behind the direct ones; one below two levels, with a hole of a whole block of pointers before it.
        let far = (12 + 2 * pointers + 5) * 4096;
        fs.write(&caller, ino, 12 * 4096, &[b'p'; 100]).unwrap();
        fs.write(&caller, ino, far, &[b'q'; 100]).unwrap();
        let mut byte = [1];
        for block in [
            11,
            13,
            12 + pointers - 1,
            12 + pointers + 3,
            12 + pointers + 7,
            12 + 2 * pointers,
            12 + 2 * pointers + 4,
        ] {
            assert_eq!(fs.read(ino, block * 4096, &mut byte).unwrap(), 1);
            assert_eq!(byte[0], 0, "block {block}");
            let inode = fs.format().load(ino).unwrap();
            let hole = fs.format().map(&inode, block * 8, u64::MAX / 2).unwrap();
            assert!(hole.start.is_none());
            let end = block * 8 + hole.count;
            let next = if block < 12 { 12 * 8 } else { far / 512 };
            assert!(end <= next, "block {block}: a hole until {end}, and contents at {next}");
        }
        // An end at the border of the trees: none is needed.
        for blocks in [12 + 2 * pointers, 12 + pointers, 13, 12] {
            let set = SetAttr { size: Some(blocks * 4096), ..Default::default() };
            fs.setattr(&caller, ino, &set).unwrap();
            fs.sync().unwrap();
            let report = fs.check().unwrap();
            assert_eq!(report.corrupt, 0, "{blocks} blocks: {:#?}", report.findings);
            let inode = fs.format().load(ino).unwrap();
            assert!(
                fs.format().map(&inode, (blocks - 1) * 8, 1).unwrap().start.is_some(),
                "it ends in a block"
            );
        }
        fs.unmount().unwrap();
        let report = checked(&medium.image()).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

#[test]
fn a_name_that_another_kind_replaces_has_that_kind() {
    for order in [Order::Little, Order::Big] {
        let medium = made(Version::Two, order);
        let (fs, caller) = (mounted(&medium), Caller::default());
        let root = fs.root();
        file(&fs, root, "file");
        fs.symlink(&caller, root, b"link", b"file").unwrap();
        fs.mkdir(&caller, root, b"dir", 0o755).unwrap();
        fs.rename(&caller, (root, b"file"), (root, b"link"), RenameMode::Replace).unwrap();
        fs.rename(&caller, (root, b"link"), (root, b"dir"), RenameMode::Exchange).unwrap();
        let mut kinds = Vec::new();
        fs.readdir(root, 0, &mut |entry| {
            kinds.push((entry.name.to_vec(), entry.kind));
            true
        })
        .unwrap();
        for (name, kind) in [("link", FileKind::Directory), ("dir", FileKind::Regular)] {
            assert_eq!(fs.lookup(root, name.as_bytes()).unwrap().attr.kind, kind);
            assert!(kinds.contains(&(name.as_bytes().to_vec(), Some(kind))), "{kinds:?}");
        }
        fs.unmount().unwrap();
        let report = checked(&medium.image()).unwrap();
        assert!(report.is_clean(), "{:#?}", report.findings);
    }
}

#[test]
fn times_that_ufs1_cannot_store_become_the_nearest_that_it_can() {
    let medium = made(Version::One, Order::Big);
    let (fs, caller) = (mounted(&medium), Caller::default());
    let ino = file(&fs, fs.root(), "file");
    for (secs, stored) in [(-3_000_000_000, i32::MIN), (3_000_000_000, i32::MAX), (-5, -5)] {
        let time = SetTime::At(Timestamp { secs, nanos: 0 });
        fs.setattr(&caller, ino, &SetAttr { mtime: Some(time), ..SetAttr::default() }).unwrap();
        fs.sync().unwrap();
        let image = Image::new(medium.image());
        let at = image.inode(u32::try_from(ino.0).unwrap()) + 24;
        assert_eq!(image.word(at).cast_signed(), stored);
    }
}

/// On a full volume a name goes wherever there is room for it, also where longer ones have looked in vain.
#[test]
fn a_short_name_finds_room_that_longer_ones_have_passed_by() {
    let device = made(Version::One, Order::Little);
    let fs = writable(Arc::clone(&device) as _);
    let (caller, root) = (Caller::default(), fs.root());
    let make = |name: &str| fs.mknod(&caller, root, name.as_bytes(), 0o100_644, 0).map(|made| made.attr.ino);
    make("ab").unwrap();
    // One fragment of 512 bytes: what is left of it takes the long name, and no short one behind that.
    let fillers: Vec<_> = (0..15).map(|no| make(&format!("a-name-of-19-bytes{no:x}")).unwrap()).collect();
    let mut end = 0;
    while fs.write(&caller, fillers[0], end, &[1; 65_536]).is_ok_and(|len| len > 0) {
        end += 65_536;
    }
    for &filler in &fillers {
        let mut at = if filler == fillers[0] { end } else { 0 };
        while fs.write(&caller, filler, at, &[1; 512]).is_ok() {
            at += 512;
        }
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, 0);
    fs.unlink(&caller, root, b"ab").unwrap();
    make(&"l".repeat(39)).unwrap();
    make("cd").unwrap();
    // A name that fits nowhere takes nothing away from others.
    assert_eq!(make("no-room-for-it").unwrap_err().errno(), Errno::NOSPC);
    fs.unlink(&caller, root, b"cd").unwrap();
    assert_eq!(make(&"m".repeat(60)).unwrap_err().errno(), Errno::NOSPC);
    make("ef").unwrap();
    fs.unmount().unwrap();
    assert!(checked(&device.image()).unwrap().is_clean());
}
