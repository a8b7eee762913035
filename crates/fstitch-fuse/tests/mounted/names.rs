//! Names: making, linking, moving, removing and listing.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, linkat, makedev, mknodat, renameat_with,
};
use rustix::io::Errno;

use crate::harness::{mount, needs_root};

#[test]
fn files_and_directories_come_and_go() {
    let Some(m) = mount() else { return };
    fs::write(m.path("a"), "text").unwrap();
    fs::create_dir(m.path("d")).unwrap();
    assert_eq!(fs::metadata(m.root()).unwrap().nlink(), 3);
    fs::hard_link(m.path("a"), m.path("d/b")).unwrap();
    assert_eq!(fs::metadata(m.path("a")).unwrap().nlink(), 2);
    fs::remove_file(m.path("a")).unwrap();
    assert_eq!(fs::metadata(m.path("d/b")).unwrap().nlink(), 1, "the kernel noticed the other name's end");
    assert_eq!(fs::remove_dir(m.path("d")).unwrap_err().raw_os_error(), Some(Errno::NOTEMPTY.raw_os_error()));
    fs::remove_file(m.path("d/b")).unwrap();
    fs::remove_dir(m.path("d")).unwrap();
    assert_eq!(fs::metadata(m.root()).unwrap().nlink(), 2);
}

#[test]
fn links_show_their_target() {
    let Some(m) = mount() else { return };
    symlink("some/where", m.path("l")).unwrap();
    assert_eq!(fs::read_link(m.path("l")).unwrap().to_str(), Some("some/where"));
    assert_eq!(fs::symlink_metadata(m.path("l")).unwrap().len(), 10);
}

#[test]
fn special_files_keep_kind_and_number() {
    let Some(m) = mount() else { return };
    if needs_root() {
        return;
    }
    let make = |name: &str, kind, dev| {
        mknodat(CWD, m.path(name), kind, Mode::from_raw_mode(0o600), dev).unwrap();
        fs::metadata(m.path(name)).unwrap()
    };
    assert!(make("p", FileType::Fifo, 0).file_type().is_fifo());
    assert!(make("s", FileType::Socket, 0).file_type().is_socket());
    let char = make("c", FileType::CharacterDevice, makedev(259, 70_000));
    assert!(char.file_type().is_char_device());
    assert_eq!(char.rdev(), makedev(259, 70_000));
    assert!(make("b", FileType::BlockDevice, makedev(7, 1)).file_type().is_block_device());
    let null = make("null", FileType::CharacterDevice, makedev(1, 3));
    assert!(null.file_type().is_char_device());
    fs::write(m.path("null"), "swallowed").unwrap();
    assert_eq!(fs::read(m.path("null")).unwrap(), b"");
}

#[test]
fn rename_flags_are_obeyed() {
    let Some(m) = mount() else { return };
    let rename = |from: &str, to: &str, flags| renameat_with(CWD, m.path(from), CWD, m.path(to), flags);
    fs::write(m.path("a"), "1").unwrap();
    fs::write(m.path("b"), "22").unwrap();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read_to_string(m.path("a")).unwrap(), "22");
    assert_eq!(rename("a", "c", RenameFlags::EXCHANGE), Err(Errno::NOENT));
    rename("a", "c", RenameFlags::NOREPLACE).unwrap();
    assert!(!m.path("a").exists());
    assert_eq!(rename("c", "w", RenameFlags::WHITEOUT), Err(Errno::INVAL));
    rename("c", "b", RenameFlags::empty()).unwrap();
    assert_eq!(fs::read_to_string(m.path("b")).unwrap(), "22");
}

