//! `full-check` and `remount` in mounts that are in use, on a disk that fails for a while. What it prevents: a program that hangs, or loses a file it
//! has open, because the volume below it was opened anew; a loss that no fsync tells; something that an fsync had promised and that is gone; a name or
//! contents in the kernel's memory that are not there any more; a fault that comes back and has the volume opened anew for ever.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fstitch_core::{Clock, SystemClock};
use serde_json::Value;

use crate::harness::{Mounted, PROGRAM, Place, fstitch, needs, needs_root, run};

/// Longer than anything takes here, and shorter than anybody waits for a remedy.
const LONG: Duration = Duration::from_secs(60);

/// A volume on a disk that fails as it is told, mounted in the foreground with its log in a file.
struct Rig {
    mounted: Option<Mounted>,
    daemon: Child,
    disk: Disk,
    place: Place,
}

/// Ends `faults serve`.
struct Disk(String);

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", ["-l", &self.0]);
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.mounted.take());
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A plan by which nothing fails. (Nothing at all would not be written.)
const WELL: &str = "seed=0";
const REBOOT: &str = "[all]\nread = [\"remount\"]\nwrite = [\"remount\"]\n";

impl Rig {
    /// `None`, said aloud, where nothing can be mounted. `fill` makes something in the image first.
    fn new(kind: &str, policy: &str, options: &str, fill: impl FnOnce(&Place, &str)) -> Option<Self> {
        if !needs_root() {
            return None;
        }
        let place = Place::new();
        let image = place.text("a.img");
        fs::write(place.at("mine.toml"), policy).unwrap();
        fstitch(&format!("mkfs {kind} -q --policy {} {image} 32M", place.text("mine.toml"))).ok();
        fill(&place, &image);
        let faulty = place.directory("faulty");
        let served = run(PROGRAM, ["faults", "serve", &image, "", &faulty]);
        if served.err.contains("/dev/fuse") {
            println!("skipped: {}", served.err.trim());
            return None;
        }
        served.ok();
        let disk = Disk(faulty);
        let at = place.directory("mnt");
        let daemon = mount(&place, options);
        Some(Self { mounted: Some(Mounted::found(&at)), daemon, disk, place })
    }

    fn at(&self, name: &str) -> PathBuf {
        self.place.at("mnt").join(name)
    }

    fn plan(&self, text: &str) {
        fs::write(format!("{}/plan", self.disk.0), text).unwrap();
    }

    fn health(&self) -> Value {
        serde_json::from_str(&fstitch(&format!("health --json {}", self.place.text("mnt"))).out).unwrap()
    }

