//! `program`: what a test needs and skips without is installed by `scripts/setup.sh test`, so that no test is skipped on a
//! fresh machine only. The word behind `needs(` is looked up in the script's section and in what comes with its packages.

use std::path::Path;

use anyhow::Result;

use super::{Report, SourceFile};

/// Where the packages are named.
const SCRIPT: &str = "scripts/setup.sh";

/// Programs of every machine that can build, and those in packages that the script installs for another one.
const STOCK: [&str; 15] = [
    "bash", "cc", "debugfs", "dumpe2fs", "gzip", "make", "mke2fs", "mkfifo", "mount", "script", "setpriv",
    "sh", "strip", "tar", "unshare",
];

/// The programs that a machine has after the script has run.
pub(super) struct Programs(Vec<String>);

impl Programs {
    /// Reads the script of the tree at `root`; none if there is no script.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let script = root.join(SCRIPT);
        let text = if script.exists() { std::fs::read_to_string(script)? } else { String::new() };
        let section =
            text.lines().skip_while(|line| !line.starts_with("test |")).take_while(|line| *line != "    ;;");
        let needed = section.filter_map(|line| line.trim().strip_prefix("need ")?.split(' ').next());
        Ok(Self(STOCK.into_iter().chain(needed).map(str::to_owned).collect()))
    }

    /// Checks the tests in one file.
    pub(super) fn check(&self, file: &SourceFile<'_>, report: &mut Report) {
        for (index, line) in file.text.lines().enumerate() {
            for (at, call) in line.match_indices("needs(\"") {
                let program = line[at + call.len()..].split('"').next().unwrap_or_default();
                if !self.0.iter().any(|known| known == program) {
                    let text = format!("a test needs {program}: {SCRIPT} must install it for `test`");
                    report.violations.push(file.violation(index + 1, "program", text));
                }
            }
        }
    }
}
