//! The committed stream: the state, the log that says how it came about, and checkpoints that make the log short.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fstitch_core::{BlockDevice, Errno, Error, Result};
use rustc_hash::FxHashSet;

use crate::cleaner::Cold;
use crate::log::{Contents, Laid, Log, PageRun};
use crate::pages::{Budget, PAGE, PageCache};
use crate::record::{BlockId, ListId, Record};
use crate::segments::{Own, Run, Segments, Usage};
use crate::shape::{Checkpoint, Position, Shape};
use crate::shared::Told;
use crate::space::space_of;
use crate::state::{BlockEntry, Room, State, Table, damaged};
use crate::tree::{Fixed, Node, Place, Sink, Tree};
use crate::unit::Units;

/// No record takes more bytes.
pub(crate) const RECORD_MAX: usize = 64;

/// Bytes of pages in the queue with which a checkpoint writes them.
const QUEUED_PAGES: u64 = 2 << 20;

/// The committed stream of a disk.
pub(crate) struct Stream {
    device: Arc<dyn BlockDevice>,
    pub(crate) shape: Shape,
    pub(crate) state: State,
    /// The segments as the newest checkpoint has them.
    pub(crate) usage: Table<u64, Usage>,
    /// Blocks of the device that pages of that tree take, by segment: they are in nobody's count, their own least of all.
    pub(crate) own: Own,
    /// Pages of the other trees that are on the medium.
    pub(crate) pages: u64,
    pub(crate) segments: Segments,
    pub(crate) log: Log,
    checkpoint: Checkpoint,
    /// Chunks from which on a checkpoint is due.
    pub(crate) due: u64,
    interval: u64,
    pub(crate) budget: Arc<Budget>,
    /// What the thread in the background is told.
    pub(crate) told: Told,
    /// Why nothing is written any more.
    pub(crate) poison: Option<Error>,
    /// Where the cleaner goes on writing.
    pub(crate) cold: Option<Cold>,
    /// Where units spill to.
    pub(crate) spill_to: Option<Cold>,
    /// Blocks of the device that units have spilled, by segment.
    pub(crate) spilled: Own,
    /// Bytes of maps and of units that may be in memory.
    pub(crate) cache_size: usize,
    /// Blocks of the device that what is alive may take.
    pub(crate) space: u64,
    /// Segments that the cleaner leaves as they are.
    pub(crate) unreadable: FxHashSet<u64>,
    /// The units that have not ended.
    pub(crate) units: Units,
    /// The one that is ending: what is noted is its own, and no checkpoint is made.
    pub(crate) ending: Option<u64>,
}

/// Where pages are counted.
enum Count<'a> {
    /// With all that is in use, and how many they are.
    Pages(&'a mut u64),
    /// Those of the tree of segments.
    Own(&'a mut Own),
}

impl Count<'_> {
    fn used(&mut self, place: u64, units: u32, shape: &Shape, segments: &mut Segments) {
        match self {
            Self::Pages(pages) => {
                **pages += 1;
                segments.used(place, units);
            }
            Self::Own(own) => own.used(shape.segment_of(place).expect("pages are in segments"), units),
        }
    }

    fn left(&mut self, place: u64, units: u32, shape: &Shape, segments: &mut Segments) {
        match self {
            Self::Pages(pages) => {
                **pages -= 1;
                segments.left(place, units);
            }
            Self::Own(own) => own.left(shape.segment_of(place).expect("pages are in segments"), units),
        }
    }
}

/// Writes the pages of a tree.
struct Saver<'a, 'b, K, V> {
    log: &'a mut Log,
    segments: &'a mut Segments,
    run: &'a mut PageRun,
    pages: &'a PageCache<K, V>,
    count: &'a mut Count<'b>,
    shape: Shape,
}

impl<K: Fixed + Ord, V: Fixed> Sink<K, V> for Saver<'_, '_, K, V> {
    fn page_size(&self) -> usize {
        PAGE
    }

