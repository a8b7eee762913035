//! Rules for any text file: words that stand for unfinished work, paths of one machine, over-long files.

use super::{Report, SourceFile};

/// Longest Rust file, in lines.
pub const FILE_LIMIT: usize = 1000;
/// From here on a Rust file should be split.
pub const FILE_WARNING: usize = 600;

/// Words that put a decision off. Spelled in halves so that this file does not break its own rule.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// Places that exist on one machine only.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// Checks one file.
pub fn check(file: &SourceFile<'_>, report: &mut Report) {
    for (index, line) in file.text.lines().enumerate() {
        for word in UNFINISHED {
            if has_word(line, word) {
                let text = format!("`{word}`: decide, or describe it in an issue");
                report.violations.push(file.violation(index + 1, "unfinished", text));
            }
        }
        for path in MACHINE_PATHS {
            if names_path(line, path) {
                let text = format!("`{path}` exists on one machine only");
                report.violations.push(file.violation(index + 1, "machine-path", text));
            }
        }
    }
    if file.path.extension().is_some_and(|extension| extension == "rs") {
        length(file, report);
    }
}

fn length(file: &SourceFile<'_>, report: &mut Report) {
    let lines = file.text.lines().count();
    if lines > FILE_LIMIT {
        let text = format!("{lines} lines; the limit is {FILE_LIMIT}");
        report.violations.push(file.violation(0, "file-length", text));
    } else if lines > FILE_WARNING {
        let text = format!("{lines} lines; look for a split");
        report.warnings.push(file.violation(0, "file-length", text));
    }
}

/// Whether `word` stands in `line` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(part)
            && !line[at + word.len()..].chars().next().is_some_and(part)
    })
}

/// Whether `line` names an absolute path that starts with `path` (not merely a path that contains it).
fn names_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        !line[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || "._-/}$".contains(c))
    })
}
