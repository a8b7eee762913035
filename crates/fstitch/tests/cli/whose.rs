//! Damaged blocks are named by the files that they belong to. What it prevents: a scrub that leaves people with numbers of blocks, names that are
//! not those of the files that are hurt, and a policy that keeps fewer copies than it says without anybody being told whose they are.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

use serde_json::{Value, json};

use crate::harness::{Mounted, Place, fstitch, needs, needs_root, run};

/// Bytes of a block of the volumes here.
const BLOCK: u64 = 1024;

fn contents(seed: u32, len: u32) -> Vec<u8> {
    (0..len).map(|at| (at / 7 % 251) as u8 ^ seed as u8).collect()
}

/// A volume of 16 MiB with a policy, directories in each other, a large file, one with a hole, two names and a long symbolic link.
fn volume(place: &Place, kind: &str, policy: &str) -> String {
    let image = place.text("a.img");
    fs::write(place.at("small"), contents(1, 20_000)).unwrap();
    fs::write(place.at("large"), contents(2, 700_000)).unwrap();
    let holes = fs::File::create(place.at("holes")).unwrap();
    holes.write_all_at(b"at the end of nothing", 5_000_000).unwrap();
    fstitch(&format!("mkfs {kind} -b 1024 -q --policy {policy} {image} 16M")).ok();
    for directory in ["d", "d/e", "d/e/f"] {
        fstitch(&format!("mkdir {image}:/{directory}")).ok();
    }
    let from = |name: &str| place.text(name);
    fstitch(&format!("cp -q {} {image}:/d/small", from("small"))).ok();
    fstitch(&format!("cp -q {} {image}:/d/e/f/large", from("large"))).ok();
    fstitch(&format!("cp -q {} {image}:/holes", from("holes"))).ok();
    fstitch(&format!("ln {image}:/d/small {image}:/d/e/again")).ok();
    fstitch(&format!("ln -s {} {image}:/link", "x".repeat(200))).ok();
    image
}

fn debugfs(image: &str, request: &str) -> String {
    let told = run("debugfs", ["-R", request, image]);
    assert_eq!(told.code, 0, "{request}: {}", told.err);
    told.out
}

/// The rows of a table with a head, of two columns.
fn rows(table: &str) -> impl Iterator<Item = (u64, String)> + '_ {
    table.lines().skip(1).filter_map(|row| {
        let (number, rest) = row.split_once('\t')?;
        Some((number.trim().parse().ok()?, rest.to_owned()))
    })
}

fn owners(image: &str, blocks: &[u64]) -> Vec<Value> {
    let asked: String = blocks.iter().map(|block| format!(" --block {block}")).collect();
    let said: Value = serde_json::from_str(&fstitch(&format!("health --json{asked} {image}")).ok()).unwrap();
    assert_eq!((&said["others"], &said["unread"]), (&json!(0), &json!(0)), "{said}");
    said["owners"].as_array().unwrap().clone()
}

/// The blocks from 1 to `end` on, as `debugfs` has them: by inode.
fn by_inode(image: &str, end: u64) -> BTreeMap<u64, BTreeSet<u64>> {
    let mut inodes: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    let all: Vec<String> = (1..end).map(|block| block.to_string()).collect();
    for some in all.chunks(1000) {
        for (block, inode) in rows(&debugfs(image, &format!("icheck {}", some.join(" ")))) {
            if let Ok(inode) = inode.trim().parse() {
                inodes.entry(inode).or_default().insert(block);
            }
        }
    }
    inodes
}

