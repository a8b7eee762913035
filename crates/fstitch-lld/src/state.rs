//! The committed state: which blocks there are and where they lie, the lists and their order, and what each segment is used for.
//!
//! Whatever is done to it is a [`Record`] of the log, and recovery does the same once more: [`State::apply`].

use std::sync::Arc;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockDevice, Corruption, Error, Le, Result, Structure};

use crate::pages::{Budget, PageCache};
use crate::record::{BlockId, Label, ListId, Record};
use crate::tree::{Fixed, Place, Tree};

/// A block of the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BlockEntry {
    /// The block of the device where its contents begin; 0 if it was never written, and reads as zeros.
    pub(crate) place: u64,
    /// Blocks of the device that they take.
    pub(crate) len: u32,
    /// CRC-32C of them.
    pub(crate) sum: u32,
    /// The list that it is in.
    pub(crate) list: ListId,
    /// Where it is there.
    pub(crate) label: Label,
}

impl Fixed for BlockEntry {
    const SIZE: usize = 32;

    fn put(&self, bytes: &mut [u8]) {
        Le::put_u64(bytes, 0, self.place);
        Le::put_u32(bytes, 8, self.len);
        Le::put_u32(bytes, 12, self.sum);
        Le::put_u64(bytes, 16, self.list);
        Le::put_u64(bytes, 24, self.label);
    }

    fn get(bytes: &[u8]) -> Self {
        Self {
            place: Le::u64(bytes, 0),
            len: Le::u32(bytes, 8),
            sum: Le::u32(bytes, 12),
            list: Le::u64(bytes, 16),
            label: Le::u64(bytes, 24),
        }
    }
}

/// A list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListEntry {
    /// Labels are the client's: positions of a volume.
    pub(crate) sparse: bool,
    /// How many blocks it has.
    pub(crate) blocks: u64,
}

impl Fixed for ListEntry {
    const SIZE: usize = 16;

    fn put(&self, bytes: &mut [u8]) {
        Le::put_u64(bytes, 0, self.sparse.into());
        Le::put_u64(bytes, 8, self.blocks);
    }

    fn get(bytes: &[u8]) -> Self {
        Self { sparse: Le::u64(bytes, 0) != 0, blocks: Le::u64(bytes, 8) }
    }
}

/// A tree with its pages.
pub(crate) struct Table<K, V> {
    pub(crate) tree: Tree<K, V>,
    pub(crate) pages: PageCache<K, V>,
}

impl<K: Fixed + Ord, V: Fixed> Table<K, V> {
    /// An empty one, or that whose root and number of entries are given.
    pub(crate) fn new(
        device: &Arc<dyn BlockDevice>,
        tree: u8,
        budget: &Arc<Budget>,
        root: Option<(Place, u64)>,
    ) -> Self {
        let pages = PageCache::new(Arc::clone(device), tree, Arc::clone(budget));
        Self { tree: root.map_or_else(Tree::default, |(place, count)| Tree::at(place, count)), pages }
    }

