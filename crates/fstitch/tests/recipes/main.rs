//! Every command of README.md and docs/ is run as it is printed. Prevents recipes that fail for whoever follows them: options
//! that were renamed, files that nobody made, states of another build.
//!
//! How a block is prepared, and how one that cannot be run says so: [`page`]. Each section has a folder and a mount table of its
//! own, with `/mnt` and `/srv` empty, so printed paths hold; whatever it left mounted ends with it.
#![expect(clippy::unwrap_used, reason = "these are tests, their helpers included")]

mod page;

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use fstitch_core::{Clock, SystemClock};
use page::{End, Section, commands, sections};

const PROGRAM: &str = env!("CARGO_BIN_EXE_fstitch");

/// Seconds that a section may take; a machine that is busy otherwise needs most of them.
const LIMIT_SECONDS: &str = "180";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// README.md and all of docs/.
fn pages() -> Vec<PathBuf> {
    let root = root();
    let mut found = vec![root.join("README.md")];
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn all_sections() -> Vec<Section> {
    let root = root();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        sections(path.strip_prefix(&root).unwrap(), &text)
    };
    pages().into_iter().flat_map(read).collect()
}

fn is_installed(program: &str) -> bool {
    let script = format!("PATH=$PATH:/usr/sbin:/sbin command -v {program}");
    let probe = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).status();
    probe.is_ok_and(|status| status.success())
}

/// Where cargo puts what it builds.
fn target() -> &'static Path {
    Path::new(PROGRAM).ancestors().nth(2).unwrap()
}

/// Builds the library for C programs, which `make` installs then without cargo.
fn lld_library_is_built() -> bool {
    static BUILT: OnceLock<bool> = OnceLock::new();
    *BUILT.get_or_init(|| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "fstitch-lld-c"]).current_dir(root());
        let status = cargo.env("CARGO_TARGET_DIR", target()).status().unwrap();
        assert!(status.success(), "the library is not built");
        // Cargo leaves alone what has not changed, and make asks for the time.
        let libraries =
            ["libfstitch_lld.so", "libfstitch_lld.a"].map(|name| target().join("debug").join(name));
        Command::new("touch").args(libraries).status().unwrap().success()
    })
}

fn lacks(need: &str) -> bool {
    match need {
        "fuse" => !Path::new("/dev/fuse").exists(),
        "root" => !rustix::process::geteuid().is_root(),
        "lld-library" => !lld_library_is_built(),
        program => !is_installed(program),
    }
}

/// How the namespaces are made; `None`, said aloud, where there can be none.
fn unshare() -> Option<Vec<&'static str>> {
    let mut words = vec!["-mpf", "--mount-proc", "--kill-child"];
    if !rustix::process::geteuid().is_root() {
        words.insert(0, "-r");
    }
    let probe = Command::new("unshare").args(&words).arg("true").output();
    match probe {
        Ok(output) if output.status.success() => Some(words),
        Ok(output) => {
            println!("skipped: no namespaces: {}", String::from_utf8_lossy(&output.stderr).trim());
            None
        }
        Err(error) => {
            println!("skipped: no namespaces: {error}");
            None
        }
    }
}

/// Takes the mounts that were there before out of the section's own table: `fstitch status` lists them and fails when one is dead.
/// In a user's namespaces they are locked and stay.
const ALONE: &str = "awk '$3 == \"fuse.fstitch\" { print $2 }' /proc/self/mounts |\n\
                     while read -r other; do umount -l \"$other\" 2>/dev/null || true; done\n";

/// The commands of a section as a script that tells each before it is run, and stops at the first that does not end as the
/// page says.
fn script(section: &Section) -> String {
    let mut script = String::from(
        "set -eu\nfor place in /mnt /srv; do mount -t tmpfs none $place; done\n\
         mkdir -p /run/fstitch 2>/dev/null && mount -t tmpfs none /run/fstitch\n",
    );
    script.push_str(ALONE);
    for block in section.run() {
        let _ = writeln!(script, "echo '+ line {}' >&2", block.line);
        block.given.iter().for_each(|given| script.push_str(&format!("{given}\n")));
        for (command, end) in commands(&block.text) {
            let told = command.replace('\'', r"'\''");
            let _ = writeln!(script, "printf '%s\\n' '+ {told}' >&2");
            let checked = match end {
                End::Well => command,
                End::Badly => format!("if {{ {command}\n}}; then echo 'this should fail' >&2; exit 1; fi"),
                End::Status(status) => format!(
                    "status=0; {{ {command}\n}} || status=$?; \
                     [ $status = {status} ] || {{ echo \"status $status\" >&2; exit 1; }}"
                ),
            };
            script.push_str(&checked);
            script.push('\n');
        }
    }
    script
}

/// The extension for SQLite, built once.
fn extension() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let target = Path::new(PROGRAM).ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--locked", "-p", "fstitch-lld-sqlite"]).current_dir(root());
        assert!(
            build.env("CARGO_TARGET_DIR", target).status().unwrap().success(),
            "the extension for SQLite"
        );
        target.join("debug/libfstitch_lld_sqlite.so")
    })
}

