//! What is done before the power fails.
//!
//! A [`Workload`] is a list of operations; a [`Family`] numbers many of them, so that every failure is named by a family and
//! a number.

mod applications;
mod held;
mod op;
mod random;
mod rare;
mod seq;
mod target;

pub use op::{Op, UnknownOp};
pub use target::{Target, WriteOut, fill};

use std::fmt::Write;

/// A list of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// How it is found again, such as `seq2/4711`.
    pub name: String,
    /// What is on the medium before; stable when the operations begin.
    pub setup: Vec<Op>,
    /// What is done.
    pub ops: Vec<Op>,
}

impl Workload {
    /// Whether all is written out before the unmounting, as a flusher would end it: so every other one ends, the others by
    /// unmounting in the middle of things.
    #[must_use]
    pub fn is_written_out(&self) -> bool {
        self.ops.len().is_multiple_of(2)
    }

    /// Both lists in one line: operations separated by `;`, the lists by `|`.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (at, list) in [&self.setup, &self.ops].into_iter().enumerate() {
            text.push_str(if at == 0 { "" } else { "|" });
            for (at, op) in list.iter().enumerate() {
                let _ = write!(text, "{}{op}", if at == 0 { "" } else { ";" });
            }
        }
        text
    }

    /// Reads what [`Workload::text`] writes; without `|` there is no set-up.
    ///
    /// # Errors
    /// When a part is no operation.
    pub fn parse(text: &str) -> Result<Self, UnknownOp> {
        let list = |text: &str| {
            text.split(';')
                .map(str::trim)
                .filter(|op| !op.is_empty())
                .map(str::parse)
                .collect::<Result<Vec<Op>, _>>()
        };
        let (setup, ops) = text.split_once('|').unwrap_or(("", text));
        Ok(Self { name: format!("ops/{text}"), setup: list(setup)?, ops: list(ops)? })
    }
}

/// Numbered workloads. A number means the same workload for ever.
pub trait Family: Send + Sync {
    /// A word.
    fn name(&self) -> &str;
    /// A line for people.
    fn about(&self) -> &str;
    /// How many there are; `u64::MAX` where any number is a seed.
    fn len(&self) -> u64;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The workload with this number.
    fn get(&self, index: u64) -> Option<Workload>;
}

/// All families.
#[must_use]
pub fn families() -> Vec<Box<dyn Family>> {
    let mut all: Vec<Box<dyn Family>> = vec![];
    all.extend(seq::families());
    all.extend(random::families());
    all.extend(applications::families());
    all.extend(held::families());
    all
}

/// A name that means no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownWorkload {
    /// No family has this name, or what follows it is no number.
    #[error(
        "there is no workload `{name}`; there are {known}, alone or with a number as in seq2/4711, and \
         `ops/` with operations"
    )]
    Name {
        /// What was asked for.
        name: String,
        /// The families.
        known: String,
    },
    /// The operations after `ops/` are none.
    #[error(transparent)]
    Op(#[from] UnknownOp),
}

/// One workload that somebody has written down.
struct Given(Workload);

impl Family for Given {
    fn name(&self) -> &str {
        "ops"
    }

    fn about(&self) -> &str {
        "operations written down, a set-up before `|`"
    }

    fn len(&self) -> u64 {
        1
    }

    fn get(&self, index: u64) -> Option<Workload> {
        (index == 0).then(|| self.0.clone())
    }
}

/// The family, and the number if there is one, that `name` names.
///
/// # Errors
/// When there is none, with the names that there are.
pub fn find(name: &str) -> Result<(Box<dyn Family>, Option<u64>), UnknownWorkload> {
    if let Some(text) = name.strip_prefix("ops/") {
        return Ok((Box::new(Given(Workload::parse(text)?)), Some(0)));
    }
    let all = families();
    let known = || all.iter().map(|family| family.name().to_owned()).collect::<Vec<_>>().join(", ");
    let unknown = || UnknownWorkload::Name { name: name.to_owned(), known: known() };
    let (family, index) = match name.split_once('/') {
        Some((family, index)) => (family, Some(index.parse().map_err(|_| unknown())?)),
        None => (name, None),
    };
    let found = all.iter().position(|other| other.name() == family).ok_or_else(unknown)?;
    let family = all.into_iter().nth(found).expect("found above");
    Ok((family, index))
}
