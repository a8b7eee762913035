//! Processors are kept awake where that helps, `status` says so, and a mount that nobody uses costs nothing.

use std::time::Duration;

use crate::harness::{Mounted, Place, fstitch};

/// Ticks of processor time that a process has had; usually a hundred of them are a second.
fn ticks(pid: u64) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after = stat.rsplit_once(") ").unwrap().1;
    let times: Vec<u64> = after.split(' ').skip(11).take(2).map(|field| field.parse().unwrap()).collect();
    times.iter().sum()
}

/// What `status` says of the mount on `at`.
fn status(at: &str) -> serde_json::Value {
    let said: serde_json::Value =
        serde_json::from_str(&fstitch(&format!("status --json {at}")).ok()).unwrap();
    said[0].clone()
}

/// Makes and removes a file until `done`, or says that it never was.
fn keep_busy(mounted: &Mounted, done: impl Fn() -> bool) -> bool {
    let file = mounted.path().join("busy");
    (0..200).any(|_| {
        for _ in 0..50 {
            std::fs::write(&file, "x").unwrap();
            std::fs::remove_file(&file).unwrap();
        }
        done()
    })
}

#[test]
fn a_mount_that_nobody_uses_takes_no_processor_time() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    for options in ["", "-o awake=on"] {
        let Some(mounted) = Mounted::new(options, &image, &at) else { return };
        let pid = status(&at)["pid"].as_u64().unwrap();
        keep_busy(&mounted, || false);
        // What was written is flushed meanwhile.
        std::fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(500));
        let before = ticks(pid);
        std::thread::sleep(Duration::from_secs(1));
        let took = ticks(pid) - before;
        assert!(took <= 3, "{took} ticks in a second of rest, with `{options}`");
        mounted.end();
    }
}

#[test]
fn status_tells_what_is_done_and_why() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let Some(mounted) = Mounted::new("", &image, &at) else { return };
    let measured = || status(&at)["awake"]["why"] != "not measured yet";
    assert!((0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        measured()
    }));
    let awake = status(&at)["awake"].clone();
    assert_eq!(awake["mode"], "auto");
    let is_kept = awake["means"] != "";
    assert!(is_kept == (awake["why"] == "processors wake slowly"), "{awake}");
    assert!(fstitch(&format!("status {at}")).ok().contains("idle processors: "));
    mounted.end();
    let Some(mounted) = Mounted::new("-o awake=off", &image, &at) else { return };
    assert_eq!((&status(&at)["awake"]["mode"], &status(&at)["awake"]["means"]), (&"off".into(), &"".into()));
    mounted.end();
}

#[test]
fn who_asks_for_it_has_it_while_requests_come() {
    let place = Place::new();
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    if std::thread::available_parallelism().unwrap().get() < 2 {
        println!("skipped: one processor, which nobody else can sleep on");
        return;
    }
    let Some(mounted) = Mounted::new("-o awake=on", &image, &at) else { return };
    let held = || status(&at)["awake"]["held"] == true;
    assert!(keep_busy(&mounted, held), "{}", status(&at));
    assert!((0..100).any(|_| {
        std::thread::sleep(Duration::from_millis(50));
        !held()
    }));
    mounted.end();
}
