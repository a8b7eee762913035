//! How stacks end: by unmounting in the wrong order, by signals, failures and kills.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use super::{Stack, figure_6, has_worked, images, judge, status, work};
use crate::harness::{Place, fstitch, needs, needs_root, run};

/// Waits until `done`, or fails.
#[track_caller]
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("waited in vain: {what}");
}

/// Whether a process has let go of everything.
pub fn is_dead(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_none_or(|rest| rest.is_empty() || rest.starts_with(" Z"))
}

#[test]
fn a_failure_ends_all_volumes_and_unmounting_goes_on() {
    let place = Place::new();
    // The mount is stopped by an ioctl that is root's.
    if !needs_root() || !needs("python3") {
        return;
    }
    images(&place, "soft");
    let text = figure_6("soft", "ordered");
    let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    let (root, home) = (place.text("root"), place.text("home"));
    work(place.at("home"));
    let again = fstitch(&format!("mount --stack {}", stack.file));
    again.refused(1, "is in use");
    let open = fs::File::open(place.at("home/dir/1")).unwrap();
    fstitch(&format!("umount --stack {root}"))
        .refused(1, &format!("still mounted of the stack: {home}, {root}"));
    drop(open);
    let cut = "import fcntl, os, struct, sys\nfcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
    let cut = run("python3", ["-c", cut, &home]);
    if cut.code != 0 {
        println!("skipped: {}", cut.err);
        return;
    }
    for at in [&root, &home] {
        assert_ne!(status(at).unwrap()["failure"], "", "{at}");
    }
    assert!(fs::write(place.at("root/late"), "x").is_err());
    fstitch(&format!("umount -q --stack {home}")).refused(1, "not everything reached the medium");
    assert!(stack.pid().is_none(), "the others were unmounted all the same");
    let Some(again) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    assert_eq!(fs::read(place.at("home/dir/1")).unwrap(), vec![1; 9_000]);
    again.end();
    drop(stack);
    // What soft updates leave is reclaimed in the background, and unmounting stops that.
    fstitch(&format!("fsck -fp {}", place.text("disk.img")));
    judge(&place);
}

#[test]
fn what_was_synced_survives_a_kill() {
    for (outer, inner) in
        [("soft", "ordered"), ("metadata", "full"), ("ordered", "metadata"), ("soft", "soft")]
    {
        let place = Place::new();
        images(&place, outer);
        let text = figure_6(outer, inner);
        let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
        work(place.at("home"));
        work(place.at("root"));
        fs::write(place.at("home/not synced"), vec![1; 100_000]).unwrap();
        let pid = stack.pid().unwrap();
        run("kill", ["-9", &pid.to_string()]).ok();
        wait_until("the process is dead", || is_dead(pid));
        // The dead mounts are taken away by the next mount.
        let Some(again) = Stack::mount(&place, &text, &["root", "home"]) else { return };
        for at in ["home", "root"] {
            assert_eq!(fs::read(place.at(at).join("dir/1")).unwrap(), vec![1; 9_000]);
            assert!(!place.at(at).join("dir/3").exists());
        }
        let was_unclean = |at: &str| status(&place.text(at)).unwrap()["was_unclean"].as_bool();
        assert!(inner != "soft" || was_unclean("home") == Some(true), "soft updates reclaim");
        wait_until("reclaiming ends", || {
            ["home", "root"].iter().all(|at| {
                let found = status(&place.text(at)).unwrap();
                !found["recovery"].as_str().unwrap().starts_with("reclaiming")
            })
        });
        again.end();
        drop(stack);
        judge(&place);
    }
}

#[test]
fn the_outer_volume_outlives_the_inner_one() {
    let place = Place::new();
    images(&place, "soft");
    let text = figure_6("soft", "ordered");
    let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    let (root, home) = (place.text("root"), place.text("home"));
    let busy = fs::OpenOptions::new().write(true).open(place.at("root/images/home.img")).unwrap();
    assert_eq!(busy.write_at(b"x", 0).unwrap_err().raw_os_error(), Some(26), "ETXTBSY");
    assert_eq!(busy.set_len(5).unwrap_err().raw_os_error(), Some(26));
    drop(busy);
    fstitch(&format!("umount {root}")).refused(1, &format!("holds volumes that are mounted at {home}"));
    let gone = run("umount", [&root]);
    if gone.code != 0 {
        println!("skipped: {}", gone.err);
        return;
    }
    wait_until("the mount is gone", || status(&home).unwrap()["stack"]["volumes"][0]["state"] == "kept");
    let drawn = fstitch(&format!("status {home}")).ok();
    assert!(
        drawn.contains("volume root: ext2, soft, read-write, unmounted, and open for what is in it"),
        "{drawn}"
    );
    work(place.at("home"));
    fstitch(&format!("fsck -n {}", place.text("disk.img"))).refused(8, &home);
    fstitch(&format!("umount {home}")).ok();
    assert!(stack.pid().is_none());
    judge(&place);
    has_worked(&fstitch(&format!("ls {}:/dir", place.text("home.img"))));
}

