//! A scrub compares every block in use once, whatever happens meanwhile, and names what is damaged.

use std::sync::Arc;

use fstitch_core::{
    BlockDevice, BlockKind, BlockNo, BlockRead, BlockWrite, FileSystem, MemDevice, XattrSetMode,
};
use fstitch_fs::waffle::layout::MapShape;
use fstitch_fs::waffle::layout::root::Root;
use fstitch_fs::waffle::{Damaged, Options, ScrubPart, Scrubbed, Waffle};

use crate::rig::{CALLER, file, made, made_with, mount, mount_with, noise, text};

/// A volume with two snapshots, a clone that has changed and one of its own, and what all of these have had.
fn populated(is_compressed: bool) -> Arc<MemDevice> {
    let device = made_with(2048, is_compressed);
    let fs = mount(&device);
    let dir = fs.mkdir(&CALLER, fs.root(), b"dir", 0o755).unwrap().attr.ino;
    for number in 0..200 {
        file(&fs, dir, &format!("a-name-that-takes-some-room-{number}"), &[7; 100]).unwrap();
    }
    let large = file(&fs, dir, "large", &text(900_000, 3)).unwrap();
    fs.setxattr(&CALLER, large, b"user.a", &[9; 6000], XattrSetMode::Set).unwrap();
    fs.make_snapshot(b"one").unwrap();
    fs.write(&CALLER, large, 300_000, &noise(90_000, 1)).unwrap();
    fs.unlink(&CALLER, dir, b"a-name-that-takes-some-room-7").unwrap();
    fs.make_snapshot(b"two").unwrap();
    fs.make_clone(b"one", b"other").unwrap();
    file(&fs, fs.root(), "late", &noise(70_000, 2)).unwrap();
    fs.unmount().unwrap();
    let fs = mount_with(&device, Options { tree: b"other".to_vec(), ..Options::default() }).unwrap();
    file(&fs, fs.root(), "mine", &noise(30_000, 4)).unwrap();
    fs.make_snapshot(b"of-other").unwrap();
    file(&fs, fs.root(), "more", &noise(5_000, 5)).unwrap();
    fs.unmount().unwrap();
    device
}

/// Scrubs all of a volume in parts of so many blocks, and does something after each.
fn scrub_with(fs: &Waffle, blocks: u64, mut between: impl FnMut()) -> ScrubPart {
    let mut all = ScrubPart::default();
    loop {
        let part = fs.scrub(all.next, blocks).unwrap();
        all.blocks += part.blocks;
        all.damaged.extend(part.damaged);
        all.next = part.next;
        if all.next.is_none() {
            return all;
        }
        between();
    }
}

fn scrub(fs: &Waffle) -> ScrubPart {
    scrub_with(fs, 1 << 14, || ())
}

/// Changes a byte of a block on the medium.
fn damage(device: &MemDevice, block: u64) {
    let mut bytes = vec![0; 4096];
    device.read(&mut [BlockRead { block: BlockNo(block), kind: BlockKind::Data, data: &mut bytes }]).unwrap();
    bytes[1234] ^= 4;
    device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: &bytes }]).unwrap();
}

/// The blocks that a scrub has to read: all in use, of the map those that count, and the root.
fn expected(device: &MemDevice) -> u64 {
    let root = Root::read(device).unwrap();
    let shape = MapShape::of(root.blocks);
    let map: u64 = shape.counts.iter().sum();
    root.blocks - root.free - shape.end + map + 1
}

#[test]
fn every_block_is_compared_once_in_parts_of_any_size() {
    for is_compressed in [false, true] {
        let device = populated(is_compressed);
        let fs = mount(&device);
        fs.sync().unwrap();
        let wanted = expected(&device);
        for blocks in [1, 7, 130, 1 << 14] {
            let all = scrub_with(&fs, blocks, || ());
            assert!(all.damaged.is_empty(), "{:?}", all.damaged);
            assert_eq!(all.blocks, wanted, "in parts of {blocks} blocks, compressed: {is_compressed}");
        }
    }
}

