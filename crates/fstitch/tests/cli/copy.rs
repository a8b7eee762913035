//! What is copied into an image and loses something on the way, is not what was named, or does not fit, without a word or
//! with a word too many.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};

use rustix::fs::{Timespec, Timestamps, XattrFlags};
use serde_json::Value;

use crate::harness::{PROGRAM, Place, Ran, fstitch, needs, needs_root, run};

/// What `ls` says of a path in an image.
#[track_caller]
fn listed(image: &str, path: &str) -> Value {
    let all: Value = serde_json::from_str(&fstitch(&format!("ls -R --all --json {image}:/")).ok()).unwrap();
    let all = all.as_array().unwrap();
    all.iter().find(|item| item["path"] == path).unwrap_or_else(|| panic!("{path} in {all:?}")).clone()
}

fn set_times(path: &std::path::Path, secs: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: 0 };
    let times = Timestamps { last_access: time, last_modification: time };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, flags).unwrap();
}

/// Runs the program with something on its standard input.
fn with_input(line: &str, input: &[u8]) -> Ran {
    let mut child = Command::new(PROGRAM)
        .args(line.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_lost_attribute_is_an_error_with_its_path_and_the_others_are_copied() {
    let place = Place::new();
    let (image, from) = (place.text("a.img"), place.directory("from"));
    fstitch(&format!("mkfs ext2 -q -b 1024 -I 128 {image} 4M")).ok();
    fs::create_dir(place.at("from/d")).unwrap();
    for name in ["from/d/big", "from/d/late", "from/z"] {
        fs::write(place.at(name), "contents").unwrap();
    }
    let value = [7; 2000];
    let set = rustix::fs::setxattr(place.at("from/d/big"), "user.big", &value, XattrFlags::empty());
    if set.is_err() {
        println!("skipped: no extended attributes in {from}");
        return;
    }
    // After 2038, which inodes of 128 bytes cannot say.
    set_times(&place.at("from/d/late"), 4_000_000_000);
    let ran = fstitch(&format!("cp -r {from}/. {image}:/"));
    assert_eq!(ran.code, 1, "{}", ran.err);
    let said = |path: &str, what: &str| {
        ran.err.lines().any(|line| line.contains(&place.text(path)) && line.contains(what))
    };
    assert!(said("from/d/big", "attribute user.big of 2000 bytes is lost"), "{}", ran.err);
    assert!(said("from/d/late", "2096-10-02T07:06:40Z, is lost"), "{}", ran.err);
    assert!(!ran.err.contains("inode 1"), "a path says which, not a number: {}", ran.err);
    assert_eq!(fstitch(&format!("cat {image}:/z")).ok(), "contents");
    assert_eq!(fstitch(&format!("cat {image}:/d/big")).ok(), "contents");
    fstitch(&format!("fsck -fn {image}")).ok();
}

#[test]
fn copying_what_is_in_a_directory_keeps_what_the_directory_itself_is() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let (image, from) = (place.volume("a.img"), place.directory("rootfs"));
    fs::write(place.at("rootfs/a"), "a").unwrap();
    let _ = rustix::fs::setxattr(&from, "user.of-root", b"kept", XattrFlags::empty());
    fs::set_permissions(&from, fs::Permissions::from_mode(0o2751)).unwrap();
    chown(&from, Some(12), Some(34)).unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o2751)).unwrap();
    set_times(place.at("rootfs").as_path(), 1_000_000_000);
    fstitch(&format!("cp -r {from}/. {image}:/")).ok();
    let root = listed(&image, "/.");
    assert_eq!((&root["mode"], &root["uid"], &root["gid"]), (&"2751".into(), &12.into(), &34.into()));
    assert_eq!(root["mtime"], "2001-09-09T01:46:40Z");
    // And out again.
    let out = place.directory("out");
    fstitch(&format!("cp -r {image}:/. {out}")).ok();
    let meta = fs::metadata(&out).unwrap();
    assert_eq!(meta.permissions().mode() & 0o7777, 0o2751);
    let mut value = [0; 16];
    if let Ok(len) = rustix::fs::getxattr(&from, "user.of-root", &mut value) {
        let kept = rustix::fs::getxattr(&out, "user.of-root", &mut value);
        assert_eq!((kept, &value[..len]), (Ok(len), b"kept".as_slice()));
    }
    fstitch(&format!("cp -r --owner 0:0 {from}/. {image}:/")).ok();
    assert_eq!(listed(&image, "/.")["uid"], 0);
}

