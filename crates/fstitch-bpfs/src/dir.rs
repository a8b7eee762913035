//! Directories: entries on the medium, and in memory where each name is.
//!
//! On the medium a directory is a file of whole blocks, and a block is a row of entries from its beginning to its end. The first word of
//! an entry says both whose it is and how long it is; of a free one the inode is 0. So a name comes, goes, or changes its inode by one
//! word: a new one takes the beginning of a free entry, whose rest becomes one in the same moment, because it was hidden until then; one
//! that goes is free together with the free ones around it. Beside that, names are found by an index in memory, made when a directory is
//! first used.

use std::collections::BTreeMap;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Error, Le, Result, Structure};
use rustc_hash::FxHashMap;
use twox_hash::XxHash3_64;

use crate::change::Change;
use crate::inode::Inode;
use crate::layout::{ENTRY, ENTRY_MIN, Field, entry_len};
use crate::pm::{BLOCK, BLOCK_BYTES, Gate};
use crate::tree;

/// Names in memory, of all directories together: more, and those that were not used for longest are forgotten.
const NAMES_MAX: usize = 4 << 20;

/// An entry as it lies in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Its first byte in the directory.
    pub(crate) at: u64,
    /// Its bytes.
    pub(crate) len: u64,
    /// 0: free.
    pub(crate) ino: u64,
    pub(crate) name: &'a [u8],
}

fn damaged(at: u64, what: &str) -> Error {
    Error::corrupt(Structure::DirectoryEntry(Some(to_usize(at % BLOCK_BYTES))), None, what)
}

/// The first word of an entry.
fn word(ino: u64, len: u64) -> u64 {
    debug_assert!(ino < 1 << 48 && len <= BLOCK_BYTES);
    ino << 16 | len
}

/// The entry at a byte of a block.
fn entry(block: &[u8], index: u64, at: usize) -> Result<Entry<'_>> {
    let place = index * BLOCK_BYTES + to_u64(at);
    let first = Le::u64(block, at);
    let (ino, len) = (first >> 16, to_usize(first & 0xffff));
    if len < ENTRY_MIN || !len.is_multiple_of(8) || at + len > BLOCK {
        return Err(damaged(place, "it ends where it cannot"));
    }
    let name_len = usize::from(block[at + 8]);
    if ino != 0 && (name_len == 0 || ENTRY + name_len > len) {
        return Err(damaged(place, "its name does not fit it"));
    }
    let name = if ino == 0 { &[] } else { &block[at + ENTRY..at + ENTRY + name_len] };
    Ok(Entry { at: place, len: to_u64(len), ino, name })
}

/// The entries of a block, in their order.
fn row(block: &[u8], index: u64) -> impl Iterator<Item = Result<Entry<'_>>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= BLOCK {
            return None;
        }
        let entry = entry(block, index, at);
        at = entry.as_ref().map_or(BLOCK, |entry| at + to_usize(entry.len));
        Some(entry)
    })
}