/// Runs a section and returns what it printed, if it failed.
fn run(section: &Section, unshare: &[&str]) -> Result<(), String> {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("work");
    for made in ["work", "home", "bin"] {
        fs::create_dir(place.path().join(made)).unwrap();
    }
    std::os::unix::fs::symlink(PROGRAM, place.path().join("bin/fstitch")).unwrap();
    for block in &section.blocks {
        if let Some(name) = &block.file {
            fs::write(folder.join(name), &block.text).unwrap();
        }
    }
    fs::write(place.path().join("script"), script(section)).unwrap();
    let uses_extension =
        section.run().flat_map(|block| &block.given).any(|given| given.contains("$SQLITE_EXTENSION"));
    let bin = place.path().join("bin");
    let path = format!("{}:{}:/usr/sbin:/sbin", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("timeout")
        .args(["-k", "5", LIMIT_SECONDS, "unshare"])
        .args(unshare)
        .args(["sh", "../script"])
        .current_dir(&folder)
        .env("PATH", path)
        .env("HOME", place.path().join("home"))
        .env("BIN", &bin)
        .env("TREE", root())
        .env("TARGET", target())
        .env("SQLITE_EXTENSION", if uses_extension { extension() } else { Path::new("") })
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let ends = [output.stdout, output.stderr].map(|bytes| end(&String::from_utf8_lossy(&bytes)));
    Err(format!("{}\n{}\n{}", output.status, ends[0], ends[1]))
}

/// The last lines.
fn end(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

/// Runs all sections, some at a time, and returns what failed.
fn run_all(wanted: &[&Section], unshare: &[&str]) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(section) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let place = format!("{}, {}", section.page.display(), section.heading);
                    let begun = SystemClock::new();
                    let ran = run(section, unshare);
                    println!("ran in {:.1} s: {place}", begun.elapsed().as_secs_f32());
                    if let Err(why) = ran {
                        failed.lock().unwrap().push(format!("== {place}: {why}"));
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap()
}

/// `FSTITCH_RECIPES=WORDS` runs only the sections whose page or heading holds them.
#[test]
fn every_command_is_run_as_printed() {
    let only = std::env::var("FSTITCH_RECIPES").unwrap_or_default();
    let all = all_sections();
    let blocks = || all.iter().flat_map(|section| section.blocks.iter().map(move |block| (section, block)));
    for (section, block) in blocks() {
        if let Some(why) = &block.not_run {
            println!("not run: {}:{}: {why}", section.page.display(), block.line);
        }
    }
    let not_run = blocks().filter(|(_, block)| block.not_run.is_some()).count();
    let Some(unshare) = unshare() else { return };
    let mut wanted = Vec::new();
    for section in all.iter().filter(|section| section.run().next().is_some()) {
        let name = format!("{}, {}", section.page.display(), section.heading);
        match section.needs().find(|need| lacks(need)) {
            _ if !name.contains(&only) => {}
            Some(need) => println!("skipped: {name}: {need} is not here"),
            None => wanted.push(section),
        }
    }
    let failed = run_all(&wanted, &unshare);
    let run: usize = wanted.iter().map(|section| section.run().count()).sum();
    println!("{run} blocks of {} sections were run, {not_run} blocks say why they are not", wanted.len());
    assert!(run > 20 || !only.is_empty() || wanted.len() < all.len() / 2, "only {run} blocks were found");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Prevents a check that finds nothing: commands that fail, that succeed although the page says otherwise, and that need what is
/// not given.
#[test]
fn a_recipe_that_fails_is_found() {
    let Some(unshare) = unshare() else { return };
    let judged = |block: &str| {
        let page = format!("## Seeded\n```sh\n{block}\n```\n");
        run(&sections(Path::new("seeded.md"), &page)[0], &unshare)
    };
    assert_eq!(judged("fstitch mkfs ext2 -q a.img 4M\nfstitch fsck -fn a.img"), Ok(()));
    let found = judged("fstitch mkfs ext2 -q a.img 4M\nfstitch fsck --no-such-option a.img").unwrap_err();
    assert!(found.contains("--no-such-option"), "{found}");
    assert!(judged("fstitch ls b.img:/").is_err());
    assert_eq!(judged("fstitch ls b.img:/   # refuses: there is none"), Ok(()));
    assert!(judged("true   # fails").unwrap_err().contains("this should fail"));
    assert!(judged("fstitch ls b.img:/   # exit status 7").unwrap_err().contains("status 1"));
    assert!(judged("cd nowhere &&\n  true").is_err());
}

/// Prevents commands that nobody runs because their block is called something else.
#[test]
fn commands_stand_in_blocks_that_are_run() {
    let all = all_sections();
    let hidden: Vec<String> = all
        .iter()
        .flat_map(|section| section.blocks.iter().map(move |block| (section, block)))
        .filter(|(_, block)| block.hides_commands())
        .map(|(section, block)| format!("{}:{}", section.page.display(), block.line))
        .collect();
    assert!(hidden.is_empty(), "commands in a block that is not `sh`: {hidden:?}");
}
