//! ext4 volumes from the command line: what is made, refused, described and changed.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::harness::{PROGRAM, Place, Ran, fstitch, needs, run};

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// The program with a fixed time.
fn at_epoch(line: &str) -> Ran {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).env("SOURCE_DATE_EPOCH", "1700000000").output().unwrap().into()
}

/// What `info` says of an image.
fn info(image: &str) -> Value {
    serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap()
}

fn features(image: &str) -> Vec<String> {
    let list = info(image)["features"].as_array().unwrap().clone();
    list.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_defaults_are_those_of_others() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let image = place.text("a.img");
    let said = fstitch(&format!("mkfs ext4 {image} 64M")).ok();
    assert!(said.contains("ext4, 64.0 MiB in 65536 blocks of 1024 bytes, 16384 inodes"), "{said}");
    run("e2fsck", ["-fn", &image]).ok();
    let expected = "has_journal ext_attr resize_inode dir_index filetype extent 64bit flex_bg sparse_super large_file huge_file \
                    dir_nlink extra_isize metadata_csum";
    assert_eq!(features(&image).join(" "), expected);
    let info = info(&image);
    assert_eq!(info["format"], "ext4");
    assert_eq!(info["descriptor_size_bytes"], 64);
    assert_eq!(info["groups_per_flex"], 16);
    assert_eq!(info["checksums"], "CRC-32C of all metadata, which begins with the UUID");
    assert_eq!(info["journal"]["blocks"], 4096);
    assert_eq!(info["groups"][1]["uninitialised"], serde_json::json!(["inodes", "blocks"]));
    let text = fstitch(&format!("info {image}")).ok();
    assert!(text.contains("the tables of 16 together"), "{text}");
}

#[test]
fn a_file_that_is_one_hole_stays_sparse() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let (image, kept) = (place.text("a.img"), 4 << 20);
    let file = fs::File::create(&image).unwrap();
    for (len, words) in [(1 << 30, ""), (0, "1G")] {
        file.set_len(0).unwrap();
        file.set_len(len).unwrap();
        fstitch(&format!("mkfs ext4 -q {image} {words}")).ok();
        let stored = file.metadata().unwrap().blocks() * 512;
        assert!(stored < kept, "{stored} bytes of {len}");
    }
    // What holds something is overwritten where tables come.
    fs::write(&image, vec![0xff; 64 << 20]).unwrap();
    fstitch(&format!("mkfs ext4 -q {image}")).ok();
    assert!(file.metadata().unwrap().blocks() * 512 >= 64 << 20);
    assert!(fstitch(&format!("fsck -fn {image}")).ok().contains("nothing wrong"));
}

#[test]
fn features_are_switched_and_refused_by_name() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let image = place.text("a.img");
    let lists = [
        "^metadata_csum,uninit_bg",
        "^has_journal",
        "^resize_inode,meta_bg",
        "mmp",
        "sparse_super2,orphan_file,metadata_csum_seed,fast_commit",
        "extents,large_dir,ea_inode,inline_data,stable_inodes",
        "none,extent,filetype,has_journal",
    ];
    for list in lists {
        let together = if list.starts_with("none") { "" } else { "-G 4" };
        fstitch(&format!("mkfs ext4 -F -q -O {list} {together} {image} 40M")).ok();
        run("e2fsck", ["-fn", &image]).ok();
        let found = features(&image);
        for word in list.split(',').filter(|word| *word != "none") {
            let (name, on) = word.strip_prefix('^').map_or((word, true), |name| (name, false));
            let name = if name == "extents" { "extent" } else { name };
            assert_eq!(found.iter().any(|feature| feature == name), on, "{list}: {found:?}");
        }
    }
    let refused = place.text("refused.img");
    for (words, said) in [
        ("-O encrypt", "feature encrypt, in `-O encrypt`"),
        ("-O casefold", "casefold"),
        ("-O verity", "verity"),
        ("-O quota,bigalloc", "quota and bigalloc"),
        ("-O ^has_journal,fast_commit", "fast_commit without a journal"),
        ("-O wings", "wings"),
        ("-O meta_bg", "`^resize_inode` switches"),
        ("-O ^extent", "`^64bit` switches"),
        ("-O ^has_journal -J size=4", "^has_journal"),
        ("-O ^has_journal,orphan_file", "orphan_file without a journal"),
        ("-O ^metadata_csum,metadata_csum_seed", "metadata_csum_seed without"),
        ("-O inline_data -I 128", "inline_data with inodes of 128 bytes"),
        ("-O ^flex_bg -G 16", "without feature flex_bg"),
        ("-G 3", "a power of two"),
        ("-r 0", "revision 0"),
        ("-E wings=1", "wings=1"),
    ] {
        fstitch(&format!("mkfs ext4 {words} {refused} 40M")).refused(2, said);
        assert!(!place.at("refused.img").exists(), "{words}");
    }
    fstitch(&format!("mkfs ext4 {refused} 1M")).refused(2, "a journal on a volume of only 1024 blocks");
}

