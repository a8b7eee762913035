//! BPFS as its users meet it: made, filled, mounted, killed under work, checked. What it prevents: a command that knows all formats but
//! this one, work that had returned and is gone with the daemon, an option that is taken and means nothing.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::harness::{Mounted, Place, Ran, fstitch, run};

fn volume(place: &Place, size: &str) -> String {
    let image = place.text("b.img");
    fstitch(&format!("mkfs bpfs -q -L mine {image} {size}")).ok();
    image
}

/// The status of one mount as programs read it.
fn status(at: &str) -> Value {
    let all: Value = serde_json::from_str(&fstitch("status --json").ok()).unwrap();
    let found = all.as_array().unwrap().iter().find(|mount| mount["mountpoint"] == at);
    found.cloned().unwrap_or_default()
}

#[test]
fn commands_know_it() {
    let place = Place::new();
    let made = fstitch(&format!("mkfs bpfs --json {} 64M", place.text("j.img"))).ok();
    let made: Value = serde_json::from_str(&made).unwrap();
    assert_eq!((made["blocks"].as_u64(), made["log_bytes"].as_u64()), (Some(15 * 1024), Some(4 << 20)));
    let image = volume(&place, "8M");
    fs::write(place.at("a"), b"contents").unwrap();
    fstitch(&format!("cp {} {image}:/a", place.text("a"))).ok();
    fstitch(&format!("mkdir {image}:/d")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/a")).ok(), "contents");
    assert_eq!(fstitch(&format!("ls {image}:/")).ok(), "a\nd\n");
    fstitch(&format!("rm {image}:/a")).ok();
    let described: Value = serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap();
    assert_eq!(
        (&described["format"], &described["label"], &described["clean"]),
        (&"bpfs".into(), &"mine".into(), &true.into())
    );
    fstitch(&format!("tune -L other {image}")).ok();
    assert!(fstitch(&format!("info {image}")).ok().contains("other"));
    fstitch(&format!("fsck -n -f {image}")).ok();
}

#[test]
fn a_volume_of_a_mebibyte_takes_files_and_says_when_it_is_full() {
    let place = Place::new();
    let image = volume(&place, "1M");
    fs::write(place.at("half"), vec![5; 500_000]).unwrap();
    fstitch(&format!("cp {} {image}:/half", place.text("half"))).ok();
    let full = fstitch(&format!("cp {} {image}:/again", place.text("half")));
    assert!(full.code != 0 && full.err.contains("no room for"), "{full:?}");
    fstitch(&format!("fsck -n -f {image}")).ok();
    refuses(&fstitch(&format!("mkfs bpfs {} 64K", place.text("s.img"))), "128 KiB are the least");
}

#[track_caller]
fn refuses(ran: &Ran, said: &str) {
    assert!(ran.code != 0 && ran.err.contains(said), "{ran:?}");
}

#[test]
fn what_it_has_not_is_refused_by_name() {
    let place = Place::new();
    let (image, at, other) = (volume(&place, "8M"), place.directory("m"), place.text("o.img"));
    refuses(&fstitch(&format!("mkfs bpfs -b 1024 {other} 8M")), "4096 bytes");
    refuses(&fstitch(&format!("mkfs bpfs -J size=4 {other} 8M")), "bpfs volumes have no journals");
    refuses(&fstitch(&format!("mkfs bpfs -E stride=4 {other} 8M")), "`stride=4`");
    fstitch(&format!("mkfs bpfs --policy checksum {other} 8M"))
        .refused(2, "bpfs volumes cannot follow a policy");
    for word in ["soft", "ordered", "full", "sync"] {
        let ran = fstitch(&format!("mount -o consistency={word} {image} {at}"));
        refuses(&ran, &format!("`consistency={word}` is not for bpfs"));
    }
    refuses(&fstitch(&format!("mount -o durability=fast {image} {at}")), "it is `power` or `process`");
    let ext2 = place.volume("e.img");
    refuses(&fstitch(&format!("mount -o durability=power {ext2} {at}")), "this is ext2");
}

/// Works until `file` has so many bytes, each of which was acknowledged; then the daemon is killed.
fn killed(options: &str, expected: &str) {
    let place = Place::new();
    let (image, at) = (volume(&place, "16M"), place.directory("m"));
    let Some(_mounted) = Mounted::new(options, &image, &at) else { return };
    let seen = status(&at);
    assert_eq!(seen["consistency"], expected, "{seen}");
    run("cp", ["-r", concat!(env!("CARGO_MANIFEST_DIR"), "/src/mount"), &at]).ok();
    run(
        "sh",
        [
            "-c",
            &format!(
                "cd {at} && tar cf a.tar mount && mkdir t && tar xf a.tar -C t && mv t/mount u && rm -r mount"
            ),
        ],
    )
    .ok();
    let mut file = fs::File::create(Path::new(&at).join("last")).unwrap();
    for number in 0..500_u32 {
        file.write_all(format!("{number:04}").as_bytes()).unwrap();
    }
    let pid = seen["pid"].as_u64().unwrap();
    run("kill", ["-9", &pid.to_string()]).ok();
    drop(file);
    fstitch(&format!("umount --lazy -q {at}"));
    // Everything that had returned is there.
    let again = fstitch(&format!("cat {image}:/last"));
    assert_eq!(again.ok().len(), 2000);
    fstitch(&format!("fsck -p {image}"));
    fstitch(&format!("fsck -n -f {image}")).ok();
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let theirs = concat!(env!("CARGO_MANIFEST_DIR"), "/src/mount");
    run("diff", ["-r", theirs, &format!("{at}/u")]).ok();
    assert!(!Path::new(&at).join("mount").exists());
    mounted.end();
    fstitch(&format!("fsck -n -f {image}")).ok();
}

#[test]
fn nothing_that_returned_goes_with_a_killed_daemon() {
    killed("", "sync");
    killed("-o durability=process", "full");
}

#[test]
fn damage_is_told_and_mended() {
    let place = Place::new();
    let image = volume(&place, "8M");
    fs::write(place.at("a"), vec![7; 50_000]).unwrap();
    fstitch(&format!("cp {} {image}:/a", place.text("a"))).ok();
    // The copy of the superblock, and the size of the root, inode 1 of the first block of inodes.
    let file = fs::OpenOptions::new().write(true).open(place.at("b.img")).unwrap();
    file.write_all_at(&[9; 8], 4096 + 24).unwrap();
    let found = fstitch(&format!("fsck -n -f {image}"));
    assert!(found.code == 4 && format!("{}{}", found.out, found.err).contains("superblock"), "{found:?}");
    let mended = fstitch(&format!("fsck -y -f {image}"));
    assert_eq!(mended.code, 1, "{mended:?}");
    fstitch(&format!("fsck -n -f {image}")).ok();
}
