//! `crash mount` and `crash cut`: the power goes while programs are at work. What was synced stays, the image is one
//! that the medium may hold, everything else answers `EIO`.

use std::fs::{self, File};
use std::path::Path;

use fstitch_crashlab::medium::{Base, Cut, History, import};
use fstitch_crashlab::{Image, Level};

use crate::harness::{Mounted, Place, fstitch, needs, run};

const EIO: Option<i32> = Some(5);

fn number<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

fn mount(options: &str, image: &str, at: &str) -> Option<Mounted> {
    Mounted::with("crash mount", options, image, at)
}

fn sync(at: &Path) {
    File::open(at).unwrap().sync_all().unwrap();
}

/// Cuts the power in the middle of a sync and returns how many blocks survived and how many were lost.
fn cut(at: &str, survivors: &str, flush: u64) -> (u64, u64) {
    let cut = fstitch(&format!("crash cut {at} --json --survivors {survivors} --at-flush {flush}")).ok();
    let cut: serde_json::Value = serde_json::from_str(&cut).unwrap();
    (cut["survived"].as_u64().unwrap(), cut["lost"].as_u64().unwrap())
}

/// Takes a mount without power away, which says what was lost and writes nothing.
fn unmount(image: &str, at: &str) {
    let left = fs::read(image).unwrap();
    fstitch(&format!("umount {at}")).refused(1, "the power is gone");
    assert!(fs::read(image).unwrap() == left, "unmounting writes nothing");
}

/// Checks that only what a crash may leave is found.
fn only_allowed(image: &str) {
    let found = fstitch(&format!("fsck -fn --json {image}"));
    assert!([0, 4].contains(&found.code), "{found:?}");
    let found: serde_json::Value = serde_json::from_str(&found.out).unwrap();
    assert_eq!(found["corrupt"], 0, "{found}");
}

/// A mount with something synced, and a lot that is not; the small write-back age puts some of it on its way.
fn work(mounted: &Mounted) {
    let file = |name: &str| mounted.path().join(name);
    fs::write(file("stable"), "this stays").unwrap();
    fs::create_dir(file("kept")).unwrap();
    fs::write(file("kept/large"), [9; 70_000]).unwrap();
    sync(mounted.path());
    for n in 0..40 {
        fs::write(file(&format!("volatile-{n}")), vec![n; 9_000]).unwrap();
        if n % 3 == 0 {
            fs::rename(file(&format!("volatile-{n}")), file(&format!("kept/moved-{n}"))).unwrap();
        }
    }
    fs::remove_file(file("volatile-1")).unwrap();
}

/// What must be so after the cut.
fn after(place: &Place, image: &str, at: &str) {
    unmount(image, at);
    only_allowed(image);
    let mounted = Mounted::new("", image, at).unwrap();
    let file = |name: &str| mounted.path().join(name);
    assert_eq!(fs::read_to_string(file("stable")).unwrap(), "this stays");
    assert!(fs::read(file("kept/large")).unwrap() == [9; 70_000]);
    assert!(!file("late").exists());
    fs::write(file("usable"), "again").unwrap();
    mounted.end();
    if needs("e2fsck") {
        let mended = run("e2fsck", ["-fy", image]);
        assert!(mended.code <= 1, "{mended:?}");
        run("e2fsck", ["-fn", image]).ok();
    }
    assert!(place.at("a.img").exists());
}

#[test]
fn what_was_synced_survives_every_cut() {
    let mut lost_and_survived = 0;
    for (survivors, flush) in [
        ("none", 1),
        ("all", 1),
        ("seed=1", 1),
        ("seed=2", 1),
        ("seed=3", 2),
        ("seed=4", 3),
        ("seed=5", 9),
        ("none", 0),
    ] {
        let place = Place::new();
        let (image, at) = (place.volume("a.img"), place.directory("m"));
        let options = if flush == 0 { "--write-back-age 20ms" } else { "--level M2" };
        let Some(mounted) = mount(options, &image, &at) else { return };
        work(&mounted);
        let open = File::open(mounted.path().join("stable")).unwrap();
        let done = cut(&at, survivors, flush);
        assert!(survivors != "all" || (done.0 > 300 && done.1 == 0), "{done:?}");
        assert!((survivors, flush) != ("none", 1) || done.1 > 300, "{done:?}");
        lost_and_survived += u64::from(done.0 > 0 && done.1 > 0);
        assert_eq!(number(open.sync_all()), EIO);
        drop(open);
        assert_eq!(number(fs::write(mounted.path().join("late"), "")), EIO);
        assert_eq!(number(fs::metadata(mounted.path().join("never looked at"))), EIO);
        assert_eq!(cut(&at, "all", 0), done, "there is nothing left to cut");
        let status = fstitch(&format!("status {at}"));
        assert!(status.code == 1 && status.out.contains("the power is gone"), "{status:?}");
        after(&place, &image, &at);
    }
    assert!(lost_and_survived > 1, "the seeds have no effect");
}

