//! Workloads beside those of the laboratory: what only some of the systems here have parts for.
//!
//! [`find`] and [`families`] know the laboratory's own as well. It replays states of these under the names that
//! [`spelled`] gives them: their operations.

mod crowded;
mod ends;
mod extents;
mod inside;
mod leaves;
mod quotas;
mod shifts;
mod steps;

use fstitch_crashlab::workload::{self, Family, UnknownWorkload, Workload};

/// All families: the laboratory's, and those of the systems.
#[must_use]
pub fn families() -> Vec<Box<dyn Family>> {
    let mut all = workload::families();
    all.extend(own());
    all
}

fn own() -> Vec<Box<dyn Family>> {
    let mut own = extents::families();
    own.extend(inside::families());
    own.extend(leaves::families());
    own.extend(ends::families());
    own.extend(shifts::families());
    own.extend(crowded::families());
    own.extend(quotas::families());
    own
}

/// The family of the systems' own that `name` begins with, and the number behind it.
fn find_own(name: &str) -> Option<(Box<dyn Family>, Option<u64>)> {
    let (name, index) = match name.split_once('/') {
        Some((name, index)) => (name, Some(index.parse().ok()?)),
        None => (name, None),
    };
    own().into_iter().find(|family| family.name() == name).map(|family| (family, index))
}

/// The family, and the number if there is one, that `name` names.
///
/// # Errors
/// When there is none, with the names that there are.
pub fn find(name: &str) -> Result<(Box<dyn Family>, Option<u64>), UnknownWorkload> {
    if let Some(found) = find_own(name) {
        return Ok(found);
    }
    workload::find(name).map_err(|error| match error {
        UnknownWorkload::Name { name, known } => {
            let own: Vec<String> = own().iter().map(|family| family.name().to_owned()).collect();
            UnknownWorkload::Name { name, known: format!("{known}, {}", own.join(", ")) }
        }
        other @ UnknownWorkload::Op(_) => other,
    })
}

/// The name by which the laboratory alone finds the workload `name`.
#[must_use]
pub fn spelled(name: &str) -> String {
    let found = find_own(name).and_then(|(family, index)| family.get(index?));
    found.map_or_else(|| name.to_owned(), |found: Workload| format!("ops/{}", found.text()))
}