    fn remounts(&self) -> u64 {
        self.health()["remounts"].as_u64().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.at("log")).unwrap()
    }

    fn wait(&self, what: &str, happens: impl Fn(&Self) -> bool) {
        let clock = SystemClock::new();
        while !happens(self) {
            assert!(clock.elapsed() < LONG, "it does not come to that: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Unmounts, and finds a sound volume.
    fn end(mut self) {
        self.unmount();
        is_sound(&self.place.text("a.img"));
    }

    /// The same after an error that somebody saw: the volume is not called clean until it has been looked at.
    fn end_after_errors(mut self) {
        self.unmount();
        let image = self.place.text("a.img");
        let checked = fstitch(&format!("fsck -fp {image}"));
        assert!(checked.code <= 1, "{}", checked.out);
        is_sound(&image);
    }

    fn unmount(&mut self) {
        self.plan(WELL);
        if let Some(mounted) = self.mounted.take() {
            mounted.end();
        }
        assert!(self.daemon.wait().unwrap().success(), "{}", self.log());
        let _ = run("umount", ["-l", &self.disk.0]);
    }
}

fn mount(place: &Place, options: &str) -> Child {
    let log = File::create(place.at("log")).unwrap();
    let (image, at) = (place.text("faulty/image"), place.text("mnt"));
    let daemon = Command::new(PROGRAM)
        .args(["mount", "--foreground"])
        .args(options.split_whitespace())
        .args([&image, &at])
        .env("FSTITCH_LOG", "info")
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let clock = SystemClock::new();
    while fstitch(&format!("status {at}")).code != 0 {
        let log = fs::read_to_string(place.at("log")).unwrap();
        assert!(clock.elapsed() < LONG, "{log}");
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon
}

#[track_caller]
fn is_sound(image: &str) {
    fstitch(&format!("fsck -nf {image}")).ok();
    if needs("e2fsck") {
        let checked = run("e2fsck", ["-fn", image]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
    }
}

/// 100 files in a directory, so that it is read from the disk when it is listed.
fn filled(place: &Place, image: &str) {
    let tree = place.directory("d");
    for number in 0..100 {
        fs::write(format!("{tree}/file{number}"), format!("contents {number}")).unwrap();
    }
    fstitch(&format!("cp -q -r {tree} {image}:/")).ok();
}

fn nothing(_: &Place, _: &str) {}

fn open(rig: &Rig, name: &str) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(rig.at(name)).unwrap()
}

fn content(rig: &Rig, name: &str) -> String {
    fs::read_to_string(rig.at(name)).unwrap()
}

const KINDS: [(&str, &str); 3] = [("ext2", ""), ("ext3", ""), ("ext3", "-o consistency=full")];

/// Makes a file and makes it stable, then changes it and makes another, which are not.
fn stable_and_not(rig: &Rig) -> (File, File) {
    let kept = open(rig, "kept");
    kept.write_all_at(b"this is stable", 0).unwrap();
    kept.sync_all().unwrap();
    File::open(rig.at("")).unwrap().sync_all().unwrap();
    kept.write_all_at(b"this is not so", 0).unwrap();
    let new = open(rig, "new");
    new.write_all_at(b"new", 0).unwrap();
    (kept, new)
}

fn io_error<T: std::fmt::Debug>(done: std::io::Result<T>) {
    assert_eq!(done.unwrap_err().raw_os_error(), Some(5));
}

#[test]
fn a_read_that_fails_once_has_the_volume_opened_anew_below_open_files() {
    for (kind, options) in KINDS {
        let options = format!("{options} --write-back-age 300s -o commit=300");
        let Some(rig) = Rig::new(kind, REBOOT, &options, filled) else { return };
        let (kept, new) = stable_and_not(&rig);
        rig.plan("error read kind=Directory times=1");
        // The lookup is asked again, on the volume as it was opened anew.
        assert_eq!(content(&rig, "d/file7"), "contents 7", "{kind}");
        assert_eq!(rig.remounts(), 1, "{}", rig.log());
        // What was stable is there, and who changed it since is told once.
        io_error(kept.sync_all());
        kept.sync_all().unwrap();
        rig.wait("the kernel forgets", |rig| content(rig, "kept") == "this is stable");
        rig.wait("the kernel forgets a name", |rig| !rig.at("new").exists());
        assert!(new.write_all_at(b"x", 0).is_err(), "it is gone");
        // The same descriptor goes on.
        kept.write_all_at(b"written later!", 0).unwrap();
        kept.sync_all().unwrap();
        let again = open(&rig, "new");
        again.write_all_at(b"again", 0).unwrap();
        assert!(new.write_all_at(b"xxxxx", 0).is_err(), "it is another one now");
        again.sync_all().unwrap();
        assert_eq!(content(&rig, "new"), "again");
        assert_eq!(content(&rig, "kept"), "written later!");
        let log = rig.log();
        for said in ["opening the volume anew after a fault", "the volume is open again after"] {
            assert!(log.contains(said), "{log}");
        }
        let health = rig.health();
        assert_eq!(health["verdict"], "degraded", "{health}");
        drop((kept, new, again));
        rig.end();
    }
}

#[test]
fn a_write_that_fails_once_is_given_up_and_told_by_fsync() {
    for (kind, options) in &KINDS[..2] {
        let Some(rig) = Rig::new(kind, REBOOT, options, nothing) else { return };
        let file = open(&rig, "file");
        file.write_all_at(b"before", 0).unwrap();
        file.sync_all().unwrap();
        File::open(rig.at("")).unwrap().sync_all().unwrap();
        rig.plan("error write kind=Data times=2");
        file.write_all_at(b"during", 0).unwrap();
        io_error(file.sync_all());
        file.sync_all().unwrap();
        assert_eq!(rig.remounts(), 1, "{}", rig.log());
        rig.wait("the kernel forgets", |rig| content(rig, "file") == "before");
        file.write_all_at(b"after!", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(content(&rig, "file"), "after!");
        drop(file);
        rig.end();
    }
}

/// Writes until it is told to stop; what was made stable last.
fn writes(file: &File, stop: &std::sync::atomic::AtomicBool) -> (u64, u64) {
    let (mut stable, mut refused) = (0, 0);
    for number in 1_u64.. {
        if stop.load(std::sync::atomic::Ordering::SeqCst) {
            break;
        }
        let written = file.write_all_at(&[number.to_le_bytes(); 64].concat(), 0);
        match written.and_then(|()| file.sync_all()) {
            Ok(()) => stable = number,
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(5));
                refused += 1;
            }
        }
    }
    (stable, refused)
}

#[test]
fn programs_go_on_while_two_remedies_are_asked_for_at_once() {
    let policy = "[metadata]\nread = [\"full-check\", \"remount\"]\nwrite = [\"remount\"]\n[data]\nwrite = [\"remount\"]\n";
    for kind in ["ext2", "ext3"] {
        let Some(rig) = Rig::new(kind, policy, "", filled) else { return };
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|number| {
                    let (file, stop) = (open(&rig, &format!("writer{number}")), &stop);
                    scope.spawn(move || (writes(&file, stop), file))
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            rig.plan("error read kind=Directory times=1; error write kind=Data times=2; error read kind=Inode times=1");
            let list = || fs::read_dir(rig.at("d")).map(Iterator::count);
            let readers: Vec<_> = (0..3).map(|_| scope.spawn(list)).collect();
            for reader in readers {
                assert_eq!(reader.join().unwrap().unwrap(), 100, "{}", rig.log());
            }
            rig.wait("the writers go on", |rig| rig.remounts() > 0);
            std::thread::sleep(Duration::from_millis(500));
            stop.store(true, std::sync::atomic::Ordering::SeqCst);
            for writer in writers {
                let ((stable, refused), mut file) = writer.join().unwrap();
                assert!(stable > refused, "{stable} {refused}");
                let mut found = Vec::new();
                file.read_to_end(&mut found).unwrap();
                let last = u64::from_le_bytes(found[..8].try_into().unwrap());
                assert!(last >= stable, "{last} is there, {stable} was promised\n{}", rig.log());
            }
        });
        assert!(rig.health()["full_checks"].as_u64().unwrap() > 0, "{}", rig.log());
        // A read that failed once, and of which the last remount did not know yet, keeps the volume from being called clean.
        rig.end_after_errors();
    }
}

#[test]
fn a_fault_that_stays_is_left_to_the_rest_of_the_chain() {
    for kind in ["ext2", "ext3"] {
        let Some(rig) = Rig::new(kind, REBOOT, "", filled) else { return };
        rig.plan("error read kind=Directory times=all");
        let clock = SystemClock::new();
        io_error(fs::metadata(rig.at("d/file3")));
        io_error(fs::metadata(rig.at("d/file4")));
        assert!(clock.elapsed() < LONG, "nobody waits for ever");
        assert_eq!(rig.remounts(), 3, "{}", rig.log());
        assert!(rig.log().contains("the next steps of its policy are tried instead"), "{}", rig.log());
        // Nothing else suffers, and when the disk is well again neither does this.
        rig.plan(WELL);
        let file = open(&rig, "file");
        file.write_all_at(b"well", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(content(&rig, "d/file3"), "contents 3");
        drop(file);
        rig.end_after_errors();
    }
}

/// As in \[C\] figure 8: the disk answers nothing for more than a second, so the first openings fail as well.
#[test]
fn a_disk_that_is_away_for_a_second_is_waited_for() {
    let Some(rig) = Rig::new("ext3", REBOOT, "", filled) else { return };
    rig.plan("error read times=all; error write times=all");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(1500));
            rig.plan(WELL);
        });
        assert_eq!(content(&rig, "d/file7"), "contents 7", "{}", rig.log());
    });
    assert_eq!(rig.remounts(), 1, "{}", rig.log());
    let file = open(&rig, "file");
    file.write_all_at(b"back", 0).unwrap();
    file.sync_all().unwrap();
    drop(file);
    rig.end();
}

