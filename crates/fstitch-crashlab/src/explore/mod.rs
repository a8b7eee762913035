//! All images of a log: which there are, which look alike, and what is known of each.

mod decisions;
mod facts;
mod known;
mod subject;
mod view;

pub use facts::Facts;
pub use known::Known;
pub use subject::Subject;

use std::sync::Arc;

use fstitch_core::Seed;
use rustc_hash::FxHashSet;

use crate::medium::{Cut, Image, Log};
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
pub struct Explorer<'a, S: Subject + ?Sized = dyn System> {
    subject: &'a S,
    known: &'a Known<S::Shown>,
    written: FxHashSet<u64>,
    decisions: Decisions<S::Shown>,
    control: Seed,
    /// What the images look like, more or less.
    like: Option<Arc<S::Shown>>,
}

impl<'a, S: Subject + ?Sized> Explorer<'a, S> {
    /// An explorer of the images of `log`, most of which look much like `like`, if that is known.
    #[must_use]
    pub fn new(
        subject: &'a S,
        known: &'a Known<S::Shown>,
        log: &Log,
        (like, seed): (Option<Arc<S::Shown>>, u64),
    ) -> Self {
        let written = log.events.iter().flat_map(|event| event.changes(log.geometry)).collect();
        let control = Seed::new(seed ^ 0xc0_47_01);
        Self { subject, known, written, decisions: Decisions::default(), control, like }
    }

    /// A look at the images of one cut.
    #[must_use]
    pub fn at<'b>(&'b mut self, cut: &'b Cut) -> AtCut<'a, 'b, S> {
        AtCut { view: View::new(cut), cut, explorer: self }
    }
}

/// Finds out about the images of one cut.
pub struct AtCut<'a, 'b, S: Subject + ?Sized = dyn System> {
    explorer: &'b mut Explorer<'a, S>,
    cut: &'b Cut,
    view: View<'b>,
}

impl<S: Subject + ?Sized> AtCut<'_, '_, S> {
    /// The facts of the image that `choice` gives. Panics if pruning was unsound: that is a bug of the laboratory.
    pub fn facts(&mut self, choice: &[u8]) -> (Arc<Facts<S::Shown>>, Origin) {
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

    fn look(&self, choice: &[u8]) -> Facts<S::Shown> {
        Facts::of_like(self.explorer.subject, self.image(choice), self.explorer.like.as_deref())
    }

    /// The cut.
    pub(crate) fn cut(&self) -> &Cut {
        self.cut
    }

    /// The image itself.
    #[must_use]
    pub fn image(&self, choice: &[u8]) -> Image {
        self.cut.image(choice)
    }
}
