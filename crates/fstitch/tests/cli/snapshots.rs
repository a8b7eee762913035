//! `fstitch snapshot` and `.snapshots`, on volumes that are mounted and on others.

use std::fs;

use super::harness::{Mounted, Place, Ran, fstitch};

/// Names of snapshots that `snapshot list --json` shows.
fn names(of: &str) -> Vec<String> {
    let shown: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("snapshot list --json {of}")).ok()).unwrap();
    let all = shown["snapshots"].as_array().unwrap();
    all.iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn snapshots_of_a_volume_that_is_not_mounted() {
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 100_000]).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/file")).ok();
    let said = fstitch(&format!("snapshot create {image} one")).ok();
    assert!(said.contains("snapshot `one` was made"), "{said}");
    fstitch(&format!("snapshot create {image} one")).refused(1, "there is a snapshot `one`");
    fstitch(&format!("rm {image}:/file")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/.snapshots/one/file")).ok().len(), 100_000);
    assert_eq!(names(&image), ["one"]);
    fstitch(&format!("snapshot remove {image} two")).refused(1, "there is no snapshot `two`");
    fstitch(&format!("snapshot remove {image} one")).ok();
    assert!(names(&image).is_empty());
    fstitch(&format!("fsck -fn {image}")).ok();
    fstitch(&format!("mkfs ext4 -F -q {image} 32M")).ok();
    fstitch(&format!("snapshot create {image} one")).refused(1, "volumes of this format have no snapshots");
}

/// Under programs that write: what a snapshot has stays as it was when that was made, file by file.
#[test]
fn snapshots_of_a_mounted_volume() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 64M")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    let path = |name: &str| mount.path().join(name);
    for round in 0..5_u8 {
        for n in 0..20 {
            fs::write(path(&format!("f{n}")), vec![round; 10_000 + 100 * n]).unwrap();
        }
        // By the mount point and by the image's name in turns.
        let of = if round % 2 == 0 { &at } else { &image };
        fstitch(&format!("snapshot create {of} s{round}")).ok();
        assert_eq!(names(of).len(), usize::from(round) + 1);
    }
    for n in 0..20 {
        fs::write(path(&format!("f{n}")), b"other").unwrap();
    }
    fs::remove_file(path("f3")).unwrap();
    fstitch(&format!("snapshot create {at} s2")).refused(1, "there is a snapshot `s2`");
    fstitch(&format!("snapshot create {at} a/b")).refused(1, "no name for a snapshot");
    fstitch(&format!("snapshot remove {at} s1")).ok();
    assert!(fs::metadata(path(".snapshots/s1")).is_err());
    let is_as_it_was = |top: &std::path::Path| {
        for round in [0, 2, 3, 4_u8] {
            for n in 0..20 {
                let found = fs::read(top.join(format!(".snapshots/s{round}/f{n}"))).unwrap();
                assert_eq!(found, vec![round; 10_000 + 100 * n], "s{round}/f{n}");
            }
        }
    };
    is_as_it_was(mount.path());
    assert!(fs::write(path(".snapshots/s2/f1"), b"no").is_err(), "a snapshot does not change");
    mount.end();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("-o ro", &image, &at) else { return };
    is_as_it_was(mount.path());
    fstitch(&format!("snapshot create {at} late")).refused(1, "mounted for reading only");
    assert_eq!(names(&at), ["s0", "s2", "s3", "s4"]);
    mount.end();
}

