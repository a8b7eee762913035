//! What a mount finds out (\[D\] §3.3.2): which blocks and inodes are in use, how many names each inode has, and where `..` leads. It reads
//! what leads somewhere, and believes none of it: a pointer that leads out of the volume, or to where another one leads, is damage.
//!
//! Names are followed by one thread. What most of the time goes to, blocks of pointers that are not in the processor's caches or not even in
//! memory, is looked at by several: trees of files are put off until there are many of them.

use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::{Error, FileKind, Result, Structure};

use crate::dir;
use crate::inode::{Inode, Inodes};
use crate::layout::{HEIGHT_MAX, INODES_IN_BLOCK, ROOT, SIZE_MAX};
use crate::pm::{BLOCK_BYTES, Block, Gate, Marking, Marks, Space};
use crate::tree;

/// Trees that are put off at most, and so many that threads begin for them.
const PUT_OFF: usize = 1 << 16;
const WORTH_THREADS: usize = 1 << 10;
/// Trees that a thread takes at once.
const PIECE: usize = 64;
/// As many wait for a disk at the same time; more than processors cost nothing where all is in memory.
const THREADS: usize = 16;

/// What is used, as the medium says it.
pub(crate) fn scan(gate: &Gate, inode_file: u64) -> Result<(Space, Inodes)> {
    let (marks, inodes, put_off) = (Marks::new(gate.blocks()), Inodes::default(), Vec::new());
    let mut scan = Scan { gate, inode_file, marks, inodes, put_off };
    scan.inode_file()?;
    scan.directories()?;
    scan.catch_up()?;
    Ok((scan.marks.into_space(), scan.inodes))
}

struct Scan<'a> {
    gate: &'a Gate,
    inode_file: u64,
    marks: Marks,
    inodes: Inodes,
    /// Files whose trees are still to be marked.
    put_off: Vec<Trees>,
}

/// The trees of an inode.
struct Trees {
    ino: u64,
    contents: u64,
    leaves: u64,
    xattrs: u64,
}

impl Trees {
    /// Marks their blocks; how many they are.
    fn mark(&self, gate: &Gate, marks: &Marks) -> Result<u64> {
        let of = Structure::Inode(self.ino);
        let contents = mark_tree(gate, marks, of, (self.contents, self.leaves))?;
        Ok(contents + mark_tree(gate, marks, of, (self.xattrs, u64::MAX))?)
    }
}

/// Marks the blocks of a tree, as far as they count; how many they are.
fn mark_tree(gate: &Gate, marks: &Marks, of: Structure, (root, leaves): (u64, u64)) -> Result<u64> {
    if root & 7 > u64::from(HEIGHT_MAX) {
        return Err(Error::corrupt(of, None, "its tree is higher than any"));
    }
    let twice = |block: Block| Error::corrupt(of, None, format!("block {} is used twice", block.number()));
    let mut marking = Marking::new(marks);
    tree::walk(gate, root, (0, leaves), &mut |(_, _, word)| {
        let block =
            gate.follow(word).ok_or_else(|| Error::corrupt(of, None, "a pointer leads out of the volume"))?;
        marking.mark(block).map(|()| true).map_err(twice)
    })?;
    marking.finish().map_err(twice)
}

/// Marks trees, by so many threads; how many blocks each inode has, in their order. Of several faults one is told of: of a block that two
/// trees have, either.
fn mark_trees(gate: &Gate, marks: &Marks, trees: &[Trees], threads: usize) -> Result<Vec<(u64, u64)>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let pieces = std::iter::from_fn(|| {
            let number = next.fetch_add(1, Ordering::Relaxed);
            Some((number, trees.chunks(PIECE).nth(number)?))
        });
        let marked = |(number, piece): (usize, &[Trees])| {
            let counts = piece.iter().map(|tree| Ok((tree.ino, tree.mark(gate, marks)?)));
            (number, counts.collect::<Result<Vec<_>>>())
        };
        pieces.map(marked).collect::<Vec<_>>()
    };
    let mut marked = std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let mut marked = work();
        for other in others {
            let of_other = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            marked.extend(of_other);
        }
        marked
    });
    marked.sort_unstable_by_key(|(number, _)| *number);
    let all: Result<Vec<_>> = marked.into_iter().map(|(_, counts)| counts).collect();
    Ok(all?.concat())
}

