//! Words of inodes and of entries, and inodes that are made.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Result, Timestamp};

use super::{Change, Draft, NO_LEAF};
use crate::few::Few;
use crate::inode::Inode;
use crate::layout::{Field, INODES_IN_BLOCK, POINTERS, slot, time_word};
use crate::pm::{BLOCK_BYTES, Block, Fresh, Hidden, Slot, Word};
use crate::state::State;
use crate::tree::{Node, Tree, height_for, leaves, span};

impl Change<'_> {
    pub(super) fn take(&mut self, tree: Tree) -> Result<Fresh> {
        let fresh = self.state.take()?;
        self.count(tree, 1);
        Ok(fresh)
    }

    pub(super) fn count(&mut self, tree: Tree, delta: i64) {
        if let Tree::File(ino) | Tree::Xattrs(ino) = tree {
            self.blocks.insert(ino, self.blocks.get(ino).unwrap_or(0) + delta);
        }
    }

    pub(super) fn free(&mut self, tree: Tree, block: Block) {
        self.freed.push(block);
        self.count(tree, -1);
    }

    /// Gives an inode another word.
    pub(crate) fn set_field(&mut self, ino: u64, field: Field, value: u64) {
        let options = self.state.options;
        let place = self.place(ino).expect("the inode is there");
        let at = place + 8 * to_u64(field as usize);
        let bytes = value.to_le_bytes();
        if self.born == Some(ino) && options.layout {
            let hidden = Hidden::unnamed(self.state.inodes.names(ino), (at, 8));
            self.state.gate.veil(&hidden, 0, &bytes);
        } else if field == Field::Root && options.append && self.born != Some(ino) && self.reached(ino) == 0 {
            let end = slot(place, Field::Size as u16);
            let hidden = Hidden::behind(&mut self.state.gate, end, 0, (at, 8));
            self.state.gate.veil(&hidden, 0, &bytes);
        } else {
            let words = &mut self.drafts.entry(Self::inode_leaf(ino)).or_default().words;
            words.insert(field.of(ino), Word::plain(value));
        }
    }

    /// Gives the inode that is made by this all of its words, in the order of [`Field::ALL`].
    pub(crate) fn set_born(&mut self, ino: u64, words: &[u64; Field::ALL.len()]) {
        debug_assert_eq!(self.born, Some(ino));
        if !self.state.options.layout {
            Field::ALL.into_iter().zip(words).for_each(|(field, word)| self.set_field(ino, field, *word));
            return;
        }
        let place = self.place(ino).expect("the inode is there");
        let mut bytes = [0; 8 * Field::ALL.len()];
        bytes
            .chunks_exact_mut(8)
            .zip(words)
            .for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        let hidden = Hidden::unnamed(self.state.inodes.names(ino), (place, bytes.len()));
        self.state.gate.veil(&hidden, 0, &bytes);
    }

    /// Gives an inode another time, with the change or beside it.
    pub(crate) fn set_time(&mut self, ino: u64, field: Field, value: u64) {
        let options = self.state.options;
        let is_apart = options.times && !(options.journal && options.journal_times);
        if is_apart && self.born != Some(ino) {
            self.stamps.push((ino, field, Word::plain(value)));
        } else {
            self.set_field(ino, field, value);
        }
    }

    /// The attributes of an inode change now.
    pub(crate) fn touch(&mut self, ino: u64) {
        let now = self.now;
        self.set_ctime(ino, now);
    }

    /// The attributes of an inode change now, and nobody names it any more when that has happened: where the commit is durable when
    /// it is made, the time is written behind it, to what is hidden then, and need not be one of the journal's words.
    pub(crate) fn touch_unnamed(&mut self, ino: u64) {
        let options = self.state.options;
        let is_with_it = options.journal && options.journal_times && options.layout;
        if is_with_it && self.state.gate.is_durable_at_once() {
            self.unnamed = Some(ino);
        } else {
            self.touch(ino);
        }
    }

    /// What [`Self::touch_unnamed`] has put off, when the commit is durable.
    pub(super) fn stamp_unnamed(state: &mut State, ino: u64, now: Timestamp) {
        let place = state.place(ino).expect("the inode is there");
        let stored = |field| state.gate.word(slot(place, field as u16));
        let mtime = match stored(Field::Mtime) {
            0 => stored(Field::Ctime),
            mtime => mtime,
        };
        const { assert!(Field::Mtime as u16 == Field::Ctime as u16 + 1) };
        let mut times = [0; 16];
        times[..8].copy_from_slice(&time_word(now).to_le_bytes());
        times[8..].copy_from_slice(&mtime.to_le_bytes());
        let range = (place + 8 * to_u64(Field::Ctime as usize), times.len());
        let hidden = Hidden::unnamed(state.inodes.names(ino), range);
        state.gate.veil(&hidden, 0, &times);
    }

    /// The attributes of an inode change, at a time.
    pub(crate) fn set_ctime(&mut self, ino: u64, time: Timestamp) {
        if self.field(ino, Field::Mtime) == 0 && !self.has_stamp(ino, Field::Mtime) {
            // It was the same until now.
            let mtime = self.field(ino, Field::Ctime);
            let options = self.state.options;
            if options.times && !(options.journal && options.journal_times) && self.born != Some(ino) {
                // The same time as before, so it may come before everything else.
                let at = self.place(ino).expect("the inode is there");
                self.state.gate.fence().commit(slot(at, Field::Mtime as u16), Word::plain(mtime)).done();
            } else {
                self.set_field(ino, Field::Mtime, mtime);
            }
        }
        self.set_time(ino, Field::Ctime, time_word(time));
    }

    pub(super) fn has_stamp(&self, ino: u64, field: Field) -> bool {
        self.stamps.iter().any(|stamp| (stamp.0, stamp.1) == (ino, field))
    }

    /// The contents of an inode change now.
    pub(crate) fn touch_contents(&mut self, ino: u64) {
        let now = time_word(self.now);
        let (mtime, ctime) = (self.field(ino, Field::Mtime), self.field(ino, Field::Ctime));
        if mtime != 0 {
            // Of two times that are the same one is enough: nobody can tell, whichever comes first.
            let both = if mtime == ctime { 0 } else { now };
            self.set_time(ino, Field::Mtime, both);
        }
        if ctime != now || mtime != 0 {
            self.set_time(ino, Field::Ctime, now);
        }
    }

    /// Gives a directory's entry, at a byte of it, another first word.
    pub(crate) fn set_entry(&mut self, dir: u64, at: u64, word: u64) {
        let node = Node::leaf(Tree::File(dir), at / BLOCK_BYTES);
        let index = u16::try_from(at % BLOCK_BYTES / 8).expect("a block has 512 words");
        self.set_word(node, index, Word::plain(word));
    }

    /// More than one entry will be different, so that without a journal their blocks are copied.
    pub(crate) fn expect_entries(&mut self) {
        self.copies = !self.state.options.journal;
    }

    /// Writes behind the first word of a directory's entry that is free.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn fill_entry(&mut self, dir: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let node = Node::leaf(Tree::File(dir), at / BLOCK_BYTES);
        let from = at % BLOCK_BYTES;
        match self.block(node) {
            Some(block) if self.copies => {
                // Nothing is written to what will be another block.
                if !self.is_fresh(node) {
                    self.put_copy(node, block, 0, &[])?;
                }
                self.put_part(dir, at / BLOCK_BYTES, to_usize(from) + 8, bytes, at)
            }
            Some(block) if self.state.options.layout && !self.is_fresh(node) => {
                let number = Slot::at(block.at() + from);
                let range = (block.at() + from + 8, bytes.len());
                let hidden = Hidden::beneath(&mut self.state.gate, number, range);
                self.state.gate.veil(&hidden, 0, bytes);
                Ok(())
            }
            _ => self.put_part(dir, at / BLOCK_BYTES, to_usize(from) + 8, bytes, at),
        }
    }

    pub(super) fn set_word(&mut self, node: Node, at: u16, word: Word) {
        if let Tree::File(ino) = node.tree
            && self.state.options.append
            && !self.is_fresh(node)
            && let Some(block) = self.block(node)
        {
            let number = node.index * POINTERS + u64::from(at);
            // A word of contents that is partly before the end can be reached, a pointer to such a block as well.
            let (unit, each) =
                if node.level == 0 { (8, 8) } else { (BLOCK_BYTES, span(node.level - 1) * BLOCK_BYTES) };
            let position = number.saturating_mul(each);
            if position >= self.reached(ino).next_multiple_of(unit) {
                let end = slot(self.place(ino).expect("the inode is there"), Field::Size as u16);
                let range = (block.at() + 8 * u64::from(at), 8);
                let hidden = Hidden::behind(&mut self.state.gate, end, position, range);
                self.state.gate.veil(&hidden, 0, &word.value().to_le_bytes());
                return;
            }
        }
        self.drafts.entry(node).or_default().words.insert(at, word);
    }

    /// An inode that nobody names, of which nothing is said yet but its generation.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn make_inode(&mut self) -> Result<(u64, u32)> {
        let mut ino = self.take_inode()?;
        // Numbers whose inodes cannot be read are left alone while the volume is mounted: their generations are unknown.
        while self.place(ino).is_some_and(|at| self.state.gate.load(at).is_err()) {
            ino = self.take_inode()?;
        }
        self.made.push(ino);
        self.born = Some(ino);
        let old = self.stored(ino, Field::Mode) & u64::from(u32::MAX);
        Ok((ino, u32::try_from(old).expect("32 bits").wrapping_add(1)))
    }

    fn take_inode(&mut self) -> Result<u64> {
        match self.state.inodes.take() {
            Some(ino) => Ok(ino),
            None if self.state.inodes.are_leaving() => {
                self.state.barrier();
                Ok(self.state.inodes.take().expect("they have left now"))
            }
            None => {
                add_inodes(self.state)?;
                self.places.iter().for_each(|place| place.set((NO_LEAF, 0)));
                Ok(self.state.inodes.take().expect("there is room now"))
            }
        }
    }

    /// Frees all that an inode has, which nobody names when this has happened.
    pub(crate) fn free_contents(&mut self, inode: &Inode) {
        let contents = self.blocks_within(inode.contents(), (0, leaves(inode.size)));
        contents.into_iter().for_each(|block| self.free(Tree::File(inode.ino), block));
        let xattrs = self.blocks_of_top(inode.xattrs);
        xattrs.into_iter().for_each(|block| self.free(Tree::Xattrs(inode.ino), block));
    }

    /// Says on the medium how many names an inode has, where that is not counted anew.
    pub(crate) fn note_names(&mut self, ino: u64, names: u32) {
        if !self.state.options.layout {
            let device = self.field(ino, Field::Device) & u64::from(u32::MAX);
            self.set_field(ino, Field::Device, device | u64::from(names) << 32);
        }
    }
}

/// Room for more inodes, by a commit of its own, which nobody can see.
fn add_inodes(state: &mut State) -> Result<()> {
    let block = state.inodes.end() / INODES_IN_BLOCK;
    let mut change = Change::new(state, Timestamp::default());
    let tree = Tree::Inodes;
    let height = height_for(block + 1);
    let old = change.height(tree);
    if height > old {
        let top = change.state.gate.follow(change.top(tree)).expect("there are inodes");
        let fresh = Some(change.take(tree)?);
        let mut words = Few::default();
        words.insert(0, Word::of(top, 0));
        change.drafts.insert(
            Node { tree, level: height, index: 0 },
            Draft { fresh, words, is_bare: true, image: None },
        );
        change.heights.insert(tree, height);
    }
    let fresh = Some(change.take(tree)?);
    change.drafts.insert(Node::leaf(tree, block), Draft { fresh, ..Draft::default() });
    change.finish(|state| state.inodes.grow(block * INODES_IN_BLOCK))
}