/// Tells of all entries, free ones as well, from the first that begins at `from` or behind it. `visit` says whether to go on.
///
/// # Errors
/// `Corrupt`, and those of `visit`.
pub(crate) fn entries(
    gate: &Gate,
    dir: &Inode,
    from: u64,
    visit: &mut impl FnMut(Entry<'_>) -> Result<bool>,
) -> Result<()> {
    for index in from / BLOCK_BYTES..tree::leaves(dir.size) {
        let block = tree::leaf(gate, dir.root, index)
            .ok_or_else(|| damaged(index * BLOCK_BYTES, "its block is missing"))?;
        for entry in row(gate.block(block), index) {
            let entry = entry?;
            if entry.at >= from && !visit(entry)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// Where a directory's names are.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// Entries by the number that a name has.
    names: FxHashMap<u64, Vec<u64>>,
    /// Free ones by length.
    free: BTreeMap<u64, Vec<u64>>,
    count: usize,
}

impl Index {
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn new(gate: &Gate, dir: &Inode, seed: u64) -> Result<Self> {
        let mut index = Self::default();
        entries(gate, dir, 0, &mut |entry| {
            if entry.ino == 0 {
                index.free.entry(entry.len).or_default().push(entry.at);
            } else {
                index.add(number(entry.name, seed), entry.at);
            }
            Ok(true)
        })?;
        Ok(index)
    }

    fn add(&mut self, number: u64, at: u64) {
        self.names.entry(number).or_default().push(at);
        self.count += 1;
    }

    fn remove(&mut self, number: u64, at: u64) {
        if let Some(places) = self.names.get_mut(&number) {
            places.retain(|place| *place != at);
            if places.is_empty() {
                self.names.remove(&number);
            }
            self.count -= 1;
        }
    }

    /// Whether there is no name.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there is only one.
    pub(crate) fn is_last(&self) -> bool {
        self.count == 1
    }

    /// A free entry that has room: in the block of `near` if there is one, because what is changed in one block is copied once; else the
    /// shortest.
    fn room(&self, len: u64, near: Option<u64>) -> Option<(u64, u64)> {
        let in_block = near.and_then(|near| {
            let mut all =
                self.free.range(len..).flat_map(|(len, places)| places.iter().map(|at| (*len, *at)));
            all.find(|(_, at)| at / BLOCK_BYTES == near / BLOCK_BYTES)
        });
        let shortest = || {
            let (len, places) = self.free.range(len..).next()?;
            places.last().map(|at| (*len, *at))
        };
        in_block.or_else(shortest)
    }

    fn take(&mut self, len: u64, at: u64) {
        if let Some(places) = self.free.get_mut(&len) {
            places.retain(|place| *place != at);
            if places.is_empty() {
                self.free.remove(&len);
            }
        }
    }
}

/// What stands for a name.
pub(crate) fn number(name: &[u8], seed: u64) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, name)
}

/// An entry that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) at: u64,
    pub(crate) ino: u64,
    len: u64,
}

impl Found {
    /// Its first word, for another inode.
    pub(crate) fn word(&self, ino: u64) -> u64 {
        word(ino, self.len)
    }
}

/// Finds a name.
pub(crate) fn find(gate: &Gate, dir: &Inode, index: &Index, name: &[u8], seed: u64) -> Option<Found> {
    let places = index.names.get(&number(name, seed))?;
    places.iter().find_map(|at| {
        let block = gate.block(tree::leaf(gate, dir.root, at / BLOCK_BYTES)?);
        let entry = entry(block, at / BLOCK_BYTES, to_usize(at % BLOCK_BYTES)).ok()?;
        (entry.ino != 0 && entry.name == name).then_some(Found { at: *at, ino: entry.ino, len: entry.len })
    })
}

/// A change of a directory's entries, for the index when it has happened.
#[derive(Debug)]
pub(crate) struct Moved {
    name: u64,
    at: u64,
    /// The name is there now, or is not any more.
    is_there: bool,
    /// Free entries that are none any more, and the one that is: lengths and places.
    taken: Vec<(u64, u64)>,
    left: Option<(u64, u64)>,
}

impl Moved {
    /// The index follows.
    pub(crate) fn follow(self, index: &mut Index) {
        self.taken.iter().for_each(|(len, at)| index.take(*len, *at));
        if let Some((len, at)) = self.left {
            index.free.entry(len).or_default().push(at);
        }
        if self.is_there {
            index.add(self.name, self.at);
        } else {
            index.remove(self.name, self.at);
        }
    }
}

/// An entry's bytes behind its first word, and the first word of the free entry behind it if there is one of that length.
fn image(len: u64, name: &[u8], rest: u64) -> Vec<u8> {
    let mut bytes = vec![0; to_usize(len) - 8];
    bytes[0] = u8::try_from(name.len()).expect("a name is short");
    bytes[1..=name.len()].copy_from_slice(name);
    if rest > 0 {
        bytes.extend_from_slice(&word(0, rest).to_le_bytes());
    }
    bytes
}