impl Scan<'_> {
    /// Marks the trees that were put off.
    fn catch_up(&mut self) -> Result<()> {
        let threads = if self.put_off.len() < WORTH_THREADS { 1 } else { THREADS };
        let counts = mark_trees(self.gate, &self.marks, &self.put_off, threads)?;
        self.put_off.clear();
        counts.into_iter().for_each(|(ino, count)| self.add_blocks(ino, count));
        Ok(())
    }

    fn add_blocks(&mut self, ino: u64, count: u64) {
        self.inodes.add_blocks(ino, i64::try_from(count).expect("they are on the volume"));
    }

    fn inode_file(&mut self) -> Result<()> {
        let of = Structure::Other("inode file");
        mark_tree(self.gate, &self.marks, of, (self.inode_file, u64::MAX))?;
        let (gate, inodes, mut next) = (self.gate, &mut self.inodes, 0);
        tree::walk(gate, self.inode_file, (0, u64::MAX), &mut |(level, index, word)| {
            if level == 0 {
                if index != next {
                    return Err(Error::corrupt(of, None, format!("its block {next} is missing")));
                }
                inodes.grow(index * INODES_IN_BLOCK);
                // Read or not: inodes that are made later lead to contents as well.
                gate.hold(word >> 3);
                next += 1;
            }
            Ok(true)
        })
    }

    /// An inode that an entry names, and its blocks if it is the first one that does.
    fn named(&mut self, ino: u64) -> Result<Inode> {
        if ino == 0 || ino >= self.inodes.end() {
            return Err(Error::corrupt(
                Structure::Inode(ino),
                None,
                "there is none of that number, and an entry names it",
            ));
        }
        let inode = crate::inode::load(self.gate, self.inode_file, ino)?;
        if self.inodes.is_used(ino) {
            return Ok(inode);
        }
        self.inodes.mark(ino);
        if inode.size > SIZE_MAX || inode.is_dir() && !inode.size.is_multiple_of(BLOCK_BYTES) {
            return Err(Error::corrupt(Structure::Inode(ino), None, format!("it has {} bytes", inode.size)));
        }
        let leaves = tree::leaves(inode.size);
        let trees = Trees { ino, contents: inode.contents(), leaves, xattrs: inode.xattrs };
        if inode.is_dir() {
            // Its entries are looked at next.
            let blocks = trees.mark(self.gate, &self.marks)?;
            self.add_blocks(ino, blocks);
        } else if trees.contents.max(trees.xattrs) > u64::from(HEIGHT_MAX) {
            // Of others there is no block and no fault.
            self.put_off.push(trees);
            if self.put_off.len() >= PUT_OFF {
                self.catch_up()?;
            }
        }
        Ok(inode)
    }

    fn directories(&mut self) -> Result<()> {
        let root = self.named(ROOT.get())?;
        if root.kind != FileKind::Directory {
            return Err(Error::corrupt(Structure::Inode(root.ino), None, "the root is no directory"));
        }
        self.inodes.set_names(root.ino, 2);
        self.inodes.set_parent(root.ino, root.ino);
        let mut left = vec![root];
        while let Some(dir) = left.pop() {
            let (gate, mut names) = (self.gate, self.inodes.names(dir.ino));
            dir::entries(gate, &dir, 0, &mut |entry| {
                if entry.ino == 0 {
                    return Ok(true);
                }
                let child = self.named(entry.ino)?;
                if child.is_dir() {
                    if self.inodes.parent(child.ino).is_some() {
                        return Err(Error::corrupt(
                            Structure::Inode(child.ino),
                            None,
                            "a directory with two names",
                        ));
                    }
                    self.inodes.set_parent(child.ino, dir.ino);
                    self.inodes.set_names(child.ino, 2);
                    names += 1;
                    left.push(child);
                } else {
                    let names = self.inodes.names(child.ino);
                    self.inodes.set_names(child.ino, names.saturating_add(1));
                }
                Ok(true)
            })?;
            self.inodes.set_names(dir.ino, names);
        }
        Ok(())
    }
}
