//! Volumes on several disks, through the commands. What it prevents: a list of disks that some command does not understand; a disk that was only
//! forgotten, and is put out; a dead disk that loses something, or that nobody hears of; a disk that was replaced and does not hold what it should.

use std::fs;
use std::time::Duration;

use fstitch_core::{Clock, SystemClock};
use serde_json::Value;

use crate::harness::{Mounted, Place, fstitch, needs_root};

fn contents(seed: u8) -> Vec<u8> {
    (0..200_000_u32).map(|at| (at / 7 % 251) as u8 ^ seed).collect()
}

/// The disks `a`, `b`, … as a list.
fn list(place: &Place, names: &[&str]) -> String {
    names
        .iter()
        .map(|name| if *name == "missing" { (*name).to_owned() } else { place.text(name) })
        .collect::<Vec<_>>()
        .join(",")
}

/// A volume on three disks, with a file.
fn volume(place: &Place, policy: &str) -> String {
    let image = list(place, &["a", "b", "c"]);
    fstitch(&format!("mkfs ext3 -q --policy {policy} {image} 24M")).ok();
    fs::write(place.at("one"), contents(1)).unwrap();
    fstitch(&format!("mkdir {image}:/d")).ok();
    fstitch(&format!("cp -q {} {image}:/d", place.text("one"))).ok();
    image
}

#[track_caller]
fn has_the_file(place: &Place, image: &str) {
    let out = place.text("out");
    let _ = fs::remove_file(&out);
    fstitch(&format!("cp -q {image}:/d/one {out}")).ok();
    assert!(fs::read(&out).unwrap() == contents(1), "{image}");
    fstitch(&format!("fsck -nf {image}")).ok();
}

fn states(what: &str) -> Vec<String> {
    let shown: Value = serde_json::from_str(&fstitch(&format!("disk list --json {what}")).ok()).unwrap();
    let disks = shown["disks"].as_array().unwrap();
    disks.iter().map(|disk| disk["state"].as_str().unwrap().to_owned()).collect()
}

