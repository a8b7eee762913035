//! The extension as it is loaded by the system's own SQLite.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::kill::make_disk;

/// What a program did: whether well, and what it said.
struct Ran {
    is_ok: bool,
    out: String,
    err: String,
}

/// The extension, which cargo puts beside the tests.
fn extension() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let found = tests.parent().unwrap().join("libfstitch_lld_sqlite.so");
    assert!(found.exists(), "{} is not there", found.display());
    found
}

/// Whether a program is installed; if not, says that the test is skipped.
fn needs(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
    let found = found.is_ok_and(|status| status.success());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// Has the shell of SQLite load the extension and do something in a directory.
fn sqlite(directory: &Path, lines: &str) -> Ran {
    let load = format!(".load {}", extension().display());
    let mut shell = Command::new("sqlite3");
    let output =
        shell.args(["-batch", ":memory:", "-cmd", &load]).arg(lines).current_dir(directory).output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ran { is_ok: output.status.success(), out: text(&output.stdout), err: text(&output.stderr) }
}

/// The same with a script.
fn script(directory: &Path, lines: &str) -> Ran {
    std::fs::write(directory.join("script"), lines).unwrap();
    sqlite(directory, ".read script")
}

#[test]
fn the_systems_own_sqlite_keeps_databases_in_a_disk() {
    if !needs("sqlite3") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_disk(&at.join("d.lld"), 64 << 20);
    let made = script(
        at,
        ".bail on\n.open file:d.lld/db?vfs=lld\ncreate table t(n integer primary key, text text);\n\
         insert into t select value, hex(zeroblob(500)) from generate_series(1, 2000);\nbegin; delete from t; rollback;\n\
         .vfsname\n",
    );
    assert!(made.is_ok && made.out.contains("lld"), "{}{}", made.out, made.err);
    let read = script(
        at,
        ".open file:d.lld/db?vfs=lld\nselect count(*), sum(length(text)) from t;\npragma integrity_check;\n",
    );
    assert_eq!(read.out, "2000|2000000\nok\n", "{}", read.err);
}

#[test]
fn what_cannot_be_opened_is_told_in_words() {
    if !needs("sqlite3") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_disk(&at.join("d.lld"), 64 << 20);
    std::fs::write(at.join("text"), "text\n".repeat(5000)).unwrap();
    for (name, said) in [
        ("db", "is a directory, and no logical disk: say DISK/VOLUME"),
        ("none.lld/db", "No such file or directory"),
        ("text/db", "this is no logical disk"),
        ("d.lld/db&mode=ro", "d.lld has no volumes"),
    ] {
        let name = name.replace('&', "?vfs=lld&");
        let name = if name.contains('?') { name } else { format!("{name}?vfs=lld") };
        let ran = script(at, &format!("attach 'file:{name}' as a;\nselect lld_error();\n"));
        assert!(ran.out.contains(said), "{name}: {}{}", ran.out, ran.err);
        assert!(
            ran.err.contains("unable to open database") || ran.err.contains("file is not a database"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn one_process_at_a_time_has_the_disk() {
    if !needs("sqlite3") {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    make_disk(&at.join("d.lld"), 64 << 20);
    let base = crate::harness::open(&format!("file:{}/d.lld/db?vfs=lld", at.display())).unwrap();
    base.execute_batch("create table t(n); insert into t values(7)").unwrap();
    let query = "attach 'file:d.lld/db?vfs=lld' as a;\nselect lld_error();\n";
    let refused = script(at, query);
    assert!(
        refused.err.contains("unable to open database") && refused.err.contains("(5)"),
        "{}",
        refused.err
    );
    assert!(refused.out.contains("is in use"), "{}{}", refused.out, refused.err);
    base.close().unwrap();
    let read = script(at, &format!("{query}select n from t;\n"));
    assert_eq!(read.out.trim(), "7", "{}", read.err);
}
