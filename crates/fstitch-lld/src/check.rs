//! Checking a disk: every page, every map against the others, every count, and every block's contents.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockKind, BlockNo, BlockRead, CheckReport, FindingClass, Result};
use rustc_hash::FxHashMap;

use crate::pack::unpack;
use crate::pages::PageCache;
use crate::record::{BlockId, ListId};
use crate::segments::Run;
use crate::state::{BlockEntry, State, Table};
use crate::stream::Stream;
use crate::tree::{Fixed, Place};

/// Contents that are read at a time.
const BATCH: usize = 256;

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Blocks looked at.
    pub blocks: u64,
    /// Blocks there are.
    pub all: u64,
}

/// What the parts of a check share.
struct Check<'a> {
    stream: &'a Stream,
    report: CheckReport,
    /// Blocks of the device that are in use in each segment, as found.
    live: Vec<u64>,
}

/// Checks a disk that is open; with their contents, if asked for. Calls `each` every now and then.
pub(crate) fn check(stream: &Stream, contents: bool, each: &mut dyn FnMut(Progress)) -> Result<CheckReport> {
    let live = vec![0; to_usize(stream.shape.segments)];
    let mut check = Check { stream, report: CheckReport::default(), live };
    check.superblocks();
    let State { blocks, order, lists, .. } = &stream.state;
    // Where a page is damaged, nobody knows what else there is.
    let whole = [check.pages("blocks", blocks)?, check.pages("orders", order)?, check.pages("lists", lists)?];
    if whole == [true; 3] {
        check.orders()?;
        check.blocks(contents, each)?;
        check.counts();
    }
    Ok(check.report)
}

