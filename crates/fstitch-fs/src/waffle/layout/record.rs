//! Records of the table of trees.

use fstitch_core::{Error, Le, Result, Structure, Timestamp};

use super::pointer::{Fork, Ref};
use super::{FIRST_INO, HEIGHT_MAX, NAME_MAX, NANOS_END, put_time, time};

/// Bytes of a record.
pub const RECORD_BYTES: usize = 512;
/// Records in a block.
pub const RECORDS_IN_BLOCK: u64 = 8;
/// The most records that a volume has.
pub const RECORDS_MAX: u32 = 1 << 15;

/// What a tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeKind {
    /// One that changes.
    Head,
    /// A snapshot.
    Snapshot,
    /// A snapshot that is being removed.
    Removed,
}

/// A tree of the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What it is.
    pub kind: TreeKind,
    /// Its number.
    pub id: u64,
    /// The generation with which it began; no block of a snapshot is younger.
    pub generation: u64,
    /// The snapshot that a clone comes from, or 0.
    pub origin: u64,
    /// The tree that a snapshot is of.
    pub head: u64,
    /// Its inodes.
    pub inodes: Fork,
    /// The first inode number that was never used.
    pub ino_end: u64,
    /// The first free inode below that, or 0.
    pub free_ino: u64,
    /// The first inode without names, or 0.
    pub orphan: u64,
    /// Inodes in use.
    pub used: u64,
    /// Inodes without names.
    pub orphans: u64,
    /// When it was made.
    pub made: Timestamp,
    /// The seed of names' keys.
    pub seed: u64,
    /// It is being received, and is not whole.
    pub is_receiving: bool,
    /// Of a snapshot: what it is, whatever volume has it.
    pub source: Source,
    /// Its name.
    pub name: Vec<u8>,
}

/// A snapshot, whatever volume it is in: the volume that it was made of, and the root that it keeps. Zeros for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The volume's UUID.
    pub uuid: [u8; 16],
    /// The generation there.
    pub generation: u64,
}

const RECEIVING: u8 = 1;

impl Record {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[0] = match self.kind {
            TreeKind::Head => 1,
            TreeKind::Snapshot => 2,
            TreeKind::Removed => 3,
        };
        bytes[1] = u8::try_from(self.name.len()).expect("names are checked");
        bytes[2] = self.inodes.height;
        bytes[3] = if self.is_receiving { RECEIVING } else { 0 };
        for (at, value) in [
            (8, self.id),
            (16, self.generation),
            (24, self.origin),
            (32, self.head),
            (72, self.ino_end),
            (80, self.free_ino),
            (88, self.orphan),
            (96, self.used),
            (104, self.orphans),
            (128, self.seed),
            (152, self.source.generation),
        ] {
            Le::put_u64(&mut bytes, at, value);
        }
        self.inodes.root.write(&mut bytes, 40);
        put_time(&mut bytes, 112, 120, self.made);
        bytes[136..152].copy_from_slice(&self.source.uuid);
        bytes[256..256 + self.name.len()].copy_from_slice(&self.name);
        bytes
    }

    /// Takes a record apart; `None` for a free one.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn decode(bytes: &[u8], number: u32) -> Result<Option<Self>> {
        let damaged = |problem: &str| {
            let problem = format!("record {number}: {problem}");
            Error::corrupt(Structure::Other("table of trees"), None, problem)
        };
        let kind = match bytes[0] {
            0 => return Ok(None),
            1 => TreeKind::Head,
            2 => TreeKind::Snapshot,
            3 => TreeKind::Removed,
            _ => return Err(damaged("it is of no kind")),
        };
        let name = &bytes[256..256 + usize::from(bytes[1])];
        let record = Self {
            kind,
            id: Le::u64(bytes, 8),
            generation: Le::u64(bytes, 16),
            origin: Le::u64(bytes, 24),
            head: Le::u64(bytes, 32),
            inodes: Fork { root: Ref::read(bytes, 40), height: bytes[2] },
            ino_end: Le::u64(bytes, 72),
            free_ino: Le::u64(bytes, 80),
            orphan: Le::u64(bytes, 88),
            used: Le::u64(bytes, 96),
            orphans: Le::u64(bytes, 104),
            made: time(bytes, 112, 120),
            seed: Le::u64(bytes, 128),
            is_receiving: bytes[3] & RECEIVING != 0,
            source: Source {
                uuid: bytes[136..152].try_into().expect("16 bytes"),
                generation: Le::u64(bytes, 152),
            },
            name: name.to_vec(),
        };
        if record.inodes.height > HEIGHT_MAX || record.made.nanos >= NANOS_END {
            return Err(damaged("a height or a time that cannot be"));
        }
        if record.ino_end < FIRST_INO || record.ino_end >= INO_END {
            return Err(damaged("its inodes end where none can"));
        }
        if [record.free_ino, record.orphan].iter().any(|&ino| ino >= record.ino_end) {
            return Err(damaged("a list of inodes begins behind all of them"));
        }
        if number > 0 && !is_tree_name(name) || number == 0 && kind != TreeKind::Head {
            return Err(damaged("its name is none, or the first is a snapshot"));
        }
        Ok(Some(record))
    }
}

/// Bits of an inode's number: what is above says which tree it is of.
pub const INO_BITS: u32 = 40;
/// Numbers of inodes are below this.
pub const INO_END: u64 = 1 << INO_BITS;
/// Numbers of trees are below this.
pub const TREE_END: u64 = 1 << (64 - INO_BITS - 1);

/// Whether a tree could be called so.
#[must_use]
pub fn is_tree_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
        && !name.contains(&0)
        && !name.contains(&b'/')
        && name != b"."
        && name != b".."
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_read_as_they_are_written() {
        let record = Record {
            kind: TreeKind::Snapshot,
            id: 3,
            generation: 9,
            origin: 0,
            head: 1,
            inodes: Fork { root: Ref { block: 40, birth: 8, ..Ref::NONE }, height: 2 },
            ino_end: 99,
            free_ino: 98,
            orphan: 0,
            used: 5,
            orphans: 0,
            made: Timestamp { secs: 7, nanos: 1 },
            seed: 11,
            is_receiving: true,
            source: Source { uuid: [6; 16], generation: 12 },
            name: vec![b'x'; NAME_MAX],
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes, 1).unwrap(), Some(record.clone()));
        assert_eq!(Record::decode(&[0; RECORD_BYTES], 1).unwrap(), None);
        assert!(Record::decode(&bytes, 0).is_err());
        let nameless = Record { name: Vec::new(), ..record }.encode();
        assert!(Record::decode(&nameless, 1).is_err());
    }
}
