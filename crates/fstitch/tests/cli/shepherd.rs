//! Volumes that follow a policy, through the commands. What it prevents: a policy that is followed by a test's device and by no volume; a
//! volume with a policy that other programs find fault with; maps that are believed after somebody else has written; damage that a policy
//! should have mended, or hidden.

use std::fs;
use std::os::unix::fs::FileExt;

use fstitch_core::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::harness::{Mounted, Place, fstitch, needs, needs_root, run};

/// A file that is found again among the blocks of an image.
fn contents(seed: u8) -> Vec<u8> {
    (0..64_u32 << 10).map(|at| (at / 7 % 251) as u8 ^ seed).collect()
}

/// A volume of 32 MiB with files and a policy.
fn volume(place: &Place, kind: &str, policy: &str) -> String {
    let image = place.text("a.img");
    fs::write(place.at("one"), contents(1)).unwrap();
    fs::write(place.at("two"), contents(2)).unwrap();
    fstitch(&format!("mkfs {kind} -q --policy {policy} {image} 32M")).ok();
    let (one, two) = (place.text("one"), place.text("two"));
    fstitch(&format!("mkdir {image}:/d")).ok();
    fstitch(&format!("cp -q {one} {two} {image}:/d")).ok();
    image
}

/// Where in an image the contents begin, in all places.
fn places_of(image: &str, wanted: &[u8]) -> Vec<u64> {
    let bytes = fs::read(image).unwrap();
    (0..bytes.len() - wanted.len())
        .step_by(1024)
        .filter(|at| bytes[*at..*at + 1024] == wanted[..1024])
        .map(|at| at as u64)
        .collect()
}

fn damage(image: &str, at: u64) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[0x5a; 300], at + 100).unwrap();
}

