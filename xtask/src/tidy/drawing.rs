//! Who may use whom, as `docs/ARCHITECTURE.md` has it: the page is the rule, and says no more than what is so.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;

use super::{Report, SourceFile};

/// The page.
const PAGE: &str = "docs/ARCHITECTURE.md";
/// How the table begins whose rows are crates and what they use.
const HEAD: &str = "| crate | uses |";

/// A crate of the page.
struct Row {
    name: String,
    uses: BTreeSet<String>,
    line: usize,
}

/// The page's crates, and what manifests were seen to use.
#[derive(Default)]
pub struct Drawing {
    text: String,
    rows: Vec<Row>,
    seen: BTreeSet<String>,
    used: BTreeSet<(String, String)>,
}

impl Drawing {
    /// What the page below `root` says; nothing if there is none.
    pub fn read(root: &Path) -> Result<Self> {
        let path = root.join(PAGE);
        let text = if path.exists() { std::fs::read_to_string(path)? } else { String::new() };
        let mut rows = Vec::new();
        let table = text.lines().enumerate().skip_while(|(_, line)| !line.starts_with(HEAD));
        for (index, line) in table.skip(2).take_while(|(_, line)| line.starts_with('|')) {
            let mut cells = line.split('|').skip(1).map(str::trim);
            let (Some(name), Some(uses)) = (cells.next(), cells.next()) else { continue };
            // Names stand in backquotes; what stands beside them is for people.
            let uses = uses.split('`').skip(1).step_by(2).map(str::to_owned).collect();
            rows.push(Row { name: name.trim_matches('`').to_owned(), uses, line: index + 1 });
        }
        Ok(Self { text, rows, ..Self::default() })
    }

    /// A crate's manifest was found.
    pub fn see(&mut self, package: &str) {
        self.seen.insert(package.to_owned());
    }

    /// A crate uses another one: whether it may.
    pub fn allows(&mut self, package: &str, used: &str) -> bool {
        self.used.insert((package.to_owned(), used.to_owned()));
        self.rows.iter().any(|row| row.name == package && row.uses.contains(used))
    }

    /// What the page says that is not so, and which crates it does not know.
    pub fn finish(&self, report: &mut Report) {
        if self.text.is_empty() {
            return;
        }
        let page = SourceFile { path: Path::new(PAGE), text: &self.text };
        for row in &self.rows {
            for used in &row.uses {
                if !self.used.contains(&(row.name.clone(), used.clone())) {
                    let text = format!("`{}` does not use `{used}`", row.name);
                    report.violations.push(page.violation(row.line, "drawing", text));
                }
            }
        }
        for package in &self.seen {
            if !self.rows.iter().any(|row| row.name == *package) {
                let text = format!("`{package}` has no row in the table `{HEAD}`");
                report.violations.push(page.violation(0, "drawing", text));
            }
        }
    }
}