    pub(crate) fn get(&self, key: &K) -> Result<Option<V>> {
        self.tree.get(key, &self.pages)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Result<Option<V>> {
        self.tree.insert(key, value, &self.pages)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Result<Option<V>> {
        self.tree.remove(key, &self.pages)
    }
}

/// Where the trees of a checkpoint are, in the order blocks, order, lists.
pub(crate) type Roots = [(Place, u64); 3];

/// The committed state.
pub(crate) struct State {
    pub(crate) blocks: Table<BlockId, BlockEntry>,
    pub(crate) order: Table<(ListId, Label), BlockId>,
    pub(crate) lists: Table<ListId, ListEntry>,
    /// Numbers that nobody has had.
    pub(crate) next_block: BlockId,
    pub(crate) next_list: ListId,
}

/// Who a change takes room from and gives it to.
pub(crate) trait Room {
    /// So many blocks of the device at a place are in use, or no longer.
    fn used(&mut self, place: u64, len: u32);
    /// They are no longer.
    fn left(&mut self, place: u64, len: u32);
}

/// Damage of the state, which no failure of power explains.
pub(crate) fn damaged(problem: String) -> Error {
    Error::Corrupt(Corruption { what: Structure::Other("logical disk"), block: None, problem }.into())
}

impl State {
    /// An empty one, or that of a checkpoint.
    pub(crate) fn new(device: &Arc<dyn BlockDevice>, budget: &Arc<Budget>, roots: Option<Roots>) -> Self {
        let root = |at: usize| roots.map(|roots| roots[at]);
        Self {
            blocks: Table::new(device, 1, budget, root(0)),
            order: Table::new(device, 2, budget, root(1)),
            lists: Table::new(device, 3, budget, root(2)),
            next_block: 1,
            next_list: 1,
        }
    }

    /// Pages that have changed since the last checkpoint.
    pub(crate) fn changed_pages(&self) -> usize {
        self.blocks.tree.changed_pages() + self.order.tree.changed_pages() + self.lists.tree.changed_pages()
    }

    /// A list that must be there.
    pub(crate) fn list(&self, list: ListId) -> Result<ListEntry> {
        self.lists.get(&list)?.ok_or_else(|| damaged(format!("list {list} is missing")))
    }

    /// A block that must be there.
    pub(crate) fn block(&self, block: BlockId) -> Result<BlockEntry> {
        self.blocks.get(&block)?.ok_or_else(|| damaged(format!("block {block} is missing")))
    }

    /// Does what a record says; `found` says where data of its chunk are. Whoever calls has made sure that it can be done: a list or
    /// block that is not there is damage.
    ///
    /// # Errors
    /// Those of pages, and [`Error::Corrupt`].
    pub(crate) fn apply(
        &mut self,
        record: &Record,
        found: &dyn Fn(u32) -> (u64, u32, u32),
        room: &mut dyn Room,
    ) -> Result<()> {
        match *record {
            Record::Begin | Record::Commit => Ok(()),
            Record::Write { block, data } => self.set_place(block, found(data), room),
            Record::Found { block, place, len, sum } => self.set_place(block, (place, len, sum), room),
            Record::NewList { list, sparse } => {
                self.next_list = self.next_list.max(list.saturating_add(1));
                match self.lists.insert(list, ListEntry { sparse, blocks: 0 })? {
                    None => Ok(()),
                    Some(_) => Err(damaged(format!("list {list} is made twice"))),
                }
            }
            Record::DeleteList { list } => self.delete_list(list, room),
            Record::Insert { block, list, label } => self.insert(block, list, label),
            Record::Delete { block } => self.delete(block, room),
            Record::DeleteRange { list, from, last } => self.delete_range(list, from, last, room),
            Record::Relabel { list, from, count, label, step } => {
                self.relabel(list, from, count, label, step)
            }
        }
    }

    /// The block's contents are somewhere else now.
    ///
    /// # Errors
    /// Those of pages.
    pub(crate) fn set_place(
        &mut self,
        block: BlockId,
        place: (u64, u32, u32),
        room: &mut dyn Room,
    ) -> Result<()> {
        let (place, len, sum) = place;
        let Table { tree, pages } = &mut self.blocks;
        let old = tree.update(&block, pages, |entry| *entry = BlockEntry { place, len, sum, ..*entry })?;
        let old = old.ok_or_else(|| damaged(format!("block {block} is missing")))?;
        if old.place != 0 {
            room.left(old.place, old.len);
        }
        if place != 0 {
            room.used(place, len);
        }
        Ok(())
    }

    fn insert(&mut self, block: BlockId, list: ListId, label: Label) -> Result<()> {
        let entry = self.list(list)?;
        let new = BlockEntry { list, label, ..BlockEntry::default() };
        self.next_block = self.next_block.max(block.saturating_add(1));
        if self.order.insert((list, label), block)?.is_some() || self.blocks.insert(block, new)?.is_some() {
            return Err(damaged(format!("block {block} of list {list} is not the only one in its place")));
        }
        self.lists.insert(list, ListEntry { blocks: entry.blocks + 1, ..entry })?;
        Ok(())
    }

    fn delete(&mut self, block: BlockId, room: &mut dyn Room) -> Result<()> {
        let old = self.block(block)?;
        let entry = self.list(old.list)?;
        self.blocks.remove(&block)?;
        if self.order.remove(&(old.list, old.label))? != Some(block) {
            return Err(damaged(format!("list {} does not have its block {block}", old.list)));
        }
        self.lists.insert(old.list, ListEntry { blocks: entry.blocks.saturating_sub(1), ..entry })?;
        if old.place != 0 {
            room.left(old.place, old.len);
        }
        Ok(())
    }

    fn delete_list(&mut self, list: ListId, room: &mut dyn Room) -> Result<()> {
        self.list(list)?;
        self.remove_range(list, 0, Label::MAX, room)?;
        self.lists.remove(&list)?;
        Ok(())
    }

    fn delete_range(&mut self, list: ListId, from: Label, last: Label, room: &mut dyn Room) -> Result<()> {
        let entry = self.list(list)?;
        let removed = self.remove_range(list, from, last, room)?;
        self.lists.insert(list, ListEntry { blocks: entry.blocks.saturating_sub(removed), ..entry })?;
        Ok(())
    }

    /// Removes the blocks of a stretch, and returns how many there were.
    fn remove_range(&mut self, list: ListId, from: Label, last: Label, room: &mut dyn Room) -> Result<u64> {
        let mut removed = 0;
        while let Some((label, block)) = self.next_in(list, from)?.filter(|(label, _)| *label <= last) {
            self.order.remove(&(list, label))?;
            let Some(old) = self.blocks.remove(&block)? else {
                return Err(damaged(format!("block {block} of list {list} is missing")));
            };
            if old.place != 0 {
                room.left(old.place, old.len);
            }
            removed += 1;
        }
        Ok(removed)
    }

    /// The first block of a list whose label is not below this one.
    pub(crate) fn next_in(&self, list: ListId, from: Label) -> Result<Option<(Label, BlockId)>> {
        let found = self.order.tree.at_or_after(&(list, from), &self.order.pages)?;
        Ok(found.filter(|((of, _), _)| *of == list).map(|((_, label), block)| (label, block)))
    }

    /// The last block of a list whose label is below this one.
    pub(crate) fn previous_in(&self, list: ListId, below: Label) -> Result<Option<(Label, BlockId)>> {
        let rank = self.order.tree.rank(&(list, below), &self.order.pages)?;
        let Some(at) = rank.checked_sub(1) else { return Ok(None) };
        let found = self.order.tree.select(at, &self.order.pages)?;
        Ok(found.filter(|((of, _), _)| *of == list).map(|((_, label), block)| (label, block)))
    }

    /// The blocks of a list with labels from one up to another one, at most so many.
    pub(crate) fn stretch(
        &self,
        list: ListId,
        from: Label,
        last: Label,
        most: u64,
    ) -> Result<Vec<(Label, BlockId)>> {
        let mut found = Vec::new();
        self.order.tree.walk(&(list, from), &self.order.pages, &mut |&(of, label), &block| {
            let takes = of == list && label <= last && to_u64(found.len()) < most;
            if takes {
                found.push((label, block));
            }
            takes
        })?;
        Ok(found)
    }

    fn relabel(&mut self, list: ListId, from: Label, count: u64, label: Label, step: u64) -> Result<()> {
        let blocks = self.stretch(list, from, Label::MAX, count)?;
        if to_u64(blocks.len()) != count {
            return Err(damaged(format!("list {list} has fewer than {count} blocks from label {from} on")));
        }
        for (old, _) in &blocks {
            self.order.remove(&(list, *old))?;
        }
        let mut next = label;
        for (_, block) in blocks {
            let entry = self.block(block)?;
            if self.order.insert((list, next), block)?.is_some() {
                return Err(damaged(format!("label {next} of list {list} is taken")));
            }
            self.blocks.insert(block, BlockEntry { label: next, ..entry })?;
            next =
                next.checked_add(step).ok_or_else(|| damaged(format!("list {list} has no labels left")))?;
        }
        Ok(())
    }
}

/// How far apart labels of blocks are that come one behind the other.
const GAP: u64 = 1 << 32;

/// Where a block can be inserted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// What must be done before, if there is no room: a [`Record::Relabel`].
    pub(crate) relabel: Option<Record>,
    pub(crate) label: Label,
}

impl State {
    /// A label at the beginning of an ordered list, or behind a label of it.
    ///
    /// # Errors
    /// Those of pages.
    pub(crate) fn gap(&self, list: ListId, after: Option<Label>) -> Result<Gap> {
        let (order, pages) = (&self.order.tree, &self.order.pages);
        let from = after.map_or(0, |label| label + 1);
        let next = order
            .at_or_after(&(list, from), pages)?
            .filter(|((of, _), _)| *of == list)
            .map(|((_, label), _)| label);
        let (low, high) = (after.unwrap_or(0), next.unwrap_or(u64::MAX));
        let label = match (after, next) {
            (None, None) => u64::MAX / 2,
            (Some(low), None) if u64::MAX - low > GAP => low + GAP,
            (None, Some(high)) if high > GAP => high - GAP,
            _ => low + (high - low) / 2,
        };
        if label > low && label < high {
            return Ok(Gap { relabel: None, label });
        }
        self.spread(list, after, low)
    }

