//! Reading logs of dm-log-writes: whole ones into memory, or entry by entry, however long they are.
//!
//! **Invariant.** No more memory is taken than the bytes that are really there, whatever the numbers in the log say; an
//! entry is at most as long as the device.

use std::collections::BTreeMap;
use std::io::Read;

use fstitch_core::{BlockKind, Geometry, Le};

use super::dmlog::{
    DISCARD, DmLogError, FIRST_FOREIGN, FLUSH, FUA, Imported, MAGIC, MARK, MAX_SECTOR, METADATA, SECTOR,
    TEXT, VERSION, as_u64,
};
use super::image::{Bytes, size};
use super::log::{Event, Log, Mark, RequestNo};
use super::origin::Origin;

/// Reads a log of a device of this shape.
///
/// # Errors
/// [`DmLogError`] says what is wrong and where.
pub fn import(bytes: &[u8], geometry: Geometry) -> Result<Imported, DmLogError> {
    let mut reader = DmLogReader::new(bytes, geometry)?;
    while reader.advance()? {}
    Ok(reader.imported)
}

/// Reads a log entry by entry.
pub struct DmLogReader<R> {
    from: R,
    sector: usize,
    entries: u64,
    entry: u64,
    requests: u32,
    /// What was read and not yet handed out.
    imported: Imported,
    origin: Option<Origin>,
}

impl<R: Read> DmLogReader<R> {
    /// Reads the beginning of a log of a device of this shape.
    ///
    /// # Errors
    /// When it is no such log.
    pub fn new(from: R, geometry: Geometry) -> Result<Self, DmLogError> {
        let imported = Imported { log: Log::new(geometry), names: BTreeMap::new() };
        let mut reader =
            Self { from, sector: SECTOR, entries: 0, entry: 0, requests: 0, imported, origin: None };
        let head = reader.take(as_u64(SECTOR))?;
        if Le::u64(&head, 0) != MAGIC {
            return Err(DmLogError::Magic(Le::u64(&head, 0)));
        }
        if Le::u64(&head, 8) != VERSION {
            return Err(DmLogError::Version(Le::u64(&head, 8)));
        }
        let sector_size = Le::u32(&head, 24);
        reader.sector = size(sector_size);
        if !reader.sector.is_power_of_two() || !(SECTOR..=MAX_SECTOR).contains(&reader.sector) {
            return Err(DmLogError::SectorSize(sector_size));
        }
        reader.entries = Le::u64(&head, 16);
        if reader.entries > 0 {
            reader.take(as_u64(reader.sector - SECTOR))?;
        }
        Ok(reader)
    }