/// The first block of each group's bitmap of blocks.
fn bitmaps(image: &str) -> Vec<u64> {
    let shown = run("dumpe2fs", [image]).ok();
    let places = shown.lines().filter_map(|line| line.trim().strip_prefix("Block bitmap at "));
    places.map(|rest| rest.split([' ', ',']).next().unwrap().parse().unwrap()).collect()
}

const CHECKED: &str = "[metadata]\nread = [\"verify\", \"full-check\"]\nwrite = [\"verify\"]\n";

#[test]
fn a_check_mends_what_it_can_and_the_volume_goes_on() {
    if !needs("dumpe2fs") {
        return;
    }
    for kind in ["ext2 -b 1024", "ext3 -b 1024"] {
        let damage = |_: &Place, image: &str| {
            let file = OpenOptions::new().write(true).open(image).unwrap();
            for block in bitmaps(image) {
                // Blocks that nobody has are called used: bits of the middle of the group.
                file.write_all_at(&[0xff; 8], block * 1024 + 600).unwrap();
            }
        };
        let Some(rig) = Rig::new(kind, CHECKED, "", damage) else { return };
        fs::write(rig.at("file"), "it goes on").unwrap();
        File::open(rig.at("file")).unwrap().sync_all().ok();
        fs::write(rig.at("file"), "it goes on").unwrap();
        File::open(rig.at("file")).unwrap().sync_all().unwrap();
        let health = rig.health();
        assert_eq!(health["full_checks"], 1, "{}", rig.log());
        assert_eq!(health["remounts"], 1, "{}", rig.log());
        assert!(rig.log().contains("the check has found what it can mend"), "{}", rig.log());
        rig.end();
    }
}