    fn write(&mut self, page: &[u8]) -> Result<u64> {
        let tree = self.pages.tree();
        let (place, len) = loop {
            if let Some(added) = self.run.add(tree, page) {
                break added;
            }
            self.log.end_pages(self.run, self.segments)?;
            // A checkpoint may have more pages than should be in memory once more.
            if self.log.queued_bytes() >= QUEUED_PAGES {
                self.log.write_queue()?;
            }
            *self.run = self.log.begin_pages(self.segments)?;
        };
        self.count.used(place, len, &self.shape, self.segments);
        Ok(place)
    }

    fn keep(&mut self, place: Place, node: Node<K, V>) {
        self.pages.keep(place, Arc::new(node));
    }
}

/// Where contents are.
pub(crate) enum Found {
    /// Nobody has written them.
    Zeros,
    Memory(Contents),
    /// On the medium, as long as no segment is begun.
    Medium(Run, u64),
}

/// How a disk is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeping {
    /// Bytes of pages that may be in memory.
    pub(crate) cache_size: usize,
    /// Bytes of log after which a checkpoint is made.
    pub(crate) checkpoint_bytes: u64,
}

impl Stream {
    /// Makes an empty disk.
    pub(crate) fn format(device: Arc<dyn BlockDevice>, shape: Shape, keeping: Keeping) -> Result<()> {
        shape.begin(&*device)?;
        let position = Position { number: 1, link: 0, segment: 0, offset: 0, next_segment: 1 };
        let nowhere = (Place { block: 0, sum: 0 }, 0);
        let checkpoint = Checkpoint {
            number: 0,
            epoch: 1,
            position,
            roots: [nowhere; 4],
            pages: 0,
            next_block: 1,
            next_list: 1,
        };
        let mut stream = Self::at(Arc::clone(&device), shape, keeping, checkpoint, false)?;
        stream.segments.find_free(u64::MAX, &[0, 1]);
        stream.save()?;
        shape.finish(&*device)
    }

    /// The stream as a checkpoint has it.
    fn at(
        device: Arc<dyn BlockDevice>,
        shape: Shape,
        keeping: Keeping,
        checkpoint: Checkpoint,
        is_saved: bool,
    ) -> Result<Self> {
        let most = (keeping.cache_size / PAGE).max(64);
        let budget = Arc::new(Budget { most, kept: AtomicUsize::new(0) });
        let [blocks, order, lists, usage] = checkpoint.roots;
        let mut state = State::new(&device, &budget, is_saved.then_some([blocks, order, lists]));
        (state.next_block, state.next_list) = (checkpoint.next_block, checkpoint.next_list);
        let log = Log::new(Arc::clone(&device), shape, checkpoint.epoch, checkpoint.position);
        let segment_bytes = u64::from(shape.segment_units) * u64::from(shape.unit);
        let interval = (keeping.checkpoint_bytes / segment_bytes).clamp(1, (shape.segments / 8).max(1));
        let usage = Table::new(&device, 4, &budget, is_saved.then_some(usage));
        let segments = Segments::new(shape);
        let own = Own::default();
        Ok(Self {
            device,
            shape,
            state,
            usage,
            own,
            pages: checkpoint.pages,
            segments,
            log,
            checkpoint,
            due: interval,
            interval,
            budget,
            told: Told::default(),
            poison: None,
            cold: None,
            spill_to: None,
            spilled: Own::default(),
            cache_size: keeping.cache_size,
            space: space_of(&shape),
            unreadable: FxHashSet::default(),
            units: Units::default(),
            ending: None,
        })
    }

    /// Where the contents of a block are in the committed state.
    pub(crate) fn find(&self, block: BlockId, entry: &BlockEntry) -> Found {
        let memory = self.log.contents(block).or_else(|| self.log.flying(entry.place));
        match memory {
            Some(contents) => Found::Memory(contents),
            None if entry.place == 0 => Found::Zeros,
            None => self.on_medium(Run { place: entry.place, len: entry.len, sum: entry.sum }),
        }
    }