/// Adds a name, in the block of `near` if it may be.
///
/// # Errors
/// `ENOSPC`.
pub(crate) fn add(
    change: &mut Change<'_>,
    dir: u64,
    (index, near): (&Index, Option<u64>),
    (name, seed): (&[u8], u64),
    ino: u64,
) -> Result<Moved> {
    let (len, number) = (to_u64(entry_len(name.len())), number(name, seed));
    let is_long = |rest: u64| rest >= to_u64(ENTRY_MIN);
    if let Some((found, at)) = index.room(len, near) {
        let (len, rest) = if is_long(found - len) { (len, found - len) } else { (found, 0) };
        let bytes = image(to_u64(entry_len(name.len())), name, rest);
        change.fill_entry(dir, at, &bytes)?;
        change.set_entry(dir, at, word(ino, len));
        let left = (rest > 0).then_some((rest, at + len));
        return Ok(Moved { name: number, at, is_there: true, taken: vec![(found, at)], left });
    }
    // The first entry of another block, and the rest of that.
    let at = change.field(dir, Field::Size);
    let rest = BLOCK_BYTES - len;
    let bytes = [&word(ino, len).to_le_bytes()[..], &image(len, name, rest)].concat();
    change.put(dir, at, &bytes)?;
    change.set_field(dir, Field::Size, at + BLOCK_BYTES);
    Ok(Moved { name: number, at, is_there: true, taken: Vec::new(), left: Some((rest, at + len)) })
}

/// Removes a name; with `merges` its entry joins the free ones around it.
///
/// # Errors
/// `Corrupt`.
pub(crate) fn remove(
    change: &mut Change<'_>,
    dir: &Inode,
    found: &Found,
    (name, seed): (&[u8], u64),
    merges: bool,
) -> Result<Moved> {
    let mut taken = Vec::new();
    let (mut first, mut end) = (found.at, found.at + found.len);
    if merges {
        let gate = &change.state().gate;
        let index = found.at / BLOCK_BYTES;
        let block =
            tree::leaf(gate, dir.root, index).ok_or_else(|| damaged(found.at, "its block is missing"))?;
        let mut run = Vec::new();
        for entry in row(gate.block(block), index) {
            let entry = entry?;
            if entry.ino != 0 && entry.at != found.at {
                if entry.at > found.at {
                    break;
                }
                run.clear();
                continue;
            }
            run.push((entry.len, entry.at));
        }
        if let (Some((_, from)), Some((len, to))) = (run.first(), run.last()) {
            (first, end) = (*from, to + len);
        }
        taken = run.into_iter().filter(|(_, at)| *at != found.at).collect();
    }
    change.set_entry(dir.ino, first, word(0, end - first));
    let left = Some((end - first, first));
    Ok(Moved { name: number(name, seed), at: found.at, is_there: false, taken, left })
}

/// The directories in memory.
#[derive(Debug, Default)]
pub(crate) struct Indexes {
    dirs: FxHashMap<u64, (u64, Arc<Index>)>,
    clock: u64,
    names: usize,
}

impl Indexes {
    /// That of a directory, if it is known.
    pub(crate) fn get(&mut self, dir: u64) -> Option<Arc<Index>> {
        self.clock += 1;
        let (used, index) = self.dirs.get_mut(&dir)?;
        *used = self.clock;
        Some(Arc::clone(index))
    }

    /// A directory is known from now on.
    pub(crate) fn put(&mut self, dir: u64, index: Arc<Index>) {
        self.forget(dir);
        self.names += index.count + 1;
        self.clock += 1;
        self.dirs.insert(dir, (self.clock, index));
        while self.names > NAMES_MAX && self.dirs.len() > 1 {
            let oldest = self.dirs.iter().min_by_key(|(_, (used, _))| *used).map(|(dir, _)| *dir);
            self.forget(oldest.expect("there are some"));
        }
    }

    /// Changes what is known of a directory, if anything is.
    pub(crate) fn update(&mut self, dir: u64, how: impl FnOnce(&mut Index)) {
        let Some((_, index)) = self.dirs.get_mut(&dir) else { return };
        match Arc::get_mut(index) {
            Some(index) => {
                self.names -= index.count;
                how(index);
                self.names += index.count;
            }
            // Somebody reads in it: it is made again.
            None => self.forget(dir),
        }
    }

    /// A directory is not known any more.
    pub(crate) fn forget(&mut self, dir: u64) {
        if let Some((_, index)) = self.dirs.remove(&dir) {
            self.names -= index.count + 1;
        }
    }
}