#[track_caller]
fn wait_for(what: &str, wanted: &[&str]) {
    let clock = SystemClock::new();
    while states(what) != wanted {
        assert!(clock.elapsed() < Duration::from_secs(60), "{:?}", states(what));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn commands_take_the_disks_of_a_volume_in_any_order() {
    let place = Place::new();
    let image = volume(&place, "d-graid");
    has_the_file(&place, &image);
    has_the_file(&place, &list(&place, &["c", "a", "b"]));
    assert!(fstitch(&format!("ls {image}:/d")).ok().contains("one"));
    assert!(fstitch(&format!("info {image}")).ok().contains("What leads to files is on all disks"));
    let health = fstitch(&format!("health {image}")).ok();
    assert!(health.starts_with(&format!("{image}: good\n")) && health.contains("disk 2 ("), "{health}");
    fstitch(&format!("scrub {image}")).ok();
    fstitch(&format!("tune -L several {image}")).ok();
    assert!(fstitch(&format!("info {image}")).ok().contains("several"));
    assert_eq!(states(&image), ["whole"; 3]);
}

#[test]
fn what_cannot_be_a_list_of_disks_is_refused_with_what_would_be() {
    let place = Place::new();
    let image = volume(&place, "d-graid");
    let whole = list(&place, &["a", "b", "c"]);
    fstitch(&format!("ls {}", place.text("a:"))).refused(1, &format!("write `{whole}`"));
    fstitch(&format!("fsck -n {}", place.text("a"))).refused(8, &format!("write `{whole}`"));
    fstitch(&format!("info {}", list(&place, &["a", "c"]))).refused(1, "disk 1 is not named");
    assert_eq!(states(&image), ["whole"; 3], "nobody was put out");
    // A name that is wrong, beside the disk that was meant.
    fstitch(&format!("info {}", list(&place, &["a", "bb", "c"]))).refused(1, "disk 1 is not named");
    fstitch(&format!("info {}", list(&place, &["a", "one", "c"]))).refused(1, "is no disk of an array");
    fs::copy(place.at("b"), place.at("twin")).unwrap();
    fstitch(&format!("info {}", list(&place, &["a", "b", "c", "twin"]))).refused(1, "is there twice");
    fs::remove_file(place.at("twin")).unwrap();
    let other = list(&place, &["x", "y"]);
    fstitch(&format!("mkfs ext2 -q --policy d-graid {other} 16M")).ok();
    fstitch(&format!("info {}", list(&place, &["a", "b", "x"]))).refused(1, "to another one");
    fstitch(&format!("tune --policy checksum {image}")).refused(1, "the one that it was made with");
    fstitch(&format!("info --offset 4096 {image}")).refused(1, "not at an offset");
    let new = list(&place, &["n", "m"]);
    fstitch(&format!("mkfs ext3 {new} 16M")).refused(2, "needs --stripe, or --policy");
    fstitch(&format!("mkfs minixlld --policy d-graid {new} 16M")).refused(2, "cannot be on several disks");
    fstitch(&format!("mkfs ext3 --policy d-graid {},{} 16M", place.text("n"), place.text("n")))
        .refused(1, "is there twice");
    fstitch(&format!("mkfs ext3 --policy d-graid {} 16M", place.text("n")))
        .refused(1, "the volume is on one");
    fstitch(&format!("mkfs ext3 --policy d-graid {new} 200K")).refused(2, "in an array that needs");
    assert!(!place.at("n").exists() && !place.at("m").exists(), "nothing is left of what failed");
    fstitch(&format!("mkfs ext3 {} 16M", place.text("a"))).refused(1, "seems to hold a disk of an array");
    // One whole name wins.
    fstitch(&format!("disk list {}", place.text("one"))).refused(1, "not on several disks");
    fs::copy(place.at("one"), place.at("a,b")).unwrap();
    fstitch(&format!("info {}", place.text("a,b"))).refused(1, "a,b holds");
}

#[test]
fn a_volume_is_used_without_a_disk_which_is_then_replaced() {
    for policy in ["d-graid", "other.toml", "all.toml"] {
        let place = Place::new();
        let chains = "[all]\nread = [\"verify\", \"mirror\"]\nwrite = [\"verify\", \"mirror other-disk\"]\n";
        let journal = "[journal]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]\n";
        fs::write(place.at("other.toml"), format!("{chains}{journal}")).unwrap();
        fs::write(
            place.at("all.toml"),
            format!("{}{journal}", chains.replace("mirror other-disk", "all-disks")),
        )
        .unwrap();
        let policy = if policy == "d-graid" { policy.to_owned() } else { place.text(policy) };
        let image = volume(&place, &policy);
        place.directory("elsewhere");
        for (no, name) in ["a", "b", "c"].into_iter().enumerate() {
            let away = place.at("elsewhere/away");
            fs::rename(place.at(name), &away).unwrap();
            let listed = fstitch(&format!("ls {image}:/d"));
            assert!(listed.err.contains("MISSING") && listed.err.contains("DEGRADED"), "{}", listed.err);
            has_the_file(&place, &image);
            // Who only looks puts nobody out.
            fs::rename(&away, place.at(name)).unwrap();
            assert_eq!(states(&image), ["whole"; 3]);
            fs::rename(place.at(name), &away).unwrap();
            fstitch(&format!("touch {image}:/without-{name}")).ok();
            // One that comes back is not believed.
            fs::copy(&away, place.at(name)).unwrap();
            let health = fstitch(&format!("health {image}"));
            assert_eq!(health.code, 1);
            assert!(health.out.contains(": degraded\n") && health.out.contains("is out"), "{}", health.out);
            has_the_file(&place, &image);
            let other = (no + 1) % 3;
            // Under d-graid it depends on where the file is: what leads to it is on all disks.
            if policy.ends_with("other.toml") {
                fstitch(&format!("disk remove {image} {other}")).refused(1, "that no other disk has");
            }
            fstitch(&format!("disk replace {image} {no} {}", place.text(name)))
                .refused(1, "--force to overwrite");
            let said = fstitch(&format!("disk replace --force {image} {no} {}", place.text(name))).ok();
            assert!(said.contains("takes the place of"), "{said}");
            assert_eq!(states(&image), ["whole"; 3]);
            has_the_file(&place, &image);
            fs::remove_file(&away).unwrap();
        }
        fstitch(&format!("scrub {image}")).ok();
    }
}

#[test]
fn metadata_alone_is_on_another_disk_from_the_first_moment() {
    let place = Place::new();
    let chains = "[metadata]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]\n[journal]\nread = [\"mirror\"]\nwrite = [\"mirror other-disk\"]\n";
    fs::write(place.at("metadata.toml"), chains).unwrap();
    let image = list(&place, &["a", "b"]);
    fstitch(&format!("mkfs ext3 -q --policy {} {image} 24M", place.text("metadata.toml"))).ok();
    for names in [["a", "missing"], ["missing", "b"]] {
        let left = list(&place, &names);
        assert!(fstitch(&format!("ls {left}:/")).ok().contains("lost+found"));
        fstitch(&format!("fsck -nf {left}")).ok();
    }
}

#[test]
fn hot_spares_come_and_go() {
    let place = Place::new();
    let image = volume(&place, "d-graid");
    let small = place.text("small");
    fs::write(&small, vec![0; 1 << 20]).unwrap();
    fstitch(&format!("disk add {image} {small}")).refused(1, "are needed");
    fstitch(&format!("disk add {image} {}", place.text("hot"))).ok();
    let with = format!("{image},{}", place.text("hot"));
    assert_eq!(states(&with), ["whole", "whole", "whole", "hot-spare"]);
    assert!(fstitch(&format!("ls {image}:/")).err.contains("the hot spare 3 was not named"));
    fstitch(&format!("disk replace {with} 3 {}", place.text("n"))).refused(1, "is a hot spare");
    fstitch(&format!("disk remove {with} 3")).ok();
    assert_eq!(states(&image), ["whole"; 3]);
    fstitch(&format!("disk add --force {image} {}", place.text("hot"))).ok();
    // It takes the place of a disk that is put out, at once.
    let said = fstitch(&format!("disk remove {with} {}", place.text("b"))).ok();
    assert!(said.contains(&format!("the volume is {} now", list(&place, &["a", "hot", "c"]))), "{said}");
    has_the_file(&place, &list(&place, &["a", "hot", "c"]));
    has_the_file(&place, &list(&place, &["missing", "hot", "c"]));
}

#[test]
fn a_disk_dies_in_use_and_nothing_is_lost() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    volume(&place, "d-graid");
    let (faulty, at) = (place.directory("faulty"), place.directory("m"));
    let served = format!("{} seed=1", place.text("b"));
    let Some(served) = Mounted::with("faults serve", "", &served, &faulty) else { return };
    let image = [place.text("a"), place.text("faulty/image"), place.text("c")].join(",");
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fs::write(served.path().join("plan"), "dead\n").unwrap();
    let (two, directory) = (mounted.path().join("two"), fs::File::open(mounted.path()).unwrap());
    fs::write(&two, contents(2)).unwrap();
    directory.sync_all().unwrap();
    wait_for(&at, &["whole", "out", "whole"]);
    assert!(fs::read(&two).unwrap() == contents(2));
    let shown: Value = serde_json::from_str(&fstitch(&format!("disk list --json {at}")).ok()).unwrap();
    let failed = |what: &str| shown["disks"][1][what].as_u64().unwrap();
    assert!(failed("read_errors") + failed("write_errors") + failed("flush_errors") > 0, "{shown}");
    drop(directory);
    mounted.end();
    let left = list(&place, &["a", "missing", "c"]);
    has_the_file(&place, &left);
    assert!(fstitch(&format!("cat {left}:/two")).code == 0);
}

#[test]
fn a_mount_rebuilds_by_itself_and_takes_a_hot_spare() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "d-graid");
    let at = place.directory("m");
    let Some(mounted) = Mounted::new("-o rebuild_rate=64M", &image, &at) else { return };
    // A disk of a volume that is mounted belongs to it.
    fstitch(&format!("info {image}")).refused(1, "it is mounted at");
    assert_eq!(states(&place.text("b")), ["whole"; 3], "each disk leads to the mount");
    fstitch(&format!("disk remove {at} 1")).ok();
    assert_eq!(states(&at)[1], "out");
    let status = fstitch(&format!("status {at}")).ok();
    assert!(status.contains("DEGRADED: disk 1"), "{status}");
    let health = fstitch(&format!("health {at}"));
    assert!(health.code == 1 && health.out.contains("is out"), "{}", health.out);
    fs::write(mounted.path().join("d/two"), contents(2)).unwrap();
    fstitch(&format!("disk replace {at} 1 {}", place.text("new"))).ok();
    wait_for(&at, &["whole"; 3]);
    assert!(fstitch(&format!("status {at}")).ok().contains(&list(&place, &["a", "new", "c"])));
    fstitch(&format!("disk add {at} {}", place.text("hot"))).ok();
    fstitch(&format!("disk remove {at} 0")).ok();
    wait_for(&at, &["whole"; 3]);
    mounted.end();
    let now = list(&place, &["hot", "new", "c"]);
    for without in 0..3 {
        let mut names = ["hot", "new", "c"];
        names[without] = "missing";
        let left = list(&place, &names);
        has_the_file(&place, &left);
        assert!(fstitch(&format!("cat {left}:/d/two")).code == 0);
    }
    has_the_file(&place, &now);
}
