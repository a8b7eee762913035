//! Rules for `Cargo.toml`: who may depend on whom, and that every dependency says why it is there.

use super::{Report, SourceFile};

/// Which crates of ours a crate may use in its library or program (DESIGN's drawing; an absent crate is a
/// violation, so that a new one must be entered here).
const DIRECTIONS: [(&str, &[&str]); 15] = [
    ("fstitch-core", &[]),
    ("fstitch-disk", &["fstitch-core"]),
    ("fstitch-patch", &["fstitch-core"]),
    ("fstitch-posix", &["fstitch-core"]),
    ("fstitch-fs", &["fstitch-core", "fstitch-patch", "fstitch-posix"]),
    ("fstitch-formats", &["fstitch-core", "fstitch-patch", "fstitch-fs"]),
    ("fstitch-fuse", &["fstitch-core"]),
    // What programs link: nothing of the stack comes with it.
    ("fstitch-client", &[]),
    ("fstitch-client-c", &["fstitch-client"]),
    ("fstitch-crashlab", &["fstitch-core"]),
    ("fstitch-systems", &["fstitch-core", "fstitch-patch", "fstitch-fs", "fstitch-crashlab"]),
    (
        "fstitch",
        &[
            "fstitch-core",
            "fstitch-disk",
            "fstitch-patch",
            "fstitch-fs",
            "fstitch-formats",
            "fstitch-fuse",
            "fstitch-client",
            "fstitch-crashlab",
            "fstitch-systems",
            "fstitch-bench",
        ],
    ),
    ("fstitch-bench", &["fstitch-core", "fstitch-disk", "fstitch-patch", "fstitch-fs", "fstitch-fuse"]),
    ("xtask", &[]),
    // Outside the workspace: throws bytes at the libraries.
    ("fstitch-fuzz", &["fstitch-core", "fstitch-patch", "fstitch-fs"]),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Other,
    Package,
    /// Dependencies of the library or program itself, also of build scripts and single targets.
    Normal,
    Development,
    Workspace,
}

/// Checks one manifest.
pub fn check(file: &SourceFile<'_>, report: &mut Report) {
    let mut section = Section::Other;
    let mut package = None;
    let mut previous = "";
    for (index, line) in file.text.lines().enumerate() {
        let trimmed = line.trim();
        if let Some(header) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let (kind, named) = section_of(header);
            section = kind;
            if let Some(name) = named {
                dependency(file, report, &Dependency { section, package, name, line: index + 1, previous });
                section = Section::Other;
            }
        } else if section == Section::Package {
            package = package.or_else(|| trimmed.strip_prefix("name = \"")?.strip_suffix('"'));
        } else if section != Section::Other && trimmed.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = trimmed.split(['=', '.', ' ']).next().unwrap_or_default();
            dependency(file, report, &Dependency { section, package, name, line: index + 1, previous });
        }
        previous = trimmed;
    }
}

struct Dependency<'a> {
    section: Section,
    package: Option<&'a str>,
    name: &'a str,
    line: usize,
    previous: &'a str,
}

fn dependency(file: &SourceFile<'_>, report: &mut Report, found: &Dependency<'_>) {
    let ours = found.name == "fstitch" || found.name.starts_with("fstitch-");
    if !ours {
        if !found.previous.starts_with('#') {
            let text = format!("`{}` needs a comment on the line above that says why it is used", found.name);
            report.violations.push(file.violation(found.line, "dependency-reason", text));
        }
        return;
    }
    let (Some(package), Section::Normal) = (found.package, found.section) else {
        return;
    };
    let allowed = DIRECTIONS.iter().find(|(name, _)| *name == package).map(|(_, allowed)| *allowed);
    if !allowed.is_some_and(|allowed| allowed.contains(&found.name)) {
        let text = format!("`{package}` may not depend on `{}` (see docs/ARCHITECTURE.md)", found.name);
        report.violations.push(file.violation(found.line, "direction", text));
    }
}

/// What a section header introduces, and the dependency's name if the header itself names one.
fn section_of(header: &str) -> (Section, Option<&str>) {
    let tables = [
        ("workspace.dependencies", Section::Workspace),
        ("build-dependencies", Section::Normal),
        ("dev-dependencies", Section::Development),
        ("dependencies", Section::Normal),
    ];
    if header == "package" {
        return (Section::Package, None);
    }
    for (table, section) in tables {
        if header == table || header.ends_with(&format!(".{table}")) {
            return (section, None);
        }
        if let Some(name) = header.strip_prefix(&format!("{table}.")) {
            return (section, Some(name));
        }
    }
    (Section::Other, None)
}
