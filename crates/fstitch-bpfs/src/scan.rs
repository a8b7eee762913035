//! What a mount finds out (\[D\] §3.3.2): which blocks and inodes are in use, how many names each inode has, and where `..` leads. It reads
//! what leads somewhere, and believes none of it: a pointer that leads out of the volume, or to where another one leads, is damage.

use fstitch_core::{Error, FileKind, Result, Structure};

use crate::dir;
use crate::inode::{Inode, Inodes};
use crate::layout::{HEIGHT_MAX, INODES_IN_BLOCK, ROOT, SIZE_MAX};
use crate::pm::{BLOCK_BYTES, Gate, Space};
use crate::tree;

/// What is used, as the medium says it.
pub(crate) fn scan(gate: &Gate, inode_file: u64) -> Result<(Space, Inodes)> {
    let mut scan = Scan { gate, inode_file, space: Space::new(gate.blocks()), inodes: Inodes::default() };
    scan.inode_file()?;
    scan.directories()?;
    Ok((scan.space, scan.inodes))
}

struct Scan<'a> {
    gate: &'a Gate,
    inode_file: u64,
    space: Space,
    inodes: Inodes,
}

impl Scan<'_> {
    /// Marks the blocks of a tree, as far as they count; how many they are.
    fn tree(&mut self, of: Structure, root: u64, leaves: u64) -> Result<u64> {
        if root & 7 > u64::from(HEIGHT_MAX) {
            return Err(Error::corrupt(of, None, "its tree is higher than any"));
        }
        let (gate, space, mut count) = (self.gate, &mut self.space, 0);
        tree::walk(gate, root, (0, leaves), &mut |(_, _, word)| {
            let block = gate
                .follow(word)
                .ok_or_else(|| Error::corrupt(of, None, "a pointer leads out of the volume"))?;
            if !space.mark(block) {
                let what = format!("block {} is used twice", block.number());
                return Err(Error::corrupt(of, None, what));
            }
            count += 1;
            Ok(true)
        })?;
        Ok(count)
    }

    fn inode_file(&mut self) -> Result<()> {
        let of = Structure::Other("inode file");
        self.tree(of, self.inode_file, u64::MAX)?;
        let (gate, inodes, mut next) = (self.gate, &mut self.inodes, 0);
        tree::walk(gate, self.inode_file, (0, u64::MAX), &mut |(level, index, _)| {
            if level == 0 {
                if index != next {
                    return Err(Error::corrupt(of, None, format!("its block {next} is missing")));
                }
                inodes.grow(index * INODES_IN_BLOCK);
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
        let contents = self.tree(Structure::Inode(ino), inode.contents(), tree::leaves(inode.size))?;
        let xattrs = self.tree(Structure::Inode(ino), inode.xattrs, u64::MAX)?;
        self.inodes.add_blocks(ino, i64::try_from(contents + xattrs).expect("they are on the volume"));
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
