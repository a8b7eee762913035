//! `make install` into an empty directory: everything is where shells, man(1), the linker and mount(8) look for it, works
//! from there, and nothing was built for it.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{PROGRAM, Place, Ran, needs, run};

/// The root of the tree.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Runs make in the tree with `words`, on what was built before, without cargo.
fn make(place: &Place, words: &[&str]) -> Ran {
    let words = words.iter().map(|word| word.replace('@', place.text("").trim_end_matches('/')));
    let mut make = Command::new("make");
    make.args(["-s", "PROFILE=dev", "CARGO=/nowhere/cargo"]).args(words).current_dir(root());
    make.env("CARGO_TARGET_DIR", place.at("target")).env("HOME", place.at("home")).output().unwrap().into()
}

/// A directory in which program and library lie as cargo leaves them; `None`, said aloud, where something is missing.
fn built() -> Option<Place> {
    if !(needs("make") && needs("strip") && needs("cc")) {
        return None;
    }
    let place = Place::new();
    fs::create_dir_all(place.at("target/debug")).unwrap();
    fs::copy(PROGRAM, place.at("target/debug/fstitch")).unwrap();
    let target = Path::new(PROGRAM).ancestors().nth(2).unwrap();
    let mut libraries = Command::new(env!("CARGO"));
    libraries.args([
        "build",
        "--quiet",
        "--locked",
        "-p",
        "fstitch-client-c",
        "-p",
        "fstitch-lld-c",
        "-p",
        "fstitch-lld-sqlite",
    ]);
    Ran::from(libraries.current_dir(root()).env("CARGO_TARGET_DIR", target).output().unwrap()).ok();
    for name in [
        "libpatchgroup.so",
        "libpatchgroup.a",
        "libfstitch_lld.so",
        "libfstitch_lld.a",
        "libfstitch_lld_sqlite.so",
    ] {
        fs::copy(target.join("debug").join(name), place.at("target/debug").join(name)).unwrap();
    }
    Some(place)
}

