//! Images that are made full at once, from a directory or an archive, and images that come out the same twice.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Command;

use rustix::fs::{Timespec, Timestamps, XattrFlags};

use crate::harness::{PROGRAM, Place, Ran, fstitch, needs, needs_root, run};

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// A tree with everything that images can hold and this user can make, its names made in the order of `names`.
fn tree(place: &Place, at: &str, names: &[&str]) -> String {
    let root = place.directory(at);
    for name in names {
        let path = place.at(&format!("{at}/{name}"));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("small"), name).unwrap();
        fs::write(path.join("large"), vec![b'a'; 300_000]).unwrap();
        fs::hard_link(path.join("small"), path.join("hard")).unwrap();
        symlink("small", path.join("soft")).unwrap();
        let long = "n".repeat(150);
        fs::write(path.join(&long), "a long name").unwrap();
        let _ = rustix::fs::setxattr(path.join("small"), "user.text", b"a\nb=c\n", XattrFlags::empty());
        let _ = rustix::fs::setxattr(path.join("small"), "user.zero", b"\0\x01", XattrFlags::empty());
        let sparse = fs::File::create(path.join("sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        for at in [0, 1 << 20, 3 << 20, (5 << 20) - 4096] {
            std::os::unix::fs::FileExt::write_all_at(&sparse, b"island", at).unwrap();
        }
        fs::set_permissions(path.join("large"), fs::Permissions::from_mode(0o4711)).unwrap();
    }
    root
}

