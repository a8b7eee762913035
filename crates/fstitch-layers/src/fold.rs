//! When two names are one.

use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// What all spellings of a name have in common: Unicode's canonical caseless form (full case folding of the decomposed name, decomposed
/// again), so that `É`, `é` and `e` with a combining accent are one letter. A name that is not UTF-8 has its own bytes, with letters
/// of ASCII in lower case.
#[must_use]
pub fn folded(name: &[u8]) -> Vec<u8> {
    match std::str::from_utf8(name) {
        Ok(text) if !text.is_ascii() => {
            text.chars().nfd().default_case_fold().nfd().collect::<String>().into_bytes()
        }
        _ => name.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_name_fold_alike_and_others_do_not() {
        let one: [&[&str]; 5] = [
            &["readme.TXT", "README.txt"],
            &["Übung", "übung", "u\u{308}bung", "U\u{308}BUNG"],
            &["straße", "STRASSE", "strasse"],
            &["ΣΊΣΥΦΟΣ", "σίσυφος"],
            &["\u{212b}", "å", "a\u{30a}"],
        ];
        for spellings in one {
            let first = folded(spellings[0].as_bytes());
            assert!(spellings.iter().all(|name| folded(name.as_bytes()) == first), "{spellings:?}");
        }
        let all: std::collections::BTreeSet<_> =
            one.iter().map(|names| folded(names[0].as_bytes())).collect();
        assert_eq!(all.len(), one.len());
    }

    #[test]
    fn names_that_are_no_text_keep_their_bytes() {
        assert_eq!(folded(b"\xffABC\xc3"), b"\xffabc\xc3");
        assert_ne!(folded(b"\xc4"), folded(b"\xe4"), "of Latin-1 nothing is known");
    }
}
