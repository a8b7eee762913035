//! A tool that shows or changes a volume without what its journal holds, or that changes one it should only look at.

use std::os::unix::fs::FileExt;

use crate::harness::{Place, fstitch, needs, run};

/// An ext3 volume with a file of 8 KiB, whose journal has one transaction that changes the file's first blocks, one
/// that revokes the second of them, and one that was not committed.
fn dirty(place: &Place) -> Option<String> {
    if !needs("mke2fs") || !needs("debugfs") {
        return None;
    }
    let image = place.text("dirty.img");
    run("mke2fs", format!("-q -F -t ext3 -b 1024 -J size=4 {image} 16M").split(' ')).ok();
    std::fs::write(place.at("old"), [b'o'; 8192]).unwrap();
    std::fs::write(place.at("new"), [b'n'; 3072]).unwrap();
    let debugfs = |commands: String| {
        std::fs::write(place.at("commands"), commands).unwrap();
        run("debugfs", ["-w", "-f", &place.text("commands"), &image]).ok()
    };
    debugfs(format!("write {} file\n", place.text("old")));
    let blocks = run("debugfs", ["-R", "blocks file", &image]).ok();
    let blocks: Vec<&str> = blocks.split_whitespace().collect();
    let (first, new) = (blocks[..3].join(","), place.text("new"));
    debugfs(format!(
        "jo\njw -b {first} {new}\njw -r {}\njw -b {} {new} -c\njc\n",
        blocks[1],
        blocks[3..6].join(",")
    ));
    Some(image)
}

/// What the file is after a replay.
fn replayed() -> String {
    let part = |byte: &str, kib: usize| byte.repeat(1024 * kib);
    [part("n", 1), part("o", 1), part("n", 1), part("o", 5)].concat()
}

#[test]
fn the_journal_is_shown() {
    let place = Place::new();
    let Some(image) = dirty(&place) else { return };
    let info = fstitch(&format!("info {image}")).ok();
    assert!(
        info.contains("inode 8, dirty: it must be replayed") && info.contains("needs_recovery"),
        "{info}"
    );
    let dump = fstitch(&format!("journal dump {image}")).ok();
    assert!(dump.contains("descriptor of 3 copies") && dump.contains("revoked"), "{dump}");
    assert!(dump.contains("transaction 3, not committed"), "{dump}");
    assert!(dump.contains("the log ends in the middle of transaction 3"), "{dump}");
    let json: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("journal dump --json {image}")).ok()).unwrap();
    assert_eq!(json["transactions"][0]["records"][0]["kind"], "descriptor");
    assert_eq!(json["transactions"][1]["records"][0]["revoked"].as_array().unwrap().len(), 1);
    assert_eq!((&json["end"]["torn"], &json["end"]["damage"]), (&true.into(), &false.into()));
    let ext2 = place.volume("ext2.img");
    fstitch(&format!("journal dump {ext2}")).refused(1, "has no journal");
}

#[test]
fn readers_see_what_is_in_the_journal_and_change_nothing() {
    let place = Place::new();
    let Some(image) = dirty(&place) else { return };
    let before = std::fs::read(&image).unwrap();
    assert_eq!(fstitch(&format!("cat {image}:/file")).ok(), replayed());
    fstitch(&format!("ls -l {image}:/")).ok();
    let said = fstitch(&format!("fsck -n -f {image}")).ok();
    assert!(said.contains("in memory only") && said.contains("2 transactions"), "{said}");
    assert!(before == std::fs::read(&image).unwrap());
}

#[test]
fn a_repair_replays_first() {
    let place = Place::new();
    let Some(image) = dirty(&place) else { return };
    let said = fstitch(&format!("fsck -p {image}")).ok();
    assert!(said.contains("journal replayed: 2 transactions, 2 blocks, 1 revoked"), "{said}");
    run("e2fsck", ["-fn", &image]).ok();
    assert_eq!(fstitch(&format!("cat {image}:/file")).ok(), replayed());
    assert!(fstitch(&format!("info {image}")).ok().contains("inode 8, clean"));
}