#[test]
fn every_block_of_a_volume_is_its_owners_as_debugfs_says() {
    if !needs("debugfs") {
        return;
    }
    for kind in ["ext2", "ext3"] {
        let place = Place::new();
        let image = volume(&place, kind, "checksum");
        let end = 16 << 10;
        let expected = by_inode(&image, end);
        let all: Vec<u64> = (1..end).collect();
        let said = owners(&image, &all);
        // A block of the inode table is the table's, and those of all who have their inodes in it.
        let once = said.iter().filter(|owner| owner["role"] != json!("inode"));
        assert_eq!(once.map(|owner| owner["blocks"].as_u64().unwrap()).sum::<u64>(), end - 1);
        let inodes: BTreeSet<u64> =
            expected.keys().copied().filter(|inode| *inode > 11 || *inode == 2).collect();
        assert!(inodes.len() >= 7, "{inodes:?}");
        for inode in &inodes {
            let roles = ["contents", "directory", "pointers", "attributes"];
            let of_inode = |owner: &&Value| {
                owner["inode"] == json!(inode) && roles.iter().any(|role| owner["role"] == json!(role))
            };
            let mine: Vec<&Value> = said.iter().filter(of_inode).collect();
            let blocks: u64 = mine.iter().map(|owner| owner["blocks"].as_u64().unwrap()).sum();
            let first = mine.iter().filter_map(|owner| owner["first_block"].as_u64()).min();
            let theirs = &expected[inode];
            assert_eq!(
                (blocks, first),
                (theirs.len() as u64, theirs.first().copied()),
                "inode {inode}: {mine:?}"
            );
            // What is in the root has two slashes there.
            let path = |(_, path): (u64, String)| path.replacen("//", "/", 1);
            let mut paths: Vec<String> =
                rows(&debugfs(&image, &format!("ncheck {inode}"))).map(path).collect();
            paths.sort();
            let mut found: Vec<String> = mine[0]["paths"].as_array().unwrap().iter().map(text).collect();
            found.sort();
            // It gives the root no name.
            if *inode == 2 {
                assert_eq!(found, ["/"]);
            } else {
                assert_eq!(found, paths, "inode {inode}");
            }
        }
        let count = |role: &str| -> u64 {
            let of_role = said.iter().filter(|owner| owner["role"] == json!(role));
            of_role.map(|owner| owner["blocks"].as_u64().unwrap()).sum()
        };
        assert_eq!(count("maps"), expected[&5].len() as u64, "the maps are inode 5's");
        assert_eq!(count("journal"), expected.get(&8).map_or(0, |blocks| blocks.len() as u64));
        assert_eq!(count("block-bitmap"), 2, "of two groups");
        assert_eq!(count("nobody"), 0, "a sound volume has no block that is lost");
        let info: Value = serde_json::from_str(&fstitch(&format!("info --json {image}")).ok()).unwrap();
        assert_eq!(json!(count("free")), info["free_blocks"]);
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// Blocks of the path in an image, as `debugfs` has them.
fn blocks_of(image: &str, path: &str) -> Vec<u64> {
    debugfs(image, &format!("blocks {path}")).split_whitespace().map(|block| block.parse().unwrap()).collect()
}

fn damage(image: &str, block: u64) {
    let file = fs::OpenOptions::new().write(true).open(image).unwrap();
    file.write_all_at(&[0x5a; 300], block * BLOCK + 100).unwrap();
}

/// The texts of some owners.
fn texts(whose: &Value) -> Vec<String> {
    whose["owners"].as_array().unwrap().iter().map(|owner| text(&owner["text"])).collect()
}

#[test]
fn a_scrub_names_the_files_that_are_hurt() {
    if !needs("debugfs") {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "ext2", "checksum");
    let small = blocks_of(&image, "/d/small");
    let large = blocks_of(&image, "/d/e/f/large");
    for block in &small[2..5] {
        damage(&image, *block);
    }
    // Twelve blocks, then the pointers to the next ones.
    damage(&image, large[12]);
    damage(&image, blocks_of(&image, "/d/e")[0]);
    let scrub = fstitch(&format!("scrub --json {image}"));
    assert_eq!(scrub.code, 1);
    let found: Value = serde_json::from_str(&scrub.out).unwrap();
    assert_eq!(found["lost"].as_array().unwrap().len(), 5, "{found}");
    let named: BTreeSet<String> = texts(&found["damaged"]).into_iter().collect();
    // The directory that cannot be read is the one that has the large file, and a second name of the small one.
    let expected = ["/d/small", "directory /d/e"].map(str::to_owned);
    assert!(expected.iter().all(|text| named.contains(text)), "{named:?}");
    assert!(named.iter().any(|text| text.starts_with("the pointers of inode ")), "{named:?}");
    assert_eq!(found["damaged"]["owners"][0]["blocks"].as_u64().map(|blocks| blocks > 0), Some(true));
    assert!(found["damaged"]["unread"].as_u64().unwrap() > 0, "{found}");
    let shown = fstitch(&format!("scrub {image}"));
    assert!(shown.out.contains("damaged              /d/small (3 blocks)"), "{}", shown.out);
}

#[test]
fn a_block_of_inodes_is_all_files_that_have_theirs_in_it() {
    if !needs("debugfs") {
        return;
    }
    let place = Place::new();
    let image = volume(&place, "ext2", "checksum");
    let damaged = |path: &str| -> String {
        let place_of = debugfs(&image, &format!("imap {path}"));
        let block: u64 =
            place_of.split("at block ").nth(1).unwrap().split(',').next().unwrap().parse().unwrap();
        damage(&image, block);
        fstitch(&format!("health --block {block} {image}")).ok()
    };
    let said = damaged("/holes");
    assert!(said.contains("the inode table of group 0"), "{said}");
    assert!(said.contains("the inode of /holes (1 block)"), "{said}");
    assert!(said.contains("the inode of /lost+found (1 block)"), "whose inode is beside it: {said}");
    // The small file is in the directory, of which nobody knows any more where it is.
    let said = damaged("/d/small");
    assert!(said.contains("the inode table of group 1"), "{said}");
    assert!(said.contains("the inode of /d (1 block)"), "{said}");
    assert!(said.contains(", whose name was not found (1 block)"), "{said}");
}

#[test]
fn files_with_fewer_copies_than_asked_are_named() {
    let place = Place::new();
    let image = volume(&place, "ext2", "retry");
    let said = fstitch(&format!("tune --policy mirror-far --spares 500 {image}")).ok();
    assert!(said.contains("blocks have fewer copies than it asks for"), "{said}");
    let health = fstitch(&format!("health --json {image}"));
    assert_eq!(health.code, 1);
    let health: Value = serde_json::from_str(&health.out).unwrap();
    let short = health["short_blocks"].as_u64().unwrap();
    assert!(short > 100, "{health}");
    let owners = health["short"]["owners"].as_array().unwrap();
    let once = owners.iter().filter(|owner| owner["role"] != json!("inode"));
    assert_eq!(once.map(|owner| owner["blocks"].as_u64().unwrap()).sum::<u64>(), short);
    assert!(texts(&health["short"]).contains(&"/d/e/f/large".to_owned()), "{health}");
    // With room for all there is none.
    fstitch(&format!("tune --policy mirror-far {image}")).ok();
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {image}")).ok()).unwrap();
    assert_eq!((&health["short_blocks"], &health["verdict"]), (&json!(0), &json!("good")), "{health}");
}

#[test]
fn a_mount_says_which_files_cannot_be_read() {
    if !needs_root() || !needs("debugfs") {
        return;
    }
    let place = Place::new();
    let mine = place.text("mine.toml");
    let chains = "[all]\nread = [\"verify\", \"mirror\", \"notify\"]\nwrite = [\"verify\"]\n[metadata]\nwrite = [\"verify\", \"mirror far\"]\n[data]\nread = [\"verify\", \"notify\"]\n";
    fs::write(&mine, chains).unwrap();
    let image = volume(&place, "ext3", &mine);
    damage(&image, blocks_of(&image, "/d/small")[3]);
    let (at, told) = (place.directory("mnt"), place.text("told"));
    let hook = place.text("hook");
    // It asks whose the block is, in the same mount.
    let asks =
        format!("#!/bin/sh\n{} health --block $FSTITCH_BLOCK {at} >> {told}\n", crate::harness::PROGRAM);
    fs::write(&hook, asks).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let Some(mounted) = Mounted::new(&format!("-o on_fault={hook}"), &image, &at) else { return };
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {at}")).ok()).unwrap();
    assert!(texts(&health["damaged"]).is_empty(), "{health}");
    let read = fs::read(mounted.path().join("d/small"));
    assert_eq!(read.unwrap_err().raw_os_error(), Some(5));
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {at}")).out).unwrap();
    assert_eq!(texts(&health["damaged"]), ["/d/small, that is /d/e/again"], "{health}");
    assert_eq!(health["verdict"], json!("failing"));
    // A new name is known, though nothing of it has been written yet.
    fs::rename(mounted.path().join("d/small"), mounted.path().join("d/e/renamed")).unwrap();
    let scrub: Value = serde_json::from_str(&fstitch(&format!("scrub --json {at}")).out).unwrap();
    let names: BTreeSet<String> =
        scrub["damaged"]["owners"][0]["paths"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(names.into_iter().collect::<Vec<_>>(), ["/d/e/again", "/d/e/renamed"], "{scrub}");
    // What is written anew is not damaged any more.
    fs::write(mounted.path().join("d/e/again"), contents(3, 20_000)).unwrap();
    fs::File::open(mounted.path()).unwrap().sync_all().unwrap();
    fs::File::open(mounted.path().join("d/e/again")).unwrap().sync_all().unwrap();
    let health: Value = serde_json::from_str(&fstitch(&format!("health --json {at}")).out).unwrap();
    assert!(texts(&health["damaged"]).is_empty(), "{health}");
    mounted.end();
    let told = fs::read_to_string(&told).unwrap();
    assert!(told.contains("/d/small, that is /d/e/again (1 block)"), "{told}");
}
