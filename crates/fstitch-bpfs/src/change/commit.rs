//! The end of a change: blocks are linked and copied until one commit is left.

use fstitch_core::num::to_usize;
use fstitch_core::{FileKind, Result};
use smallvec::SmallVec;

use super::Change;
use crate::few::Few;
use crate::inode::{self};
use crate::layout::{Field, POINTERS, ROOT_SLOT, slot};
use crate::pm::{JOURNAL_WORDS, Slot, Word};
use crate::state::State;
use crate::tree::{Node, Tree, leaves, span};

impl Change<'_> {
    /// It happens now. What is known beside the medium follows in `then`.
    ///
    /// # Errors
    /// `ENOSPC`, and nothing has happened.
    pub(crate) fn finish<T>(mut self, then: impl FnOnce(&mut State) -> T) -> Result<T> {
        self.link_all()?;
        loop {
            let words: usize = self.drafts.values().map(|draft| draft.words.len()).sum();
            let is_top = self.drafts.len() == 1 && self.drafts.contains_key(&Self::SUPER);
            let is_one = words == 1 && (is_top || self.state.options.short_circuit);
            if words == 0 || is_one || (self.state.options.journal && words <= JOURNAL_WORDS) {
                break;
            }
            let node = self.to_copy();
            self.copy(node)?;
            self.link_all()?;
        }
        self.commit();
        let Self { state, freed, blocks, unnamed, now, .. } = &mut self;
        for (ino, delta) in std::mem::take(blocks).iter() {
            state.inodes.add_blocks(ino, delta);
        }
        freed.drain(..).for_each(|block| state.space.leave(block));
        let done = then(state);
        state.settle();
        if let Some(ino) = *unnamed {
            Self::stamp_unnamed(state, ino, *now);
        }
        Ok(done)
    }

    pub(super) fn commit(&mut self) {
        let mut words: SmallVec<[(Slot, Word); JOURNAL_WORDS]> = SmallVec::new();
        for (node, draft) in &self.drafts {
            for (at, word) in draft.words.iter() {
                let begin =
                    if *node == Self::SUPER { 0 } else { self.block(*node).expect("it has words").at() };
                words.push((slot(begin, at), word));
            }
        }
        let state = &mut *self.state;
        words.retain(|(slot, word)| state.gate.word(*slot) != word.value());
        self.is_committed = true;
        let mut stamps = self.stamps.drain(..);
        let mut committed = match &words[..] {
            [] => match stamps.next() {
                Some((ino, field, word)) => {
                    let at = state.place(ino).expect("the inode is there");
                    state.gate.fence().commit(slot(at, field as u16), word)
                }
                None => return,
            },
            [(slot, word)] => state.gate.fence().commit(*slot, *word),
            words => state.gate.fence().commit_all(words),
        };
        for (ino, field, word) in stamps {
            // Where it is now: the commit may have moved it.
            let gate = committed.gate();
            let at = inode::place(gate, gate.word(Slot::at(ROOT_SLOT)), ino).expect("the inode is there");
            committed.stamp(slot(at, field as u16), word);
        }
        committed.done();
    }

    /// The block that is to be copied next: without a journal, from the inside outwards, so that it ends above all that has changed.
    /// With one, that with most words.
    pub(super) fn to_copy(&self) -> Node {
        let with_words = self.drafts.iter().filter(|(_, draft)| !draft.words.is_empty());
        let found = if self.state.options.journal {
            with_words.rev().max_by_key(|(_, draft)| draft.words.len())
        } else {
            with_words.into_iter().next()
        };
        *found.expect("there are words").0
    }

    /// Copies a block with its words.
    pub(super) fn copy(&mut self, node: Node) -> Result<()> {
        let block = self.block(node).expect("a block with words is there");
        self.put_copy(node, block, 0, &[])
    }

    pub(super) fn link_all(&mut self) -> Result<()> {
        loop {
            let next = self.drafts.iter().find(|(_, draft)| draft.fresh.is_some()).map(|(node, _)| *node);
            let Some(node) = next else { return Ok(()) };
            self.link(node)?;
        }
    }

    /// Links a new block into what points to it.
    pub(super) fn link(&mut self, node: Node) -> Result<()> {
        let height = self.height(node.tree);
        let is_top = node.level == height;
        let (parent, at) = node.parent();
        if !is_top && !self.exists(parent) {
            let fresh = Some(self.take(node.tree)?);
            let draft = self.drafts.entry(parent).or_default();
            (draft.fresh, draft.is_bare) = (fresh, true);
        }
        let draft = self.drafts.remove(&node).expect("it is there");
        let mut fresh = draft.fresh.expect("it is new");
        if draft.is_bare {
            let bytes = self.pointers(node, &draft.words);
            self.state.gate.write(&mut fresh, 0, &bytes);
        } else if let Some(mut image) = draft.image {
            for (at, word) in draft.words.iter() {
                let at = usize::from(at) * 8;
                image[at..at + 8].copy_from_slice(&word.value().to_le_bytes());
            }
            self.state.gate.write(&mut fresh, 0, &image);
        } else {
            for (at, word) in draft.words.iter() {
                self.state.gate.write(&mut fresh, usize::from(at) * 8, &word.value().to_le_bytes());
            }
        }
        if self.is_contents(node) {
            self.state.gate.may_go(fresh.number());
        }
        let (word, linked) = fresh.link(if is_top { height } else { 0 });
        self.linked.push(linked);
        match node.tree {
            _ if !is_top => self.set_word(parent, at, word),
            Tree::File(ino) => self.set_field(ino, Field::Root, word.value()),
            Tree::Xattrs(ino) => self.set_field(ino, Field::Xattrs, word.value()),
            Tree::Inodes | Tree::Super => {
                self.drafts.entry(Self::SUPER).or_default().words.insert(Self::super_at(), word);
            }
        }
        Ok(())
    }

    /// Whether a node's block is brought to memory by whoever looks at it, and told of a device that fails: that of a directory leads
    /// somewhere.
    fn is_contents(&self, node: Node) -> bool {
        let is_dir = |ino| inode::kind(self.field(ino, Field::Mode)) == Some(FileKind::Directory);
        // Where nothing leaves memory it is not asked.
        self.state.gate.log().is_some()
            && node.level == 0
            && match node.tree {
                Tree::File(ino) => !is_dir(ino),
                Tree::Xattrs(_) => true,
                Tree::Inodes | Tree::Super => false,
            }
    }

    /// What a new block of pointers holds, as far as it counts.
    pub(super) fn pointers(&self, node: Node, words: &Few<u16, Word>) -> Vec<u8> {
        let count = match node.tree {
            Tree::File(ino) => leaves(self.field(ino, Field::Size)),
            _ => u64::MAX,
        };
        let each = span(node.level - 1);
        let used = count.div_ceil(each).saturating_sub(node.index * POINTERS).min(POINTERS);
        let last = words.iter().last().map_or(0, |(at, _)| u64::from(at) + 1);
        let mut bytes = vec![0; to_usize(used.max(last) * 8)];
        for (at, word) in words.iter() {
            let at = usize::from(at) * 8;
            bytes[at..at + 8].copy_from_slice(&word.value().to_le_bytes());
        }
        bytes
    }
}
