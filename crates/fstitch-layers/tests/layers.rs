//! Both layers over the model of a file system.
//!
//! What it prevents: a name that one of its spellings does not find, or that is made twice; a hidden name that can be reached.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should fail")]

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::{Caller, Errno, Error, FileSystem, InodeNo, RenameMode, Result};
use fstitch_fs::model::Model;
use fstitch_layers::{Casefold, Hiding, Layered, Patterns, folded};
use proptest::prelude::*;

const ME: Caller = Caller { uid: 0, gid: 0, tid: 0, umask: 0o022 };
const FILE: u16 = 0o100_644;

fn casefold() -> (Arc<Model>, Layered<Casefold>) {
    let below = Arc::new(Model::new());
    (Arc::clone(&below), Layered(Casefold::new(below)))
}

fn hiding(patterns: &[&str]) -> (Arc<Model>, Layered<Hiding>) {
    let below = Arc::new(Model::new());
    let layer = Hiding::new(Arc::clone(&below) as _, Patterns::new(patterns.iter().copied()).unwrap());
    (below, Layered(layer))
}

fn make(fs: &dyn FileSystem, dir: InodeNo, name: &str) -> Result<InodeNo> {
    let ino = fs.mknod(&ME, dir, name.as_bytes(), FILE, 0)?.attr.ino;
    fs.forget(ino, 1);
    Ok(ino)
}

fn mkdir(fs: &dyn FileSystem, dir: InodeNo, name: &str) -> InodeNo {
    let ino = fs.mkdir(&ME, dir, name.as_bytes(), 0o755).unwrap().attr.ino;
    fs.forget(ino, 1);
    ino
}

fn find(fs: &dyn FileSystem, dir: InodeNo, name: &str) -> Option<InodeNo> {
    match fs.lookup(dir, name.as_bytes()) {
        Ok(entry) => {
            fs.forget(entry.attr.ino, 1);
            Some(entry.attr.ino)
        }
        Err(error) => {
            assert_eq!(error.errno(), Errno::NOENT, "{name}");
            None
        }
    }
}

