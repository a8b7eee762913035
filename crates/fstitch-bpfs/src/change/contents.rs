//! Contents: what is hidden behind a file's end is written where it is, what can be reached word by word or in a copy.

use fstitch_core::Result;
use fstitch_core::num::{to_u64, to_usize};

use super::{Change, Draft};
use crate::few::Few;
use crate::layout::{Field, LEAVES_MAX, POINTERS, slot};
use crate::pm::{BLOCK, BLOCK_BYTES, Block, Hidden, Linked, Word, ZEROS};
use crate::tree::{Node, Tree, height_for, leaves, span};

/// Live words of one block of contents that are changed one by one, where there is a journal for them: more are a copy.
const WORDS_MAX: usize = 4;

impl Change<'_> {
    /// Writes bytes of a file, which grows if they end behind it.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn put(&mut self, ino: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let end = offset + to_u64(bytes.len());
        debug_assert!(leaves(end) <= LEAVES_MAX);
        let old_end = self.field(ino, Field::Size);
        self.reach(ino, leaves(end))?;
        if end > old_end {
            self.grow(ino, old_end, (offset, end))?;
        }
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + to_u64(done);
            let from = to_usize(at % BLOCK_BYTES);
            let len = (BLOCK - from).min(bytes.len() - done);
            self.put_part(ino, at / BLOCK_BYTES, from, &bytes[done..done + len], end.max(old_end))?;
            done += len;
        }
        if end > old_end {
            self.set_field(ino, Field::Size, end);
        }
        Ok(())
    }

    /// Makes a file longer, by zeros.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn extend(&mut self, ino: u64, end: u64) -> Result<()> {
        let old_end = self.field(ino, Field::Size);
        debug_assert!(end >= old_end);
        if self.reached(ino) == 0 && old_end == 0 {
            // What it points to is of an earlier length.
            self.set_field(ino, Field::Root, 0);
        }
        self.grow(ino, old_end, (end, end))?;
        self.set_field(ino, Field::Size, end);
        Ok(())
    }

    /// Makes a tree high enough.
    pub(super) fn reach(&mut self, ino: u64, leaves: u64) -> Result<()> {
        let (tree, height) = (Tree::File(ino), height_for(leaves));
        if self.state.gate.follow(self.top(tree)).is_none() {
            // A root that points to nothing has any height.
            let height = height.max(self.heights.get(tree).unwrap_or(0));
            self.heights.insert(tree, height);
            return Ok(());
        }
        let old = self.height(tree);
        if height <= old {
            return Ok(());
        }
        let is_untouched = self.heights.get(tree).is_none() && self.born != Some(ino);
        if self.state.options.layout && is_untouched {
            return self.raise_by_itself(ino, (old, height));
        }
        let top = self.state.gate.follow(self.top(tree)).expect("it was seen");
        for level in old + 1..=height {
            let fresh = Some(self.take(tree)?);
            let mut words = Few::default();
            if level == old + 1 {
                words.insert(0, Word::of(top, 0));
            }
            self.drafts
                .insert(Node { tree, level, index: 0 }, Draft { fresh, words, is_bare: true, image: None });
        }
        self.heights.insert(tree, height);
        Ok(())
    }

    /// The same by a commit of its own, which nobody can see (\[D\] §3.3.3).
    pub(super) fn raise_by_itself(&mut self, ino: u64, (old, height): (u8, u8)) -> Result<()> {
        let top = self.state.gate.follow(self.top(Tree::File(ino))).expect("it was seen");
        // Pointers of what counts now, and of what this change has already said will count.
        let count = leaves(self.reached(ino).max(self.field(ino, Field::Size)));
        let (mut word, mut linked) = (Word::of(top, 0), Vec::<Linked>::new());
        for level in old + 1..=height {
            let mut fresh = match self.state.take() {
                Ok(fresh) => fresh,
                Err(error) => {
                    for linked in linked {
                        let block = linked.number();
                        self.state.space.unlink(linked);
                        self.state.gate.may_go(block);
                    }
                    return Err(error);
                }
            };
            let used = count.div_ceil(span(level - 1)).clamp(1, POINTERS);
            let mut bytes = vec![0; to_usize(used * 8)];
            bytes[..8].copy_from_slice(&word.value().to_le_bytes());
            self.state.gate.write(&mut fresh, 0, &bytes);
            let (next, link) = fresh.link(if level == height { height } else { 0 });
            word = next;
            linked.push(link);
        }
        let root = slot(self.place(ino).expect("the inode is there"), Field::Root as u16);
        self.state.gate.fence().commit(root, word).done();
        self.state.inodes.add_blocks(ino, i64::from(height - old));
        Ok(())
    }

    /// What was hidden behind the end, and will not be, becomes zeros; `written` will be written in any case.
    pub(super) fn grow(&mut self, ino: u64, old_end: u64, written: (u64, u64)) -> Result<()> {
        let (from, to) = written;
        if !old_end.is_multiple_of(BLOCK_BYTES) && from > old_end {
            let (index, at) = (old_end / BLOCK_BYTES, to_usize(old_end % BLOCK_BYTES));
            let until = to_usize((from - index * BLOCK_BYTES).min(BLOCK_BYTES));
            if self.exists(Node::leaf(Tree::File(ino), index)) {
                self.put_part(ino, index, at, &ZEROS[at..until], to)?;
            }
        }
        let (old, new) = (leaves(old_end), leaves(to));
        if old == 0 {
            return Ok(());
        }
        let filled = if from < to { (from / BLOCK_BYTES, leaves(to)) } else { (0, 0) };
        for level in 1..=self.height(Tree::File(ino)) {
            let each = span(level - 1);
            let (first, end) = (old.div_ceil(each), new.div_ceil(each));
            let node = Node { tree: Tree::File(ino), level, index: (first - 1) / POINTERS };
            let Some(block) = self.block(node).filter(|_| !self.is_fresh(node)) else { continue };
            let base = node.index * POINTERS;
            for child in first..end.min(base + POINTERS) {
                let is_filled = child * each < filled.1 && filled.0 < (child + 1) * each;
                let at = u16::try_from(child - base).expect("a block has 512 pointers");
                if !is_filled && self.state.gate.word(slot(block.at(), at)) != 0 {
                    self.set_word(node, at, Word::plain(0));
                }
            }
        }
        Ok(())
    }

    /// Writes a part of a block of contents of a file that will have `end` bytes.
    pub(super) fn put_part(
        &mut self,
        ino: u64,
        index: u64,
        from: usize,
        bytes: &[u8],
        end: u64,
    ) -> Result<()> {
        let node = Node::leaf(Tree::File(ino), index);
        let (start, to) = (index * BLOCK_BYTES, from + bytes.len());
        match self.drafts.get_mut(&node) {
            Some(Draft { image: Some(image), .. }) => {
                image[from..to].copy_from_slice(bytes);
                return Ok(());
            }
            Some(Draft { fresh: Some(fresh), .. }) => {
                self.state.gate.write(fresh, from, bytes);
                return Ok(());
            }
            _ => {}
        }
        let Some(block) = self.block(node) else {
            return self.put_new(node, from, bytes, to_usize(end.saturating_sub(start).min(BLOCK_BYTES)));
        };
        let reached = to_usize(self.reached(ino).saturating_sub(start).min(BLOCK_BYTES));
        // The word in which the end is can be reached, whoever wrote what behind it.
        let hidden_from = reached.next_multiple_of(8);
        // What this change has noted of that word would be written over what is hidden in it now.
        let is_noted = from < hidden_from && self.is_noted(node, from);
        let is_hidden = self.state.options.append && from >= reached && !is_noted;
        let live = if self.state.options.append { to.min(hidden_from) } else { to };
        let words = live.div_ceil(8).saturating_sub(from / 8);
        let is_in_place = is_hidden || words <= if self.state.options.journal { WORDS_MAX } else { 1 };
        let is_whole = bytes.len() == BLOCK;
        // What is left of the block, or compared with, is brought before; a device that fails is told now.
        match if is_in_place || !is_whole { self.state.gate.load(block.at()) } else { Ok(()) } {
            Err(error) if !is_whole => return Err(error),
            Ok(()) if is_hidden => self.veil_tail(ino, block, (start, from), bytes),
            Ok(()) if is_in_place => {
                self.put_words(node, block, from, &bytes[..live - from]);
                if live < to {
                    self.veil_tail(ino, block, (start, live), &bytes[live - from..]);
                }
            }
            // Of a block that is written whole nobody needs what cannot be read.
            _ => self.put_copy(node, block, from, bytes)?,
        }
        Ok(())
    }

    fn is_noted(&self, node: Node, from: usize) -> bool {
        let at = u16::try_from(from / 8).expect("a block has 512 words");
        self.drafts.get(&node).is_some_and(|draft| draft.words.get(at).is_some())
    }

    pub(super) fn veil_tail(&mut self, ino: u64, block: Block, (start, from): (u64, usize), bytes: &[u8]) {
        let size = slot(self.place(ino).expect("the inode is there"), Field::Size as u16);
        let (position, at) = (start + to_u64(from), block.at() + to_u64(from));
        let hidden = Hidden::behind(&mut self.state.gate, size, position, (at, bytes.len()));
        self.state.gate.veil(&hidden, 0, bytes);
    }

    /// A new block, of which `until` bytes will count.
    pub(super) fn put_new(&mut self, node: Node, from: usize, bytes: &[u8], until: usize) -> Result<()> {
        let mut fresh = self.take(node.tree)?;
        let (gate, to) = (&mut self.state.gate, from + bytes.len());
        gate.write(&mut fresh, 0, &ZEROS[..from]);
        gate.write(&mut fresh, from, bytes);
        gate.write(&mut fresh, to, &ZEROS[to..until.max(to)]);
        self.drafts.entry(node).or_default().fresh = Some(fresh);
        Ok(())
    }

    /// Words of a block that stays where it is.
    pub(super) fn put_words(&mut self, node: Node, block: Block, from: usize, bytes: &[u8]) {
        let to = from + bytes.len();
        for index in from / 8..to.div_ceil(8) {
            let at = u16::try_from(index).expect("a block has 512 words");
            let noted = self.drafts.get(&node).and_then(|draft| draft.words.get(at)).map(|word| word.value());
            let mut word = noted.unwrap_or_else(|| self.state.gate.word(slot(block.at(), at))).to_le_bytes();
            let (first, last) = (from.max(index * 8), to.min(index * 8 + 8));
            word[first - index * 8..last - index * 8].copy_from_slice(&bytes[first - from..last - from]);
            let word = Word::plain(u64::from_le_bytes(word));
            self.drafts.entry(node).or_default().words.insert(at, word);
        }
    }

    /// A block in the place of another one.
    pub(super) fn put_copy(&mut self, node: Node, block: Block, from: usize, bytes: &[u8]) -> Result<()> {
        let fresh = self.take(node.tree)?;
        let is_whole = bytes.len() == BLOCK;
        let mut image = if is_whole { ZEROS.to_vec() } else { self.state.gate.block(block).to_vec() };
        let noted = self.drafts.remove(&node).unwrap_or_default();
        for (at, word) in noted.words.iter() {
            let at = usize::from(at) * 8;
            image[at..at + 8].copy_from_slice(&word.value().to_le_bytes());
        }
        image[from..from + bytes.len()].copy_from_slice(bytes);
        self.free(node.tree, block);
        self.drafts.insert(node, Draft { fresh: Some(fresh), image: Some(image), ..Draft::default() });
        Ok(())
    }

    /// Gives an inode other extended attributes, as bytes.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn put_xattrs(&mut self, ino: u64, bytes: &[u8]) -> Result<()> {
        let tree = Tree::Xattrs(ino);
        if self.born != Some(ino) {
            let old = self.blocks_of_top(self.top(tree));
            old.into_iter().for_each(|block| self.free(tree, block));
        }
        if bytes.is_empty() {
            self.set_field(ino, Field::Xattrs, 0);
            return Ok(());
        }
        let framed = [&to_u64(bytes.len()).to_le_bytes(), bytes].concat();
        let count = leaves(to_u64(framed.len()));
        let height = height_for(count);
        self.heights.insert(tree, height);
        // Blocks of pointers are new as well: those that are there are the old attributes', and free.
        for level in 1..=height {
            for index in 0..count.div_ceil(span(level)) {
                let fresh = Some(self.take(tree)?);
                let draft = Draft { fresh, is_bare: true, ..Draft::default() };
                self.drafts.insert(Node { tree, level, index }, draft);
            }
        }
        for (index, piece) in (0..).zip(framed.chunks(BLOCK)) {
            let mut fresh = self.take(tree)?;
            self.state.gate.write(&mut fresh, 0, piece);
            self.drafts.insert(Node::leaf(tree, index), Draft { fresh: Some(fresh), ..Draft::default() });
        }
        Ok(())
    }

    pub(super) fn blocks_of_top(&self, top: u64) -> Vec<Block> {
        self.blocks_within(top, (0, u64::MAX))
    }
}