/// A clone begins as its snapshot and changes by itself; who mounts it has the volume.
#[test]
fn clones_are_mounted_by_their_names() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    fs::write(place.at("file"), vec![7_u8; 100_000]).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("cp {} {image}:/file", place.text("file"))).ok();
    fstitch(&format!("snapshot create {image} one")).ok();
    fstitch(&format!("snapshot clone {image} two trial")).refused(1, "there is no snapshot `two`");
    let said = fstitch(&format!("snapshot clone {image} one trial")).ok();
    assert!(said.contains("clone `trial` of snapshot `one` was made"), "{said}");
    fstitch(&format!("snapshot remove {image} one")).refused(1, "a clone comes from `one`");
    fstitch(&format!("mount -o tree=none {image} {at}")).refused(1, "there is no snapshot or clone `none`");
    let Some(mount) = Mounted::new("-o tree=trial", &image, &at) else { return };
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), vec![7; 100_000]);
    fs::write(mount.path().join("file"), b"other").unwrap();
    fs::create_dir(mount.path().join("new")).unwrap();
    fstitch(&format!("snapshot create {at} of-trial")).ok();
    fstitch(&format!("snapshot remove --clone {at} trial")).refused(1, "`trial` is mounted");
    mount.end();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    assert_eq!(fs::read(mount.path().join("file")).unwrap(), vec![7; 100_000]);
    assert!(!mount.path().join("new").exists());
    let listed = fstitch(&format!("snapshot list {at}")).ok();
    assert!(listed.contains("(a clone of one)") && listed.contains("(of trial)"), "{listed}");
    fstitch(&format!("snapshot remove --clone {at} trial")).refused(1, "there are snapshots of it");
    fstitch(&format!("snapshot remove {at} of-trial")).ok();
    fstitch(&format!("snapshot remove --clone {at} trial")).ok();
    fstitch(&format!("snapshot remove {at} one")).ok();
    assert!(names(&at).is_empty());
    mount.end();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    fstitch(&format!("snapshot create {at} one")).ok();
    mount.end();
    let Some(mount) = Mounted::new("-o tree=one", &image, &at) else { return };
    assert!(fs::write(mount.path().join("file"), b"no").is_err(), "a snapshot does not change");
    assert!(fstitch(&format!("status {at}")).ok().contains("waffle read-only"));
    mount.end();
    fstitch(&format!("mkfs ext4 -F -q {image} 32M")).ok();
    fstitch(&format!("mount -o tree=one {image} {at}"))
        .refused(1, "volumes of this format have no snapshots");
}

/// `cp` makes copies that take no room, of files and out of snapshots, through the kernel.
#[test]
fn copies_share_blocks() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 64M")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    let path = |name: &str| mount.path().join(name);
    let bytes: Vec<u8> = (0..20_000_001_u32).map(|n| (n ^ n >> 9).to_le_bytes()[0]).collect();
    fs::write(path("big"), &bytes).unwrap();
    fstitch(&format!("snapshot create {at} one")).ok();
    // Four of them would not fit otherwise.
    for (from, to) in [("big", "a"), ("a", "b"), (".snapshots/one/big", "c"), ("c", "d")] {
        assert_eq!(fs::copy(path(from), path(to)).unwrap(), 20_000_001);
    }
    fs::remove_file(path("big")).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(path("a")).unwrap();
    std::io::Write::write_all(&mut file, b"changed").unwrap();
    drop(file);
    for name in ["b", "c", "d"] {
        assert!(fs::read(path(name)).unwrap() == bytes, "{name}");
    }
    let changed = fs::read(path("a")).unwrap();
    assert!(changed.starts_with(b"changed") && changed[7..] == bytes[7..]);
    // What does not begin with a block is copied by the kernel.
    let (from, to) = (fs::File::open(path("b")).unwrap(), fs::File::create(path("part")).unwrap());
    let (mut off, mut done) = (1000, 0);
    while done < 100_000 {
        done += rustix::fs::copy_file_range(&from, Some(&mut off), &to, None, 100_000 - done).unwrap();
    }
    drop((from, to));
    assert!(fs::read(path("part")).unwrap() == bytes[1000..101_000]);
    mount.end();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    assert!(fs::read(mount.path().join("d")).unwrap() == bytes);
    mount.end();
}

