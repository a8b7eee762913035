//! What a run found, for people: whether goals are met, ratios first; JSON for machines.

mod goals;
mod markdown;
mod readme;
mod summary;
mod svg;
mod update;

use std::path::Path;

use anyhow::{Context, Result};

pub use self::goals::{Checked, FOUND_TITLE, Goal, Wanted, goals};
pub use self::readme::with_ratios;
pub use self::summary::summary;
pub use self::update::{takes_tables, with_tables};
use crate::results::Results;
use crate::workload::ALL;

/// Writes the report into `file`, and plots and all numbers into the directory of the same name without its ending.
///
/// # Errors
/// When they cannot be written.
pub fn write(results: &Results, file: &Path) -> Result<()> {
    let beside = file.with_extension("");
    std::fs::create_dir_all(&beside).with_context(|| beside.display().to_string())?;
    let put =
        |path: &Path, text: &str| std::fs::write(path, text).with_context(|| path.display().to_string());
    put(&beside.join("results.json"), &serde_json::to_string(results)?)?;
    for workload in ALL {
        if let Some(plot) = svg::plots(results, workload.name) {
            put(&beside.join(format!("{}.svg", workload.name)), &plot)?;
        }
    }
    let name = beside.file_name().unwrap_or_default().to_string_lossy();
    put(file, &markdown::report(results, &name))
}
