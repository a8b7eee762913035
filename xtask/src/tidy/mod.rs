//! Rules of the house: crate directions, sizes of files and functions, reasons for dependencies, words that
//! stand for unfinished work, links between documents, results without their sources, programs that tests need. Each rule
//! has a seeded violation in `tests.rs` that it must find.

mod docs;
mod drawing;
mod manifest;
mod programs;
mod results;
mod source;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// One broken rule, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Path from the root of the tree.
    pub file: PathBuf,
    /// Line from 1; 0 where the whole file is meant.
    pub line: usize,
    /// Stable name of the rule.
    pub rule: &'static str,
    /// What is wrong and what to do.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: [{}] {}", self.file.display(), self.line, self.rule, self.text)
    }
}

/// What a run over the tree found.
#[derive(Debug, Default)]
pub struct Report {
    /// Files looked at.
    pub files: usize,
    /// Things to look at soon.
    pub warnings: Vec<Violation>,
    /// Broken rules.
    pub violations: Vec<Violation>,
}

/// A file of the tree.
#[derive(Clone, Copy, Debug)]
pub struct SourceFile<'a> {
    /// Path from the root of the tree.
    pub path: &'a Path,
    /// Its contents.
    pub text: &'a str,
}

impl SourceFile<'_> {
    fn violation(&self, line: usize, rule: &'static str, text: impl Into<String>) -> Violation {
        Violation { file: self.path.to_path_buf(), line, rule, text: text.into() }
    }
}

/// Checks every text file below `root`.
pub fn check(root: &Path) -> Result<Report> {
    let mut report = Report::default();
    let mut drawing = drawing::Drawing::read(root)?;
    let programs = programs::Programs::read(root)?;
    for path in files(root)? {
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else {
            continue;
        };
        report.files += 1;
        let file = SourceFile { path: &path, text: &text };
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let extension = path.extension().and_then(|name| name.to_str()).unwrap_or_default();
        text::check(&file, &mut report);
        match extension {
            "rs" => {
                source::check(&file, &mut report);
                programs.check(&file, &mut report);
            }
            "md" => docs::check(root, &file, &mut report),
            _ => {}
        }
        if path == Path::new(crate::soak::PAGE) {
            results::check(root, &file, &mut report);
        }
        if name == "Cargo.toml" {
            manifest::check(&file, &mut drawing, &mut report);
        }
    }
    drawing.finish(&mut report);
    Ok(report)
}

/// The tree's files in a fixed order, without build output and version control.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    const SKIPPED: [&str; 5] = [".git", "target", "corpus", "artifacts", "Cargo.lock"];
    let mut found = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("listing {}", dir.display()))? {
            let entry = entry?;
            if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                continue;
            }
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(root)?.to_path_buf());
            }
        }
    }
    found.sort();
    Ok(found)
}
