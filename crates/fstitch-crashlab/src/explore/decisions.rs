//! Images that look alike to recovery, checker and reader.
//!
//! Recovery, checking and reading are deterministic: which block they ask for next follows from what they have read so
//! far. Their runs over the images of one log therefore form a tree of decisions: at each inner node the block that is
//! asked for, on each edge the contents found, at each leaf what came of it. Two images that take the same
//! way get the same facts, so the second one need not be run at all; blocks that nobody asks for do not count.
//!
//! Only blocks that the log wrote are in the tree: all others are the same in every image.

use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::facts::Facts;

/// The tree of one log.
pub struct Decisions<T> {
    nodes: Vec<Node<T>>,
}

enum Node<T> {
    /// The block asked for, and where each contents leads.
    Asks { block: u64, answers: Vec<(u128, usize)> },
    /// What came of it.
    Ends(Arc<Facts<T>>),
}

impl<T> Default for Decisions<T> {
    fn default() -> Self {
        Self { nodes: Vec::new() }
    }
}

impl<T> Decisions<T> {
    /// The facts of the image whose blocks have these `hashes`, if an image that looks the same was run before.
    pub fn find(&self, hash: &dyn Fn(u64) -> u128) -> Option<&Arc<Facts<T>>> {
        let mut at = self.nodes.first()?;
        loop {
            match at {
                Node::Ends(facts) => return Some(facts),
                Node::Asks { block, answers } => {
                    let found = hash(*block);
                    let (_, next) = answers.iter().find(|(answer, _)| *answer == found)?;
                    at = &self.nodes[*next];
                }
            }
        }
    }

    /// Adds what came of a run. `written` are the blocks of the log.
    pub fn insert(&mut self, facts: &Arc<Facts<T>>, written: &FxHashSet<u64>, hash: &dyn Fn(u64) -> u128) {
        let asked: Vec<u64> = facts.reads.iter().copied().filter(|block| written.contains(block)).collect();
        let mut at = self.nodes.len().min(1).checked_sub(1);
        let mut edge: Option<(usize, u128)> = None;
        for block in asked {
            let node = at.unwrap_or_else(|| self.add(Node::Asks { block, answers: Vec::new() }, edge));
            let Node::Asks { block: expected, answers } = &self.nodes[node] else {
                return; // A shorter run ended here already: it is as good.
            };
            assert_eq!(*expected, block, "checking and reading are deterministic");
            let found = hash(block);
            at = answers.iter().find(|(answer, _)| *answer == found).map(|(_, next)| *next);
            edge = Some((node, found));
        }
        if at.is_none() {
            self.add(Node::Ends(Arc::clone(facts)), edge);
        }
    }

    fn add(&mut self, node: Node<T>, edge: Option<(usize, u128)>) -> usize {
        let new = self.nodes.len();
        self.nodes.push(node);
        if let Some((parent, answer)) = edge
            && let Node::Asks { answers, .. } = &mut self.nodes[parent]
        {
            answers.push((answer, new));
        }
        new
    }
}