#[track_caller]
fn is_sound(image: &str) {
    fstitch(&format!("fsck -nf {image}")).ok();
    if needs("e2fsck") {
        let checked = run("e2fsck", ["-fn", image]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    }
}

#[test]
fn a_volume_is_made_with_a_policy_and_loses_it() {
    for kind in ["ext2", "ext3", "ext2 -b 4096", "ext3 -b 4096"] {
        let place = Place::new();
        let image = volume(&place, kind, "laptop");
        is_sound(&image);
        assert!(
            fstitch(&format!("info {image}"))
                .ok()
                .contains("policy               For the one disk of a laptop")
        );
        let health = fstitch(&format!("health {image}")).ok();
        assert!(health.starts_with(&format!("{image}: good\n")), "{health}");
        let free = |image: &str| {
            let shown: Value = serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap();
            shown["free_blocks"].as_u64().unwrap()
        };
        let with = free(&image);
        assert!(fstitch(&format!("tune --policy none {image}")).ok().contains("it follows no policy now"));
        is_sound(&image);
        assert!(free(&image) > with, "its room is given back");
        assert!(fstitch(&format!("tune --policy none {image}")).ok().contains("it followed no policy"));
        let out = place.text("out");
        fstitch(&format!("cp -q {image}:/d/one {out}")).ok();
        assert!(fs::read(&out).unwrap() == contents(1));
        fstitch(&format!("health {image}")).refused(1, "it follows no policy");
        fstitch(&format!("scrub {image}")).refused(1, "it follows no policy");
        // And again, with another one.
        let said = fstitch(&format!("tune --policy checksum {image}")).ok();
        assert!(said.contains("it follows the policy `checksum` now"), "{said}");
        let said = fstitch(&format!("tune --policy mirror-far {image}")).ok();
        assert!(said.contains("copies"), "{said}");
        is_sound(&image);
        fstitch(&format!("scrub {image}")).ok();
    }
}

#[test]
fn damage_is_mended_from_a_copy() {
    let place = Place::new();
    let image = volume(&place, "ext3", "mirror-far");
    let at = places_of(&image, &contents(1));
    assert_eq!(at.len(), 2, "a file is there twice: {at:?}");
    // Of two that differ, without a sum, nobody knows which is right.
    damage(&image, at[1]);
    let scrub = fstitch(&format!("scrub {image}"));
    assert_eq!(scrub.code, 1, "{}{}", scrub.out, scrub.err);
    assert!(scrub.out.contains("DIFFERS from its copy"), "{}", scrub.out);

    let mine = place.text("mine.toml");
    let chains = "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror far\"]\n";
    fs::write(&mine, chains).unwrap();
    let place = Place::new();
    let image = volume(&place, "ext3", &mine);
    let at = places_of(&image, &contents(1));
    assert_eq!(at.len(), 2);
    for (which, at) in at.iter().enumerate() {
        damage(&image, *at);
        let out = place.text(&format!("out{which}"));
        fstitch(&format!("cp -q {image}:/d/one {out}")).ok();
        assert!(fs::read(&out).unwrap() == contents(1), "read in place {which}");
        let found: Value = serde_json::from_str(&fstitch(&format!("scrub --json {image}")).ok()).unwrap();
        let mended =
            found["restored"].as_array().unwrap().len() as u64 + found["copies_written"].as_u64().unwrap();
        assert_eq!(mended, 1, "{found}");
        assert_eq!(places_of(&image, &contents(1)).len(), 2, "both are right again");
    }
    is_sound(&image);
}

#[test]
fn damage_is_computed_from_parity() {
    let place = Place::new();
    let image = volume(&place, "ext2 -b 4096", "parity");
    is_sound(&image);
    let at = places_of(&image, &contents(1));
    assert_eq!(at.len(), 1, "it is there once");
    // One block of each group of eight.
    for block in [0, 8] {
        damage(&image, at[0] + block * 4096);
    }
    let out = place.text("out");
    fstitch(&format!("cp -q {image}:/d/one {out}")).ok();
    assert!(fs::read(&out).unwrap() == contents(1));
    let found: Value = serde_json::from_str(&fstitch(&format!("scrub --json {image}")).ok()).unwrap();
    assert_eq!(found["restored"].as_array().unwrap().len(), 2, "{found}");
    is_sound(&image);
    fstitch(&format!("scrub {image}")).ok();
}

#[test]
fn damage_without_a_copy_is_never_returned() {
    let place = Place::new();
    let image = volume(&place, "ext2", "checksum");
    let at = places_of(&image, &contents(1));
    assert_eq!(at.len(), 1);
    damage(&image, at[0]);
    let out = place.text("out");
    fstitch(&format!("cp -q {image}:/d/one {out}")).refused(1, "its contents do not fit their sum");
    fstitch(&format!("cp -q {image}:/d/two {out}")).ok();
    let scrub = fstitch(&format!("scrub {image}"));
    assert_eq!(scrub.code, 1);
    assert!(scrub.out.contains("is LOST"), "{}", scrub.out);
    // Who writes it anew has it again.
    let one = place.text("one");
    fstitch(&format!("rm {image}:/d/one")).ok();
    fstitch(&format!("cp -q {one} {image}:/d/one")).ok();
    fstitch(&format!("scrub {image}")).ok();
    is_sound(&image);
}

#[test]
fn what_another_program_writes_counts_and_is_said() {
    if !needs("debugfs") {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "ext2", "laptop");
    let written = run("debugfs", ["-w", "-R", &format!("write {} three", place.text("two")), &image]);
    assert_eq!(written.code, 0, "{}", written.err);
    let listed = fstitch(&format!("touch {image}:/new"));
    assert!(listed.err.contains("another program has written to it"), "{}", listed.err);
    listed.ok();
    let again = fstitch(&format!("touch {image}:/newer"));
    assert!(!again.err.contains("another program"), "{}", again.err);
    fs::write(place.at("x"), "").unwrap();
    fstitch(&format!("cp -q {image}:/three {}", place.text("x"))).ok();
    assert!(fs::read(place.at("x")).unwrap() == contents(2));
    is_sound(&image);
    fstitch(&format!("scrub {image}")).ok();
}

#[test]
fn a_mount_follows_its_policy() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let mine = place.text("mine.toml");
    let chains = "[all]\nread = [\"verify\", \"mirror\", \"notify\"]\nwrite = [\"verify\", \"mirror far\"]\n";
    fs::write(&mine, chains).unwrap();
    let image = volume(&place, "ext3", &mine);
    let at = place.directory("mnt");
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let file = mounted.path().join("later");
    fs::write(&file, contents(9)).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {at}")).ok()).unwrap();
    assert_eq!(health["verdict"], json!("good"), "{health}");
    let copies = health["copies"].as_u64().unwrap();
    assert!(copies > 100, "{health}");
    fstitch(&format!("scrub {at}")).ok();
    mounted.end();
    let homes = places_of(&image, &contents(9));
    assert_eq!(homes.len(), 2, "{homes:?}");
    damage(&image, homes[0]);
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    assert!(fs::read(mounted.path().join("later")).unwrap() == contents(9), "from the copy");
    let health = fstitch(&format!("health {at}"));
    assert_eq!(health.code, 1, "{}", health.out);
    assert!(
        health.out.contains("degraded\n  because 1 blocks were damaged, and restored from copies"),
        "{}",
        health.out
    );
    mounted.end();
    is_sound(&image);
    let Some(mounted) = Mounted::new("-o ro", &image, &at) else { return };
    assert!(fs::read(mounted.path().join("later")).unwrap() == contents(9));
    mounted.end();
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_changed() {
    let place = Place::new();
    let image = place.text("a.img");
    fstitch(&format!("mkfs ext2 -q --policy d-graid {image} 8M"))
        .refused(1, "asks for 2 disks; the volume is on one");
    assert!(!place.at("a.img").exists());
    fstitch(&format!("mkfs minixlld -q --policy checksum {image} 8M"))
        .refused(2, "minixlld volumes cannot follow a policy");
    let image = place.volume("b.img");
    let before = fs::read(&image).unwrap();
    fstitch(&format!("tune --policy nobody {image}")).refused(1, "no policy `nobody`");
    fstitch(&format!("tune --policy mirror-far --spares 1000000 {image}")).refused(1, "are free");
    fstitch(&format!("tune --spares 10 {image}")).refused(2, "--policy");
    assert!(fs::read(&image).unwrap() == before);
    is_sound(&image);
}

/// Ends a `faults serve`.
struct Faulty(String);

impl Drop for Faulty {
    fn drop(&mut self) {
        let _ = run("umount", ["-l", &self.0]);
    }
}

#[test]
fn a_disk_that_fails_is_survived_as_the_policy_says() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "ext3", "laptop");
    let (faulty, at) = (place.directory("faulty"), place.directory("mnt"));
    let served = run(crate::harness::PROGRAM, ["faults", "serve", &image, "", &faulty]);
    if served.err.contains("/dev/fuse") {
        println!("skipped: {}", served.err.trim());
        return;
    }
    served.ok();
    let end = Faulty(faulty.clone());
    let plan = |text: &str| fs::write(format!("{faulty}/plan"), text).unwrap();
    let device = format!("{faulty}/image");
    let Some(mounted) = Mounted::new("", &device, &at) else { return };
    // Homes that cannot be written are moved, and nobody notices.
    plan("error write kind=Inode nth=2 times=30");
    for number in 0..40 {
        fs::write(mounted.path().join(format!("file{number}")), contents(number)).unwrap();
    }
    fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    mounted.end();
    assert!(fs::read_to_string(format!("{faulty}/struck")).unwrap().contains("error 30"));
    plan("");
    let refused = fs::write(format!("{faulty}/plan"), "flood");
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(22));
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {device}")).out).unwrap();
    assert_eq!(health["verdict"], json!("failing"), "{health}");
    assert!(health["moved"].as_u64().unwrap() > 0, "{health}");
    let Some(mounted) = Mounted::new("", &device, &at) else { return };
    // What cannot be read for a while is asked for again, or read from a copy.
    plan("error read kind=Inode nth=1 every=2 times=20; error read kind=Directory nth=1 every=2 times=20");
    for number in 0..40 {
        assert!(
            fs::read(mounted.path().join(format!("file{number}"))).unwrap() == contents(number),
            "file {number}"
        );
    }
    plan("");
    mounted.end();
    drop(end);
    fstitch(&format!("fsck -nf {image}")).ok();
    fstitch(&format!("scrub {image}")).ok();
    // The disk is well again: what was moved goes home, and others find a sound volume.
    fstitch(&format!("tune --policy none {image}")).ok();
    is_sound(&image);
    for number in 0..40 {
        let out = place.text("out");
        fstitch(&format!("cp -q {image}:/file{number} {out}")).ok();
        assert!(fs::read(&out).unwrap() == contents(number), "file {number}");
    }
}