#[test]
fn a_signal_ends_everything() {
    let place = Place::new();
    images(&place, "soft");
    let text = figure_6("soft", "ordered");
    let Some(stack) = Stack::mount(&place, &text, &["root", "home"]) else { return };
    work(place.at("home"));
    let open = fs::File::open(place.at("home/dir/1")).unwrap();
    run("kill", [&stack.pid().unwrap().to_string()]).ok();
    wait_until("both are out of sight", || {
        !place.at("home/dir").exists() && !place.at("root/images").exists()
    });
    let mut byte = [0];
    open.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [1], "it is served until the last file is closed");
    drop(open);
    wait_until("the process ends", || stack.pid().is_none());
    judge(&place);
}

/// A volume on a disk of its own, whose journal is a file of the volume on another disk.
#[test]
fn a_journal_in_a_file_of_another_disk() {
    for outer in ["soft", "ordered", "metadata"] {
        let place = Place::new();
        let at = |name: &str| place.text(name);
        let format = if outer == "soft" { "ext2" } else { "ext3" };
        fstitch(&format!("mkfs {format} -q -b 1024 {} 16M", at("a"))).ok();
        fstitch(&format!("mkfs ext2 -q -b 1024 {} 24M", at("b"))).ok();
        fstitch(&format!("mkfs journal -q -b 1024 {} 1M", at("log"))).ok();
        fstitch(&format!("tune --journal-device {} {}", at("log"), at("b"))).ok();
        fstitch(&format!("cp {} {}:/", at("log"), at("a"))).ok();
        let mut text = String::new();
        for (name, more) in [("b", "journal = \"log\""), ("a", &format!("consistency = \"{outer}\""))] {
            place.directory(&format!("on-{name}"));
            text += &format!("[[device]]\nname = \"{name}\"\npath = \"{name}\"\n");
            text += &format!(
                "[[volume]]\nname = \"{name}\"\ndevice = \"{name}\"\nmount = \"on-{name}\"\n{more}\n"
            );
        }
        text += "[[device]]\nname = \"log\"\nvolume = \"a\"\nfile = \"log\"\n";
        let Some(stack) = Stack::mount(&place, &text, &["on-a", "on-b"]) else { return };
        assert_eq!(status(&at("on-b")).unwrap()["consistency"], "ordered");
        fstitch(&format!("umount {}", at("on-a"))).refused(1, &at("on-b"));
        work(place.at("on-b"));
        work(place.at("on-a"));
        fs::write(place.at("on-b/not synced"), vec![1; 300_000]).unwrap();
        let pid = stack.pid().unwrap();
        run("kill", ["-9", &pid.to_string()]).ok();
        wait_until("the process is dead", || is_dead(pid));
        fstitch(&format!("fsck -n {}", at("b"))).refused(8, "which was not named");
        let Some(again) = Stack::mount(&place, &text, &["on-a", "on-b"]) else { return };
        assert_eq!(fs::read(place.at("on-b/dir/1")).unwrap(), vec![1; 9_000]);
        wait_until("reclaiming ends", || {
            !status(&at("on-a")).unwrap()["recovery"].as_str().unwrap().starts_with("reclaiming")
        });
        again.end();
        drop(stack);
        fstitch(&format!("cp {}:/log {}", at("a"), at("log"))).ok();
        fstitch(&format!("fsck -fn --journal {} {}", at("log"), at("b"))).ok();
        has_worked(&fstitch(&format!("ls {}:/dir", at("b"))));
        if needs("e2fsck") {
            run("e2fsck", ["-fn", &at("a")]).ok();
            run("e2fsck", ["-fn", "-j", &at("log"), &at("b")]).ok();
        }
    }
}
