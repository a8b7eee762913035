//! Rules for documents: links and named source files exist, the glossary is in order and complete.

use std::path::{Component, Path, PathBuf};

use super::{Report, SourceFile};

/// Words without which the rest cannot be read; each has its line in the glossary.
const REQUIRED_TERMS: [&str; 14] = [
    "after",
    "before",
    "block",
    "commit",
    "epoch",
    "flush",
    "hard patch",
    "inode",
    "in flight",
    "overlap merging",
    "patch",
    "ready list",
    "soft updates",
    "undo data",
];

/// Checks one document.
pub fn check(root: &Path, file: &SourceFile<'_>, report: &mut Report) {
    let mut fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if !fenced {
            links(root, file, (index + 1, line), report);
        }
        named_sources(root, file, (index + 1, line), report);
    }
    if file.path.ends_with("docs/GLOSSARY.md") {
        glossary(file, report);
    }
}

/// Targets of `[text](target)` that are paths must exist, seen from the document.
fn links(root: &Path, file: &SourceFile<'_>, (no, line): (usize, &str), report: &mut Report) {
    for (at, _) in line.match_indices("](") {
        let Some(target) = line[at + 2..].split(')').next() else {
            continue;
        };
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
            continue;
        }
        let from = file.path.parent().unwrap_or(Path::new(""));
        if !root.join(normal(&from.join(path))).exists() {
            report.violations.push(file.violation(no, "dead-link", format!("`{path}` does not exist")));
        }
    }
}

/// Files named in backquotes as `crates/…`, `docs/…` or `scripts/…` must exist, seen from the root.
fn named_sources(root: &Path, file: &SourceFile<'_>, (no, line): (usize, &str), report: &mut Report) {
    for word in line.split('`').skip(1).step_by(2) {
        let is_path =
            ["crates/", "docs/", "scripts/", "xtask/"].iter().any(|prefix| word.starts_with(prefix));
        if !is_path || word.contains(|c: char| " *<>{}…$".contains(c)) {
            continue;
        }
        let path = word.split(':').next().unwrap_or(word);
        if !root.join(path).exists() {
            report.violations.push(file.violation(no, "dead-path", format!("`{path}` does not exist")));
        }
    }
}

/// One line per term (`- **term**: …`), in alphabetical order, none twice, the required ones present.
fn glossary(file: &SourceFile<'_>, report: &mut Report) {
    let mut terms: Vec<String> = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let Some(term) = line.strip_prefix("- **").and_then(|rest| rest.split("**").next()) else {
            continue;
        };
        let term = term.to_lowercase();
        if terms.last().is_some_and(|last| *last >= term) {
            let text = format!("`{term}` is out of alphabetical order or stands twice");
            report.violations.push(file.violation(index + 1, "glossary-order", text));
        }
        terms.push(term);
    }
    for required in REQUIRED_TERMS {
        if !terms.iter().any(|term| term == required) {
            report.violations.push(file.violation(0, "glossary-term", format!("`{required}` is missing")));
        }
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                result.pop();
            }
            Component::CurDir => {}
            other => result.push(other),
        }
    }
    result
}
