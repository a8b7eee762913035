//! The checker finds what it says that it looks for: each kind of damage, made behind the file system's back.
//!
//! What it prevents: a checker that finds nothing because it does not look.

use crate::support::{CALLER, Medium, check, create, mkdir};
use fstitch_core::FileSystem;
use fstitch_lld::{At, Disk, ListId};

const ROOT: ListId = 2;
const KEPT: ListId = 3;

/// The lists of a file and of a directory in the root.
struct Made {
    file: ListId,
    dir: ListId,
}

/// What the checker finds in a volume that somebody damaged.
fn found(damage: impl FnOnce(&Disk, &Made)) -> Vec<&'static str> {
    let medium = Medium::new(1024, 16 << 20);
    let fs = medium.mount();
    let file = create(&fs, fs.root(), b"file");
    fs.write(&CALLER, file, 0, &[1; 5000]).unwrap();
    let dir = mkdir(&fs, fs.root(), b"dir");
    create(&fs, dir, b"inner");
    check(&fs);
    fs.unmount().unwrap();
    drop(fs);
    let fs = medium.mount();
    damage(fs.disk(), &Made { file: file.get(), dir: dir.get() });
    fs.disk().flush().unwrap();
    let mut options = crate::support::options();
    options.read_only = true;
    let fs = medium.mount_with(options).unwrap();
    fs.check().unwrap().findings.iter().map(|finding| finding.code).collect()
}

/// Changes bytes of a block.
fn edit(disk: &Disk, list: ListId, position: u64, how: impl FnOnce(&mut [u8])) {
    let block = disk.block_at(list, position).unwrap().unwrap();
    let mut bytes = vec![0; disk.block_size()];
    disk.read(block, &mut bytes).unwrap();
    how(&mut bytes);
    disk.write(block, &bytes).unwrap();
}

/// Nobody asks for the number.
fn ignore(_: u64) {}

/// The first leaf of a directory.
fn leaf(disk: &Disk, list: ListId) -> u64 {
    disk.next_at(list, 1).unwrap().unwrap().0
}

#[test]
fn each_kind_of_damage_has_its_name() {
    assert_eq!(found(|_, _| ()), [""; 0]);
    assert_eq!(found(|disk, _| ignore(disk.new_list(true).unwrap())), ["list-of-nobody"]);
    assert_eq!(found(|disk, made| edit(disk, made.file, 0, |bytes| bytes[8] = 7)), ["link-count"]);
    assert_eq!(
        found(|disk, made| edit(disk, made.file, 0, |bytes| bytes[0] = 0)),
        ["unreadable", "dangling-name"]
    );
    assert_eq!(
        found(|disk, made| ignore(disk.new_block(made.file, At::Position(1000)).unwrap())),
        ["block-behind-end"]
    );
    assert_eq!(
        found(|disk, made| ignore(disk.new_block(made.file, At::Position(1 << 62)).unwrap())),
        ["block-behind-end"]
    );
    assert_eq!(
        found(|disk, made| ignore(disk.new_block(KEPT, At::Position(made.file)).unwrap())),
        ["kept-wrong"]
    );
    assert_eq!(
        found(|disk, made| edit(disk, made.dir, 0, |bytes| bytes[88] = 9)),
        ["parent-wrong", "unreachable"]
    );
}

#[test]
fn damaged_leaves_are_found() {
    // The name's last letter, so that its slot is another one.
    let renamed = found(|disk, made| {
        let at = leaf(disk, made.dir);
        edit(disk, made.dir, at, |bytes| bytes[16 + 18 + 4] ^= 1);
    });
    assert_eq!(renamed, ["name-misplaced"]);
    let of_no_kind = found(|disk, made| {
        let at = leaf(disk, made.dir);
        edit(disk, made.dir, at, |bytes| bytes[16 + 16] = 0);
    });
    assert_eq!(of_no_kind, ["unreadable", "empty-leaf", "link-count"]);
    let of_other_kind = found(|disk, made| {
        let at = leaf(disk, made.dir);
        edit(disk, made.dir, at, |bytes| bytes[16 + 16] = 10);
    });
    assert_eq!(of_other_kind, ["kind-wrong"]);
    let removed = found(|disk, _| {
        let at = leaf(disk, ROOT);
        disk.delete_block(disk.block_at(ROOT, at).unwrap().unwrap()).unwrap();
    });
    assert!(removed.contains(&"link-count"), "{removed:?}");
}
