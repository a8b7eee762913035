//! The same on a mount that has patchgroups.

use std::fs;
use std::path::Path;

use super::{c_programs, example, python, replaced, shell};
use crate::harness::{Mounted, Place, fstitch};

fn mounted(place: &Place) -> Option<Mounted> {
    let image = place.volume("a.img");
    Mounted::new("", &image, &place.directory("mnt"))
}

#[test]
fn the_c_program_runs_without_waiting() {
    let place = Place::new();
    let Some(programs) = c_programs(&place, "0") else { return };
    let Some(mounted) = mounted(&place) else { return };
    for program in &programs {
        shell(program, mounted.path()).ok();
        replaced(mounted.path());
    }
    mounted.end();
}

#[test]
fn the_python_module_finds_the_rules_of_the_mount() {
    let place = Place::new();
    let Some(python) = python(&place) else { return };
    let Some(mounted) = mounted(&place) else { return };
    let strict = example("python").replace("or_fsync=True", "or_fsync=False");
    fs::write(place.at("program.py"), strict).unwrap();
    shell(&format!("{python} {}", place.text("program.py")), mounted.path()).ok();
    replaced(mounted.path());
    shell(&format!("{python} {} mounted", place.text("rules.py")), mounted.path()).ok();
    mounted.end();
}

#[test]
fn depend_runs_commands_in_order_and_stops_at_the_first_failure() {
    let place = Place::new();
    let Some(mounted) = mounted(&place) else { return };
    let at = mounted.path();
    shell(example("sh"), at).ok();
    replaced(at);
    let three = "fstitch depend 'echo one > log' 'echo two >> log; exit 7' 'echo three >> log'";
    shell(three, at).refused(7, "");
    assert_eq!(fs::read_to_string(at.join("log")).unwrap(), "one\ntwo\n");
    assert_eq!(shell("fstitch depend 'kill -TERM $$'", at).code, 128 + 15);
    // What a command leaves behind is waited for: its changes are the command's.
    shell("fstitch depend --sync '(sleep 0.3; echo late > late) &' 'cat late > seen'", at).ok();
    assert_eq!(fs::read_to_string(at.join("seen")).unwrap(), "late\n");
    // From elsewhere, and a depend inside a depend.
    let nested = format!(
        "cd /; fstitch depend --on {0} \"cd {0}; fstitch depend 'echo a > n' 'echo b >> n'\" 'echo c >> {0}/n'",
        at.display()
    );
    shell(&nested, at).ok();
    assert_eq!(fs::read_to_string(at.join("n")).unwrap(), "a\nb\nc\n");
    mounted.end();
}