/// Through a pipe: `send` of a volume that is mounted or not, `receive` on another one.
fn pipe(send: &str, receive: &str) -> (bool, String) {
    let program = env!("CARGO_BIN_EXE_fstitch");
    let script =
        format!("set -o pipefail; {program} snapshot send {send} | {program} snapshot receive {receive}");
    let done = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
    let said = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn snapshots_are_sent_to_other_volumes() {
    let place = Place::new();
    let (image, backup, at) = (place.text("a.img"), place.text("b.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    fs::write(place.at("file"), vec![7_u8; 3_000_000]).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("mkfs waffle -q {backup} 64M")).ok();
    fstitch(&format!("cp {} {image}:/file", place.text("file"))).ok();
    fstitch(&format!("snapshot create {image} one")).ok();
    let (is_done, said) = pipe(&format!("{image} one"), &format!("{backup} disk"));
    assert!(is_done && said.contains("snapshot `one` was received in `disk`"), "{said}");
    assert_eq!(fstitch(&format!("cat {backup}:/.snapshots/one/file")).ok().len(), 3_000_000);
    let Some(mount) = Mounted::new("", &image, &at) else { return };
    fs::write(mount.path().join("new"), b"new").unwrap();
    fstitch(&format!("snapshot create {at} two")).ok();
    let (is_done, said) = pipe(&format!("{at} none"), &format!("{backup} disk"));
    assert!(!is_done && said.contains("there is no snapshot `none`"), "{said}");
    let (is_done, said) = pipe(&format!("--since one {at} two"), &format!("{at} disk"));
    assert!(!is_done && said.contains("it is mounted"), "{said}");
    let (is_done, said) = pipe(&format!("--since one {at} two"), &format!("{backup} disk"));
    assert!(is_done, "{said}");
    // Programs go on while a whole one is sent.
    let (is_done, said) = pipe(&format!("{image} two"), &format!("{backup} other"));
    assert!(!is_done && said.contains("a second snapshot `two`"), "{said}");
    mount.end();
    assert_eq!(names(&backup), ["disk", "one", "two"]);
    assert_eq!(fstitch(&format!("cat {backup}:/.snapshots/two/new")).ok(), "new");
    fstitch(&format!("fsck -fn {backup}")).ok();
    fstitch(&format!("snapshot receive {backup} disk")).refused(1, "it ends before its end");
    // Half a stream: it is told, and the tree is not mounted.
    let program = env!("CARGO_BIN_EXE_fstitch");
    let half = format!(
        "{program} snapshot send {image} one | head -c 2000000 | {program} snapshot receive {backup} half"
    );
    fstitch(&format!("snapshot remove {backup} one")).ok();
    let done = std::process::Command::new("sh").args(["-c", &half]).output().unwrap();
    assert!(String::from_utf8_lossy(&done.stderr).contains("it ends before its end"));
    let listed = fstitch(&format!("snapshot list {backup}")).ok();
    assert!(listed.contains("half  (was being received, and is not whole)"), "{listed}");
    fstitch(&format!("mount -o tree=half {backup} {at}")).refused(1, "was being received and is not whole");
    fstitch(&format!("snapshot remove --clone {backup} half")).ok();
    fstitch(&format!("fsck -fn {backup}")).ok();
    fstitch(&format!("snapshot clone {backup} two back")).ok();
    let Some(mount) = Mounted::new("-o tree=back", &backup, &at) else { return };
    assert_eq!(fs::read(mount.path().join("new")).unwrap(), b"new");
    mount.end();
}

/// `mkfs -E compress` for all of a volume, `chattr +c` and `-c` for parts of it; `fstitch cp` and streams carry the contents on.
#[test]
fn files_are_compressed_where_they_should_be() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let (image, plain, at) = (place.text("a.img"), place.text("b.img"), place.text("at"));
    fs::create_dir(place.at("at")).unwrap();
    let text: String = (0..60_000).map(|n| format!("line {} of some text\n", n % 977)).collect();
    fs::write(place.at("text"), &text).unwrap();
    fstitch(&format!("mkfs waffle -q -E compress {image} 32M")).ok();
    fstitch(&format!("mkfs waffle -q {plain} 32M")).ok();
    fstitch(&format!("mkfs waffle -q -F -E strange {plain} 32M")).refused(2, "waffle has `compress`");
    fstitch(&format!("cp {} {image}:/text", place.text("text"))).ok();
    assert_eq!(fstitch(&format!("cat {image}:/text")).ok(), text);
    let info = |image: &str| fstitch(&format!("info {image}")).ok();
    assert!(info(&image).contains("zstd") && !info(&plain).contains("zstd"));
    fstitch(&format!("snapshot create {image} one")).ok();
    fstitch(&format!("fsck -fn {image}")).ok();
    let Some(mount) = Mounted::new("", &plain, &at) else { return };
    let of = |path: &std::path::Path| fs::metadata(path).unwrap().blocks() * 512;
    fs::create_dir(mount.path().join("packed")).unwrap();
    let chattr = |what: &str, name: &str| {
        let done =
            std::process::Command::new("chattr").arg(what).arg(mount.path().join(name)).status().unwrap();
        assert!(done.success(), "chattr {what} {name}");
    };
    chattr("+c", "packed");
    for name in ["packed/text", "text"] {
        fs::write(mount.path().join(name), &text).unwrap();
        fs::File::open(mount.path().join(name)).unwrap().sync_all().unwrap();
    }
    let (packed, loose) = (of(&mount.path().join("packed/text")), of(&mount.path().join("text")));
    assert!(packed * 3 < loose && loose >= text.len() as u64, "{packed} and {loose} bytes");
    assert_eq!(fs::read_to_string(mount.path().join("packed/text")).unwrap(), text);
    drop(mount);
    fstitch(&format!("fsck -fn {plain}")).ok();
    assert_eq!(fstitch(&format!("cat {plain}:/packed/text")).ok(), text);
}

/// Whatever block is damaged, by hand here, is told with the name of its file, whether the volume is mounted or not.
#[test]
fn a_scrub_names_what_is_damaged() {
    let place = Place::new();
    let (image, at, file) = (place.text("a.img"), place.text("at"), place.text("file"));
    fs::create_dir(place.at("at")).unwrap();
    let contents: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
    fs::write(place.at("file"), &contents).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/file")).ok();
    fstitch(&format!("snapshot create {image} one")).ok();
    fstitch(&format!("rm {image}:/file")).ok();
    let said = fstitch(&format!("scrub {image}")).ok();
    assert!(said.contains("all of it is as it was written"), "{said}");
    fstitch(&format!("scrub --from 7 {image}")).refused(1, "does not begin at a block");
    let mount = Mounted::new("", &image, &at);
    let mut bytes = fs::read(&image).unwrap();
    let block = bytes.chunks(4096).position(|block| block == &contents[40_960..45_056]).unwrap();
    bytes[block * 4096 + 9] ^= 1;
    // The daemon reads the same file.
    std::os::unix::fs::FileExt::write_at(
        &fs::OpenOptions::new().write(true).open(&image).unwrap(),
        &bytes[block * 4096..][..4096],
        u64::try_from(block).unwrap() * 4096,
    )
    .unwrap();
    let names = |of: &str| {
        let Ran { code, out: said, err } = fstitch(&format!("scrub {of}"));
        assert_eq!(code, 1, "{err}");
        assert!(said.contains(&format!("block {block} is LOST")), "{said}");
        assert!(said.contains("/.snapshots/one/file (1 block)"), "{said}");
        let shown = fstitch(&format!("scrub --json {of}"));
        let shown: serde_json::Value = serde_json::from_str(&shown.out).unwrap();
        assert_eq!(shown["lost"], serde_json::json!([block]));
        assert_eq!(shown["damaged"]["owners"][0]["paths"][0], "/.snapshots/one/file");
    };
    if let Some(mount) = mount {
        names(&at);
        mount.end();
    }
    names(&image);
    fstitch(&format!("mkfs ext4 -F -q {image} 32M")).ok();
    fstitch(&format!("scrub {image}")).refused(1, "no checksums of its blocks");
}

/// A bit of a directory's names is changed: `fsck -y` brings back what was in it, as fsck(8) says by its codes.
#[test]
fn fsck_mends_a_directory_of_waffle() {
    let place = Place::new();
    let (image, file) = (place.text("a.img"), place.text("file"));
    fs::write(place.at("file"), vec![7_u8; 10_000]).unwrap();
    fstitch(&format!("mkfs waffle -q {image} 32M")).ok();
    fstitch(&format!("cp {file} {image}:/one-name")).ok();
    fstitch(&format!("cp {file} {image}:/other-name")).ok();
    let mut bytes = fs::read(&image).unwrap();
    // Where it was before, another byte changes, of which nobody knows.
    let names: Vec<usize> = (0..bytes.len() - 8).filter(|&at| &bytes[at..at + 8] == b"one-name").collect();
    assert!(!names.is_empty());
    names.iter().for_each(|&at| bytes[at] = b'x');
    fs::write(&image, &bytes).unwrap();
    assert_eq!(fstitch(&format!("fsck -fn {image}")).code, 4);
    assert_eq!(fstitch(&format!("fsck -fp {image}")).code, 4);
    assert_eq!(fstitch(&format!("fsck -fy {image}")).code, 1);
    fstitch(&format!("fsck -fn {image}")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/other-name")).ok().len(), 10_000);
    let listed = fstitch(&format!("ls {image}:/lost+found")).ok();
    assert_eq!(fstitch(&format!("cat {image}:/lost+found/{}", listed.trim())).ok().len(), 10_000);
}