/// A disk that is called slow takes its time: of a minute's timeout above it nothing is learnt if it answers at once.
#[test]
fn a_slow_disk_takes_its_time() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "ext2", "propagate");
    let faulty = place.directory("faulty");
    let served = run(crate::harness::PROGRAM, ["faults", "serve", &image, "slow=1000 read times=1", &faulty]);
    if served.err.contains("/dev/fuse") {
        println!("skipped: {}", served.err.trim());
        return;
    }
    served.ok();
    let _end = Faulty(faulty.clone());
    let clock = SystemClock::new();
    let disk = fs::File::open(format!("{faulty}/image")).unwrap();
    disk.read_exact_at(&mut [0; 1024], 4096).unwrap();
    let took = clock.elapsed().as_millis();
    assert!(took >= 1000, "it took {took} ms");
    assert!(fs::read_to_string(format!("{faulty}/struck")).unwrap().contains("slow 1"));
}

/// Nothing is mended behind the back of maps that cannot be used, and there is a way out.
#[test]
fn damaged_maps_are_given_up_when_that_is_asked_for() {
    let place = Place::new();
    let image = volume(&place, "ext2", "checksum");
    let bytes = fs::read(&image).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&image).unwrap();
    // The heads: part 1 of what begins with the magic number, in the second version.
    let heads = (0..bytes.len()).step_by(1024).filter(|at| bytes[*at..].starts_with(b"FSHP\x02\x00\x01\x00"));
    let heads: Vec<usize> = heads.collect();
    assert_eq!(heads.len(), 2);
    for at in heads {
        file.write_all_at(&[0; 1024], at as u64).unwrap();
    }
    let before = fs::read(&image).unwrap();
    let said = "the maps of the volume's policy cannot be used; `fstitch tune --policy none` takes them away";
    fstitch(&format!("ls {image}:/")).refused(1, said);
    fstitch(&format!("fsck -fy {image}")).refused(8, "nothing was checked (-n checks it");
    fstitch(&format!("tune -L name {image}")).refused(1, said);
    fstitch(&format!("tune --policy laptop {image}")).refused(1, said);
    let looked = fstitch(&format!("fsck -nf {image}"));
    assert!(looked.err.contains("it is checked as if it followed none"), "{}", looked.err);
    looked.ok();
    assert!(fs::read(&image).unwrap() == before, "nothing was changed");
    assert!(fstitch(&format!("tune --policy none {image}")).ok().contains("it follows no policy now"));
    is_sound(&image);
    let out = place.text("out");
    fstitch(&format!("cp -q {image}:/d/one {out}")).ok();
    assert!(fs::read(&out).unwrap() == contents(1));
    fstitch(&format!("tune --policy checksum {image}")).ok();
    is_sound(&image);
}