    /// Spreads the labels around a place in the smallest aligned range that is at most a quarter full when the new one is in it, and
    /// leaves a gap behind `after`.
    fn spread(&self, list: ListId, after: Option<Label>, around: Label) -> Result<Gap> {
        let (order, pages) = (&self.order.tree, &self.order.pages);
        for bits in 4..=64 {
            let (low, size) = match bits {
                64 => (0, u64::MAX),
                bits => (around >> bits << bits, 1 << bits),
            };
            let end = low.saturating_add(size);
            let (start, behind) = (order.rank(&(list, low), pages)?, order.rank(&(list, end), pages)?);
            let count = behind - start;
            let step = size / (count + 2);
            // The density that a range may have falls with its size: that is what makes an insertion cheap on average.
            if count > 0 && step < 4 * (1 + bits / 4) {
                continue;
            }
            let Some(((_, from), _)) = order.select(start, pages)?.filter(|_| count > 0) else { continue };
            // Those up to `after`, then a gap, then the others: two stretches, moved upwards or downwards, must not cross. So all are
            // moved as one, and the gap is where one step is.
            let before = match after {
                Some(after) => order.rank(&(list, after + 1), pages)?.saturating_sub(start),
                None => 0,
            };
            let first = low + step;
            let label = match before {
                0 => low + step / 2,
                before => first + (before - 1) * step + step / 2,
            };
            let relabel = Record::Relabel { list, from, count, label: first, step };
            return Ok(Gap { relabel: Some(relabel), label });
        }
        Err(damaged(format!("list {list} has no labels left")))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use fstitch_core::num::to_usize;
    use fstitch_core::{MemDevice, Seed};

    use super::*;

    /// Where the next block goes in a list of so many.
    type Place = &'static dyn Fn(&mut Seed, usize) -> usize;

    struct Nobody;

    impl Room for Nobody {
        fn used(&mut self, _: u64, _: u32) {}
        fn left(&mut self, _: u64, _: u32) {}
    }

    fn state() -> State {
        let device: Arc<dyn BlockDevice> = Arc::new(MemDevice::new(4096, 16));
        let budget = Arc::new(Budget { most: 100, kept: AtomicUsize::new(0) });
        State::new(&device, &budget, None)
    }

    fn apply(state: &mut State, record: Record) {
        state.apply(&record, &|_| (0, 0, 0), &mut Nobody).unwrap();
    }

    fn blocks(state: &State, list: ListId) -> Vec<BlockId> {
        let mut found = Vec::new();
        let walked = state.order.tree.walk(&(list, 0), &state.order.pages, &mut |&(of, label), &block| {
            if of == list {
                assert_eq!(
                    (state.block(block).unwrap().list, state.block(block).unwrap().label),
                    (list, label)
                );
                found.push(block);
            }
            of == list
        });
        walked.unwrap();
        assert_eq!(state.list(list).unwrap().blocks, to_u64(found.len()));
        found
    }

    /// Inserts at a position. Returns how many blocks were relabelled.
    fn insert_at(state: &mut State, model: &mut Vec<BlockId>, list: ListId, position: usize) -> u64 {
        let after = position.checked_sub(1).map(|at| state.block(model[at]).unwrap().label);
        let gap = state.gap(list, after).unwrap();
        let moved = match gap.relabel {
            Some(Record::Relabel { count, .. }) => count,
            _ => 0,
        };
        gap.relabel.into_iter().for_each(|record| apply(state, record));
        let block = state.next_block;
        apply(state, Record::Insert { block, list, label: gap.label });
        model.insert(position, block);
        moved
    }

    #[test]
    fn a_list_is_in_the_order_in_which_it_was_made_wherever_blocks_are_inserted() {
        let places: [Place; 5] = [
            &|_, _| 0,
            &|_, len| len,
            &|seed, len| to_usize(seed.below(to_u64(len) + 1)),
            &|_, len| len / 2,
            &|_, len| 1.min(len),
        ];
        for (kind, place) in (0..).zip(places) {
            let (mut state, mut model, mut seed) = (state(), Vec::new(), Seed::new(kind));
            for list in [3, 5] {
                apply(&mut state, Record::NewList { list, sparse: false });
            }
            let (mut moved, mut others) = (0, Vec::new());
            for step in 0..3_000 {
                let position = place(&mut seed, model.len());
                moved += insert_at(&mut state, &mut model, 3, position);
                if step % 10 == 0 {
                    insert_at(&mut state, &mut others, 5, 0);
                }
            }
            assert!(moved < 3_000 * 40, "kind {kind}: {moved} labels were moved");
            assert!(blocks(&state, 3) == model && blocks(&state, 5) == others, "kind {kind}");
            while model.len() > 10 {
                let gone = model.swap_remove(to_usize(seed.below(to_u64(model.len()))));
                apply(&mut state, Record::Delete { block: gone });
            }
            let mut left = blocks(&state, 3);
            left.sort_unstable();
            model.sort_unstable();
            assert_eq!(left, model);
            apply(&mut state, Record::DeleteList { list: 3 });
            assert!(state.lists.get(&3).unwrap().is_none() && blocks(&state, 5) == others);
            assert_eq!(state.blocks.tree.len(), to_u64(others.len()));
        }
    }

    #[test]
    fn what_cannot_be_is_damage() {
        let mut state = state();
        apply(&mut state, Record::NewList { list: 1, sparse: true });
        apply(&mut state, Record::Insert { block: 1, list: 1, label: 7 });
        let mut refused = |record: Record| {
            let done = state.apply(&record, &|_| (0, 0, 0), &mut Nobody);
            assert!(matches!(done, Err(Error::Corrupt(_))), "{record:?}");
        };
        refused(Record::NewList { list: 1, sparse: false });
        refused(Record::Insert { block: 2, list: 2, label: 1 });
        refused(Record::Insert { block: 3, list: 1, label: 7 });
        refused(Record::Delete { block: 9 });
        refused(Record::DeleteList { list: 9 });
        refused(Record::Write { block: 9, data: 0 });
        refused(Record::Relabel { list: 1, from: 7, count: 5, label: 1, step: 1 });
    }
}
