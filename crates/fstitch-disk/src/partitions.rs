//! Partition tables: where the volumes of a whole disk start.
//!
//! **Layout.** MBR: four entries of 16 bytes from byte 446 of the first sector; an entry of an extended type starts a chain
//! of sectors of the same form, whose first entry is a logical partition and whose second is the next link. GPT: a header in
//! the second sector and an array of entries, both with a CRC-32. Source: the UEFI specification, chapter 5. BSD disklabels, inside
//! an MBR's slices and on disks without a table: `label`.
//!
//! Tables are untrusted: links go forward only, lengths are bounded, checksums are checked.

mod label;

use std::path::Path;

use fstitch_core::{BlockNo, Error, Le, Result, Structure};

use crate::probe;

/// Bytes in a sector of an MBR.
const SECTOR: u64 = 512;
/// Sector sizes with which a GPT may have been written.
const GPT_SECTORS: [u64; 2] = [512, 4096];
/// The most logical partitions that are followed.
const LOGICAL_MAX: u32 = 128;
/// The largest array of GPT entries that is read, in bytes.
const ENTRIES_MAX: u64 = 1 << 20;
/// Types of extended partitions.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];
/// The type of an MBR's entry that stands for a whole GPT.
const PROTECTIVE: u8 = 0xee;

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Its number, as kernels name it: from 1, logical ones of an MBR from 5, those of disklabels behind all these.
    pub number: u32,
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes.
    pub len: u64,
    /// Its name, in a GPT; its letter, in a disklabel.
    pub name: String,
}

/// The partitions of the disk in `path`, in the order of their numbers; `None` if it has no table.
///
/// # Errors
/// [`Error::Io`]; [`Error::Corrupt`] for a table that contradicts itself.
pub fn partitions(path: &Path) -> Result<Option<Vec<TableEntry>>> {
    let read = |offset: u64, len: u64| probe(path, offset, usize::try_from(len).expect("bounded"));
    read_table(&read)
}

/// Reads `len` bytes from `offset` on, fewer at the end.
type Read<'a> = dyn Fn(u64, u64) -> Result<Vec<u8>> + 'a;

fn read_table(read: &Read<'_>) -> Result<Option<Vec<TableEntry>>> {
    let first = read(0, SECTOR)?;
    if first.len() < 512 || first[510..512] != [0x55, 0xaa] {
        let found = label::partitions(&read(SECTOR, SECTOR)?, (0, u64::MAX), 1);
        return Ok((!found.is_empty()).then_some(found));
    }
    let records: Vec<Record> = (0..4).map(|at| Record::parse(&first, at)).collect();
    if records.iter().any(|record| record.kind == PROTECTIVE) {
        return gpt(read).map(Some);
    }
    let mut entries = Vec::new();
    for (number, record) in (1..).zip(&records) {
        if EXTENDED.contains(&record.kind) {
            logical(read, u64::from(record.start), &mut entries)?;
        } else if record.is_used() {
            entries.push(record.entry(number, 0));
        }
    }
    entries.sort_by_key(|entry| entry.number);
    let mut next = entries.last().map_or(5, |last| last.number + 1).max(5);
    for record in records.iter().filter(|record| record.is_used() && label::SLICES.contains(&record.kind)) {
        let slice = record.entry(0, 0);
        let found = label::partitions(&read(slice.start + SECTOR, SECTOR)?, (slice.start, slice.len), next);
        next = found.last().map_or(next, |last| last.number + 1);
        entries.extend(found);
    }
    // A boot sector of a file system carries the same signature and no partitions.
    Ok((!entries.is_empty()).then_some(entries))
}

/// One entry of an MBR, in sectors.
struct Record {
    kind: u8,
    start: u32,
    count: u32,
}

impl Record {
    fn parse(sector: &[u8], at: usize) -> Self {
        let at = 446 + 16 * at;
        Self { kind: sector[at + 4], start: Le::u32(sector, at + 8), count: Le::u32(sector, at + 12) }
    }

    fn is_used(&self) -> bool {
        self.kind != 0 && self.count > 0 && self.start > 0
    }