#[test]
fn the_same_words_give_the_same_bytes() {
    let place = Place::new();
    let (one, other) = (place.text("1.img"), place.text("2.img"));
    for words in ["", "-O orphan_file,metadata_csum_seed -b 4096", "-O ^metadata_csum,uninit_bg -L name"] {
        for image in [&one, &other] {
            at_epoch(&format!("mkfs ext4 -F -q -U {UUID} {words} {image} 40M")).ok();
        }
        assert!(fs::read(&one).unwrap() == fs::read(&other).unwrap(), "{words}");
        // What was there before does not matter.
        fs::write(&other, vec![0xa5; 40 << 20]).unwrap();
        at_epoch(&format!("mkfs ext4 -F -q -U {UUID} {words} {other}")).ok();
        run("e2fsck", ["-fn", &other]).ok();
        fs::remove_file(&one).unwrap();
        fs::remove_file(&other).unwrap();
    }
}

#[test]
fn a_journal_comes_and_goes() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let image = place.text("a.img");
    for list in [
        "^has_journal",
        "^has_journal,^metadata_csum,uninit_bg",
        "^has_journal,^flex_bg",
        "^has_journal,^64bit,^extent",
    ] {
        fstitch(&format!("mkfs ext4 -F -q -O {list} {image} 100M")).ok();
        let before = info(&image)["free_blocks"].as_u64().unwrap();
        for size in ["", "=9M"] {
            fstitch(&format!("tune --journal{size} {image}")).ok();
            run("e2fsck", ["-fn", &image]).ok();
            assert!(fstitch(&format!("info {image}")).ok().contains("inode 8, clean"));
            fstitch(&format!("tune --no-journal {image}")).ok();
            run("e2fsck", ["-fn", &image]).ok();
            assert_eq!(info(&image)["free_blocks"].as_u64(), Some(before), "{list}");
        }
    }
    fstitch(&format!("mkfs ext4 -F -q -O orphan_file {image} 100M")).ok();
    fstitch(&format!("tune --no-journal {image}")).refused(1, "orphan_file");
}

#[test]
fn a_label_is_changed_and_a_uuid_where_no_sum_depends_on_it() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let image = place.text("a.img");
    for (list, has_sums) in [
        ("^extra_isize", true),
        ("^metadata_csum,uninit_bg", true),
        ("metadata_csum_seed", false),
        ("^metadata_csum", false),
    ] {
        fstitch(&format!("mkfs ext4 -F -q -O {list} {image} 40M")).ok();
        fstitch(&format!("tune -L named {image}")).ok();
        run("e2fsck", ["-fn", &image]).ok();
        assert_eq!(info(&image)["label"], "named");
        let ran = fstitch(&format!("tune -U {UUID} {image}"));
        if has_sums {
            ran.refused(1, "metadata_csum_seed");
        } else {
            ran.ok();
            assert_eq!(info(&image)["uuid"], UUID);
        }
        run("e2fsck", ["-fn", &image]).ok();
        // Every copy says the same, and its sum is right.
        let backup = info(&image)["superblock_backups"][0].as_u64().unwrap().to_string();
        let said =
            run("dumpe2fs", ["-h", "-o", "blocksize=1024", "-o", &format!("superblock={backup}"), &image])
                .ok();
        assert!(said.contains("named"), "{said}");
    }
}