#[test]
fn journals_are_made_added_and_removed() {
    let place = Place::new();
    let image = place.text("ext3.img");
    let made = fstitch(&format!("mkfs ext3 -b 1024 -J size=2 {image} 16M")).ok();
    assert!(made.contains("ext3"), "{made}");
    let judge = || {
        fstitch(&format!("fsck -f {image}")).ok();
        if needs("e2fsck") {
            run("e2fsck", ["-fn", &image]).ok();
        }
    };
    judge();
    assert!(fstitch(&format!("info {image}")).ok().contains("2.0 MiB in 2048 blocks"));
    fstitch(&format!("tune --journal {image}")).refused(1, "second journal");
    fstitch(&format!("tune --no-journal {image}")).ok();
    judge();
    fstitch(&format!("journal dump {image}")).refused(1, "has no journal");
    fstitch(&format!("tune --journal=3M {image}")).ok();
    judge();
    assert!(fstitch(&format!("info {image}")).ok().contains("3.0 MiB in 3072 blocks"));
    let json = fstitch(&format!("journal dump --json {image}")).ok();
    assert!(json.contains("the log is empty"), "{json}");
    fstitch(&format!("mkfs ext3 -q {} 1M", place.text("small.img"))).refused(2, "journal");
    assert!(!place.at("small.img").exists());
}

#[test]
fn ext2_with_a_journal_is_ext3() {
    let place = Place::new();
    let image = place.text("volume.img");
    let made = fstitch(&format!("mkfs ext2 -b 4096 -J size=8 --json {image} 64M")).ok();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["journal_blocks"], 2048);
    let before = std::fs::read(&image).unwrap();
    // What cannot be made is refused while the old volume is still there.
    fstitch(&format!("mkfs ext3 -F -b 4096 -J size=100 {image} 64M")).refused(2, "only");
    fstitch(&format!("mkfs ext3 -F -b 4096 -J size=1 {image} 64M")).refused(2, "journal of 256 blocks");
    assert!(before == std::fs::read(&image).unwrap());
    let made = fstitch(&format!("mkfs ext2 -F --json {image}")).ok();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert!(made["journal_blocks"].is_null());
}

#[test]
fn a_journal_beyond_repair_is_given_up_only_when_told() {
    let place = Place::new();
    let Some(image) = dirty(&place) else { return };
    let map = run("debugfs", ["-R", "blocks <8>", &image]).ok();
    let superblock: u64 = map.split_whitespace().next().unwrap().parse().unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(&image).unwrap();
    file.write_all_at(&[0; 4], superblock * 1024).unwrap();
    fstitch(&format!("fsck -p {image}")).refused(8, "journal superblock");
    fstitch(&format!("cat {image}:/file")).refused(1, "journal superblock");
    assert!(fstitch(&format!("info {image}")).ok().contains("journal superblock"));
    let given_up = fstitch(&format!("fsck -y {image}"));
    assert_eq!(given_up.code, 1, "{}{}", given_up.out, given_up.err);
    assert!(given_up.out.contains("what it held is lost"), "{}", given_up.out);
    assert!(given_up.out.contains("a new journal of 1024 blocks was made"), "{}", given_up.out);
    run("e2fsck", ["-fn", &image]).ok();
    assert_eq!(fstitch(&format!("cat {image}:/file")).ok(), "o".repeat(8192));
}

#[test]
fn a_journal_on_its_own_device_is_made_used_and_given_back() {
    let place = Place::new();
    let (image, journal, other) = (place.text("ext3.img"), place.text("log.img"), place.text("other.img"));
    fstitch(&format!("mkfs journal -b 1024 {journal} 512K")).refused(2, "1024 to");
    assert!(!place.at("log.img").exists(), "nothing is left of it");
    let made = fstitch(&format!("mkfs journal -b 1024 -L log {journal} 2M")).ok();
    assert!(made.contains("a journal of 2048 blocks of 1024 bytes"), "{made}");
    fstitch(&format!("mkfs journal {journal}")).refused(1, "add --force");
    fstitch(&format!("mkfs ext3 -b 2048 -J device={journal} {image} 16M")).refused(1, "blocks of 1024");
    assert!(!place.at("ext3.img").exists(), "what cannot be made is not begun");
    let made = fstitch(&format!("mkfs ext3 -J device={journal} --json {image} 16M")).ok();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!((&made["journal_blocks"], &made["block_size_bytes"]), (&2048.into(), &1024.into()));
    let judge = |image: &str, external: bool| {
        fstitch(&format!("fsck -f {image}")).ok();
        if needs("e2fsck") {
            let with: &[&str] = if external { &["-fn", "-j", &journal, image] } else { &["-fn", image] };
            run("e2fsck", with).ok();
        }
    };
    judge(&image, true);
    let info = fstitch(&format!("info --journal {journal} {image}")).ok();
    assert!(info.contains("2.0 MiB in 2048 blocks"), "{info}");
    // It is nobody else's.
    fstitch(&format!("mkfs ext3 -J device={journal} {other} 16M")).refused(1, "belongs to the volume");
    fstitch(&format!("mkfs ext2 -q -b 1024 {other} 16M")).ok();
    fstitch(&format!("tune --journal-device {journal} {other}")).refused(1, "another volume");
    fstitch(&format!("tune --no-journal --journal-device {journal} {other}"))
        .refused(1, "is not the journal");
    judge(&other, false);
    fstitch(&format!("tune --journal --journal-device {journal} {image}")).refused(2, "cannot be used with");
    fstitch(&format!("tune --no-journal --journal-device {journal} {image}")).ok();
    judge(&image, false);
    fstitch(&format!("tune --journal-device {journal} {other}")).ok();
    judge(&other, true);
    fstitch(&format!("tune --journal-device {journal} {image}")).refused(1, "another volume");
}