/// The files and links below a directory, as paths from it.
fn listed(below: &Path) -> Vec<String> {
    let found = run(
        "find",
        [
            below.as_os_str(),
            "!".as_ref(),
            "-type".as_ref(),
            "d".as_ref(),
            "-printf".as_ref(),
            "%P\n".as_ref(),
        ],
    );
    let mut found: Vec<String> = found.ok().lines().map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn everything_is_installed_where_it_is_looked_for_without_a_build() {
    let Some(place) = built() else { return };
    make(&place, &["install", "DESTDIR=@/d"]).ok();
    let found = listed(&place.at("d"));
    for file in [
        "sbin/mount.fstitch",
        "sbin/mount.fuse.fstitch",
        "usr/local/bin/fstitch",
        "usr/local/include/fstitch_lld.h",
        "usr/local/include/patchgroup.h",
        "usr/local/lib/libfstitch_lld.a",
        "usr/local/lib/libfstitch_lld.so",
        "usr/local/lib/libfstitch_lld.so.0",
        "usr/local/lib/libpatchgroup.a",
        "usr/local/lib/libpatchgroup.so",
        "usr/local/lib/libpatchgroup.so.1",
        "usr/local/lib/pkgconfig/fstitch_lld.pc",
        "usr/local/lib/pkgconfig/patchgroup.pc",
        "usr/local/lib/sqlite3/fstitch_lld_sqlite.so",
        "usr/local/share/bash-completion/completions/fstitch",
        "usr/local/share/fish/vendor_completions.d/fstitch.fish",
        "usr/local/share/man/man1/fstitch.1",
        "usr/local/share/man/man1/fstitch-mkfs-ext2.1",
        "usr/local/share/man/man1/fstitch-mount.1",
        "usr/local/share/man/man3/fstitch_lld.3",
        "usr/local/share/man/man3/lld_unit_trim.3",
        "usr/local/share/man/man3/patchgroup.3",
        "usr/local/share/man/man3/pg_create.3",
        "usr/local/share/man/man8/mount.fstitch.8",
        "usr/local/share/man/man8/mount.fuse.fstitch.8",
        "usr/local/share/zsh/site-functions/_fstitch",
    ] {
        assert!(found.iter().any(|it| it == file), "{file} is not in {found:?}");
    }
    let installed = place.at("d/usr/local/bin/fstitch");
    // However it was built: names of symbols are not installed.
    let has_symbols = |path: &Path| fs::read(path).unwrap().windows(8).any(|name| name == b".symtab\0");
    assert!(has_symbols(Path::new(PROGRAM)) && !has_symbols(&installed), "it is not stripped");
    assert!(run(installed.to_str().unwrap(), ["--version"]).ok().starts_with("fstitch "));
    assert_eq!(fs::read_link(place.at("d/sbin/mount.fstitch")).unwrap(), Path::new("/usr/local/bin/fstitch"));
    make(&place, &["uninstall", "DESTDIR=@/d"]).ok();
    assert_eq!(listed(&place.at("d")), Vec::<String>::new());
}

#[test]
fn a_prefix_of_ones_own_gets_no_mount_helper_unless_asked() {
    let Some(place) = built() else { return };
    let said = make(&place, &["install", "PREFIX=~/.local", "DESTDIR=@/d"]).ok();
    assert!(said.contains("no mount helper was installed"), "{said}");
    let home = format!("d{}/home/.local", place.text("").trim_end_matches('/'));
    assert!(place.at(&format!("{home}/bin/fstitch")).exists() && !place.at("d/sbin").exists());
    for name in ["patchgroup", "fstitch_lld"] {
        let pc = fs::read_to_string(place.at(&format!("{home}/lib/pkgconfig/{name}.pc"))).unwrap();
        assert!(pc.contains(&format!("prefix={}", place.text("home/.local"))), "{pc}");
        assert!(pc.contains("Version: 0.") && !pc.contains('@'), "{pc}");
    }
    make(&place, &["install", "PREFIX=/opt/f", "MOUNT_HELPER_DIR=/usr/sbin", "DESTDIR=@/e"]).ok();
    assert_eq!(
        fs::read_link(place.at("e/usr/sbin/mount.fuse.fstitch")).unwrap(),
        Path::new("/opt/f/bin/fstitch")
    );
}

#[test]
fn what_is_not_built_is_not_installed_without_cargo() {
    let Some(place) = built() else { return };
    fs::remove_file(place.at("target/debug/fstitch")).unwrap();
    let ran = make(&place, &["install", "DESTDIR=@/d"]);
    assert!(
        ran.code != 0 && ran.err.contains("run `make build build-client build-lld build-sqlite` as the user"),
        "{ran:?}"
    );
    assert!(!place.at("d/usr/local/bin").exists());
}

#[test]
fn a_library_that_is_not_built_is_not_installed_without_cargo() {
    let Some(place) = built() else { return };
    fs::remove_file(place.at("target/debug/libfstitch_lld.so")).unwrap();
    let ran = make(&place, &["install-lld", "DESTDIR=@/d"]);
    assert!(ran.code != 0 && ran.err.contains("libfstitch_lld.so is missing or older"), "{ran:?}");
    assert!(!place.at("d").exists());
    make(&place, &["install-client", "DESTDIR=@/d"]).ok();
}

/// A program of both libraries.
const BOTH: &str = "#include <errno.h>
#include <fstitch_lld.h>
#include <patchgroup.h>
#include <string.h>
int main(void) {
    return pg_create() == -1 && errno && lld_begin(NULL) == NULL && errno == EINVAL && strlen(lld_error()) > 9 ? 0 : 1;
}
";

#[test]
fn c_programs_are_linked_with_them_statically_too() {
    let Some(place) = built() else { return };
    if !needs("pkg-config") {
        return;
    }
    make(&place, &["install-client", "install-lld", "PREFIX=@/p"]).ok();
    fs::write(place.at("both.c"), BOTH).unwrap();
    let lines = |dropped: &str| -> String {
        BOTH.replace(dropped, "1").lines().map(|line| format!("{line}\n")).collect()
    };
    fs::write(
        place.at("patchgroup.c"),
        lines("lld_begin(NULL) == NULL && errno == EINVAL && strlen(lld_error()) > 9"),
    )
    .unwrap();
    fs::write(place.at("fstitch_lld.c"), lines("pg_create() == -1 && errno")).unwrap();
    for (program, libraries) in
        [("patchgroup", "patchgroup"), ("fstitch_lld", "fstitch_lld"), ("both", "patchgroup fstitch_lld")]
    {
        let script = format!(
            "cd {0}\nexport PKG_CONFIG_PATH={0}/p/lib/pkgconfig LD_LIBRARY_PATH={0}/p/lib\n\
             cc {program}.c -o dynamic $(pkg-config --cflags --libs {libraries})\n./dynamic\n\
             cc -static {program}.c -o static $(pkg-config --static --cflags --libs {libraries}) 2>warnings \
             || {{ cat warnings >&2; exit 1; }}\n./static\n",
            place.text("").trim_end_matches('/')
        );
        run("sh", ["-ec", &script]).ok();
    }
}

#[test]
fn manual_pages_are_clean_and_complete() {
    let Some(place) = built() else { return };
    make(&place, &["install", "DESTDIR=@/d"]).ok();
    let pages: Vec<String> =
        listed(&place.at("d")).into_iter().filter(|path| path.contains("/man/man")).collect();
    assert!(pages.len() > 30, "{pages:?}");
    let lint = needs("mandoc");
    for page in &pages {
        let path = place.at("d").join(page);
        let text = fs::read_to_string(&path).unwrap();
        if text.starts_with(".so ") {
            continue;
        }
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "SEE ALSO"] {
            assert!(
                text.contains(&format!(".SH {section}")) || text.contains(&format!(".SH \"{section}\"")),
                "{page}: {section}"
            );
        }
        if lint {
            let said = run("mandoc", ["-T", "lint", "-W", "warning", path.to_str().unwrap()]);
            let said = format!("{}{}", said.out, said.err);
            // Pages of the same sources are the same whenever they are made.
            let said: Vec<&str> = said.lines().filter(|line| !line.contains("missing date")).collect();
            assert!(said.is_empty(), "{page}: {said:?}");
        }
    }
    if lint {
        let mount = run(
            "mandoc",
            ["-T", "ascii", place.at("d/usr/local/share/man/man8/mount.fuse.fstitch.8").to_str().unwrap()],
        )
        .ok();
        let plain = mount.replace('\u{8}', "");
        assert!(
            plain
                .lines()
                .filter(|line| line.starts_with("     ") && !line.starts_with("            "))
                .count()
                > 15,
            "each option begins a line: {plain}"
        );
    }
}