    /// What the next entry says happened; `None` after the last one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn next_entry(&mut self) -> Result<Option<Vec<Event>>, DmLogError> {
        let more = self.advance()?;
        Ok(more.then(|| std::mem::take(&mut self.imported.log.events)))
    }

    /// The image that the log was recorded on, once the entry that names it was read.
    pub fn origin(&self) -> Option<Origin> {
        self.origin
    }

    /// Entries that the log should have.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    fn advance(&mut self) -> Result<bool, DmLogError> {
        let more = self.entry < self.entries;
        if more {
            self.entry()?;
            self.entry += 1;
        }
        Ok(more)
    }

    /// As many bytes as there should be, or an error if there are fewer.
    fn take(&mut self, len: u64) -> Result<Vec<u8>, DmLogError> {
        let mut taken = Vec::new();
        let read = self.from.by_ref().take(len).read_to_end(&mut taken);
        read.map_err(|error| DmLogError::Io(error.to_string()))?;
        if as_u64(taken.len()) < len {
            return Err(DmLogError::Truncated { entry: self.entry, entries: self.entries });
        }
        Ok(taken)
    }

    fn entry(&mut self) -> Result<(), DmLogError> {
        let head = self.take(as_u64(self.sector))?;
        let [sector, count, flags, len] = [0, 8, 16, 24].map(|at| Le::u64(&head, at));
        if flags & MARK != 0 {
            return self.mark(&head, len);
        }
        if flags & FLUSH != 0 {
            // Of a write that asks for a flush, the flush comes first.
            let request = self.request()?;
            self.imported.log.events.extend([Event::FlushIssued(request), Event::FlushAcked(request)]);
        }
        let (start, bytes) = self.place(sector, count)?;
        if flags & DISCARD != 0 {
            return self.discard(start, bytes);
        }
        let data = self.take(bytes)?;
        self.write(start, &data, flags)
    }

    /// The bytes that an entry concerns: where they begin and how many they are.
    fn place(&self, sector: u64, count: u64) -> Result<(u64, u64), DmLogError> {
        let unit = as_u64(self.sector);
        let end = sector.checked_add(count).and_then(|end| end.checked_mul(unit));
        let outside = DmLogError::Outside { entry: self.entry, sector, count };
        match end {
            Some(end) if end <= self.imported.log.geometry.bytes() => Ok((sector * unit, count * unit)),
            _ if count == 0 => Ok((0, 0)),
            _ => Err(outside),
        }
    }

    /// Whole blocks; what is left over at the ends keeps its contents, as a device may.
    fn discard(&mut self, start: u64, bytes: u64) -> Result<(), DmLogError> {
        let unit = u64::from(self.imported.log.geometry.block_size);
        let (first, end) = (start.div_ceil(unit), (start + bytes) / unit);
        if first < end {
            let request = self.request()?;
            let event = Event::Discard { request, start: first, count: end - first };
            self.imported.log.events.extend([event, Event::Ack(request)]);
        }
        Ok(())
    }

    fn write(&mut self, start: u64, data: &[u8], flags: u64) -> Result<(), DmLogError> {
        let block_size = self.imported.log.geometry.block_size;
        let unit = size(block_size);
        if !start.is_multiple_of(u64::from(block_size)) || !data.len().is_multiple_of(unit) {
            return Err(DmLogError::Unaligned { entry: self.entry, block_size });
        }
        let kind = if flags & METADATA == 0 { BlockKind::Data } else { BlockKind::Inode };
        let first = start / u64::from(block_size);
        let mut acks = Vec::new();
        for (block, piece) in (first..).zip(data.chunks(unit)) {
            let request = self.request()?;
            let data: Bytes = piece.into();
            let write = Event::Write { request, block, kind, data, fua: flags & FUA != 0 };
            self.imported.log.events.push(write);
            acks.push(Event::Ack(request));
        }
        self.imported.log.events.extend(acks);
        Ok(())
    }

    fn mark(&mut self, head: &[u8], len: u64) -> Result<(), DmLogError> {
        let long = DmLogError::LongMark { entry: self.entry, len };
        let end = usize::try_from(len).ok().and_then(|len| len.checked_add(TEXT));
        let text = end.and_then(|end| head.get(TEXT..end)).ok_or(long)?;
        let text = String::from_utf8_lossy(text);
        let text = text.trim_end_matches('\0');
        self.origin = self.origin.or_else(|| text.parse().ok());
        let mark = own_mark(text).unwrap_or_else(|| {
            let no = FIRST_FOREIGN + as_u64(self.imported.names.len());
            self.imported.names.insert(no, text.to_owned());
            Mark::Note(no)
        });
        self.imported.log.events.push(Event::Mark(mark));
        Ok(())
    }

    fn request(&mut self) -> Result<RequestNo, DmLogError> {
        let request = RequestNo(self.requests);
        self.requests = self.requests.checked_add(1).ok_or(DmLogError::TooMany)?;
        Ok(request)
    }
}

/// One of our marks, exactly as we write it.
fn own_mark(text: &str) -> Option<Mark> {
    let (what, number) = text.strip_prefix("fstitch ")?.split_once(' ')?;
    let no: u64 = number.parse().ok()?;
    let small = || u32::try_from(no).ok();
    let mark = match what {
        "begin" => Mark::Begin(small()?),
        "end" => Mark::End(small()?),
        "promise" => Mark::Promise(small()?),
        "note" if no < FIRST_FOREIGN => Mark::Note(no),
        _ => return None,
    };
    (no.to_string() == number).then_some(mark)
}