    /// Contents that are on the medium now.
    pub(crate) fn on_medium(&self, run: Run) -> Found {
        Found::Medium(run, self.log.begun().load(Ordering::SeqCst))
    }

    /// Blocks of the device that new contents of a block take more than its old ones.
    pub(crate) fn net_units(&self, block: BlockId, entry: &BlockEntry) -> u64 {
        let full = self.shape.block_units();
        let has = if self.log.contents(block).is_some() { full } else { entry.len };
        full.saturating_sub(has).into()
    }

    /// Fails once nothing is written any more.
    pub(crate) fn check_poison(&self) -> Result<()> {
        self.poison.clone().map_or(Ok(()), Err)
    }

    /// Remembers a failure after which nobody knows what is on the medium.
    pub(crate) fn noted<T>(&mut self, done: Result<T>) -> Result<T> {
        if let Err(error) = &done
            && error.errno() != Errno::NOSPC
        {
            self.poison.get_or_insert(Error::Poisoned(error.to_string().into()));
        }
        done
    }

    /// Does what a record says, and notes it. There must be room.
    pub(crate) fn perform(&mut self, record: &Record) -> Result<()> {
        if let Record::Delete { block } | Record::Found { block, .. } = record {
            self.log.drop_contents(*block);
        }
        self.units.before(record, &self.state, self.ending)?;
        let done = self.state.apply(record, &|_| (0, 0, 0), &mut self.segments);
        self.noted(done)?;
        if let Record::Found { place, .. } = record {
            self.segments.referred(*place, self.log.position().number);
        }
        self.log.note(record);
        Ok(())
    }

    /// Forgets what the open chunk has of a list's blocks.
    pub(crate) fn forget_contents_of(&mut self, list: ListId) -> Result<()> {
        for block in self.log.blocks() {
            if self.state.blocks.get(&block)?.is_some_and(|entry| entry.list == list) {
                self.log.drop_contents(block);
            }
        }
        Ok(())
    }

    /// Notes new contents of a block, with their sum. There must be room. With `is_whole` nothing of the operation or unit is in another chunk.
    pub(crate) fn perform_write(&mut self, block: BlockId, contents: (Contents, u32), is_whole: bool) {
        self.log.note_write(block, contents, is_whole);
    }

    /// Ends the open chunk, so that it can be written.
    pub(crate) fn close(&mut self) -> Result<()> {
        let laid = self.log.seal(&mut self.segments);
        for Laid { block, place, len, sum } in laid {
            let done = self.state.set_place(block, (place, len, sum), &mut self.segments);
            self.noted(done)?;
        }
        Ok(())
    }

