//! `crash mount --record` and `crash replay-log`: what programs did to a mount, and what power cuts could have left of it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::{Mounted, PROGRAM, Place, Ran, fstitch, needs_root};

/// Files that come, move and go, with syncs between; `None` where nothing can be mounted.
fn recorded(place: &Place) -> Option<(String, String)> {
    let (image, at) = (place.volume("a.img"), place.directory("m"));
    let (base, log) = (place.text("base.img"), place.text("log"));
    fs::copy(&image, &base).unwrap();
    let mounted = Mounted::with("crash mount", &format!("--record {log}"), &image, &at)?;
    let file = |name: String| mounted.path().join(name);
    for round in 0..6 {
        fs::create_dir(file(format!("d{round}"))).unwrap();
        for n in 0..8 {
            fs::write(file(format!("d{round}/f{n}")), vec![n; 5_000]).unwrap();
        }
        for n in 0..4 {
            fs::rename(file(format!("d{round}/f{n}")), file(format!("moved-{round}-{n}"))).unwrap();
            fs::remove_file(file(format!("d{round}/f{}", n + 4))).unwrap();
        }
        fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
        if round > 0 {
            fs::remove_dir(file(format!("d{}", round - 1))).unwrap();
        }
    }
    mounted.end();
    Some((base, log))
}

fn searched(options: &str, code: i32) -> Value {
    let ran = fstitch(&format!("crash replay-log --json {options}"));
    assert_eq!(ran.code, code, "{ran:?}");
    serde_json::from_str(&ran.out).unwrap()
}

/// Prevents a mount whose writes, in the order in which it flushes them, are not safe; and a search that finds nothing
/// because it cannot.
#[test]
fn a_recorded_mount_survives_power_cuts_and_without_flushes_it_does_not() {
    let place = Place::new();
    let Some((base, log)) = recorded(&place) else { return };
    let found = searched(&format!("--states 400 --states-per-cut 24 --aftermath 4 {base} {log}"), 0);
    assert_eq!(found["violations"], Value::Array(vec![]));
    let number = |key: &str| found[key].as_u64().unwrap();
    assert!(number("cuts") > 5 && number("cuts") <= number("moments"), "{found}");
    assert!(number("states_checked") > 50 && number("states_generated") <= 400, "{found}");
    assert!(number("aftermaths") > 10, "{found}");
    let sample = found["samples"][0].as_str().unwrap();
    let image = place.text("state.img");
    let again = searched(&format!("--cut {sample} --write-image {image} {base} {log}"), 0);
    assert_eq!((&again["lawful"], again["id"].as_str()), (&Value::Bool(true), Some(sample)));
    let checked: Value = serde_json::from_str(&fstitch(&format!("fsck -fn --json {image}")).out).unwrap();
    assert_eq!(checked["corrupt"], 0, "{checked}");

    let unordered = searched(&format!("--consistency async --states 400 {base} {log}"), 1);
    let (id, code) = (&unordered["violations"][0]["id"], &unordered["violations"][0]["code"]);
    let line = unordered["violations"][0]["replay"].as_str().unwrap();
    let line = line.strip_prefix("fstitch ").unwrap();
    let again: Value = serde_json::from_str(&fstitch(&format!("{line} --json")).out).unwrap();
    assert_eq!((&again["lawful"], &again["id"], &again["code"]), (&Value::Bool(false), id, code));
    let said = fstitch(line);
    assert!(said.code == 1 && said.out.contains(code.as_str().unwrap()), "{said:?}");
}

/// The same by the shell, as it is printed.
fn by_shell(line: &str) -> Ran {
    let line = line.strip_prefix("fstitch ").unwrap();
    Command::new("sh").args(["-c", &format!("exec '{PROGRAM}' {line}")]).output().unwrap().into()
}

/// Prevents a program that is asked about other trees than those that are left, or whose answer is not heard.
#[test]
fn a_question_is_put_to_every_different_tree_and_an_answer_is_found_again() {
    let place = Place::new();
    let Some((base, log)) = recorded(&place) else { return };
    if !needs_root() {
        let line = format!("crash replay-log --ask true {base} {log}");
        return fstitch(&line).refused(1, "with their owners, which only root may do");
    }
    let ask = |question: &str| {
        let line = format!("fstitch crash replay-log --json --states 300 --ask {question} {base} {log}");
        let ran = by_shell(&line);
        (ran.code, serde_json::from_str::<Value>(&ran.out).unwrap_or_else(|_| panic!("{ran:?}")))
    };
    let (code, content) = ask("'test -d lost+found && touch new && ! find . -name \"*.new\" | grep .'");
    assert_eq!(code, 0, "{content}");
    let asked = content["asked"].as_u64().unwrap();
    assert!(asked > 10 && asked <= content["states_checked"].as_u64().unwrap(), "{content}");
    // It is there after the second sync, whole.
    let (code, found) = ask("'if [ -e moved-1-3 ]; then cksum < moved-1-3; exit 7; fi'");
    assert_eq!((code, &found["violations"][0]["code"]), (1, &Value::from("asked")), "{found}");
    let violation = &found["violations"][0];
    assert!(violation["text"].as_str().unwrap().contains("exit status: 7"), "{violation}");
    let again = by_shell(violation["replay"].as_str().unwrap());
    assert_eq!(again.code, 1, "{again:?}");
    assert!(again.out.contains(violation["text"].as_str().unwrap()), "{again:?}");
    let (code, nowhere) = ask("false --ask-in /nowhere");
    assert_eq!((code, nowhere["asked"].as_u64()), (0, Some(0)));
}

