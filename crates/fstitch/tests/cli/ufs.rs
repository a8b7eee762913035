//! UFS volumes: made, mounted, copied from and to, checked.

use std::fs;
use std::process::Command;

use serde_json::Value;

use super::harness::{Mounted, PROGRAM, Place, Ran, fstitch, needs, run};

#[test]
fn a_volume_of_makefs_is_mounted_copied_from_and_checked() {
    if !needs("makefs") {
        return;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("from/dir")).unwrap();
    fs::write(place.at("from/dir/file"), vec![7_u8; 300_000]).unwrap();
    fs::write(place.at("from/small"), "a few bytes").unwrap();
    std::os::unix::fs::symlink("dir/file", place.at("from/link")).unwrap();
    let (image, from) = (place.text("u.img"), place.text("from"));
    for (version, order) in [(1, "le"), (1, "be"), (2, "le"), (2, "be")] {
        let options = format!("version={version},bsize=8192,fsize=1024");
        run("makefs", ["-t", "ffs", "-B", order, "-o", &options, "-b", "30%", "-f", "30", &image, &from])
            .ok();
        let shown = fstitch(&format!("info {image}")).ok();
        assert!(shown.contains(&format!("ufs{version}, ")), "{shown}");
        assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
        let copied = place.text("copied");
        fstitch(&format!("cp -r {image}:/ {copied}")).ok();
        run("diff", ["-r", "--no-dereference", &from, &copied]).ok();
        fs::remove_dir_all(place.at("copied")).unwrap();
        assert_eq!(fstitch(&format!("cat {image}:/small")).ok(), "a few bytes");
        fstitch(&format!("tune -L shelf {image}")).ok();
        assert!(fstitch(&format!("info {image}")).ok().contains("shelf"));
        fstitch(&format!("tune -O softdep,acls -m 3 {image}")).ok();
        assert_eq!(
            json(fstitch(&format!("info --json {image}")))["flags"],
            serde_json::json!(["soft updates", "ACLs"])
        );
        fstitch(&format!("tune -O ^softdep,-acls {image}")).ok();
        let hashed = fstitch(&format!("tune -O ckhash {image}"));
        let flags = json(fstitch(&format!("info --json {image}")))["flags"].clone();
        if version == 2 {
            hashed.ok();
            assert_eq!(flags, serde_json::json!(["check hashes"]));
        } else {
            assert!(hashed.code != 0 && hashed.err.contains("UFS1"), "{hashed:?}");
        }
        fstitch(&format!("cp {from}/small {image}:/small")).ok();
        fstitch(&format!("tune -L hashed {image}")).ok();
        assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
        fstitch(&format!("tune -O ^ckhash {image}")).ok();
        assert_eq!(json(fstitch(&format!("info --json {image}")))["flags"], serde_json::json!([]));
        for (asked, why) in
            [("-O dir_index", "`softdep`, `acls` and `ckhash`"), ("-r 100", "no such setting")]
        {
            let ran = fstitch(&format!("tune {asked} {image}"));
            assert!(ran.code != 0 && ran.err.contains(why), "{ran:?}");
        }
        assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
        let before = fs::read(place.at("u.img")).unwrap();
        if let Some(mounted) =
            Mounted::new("-o ro", &image, &place.directory(&format!("mnt-{version}{order}")))
        {
            run("diff", ["-r", "--no-dereference", &from, mounted.path().to_str().unwrap()]).ok();
            assert!(fs::write(mounted.path().join("new"), "x").is_err());
            mounted.end();
        }
        assert!(fs::read(place.at("u.img")).unwrap() == before, "a mount that only reads leaves no trace");
        fstitch(&format!("cp {from}/small {image}:/new")).ok();
        assert_eq!(fstitch(&format!("cat {image}:/new")).ok(), "a few bytes");
        assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
        fs::remove_file(place.at("u.img")).unwrap();
    }
}

/// The program with a fixed time.
fn at_epoch(line: &str) -> Ran {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap().into()
}

fn json(ran: Ran) -> Value {
    serde_json::from_str(&ran.ok()).unwrap()
}

#[test]
fn a_new_volume_is_what_was_asked_for() {
    let place = Place::new();
    let image = place.text("new.img");
    let said = fstitch(&format!("mkfs ufs2 {image} 64M")).ok();
    let expected =
        "ufs2, 64.0 MiB in 16384 fragments of 4096 bytes, blocks of 32768, 8704 inodes, identifier ";
    assert!(said.contains(expected), "{said}");
    let made = json(fstitch(&format!(
        "mkfs ufs1 -F --json --order big -b 8192 -f 1024 -i 4096 -m 5 -o time -L a-Label --soft-updates --snap {image} 64M"
    )));
    assert_eq!((&made["format"], &made["byte_order"]), (&"ufs1".into(), &"big-endian".into()));
    assert_eq!((&made["block_size_bytes"], &made["fragment_size_bytes"]), (&8192.into(), &1024.into()));
    assert_eq!((&made["fragments"], &made["blocks"]), (&65_536.into(), &8192.into()));
    assert_eq!(made["superblock_backup_sectors"][0], 32);
    let info = json(fstitch(&format!("info --json {image}")));
    for key in [
        "format",
        "byte_order",
        "identifier",
        "fragments",
        "free_fragments",
        "groups",
        "inodes",
        "free_inodes",
    ] {
        assert_eq!(info[key], made[key], "{key}");
    }
    assert_eq!((&info["label"], &info["flags"]), (&"a-Label".into(), &serde_json::json!(["soft updates"])));
    assert_eq!(fstitch(&format!("ls {image}:/")).ok().trim(), ".snap");
    assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
    if let Some(mounted) = Mounted::new("-o ro", &image, &place.directory("m")) {
        assert!(mounted.path().join(".snap").is_dir());
        mounted.end();
    }
}