#[test]
fn sources_by_name_are_followed_as_cp_does() {
    let place = Place::new();
    let (image, from) = (place.volume("a.img"), place.directory("from"));
    fs::write(place.at("file"), "contents").unwrap();
    symlink(place.at("file"), place.at("named")).unwrap();
    symlink("../file", place.at("from/inside")).unwrap();
    symlink(place.at("from"), place.at("to-dir")).unwrap();
    let at = |name: &str| place.text(name);
    let kind = |path: &str| listed(&image, path)["kind"].as_str().unwrap().to_owned();
    // Without -r a link gives what it points at, with -P itself.
    fstitch(&format!("cp {} {image}:/followed", at("named"))).ok();
    assert_eq!(kind("/followed"), "file");
    fstitch(&format!("cp -P {} {image}:/link", at("named"))).ok();
    assert_eq!(kind("/link"), "symlink");
    // With -r itself, with -H and -L what it points at, with -L also inside.
    fstitch(&format!("cp -r {} {image}:/r", at("to-dir"))).ok();
    assert_eq!(kind("/r"), "symlink");
    fstitch(&format!("cp -rH {} {image}:/h", at("to-dir"))).ok();
    assert_eq!((kind("/h").as_str(), kind("/h/inside").as_str()), ("directory", "symlink"));
    fstitch(&format!("cp -rL {} {image}:/l", at("to-dir"))).ok();
    assert_eq!((kind("/l").as_str(), kind("/l/inside").as_str()), ("directory", "file"));
    fstitch(&format!("cp -a {from} {image}:/a")).ok();
    assert_eq!(kind("/a/inside"), "symlink");
    // A link to a directory above ends.
    symlink("..", place.at("from/up")).unwrap();
    let ran = fstitch(&format!("cp -rL {from} {image}:/loop"));
    ran.refused(1, "leads back to a directory above it");
    // Out of an image, too.
    fstitch(&format!("ln -s /followed {image}:/to")).ok();
    fstitch(&format!("cp {image}:/to {}", at("out"))).ok();
    assert_eq!(fs::read_to_string(place.at("out")).unwrap(), "contents");
}

#[test]
fn pipes_give_their_contents() {
    let place = Place::new();
    let image = place.volume("a.img");
    with_input(&format!("cp /dev/stdin {image}:/stdin"), b"through a pipe").ok();
    assert_eq!(fstitch(&format!("cat {image}:/stdin")).ok(), "through a pipe");
    assert_eq!(listed(&image, "/stdin")["kind"], "file");
    if needs("bash") {
        let script = format!("{PROGRAM} cp <(printf substituted) {image}:/substituted");
        run("bash", ["-c", &script]).ok();
        assert_eq!(fstitch(&format!("cat {image}:/substituted")).ok(), "substituted");
    }
    // A file that says that it is empty and is not.
    fstitch(&format!("cp /proc/version {image}:/version")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/version")).ok(), fs::read_to_string("/proc/version").unwrap());
    if needs_root() && needs("mkfifo") {
        run("mkfifo", [place.at("fifo")]).ok();
        fstitch(&format!("cp -r {} {image}:/fifo", place.text("fifo"))).ok();
        assert_eq!(listed(&image, "/fifo")["kind"], "fifo");
    }
}

#[test]
fn a_full_image_says_once_what_there_is_none_of() {
    let place = Place::new();
    let from = place.directory("from");
    for i in 0..100 {
        fs::write(place.at(&format!("from/{i:03}")), vec![b'x'; 60_000]).unwrap();
    }
    let blocks = place.volume("blocks.img");
    let ran = fstitch(&format!("cp -r {from} {blocks}:/"));
    assert_eq!((ran.code, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(ran.err.contains("no block is free any more, of ") && ran.err.contains("/from/0"), "{}", ran.err);
    // What is there is whole.
    fstitch(&format!("fsck -fn {blocks}")).ok();
    assert_eq!(fstitch(&format!("cat {blocks}:/from/000")).ok().len(), 60_000);
    let inodes = place.text("inodes.img");
    fstitch(&format!("mkfs ext2 -q -N 32 {inodes} 16M")).ok();
    let ran = fstitch(&format!("cp -r {from} {inodes}:/"));
    assert_eq!((ran.code, ran.err.lines().count()), (1, 1), "{}", ran.err);
    assert!(ran.err.contains("inodes are in use") && ran.err.contains("mkfs -N"), "{}", ran.err);
    fstitch(&format!("fsck -fn {inodes}")).ok();
}

#[test]
fn one_source_that_is_not_there_does_not_keep_the_others_back() {
    let place = Place::new();
    let image = place.volume("a.img");
    fs::write(place.at("there"), "there").unwrap();
    let ran = fstitch(&format!("cp {} {} {image}:/", place.text("absent"), place.text("there")));
    assert!(ran.err.contains(&place.text("absent")), "{}", ran.err);
    assert_eq!(ran.code, 1);
    assert_eq!(fstitch(&format!("cat {image}:/there")).ok(), "there");
}