    /// Makes everything stable that was noted.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.check_poison()?;
        self.close()?;
        let done = self.log.flush();
        self.noted(done)
    }

    /// Makes a checkpoint: from now on recovery begins here, and what was only needed before is free.
    ///
    /// # Errors
    /// `ENOSPC` if the pages have no room: then the older checkpoint holds. Those of the device.
    pub(crate) fn save(&mut self) -> Result<()> {
        self.check_poison()?;
        self.close()?;
        let done = self.save_all();
        self.noted(done)
    }

    fn save_all(&mut self) -> Result<()> {
        let shape = self.shape;
        let Self { state, usage, own, pages, segments, log, .. } = self;
        let mut run = log.begin_pages(segments)?;
        let blocks = save_tree(&mut state.blocks, log, segments, &mut run, Count::Pages(pages), shape)?;
        let order = save_tree(&mut state.order, log, segments, &mut run, Count::Pages(pages), shape)?;
        let lists = save_tree(&mut state.lists, log, segments, &mut run, Count::Pages(pages), shape)?;
        for segment in std::mem::take(&mut segments.changed) {
            usage.insert(segment, segments.usage[fstitch_core::num::to_usize(segment)])?;
        }
        let root = save_tree(usage, log, segments, &mut run, Count::Own(own), shape)?;
        log.end_pages(&run, segments)?;
        log.flush()?;
        let checkpoint = Checkpoint {
            number: self.checkpoint.number + 1,
            epoch: log.epoch(),
            position: log.position(),
            roots: [blocks, order, lists, root],
            pages: *pages,
            next_block: state.next_block,
            next_list: state.next_list,
        };
        checkpoint.write(&*self.device, &shape)?;
        // A checkpoint is flushed by itself.
        log.counters.checkpoints += 1;
        log.counters.flushes += 1;
        self.checkpoint = checkpoint;
        self.due = self.interval;
        self.find_free();
        Ok(())
    }

    /// Finds the segments that are free since the newest checkpoint.
    fn find_free(&mut self) {
        let taken = self.taken();
        self.segments.find_free(self.checkpoint.position.number, &taken);
        let (own, spilled) = (&self.own, &self.spilled);
        self.segments.free.retain(|segment| own.of(*segment) == 0 && spilled.of(*segment) == 0);
    }

    /// The first of the segments that are free, in the order in which they are taken.
    pub(crate) fn free_ahead(&mut self, most: usize) -> Vec<u64> {
        self.find_free();
        self.segments.free.iter().rev().take(most).copied().collect()
    }

    /// The segments that are being written.
    pub(crate) fn taken(&self) -> Vec<u64> {
        let position = self.log.position();
        let beside = [self.cold, self.spill_to].into_iter().flatten().map(|open| open.segment);
        [position.segment, position.next_segment].into_iter().chain(beside).collect()
    }

    /// Opens a disk: the newest checkpoint, and what the log says after it. `recover` does that.
    pub(crate) fn open(device: Arc<dyn BlockDevice>, shape: Shape, keeping: Keeping) -> Result<Self> {
        let checkpoint = Checkpoint::newest(&*device, &shape)?;
        let mut stream = Self::at(device, shape, keeping, checkpoint, true)?;
        let Self { usage, segments, own, .. } = &mut stream;
        let mut wrong = None;
        usage.tree.walk(&0, &usage.pages, &mut |&segment, &entry| {
            match usize::try_from(segment).ok().and_then(|at| segments.usage.get_mut(at)) {
                Some(place) => {
                    *place = entry;
                    segments.live += u64::from(entry.live);
                }
                None => wrong = Some(segment),
            }
            wrong.is_none()
        })?;
        if let Some(segment) = wrong {
            return Err(damaged(format!("there is no segment {segment}")));
        }
        let page_units = u32::try_from(PAGE / shape.unit_bytes()).expect("a page has a few blocks");
        for place in usage.tree.places(&usage.pages)? {
            let segment = shape.segment_of(place.block);
            let segment = segment.ok_or_else(|| damaged(format!("a page lies in block {}", place.block)))?;
            own.used(segment, page_units);
        }
        Ok(stream)
    }

    /// The log goes on there, in a new epoch.
    pub(crate) fn go_on_at(&mut self, position: Position, epoch: u32) {
        self.log = Log::new(Arc::clone(&self.device), self.shape, epoch, position);
        self.find_free();
    }

    /// The newest checkpoint.
    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    pub(crate) fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}

/// Saves a tree, and gives back the places that it has left.
fn save_tree<K: Fixed + Ord, V: Fixed>(
    table: &mut Table<K, V>,
    log: &mut Log,
    segments: &mut Segments,
    run: &mut PageRun,
    mut count: Count<'_>,
    shape: Shape,
) -> Result<(Place, u64)> {
    let Table { tree, pages } = table;
    let units = u32::try_from(PAGE / shape.unit_bytes()).expect("a page has a few blocks");
    for left in tree.take_left() {
        pages.forget(left);
        count.left(left.block, units, &shape, segments);
    }
    let name = pages.tree();
    let mut saver = Saver { log, segments, run, pages, count: &mut count, shape };
    let place = tree.save(name, &mut saver)?;
    Ok((place, Tree::len(tree)))
}