#[test]
fn shells_understand_the_completions() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = run(PROGRAM, ["completions", shell]).ok();
        assert!(script.contains("consistency"), "{shell} offers no mount options");
        fs::write(place.at(shell), script).unwrap();
        if needs(shell) {
            run(shell, ["-n", &place.text(shell)]).ok();
        }
    }
    if needs("bash") {
        let complete = format!(
            ". {}\nCOMP_WORDS=(fstitch mount -o {{list}}); COMP_CWORD=3\n_fstitch fstitch \"${{COMP_WORDS[3]}}\" -o\necho \"${{COMPREPLY[@]}}\"",
            place.text("bash")
        );
        for (list, offered) in
            [("norecov", "norecovery"), ("ro,noat", "ro,noatime"), ("ro,fsync=o", "ro,fsync=ordered")]
        {
            let said = run("bash", ["-c", &complete.replace("{list}", list)]).ok();
            assert_eq!(said.trim(), offered, "{list}");
        }
    }
    if needs("zsh") {
        // What offers the words is a list in a list, whose colons must be marked.
        let list = "grep -o '_values -s.*' $1 | sed \"s/' [\\\\]*$//\" | tail -1";
        let list = run("sh", ["-c", list, "sh", &place.text("zsh")]).ok();
        let words = list.replace("\\:", ":");
        run("zsh", ["-fc", &format!("words=({words}); (( $#words > 20 ))")]).ok();
        assert!(!list.replace("\\:", "").contains(':'), "{list}");
    }
    if needs("fish") {
        let ask = format!("source {}; complete -C 'fstitch mount -o ro,transp'", place.text("fish"));
        let said = run("fish", ["--no-config", "-c", &ask]).ok();
        assert!(said.contains("ro,transport=io_uring"), "{said}");
    }
}
