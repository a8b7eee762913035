//! Logs made by hand, and images as short texts: one letter for each sector.

use std::collections::BTreeSet;
use std::sync::Arc;

use fstitch_core::{BlockKind, Geometry, Seed};
use fstitch_crashlab::medium::{Base, Bytes, Cut, Event, History, Level, Log, RequestNo, for_each_choice};

/// Blocks of the device.
pub const BLOCKS: u64 = 3;
/// Bytes of a block: two sectors.
pub const BLOCK: usize = 1024;

/// An image: a letter for each sector. `0` is a sector of zeros.
pub type Picture = String;

/// A device of [`BLOCKS`] blocks that holds `aA`, `bB`, `cC`.
pub fn base() -> Arc<Base> {
    let mut bytes = Vec::new();
    for letters in ["aA", "bB", "cC"] {
        bytes.extend_from_slice(&contents(letters));
    }
    Base::new(1024, bytes)
}

/// A block whose two sectors are filled with these letters.
pub fn contents(letters: &str) -> Bytes {
    letters.bytes().flat_map(|letter| [letter; BLOCK / 2]).collect::<Vec<u8>>().into()
}

/// The letters of a block.
pub fn letters(block: &[u8]) -> String {
    block.chunks(BLOCK / 2).map(|sector| if sector[0] == 0 { '0' } else { char::from(sector[0]) }).collect()
}

/// A log in the making.
pub struct Past {
    pub log: Log,
    next: u32,
}

impl Past {
    pub fn new() -> Self {
        let geometry = Geometry { block_size: 1024, block_count: BLOCKS, atomic_size: 1024 };
        Self { log: Log::new(geometry), next: 0 }
    }

    fn request(&mut self) -> RequestNo {
        self.next += 1;
        RequestNo(self.next - 1)
    }

    pub fn event(&mut self, event: Event) {
        self.log.events.push(event);
    }

    fn write_with(&mut self, block: u64, letters: &str, fua: bool) -> RequestNo {
        let request = self.request();
        let data = contents(letters);
        self.event(Event::Write { request, block, kind: BlockKind::Data, data, fua });
        request
    }

    /// Issues a write.
    pub fn write(&mut self, block: u64, letters: &str) -> RequestNo {
        self.write_with(block, letters, false)
    }

    /// Issues a write that is stable once it is acknowledged.
    pub fn write_fua(&mut self, block: u64, letters: &str) -> RequestNo {
        self.write_with(block, letters, true)
    }

    /// Issues a write, which is acknowledged at once.
    pub fn written(&mut self, block: u64, letters: &str) {
        let request = self.write(block, letters);
        self.event(Event::Ack(request));
    }

    pub fn discard(&mut self, start: u64, count: u64) -> RequestNo {
        let request = self.request();
        self.event(Event::Discard { request, start, count });
        request
    }

    pub fn ack(&mut self, request: RequestNo) {
        self.event(Event::Ack(request));
    }

    pub fn flush(&mut self) -> RequestNo {
        let request = self.request();
        self.event(Event::FlushIssued(request));
        request
    }

    pub fn flush_acked(&mut self, request: RequestNo) {
        self.event(Event::FlushAcked(request));
    }

    /// Issues a flush, which is acknowledged at once.
    pub fn flushed(&mut self) {
        let request = self.flush();
        self.flush_acked(request);
    }

    /// The images that a cut after the last event can leave.
    pub fn images(&self, level: Level) -> BTreeSet<Picture> {
        images_after(&self.log, self.log.events.len(), level)
    }

    /// What block 0 may hold.
    pub fn first_block(&self, level: Level) -> String {
        let blocks: BTreeSet<String> = self.images(level).iter().map(|image| image[..2].to_owned()).collect();
        blocks.into_iter().collect::<Vec<_>>().join(" ")
    }
}

/// The images that a cut after `at` events can leave.
pub fn images_after(log: &Log, at: usize, level: Level) -> BTreeSet<Picture> {
    let mut history = History::new(base(), level);
    log.events[..at].iter().for_each(|event| history.apply(event));
    images_of(&history.cut())
}

/// The images of a cut; each choice must give another one, unless only prefixes are possible.
pub fn images_of(cut: &Cut) -> BTreeSet<Picture> {
    let mut images = BTreeSet::new();
    let coverage = for_each_choice(cut, u64::MAX, &mut Seed::new(0), &mut |choice| {
        images.insert(picture(cut, choice));
        true
    });
    assert_eq!(u128::from(coverage.visited), coverage.possible, "all of it is visited");
    if !cut.prefixes_only {
        assert_eq!(u64::try_from(images.len()).unwrap(), coverage.visited, "choices are distinct images");
    }
    images
}

/// One image.
pub fn picture(cut: &Cut, choice: &[u8]) -> Picture {
    let blocks = cut.blocks(choice);
    (0..BLOCKS)
        .map(|block| match blocks.get(&block) {
            Some(data) => letters(data),
            None => letters(cut.base.block(block)),
        })
        .collect()
}
