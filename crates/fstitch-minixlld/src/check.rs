//! Checks a volume: walks all lists of the disk and compares what inodes say of themselves with what directories say of them. No
//! crash needs it: what it finds is a bug, here or in the logical disk.

use std::collections::BTreeMap;

use fstitch_core::{CheckReport, Error, FileKind, FindingClass, InodeNo, Result};
use fstitch_lld::ListId;

use crate::blocks::Blocks;
use crate::inode::Inode;
use crate::layout::{INODE_AT, KEPT, LEAF_LAST, ROOT, VOLUME, XATTRS_AT, data_at, is_inode};
use crate::leaf;
use crate::volume::MinixLld;
use crate::xattr;

/// An inode, and what was found of it.
struct Seen {
    inode: Inode,
    /// Names in directories.
    names: u32,
    /// Names of directories in it.
    subdirectories: u32,
}

struct Check<'a> {
    fs: &'a MinixLld,
    inodes: BTreeMap<InodeNo, Seen>,
    report: CheckReport,
}

/// Checks a volume that nobody changes meanwhile.
///
/// # Errors
/// Those of the device; damage is in the report.
pub(crate) fn check(fs: &MinixLld) -> Result<CheckReport> {
    let mut check = Check { fs, inodes: BTreeMap::new(), report: CheckReport::default() };
    check.lists()?;
    let dirs: Vec<InodeNo> =
        check.inodes.values().filter(|seen| seen.inode.is_dir()).map(|seen| seen.inode.ino).collect();
    for dir in dirs {
        check.directory(dir)?;
    }
    check.counts();
    check.kept()?;
    Ok(check.report)
}

