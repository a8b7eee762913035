//! Rules for the page of results: whoever reads a number there must be able to see of which sources it is.
//!
//! - `results-today`: no result is called today's; it would be a lie after the next commit.
//! - `results-sources`: a section with results names a commit, and where hashes of sources stand beside it, they are its own. The
//!   commit is one that `HEAD` comes after.

use std::path::Path;
use std::process::Command;

use super::{Report, SourceFile};
use crate::soak::SOURCES;

/// Checks the page.
pub fn check(root: &Path, file: &SourceFile<'_>, report: &mut Report) {
    let mut section: Option<Section> = None;
    for (index, line) in file.text.lines().enumerate() {
        let no = index + 1;
        if ["today's", "(today", "of today"].iter().any(|word| line.contains(word)) {
            let text = "results are of a commit: name it";
            report.violations.push(file.violation(no, "results-today", text));
        }
        if line.starts_with("## ") {
            section.take().into_iter().for_each(|section| section.end(file, report));
            section = Some(Section { line: no, ..Section::default() });
        }
        let Some(section) = &mut section else { continue };
        section.has_results |= line.starts_with("<!-- ") || line.contains("| violations |");
        for (at, _) in line.match_indices("commit `") {
            let mut quoted = line[at..].split('`').skip(1).step_by(2);
            section.has_commit = true;
            if let Some(commit) = quoted.next() {
                named(root, file, (no, commit, quoted.next()), report);
            }
        }
    }
    section.into_iter().for_each(|section| section.end(file, report));
}

#[derive(Default)]
struct Section {
    line: usize,
    has_results: bool,
    has_commit: bool,
}

impl Section {
    fn end(self, file: &SourceFile<'_>, report: &mut Report) {
        if self.has_results && !self.has_commit {
            let text = "results without the commit of their sources: say \"commit `HASH`\"";
            report.violations.push(file.violation(self.line, "results-sources", text));
        }
    }
}

/// Whether the commit is one of ours, and its sources those that stand beside it. Says nothing where git cannot know.
fn named(
    root: &Path,
    file: &SourceFile<'_>,
    (line, commit, hashes): (usize, &str, Option<&str>),
    report: &mut Report,
) {
    let whole = git(root, &["rev-parse", "--is-shallow-repository"]).is_some_and(|said| said == "false");
    if !whole {
        return;
    }
    let mut wrong = |text: String| report.violations.push(file.violation(line, "results-sources", text));
    if git(root, &["merge-base", "--is-ancestor", commit, "HEAD"]).is_none() {
        return wrong(format!("{commit} is no commit that this one comes after"));
    }
    let is_hash = |word: &str| word.chars().all(|c| c.is_ascii_hexdigit()) && word.len() == 12;
    let Some(said) = hashes.filter(|said| said.split(' ').all(is_hash)) else { return };
    let found: Vec<String> = SOURCES
        .iter()
        .filter_map(|folder| {
            git(root, &["rev-parse", "--short=12", &format!("{commit}:crates/{folder}/src")])
        })
        .collect();
    if found.join(" ") != said {
        wrong(format!("the sources of {commit} are `{}`", found.join(" ")));
    }
}

/// What git says, if it succeeds.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).current_dir(root).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