#[test]
fn sizes_of_blocks_and_of_volumes_are_taken_as_they_are() {
    let place = Place::new();
    let image = place.text("new.img");
    for (words, fragments) in [
        // Whole fragments of any size, whatever the blocks.
        ("-b 65536 -f 8192", (40_u64 << 20) / 8192),
        ("-b 4096 -f 512", (40 << 20) / 512 + 3),
        ("-b 4096", (40 << 20) / 4096),
        ("-b 65536", (40 << 20) / 8192),
        ("-f 512", (40 << 20) / 512 + 3),
        ("", (40 << 20) / 4096),
    ] {
        for kind in ["ufs1", "ufs2"] {
            let sectors = (40 << 11) + 3;
            let made = json(fstitch(&format!("mkfs {kind} -F --json {words} {image} {sectors}s")));
            assert_eq!(made["fragments"], fragments, "{kind} {words}");
            assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"), "{kind} {words}");
        }
    }
    let offset = place.text("offset.img");
    fstitch(&format!("mkfs ufs2 -q --offset 1M {offset} 8M")).ok();
    assert_eq!(fs::metadata(place.at("offset.img")).unwrap().len(), 9 << 20);
    assert!(fstitch(&format!("fsck -fn --offset 1M {offset}")).ok().contains("nothing wrong"));
}

#[test]
fn equal_words_make_equal_volumes_over_whatever_was_there() {
    let place = Place::new();
    let (first, second) = (place.text("1.img"), place.text("2.img"));
    let uuid = "00112233-4455-6677-8899-aabbccddeeff";
    for kind in ["ufs1", "ufs2"] {
        at_epoch(&format!("mkfs {kind} -F -q -U {uuid} {first} 24M")).ok();
        // Something else was there, and is found there no more.
        fstitch(&format!("mkfs ext2 -F -q {second} 24M")).ok();
        fstitch(&format!("mkfs ufs2 {second}")).refused(1, "seems to hold an ext2");
        let made = json(at_epoch(&format!("mkfs {kind} -F --json -U {uuid} {second}")));
        assert_eq!(made["identifier"], "0011223344556677");
        let info = json(fstitch(&format!("info --json {second}")));
        assert_eq!((&info["format"], &info["identifier"]), (&kind.into(), &made["identifier"]));
        fstitch(&format!("mkfs ext2 {second}")).refused(1, "seems to hold a UFS volume");
        let again = place.text("3.img");
        at_epoch(&format!("mkfs {kind} -F -q -U {uuid} {again} 24M")).ok();
        assert!(fs::read(&again).unwrap() == fs::read(&first).unwrap(), "{kind}");
        fs::remove_file(&again).unwrap();
        fs::remove_file(&first).unwrap();
    }
}

#[test]
fn what_newfs_does_not_make_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let image = place.text("new.img");
    for (words, said) in [
        ("-b 2048", "blocks of 2048 bytes"),
        ("-b 65536 -f 4096", "fragments of 4096 bytes in blocks of 65536"),
        ("-f 3000", "fragments of 3000 bytes"),
        ("-L no/slash", "the label `no/slash`"),
        ("-U 00000000-0000-0000-0000-000000000001", "identifier is all zero"),
        ("-J size=4", "ufs2 volumes have no journals"),
        ("-E stride=4", "the extended option `stride=4`"),
        ("-o fast", "invalid value 'fast'"),
        ("--order middle", "invalid value 'middle'"),
        ("-m 100", "100 is not in 0..=99"),
        ("-k 100000", "fragments for metadata"),
        ("--policy checksum", "cannot follow a policy"),
    ] {
        fstitch(&format!("mkfs ufs2 {words} {image} 16M")).refused(2, said);
        assert!(!place.at("new.img").exists(), "{words}");
    }
    fstitch(&format!("mkfs ufs2 {image} 64K")).refused(2, "a volume of 65536 bytes");
    fs::create_dir(place.at("from")).unwrap();
    fs::write(place.at("from/file"), vec![3; 100_000]).unwrap();
    let from = place.text("from");
    fstitch(&format!("mkfs ufs2 -d {from} {image} 16M")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/file")).ok().len(), 100_000);
    assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
}

/// A volume that was not unmounted is checked before it is changed, and one line says so; reading changes nothing.
#[test]
fn what_a_crash_has_left_is_mended_and_said_before_the_first_change() {
    let place = Place::new();
    let image = place.text("u.img");
    fs::write(place.at("small"), "a few bytes").unwrap();
    fstitch(&format!("mkfs ufs2 {image} 8M")).ok();
    let clean = fstitch(&format!("cp {} {image}:/first", place.text("small")));
    assert_eq!(clean.err, "", "nothing is said of a volume that was unmounted");
    clean.ok();
    let mut bytes = fs::read(place.at("u.img")).unwrap();
    // The superblock says that the volume is in use, and that 7 blocks are free.
    bytes[65_536 + 209] = 0;
    bytes[65_536 + 1016] = 7;
    fs::write(place.at("u.img"), &bytes).unwrap();
    assert_eq!(fstitch(&format!("cat {image}:/first")).ok(), "a few bytes");
    assert!(fs::read(place.at("u.img")).unwrap() == bytes, "who only reads changes nothing");
    let mended = fstitch(&format!("cp {} {image}:/second", place.text("small")));
    assert_eq!(mended.err.lines().count(), 1, "{}", mended.err);
    assert!(mended.err.contains("it was not unmounted: checked and mended (1 totals)"), "{}", mended.err);
    mended.ok();
    assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
}