#[test]
fn a_cut_takes_what_is_volatile() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = mount("", &image, &at) else { return };
    fs::write(mounted.path().join("a"), [1; 50_000]).unwrap();
    let formatted = fs::read(&image).unwrap();
    let said = fstitch(&format!("crash cut {at}")).ok();
    // It was in memory only: who hears of what was written alone would think that nothing was lost.
    let unwritten = said.split_whitespace().find_map(|word| word.parse::<u64>().ok().filter(|&n| n >= 50));
    assert!(unwritten.is_some() && said.contains("more blocks had changes"), "{said}");
    assert!(fs::read(&image).unwrap() == formatted, "nothing was flushed, so nothing may be on the medium");
    unmount(&image, &at);
    drop(mounted);
}

#[test]
fn the_log_permits_what_the_cut_left() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let before = fs::read(&image).unwrap();
    let log = place.text("log");
    let options = format!("--record {log}");
    let Some(mounted) = mount(&options, &image, &at) else { return };
    work(&mounted);
    let done = cut(&at, "seed=7", 1);
    assert!(done.0 > 50 && done.1 > 50, "{done:?}");
    unmount(&image, &at);
    let base = Base::new(1024, before);
    let log = import(&fs::read(log).unwrap(), base.geometry()).unwrap().log;
    assert!(log.writes() > 100, "{} writes", log.writes());
    let mut history = History::new(base, Level::M2);
    log.events.iter().for_each(|event| history.apply(event));
    permitted(&history.cut(), &fs::read(&image).unwrap());
    drop(mounted);
}

/// Every block is the stable one or one of those that are undecided.
fn permitted(cut: &Cut, found: &[u8]) {
    let mut decided = Image::with(cut.base.clone(), (*cut.stable).clone()).bytes();
    for atom in &cut.atoms {
        let start = usize::try_from(atom.block).unwrap() * 1024 + atom.offset;
        let range = start..start + atom.len;
        let versions = (0..atom.candidates.len()).map(|n| atom.bytes(u8::try_from(n).unwrap()));
        assert!(versions.into_iter().any(|version| version == &found[range.clone()]), "block {}", atom.block);
        decided[range.clone()].copy_from_slice(&found[range]);
    }
    for (block, (ours, theirs)) in decided.chunks(1024).zip(found.chunks(1024)).enumerate() {
        assert!(ours == theirs, "block {block} is none that the log permits");
    }
}

#[test]
fn an_unmount_without_a_cut_is_clean() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = mount("--volatile 16K", &image, &at) else { return };
    work(&mounted);
    mounted.end();
    let found = fstitch(&format!("fsck -fn {image}"));
    assert_eq!(found.code, 0, "{found:?}");
}

#[test]
fn other_mounts_are_not_cut() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fstitch(&format!("crash cut {at}")).refused(1, "crash mount");
    fs::write(mounted.path().join("a"), "all is well").unwrap();
    mounted.end();
    fstitch(&format!("crash cut {at}")).refused(1, "no fstitch mount");
    fstitch(&format!("crash cut {at} --survivors some")).refused(2, "seed=N");
    fstitch(&format!("crash mount --level M1 {image} {at}")).refused(2, "M2 or M3");
    fstitch(&format!("crash mount --record /nowhere/log {image} {at}")).refused(1, "/nowhere/log");
    fstitch(&format!("fsck -fn {image}")).ok();
}