/// Whatever block is damaged behind the back of a mounted volume, that one is found, and no other one.
#[test]
fn damage_is_found_whatever_is_in_memory() {
    let device = populated(true);
    let fs = mount(&device);
    // All of it is in memory.
    assert_eq!(fs.scrub(None, 1 << 14).unwrap().damaged, []);
    let image = device.image();
    let root = Root::read(&*device).unwrap();
    let shape = MapShape::of(root.blocks);
    let (mut found, mut below) = (0, 0);
    for block in shape.end..root.blocks {
        damage(&device, block);
        let blocks: Vec<u64> = scrub(&fs).damaged.iter().map(|damaged| damaged.block).collect();
        assert!(blocks.is_empty() || blocks == [block], "block {block}: {blocks:?}");
        found += u64::from(!blocks.is_empty());
        let bytes = &image[usize::try_from(block).unwrap() * 4096..][..4096];
        device.write(&[BlockWrite { block: BlockNo(block), kind: BlockKind::Data, data: bytes }]).unwrap();
    }
    for place in std::iter::once(root.place()).chain(17..shape.end) {
        damage(&device, place);
        below += scrub(&fs).damaged.len();
        let bytes = &image[usize::try_from(place).unwrap() * 4096..][..4096];
        device.write(&[BlockWrite { block: BlockNo(place), kind: BlockKind::Data, data: bytes }]).unwrap();
    }
    let map: u64 = shape.counts.iter().sum();
    assert_eq!(found, expected(&device) - map - 1, "every block in use");
    assert_eq!(u64::try_from(below).unwrap(), map + 1, "the root and the map");
    assert_eq!(scrub(&fs).damaged, []);
}

#[test]
fn what_is_damaged_has_names() {
    let device = populated(false);
    let fs = mount(&device);
    let image = device.image();
    let (late, more) = (noise(70_000, 2), noise(5_000, 5));
    let place_of = |bytes: &[u8]| {
        let at = image.chunks(4096).position(|block| block[..64] == bytes[..64]).unwrap();
        u64::try_from(at).unwrap()
    };
    let of_snapshot = place_of(&text(900_000, 3)[75 * 4096..]);
    for block in [place_of(&late), place_of(&more), of_snapshot] {
        damage(&device, block);
    }
    let told: Vec<(Scrubbed, Vec<u8>)> = scrub(&fs)
        .damaged
        .into_iter()
        .map(|Damaged { what, mut paths, .. }| (what, paths.pop().unwrap_or_default()))
        .collect();
    let contents = |path: &[u8]| (Scrubbed::Contents, path.to_vec());
    assert_eq!(
        told,
        [contents(b"/.snapshots/one/dir/large"), contents(b"/late"), contents(b"(tree other)/more")]
    );
}

/// Files change, snapshots come and go, and nothing of it looks like damage; what was there all the time is found.
#[test]
fn a_volume_in_use_is_scrubbed() {
    let device = made(4096);
    let fs = mount(&device);
    for number in 0..40 {
        file(&fs, fs.root(), &format!("old{number}"), &noise(50_000, number)).unwrap();
    }
    fs.make_snapshot(b"first").unwrap();
    let image = device.image();
    let kept = noise(50_000, 33);
    let block = image.chunks(4096).position(|block| block[..64] == kept[8 * 4096..][..64]).unwrap();
    let block = u64::try_from(block).unwrap();
    for (is_damaged, is_removed) in [(false, false), (true, false), (true, true)] {
        if is_damaged && !is_removed {
            damage(&device, block);
        }
        let mut round = 0_u64;
        let all = scrub_with(&fs, 20, || {
            round += 1;
            let name = format!("new{}", round % 5);
            if let Err(error) = fs.unlink(&CALLER, fs.root(), name.as_bytes()) {
                assert_eq!(error.errno(), fstitch_core::Errno::NOENT);
            }
            file(&fs, fs.root(), &name, &noise(20_000, round)).unwrap();
            match round {
                3 => fs.make_snapshot(b"while").unwrap(),
                5 if is_removed => fs.remove_snapshot(b"first").unwrap(),
                9 => fs.remove_snapshot(b"while").unwrap(),
                _ if round.is_multiple_of(4) => fs.sync().unwrap(),
                _ => {}
            }
            assert!(round < 1000, "it ends");
        });
        assert!(round > 20, "it took {round} parts");
        let found: Vec<u64> = all.damaged.iter().map(|damaged| damaged.block).collect();
        assert_eq!(found, if is_damaged { vec![block] } else { vec![] }, "removed: {is_removed}");
    }
}
