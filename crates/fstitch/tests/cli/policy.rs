//! Policies as their users write and ask them. What it prevents: a mistake without its line, a story that programs cannot read, and a
//! policy that is believed although it cannot be kept.

use std::fs;

use serde_json::{Value, json};

use crate::harness::{Place, fstitch};

#[track_caller]
fn answer(line: &str) -> Value {
    serde_json::from_str(&fstitch(line).ok()).unwrap()
}

#[test]
fn shipped_policies_are_listed_shown_and_right() {
    let listed = answer("policy list --json");
    let names: Vec<&str> =
        listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"laptop") && names.contains(&"d-graid"), "{names:?}");
    for name in names {
        assert!(fstitch("policy list").ok().contains(name));
        assert!(fstitch(&format!("policy show {name}")).ok().starts_with("description = "));
        let shown = answer(&format!("policy show --json {name}"));
        assert_eq!(shown["kinds"].as_array().unwrap().len(), 17);
        fstitch(&format!("policy check --disks 2 {name}")).ok();
    }
    let chains = fstitch("policy show --chains defence-in-depth").ok();
    assert!(
        chains.contains("inode              read   verify, sanity, mirror, repair, full-check, propagate\n"),
        "{chains}"
    );
}

#[test]
fn mistakes_are_named_with_their_lines() {
    let place = Place::new();
    let file = place.text("mine.toml");
    fs::write(&file, "[inode]\nread = [\"mirror\"]\n").unwrap();
    let verdict = fstitch(&format!("policy check {file}"));
    verdict.refused(1, "mine.toml: line 2: `mirror` reads copies that no write keeps; writes need `mirror`");
    let verdict: Value = serde_json::from_str(&fstitch(&format!("policy check --json {file}")).out).unwrap();
    assert_eq!((&verdict["right"], &verdict["line"]), (&json!(false), &json!(2)));
    fstitch(&format!("policy explain {file} inode read")).refused(1, "line 2");
    fstitch("policy check d-graid").refused(1, "asks for 2 disks; the volume is on one");
    fstitch("policy check --disks 2 d-graid").ok();
    fstitch("policy check --disks 0 d-graid").refused(2, "--disks");
    fstitch("policy check nobody").refused(1, "no policy `nobody`: give a file, or one of propagate, retry");
    fstitch("policy check ./nobody.toml").refused(1, "nobody.toml: No such file");
    fs::write(&file, [0xff, 0xfe]).unwrap();
    fstitch(&format!("policy check {file}")).refused(1, "mine.toml");
    fs::File::create(&file).unwrap().set_len(1 << 40).unwrap();
    fstitch(&format!("policy check {file}")).refused(1, "it is no policy");
}

#[test]
fn copies_without_a_journals_copies_are_pointed_out() {
    let said = fstitch("policy check defence-in-depth").ok();
    assert!(said.contains("defence-in-depth: nothing is wrong with it\n"), "{said}");
    assert!(said.contains("but metadata has copies and the journal has none"), "{said}");
    let verdict = answer("policy check --json defence-in-depth");
    assert_eq!((&verdict["right"], verdict["warnings"].as_array().unwrap().len()), (&json!(true), 1));
    for policy in ["mirror-far", "laptop", "checksum", "reboot"] {
        assert!(!fstitch(&format!("policy check {policy}")).ok().contains("but "), "{policy}");
    }
}

#[test]
fn what_will_happen_is_told() {
    let told = fstitch("policy explain laptop inode write --fault eio").ok();
    let expected = "the disk reports an error\nretry: 2 attempts, in vain\nremap: written to a spare, and noted\nthe caller gets what it asked \
                    for\n";
    assert_eq!(told, expected);
    let told = answer(
        "policy explain --json defence-in-depth inode read --fault corrupt --lost copies,repair,check",
    );
    let events = ["sum-differs", "no-copy", "no-repair", "checked-in-vain", "propagated"];
    assert_eq!(told, json!([{"fault": "corrupt", "events": events, "seen": "eio", "latent": false}]));
    let all = answer("policy explain --json propagate data write");
    assert_eq!(all.as_array().unwrap().len(), 10);
    assert!(fstitch("policy explain propagate data write").ok().contains("lost\n  nobody notices\n"));
    fstitch("policy explain laptop inode sideways").refused(2, "there are read, write");
    fstitch("policy explain laptop node read").refused(2, "there are superblock, group-descriptor");
    fstitch("policy explain laptop inode read --fault flood").refused(2, "there are eio, transient");
}
