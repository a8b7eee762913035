//! Rules for `Cargo.toml`: who may depend on whom, and that every dependency says why it is there.

use super::drawing::Drawing;
use super::{Report, SourceFile};

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
pub fn check(file: &SourceFile<'_>, drawing: &mut Drawing, report: &mut Report) {
    let mut section = Section::Other;
    let mut package = None;
    let mut previous = "";
    for (index, line) in file.text.lines().enumerate() {
        let trimmed = line.trim();
        if let Some(header) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let (kind, named) = section_of(header);
            section = kind;
            if let Some(name) = named {
                dependency(
                    file,
                    (drawing, report),
                    &Dependency { section, package, name, line: index + 1, previous },
                );
                section = Section::Other;
            }
        } else if section == Section::Package {
            package = package.or_else(|| trimmed.strip_prefix("name = \"")?.strip_suffix('"'));
            package.into_iter().for_each(|package| drawing.see(package));
        } else if section != Section::Other && trimmed.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let name = trimmed.split(['=', '.', ' ']).next().unwrap_or_default();
            dependency(
                file,
                (drawing, report),
                &Dependency { section, package, name, line: index + 1, previous },
            );
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

fn dependency(file: &SourceFile<'_>, (drawing, report): (&mut Drawing, &mut Report), found: &Dependency<'_>) {
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
    if !drawing.allows(package, found.name) {
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
