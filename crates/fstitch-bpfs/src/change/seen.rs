//! What there is, as a change has it.

use fstitch_core::Result;

use super::{Change, Draft};
use crate::inode::Inode;
use crate::layout::{Field, INODE, INODES_IN_BLOCK, ROOT_SLOT, slot};
use crate::pm::Block;
use crate::tree::{self, Node, Tree, leaves, span};

impl Change<'_> {
    pub(super) fn inode_leaf(ino: u64) -> Node {
        Node::leaf(Tree::Inodes, ino / INODES_IN_BLOCK)
    }

    pub(super) const SUPER: Node = Node { tree: Tree::Super, level: 0, index: 0 };

    pub(super) fn super_at() -> u16 {
        u16::try_from(ROOT_SLOT / 8).expect("it is in the first block")
    }

    /// Where an inode's words are. It stays there until the commit, so that the way to it is gone once.
    pub(super) fn place(&self, ino: u64) -> Option<u64> {
        let leaf = ino / INODES_IN_BLOCK;
        let [first, second] = &self.places;
        let at = match (first.get(), second.get()) {
            ((of, at), _) | (_, (of, at)) if of == leaf => at,
            _ => {
                let at = self.state.place(leaf * INODES_IN_BLOCK)?;
                second.set(first.replace((leaf, at)));
                at
            }
        };
        Some(at + ino % INODES_IN_BLOCK * INODE)
    }

    /// A word of an inode as the medium has it, 0 where there is none.
    pub(super) fn stored(&self, ino: u64, field: Field) -> u64 {
        self.place(ino).map_or(0, |at| self.state.gate.word(slot(at, field as u16)))
    }

    /// Bytes of a file that can be reached on the medium: what is behind them is hidden.
    pub(super) fn reached(&self, ino: u64) -> u64 {
        if self.born == Some(ino) {
            return 0;
        }
        let (of, reached) = self.reached.get();
        if of == ino {
            return reached;
        }
        // Until the commit nothing that can be reached is different.
        let reached = self.stored(ino, Field::Size);
        self.reached.set((ino, reached));
        reached
    }

    /// A word of an inode, with this change.
    pub(crate) fn field(&self, ino: u64, field: Field) -> u64 {
        let noted = self.drafts.get(&Self::inode_leaf(ino)).and_then(|draft| draft.words.get(field.of(ino)));
        noted.map_or_else(|| self.stored(ino, field), |word| word.value())
    }

    /// An inode, with this change.
    ///
    /// # Errors
    /// `Corrupt` if there is none.
    pub(crate) fn inode(&self, ino: u64) -> Result<Inode> {
        Inode::from_words(ino, |field| self.field(ino, field))
    }

    /// The word at the top of a tree; of a file of which nothing counts yet, none.
    pub(super) fn top(&self, tree: Tree) -> u64 {
        match tree {
            Tree::File(ino) if self.reached(ino) == 0 => 0,
            Tree::File(ino) => self.field(ino, Field::Root),
            Tree::Xattrs(ino) => self.field(ino, Field::Xattrs),
            Tree::Inodes | Tree::Super => {
                let noted = self.drafts.get(&Self::SUPER).and_then(|draft| draft.words.get(Self::super_at()));
                noted.map_or_else(|| self.state.inode_file(), |word| word.value())
            }
        }
    }

    pub(super) fn height(&self, tree: Tree) -> u8 {
        self.heights.get(tree).unwrap_or_else(|| tree::height(self.top(tree)))
    }

    pub(super) fn is_fresh(&self, node: Node) -> bool {
        self.drafts.get(&node).is_some_and(|draft| draft.fresh.is_some())
    }

    /// The block that is at a place of a tree on the medium, and can be reached.
    pub(super) fn block(&self, node: Node) -> Option<Block> {
        if let Tree::File(ino) = node.tree
            && node.index.checked_mul(span(node.level))? >= leaves(self.reached(ino))
        {
            return None;
        }
        let height = self.height(node.tree);
        if node.level >= height {
            let is_top = node.level == height && node.index == 0;
            return if is_top { self.state.gate.follow(self.top(node.tree)) } else { None };
        }
        let (parent, at) = node.parent();
        let draft = self.drafts.get(&parent);
        let word = match (draft.and_then(|draft| draft.words.get(at)), draft) {
            (Some(word), _) => word.value(),
            (_, Some(Draft { fresh: Some(_), is_bare: true, .. })) => 0,
            (_, Some(Draft { image: Some(image), .. })) => word_of(image, at),
            (_, Some(Draft { fresh: Some(fresh), .. })) => word_of(self.state.gate.fresh(fresh), at),
            _ => self.state.gate.word(slot(self.block(parent)?.at(), at)),
        };
        self.state.gate.follow(word)
    }

    pub(super) fn exists(&self, node: Node) -> bool {
        self.is_fresh(node) || self.block(node).is_some()
    }

    /// Whether there is no hole at a leaf.
    pub(crate) fn has_leaf(&self, tree: Tree, index: u64) -> bool {
        self.exists(Node::leaf(tree, index))
    }
}

fn word_of(bytes: &[u8], at: u16) -> u64 {
    fstitch_core::Le::u64(bytes, usize::from(at) * 8)
}