impl Check<'_> {
    fn damage(&mut self, code: &'static str, text: String) {
        self.report.push(FindingClass::Corrupt, code, text);
    }

    fn superblocks(&mut self) {
        let device = &**self.stream.device();
        let last = device.geometry().block_count - 1;
        for (at, name) in [(0, "superblock"), (last, "copy of the superblock")] {
            match crate::shape::Shape::read_at(device, at) {
                Ok(shape) if shape == self.stream.shape => {}
                Ok(_) => self.damage("superblock", format!("the {name} in block {at} is of another disk")),
                Err(error) => self.damage("superblock", format!("the {name}: {error}")),
            }
        }
    }

    /// Reads all pages of a tree. Returns whether they are whole.
    fn pages<K: Fixed + Ord, V: Fixed>(&mut self, name: &str, table: &Table<K, V>) -> Result<bool> {
        let pages: &PageCache<K, V> = &table.pages;
        let (places, damaged) = table.tree.survey(pages);
        for (Place { block, .. }, error) in &damaged {
            let segment = self.stream.shape.segment_of(*block);
            let text = format!(
                "a page of the tree of {name}, in block {block} of the device{}: {error}",
                of(segment)
            );
            self.damage("page", text);
        }
        let len = self.stream.page_units();
        // What the tree has left is counted until the next checkpoint.
        let all = places.iter().chain(table.tree.left());
        all.for_each(|place| self.uses(Run { place: place.block, len, sum: 0 }));
        Ok(damaged.is_empty())
    }

    fn uses(&mut self, run: Run) {
        match self.stream.shape.segment_of(run.place) {
            Some(segment) => self.live[to_usize(segment)] += u64::from(run.len),
            None => self.damage(
                "place",
                format!("something lies in block {} of the device, which is in no segment", run.place),
            ),
        }
    }

    /// Every block of a list is there, and each list has as many as it says.
    fn orders(&mut self) -> Result<()> {
        let stream = self.stream;
        let (mut counts, mut wrong) = (FxHashMap::<ListId, u64>::default(), Vec::new());
        let order = &stream.state.order;
        let mut failed = None;
        order.tree.walk(&(0, 0), &order.pages, &mut |&(list, label), &block| {
            *counts.entry(list).or_default() += 1;
            match stream.state.blocks.get(&block) {
                Ok(Some(entry)) if (entry.list, entry.label) == (list, label) => {}
                Ok(Some(entry)) => wrong.push((list, block, format!("is in list {} for itself", entry.list))),
                Ok(None) => wrong.push((list, block, "does not exist".to_owned())),
                Err(error) => failed = Some(error),
            }
            failed.is_none() && wrong.len() < CheckReport::MAX_FINDINGS
        })?;
        failed.map_or(Ok(()), Err)?;
        for (list, block, text) in wrong {
            self.damage("order", format!("block {block} of list {list} {text}"));
        }
        let lists = &stream.state.lists;
        let mut wrong = Vec::new();
        lists.tree.walk(&0, &lists.pages, &mut |&list, entry| {
            let found = counts.remove(&list).unwrap_or(0);
            if found != entry.blocks {
                wrong.push(format!("list {list} has {found} blocks, and says {}", entry.blocks));
            }
            true
        })?;
        wrong.into_iter().for_each(|text| self.damage("list", text));
        for (list, count) in counts {
            self.damage("list", format!("{count} blocks are in list {list}, which does not exist"));
        }
        Ok(())
    }

    /// Every block is in its list, and its contents have their sum.
    fn blocks(&mut self, contents: bool, each: &mut dyn FnMut(Progress)) -> Result<()> {
        let stream = self.stream;
        let blocks = &stream.state.blocks;
        let all = blocks.tree.len();
        let mut next = Some(0);
        let mut seen = 0;
        while let Some(from) = next {
            let mut batch: Vec<(BlockId, BlockEntry)> = Vec::with_capacity(BATCH);
            blocks.tree.walk(&from, &blocks.pages, &mut |&block, &entry| {
                batch.push((block, entry));
                batch.len() < BATCH
            })?;
            seen += to_u64(batch.len());
            next = batch.last().and_then(|(last, _)| last.checked_add(1));
            for (block, entry) in &batch {
                if stream.state.order.get(&(entry.list, entry.label))? != Some(*block) {
                    self.damage("order", format!("block {block} is not in list {}, as it says", entry.list));
                }
                if entry.place != 0 {
                    self.uses(Run { place: entry.place, len: entry.len, sum: entry.sum });
                }
            }
            if contents {
                batch.retain(|(_, entry)| entry.place != 0);
                batch.sort_unstable_by_key(|(_, entry)| entry.place);
                self.contents(&batch);
            }
            each(Progress { blocks: seen, all });
        }
        Ok(())
    }

    fn contents(&mut self, batch: &[(BlockId, BlockEntry)]) {
        let (unit, full) = (self.stream.shape.unit_bytes(), self.stream.shape.block_units());
        let mut block_bytes = vec![0; to_usize(full) * unit];
        for (block, entry) in batch {
            if self.stream.log.flying(entry.place).is_some() {
                continue;
            }
            let mut bytes = vec![0; to_usize(entry.len) * unit];
            let runs = (entry.place..).zip(bytes.chunks_mut(unit));
            let mut reads: Vec<_> = runs
                .map(|(block, data)| BlockRead { block: BlockNo(block), kind: BlockKind::Data, data })
                .collect();
            let read = self.stream.device().read(&mut reads);
            let sum = crc32c::crc32c(&bytes);
            let place = format!(
                "in block {} of the device{}",
                entry.place,
                of(self.stream.shape.segment_of(entry.place))
            );
            match read {
                Err(error) => self.damage("unreadable", format!("block {block}, {place}: {error}")),
                Ok(()) if sum != entry.sum => {
                    let text = format!(
                        "the contents of block {block} of list {}, {place}: their sum is {sum:#010x}, not {:#010x}",
                        entry.list, entry.sum
                    );
                    self.damage("contents", text);
                }
                Ok(()) if entry.len < full && !unpack(&bytes, &mut block_bytes) => {
                    let text = format!(
                        "the contents of block {block} of list {}, {place}: they are not what was compressed",
                        entry.list
                    );
                    self.damage("contents", text);
                }
                Ok(()) => {}
            }
        }
    }

    /// Segments have as much in use as they say.
    fn counts(&mut self) {
        let usage = &self.stream.segments.usage;
        let differs: Vec<String> = (0..)
            .zip(usage.iter().zip(&self.live))
            .filter(|(_, (usage, live))| u64::from(usage.live) != **live)
            .map(|(segment, (usage, live))| {
                let segment: u64 = segment;
                format!(
                    "{live} blocks of the device are in use in segment {segment}, and {} are counted",
                    usage.live
                )
            })
            .collect();
        differs.into_iter().for_each(|text| self.damage("count", text));
    }
}

fn of(segment: Option<u64>) -> String {
    segment.map_or_else(String::new, |segment| format!(" (segment {segment})"))
}
