//! Which spelling a name has in a directory.

use std::collections::{HashMap, VecDeque};

use fstitch_core::{FileSystem, InodeNo, Result};
use rustc_hash::FxHashMap;

use crate::fold::folded;

/// Names that are remembered in all: some 100 bytes each.
const NAMES_MAX: usize = 1 << 20;

/// The names of a directory by what their spellings have in common. There are several where others have made them.
type Names = HashMap<Box<[u8]>, Vec<Box<[u8]>>>;

/// The names of directories that were looked at lately. Whoever has it changes names through it, so it is right.
#[derive(Debug)]
pub(crate) struct Index {
    dirs: FxHashMap<InodeNo, Names>,
    /// The directories, the one that was read first in front.
    order: VecDeque<InodeNo>,
    held: usize,
    most: usize,
}

impl Default for Index {
    fn default() -> Self {
        Self::holding(NAMES_MAX)
    }
}

impl Index {
    /// Remembers at most so many names.
    pub(crate) fn holding(most: usize) -> Self {
        Self { dirs: FxHashMap::default(), order: VecDeque::new(), held: 0, most }
    }

    /// How `name` is spelled in directory `dir`: as given if that is there, else as it is found first; `None` if it has no spelling.
    pub(crate) fn spelling(
        &mut self,
        fs: &dyn FileSystem,
        dir: InodeNo,
        name: &[u8],
    ) -> Result<Option<Box<[u8]>>> {
        let key = folded(name);
        if !self.dirs.contains_key(&dir) {
            self.read(fs, dir)?;
        }
        let names = self.dirs.get(&dir).and_then(|names| names.get(key.as_slice()));
        let found =
            names.and_then(|names| names.iter().find(|known| ***known == *name).or(names.first())).cloned();
        self.shrink();
        Ok(found)
    }

    fn read(&mut self, fs: &dyn FileSystem, dir: InodeNo) -> Result<()> {
        let mut names = Names::new();
        let mut count = 0;
        fs.readdir(dir, 0, &mut |entry| {
            if !matches!(entry.name, b"." | b"..") {
                names.entry(folded(entry.name).into()).or_default().push(entry.name.into());
                count += 1;
            }
            true
        })?;
        self.held += count;
        self.order.push_back(dir);
        self.dirs.insert(dir, names);
        Ok(())
    }

    /// Forgets directories, those read first before others, until as many names are left as may be.
    fn shrink(&mut self) {
        while self.held > self.most
            && let Some(&dir) = self.order.front()
        {
            self.forget(dir);
        }
    }

    /// Directory `dir` has `name` now.
    pub(crate) fn add(&mut self, dir: InodeNo, name: &[u8]) {
        if let Some(names) = self.dirs.get_mut(&dir) {
            let spellings = names.entry(folded(name).into()).or_default();
            if !spellings.iter().any(|known| **known == *name) {
                spellings.push(name.into());
                self.held += 1;
            }
        }
    }

    /// Directory `dir` has `name` no more.
    pub(crate) fn remove(&mut self, dir: InodeNo, name: &[u8]) {
        let Some(names) = self.dirs.get_mut(&dir) else { return };
        let key = folded(name);
        let Some(spellings) = names.get_mut(key.as_slice()) else { return };
        let before = spellings.len();
        spellings.retain(|known| **known != *name);
        self.held -= before - spellings.len();
        if spellings.is_empty() {
            names.remove(key.as_slice());
        }
    }

    /// Nothing is known of `dir` any more: it is gone, or what became of it is not known.
    pub(crate) fn forget(&mut self, dir: InodeNo) {
        if let Some(names) = self.dirs.remove(&dir) {
            self.held -= names.values().map(Vec::len).sum::<usize>();
            self.order.retain(|&known| known != dir);
        }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        let counted: usize = self.dirs.values().flat_map(|names| names.values().map(Vec::len)).sum();
        assert_eq!((counted, self.dirs.len()), (self.held, self.order.len()));
        self.held
    }
}
