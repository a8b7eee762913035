//! fsck asks on a terminal, and only there.

use std::fs::File;
use std::os::unix::fs::FileExt;

use crate::harness::{Place, fstitch, needs, run};

/// A volume with a damage: its first group's block bitmap says that nothing is used.
fn damaged(place: &Place) -> String {
    let image = place.volume("a.img");
    let file = File::options().read(true).write(true).open(&image).unwrap();
    let mut bitmap = [0; 4];
    // The group descriptors are in block 2, blocks have 1024 bytes.
    file.read_exact_at(&mut bitmap, 2048).unwrap();
    file.write_all_at(&[0; 64], u64::from(u32::from_le_bytes(bitmap)) * 1024).unwrap();
    image
}

/// Runs fsck on a terminal where `typed` is typed.
fn on_a_terminal(image: &str, typed: &str) -> crate::harness::Ran {
    let line =
        format!("printf '{typed}' | script -qec '{} fsck -f {image}' /dev/null", crate::harness::PROGRAM);
    run("sh", ["-c", &line])
}

#[test]
fn repairs_are_agreed_on_at_the_terminal() {
    if !needs("script") {
        return;
    }
    let place = Place::new();
    let image = damaged(&place);
    let before = std::fs::read(&image).unwrap();
    let refused = on_a_terminal(&image, "n\\n");
    assert_eq!(refused.code, 4, "{refused:?}");
    assert!(refused.out.contains("(y)es, (n)o, yes to (a)ll:"), "{refused:?}");
    assert!(std::fs::read(&image).unwrap() == before, "no means no");
    let repaired = on_a_terminal(&image, "a\\n");
    assert_eq!(repaired.code, 1, "{repaired:?}");
    assert!(repaired.out.contains("all mended"), "{repaired:?}");
    fstitch(&format!("fsck -fn {image}")).ok();
}

#[test]
fn without_a_terminal_it_checks_and_names_the_options() {
    let place = Place::new();
    let image = damaged(&place);
    let before = std::fs::read(&image).unwrap();
    let found = fstitch(&format!("fsck -f {image}"));
    assert_eq!(found.code, 4, "{found:?}");
    assert!(found.out.contains("-y repairs them"), "{found:?}");
    assert!(std::fs::read(&image).unwrap() == before);
}
