//! `depend` and `order`, and the examples of the page for users, built from what is installed: programs that were written
//! for one release must find the same names, numbers and errors in the next.

mod mounted;

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{PROGRAM, Place, Ran, fstitch, needs};

const PAGE: &str = include_str!("../../../../docs/patchgroups.md");
const WHOLE: &str = "colour=blue\n";

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The page's example in a language.
fn example(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("the page has one");
    rest.split_once("```").unwrap().0
}

fn shell(script: &str, at: &Path) -> Ran {
    let program = Path::new(PROGRAM).parent().unwrap().display();
    let path = format!("{program}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-euc", script]).current_dir(at).env("PATH", path).output().unwrap().into()
}

/// That the example has replaced the file in this directory, and nothing else is there.
#[track_caller]
fn replaced(at: &Path) {
    let names: Vec<_> = fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.iter().any(|name| name == "settings") && !names.iter().any(|name| name == "settings.new"));
    assert_eq!(fs::read_to_string(at.join("settings")).unwrap(), WHOLE);
    fs::remove_file(at.join("settings")).unwrap();
}

/// Installs the library into a prefix and builds the page's program, opening its volume so, with each kind of it.
fn c_programs(place: &Place, flags: &str) -> Option<[String; 2]> {
    if !(needs("make") && needs("cc") && needs("pkg-config")) {
        return None;
    }
    let prefix = place.directory("prefix");
    let target = Path::new(PROGRAM).ancestors().nth(2).unwrap();
    let mut make = Command::new("make");
    make.args(["-s", "install-client", "PROFILE=dev", &format!("PREFIX={prefix}")]).current_dir(root());
    Ran::from(make.env("CARGO_TARGET_DIR", target).output().unwrap()).ok();
    fs::write(place.at("program.c"), example("c").replace("PG_FALLBACK_FSYNC", flags)).unwrap();
    let build = format!(
        "export PKG_CONFIG_PATH={prefix}/lib/pkgconfig
         flags='-std=c99 -Wall -Wextra -Wpedantic -Werror'
         cc $flags program.c -o dynamic $(pkg-config --cflags --libs patchgroup) -Wl,-rpath,{prefix}/lib
         cc $flags program.c -o static $(pkg-config --cflags patchgroup) {prefix}/lib/libpatchgroup.a \
            $(pkg-config --static --libs-only-l patchgroup | sed s/-lpatchgroup//)
         ! ldd static | grep libpatchgroup"
    );
    shell(&build, place.at("").as_path()).ok();
    Some(["dynamic", "static"].map(|name| place.text(name)))
}

/// Installs the module beside the test and returns the command that runs a program with it.
fn python(place: &Place) -> Option<String> {
    if !needs("python3") {
        return None;
    }
    let source = place.text("source");
    let pip = "python3 -m pip --disable-pip-version-check";
    if shell(&format!("{pip} --version"), root()).code != 0 {
        println!("skipped: python3 has no pip");
        return None;
    }
    // From a copy, because what pip does inside the source differs between its versions.
    let site = place.text("site");
    let install = format!("cp -r python {source}; {pip} install -q --no-index --target {site} {source}");
    shell(&install, root()).ok();
    fs::write(place.at("program.py"), example("python")).unwrap();
    fs::write(place.at("rules.py"), include_str!("patchgroups/rules.py")).unwrap();
    Some(format!("PYTHONPATH={} PYTHONDONTWRITEBYTECODE=1 python3", place.text("site")))
}

#[test]
fn a_c_program_is_built_from_what_is_installed_and_waits_elsewhere() {
    let place = Place::new();
    let Some(programs) = c_programs(&place, "PG_FALLBACK_FSYNC") else { return };
    let plain = place.directory("plain");
    for program in &programs {
        shell(program, plain.as_ref()).ok();
        replaced(plain.as_ref());
    }
}

#[test]
fn the_python_module_is_installed_by_pip_and_waits_elsewhere() {
    let place = Place::new();
    let Some(python) = python(&place) else { return };
    let plain = place.directory("plain");
    let program = format!("{python} {}", place.text("program.py"));
    shell(&program, plain.as_ref()).ok();
    replaced(plain.as_ref());
    shell(&format!("{python} {} fallback", place.text("rules.py")), plain.as_ref()).ok();
}

#[test]
fn without_patchgroups_depend_waits_only_if_asked_to_and_order_refuses() {
    let place = Place::new();
    let plain = place.directory("plain");
    let plain = Path::new(&plain);
    shell("fstitch depend true", plain).refused(1, "--or-fsync");
    shell("fstitch depend --or-fsync 'echo 1 > a' 'mv a b'", plain).ok();
    assert!(plain.join("b").exists());
    shell("fstitch order -- touch never", plain).refused(1, "--on");
    assert!(!plain.join("never").exists());
    fstitch("order --durable-every 5 -- true").refused(2, "5s");
    fstitch("order --durable-every 9ms -- true").refused(2, "10ms");
    fstitch("depend").refused(2, "required");
    let help = fstitch("order --help").ok();
    assert!(
        help.contains("Kept after a crash: atomicity and order") && help.contains("the last moments"),
        "{help}"
    );
    assert!(fstitch("depend --help").ok().contains("Not promised"));
}