fn names(fs: &dyn FileSystem, dir: InodeNo) -> Vec<String> {
    let mut names = Vec::new();
    fs.readdir(dir, 0, &mut |entry| {
        names.push(String::from_utf8(entry.name.to_vec()).unwrap());
        true
    })
    .unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

fn errno<T>(outcome: Result<T>) -> Option<Errno> {
    outcome.err().map(|error: Error| error.errno())
}

#[test]
fn a_name_is_found_by_all_its_spellings_and_keeps_the_first() {
    let (below, fs) = casefold();
    let root = fs.root();
    let ino = make(&fs, root, "ReadMe.TXT").unwrap();
    let accented = make(&fs, root, "\u{c9}t\u{e9}").unwrap();
    for name in ["ReadMe.TXT", "readme.txt", "README.TXT"] {
        assert_eq!(find(&fs, root, name), Some(ino), "{name}");
        assert_eq!(errno(make(&fs, root, name)), Some(Errno::EXIST), "{name}");
    }
    assert_eq!(find(&fs, root, "e\u{301}tE\u{301}"), Some(accented));
    assert_eq!(find(&fs, root, "readme.tx"), None);
    let other = make(&fs, root, "other").unwrap();
    assert_eq!(errno(fs.link(&ME, other, root, b"README.txt")), Some(Errno::EXIST));
    assert_eq!(errno(fs.mkdir(&ME, root, b"readme.TXT", 0o755)), Some(Errno::EXIST));
    assert_eq!(errno(fs.symlink(&ME, root, b"readme.TXT", b"x")), Some(Errno::EXIST));
    assert_eq!(names(&*below, root), ["ReadMe.TXT", "other", "\u{c9}t\u{e9}"]);
    fs.unlink(&ME, root, b"README.txt").unwrap();
    assert_eq!(find(&fs, root, "ReadMe.TXT"), None);
    assert_eq!(errno(fs.unlink(&ME, root, b"README.txt")), Some(Errno::NOENT));
    assert!(fs.cache_timeout().is_zero(), "a kernel would remember spellings");
}

#[test]
fn two_spellings_that_are_there_are_found_each_by_itself() {
    let (below, fs) = casefold();
    let root = fs.root();
    let upper = make(&*below, root, "NAME").unwrap();
    let lower = make(&*below, root, "name").unwrap();
    assert_eq!((find(&fs, root, "NAME"), find(&fs, root, "name")), (Some(upper), Some(lower)));
    let other = find(&fs, root, "Name").unwrap();
    assert!([upper, lower].contains(&other));
    fs.unlink(&ME, root, b"name").unwrap();
    assert_eq!((find(&fs, root, "name"), find(&fs, root, "Name")), (Some(upper), Some(upper)));
}

#[test]
fn a_renamed_name_takes_its_new_spelling_and_one_that_is_replaced_keeps_its_own() {
    let (below, fs) = casefold();
    let root = fs.root();
    let rename =
        |from: &str, to: &str, mode| fs.rename(&ME, (root, from.as_bytes()), (root, to.as_bytes()), mode);
    let ino = make(&fs, root, "file").unwrap();
    rename("FILE", "File", RenameMode::Replace).unwrap();
    assert_eq!(names(&*below, root), ["File"]);
    rename("file", "FILE", RenameMode::NoReplace).unwrap();
    assert_eq!(names(&*below, root), ["FILE"]);
    rename("file", "fILE", RenameMode::Exchange).unwrap();
    assert_eq!(names(&*below, root), ["FILE"]);
    let other = make(&fs, root, "Target").unwrap();
    assert_eq!(errno(rename("file", "TARGET", RenameMode::NoReplace)), Some(Errno::EXIST));
    rename("file", "TARGET", RenameMode::Exchange).unwrap();
    assert_eq!((find(&fs, root, "file"), find(&fs, root, "target")), (Some(other), Some(ino)));
    rename("file", "TARGET", RenameMode::Replace).unwrap();
    assert_eq!(names(&*below, root), ["Target"]);
    assert_eq!((find(&fs, root, "target"), find(&fs, root, "file")), (Some(other), None));
    assert_eq!(errno(rename("gone", "x", RenameMode::Replace)), Some(Errno::NOENT));
}

#[test]
fn a_directory_that_took_a_number_is_not_taken_for_the_one_before() {
    let (_, fs) = casefold();
    let root = fs.root();
    for round in 0..20 {
        let dir = mkdir(&fs, root, "dir");
        assert_eq!(find(&fs, dir, "inside"), None, "round {round}");
        make(&fs, dir, "Inside").unwrap();
        assert!(find(&fs, dir, "inside").is_some());
        let replaced = mkdir(&fs, root, "Other");
        assert_eq!(find(&fs, replaced, "inside"), None);
        fs.rename(&ME, (root, b"DIR"), (root, b"OTHER"), RenameMode::Replace).unwrap();
        fs.unlink(&ME, dir, b"INSIDE").unwrap();
        fs.rmdir(&ME, root, b"oTHER").unwrap();
    }
}

#[test]
fn hidden_names_do_not_exist_and_cannot_be_made() {
    let (below, fs) = hiding(&["*.key", ".*", "lost+found"]);
    let root = fs.root();
    let key = make(&*below, root, "private.key").unwrap();
    make(&*below, root, ".profile").unwrap();
    let dir = mkdir(&*below, root, "lost+found");
    make(&*below, dir, "seen").unwrap();
    make(&fs, root, "public.keys").unwrap();
    assert_eq!(names(&fs, root), ["public.keys"]);
    assert_eq!(names(&*below, root), [".profile", "lost+found", "private.key", "public.keys"]);
    let caller = &ME;
    for name in [&b"private.key"[..], b".profile", b"lost+found", b"new.key"] {
        assert_eq!(errno(fs.lookup(root, name)), Some(Errno::NOENT));
        assert_eq!(errno(fs.mknod(caller, root, name, FILE, 0)), Some(Errno::PERM));
        assert_eq!(errno(fs.mkdir(caller, root, name, 0o755)), Some(Errno::PERM));
        assert_eq!(errno(fs.symlink(caller, root, name, b"x")), Some(Errno::PERM));
        assert_eq!(errno(fs.link(caller, key, root, name)), Some(Errno::PERM));
        assert_eq!(errno(fs.unlink(caller, root, name)), Some(Errno::NOENT));
        assert_eq!(errno(fs.rmdir(caller, root, name)), Some(Errno::NOENT));
        let rename = |from, to, mode| errno(fs.rename(caller, (root, from), (root, to), mode));
        assert_eq!(rename(name, b"free", RenameMode::Replace), Some(Errno::NOENT));
        assert_eq!(rename(b"public.keys", name, RenameMode::Replace), Some(Errno::PERM));
        assert_eq!(rename(b"public.keys", name, RenameMode::Exchange), Some(Errno::NOENT));
    }
    assert_eq!(find(&fs, root, "."), Some(root));
    // What has another name can be reached by that.
    below.link(caller, key, root, b"alias").unwrap();
    assert_eq!(find(&fs, root, "alias"), Some(key));
    // A directory with nothing but hidden names is not empty.
    let full = mkdir(&fs, root, "full");
    make(&*below, full, "a.key").unwrap();
    assert_eq!(names(&fs, full), Vec::<String>::new());
    assert_eq!(errno(fs.rmdir(caller, root, b"full")), Some(Errno::NOTEMPTY));
}

#[test]
fn listing_goes_on_behind_hidden_names() {
    let (below, fs) = hiding(&["h*"]);
    let root = fs.root();
    for number in 0..50 {
        make(&*below, root, &format!("h{number}")).unwrap();
        make(&*below, root, &format!("s{number}")).unwrap();
    }
    let (mut cookie, mut seen) = (0, Vec::new());
    loop {
        let mut taken = None;
        fs.readdir(root, cookie, &mut |entry| {
            taken.get_or_insert((entry.name.to_vec(), entry.next));
            false
        })
        .unwrap();
        // An entry that was refused comes again, so the first one is taken by going on behind it.
        let Some((name, next)) = taken else { break };
        seen.push(name);
        cookie = next;
    }
    seen.retain(|name| !matches!(&name[..], b"." | b".."));
    seen.sort();
    let mut expected: Vec<_> = (0..50).map(|number| format!("s{number}").into_bytes()).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn patterns_that_make_no_sense_are_refused_with_what_is_wrong() {
    for (pattern, said) in
        [("", "not empty"), ("a/b", "no `/`"), ("[a", "is no pattern"), ("{a", "is no pattern")]
    {
        let refused = Patterns::new([pattern]).unwrap_err().to_string();
        assert!(refused.contains(said) && refused.contains(&format!("`{pattern}`")), "{refused}");
    }
}

#[test]
fn hidden_names_stay_hidden_from_all_spellings() {
    let (below, hidden) = hiding(&["secret"]);
    let root = below.root();
    make(&*below, root, "secret").unwrap();
    let fs = Layered(Casefold::new(Arc::new(hidden)));
    assert_eq!(find(&fs, root, "SECRET"), None);
    assert_eq!(errno(fs.unlink(&ME, root, b"Secret")), Some(Errno::NOENT));
    assert_eq!(names(&*below, root), ["secret"]);
}

/// Something that a program does to names in two directories.
#[derive(Clone, Debug)]
enum Step {
    Make(usize, String),
    Remove(usize, String),
    Rename((usize, String), (usize, String), RenameMode),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = || "[aAbB\u{e9}\u{c9}]{1,2}";
    let place = move || (0..2_usize, name());
    let mode =
        prop_oneof![Just(RenameMode::Replace), Just(RenameMode::NoReplace), Just(RenameMode::Exchange)];
    let step = prop_oneof![
        place().prop_map(|(dir, name)| Step::Make(dir, name)),
        place().prop_map(|(dir, name)| Step::Remove(dir, name)),
        (place(), place(), mode).prop_map(|(from, to, mode)| Step::Rename(from, to, mode)),
    ];
    prop::collection::vec(step, 1..60)
}

/// What names there are: by directory and folded name, the spelling and the inode.
type Expected = BTreeMap<(usize, Vec<u8>), (String, InodeNo)>;

fn rename(
    expected: &mut Expected,
    from: &(usize, String),
    to: &(usize, String),
    mode: RenameMode,
) -> Option<Errno> {
    let key = |place: &(usize, String)| (place.0, folded(place.1.as_bytes()));
    let Some(moved) = expected.get(&key(from)).cloned() else { return Some(Errno::NOENT) };
    let there = expected.get(&key(to)).cloned();
    match (there, mode) {
        (Some(_), RenameMode::Exchange) if key(from) == key(to) => {}
        (Some(there), RenameMode::Exchange) => {
            expected.insert(key(from), (moved.0, there.1));
            expected.insert(key(to), (there.0, moved.1));
        }
        (None, RenameMode::Exchange) => return Some(Errno::NOENT),
        (Some(there), _) if key(from) == key(to) => {
            // The very same spelling is there, which is not to be replaced.
            if mode == RenameMode::NoReplace && there.0 == to.1 {
                return Some(Errno::EXIST);
            }
            expected.insert(key(to), (to.1.clone(), moved.1));
        }
        (Some(_), RenameMode::NoReplace) => return Some(Errno::EXIST),
        (there, _) => {
            expected.remove(&key(from));
            let spelling = there.map_or_else(|| to.1.clone(), |there| there.0);
            expected.insert(key(to), (spelling, moved.1));
        }
    }
    None
}

proptest! {
    #[test]
    fn random_operations_leave_what_a_table_of_folded_names_says(steps in steps()) {
        let (below, fs) = casefold();
        let dirs = [mkdir(&fs, fs.root(), "one"), mkdir(&fs, fs.root(), "two")];
        let mut expected = Expected::new();
        for step in steps {
            match &step {
                Step::Make(dir, name) => {
                    let key = (*dir, folded(name.as_bytes()));
                    match (make(&fs, dirs[*dir], name), expected.contains_key(&key)) {
                        (Ok(ino), false) => drop(expected.insert(key, (name.clone(), ino))),
                        (Err(error), true) => prop_assert_eq!(error.errno(), Errno::EXIST),
                        (outcome, there) => prop_assert!(false, "{:?}: {:?}, there: {}", step, outcome, there),
                    }
                }
                Step::Remove(dir, name) => {
                    let outcome = fs.unlink(&ME, dirs[*dir], name.as_bytes());
                    let wanted = expected.remove(&(*dir, folded(name.as_bytes()))).map_or(Some(Errno::NOENT), |_| None);
                    prop_assert_eq!(errno(outcome), wanted, "{:?}", step);
                }
                Step::Rename(from, to, mode) => {
                    let place = |place: &(usize, String)| (dirs[place.0], place.1.clone().into_bytes());
                    let (source, target) = (place(from), place(to));
                    let outcome = fs.rename(&ME, (source.0, &source.1), (target.0, &target.1), *mode);
                    prop_assert_eq!(errno(outcome), rename(&mut expected, from, to, *mode), "{:?}", step);
                }
            }
            for (at, &dir) in dirs.iter().enumerate() {
                let mut wanted: Vec<String> = expected.iter().filter(|((of, _), _)| *of == at).map(|(_, (name, _))| name.clone()).collect();
                wanted.sort();
                prop_assert_eq!(names(&*below, dir), wanted, "after {:?}", step);
            }
            for ((dir, key), (_, ino)) in &expected {
                prop_assert_eq!(find(&fs, dirs[*dir], std::str::from_utf8(key).unwrap()), Some(*ino), "after {:?}", step);
            }
        }
    }
}