#[test]
fn a_journal_of_its_own_serves_ext4_too() {
    if !needs("e2fsck") {
        return;
    }
    let place = Place::new();
    let (image, journal) = (place.text("a.img"), place.text("j.img"));
    fstitch(&format!("mkfs journal -b 1024 {journal} 4M")).ok();
    let said = fstitch(&format!("mkfs ext4 -b 1024 -J device={journal} {image} 40M")).ok();
    assert!(said.contains("ext4"), "{said}");
    assert!(info(&image)["features"].to_string().contains("has_journal"));
    run("e2fsck", ["-fn", "-j", &journal, &image]).ok();
}

/// Who uses a volume is told by its block: what is being checked elsewhere is refused at once, and looked at all the same.
#[test]
fn what_another_machine_checks_is_refused_and_read() {
    let place = Place::new();
    for block_size in [1024, 4096] {
        let image = place.text(&format!("{block_size}.img"));
        fstitch(&format!("mkfs ext4 -q -O mmp,^metadata_csum -b {block_size} {image} 32M")).ok();
        let mut bytes = std::fs::read(&image).unwrap();
        let block = u64::from_le_bytes(bytes[1024 + 0x168..1024 + 0x170].try_into().unwrap());
        let at = usize::try_from(block).unwrap() * block_size;
        assert_eq!(
            bytes[at..at + 8],
            [0x50, 0x4d, 0x4d, 0, 0x50, 0x4d, 0x4d, 0xff],
            "magic number, and free"
        );
        bytes[at + 4..at + 8].copy_from_slice(&0xe24d_4d50_u32.to_le_bytes());
        bytes[at + 16..at + 22].copy_from_slice(b"abroad");
        std::fs::write(&image, &bytes).unwrap();
        let file = place.text("file");
        std::fs::write(&file, "text").unwrap();
        for words in
            [format!("cp {file} {image}:/"), format!("fsck -y -f {image}"), format!("tune -L other {image}")]
        {
            let ran = fstitch(&words);
            let said = format!("{words}: {}{}", ran.out, ran.err);
            assert!(ran.code != 0 && ran.err.contains("is being checked by"), "{said}");
            assert!(ran.err.contains("on abroad"), "{said}");
        }
        assert!(fstitch(&format!("ls {image}:/")).ok().contains("lost+found"));
        fstitch(&format!("fsck -n -f {image}")).ok();
        assert!(std::fs::read(&image).unwrap() == bytes, "nothing was changed");
        // Damaged, it says nothing of anybody: changing is refused, mending is not.
        bytes[at] ^= 1;
        std::fs::write(&image, &bytes).unwrap();
        assert_ne!(fstitch(&format!("cp {file} {image}:/")).code, 0);
        assert!(std::fs::read(&image).unwrap() == bytes, "nothing was changed");
        assert_eq!(fstitch(&format!("fsck -y -f {image}")).code, 1, "mended");
        fstitch(&format!("fsck -n -f {image}")).ok();
        // Nor does it where its number is none.
        let mut bytes = std::fs::read(&image).unwrap();
        bytes[1024 + 0x168..1024 + 0x170].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&image, &bytes).unwrap();
        let ran = fstitch(&format!("cp {file} {image}:/"));
        assert!(ran.code != 0 && ran.err.contains("cannot be there"), "{}", ran.err);
        assert_eq!(fstitch(&format!("fsck -y -f {image}")).code, 1, "mended");
        fstitch(&format!("fsck -n -f {image}")).ok();
    }
}
