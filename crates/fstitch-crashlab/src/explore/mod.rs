//! All images of a log: which there are, which look alike, and what is known of each.

mod decisions;
mod facts;
mod known;
mod view;

pub use facts::Facts;
pub use known::Known;

use std::sync::Arc;

use fstitch_core::Seed;
use rustc_hash::FxHashSet;

use crate::medium::{Cut, Event, Image, Log};
use crate::oracle::Tree;
use crate::system::System;
use decisions::Decisions;
use view::View;

/// One pruned state of so many is run all the same and must give the same facts.
const CONTROL_SHARE: u64 = 64;

/// How the facts of a state came to be known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The image was made, recovered, checked and read.
    Checked,
    /// An equal image was, in this workload or another.
    SameImage,
    /// An image was that does not differ in any block which is read.
    SameReads,
    /// As one of the latter, but checked again to be sure.
    Control,
}

/// Finds out about images.
pub struct Explorer<'a> {
    system: &'a dyn System,
    known: &'a Known,
    written: FxHashSet<u64>,
    decisions: Decisions,
    control: Seed,
    /// What the images look like, more or less.
    like: Arc<Tree>,
}

impl<'a> Explorer<'a> {
    /// An explorer of the images of `log`, most of which look much like the tree `like`.
    #[must_use]
    pub fn new(system: &'a dyn System, known: &'a Known, log: &Log, (like, seed): (Arc<Tree>, u64)) -> Self {
        let mut written = FxHashSet::default();
        for event in &log.events {
            match event {
                Event::Write { block, .. } => drop(written.insert(*block)),
                Event::Discard { start, count, .. } => written.extend(*start..*start + *count),
                _ => {}
            }
        }
        let control = Seed::new(seed ^ 0xc0_47_01);
        Self { system, known, written, decisions: Decisions::default(), control, like }
    }

    /// A look at the images of one cut.
    #[must_use]
    pub fn at<'b>(&'b mut self, cut: &'b Cut) -> AtCut<'a, 'b> {
        AtCut { view: View::new(cut), cut, explorer: self }
    }
}

/// Finds out about the images of one cut.
pub struct AtCut<'a, 'b> {
    explorer: &'b mut Explorer<'a>,
    cut: &'b Cut,
    view: View<'b>,
}

impl AtCut<'_, '_> {
    /// The facts of the image that `choice` gives. Panics if pruning was unsound: that is a bug of the laboratory.
    pub fn facts(&mut self, choice: &[u8]) -> (Arc<Facts>, Origin) {
        let hash = |block: u64| self.view.block(choice, block);
        let image = self.view.image(choice);
        let (facts, origin) = match self.explorer.decisions.find(&hash) {
            Some(facts) => (Arc::clone(facts), Origin::SameReads),
            None => match self.explorer.known.find(image) {
                Some(facts) => (facts, Origin::SameImage),
                None => {
                    let facts = Arc::new(self.look(choice));
                    self.explorer.known.insert(image, &facts);
                    (facts, Origin::Checked)
                }
            },
        };
        if origin != Origin::SameReads {
            self.explorer.decisions.insert(&facts, &self.explorer.written, &hash);
        }
        if origin == Origin::Checked || !self.explorer.control.chance(1, CONTROL_SHARE) {
            return (facts, origin);
        }
        let again = self.look(choice);
        assert_eq!(*facts, again, "pruning is unsound at event {} with {choice:?}", self.cut.at);
        (facts, Origin::Control)
    }

    fn look(&self, choice: &[u8]) -> Facts {
        Facts::of_like(self.explorer.system, self.image(choice), Some(&self.explorer.like))
    }

    /// The cut.
    pub(crate) fn cut(&self) -> &Cut {
        self.cut
    }

    /// The image itself.
    #[must_use]
    pub fn image(&self, choice: &[u8]) -> Image {
        Image::with(Arc::clone(&self.cut.base), self.cut.blocks(choice))
    }
}
