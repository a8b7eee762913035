//! The module for Python, installed from the tree by pip.

use std::process::Command;

use super::{CRATE, library, needs, run};

#[test]
fn the_module_for_python_does_what_it_says() {
    if !needs("python3") {
        return;
    }
    if !Command::new("python3").args(["-m", "pip", "--version"]).output().unwrap().status.success() {
        println!("skipped: python3 has no pip");
        return;
    }
    let place = library();
    // From a copy, because what pip does inside the source differs between its versions.
    run(Command::new("cp")
        .args(["-r", &format!("{CRATE}/../../python"), "source"])
        .current_dir(place.path()));
    let pip = ["-m", "pip", "--disable-pip-version-check", "install", "-q", "--no-index", "--target", "site"];
    run(Command::new("python3").args(pip).arg("./source").current_dir(place.path()));
    assert!(place.path().join("site/fstitch_lld/py.typed").exists());
    let mut tests = Command::new("python3");
    tests
        .args(["-W", "error", &format!("{CRATE}/tests/clients/test_fstitch_lld.py")])
        .current_dir(place.path());
    tests.env("PYTHONPATH", place.path().join("site")).env("PYTHONDONTWRITEBYTECODE", "1");
    run(tests.env("FSTITCH_LLD_LIBRARY", place.path().join("libfstitch_lld.so.0")));
}
