//! Pages of trees: read from the medium, and kept as long as there is room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::lock::Mutex;
use fstitch_core::order::rank;
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Result};
use rustc_hash::FxHashMap;

use crate::tree::{Fixed, Node, Pages, Place};

/// Bytes of a page, whatever the blocks of the device and of the disk are.
pub(crate) const PAGE: usize = 4096;
/// Places in the line that may have gone without anybody looking.
const LINE_MIN: usize = 1024;
/// How many pages are read at once.
const TOGETHER: usize = 512;

/// What all trees of a disk may keep, in pages.
#[derive(Debug)]
pub(crate) struct Budget {
    pub(crate) most: usize,
    pub(crate) kept: AtomicUsize,
}

/// A page, and whether it was used since it was looked at last.
type Kept<K, V> = (Arc<Node<K, V>>, bool);

struct Shelf<K, V> {
    kept: FxHashMap<Place, Kept<K, V>>,
    /// In the order in which they came; some have gone.
    line: std::collections::VecDeque<Place>,
}

impl<K, V> Shelf<K, V> {
    /// Those that have gone leave the line when they are the most of it.
    fn tidy(&mut self) {
        if self.line.len() > 2 * self.kept.len() + LINE_MIN {
            let kept = &self.kept;
            self.line.retain(|place| kept.contains_key(place));
        }
    }
}

/// The pages of one tree.
pub(crate) struct PageCache<K, V> {
    device: Arc<dyn BlockDevice>,
    tree: u8,
    budget: Arc<Budget>,
    shelf: Mutex<Shelf<K, V>, rank::Leaf>,
}

impl<K: Fixed + Ord, V: Fixed> PageCache<K, V> {
    pub(crate) fn new(device: Arc<dyn BlockDevice>, tree: u8, budget: Arc<Budget>) -> Self {
        let shelf = Shelf { kept: FxHashMap::default(), line: std::collections::VecDeque::new() };
        Self { device, tree, budget, shelf: Mutex::new(shelf) }
    }

    /// What the tree is called on the medium.
    pub(crate) fn tree(&self) -> u8 {
        self.tree
    }

    /// Keeps a page that has just been written.
    pub(crate) fn keep(&self, place: Place, node: Arc<Node<K, V>>) {
        let mut shelf = self.shelf.lock();
        if shelf.kept.insert(place, (node, false)).is_none() {
            shelf.line.push_back(place);
            shelf.tidy();
            self.budget.kept.fetch_add(1, Ordering::Relaxed);
        }
        // Those used since they were looked at last stay for another round.
        let mut patience = 2 * shelf.line.len();
        while self.budget.kept.load(Ordering::Relaxed) > self.budget.most && patience > 0 {
            patience -= 1;
            let Some(oldest) = shelf.line.pop_front() else { break };
            let is_used = shelf.kept.get_mut(&oldest).map(|(_, used)| std::mem::take(used));
            match is_used {
                Some(true) => shelf.line.push_back(oldest),
                Some(false) => {
                    shelf.kept.remove(&oldest);
                    self.budget.kept.fetch_sub(1, Ordering::Relaxed);
                }
                None => {}
            }
        }
    }

    fn read(&self, place: Place) -> Result<Node<K, V>> {
        let mut page = vec![0; PAGE];
        read_run(&*self.device, place.block, BlockKind::Indirect, &mut page)?;
        Node::decode(self.tree, &page, place)
    }

    /// The first key of a page that need not be part of the tree any more; `None` if it has none.
    ///
    /// # Errors
    /// Those of the device, and if it is no page.
    pub(crate) fn first_key(&self, place: Place) -> Result<Option<K>> {
        Ok(self.read(place)?.first())
    }

    /// The page is no part of the tree any more.
    pub(crate) fn forget(&self, place: Place) {
        if self.shelf.lock().kept.remove(&place).is_some() {
            self.budget.kept.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<K: Fixed + Ord, V: Fixed> Pages<K, V> for PageCache<K, V> {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn load(&self, place: Place) -> Result<Arc<Node<K, V>>> {
        if let Some((node, used)) = self.shelf.lock().kept.get_mut(&place) {
            *used = true;
            return Ok(Arc::clone(node));
        }
        let node = Arc::new(self.read(place)?);
        self.keep(place, Arc::clone(&node));
        Ok(node)
    }

    /// A page in memory that is changed is not kept as it was, too.
    fn take(&self, place: Place) -> Result<Node<K, V>> {
        let kept = self.shelf.lock().kept.remove(&place);
        match kept {
            Some((node, _)) => {
                self.budget.kept.fetch_sub(1, Ordering::Relaxed);
                Ok(Arc::try_unwrap(node).unwrap_or_else(|node| node.copied()))
            }
            None => self.read(place),
        }
    }

    fn load_all(&self, places: &[Place]) -> Result<Vec<Arc<Node<K, V>>>> {
        let missing: Vec<Place> = {
            let shelf = self.shelf.lock();
            places.iter().filter(|place| !shelf.kept.contains_key(place)).copied().collect()
        };
        let size = fstitch_core::num::to_usize(self.device.geometry().block_size);
        let mut loaded = FxHashMap::default();
        for missing in missing.chunks(TOGETHER) {
            let mut bytes = vec![0; missing.len() * PAGE];
            let mut reads = Vec::with_capacity(bytes.len() / size);
            for (page, place) in bytes.chunks_mut(PAGE).zip(missing) {
                for (block, data) in (place.block..).zip(page.chunks_mut(size)) {
                    reads.push(BlockRead { block: BlockNo(block), kind: BlockKind::Indirect, data });
                }
            }
            self.device.read(&mut reads)?;
            for (page, place) in bytes.chunks(PAGE).zip(missing) {
                let node = Arc::new(Node::decode(self.tree, page, *place)?);
                self.keep(*place, Arc::clone(&node));
                loaded.insert(*place, node);
            }
        }
        places.iter().map(|place| loaded.remove(place).map_or_else(|| self.load(*place), Ok)).collect()
    }
}

/// Reads blocks that lie one behind the other.
pub(crate) fn read_run(
    device: &dyn BlockDevice,
    first: u64,
    kind: BlockKind,
    bytes: &mut [u8],
) -> Result<()> {
    let size = fstitch_core::num::to_usize(device.geometry().block_size);
    let runs = (first..).zip(bytes.chunks_mut(size));
    let mut reads: Vec<BlockRead<'_>> =
        runs.map(|(block, data)| BlockRead { block: BlockNo(block), kind, data }).collect();
    device.read(&mut reads)
}