    fn entry(&self, number: u32, base: u64) -> TableEntry {
        let start = (base + u64::from(self.start)) * SECTOR;
        TableEntry { number, start, len: u64::from(self.count) * SECTOR, name: String::new() }
    }
}

/// Follows the chain of logical partitions that starts at sector `extended`.
fn logical(read: &Read<'_>, extended: u64, entries: &mut Vec<TableEntry>) -> Result<()> {
    let mut at = extended;
    for number in 5..5 + LOGICAL_MAX {
        let sector = read(at * SECTOR, SECTOR)?;
        if sector.len() < 512 || sector[510..512] != [0x55, 0xaa] {
            return Err(damaged(at, "a link of the chain of logical partitions is missing"));
        }
        let (own, next) = (Record::parse(&sector, 0), Record::parse(&sector, 1));
        if own.is_used() {
            entries.push(own.entry(number, at));
        }
        if !next.is_used() {
            return Ok(());
        }
        let behind = extended + u64::from(next.start);
        if behind <= at {
            return Err(damaged(at, "the chain of logical partitions leads backwards"));
        }
        at = behind;
    }
    Err(damaged(at, "the chain of logical partitions does not end"))
}

fn gpt(read: &Read<'_>) -> Result<Vec<TableEntry>> {
    for sector in GPT_SECTORS {
        let header = read(sector, sector)?;
        if header.len() >= 92 && header.starts_with(b"EFI PART") {
            return gpt_entries(read, sector, &header);
        }
    }
    Err(damaged(1, "the table says that there is a GPT, and there is none"))
}

fn gpt_entries(read: &Read<'_>, sector: u64, header: &[u8]) -> Result<Vec<TableEntry>> {
    let size = usize::try_from(Le::u32(header, 12)).unwrap_or(0);
    if !(92..=header.len()).contains(&size) {
        return Err(damaged(1, "the GPT's header has an impossible length"));
    }
    let mut summed = header[..size].to_vec();
    summed[16..20].fill(0);
    if crc32(&summed) != Le::u32(header, 16) {
        return Err(damaged(1, "the checksum of the GPT's header is wrong"));
    }
    let (at, count, each) = (Le::u64(header, 72), Le::u32(header, 80), Le::u32(header, 84));
    let len = u64::from(count) * u64::from(each);
    if each < 128 || len > ENTRIES_MAX {
        return Err(damaged(1, "the GPT's entries have an impossible size"));
    }
    let place = at.checked_mul(sector).ok_or_else(|| damaged(1, "the GPT's entries are beyond any disk"))?;
    let array = read(place, len)?;
    if u64::try_from(array.len()).is_ok_and(|found| found < len) || crc32(&array) != Le::u32(header, 88) {
        return Err(damaged(at, "the checksum of the GPT's entries is wrong"));
    }
    let mut entries = Vec::new();
    let each = usize::try_from(each).expect("bounded above");
    for (number, entry) in (1..).zip(array.chunks_exact(each)) {
        if entry[..16] == [0; 16] {
            continue;
        }
        let (first, last) = (Le::u64(entry, 32), Le::u64(entry, 40));
        let span = last.checked_sub(first).and_then(|more| more.checked_add(1));
        let bytes = span.and_then(|count| Some((first.checked_mul(sector)?, count.checked_mul(sector)?)));
        let (start, len) = bytes.ok_or_else(|| damaged(at, "a partition ends before it starts"))?;
        let units: Vec<u16> =
            (56..128).step_by(2).map(|at| Le::u16(entry, at)).take_while(|&unit| unit != 0).collect();
        entries.push(TableEntry { number, start, len, name: String::from_utf16_lossy(&units) });
    }
    Ok(entries)
}

/// The CRC-32 of IEEE 802.3, bit by bit: tables are small.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |sum: u32, &byte: &u8| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ (0xedb8_8320 & (sum & 1).wrapping_neg()))
    };
    !bytes.iter().fold(u32::MAX, step)
}

