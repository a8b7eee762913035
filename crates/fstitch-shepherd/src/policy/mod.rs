//! Policies: a chain of steps for each kind of block and direction (\[C\] §3.2).

mod chain;
mod check;
mod kind;
mod shipped;
mod step;
mod text;

#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use check::VolumeFacts;
pub use kind::{Direction, Group, Kind, MapKind};
pub use shipped::{SHIPPED, Shipped, shipped};
pub use step::{Answer, End, Place, Retry, Standing, Step};
pub use text::BadPolicy;

/// What is done when something fails, for every kind of block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What it is for, in a sentence; may be empty.
    pub description: String,
    /// The command that `notify` runs.
    pub on_fault: Option<String>,
    /// By [`Kind::index`] and [`Direction`].
    chains: Vec<[Chain; 2]>,
}

impl Policy {
    /// Reads a policy and checks all of it that can be checked without a volume.
    ///
    /// # Errors
    /// With the line and what would be right, if it cannot be what somebody wants.
    pub fn parse(text: &str) -> Result<Self, BadPolicy> {
        text::parse(text)
    }

    /// Checks that a volume can give what the policy asks for.
    ///
    /// # Errors
    /// If it lacks disks.
    pub fn check_volume(&self, text: &str, facts: &VolumeFacts) -> Result<(), BadPolicy> {
        check::volume(self, text, facts)
    }

    /// What is done for one kind of block.
    #[must_use]
    pub fn chain(&self, kind: Kind, direction: Direction) -> &Chain {
        &self.chains[kind.index()][direction.index()]
    }

    /// Whether any chain has this standing step.
    pub fn any_standing(&self, wanted: impl Fn(&Standing) -> bool) -> bool {
        self.chains.iter().flatten().any(|chain| chain.standing.iter().any(&wanted))
    }

    /// All standing steps of all chains.
    pub fn standing(&self) -> impl Iterator<Item = &Standing> {
        self.chains.iter().flatten().flat_map(|chain| &chain.standing)
    }

    /// Whether any chain has such an answer.
    pub fn any_answer(&self, wanted: impl Fn(&Answer) -> bool) -> bool {
        self.chains.iter().flatten().any(|chain| chain.answers.iter().any(&wanted))
    }
}