/// Prevents wrong verdicts about logs that are damaged, or that belong to another volume.
#[test]
fn logs_that_do_not_fit_are_refused() {
    let place = Place::new();
    let Some((base, log)) = recorded(&place) else { return };
    let refused = |base: &str, log: &str, said: &str| {
        fstitch(&format!("crash replay-log {base} {log}")).refused(1, said);
    };
    refused(&base, &base, "not a dm-log-writes log");
    refused(&base, &place.text("nothing"), "opening the log");
    let noise = place.text("noise");
    fs::write(&noise, vec![7; 1 << 20]).unwrap();
    refused(&noise, &log, "holds no ext2 volume");
    let bytes = fs::read(&log).unwrap();
    let short = place.text("short");
    fs::write(&short, &bytes[..bytes.len() - 600]).unwrap();
    refused(&base, &short, "the log ends within entry");
    let (other, small, large) = (place.volume("other.img"), place.text("small.img"), place.text("large.img"));
    fs::write(&small, &fs::read(&base).unwrap()[..64 << 10]).unwrap();
    fstitch(&format!("mkfs ext2 -q -b 4096 {large} 4M")).ok();
    for image in [&other, &large] {
        refused(image, &log, "was not recorded on this base but on another image: other bytes stand in it");
    }
    refused(&small, &log, "that had 4194304 bytes, this has 65536");
    // The volume itself, a moment later: nothing but the digest tells.
    let later = place.text("a.img");
    refused(&later, &log, "was not recorded on this base");
    // A log that does not say what it was recorded on, as other programs write them.
    let foreign = place.text("foreign");
    let mut without = bytes.clone();
    let entries = u64::from_le_bytes(without[16..24].try_into().unwrap());
    without[16..24].copy_from_slice(&(entries - 1).to_le_bytes());
    drop(without.drain(512..1024));
    fs::write(&foreign, without).unwrap();
    searched(&format!("--states 20 {base} {foreign}"), 0);
    refused(&other, &foreign, "writes a superblock with another UUID");
    refused(&small, &foreign, "lie outside the device");
    refused(&large, &foreign, "writes parts of blocks of 4096 bytes");
    let journal = fstitch(&format!("crash replay-log --consistency ordered {base} {log}"));
    journal.refused(1, "`ordered` is kept by a journal, and");
    let unknown = fstitch(&format!("crash replay-log {base} {log} --cut 1:9"));
    unknown.refused(1, "the log has no state 1:9");
}

/// Prevents a summary that claims what was not done: nobody knows what the programs of a log did, so nothing is compared.
#[test]
fn a_summary_says_what_was_looked_at() {
    let place = Place::new();
    let Some((base, log)) = recorded(&place) else { return };
    let said = fstitch(&format!("crash replay-log --states 60 {base} {log}")).ok();
    assert!(said.contains("every file read; no contents or names compared"), "{said}");
    assert!(!said.contains("every file compared") && !said.contains("operations"), "{said}");
    let state = said.lines().find_map(|line| line.strip_prefix("lawful, --cut")).unwrap().trim();
    fstitch(&format!("crash replay-log --cut {state} {base} {log}")).ok();
}

/// Starts a search that would take very long, waits for a line about it on standard error, and interrupts it.
fn interrupted(line: &str) -> Ran {
    let mut child = Command::new(PROGRAM)
        .args(line.split_whitespace())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut err = String::new();
    said.read_line(&mut err).unwrap();
    let child_id = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(child_id, rustix::process::Signal::INT).unwrap();
    said.read_to_string(&mut err).unwrap();
    Ran { err, ..child.wait_with_output().unwrap().into() }
}

/// Prevents a search of which nobody hears for minutes, and one whose work is lost when somebody has waited long enough.
#[test]
fn a_long_search_says_how_far_it_is_and_an_interrupt_keeps_what_it_found() {
    let ran = interrupted("crash run seq3 --states-per-cut 64");
    assert_eq!(ran.code, 130, "{ran:?}");
    assert!(ran.err.contains(" of 157216000 workloads, ") && ran.err.contains("interrupted"), "{}", ran.err);
    assert!(ran.out.contains("recovered, checked, every file compared"), "{}", ran.out);
    let ran = interrupted("crash groups --programs 0..1000000");
    assert!(ran.code == 130 && ran.out.contains("programs, ") && ran.err.contains("interrupted"), "{ran:?}");

    let place = Place::new();
    let Some((base, log)) = recorded(&place) else { return };
    let ran = interrupted(&format!(
        "crash replay-log --states 100000000 --states-per-cut 2000 --aftermath 1 --depth 2 {base} {log}"
    ));
    // A log is short: a fast machine may have seen all of it before the interrupt comes.
    if ran.code != 0 {
        assert_eq!(ran.code, 130, "{ran:?}");
        assert!(ran.err.contains("moments of a power cut, "), "{}", ran.err);
    }
    assert!(ran.out.contains("moments visited"), "{}", ran.out);
}