#[test]
fn counts_follow_directories_that_move() {
    let Some(m) = mount() else { return };
    for dir in ["a", "b", "a/x", "b/x"] {
        fs::create_dir(m.path(dir)).unwrap();
    }
    let nlink = |name: &str| fs::metadata(m.path(name)).unwrap().nlink();
    assert_eq!((nlink("a"), nlink("b")), (3, 3));
    fs::rename(m.path("a/x"), m.path("b/x")).unwrap();
    assert_eq!((nlink("a"), nlink("b")), (2, 3));
    assert_eq!(fs::metadata(m.path("b/x/..")).unwrap().ino(), fs::metadata(m.path("b")).unwrap().ino());
    let into_itself = fs::rename(m.path("b"), m.path("b/x/y")).unwrap_err();
    assert_eq!(into_itself.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
}

#[test]
fn an_unlinked_file_stays_while_open() {
    let Some(m) = mount() else { return };
    let mut file = fs::File::options().create(true).read(true).append(true).open(m.path("a")).unwrap();
    file.write_all(b"one").unwrap();
    fs::remove_file(m.path("a")).unwrap();
    file.write_all(b" two").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(file.metadata().unwrap().len(), 7);
    let mut text = String::new();
    std::io::Seek::rewind(&mut file).unwrap();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one two");
}

#[test]
fn a_replaced_file_stays_while_open() {
    let Some(m) = mount() else { return };
    fs::write(m.path("old"), "old").unwrap();
    fs::write(m.path("new"), "new").unwrap();
    let mut file = fs::File::open(m.path("old")).unwrap();
    fs::rename(m.path("new"), m.path("old")).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "old");
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_to_string(m.path("old")).unwrap(), "new");
}

fn listed(dir: &std::path::Path) -> BTreeSet<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let all: Vec<String> = names.collect();
    let set: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(all.len(), set.len(), "no name is listed twice");
    set
}

#[test]
fn ten_thousand_names_are_listed_once_each() {
    let Some(m) = mount() else { return };
    let expected: BTreeSet<String> = (0..10_000).map(|no| format!("name-{no:05}")).collect();
    for name in &expected {
        fs::File::create(m.path(name)).unwrap();
    }
    assert_eq!(listed(m.root()), expected);
    fs::remove_file(m.path("name-05000")).unwrap();
    fs::write(m.path("new"), "").unwrap();
    let changed = listed(m.root());
    assert!(changed.contains("new") && !changed.contains("name-05000"), "no stale listing is cached");
    assert_eq!(changed.len(), 10_000);
}

#[test]
fn removing_while_listing_skips_nothing() {
    let Some(m) = mount() else { return };
    for no in 0..2000 {
        fs::write(m.path(&format!("{no}")), "").unwrap();
    }
    let mut removed = 0;
    for entry in fs::read_dir(m.root()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        removed += 1;
    }
    assert_eq!(removed, 2000);
    assert!(listed(m.root()).is_empty());
}

#[test]
fn long_names_are_refused_and_missing_ones_stay_missing() {
    let Some(m) = mount() else { return };
    let long = fs::write(m.path(&"x".repeat(256)), "").unwrap_err();
    assert_eq!(long.raw_os_error(), Some(Errno::NAMETOOLONG.raw_os_error()));
    fs::write(m.path(&"x".repeat(255)), "").unwrap();
    assert!(!m.path("later").exists());
    fs::write(m.path("later"), "").unwrap();
    assert!(m.path("later").exists(), "the remembered absence ends with the creation");
}

#[test]
fn a_nameless_file_is_written_and_named_later() {
    let Some(m) = mount() else { return };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let made = match rustix::fs::open(m.root(), flags, Mode::from_raw_mode(0o640)) {
        Err(Errno::OPNOTSUPP) => return println!("skipped: nameless files through FUSE take Linux 6.2"),
        made => made.unwrap(),
    };
    let mut file = fs::File::from(made);
    file.write_all(b"text").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(m.root()).unwrap().count(), 0, "nobody sees it");
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, own, CWD, m.path("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    assert_eq!(fs::read(m.path("named")).unwrap(), b"text");
    let meta = fs::metadata(m.path("named")).unwrap();
    assert_eq!((meta.nlink(), meta.mode() & 0o777), (1, 0o640));
}