/// Everything below `root` gets this time.
fn set_all_times(root: &str, secs: i64) {
    let time = Timespec { tv_sec: secs, tv_nsec: 500 };
    let times = Timestamps { last_access: time, last_modification: time };
    let list = run("find", [root, "-depth"]).ok();
    for path in list.lines() {
        rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

fn at_epoch(line: &str) -> Ran {
    Command::new(PROGRAM)
        .args(line.split_whitespace())
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .output()
        .unwrap()
        .into()
}

#[track_caller]
fn same(a: &str, b: &str) {
    let (one, other) = (fs::read(a).unwrap(), fs::read(b).unwrap());
    assert_eq!(one.len(), other.len());
    let first = one.iter().zip(&other).position(|(a, b)| a != b);
    assert!(first.is_none(), "{a} and {b} differ from byte {} on", first.unwrap());
}

#[test]
fn the_same_sources_give_the_same_image() {
    let place = Place::new();
    // Made in another order, with other times of access, and one change that is later than the epoch.
    let one = tree(&place, "one", &["b", "a", "c"]);
    set_all_times(&one, 1_600_000_000);
    let other = tree(&place, "other", &["c", "a", "b"]);
    set_all_times(&other, 1_600_000_000);
    for root in [&one, &other] {
        fs::write(format!("{root}/late"), "late").unwrap();
        run("touch", ["-m", "-d", "@1600000000", root]).ok();
    }
    fs::read(place.at("other/a/small")).unwrap();
    for format in ["ext2", "ext3", "ext4"] {
        let name = |at: &str| place.text(&format!("{format}-{at}.img"));
        for (from, image) in [(&one, "1"), (&one, "2"), (&other, "3")] {
            at_epoch(&format!("mkfs {format} -q -U {UUID} {} 40M", name(image))).ok();
            at_epoch(&format!("cp -r {from}/. {}:/", name(image))).ok();
            at_epoch(&format!("mkfs {format} -q -U {UUID} -d {from} {} 40M", name(&format!("d{image}"))))
                .ok();
            // Copying once more replaces everything.
            at_epoch(&format!("cp -r {from}/. {}:/", name(image))).ok();
            fstitch(&format!("fsck -fn {}", name(image))).ok();
        }
        same(&name("1"), &name("2"));
        same(&name("1"), &name("3"));
        same(&name("d1"), &name("d2"));
        same(&name("d1"), &name("d3"));
        let seen = fstitch(&format!("ls -lR {}:/", name("1"))).ok();
        assert!(seen.contains("2020-09-13T12:26:40Z a/small"), "{seen}");
        assert!(seen.contains("2023-11-14T22:13:20Z late"), "a time later than the epoch: {seen}");
    }
    let other_seed = place.text("seed.img");
    at_epoch(&format!("mkfs ext2 -q -U {UUID} -E hash_seed={UUID} {other_seed} 40M")).ok();
    at_epoch(&format!("mkfs ext2 -q -U {UUID} {} 40M", place.text("plain.img"))).ok();
    assert_ne!(fs::read(&other_seed).unwrap(), fs::read(place.at("plain.img")).unwrap());
    let wrong = Command::new(PROGRAM)
        .args(["mkfs", "ext2", "-q", &place.text("x.img"), "4M"])
        .env("SOURCE_DATE_EPOCH", "today")
        .output()
        .unwrap();
    Ran::from(wrong).refused(1, "SOURCE_DATE_EPOCH=today");
}

#[test]
fn a_volume_of_any_kind_can_be_filled() {
    let place = Place::new();
    let from = place.directory("from");
    for name in ["a", "b"] {
        place.directory(&format!("from/{name}"));
        fs::write(place.at(&format!("from/{name}/small")), name).unwrap();
        fs::write(place.at(&format!("from/{name}/large")), vec![b'a'; 300_000]).unwrap();
        symlink("small", place.at(&format!("from/{name}/soft"))).unwrap();
    }
    for kind in ["ext2", "ext3", "ext4", "minixlld", "bpfs", "ufs1", "ufs2", "waffle"] {
        let image = place.text(&format!("{kind}.img"));
        fstitch(&format!("mkfs {kind} -q -d {from} {image} 64M")).ok();
        // With an epoch another mechanism is preferred.
        at_epoch(&format!("cp {from}/b/small {image}:/later")).ok();
        fstitch(&format!("fsck -fn {image}")).ok();
        assert_eq!(fstitch(&format!("cat {image}:/a/small")).ok(), "a", "{kind}");
        assert_eq!(fstitch(&format!("cat {image}:/later")).ok(), "b", "{kind}");
        assert_eq!(fstitch(&format!("cat {image}:/b/large")).ok().len(), 300_000, "{kind}");
    }
}

/// What find(1) says of a tree, but for what an archive does not hold.
fn described(root: &str) -> String {
    let format = "%P %y %m %U:%G %n %T@ %l\n";
    let found = run(
        "find",
        [
            root,
            "-mindepth",
            "1",
            "-name",
            "lost+found",
            "-prune",
            "-o",
            "-mindepth",
            "1",
            "-type",
            "d",
            "-printf",
            "%P %y %m %U:%G %T@\n",
            "-o",
            "-printf",
            format,
        ],
    )
    .ok();
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

/// What came out of an archive of `kind` is what went in.
#[track_caller]
fn is_the_same(kind: &str, from: &str, out: &str) {
    // GNU's own formats and what is read from headers have whole seconds.
    let whole = |described: String| described.replace(".0000005000", ".0000000000");
    assert_eq!(whole(described(out)), whole(described(from)), "{kind}");
    let left_out = ["lost+found", "device", "fifo"].map(|name| format!("--exclude={name}"));
    let words = ["-r", "--no-dereference"].into_iter().chain(left_out.iter().map(String::as_str));
    run("diff", words.chain([from, out])).ok();
    let sparse = fs::metadata(format!("{out}/a/sparse")).unwrap();
    if kind != "plain" {
        assert!(sparse.blocks() < 1000, "{kind}: holes stay holes");
    }
    let mut value = [0; 32];
    if kind == "pax" && rustix::fs::getxattr(format!("{from}/a/small"), "user.text", &mut value).is_ok() {
        let len = rustix::fs::getxattr(format!("{out}/a/small"), "user.text", &mut value).unwrap();
        assert_eq!(&value[..len], b"a\nb=c\n");
    }
}

#[test]
fn an_archive_of_any_kind_gives_the_tree_that_is_in_it() {
    if !needs("tar") || !needs_root() {
        return;
    }
    let place = Place::new();
    let from = tree(&place, "from", &["a", "b"]);
    run("mknod", [&place.text("from/device"), "b", "259", "70000"]).ok();
    run("mkfifo", [&place.text("from/fifo")]).ok();
    fs::create_dir(place.at("from/a").join("d".repeat(120))).unwrap();
    let deep = place.at("from/a").join("d".repeat(120)).join("e".repeat(120));
    fs::write(&deep, "deep").unwrap();
    symlink("x".repeat(200), place.at("from/long-link")).unwrap();
    run("chown", ["3000000:4", &place.text("from/a/large")]).ok();
    fs::set_permissions(place.at("from/a/large"), fs::Permissions::from_mode(0o4711)).unwrap();
    set_all_times(&from, 1_600_000_000);
    let kinds: [(&str, &[&str]); 6] = [
        ("pax", &["--format=pax", "--xattrs", "--sparse"]),
        ("pax01", &["--format=pax", "--sparse", "--sparse-version=0.1"]),
        ("pax00", &["--format=pax", "--sparse", "--sparse-version=0.0"]),
        ("gnu", &["--format=gnu", "--sparse"]),
        ("plain", &["--format=gnu"]),
        ("names", &["--format=pax", "--sparse", "--sort=name", "--owner=0", "--group=0"]),
    ];
    for (kind, options) in kinds {
        let (archive, image, out) =
            (place.text(&format!("{kind}.tar")), place.text(&format!("{kind}.img")), place.directory(kind));
        let words: Vec<&str> = options.iter().copied().chain(["-C", &from, "-cf", &archive, "."]).collect();
        run("tar", &words).ok();
        fstitch(&format!("mkfs ext2 -q -d {archive} {image} 40M")).ok();
        fstitch(&format!("fsck -fn {image}")).ok();
        fstitch(&format!("cp -r {image}:/. {out}")).ok();
        if kind == "names" {
            assert_eq!(fs::metadata(format!("{out}/a/large")).unwrap().uid(), 0);
            continue;
        }
        is_the_same(kind, &from, &out);
    }
}

#[test]
fn an_archive_comes_through_a_pipe_but_not_compressed() {
    if !needs("tar") || !needs("gzip") {
        return;
    }
    let place = Place::new();
    let from = tree(&place, "from", &["a"]);
    let archive = place.text("a.tar");
    run("tar", ["-C", &from, "-cf", &archive, "."]).ok();
    let image = place.text("piped.img");
    let script = format!("cat {archive} | {PROGRAM} mkfs ext2 -q -d - {image} 40M");
    run("sh", ["-c", &script]).ok();
    assert_eq!(fstitch(&format!("cat {image}:/a/hard")).ok(), "a");
    run("gzip", ["-k", &archive]).ok();
    fstitch(&format!("mkfs ext2 -q -d {archive}.gz {} 40M", place.text("gz.img"))).refused(1, "gzip -dc");
    assert!(!place.at("gz.img").exists(), "a failed attempt leaves no image");
}

#[test]
fn archives_that_are_damaged_or_lead_out_are_refused() {
    let place = Place::new();
    fs::write(place.at("garbage"), vec![0xa5; 4096]).unwrap();
    fs::write(place.at("empty"), "").unwrap();
    let mkfs = |name: &str| {
        let image = place.at("new.img");
        let ran = fstitch(&format!("mkfs ext2 -q -d {} {} 4M", place.text(name), image.display()));
        assert!(!image.exists(), "{name} leaves an image");
        ran
    };
    mkfs("garbage").refused(1, "no header at byte 0");
    mkfs("empty").refused(1, "it is no tar archive");
    mkfs("absent").refused(1, "No such file");
    if !needs("tar") {
        return;
    }
    place.directory("d");
    fs::write(place.at("d/out"), vec![1; 100_000]).unwrap();
    run(
        "tar",
        ["-C", &place.text("d"), "--transform=s,out,../out,", "-P", "-cf", &place.text("out.tar"), "out"],
    )
    .ok();
    mkfs("out.tar").refused(1, "leads out of the archive");
    run("tar", ["-C", &place.text("d"), "-cf", &place.text("cut.tar"), "out"]).ok();
    fs::File::options().write(true).open(place.at("cut.tar")).unwrap().set_len(5000).unwrap();
    let ran = fstitch(&format!("mkfs ext2 -q -d {} {} 4M", place.text("cut.tar"), place.text("cut.img")));
    ran.refused(1, "the archive ends in the middle of it");
}

#[test]
fn a_volume_that_its_source_does_not_fit_is_not_left() {
    let place = Place::new();
    let from = place.directory("from");
    fs::write(place.at("from/large"), vec![1; 6 << 20]).unwrap();
    let image = place.text("a.img");
    let ran = fstitch(&format!("mkfs ext2 -q -d {from} {image} 4M"));
    ran.refused(1, "no block is free any more");
    assert!(!place.at("a.img").exists());
}

#[test]
fn a_volume_is_made_in_a_partition() {
    let place = Place::new();
    let disk = place.text("disk.img");
    fs::File::create(place.at("disk.img")).unwrap().set_len(16 << 20).unwrap();
    let mut sector = [0; 512];
    sector[446 + 4] = 0x83;
    sector[446 + 8..446 + 12].copy_from_slice(&2048_u32.to_le_bytes());
    sector[446 + 12..446 + 16].copy_from_slice(&16384_u32.to_le_bytes());
    sector[510..].copy_from_slice(&[0x55, 0xaa]);
    let file = fs::File::options().write(true).open(place.at("disk.img")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &sector, 0).unwrap();
    let from = place.directory("from");
    fs::write(place.at("from/a"), "inside").unwrap();
    let made = fstitch(&format!("mkfs ext2 --partition 1 --json -d {from} {disk}")).ok();
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    assert_eq!(made["blocks"], 8192, "all of the partition and no more");
    assert_eq!(fstitch(&format!("cat --partition 1 {disk}:/a")).ok(), "inside");
    fstitch(&format!("fsck -fn --partition 1 {disk}")).ok();
    let start = fs::read(place.at("disk.img")).unwrap();
    assert_eq!(&start[..512], &sector, "the table stays");
    fstitch(&format!("mkfs ext2 --partition 2 {disk}")).refused(1, "has no partition 2");
    fstitch(&format!("mkfs ext2 -F --partition 1 {disk} 9M")).refused(1, "which has 8.0 MiB");
}