impl Check<'_> {
    fn say(&mut self, code: &'static str, text: String) {
        self.report.push(FindingClass::Corrupt, code, text);
    }

    /// Damage is a finding; a failing device is none.
    fn or_say<T>(&mut self, what: &str, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error @ Error::Corrupt(_)) => {
                self.say("unreadable", format!("{what}: {error}"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Every list belongs to the volume or is an inode.
    fn lists(&mut self) -> Result<()> {
        let mut from = 0;
        while let Some(list) = self.fs.disk().next_list(from)? {
            from = list + 1;
            match list {
                VOLUME | KEPT => {}
                _ => self.inode(list)?,
            }
        }
        if !self.inodes.contains_key(&ROOT) {
            self.say("no-root", "there is no root directory".to_owned());
        }
        Ok(())
    }

    fn inode(&mut self, list: ListId) -> Result<()> {
        let ino = InodeNo(list);
        let Some(image) = self.fs.image((list, INODE_AT))? else {
            self.say("list-of-nobody", format!("list {list} has no inode"));
            return Ok(());
        };
        let decoded = Inode::decode(ino, &image);
        let Some(inode) = self.or_say(&format!("inode {ino}"), decoded)? else { return Ok(()) };
        let xattrs = xattr::load(self.fs, &inode);
        self.or_say(&format!("attributes of inode {ino}"), xattrs)?;
        self.blocks(&inode)?;
        self.inodes.insert(ino, Seen { inode, names: 0, subdirectories: 0 });
        Ok(())
    }

    /// No inode has blocks where nobody looks.
    fn blocks(&mut self, inode: &Inode) -> Result<()> {
        let (list, unit) = (inode.ino.get(), self.fs.unit());
        let end = match inode.kind {
            FileKind::Regular | FileKind::Symlink => data_at(inode.size.div_ceil(unit)),
            FileKind::Directory => LEAF_LAST + 1,
            _ => data_at(0),
        };
        if let Some((position, _)) = self.fs.next_at(list, end)?.filter(|(at, _)| *at < XATTRS_AT) {
            self.say("block-behind-end", format!("inode {list} has a block at {position}, behind its end"));
        }
        let room = unit - fstitch_core::num::to_u64(crate::inode::INODE);
        let bytes = u64::from(inode.xattr_bytes);
        let xattrs = if bytes <= room { 0 } else { bytes.div_ceil(unit) };
        if let Some((position, _)) = self.fs.next_at(list, XATTRS_AT + xattrs)? {
            self.say(
                "block-behind-end",
                format!("inode {list} has attributes at {position}, behind the last"),
            );
        }
        Ok(())
    }

    /// Names are in the leaves that their slots lead to, and lead to inodes of their kind.
    fn directory(&mut self, dir: InodeNo) -> Result<()> {
        let mut before = 0;
        while let Some((position, _)) = self.fs.next_at(dir.get(), before + 1)? {
            if position > LEAF_LAST {
                break;
            }
            let image = self.fs.image((dir.get(), position))?;
            let decoded = leaf::decode(image.as_deref().unwrap_or_default());
            let named = self.or_say(&format!("directory {dir}"), decoded)?.unwrap_or_default();
            if named.is_empty() {
                self.say("empty-leaf", format!("the leaf at {position} of directory {dir} is empty"));
            }
            for named in named {
                let is_here = (before + 1..=position).contains(&named.slot());
                if !is_here || named.slot() != self.fs.slot(named.name) {
                    let name = String::from_utf8_lossy(named.name).into_owned();
                    self.say("name-misplaced", format!("{name} is in the wrong leaf of directory {dir}"));
                }
                self.name(dir, named.ino, named.kind, named.name);
            }
            before = position;
        }
        Ok(())
    }

    fn name(&mut self, dir: InodeNo, ino: InodeNo, kind: FileKind, name: &[u8]) {
        let name = String::from_utf8_lossy(name);
        let Some(seen) = self.inodes.get_mut(&ino).filter(|_| is_inode(ino)) else {
            return self
                .say("dangling-name", format!("{name} in directory {dir} names inode {ino}, which is none"));
        };
        seen.names += 1;
        let Inode { kind: real, parent, .. } = seen.inode;
        if real != kind {
            self.say(
                "kind-wrong",
                format!("{name} in directory {dir} is a {kind:?}, and its inode a {real:?}"),
            );
        }
        if real == FileKind::Directory {
            if parent != dir {
                self.say("parent-wrong", format!("{name} is in directory {dir}, and its `..` is {parent}"));
            }
            if let Some(home) = self.inodes.get_mut(&dir) {
                home.subdirectories += 1;
            }
        }
    }

    /// Inodes count their names; directories have one and are below the root.
    fn counts(&mut self) {
        let mut wrong = Vec::new();
        for (ino, Seen { inode, names, subdirectories }) in &self.inodes {
            let counted = match inode.kind {
                FileKind::Directory if *names == 0 && *ino != ROOT => 0,
                FileKind::Directory => 2 + subdirectories,
                _ => *names,
            };
            if inode.nlink != counted {
                wrong.push((
                    "link-count",
                    format!("inode {ino} counts {} names and has {counted}", inode.nlink),
                ));
            }
            if inode.is_dir() && *names > u32::from(*ino != ROOT) {
                wrong.push(("directory-names", format!("directory {ino} has {names} names")));
            }
            if inode.is_dir() && *names > 0 && !self.is_below_root(*ino) {
                wrong.push(("unreachable", format!("directory {ino} is not below the root")));
            }
        }
        wrong.into_iter().for_each(|(code, text)| self.say(code, text));
    }

    fn is_below_root(&self, dir: InodeNo) -> bool {
        let mut at = dir;
        for _ in 0..=self.inodes.len() {
            match self.inodes.get(&at) {
                _ if at == ROOT => return true,
                Some(seen) => at = seen.inode.parent,
                None => return false,
            }
        }
        false
    }

    /// Those without names are kept, and nobody else.
    fn kept(&mut self) -> Result<()> {
        let mut kept = Vec::new();
        while let Some((ino, _)) = self.fs.next_at(KEPT, kept.last().map_or(0, |last: &u64| last + 1))? {
            kept.push(ino);
        }
        let nameless = self.inodes.iter().filter(|(_, seen)| seen.inode.nlink == 0);
        let nameless: Vec<u64> = nameless.map(|(ino, _)| ino.get()).collect();
        if kept != nameless {
            self.say("kept-wrong", format!("inodes {kept:?} are kept, and {nameless:?} have no name"));
        }
        Ok(())
    }
}
