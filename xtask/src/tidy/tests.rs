//! Canaries: each rule must find the violation that is seeded here, and must not cry about lawful text.

use std::path::Path;

use super::{Report, check};

/// Rules broken by a tree that consists of the given files.
fn broken(files: &[(&str, &str)]) -> Vec<&'static str> {
    let report = report(files);
    report.violations.iter().map(|violation| violation.rule).collect()
}

fn report(files: &[(&str, &str)]) -> Report {
    let dir = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    check(dir.path()).unwrap()
}

fn long_function(lines: usize) -> String {
    format!("fn long() {{\n{}}}\n", "    work();\n".repeat(lines - 2))
}

#[test]
fn this_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let report = check(root).unwrap();
    let all: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(report.files > 20, "only {} files were looked at", report.files);
}

/// A page with who may use whom.
const DRAWING: (&str, &str) = (
    "docs/ARCHITECTURE.md",
    "| crate | uses | owns |\n|---|---|---|\n| `fstitch-fs` | `fstitch-patch` below | x |\n",
);

#[test]
fn a_forbidden_direction_is_found() {
    let manifest = "[package]\nname = \"fstitch-core\"\n[dependencies]\nfstitch-patch.workspace = true\n";
    assert_eq!(broken(&[("crates/fstitch-core/Cargo.toml", manifest)]), ["direction"]);
    let target = "[package]\nname = \"fstitch-fuse\"\n[target.'cfg(unix)'.dependencies]\nfstitch-fs = { path = \"x\" }\n";
    assert_eq!(broken(&[("Cargo.toml", target)]), ["direction"]);
    let table = "[package]\nname = \"fstitch-disk\"\n[dependencies.fstitch-fs]\nworkspace = true\n";
    assert_eq!(broken(&[("Cargo.toml", table)]), ["direction"]);
}

#[test]
fn allowed_directions_pass() {
    let manifest = "[package]\nname = \"fstitch-fs\"\n[dependencies]\nfstitch-patch.workspace = true\n\
                    [dev-dependencies]\nfstitch-crashlab.workspace = true\n";
    assert!(broken(&[DRAWING, ("Cargo.toml", manifest)]).is_empty());
}

#[test]
fn a_drawing_that_says_what_is_not_so_is_found() {
    let nothing = "[package]\nname = \"fstitch-fs\"\n[dependencies]\n";
    assert_eq!(broken(&[DRAWING, ("Cargo.toml", nothing)]), ["drawing"], "it uses nothing");
    let stranger = "[package]\nname = \"fstitch-other\"\n";
    let used = "[package]\nname = \"fstitch-fs\"\n[dependencies]\nfstitch-patch.workspace = true\n";
    let broken = broken(&[DRAWING, ("a/Cargo.toml", stranger), ("b/Cargo.toml", used)]);
    assert_eq!(broken, ["drawing"], "a crate without a row");
}

#[test]
fn a_lock_without_a_rank_is_found_where_all_have_one() {
    let used = "use std::sync::{Arc, Mutex};\n";
    for text in
        [used, "use std::sync::RwLock as L;\n", "fn f(m: &std::sync::Mutex<()>) {}\n", "use std::sync::*;\n"]
    {
        assert_eq!(broken(&[("crates/fstitch-fs/src/x.rs", text)]), ["unranked-lock"], "{text}");
    }
    assert!(broken(&[("crates/fstitch-patch/src/x.rs", "use std::sync::{Arc, OnceLock};\n")]).is_empty());
    assert!(broken(&[("crates/fstitch-fuse/src/x.rs", used)]).is_empty());
    let test = format!("#[cfg(test)]\nmod tests {{\n    {used}}}\n");
    assert!(broken(&[("crates/fstitch-fs/src/x.rs", &test)]).is_empty());
}

#[test]
fn a_dependency_without_a_reason_is_found() {
    let manifest = "[package]\nname = \"xtask\"\n[dependencies]\nanyhow = \"1\"\n";
    assert_eq!(broken(&[("Cargo.toml", manifest)]), ["dependency-reason"]);
    let with = "[package]\nname = \"xtask\"\n[dependencies]\n# Chains of reasons.\nanyhow = \"1\"\n";
    assert!(broken(&[("Cargo.toml", with)]).is_empty());
}

#[test]
fn long_files_are_found() {
    assert_eq!(broken(&[("a.rs", &"\n".repeat(1001))]), ["file-length"]);
    let warned = report(&[("a.rs", &"\n".repeat(601))]);
    assert_eq!((warned.violations.len(), warned.warnings.len()), (0, 1));
    assert!(report(&[("a.rs", &"\n".repeat(600))]).warnings.is_empty());
}

#[test]
fn long_functions_are_found() {
    assert_eq!(broken(&[("a.rs", &long_function(71))]), ["function-length"]);
    assert!(broken(&[("a.rs", &long_function(70))]).is_empty());
    let method = format!("impl T {{ {} }}", long_function(71));
    assert_eq!(broken(&[("a.rs", &method)]), ["function-length"]);
}

