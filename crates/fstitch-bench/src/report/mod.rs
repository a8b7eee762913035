//! What a run found, for people: a table for each workload, ratios first.

mod summary;

use std::path::Path;

use anyhow::{Context, Result};

pub use self::summary::summary;
use crate::results::Results;

/// Writes the report into `file`, and what belongs to it into the directory of the same name without its ending.
///
/// # Errors
/// When they cannot be written.
pub fn write(results: &Results, file: &Path) -> Result<()> {
    let beside = file.with_extension("");
    std::fs::create_dir_all(&beside).with_context(|| beside.display().to_string())?;
    let json = serde_json::to_string(results)?;
    std::fs::write(beside.join("results.json"), json)?;
    std::fs::write(file, summary(results)).with_context(|| file.display().to_string())
}
