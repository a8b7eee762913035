//! Inodes without names: what a crash of soft updates can have left is freed, anything else with contents goes to
//! lost+found.

use fstitch_core::RepairMode;
use fstitch_core::{Caller, FileSystem, Le};

use crate::support::{BLOCK, FILES, Volume, crashed, create, filled, mkdir};

const PRECIOUS: usize = FILES + 1;

/// Nothing is left to find, and everything precious is there, at once and after each kind of repair.
fn is_kept(name: &str, volume: &Volume, lost: usize) {
    let (after, done) = volume.mounted();
    let done = done.unwrap();
    assert!(done.complete && done.refusal.is_none(), "{name}: {done:?}");
    assert!(after.is_marked_clean() && after.findings().is_empty(), "{name}: {:?}", after.findings());
    assert_eq!((after.precious(), after.lost_and_found().len()), (PRECIOUS, lost), "{name}");
    for mode in [RepairMode::Preen, RepairMode::Yes] {
        let (mended, report) = volume.repaired(mode);
        assert!(report.left.is_clean(), "{name}, {mode:?}: {:?}", report.left);
        assert_eq!((mended.precious(), mended.lost_and_found().len()), (PRECIOUS, lost), "{name}, {mode:?}");
    }
}

#[test]
fn a_directory_whose_name_is_gone() {
    let mut volume = crashed(filled(), |_| ());
    volume.clear_name(volume.ino("/"), volume.ino("/d"));
    is_kept("unlinked directory", &volume, PRECIOUS);
    let (after, _) = volume.mounted();
    let paths = after.lost_and_found();
    assert!(paths.iter().any(|path| path.ends_with("/f7")), "the names in it are kept: {paths:?}");
}

#[test]
fn files_whose_names_are_gone() {
    let mut volume = crashed(filled(), |_| ());
    let (d, f) = (volume.ino("/d"), volume.ino("/d/f3"));
    volume.clear_name(d, f);
    volume.clear_name(volume.ino("/"), volume.ino("/link"));
    is_kept("unlinked file", &volume, 1);
}

#[test]
fn an_entry_that_swallows_all_others() {
    let mut volume = crashed(filled(), |_| ());
    let block = volume.block(volume.ino("/d"), 0);
    Le::put_u16(volume.bytes(block), 16, 1012);
    let (after, done) = volume.mounted();
    assert!(done.unwrap().complete);
    assert_eq!(after.precious(), PRECIOUS);
}

/// Nothing was mounted since the volume was filled: no crash can have left anything.
#[test]
fn a_volume_that_was_never_mounted_and_is_not_clean() {
    let mut volume = Volume(filled());
    volume.0[1024 + 0x3a] = 0;
    let root = volume.ino("/");
    volume.clear_name(root, volume.ino("/d"));
    volume.clear_name(root, volume.ino("/A"));
    is_kept("no crash", &volume, PRECIOUS + 1);
}

#[test]
fn a_volume_that_is_marked_clean() {
    let mut volume = Volume(filled());
    volume.clear_name(volume.ino("/"), volume.ino("/d"));
    for mode in [RepairMode::Preen, RepairMode::Yes] {
        let (mended, report) = volume.repaired(mode);
        assert!(report.left.is_clean(), "{mode:?}: {:?}", report.left);
        assert_eq!((mended.precious(), mended.lost_and_found().len()), (PRECIOUS, PRECIOUS), "{mode:?}");
    }
}

/// What a crash in the middle of an untar leaves.
#[test]
fn new_files_whose_names_never_came_are_freed() {
    let mut volume = crashed(filled(), |fs| {
        let dir = mkdir(fs, fs.root(), "new");
        let inner = mkdir(fs, dir, "inner");
        for n in 0..40 {
            create(fs, dir, &format!("n{n}"), b"new contents");
            create(fs, inner, &format!("n{n}"), b"new contents");
            create(fs, fs.root(), &format!("n{n}"), b"new contents");
        }
    });
    let root = volume.ino("/");
    volume.clear_name(root, volume.ino("/new"));
    for n in 0..40 {
        volume.clear_name(root, volume.ino(&format!("/n{n}")));
    }
    is_kept("untar", &volume, 0);
}

/// A file that is older than the last mount comes back although the directory into which it was moved is new.
#[test]
fn an_old_file_in_a_new_directory() {
    let mut volume = crashed(filled(), |fs| {
        let dir = mkdir(fs, fs.root(), "new");
        let old = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        let replace = fstitch_core::RenameMode::Replace;
        fs.rename(&Caller::default(), (old, b"f5"), (dir, b"moved"), replace).unwrap();
        create(fs, dir, "beside", b"new");
    });
    volume.clear_name(volume.ino("/"), volume.ino("/new"));
    is_kept("moved", &volume, 2);
}

/// A rename into a new directory that was cut off: what is in it has its old name yet, and nothing goes to lost+found.
#[test]
fn second_names_in_a_new_directory_are_no_loss() {
    let mut volume = crashed(filled(), |fs| {
        let dir = mkdir(fs, fs.root(), "new");
        let d = fs.lookup(fs.root(), b"d").unwrap().attr.ino;
        let f = fs.lookup(d, b"f5").unwrap().attr.ino;
        fs.link(&Caller::default(), f, dir, b"moved").unwrap();
    });
    volume.clear_name(volume.ino("/"), volume.ino("/new"));
    is_kept("second name", &volume, 0);
}

/// Files without contents and directories without names are nothing that anybody could miss.
#[test]
fn what_is_empty_is_freed() {
    let mut volume = crashed(
        {
            let device = std::sync::Arc::new(fstitch_core::MemDevice::from_image(1024, filled()));
            let fs = crate::support::mount_at(&device, 1_600_000_100);
            create(&fs, fs.root(), "empty", b"");
            mkdir(&fs, fs.root(), "void");
            fs.unmount().unwrap();
            device.image()
        },
        |_| (),
    );
    let root = volume.ino("/");
    volume.clear_name(root, volume.ino("/empty"));
    volume.clear_name(root, volume.ino("/void"));
    is_kept("empty", &volume, 0);
}

/// lost+found is made where there is none, and grows beyond its first blocks.
#[test]
fn very_many_lost_files_and_no_lost_and_found() {
    let mut volume = crashed(
        {
            let device = std::sync::Arc::new(fstitch_core::MemDevice::from_image(1024, filled()));
            let fs = crate::support::mount_at(&device, 1_600_000_100);
            fs.rmdir(&Caller::default(), fs.root(), b"lost+found").unwrap();
            fs.unmount().unwrap();
            device.image()
        },
        |_| (),
    );
    // Everything in both directories' blocks: the entries' inode fields.
    for dir in ["/d", "/e"] {
        let dir = volume.ino(dir);
        for at in 0..12 {
            let block = volume.block(dir, at);
            let mut offset = if at == 0 { 24 } else { 0 };
            while block != 0 && offset < BLOCK {
                Le::put_u32(volume.bytes(block), offset, 0);
                offset += usize::from(Le::u16(volume.bytes(block), offset + 4));
            }
        }
    }
    is_kept("many", &volume, 2 * FILES + 1);
}