#[test]
fn unwrap_is_found_outside_tests_only() {
    assert_eq!(broken(&[("a.rs", "fn f() { g().unwrap(); }")]), ["unwrap"]);
    assert!(broken(&[("a.rs", "#[cfg(test)] mod tests { fn f() { g().unwrap(); } }")]).is_empty());
    assert!(broken(&[("a.rs", "#[test] fn f() { g().unwrap(); }")]).is_empty());
    assert!(broken(&[("crates/x/tests/a.rs", "fn f() { g().unwrap(); }")]).is_empty());
    assert!(broken(&[("a.rs", "fn f() { g().expect(\"it is there\"); }")]).is_empty());
}

#[test]
fn unfinished_work_is_found() {
    for word in [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")] {
        assert_eq!(broken(&[("a.md", word)]), ["unfinished"], "{word}");
    }
    assert!(broken(&[("a.md", concat!("HA", "CKER NXX", "X"))]).is_empty());
    assert_eq!(broken(&[("a.rs", concat!("fn f() { to", "do!() }"))]), ["unfinished"]);
    assert_eq!(broken(&[("a.rs", "fn f() { unimplemented!() }")]), ["unfinished"]);
    assert_eq!(broken(&[("a.rs", concat!("#[test] #[ign", "ore] fn f() {}"))]), ["ignored-test"]);
}

#[test]
fn machine_paths_are_found() {
    assert_eq!(broken(&[("a.md", concat!("see /wo", "rk/shared"))]), ["machine-path"]);
    assert_eq!(broken(&[("a.sh", concat!("cd /ho", "me/me"))]), ["machine-path"]);
    assert!(broken(&[("a.md", concat!("see frame", "/wo", "rk/shared"))]).is_empty());
}

#[test]
fn dead_links_and_paths_are_found() {
    assert_eq!(broken(&[("docs/a.md", "[b](b.md)")]), ["dead-link"]);
    assert!(
        broken(&[("docs/a.md", "[b](../b.md#part) [c](https://example.org/x)"), ("b.md", "")]).is_empty()
    );
    assert_eq!(broken(&[("a.md", "in `crates/x/src/lib.rs`")]), ["dead-path"]);
    assert!(broken(&[("a.md", "in `docs/b.md`"), ("docs/b.md", "")]).is_empty());
}

#[test]
fn a_disordered_glossary_is_found() {
    let rules = broken(&[("docs/GLOSSARY.md", "- **zebra**: one.\n- **apple**: two.\n")]);
    assert!(rules.contains(&"glossary-order") && rules.contains(&"glossary-term"), "{rules:?}");
}

#[test]
fn results_without_their_sources_are_found() {
    let page = |text: &str| broken(&[("docs/crash-results.md", text)]);
    assert_eq!(page("## A\n1. `abc` (today's)\n"), ["results-today"]);
    assert_eq!(page("## A\n| run | violations |\n"), ["results-sources"]);
    assert_eq!(page("## A\ncommit `abc`\n## B\n<!-- mutants: begin -->\n"), ["results-sources"]);
    assert!(page("## A\n| run | violations |\n\nSources: commit `abc`.\n## B\nwords\n").is_empty());
}

#[test]
fn results_of_other_sources_than_they_say_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let git = |arguments: &[&str]| {
        let command = ["-c", "user.name=me", "-c", "user.email=me@example.org"];
        let output = std::process::Command::new("git")
            .args(command)
            .args(arguments)
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    git(&["init", "-q"]);
    for folder in crate::soak::SOURCES {
        let source = dir.path().join(format!("crates/{folder}/src/a"));
        std::fs::create_dir_all(source.parent().unwrap()).unwrap();
        std::fs::write(source, folder).unwrap();
    }
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "sources"]);
    let commit = git(&["rev-parse", "HEAD"]);
    let hashes = crate::soak::SOURCES
        .map(|folder| git(&["rev-parse", "--short=12", &format!("HEAD:crates/{folder}/src")]))
        .join(" ");
    let page = dir.path().join("docs/crash-results.md");
    std::fs::create_dir(page.parent().unwrap()).unwrap();
    let rules = |text: String| -> Vec<&'static str> {
        std::fs::write(&page, text).unwrap();
        check(dir.path()).unwrap().violations.iter().map(|violation| violation.rule).collect()
    };
    assert!(rules(format!("## A\n1. commit `{commit}`: `{hashes}`\n")).is_empty());
    assert_eq!(rules(format!("## A\n1. commit `{commit}`: `{}`\n", "0".repeat(12))), ["results-sources"]);
    assert_eq!(rules(format!("## A\ncommit `{}`\n", "0".repeat(40))), ["results-sources"]);
}

#[test]
fn a_source_that_does_not_parse_is_found() {
    assert_eq!(broken(&[("a.rs", "fn f( {")]), ["syntax"]);
}

#[test]
fn a_program_that_nobody_installs_is_found() {
    let script = (
        "scripts/setup.sh",
        "test | proofs)\n    need fish fish\n    ;;\nbench)\n    need dot graphviz\n    ;;\n",
    );
    let test = |program| format!("fn f() {{\n    if needs(\"{program}\") {{}}\n}}\n");
    let broken = |program| broken(&[script, ("crates/a/tests/b.rs", &test(program))]);
    assert_eq!(broken("dot"), ["program"]);
    assert!(broken("fish").is_empty());
    assert!(broken("tar").is_empty());
}
