//! Where an oracle plugs in: whatever it is that a crash shows, something knows what it may show.

use super::judge::{Violation, Window};
use super::ledger::Ledger;
use super::tree::Tree;
use crate::medium::Progress;
use crate::system::Promise;

/// Judges what one cut shows.
pub type Judge<'a, T> = Box<dyn Fn(&T) -> Result<(), Violation> + 'a>;

/// Knows what a workload did and was promised, and so what a crash may show. A file system's is a [`TreeOracle`]; a list of
/// records or the blocks of a logical disk bring their own.
pub trait Oracle {
    /// What is shown: a tree, records, blocks.
    type Shown;
    /// The judge of what a cut after this much progress shows.
    fn at(&self, progress: Progress) -> Judge<'_, Self::Shown>;
}

/// The oracle of file systems: a ledger, and what their mechanism promises beyond the syncs.
#[derive(Clone, Copy, Debug)]
pub struct TreeOracle<'a> {
    /// What the workload saw and was promised.
    pub ledger: &'a Ledger,
    /// What is promised of several operations.
    pub promise: Promise,
}

impl Oracle for TreeOracle<'_> {
    type Shown = Tree;

    fn at(&self, progress: Progress) -> Judge<'_, Tree> {
        let window = Window::new(self.ledger, progress, self.promise);
        Box::new(move |tree| window.judge(tree))
    }
}
