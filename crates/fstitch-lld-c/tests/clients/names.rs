//! The calls by their names: in the header, the library, the manual page, the Makefile and the program that uses them all.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::CRATE;

/// The words that begin as the calls do, before a bracket or anywhere.
fn words(text: &str, before_bracket: bool) -> BTreeSet<String> {
    let part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut found = BTreeSet::new();
    for (at, _) in text.match_indices("lld_") {
        let word: String = text[at..].chars().take_while(|letter| part(*letter)).collect();
        let is_call = text[at + word.len()..].starts_with('(');
        if !text[..at].ends_with(part) && (is_call || !before_bracket) {
            found.insert(word);
        }
    }
    found
}

#[test]
fn all_who_name_the_calls_name_the_same() {
    let read = |path: &str| fs::read_to_string(Path::new(CRATE).join(path)).unwrap();
    let calls = words(&read("fstitch_lld.h"), true);
    assert!(calls.len() > 60 && calls.contains("lld_error"), "{calls:?}");
    assert_eq!(
        words(&read("tests/clients/every_call.c"), true),
        calls,
        "the program that uses every call, and says what failed"
    );
    let sources =
        ["blocks", "boundary", "disk", "unit", "volumes"].map(|name| read(&format!("src/{name}.rs")));
    let mut defined = words(&sources.concat(), false);
    // What stands for all of them.
    defined.retain(|word| !word.ends_with('_'));
    assert_eq!(defined, calls, "what the library has");
    let manual = words(&read("fstitch_lld.3").replace("\\-", "-"), false);
    let missing: Vec<_> = calls.difference(&manual).collect();
    assert!(missing.is_empty(), "not in the manual page: {missing:?}");
    let makefile = read("../../Makefile");
    let listed = makefile.lines().skip_while(|line| !line.starts_with("LLD_CALLS"));
    let mut listed_lines = Vec::new();
    for line in listed {
        listed_lines.push(line.trim_end_matches('\\'));
        if !line.ends_with('\\') {
            break;
        }
    }
    assert_eq!(words(&listed_lines.join(" "), false), calls, "LLD_CALLS in the Makefile");
}