fn damaged(sector: u64, problem: &str) -> Error {
    Error::corrupt(Structure::PartitionTable, BlockNo(sector), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(disk: &mut [u8], sector: usize, at: usize, (kind, start, count): (u8, u32, u32)) {
        let place = sector * 512 + 446 + 16 * at;
        disk[place + 4] = kind;
        Le::put_u32(disk, place + 8, start);
        Le::put_u32(disk, place + 12, count);
        disk[sector * 512 + 510..sector * 512 + 512].copy_from_slice(&[0x55, 0xaa]);
    }

    fn table(disk: &[u8]) -> Result<Option<Vec<TableEntry>>> {
        read_table(&|offset, len| {
            let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(disk.len());
            Ok(disk[at(offset)..at(offset.saturating_add(len))].to_vec())
        })
    }

    #[test]
    fn a_checksum_of_the_standard() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn primary_and_logical_partitions_are_found() {
        let mut disk = vec![0; 64 * 512];
        record(&mut disk, 0, 0, (0x83, 2, 6));
        record(&mut disk, 0, 2, (0x0f, 10, 40));
        record(&mut disk, 10, 0, (0x83, 1, 5));
        record(&mut disk, 10, 1, (0x05, 20, 10));
        record(&mut disk, 30, 0, (0x83, 2, 7));
        let found: Vec<_> =
            table(&disk).unwrap().unwrap().iter().map(|e| (e.number, e.start / 512, e.len / 512)).collect();
        assert_eq!(found, [(1, 2, 6), (5, 11, 5), (6, 32, 7)]);
    }

    #[test]
    fn chains_that_lead_back_or_nowhere_are_refused() {
        let mut disk = vec![0; 64 * 512];
        record(&mut disk, 0, 0, (0x05, 10, 40));
        assert!(table(&disk).is_err());
        record(&mut disk, 10, 0, (0x83, 1, 5));
        record(&mut disk, 10, 1, (0x05, 20, 10));
        record(&mut disk, 30, 1, (0x05, 20, 10));
        assert!(table(&disk).is_err());
    }

    #[test]
    fn what_is_no_table_is_none() {
        assert_eq!(table(&[]).unwrap(), None);
        assert_eq!(table(&[0; 4096]).unwrap(), None);
        let mut boot = vec![0; 4096];
        boot[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(table(&boot).unwrap(), None);
    }

    #[test]
    fn a_gpt_is_read_for_both_sector_sizes_and_damage_is_noticed() {
        for sector in [512_usize, 4096] {
            let mut disk = vec![0; 64 * 4096];
            record(&mut disk, 0, 0, (PROTECTIVE, 1, 500));
            let at = 2 * sector + 128;
            disk[at..at + 16].fill(7);
            Le::put_u64(&mut disk, at + 32, 20);
            Le::put_u64(&mut disk, at + 40, 29);
            Le::put_u16(&mut disk, at + 56, u16::from(b'x'));
            let entries = crc32(&disk[2 * sector..2 * sector + 4 * 128]);
            let header = &mut disk[sector..];
            header[..8].copy_from_slice(b"EFI PART");
            Le::put_u32(header, 12, 92);
            Le::put_u64(header, 72, 2);
            Le::put_u32(header, 80, 4);
            Le::put_u32(header, 84, 128);
            Le::put_u32(header, 88, entries);
            let sum = crc32(&header[..92]);
            Le::put_u32(header, 16, sum);
            let found = table(&disk).unwrap().unwrap();
            let unit = u64::try_from(sector).unwrap();
            let expected = TableEntry { number: 2, start: 20 * unit, len: 10 * unit, name: "x".into() };
            assert_eq!(found, [expected]);
            for byte in [sector + 80, 2 * sector + 128 + 32] {
                let mut torn = disk.clone();
                torn[byte] ^= 1;
                assert!(table(&torn).is_err());
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        let mut seed = fstitch_core::Seed::new(5);
        for _ in 0..20_000 {
            let mut disk = vec![0; 4096];
            for byte in disk.iter_mut().skip(440) {
                *byte = u8::try_from(seed.below(256)).unwrap();
            }
            disk[510..512].copy_from_slice(&[0x55, 0xaa]);
            if seed.below(2) == 0 {
                disk[450] = PROTECTIVE;
                disk[512..520].copy_from_slice(b"EFI PART");
            }
            let _any = table(&disk);
        }
    }
}