#[test]
fn a_check_that_finds_nothing_wrong_gives_up_nothing() {
    let policy = "[metadata]\nread = [\"full-check\"]\n";
    let Some(rig) = Rig::new("ext3", policy, "--write-back-age 300s -o commit=300", filled) else { return };
    let (kept, new) = stable_and_not(&rig);
    rig.plan("error read kind=Directory times=1");
    assert_eq!(content(&rig, "d/file9"), "contents 9", "{}", rig.log());
    let health = rig.health();
    assert_eq!((&health["full_checks"], &health["remounts"]), (&1.into(), &0.into()), "{}", rig.log());
    kept.sync_all().unwrap();
    new.sync_all().unwrap();
    assert_eq!(content(&rig, "kept"), "this is not so");
    drop((kept, new));
    rig.end();
}

#[test]
fn a_check_that_cannot_make_it_sound_leaves_it_to_the_rest_of_the_chain() {
    let policy = "[metadata]\nread = [\"full-check\"]\n";
    let Some(rig) = Rig::new("ext2", policy, "", filled) else { return };
    rig.plan("error read kind=Directory times=all");
    io_error(fs::metadata(rig.at("d/file3")));
    assert!(rig.log().contains("programs go on"), "{}", rig.log());
    rig.plan(WELL);
    assert_eq!(content(&rig, "d/file3"), "contents 3");
    assert_eq!(rig.remounts(), 0);
    rig.end_after_errors();
}

#[test]
fn a_daemon_that_is_killed_while_it_opens_the_volume_anew_leaves_a_volume_that_opens() {
    for (kind, pause_ms) in [("ext2", 0), ("ext2", 40), ("ext3", 0), ("ext3", 20), ("ext3", 80)] {
        let Some(mut rig) = Rig::new(kind, REBOOT, "", filled) else { return };
        let file = open(&rig, "file");
        file.write_all_at(b"promised", 0).unwrap();
        file.sync_all().unwrap();
        File::open(rig.at("")).unwrap().sync_all().unwrap();
        file.write_all_at(b"whatever", 0).unwrap();
        rig.plan("error read kind=Directory times=1; slow=10");
        let path = rig.at("d/file7");
        let reader = std::thread::spawn(move || fs::read(path));
        let clock = SystemClock::new();
        while !rig.log().contains("opening the volume anew") {
            assert!(clock.elapsed() < LONG, "{}", rig.log());
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(pause_ms));
        rig.daemon.kill().unwrap();
        rig.daemon.wait().unwrap();
        drop(reader.join());
        drop(file);
        rig.plan(WELL);
        fstitch(&format!("umount -q --lazy {}", rig.place.text("mnt")));
        rig.daemon = mount(&rig.place, "");
        let found = content(&rig, "file");
        assert!(found == "promised" || found == "whatever", "{kind}: {found}");
        assert_eq!(content(&rig, "d/file7"), "contents 7");
        rig.wait("it is reclaimed", |rig| {
            !fstitch(&format!("status {}", rig.place.text("mnt"))).ok().contains("reclaiming")
        });
        rig.end();
    }
}

#[test]
fn what_does_not_go_with_such_a_policy_is_refused_by_name() {
    let place = Place::new();
    let (image, at) = (place.text("a.img"), place.directory("mnt"));
    fstitch(&format!("mkfs ext3 -q --policy reboot {image} 16M")).ok();
    for option in ["writeback_cache", "fsync=ordered"] {
        let refused = fstitch(&format!("mount -o {option} {image} {at}"));
        assert_ne!(refused.code, 0);
        let said = format!("{}{}", refused.out, refused.err);
        assert!(said.contains(&format!("`{option}` is not to be had with the volume's policy")), "{said}");
    }
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let ordered = run(PROGRAM, ["order", "--on", &at, "true"]);
    assert_ne!(ordered.code, 0, "no order outlives an opening");
    mounted.end();
    // Commands follow the policy as far as they can: to them these steps are in vain.
    fs::write(place.at("one"), "one").unwrap();
    fstitch(&format!("cp -q {} {image}:/", place.text("one"))).ok();
    assert!(fstitch(&format!("ls {image}:/")).ok().contains("one"));
    is_sound(&image);
}