#[test]
fn order_covers_what_a_program_starts_and_status_shows_it() {
    let place = Place::new();
    let Some(mounted) = mounted(&place) else { return };
    let at = mounted.path();
    let status = format!("fstitch status {}", at.display());
    assert!(!shell(&status, at).ok().contains("ordered fsync"));
    let during = format!("sync a 2> /dev/null; {status}; {status} --json");
    fs::write(at.join("a"), "a").unwrap();
    let shown = shell(&format!("fstitch order --durable-every 5s -- sh -c '{during}; exit 3'"), at);
    assert_eq!(shown.code, 3, "{shown:?}");
    assert!(shown.out.contains("ordered fsync: process") && shown.out.contains("every 5 s"), "{shown:?}");
    assert!(shown.out.contains("\"durable_every_ms\": 5000"), "{shown:?}");
    shell("fstitch order -- fstitch order -- true", at).refused(1, "already");
    // An interrupt is for the program, which may tidy up.
    let tidies = "trap 'sleep 0.2; echo > tidied; exit 9' INT; sleep 5";
    let interrupted = format!(r#"timeout --preserve-status -s INT 0.5 fstitch order -- sh -c "{tidies}""#);
    assert_eq!(shell(&interrupted, at).code, 9);
    assert!(at.join("tidied").exists());
    // A process that is left behind is still the program's.
    shell("fstitch order -- sh -c '(sleep 0.3; echo late > late; sync late) &'", at).ok();
    assert_eq!(fs::read_to_string(at.join("late")).unwrap(), "late\n");
    // Unless nobody waits for it.
    shell("fstitch order --no-wait -- sh -c '(sleep 1; echo later > later) > /dev/null 2>&1 &'", at).ok();
    assert!(!at.join("later").exists(), "it has waited for what the program left behind");
    shell("until test -s later; do sleep 0.1; done", at).ok();
    mounted.end();
}

/// The kernel tells no file system in user space of syncfs, so waiting for that would only look like an order.
#[test]
fn a_volume_that_keeps_no_order_is_refused_with_and_without_waiting() {
    let place = Place::new();
    let image = place.volume("a.img");
    let Some(mounted) = Mounted::new("-o consistency=async", &image, &place.directory("mnt")) else { return };
    let at = mounted.path();
    for options in ["", "--or-fsync"] {
        shell(&format!("fstitch depend {options} 'touch never'"), at).refused(1, "keeps an order");
    }
    shell("fstitch order touch never", at).refused(1, "keeps an order");
    if let Some(python) = python(&place) {
        let program = format!("{python} {}", place.text("program.py"));
        shell(&program, at).refused(1, "patchgroup.Unsupported");
    }
    assert!(!at.join("never").exists() && !at.join("settings").exists());
    mounted.end();
}

/// What a power cut left of nine commands.
struct Left {
    /// The first whose changes are not all there; 10 if none.
    first_missing: u32,
    /// Those after it of which something is there.
    beyond: Vec<u32>,
}

impl Left {
    fn of(at: &Path) -> Self {
        let whole = |n: u32| {
            let contents: String = (1..=n * 1000).map(|line| format!("{line}\n")).collect();
            let found = fs::read_to_string(at.join(format!("d{n}/file")));
            found.is_ok_and(|found| found == contents) && at.join(format!("d{n}/dir")).exists()
        };
        let anything = |n: u32| fs::read_dir(at.join(format!("d{n}"))).unwrap().next().is_some();
        let first_missing = (1..=9).find(|&n| !whole(n)).unwrap_or(10);
        Self { first_missing, beyond: (first_missing + 1..=9).filter(|&n| anything(n)).collect() }
    }

    /// Runs nine commands by `runner`, cuts the power in the middle of a sync, and looks.
    fn after_cut(seed: u32, mechanism: &str, runner: &str) -> Option<Self> {
        let place = Place::new();
        let image = place.text("a.img");
        let kind = if mechanism == "soft" { "ext2" } else { "ext3" };
        fstitch(&format!("mkfs {kind} -q {image} 16M")).ok();
        let at = place.directory("mnt");
        let mounted = Mounted::with("crash mount", &format!("-o consistency={mechanism}"), &image, &at)?;
        // Names in different blocks, which can reach the medium without each other.
        shell("mkdir d1 d2 d3 d4 d5 d6 d7 d8 d9; sync .", mounted.path()).ok();
        let commands: String =
            (1..=9).map(|n| format!(" 'seq {n}000 > d{n}/file; mkdir d{n}/dir'")).collect();
        shell(&format!("{runner}{commands}"), mounted.path()).ok();
        let flush = 1 + seed % 5;
        fstitch(&format!("crash cut {at} --survivors seed={seed} --at-flush {flush}")).ok();
        fstitch(&format!("umount {at}")).refused(1, "the power is gone");
        drop(mounted);
        let mounted = Mounted::new("", &image, &at)?;
        let left = Self::of(mounted.path());
        mounted.end();
        Some(left)
    }
}

#[test]
fn a_power_cut_leaves_the_first_commands() {
    for (seed, mechanism) in (1..=9).zip(["soft", "metadata", "ordered"].into_iter().cycle()) {
        let Some(left) = Left::after_cut(seed, mechanism, "fstitch depend") else { return };
        let Left { first_missing, beyond } = left;
        assert!(
            beyond.is_empty(),
            "seed {seed}, {mechanism}: {first_missing} is not whole, but of {beyond:?}"
        );
    }
}

/// The same commands in no order: the test above must be able to fail.
#[test]
fn without_depend_a_power_cut_leaves_later_commands_without_earlier_ones() {
    let unordered = r#"each() { for c in "$@"; do sh -c "$c"; done; }; each"#;
    for seed in 1..=16 {
        let Some(left) = Left::after_cut(seed, "soft", unordered) else { return };
        if !left.beyond.is_empty() {
            return;
        }
    }
    panic!("16 cuts left only prefixes, without anything that orders");
}

/// Between two ordering points something may be missing, but nothing before the first of them; and as nothing waits, some
/// cut loses something.
#[test]
fn a_power_cut_under_order_loses_the_last_moments_only() {
    let ordered = r#"fstitch order -- sh -c 'for c; do sh -c "$c"; sync .; done' sh"#;
    let mut lost = 0;
    for (seed, mechanism) in (1..=9).zip(["soft", "metadata", "ordered"].into_iter().cycle()) {
        let Some(left) = Left::after_cut(seed, mechanism, ordered) else { return };
        let Left { first_missing, beyond } = left;
        assert!(
            beyond.is_empty(),
            "seed {seed}, {mechanism}: {first_missing} is not whole, but of {beyond:?}"
        );
        lost += u32::from(first_missing < 10);
    }
    assert!(lost > 0, "fsync has waited");
}

/// The same for commands that never sync.
#[test]
fn a_power_cut_under_order_of_every_change_leaves_the_first_commands() {
    let ordered = r#"fstitch order --every-change -- sh -c 'for c; do sh -c "$c"; done' sh"#;
    for (seed, mechanism) in (1..=9).zip(["soft", "metadata", "ordered"].into_iter().cycle()) {
        let Some(left) = Left::after_cut(seed, mechanism, ordered) else { return };
        let Left { first_missing, beyond } = left;
        assert!(
            beyond.is_empty(),
            "seed {seed}, {mechanism}: {first_missing} is not whole, but of {beyond:?}"
        );
    }
}

#[test]
fn what_is_older_than_durable_every_is_never_lost() {
    for (options, is_kept) in [("--durable-every 200ms", true), ("", false)] {
        let place = Place::new();
        let (image, at) = (place.volume("a.img"), place.directory("mnt"));
        let Some(mounted) = Mounted::with("crash mount", "", &image, &at) else { return };
        let work = format!("fstitch order {options} -- sh -c 'echo kept > a; sync a; sleep 1'");
        shell(&work, mounted.path()).ok();
        fstitch(&format!("crash cut {at} --survivors none")).ok();
        fstitch(&format!("umount {at}")).refused(1, "the power is gone");
        drop(mounted);
        let Some(mounted) = Mounted::new("", &image, &at) else { return };
        assert_eq!(mounted.path().join("a").exists(), is_kept, "order {options}");
        mounted.end();
    }
}