/// A volume whose superblock asks for a journal, after `change` of the bytes of inode 8; marked clean.
fn without_journal_inode(place: &Place, change: impl Fn(&mut [u8])) -> Option<String> {
    if !needs("mke2fs") || !needs("e2fsck") {
        return None;
    }
    let image = place.text("damaged.img");
    run("mke2fs", format!("-q -F -t ext3 -b 1024 -J size=1 {image} 16M").split(' ')).ok();
    let mut bytes = std::fs::read(&image).unwrap();
    let word = |bytes: &[u8], at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let table = usize::try_from(word(&bytes, 2048 + 8)).unwrap() * 1024;
    let size = usize::from(u16::from_le_bytes([bytes[1024 + 0x58], bytes[1024 + 0x59]]));
    change(&mut bytes[table + 7 * size..table + 8 * size]);
    std::fs::write(&image, bytes).unwrap();
    Some(image)
}

#[test]
fn a_volume_marked_clean_whose_journal_is_lost_is_mended_for_everybody() {
    let changes: [fn(&mut [u8]); 3] = [
        |inode| inode.fill(0),
        // A hole, and a block outside.
        |inode| inode[0x28 + 8..0x28 + 12].fill(0),
        |inode| inode[0x28 + 8..0x28 + 12].fill(0xff),
    ];
    for change in changes {
        let place = Place::new();
        let Some(image) = without_journal_inode(&place, change) else { return };
        // Without the copy of the inode, another journal is made; with it, the old one is found.
        for copy in [true, false] {
            let mut bytes = std::fs::read(&image).unwrap();
            bytes[1024 + 0xfd] = u8::from(copy);
            let damaged = place.text("case.img");
            std::fs::write(&damaged, bytes).unwrap();
            fstitch(&format!("tune --no-journal {damaged}")).refused(1, "inode 8");
            let preened = fstitch(&format!("fsck -p {damaged}"));
            assert_eq!(preened.code, 4, "{}{}", preened.out, preened.err);
            let mended = fstitch(&format!("fsck -y {damaged}"));
            assert_eq!(mended.code, 1, "{}{}", mended.out, mended.err);
            assert_eq!(mended.out.contains("a new journal"), !copy, "{}", mended.out);
            fstitch(&format!("fsck -f {damaged}")).ok();
            run("e2fsck", ["-fn", &damaged]).ok();
            assert!(fstitch(&format!("info {damaged}")).ok().contains("inode 8, clean"));
            fstitch(&format!("tune --no-journal {damaged}")).ok();
            run("e2fsck", ["-fn", &damaged]).ok();
        }
    }
}

#[test]
fn what_a_journal_holds_is_found_through_the_copy_of_its_inode() {
    let place = Place::new();
    let Some(image) = dirty(&place) else { return };
    run("debugfs", ["-w", "-R", "clri <8>", &image]).ok();
    fstitch(&format!("fsck -p {image}")).refused(8, "inode 8");
    let mended = fstitch(&format!("fsck -y {image}"));
    assert!(mended.out.contains("journal replayed: 2 transactions"), "{}{}", mended.out, mended.err);
    run("e2fsck", ["-fn", &image]).ok();
    assert_eq!(fstitch(&format!("cat {image}:/file")).ok(), replayed());
}