/// The blocks that lead to the maps of a volume are lost, one after the other and all of them; every command that opens it says so, and goes on.
#[test]
fn maps_are_found_by_a_search() {
    let place = Place::new();
    let image = volume(&place, "ext3 -b 4096", "mirror-near");
    let before = fs::read(&image).unwrap();
    let word = |at: usize| u32::from_le_bytes(before[at..at + 4].try_into().unwrap()) as usize;
    // The superblock, the descriptors, and the block of the inode table with inode 5.
    let inode_size = word(1024 + 88) & 0xffff;
    let leading = [0, 1, word(4096 + 8) + 4 * inode_size / 4096];
    for lost in [&leading[..1], &leading[1..2], &leading[2..], &leading[..]] {
        for fill in [0, 0xa5] {
            let mut bytes = before.clone();
            lost.iter().for_each(|block| bytes[block * 4096..(block + 1) * 4096].fill(fill));
            fs::write(&image, &bytes).unwrap();
            let commands = ["ls {}:/d", "info {}", "fsck -n {}", "health {}", "cat {}:/d/one"];
            for command in commands.map(|command| command.replace("{}", &image)) {
                let ran = fstitch(&command);
                assert_eq!(ran.code, 0, "{command} without {lost:?}: {}{}", ran.out, ran.err);
                assert!(ran.err.contains("the maps were found by a search"), "{command}: {}", ran.err);
            }
            assert!(fs::read(&image).unwrap() == bytes, "who only reads changes nothing");
            for command in ["fsck -p {}", "scrub {}", "tune --policy none {}"] {
                fs::write(&image, &bytes).unwrap();
                let ran = fstitch(&command.replace("{}", &image));
                assert_eq!(ran.code, 0, "{command} without {lost:?}: {}{}", ran.out, ran.err);
                assert!(ran.err.contains("the maps were found by a search"), "{command}: {}", ran.err);
                is_sound(&image);
                let again = fstitch(&format!("ls {image}:/d"));
                assert!(!again.err.contains("search"), "{command} gives back what is lost: {}", again.err);
            }
        }
    }
}
