//! A mount whose daemon was killed is shown with what to do about it, and `umount` takes it away; what others have
//! mounted is left alone.

use std::time::Duration;

use crate::harness::{Mounted, Place, fstitch, needs_root, run};

/// The status of one mount as programs read it.
fn status(at: &str) -> serde_json::Value {
    let all: serde_json::Value = serde_json::from_str(&fstitch("status --json").ok()).unwrap();
    let found = all.as_array().unwrap().iter().find(|mount| mount["mountpoint"] == at);
    found.cloned().unwrap_or_default()
}

/// Waits until the kernel has noticed that a daemon is gone: requests under way hold its device for a moment.
fn wait_until_dead(at: &str) {
    for _ in 0..1000 {
        let seen = status(at);
        if seen["pid"] == 0 && seen["failure"].as_str().unwrap_or_default().contains("dead") {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{}", status(at));
}

#[test]
fn a_killed_daemon_leaves_a_mount_that_status_shows_and_umount_takes_away() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(_mounted) = Mounted::new("", &image, &at) else { return };
    let pid = status(&at)["pid"].as_u64().unwrap();
    run("kill", ["-9", &pid.to_string()]).ok();
    wait_until_dead(&at);
    let advice = format!("its daemon is dead: `fstitch umount {at}` (or `fusermount3 -u {at}`)");
    for line in ["status".to_owned(), format!("status {at}")] {
        let ran = fstitch(&line);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.out.contains(&format!("{image} on {at}\n")) && ran.out.contains(&advice), "{ran:?}");
    }
    fstitch(&format!("stats {at}")).refused(1, &advice);
    fstitch(&format!("fsck --online {at}")).refused(8, &advice);
    fstitch(&format!("umount {at}")).ok();
    assert_eq!(status(&at), serde_json::Value::Null);
    fstitch(&format!("status {at}")).refused(1, "no fstitch mount answers");
    fstitch(&format!("fsck -fp {image}"));
    fstitch(&format!("fsck -fn {image}")).ok();
}

#[test]
fn a_stuck_daemon_is_shown_and_keeps_nobody_waiting() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let pid = status(&at)["pid"].as_u64().unwrap().to_string();
    run("kill", ["-STOP", &pid]).ok();
    let shown = [fstitch("status"), fstitch(&format!("status {at}")), fstitch(&format!("umount {at}"))];
    let seen = status(&at);
    // Going on comes before judging: a daemon that is left stopped would keep all others waiting.
    run("kill", ["-CONT", &pid]).ok();
    for ran in &shown {
        let said = format!("{}{}", ran.out, ran.err);
        assert!(ran.code == 1 && said.contains("does not answer"), "{ran:?}");
    }
    assert_eq!(seen["pid"], 0, "{seen}");
    mounted.end();
}

/// Who has a volume is found without a look at the files that processes have open: that would wait for a daemon that is stuck, and
/// keep a mount of somebody else's busy for a moment.
#[test]
fn who_has_a_volume_is_named_though_files_of_a_stuck_daemon_are_open() {
    let place = Place::new();
    let (stuck, at) = (place.volume("a.img"), place.directory("m"));
    let (image, elsewhere) = (place.volume("b.img"), place.directory("n"));
    let Some(mounted) = Mounted::new("", &stuck, &at) else { return };
    let Some(other) = Mounted::new("", &image, &elsewhere) else { return };
    let (pid, owner) = (status(&at)["pid"].clone(), status(&elsewhere)["pid"].clone());
    let mut open = std::fs::File::create(mounted.path().join("a")).unwrap();
    // The kernel has to ask for the attributes after a write.
    std::io::Write::write_all(&mut open, b"written").unwrap();
    run("kill", ["-STOP", &pid.to_string()]).ok();
    let refused = run("timeout", ["-s", "KILL", "30", crate::harness::PROGRAM, "mkfs", "ext2", "-F", &image]);
    run("kill", ["-CONT", &pid.to_string()]).ok();
    refused.refused(1, &format!("is in use: process {owner} (fstitch) has it open"));
    drop(open);
    other.end();
    mounted.end();
}

#[test]
fn what_others_have_mounted_is_left_alone() {
    if !needs_root() {
        return;
    }
    let place = Place::new();
    let at = place.directory("m");
    let script = format!(
        "mount -t tmpfs theirs {at}\necho kept > {at}/a\nset +e\n$F umount {at}; echo $?\n$F umount --lazy {at}; echo $?\n\
         $F status {at}; echo $?\n$F stats {at}; echo $?\ncat {at}/a\n"
    );
    let Some(ran) = place.in_namespace(&script) else { return };
    let said = ran.err.clone();
    assert_eq!(ran.ok(), "1\n1\n1\n1\nkept\n", "{said}");
    assert_eq!(said.matches("is a mount of tmpfs (theirs), not of fstitch: umount(8)").count(), 2, "{said}");
    assert_eq!(said.matches("is a mount of tmpfs, not of fstitch").count(), 2, "{said}");
}

#[test]
fn an_image_in_place_of_its_mount_point_is_understood() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    fstitch(&format!("umount {image}")).refused(1, "is not a mount point: `fstitch status` lists");
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    fstitch(&format!("umount {image}")).refused(1, &format!("it is mounted at {at}: `fstitch umount {at}`"));
    mounted.end();
}
