//! The root.

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{BlockDevice, BlockKind, BlockNo, BlockRead, Error, Le, Result, Structure, Timestamp};

use super::pointer::{Fork, Ref};
use super::record::TREE_END;
use super::{
    BLOCK, BLOCK_BYTES, BLOCKS_MAX, BLOCKS_MIN, HEIGHT_MAX, MAP_BASE, MapShape, NANOS_END, ROOT_PLACES,
    put_time, sum, time,
};

const MAGIC: [u8; 8] = *b"WAFFLE\x1a\n";
const VERSION: u32 = 1;
const LOG_BLOCK: u32 = 12;
const LABEL: usize = 64;
/// Where the sum of all before it is.
pub const SUM_AT: usize = BLOCK - 8;
const CLOSED: u8 = 1;

/// Features without which a volume may not be used, by their bits.
pub mod feature {
    /// A log for fsync.
    pub const LOG: u64 = 1;
    /// Compressed clusters.
    pub const ZSTD: u64 = 2;
}

/// More commits than there will be.
const GENERATION_MAX: u64 = 1 << 62;
/// Features that this version can use.
const USED: u64 = feature::ZSTD;

/// A volume's root: one version of all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Features that hinder nobody.
    pub compat: u64,
    /// Features that hinder who would write.
    pub ro_compat: u64,
    /// Features that hinder everybody.
    pub incompat: u64,
    /// Who the volume is.
    pub uuid: [u8; 16],
    /// Its label, filled with zeros.
    pub label: [u8; LABEL],
    /// Which version this is.
    pub generation: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// The map's top.
    pub map: Ref,
    /// The table of trees.
    pub trees: Fork,
    /// The table of shared blocks.
    pub shared: Fork,
    /// The volume was closed in an orderly way.
    pub is_closed: bool,
    /// Records in the table of trees.
    pub records: u32,
    /// Free blocks.
    pub free: u64,
    /// The next tree's number.
    pub next_tree: u64,
    /// When this root was made.
    pub at: Timestamp,
    /// When the volume was made.
    pub made: Timestamp,
}

fn damaged(place: u64, problem: impl Into<String>) -> Error {
    Error::corrupt(Structure::Superblock, BlockNo(place), problem)
}

impl Root {
    /// The label without what fills it.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let len = self.label.iter().position(|&byte| byte == 0).unwrap_or(LABEL);
        &self.label[..len]
    }

    /// The place of this generation.
    #[must_use]
    pub fn place(&self) -> u64 {
        ROOT_PLACES[to_usize(self.generation % 2)]
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK];
        let shape = MapShape::of(self.blocks);
        bytes[..8].copy_from_slice(&MAGIC);
        Le::put_u32(&mut bytes, 8, VERSION);
        Le::put_u32(&mut bytes, 12, LOG_BLOCK);
        for (at, value) in [
            (16, self.compat),
            (24, self.ro_compat),
            (32, self.incompat),
            (120, self.generation),
            (128, self.blocks),
            (136, MAP_BASE),
            (144, shape.end),
            (256, self.free),
            (264, self.next_tree),
        ] {
            Le::put_u64(&mut bytes, at, value);
        }
        bytes[40..56].copy_from_slice(&self.uuid);
        bytes[56..120].copy_from_slice(&self.label);
        self.map.write(&mut bytes, 152);
        bytes[184] = shape.height();
        bytes[185] = self.trees.height;
        bytes[186] = self.shared.height;
        bytes[187] = if self.is_closed { CLOSED } else { 0 };
        Le::put_u32(&mut bytes, 188, self.records);
        self.trees.root.write(&mut bytes, 192);
        self.shared.root.write(&mut bytes, 224);
        put_time(&mut bytes, 272, 280, self.at);
        put_time(&mut bytes, 288, 296, self.made);
        let total = sum(&bytes[..SUM_AT]);
        Le::put_u64(&mut bytes, SUM_AT, total);
        bytes
    }

    /// Whether the bytes of a place are a root at all.
    #[must_use]
    pub fn is_there(bytes: &[u8]) -> bool {
        bytes.len() >= BLOCK && bytes[..8] == MAGIC && Le::u64(bytes, SUM_AT) == sum(&bytes[..SUM_AT])
    }

    /// Whether they begin as one, right or not.
    #[must_use]
    pub fn has_magic(bytes: &[u8]) -> bool {
        bytes.get(..8).is_some_and(|head| head == MAGIC)
    }

    /// Takes a root's bytes apart that are one.
    ///
    /// # Errors
    /// `Unsupported` for another version, another size of blocks, and features; `Corrupt` for what breaks a rule.
    pub fn decode(bytes: &[u8], place: u64) -> Result<Self> {
        debug_assert!(Self::is_there(bytes), "it was looked at");
        let version = Le::u32(bytes, 8);
        if version != VERSION {
            return Err(Error::Unsupported(format!("version {version} of waffle")));
        }
        if Le::u32(bytes, 12) != LOG_BLOCK {
            let what = format!("blocks of 2^{} bytes in a waffle volume", Le::u32(bytes, 12));
            return Err(Error::Unsupported(what));
        }
        let root = Self {
            compat: Le::u64(bytes, 16),
            ro_compat: Le::u64(bytes, 24),
            incompat: Le::u64(bytes, 32),
            uuid: bytes[40..56].try_into().expect("16 bytes"),
            label: bytes[56..120].try_into().expect("64 bytes"),
            generation: Le::u64(bytes, 120),
            blocks: Le::u64(bytes, 128),
            map: Ref::read(bytes, 152),
            trees: Fork { root: Ref::read(bytes, 192), height: bytes[185] },
            shared: Fork { root: Ref::read(bytes, 224), height: bytes[186] },
            is_closed: bytes[187] & CLOSED != 0,
            records: Le::u32(bytes, 188),
            free: Le::u64(bytes, 256),
            next_tree: Le::u64(bytes, 264),
            at: time(bytes, 272, 280),
            made: time(bytes, 288, 296),
        };
        root.check(bytes, place)?;
        Ok(root)
    }

    fn check(&self, bytes: &[u8], place: u64) -> Result<()> {
        let unknown = self.incompat & !USED;
        if unknown != 0 {
            let name = match 1 << unknown.trailing_zeros() {
                feature::LOG => "log".to_owned(),
                bit => format!("{bit:#x}"),
            };
            return Err(Error::Unsupported(format!("feature {name} of a waffle volume")));
        }
        if self.place() != place {
            let problem = format!("generation {} is in another one's place", self.generation);
            return Err(damaged(place, problem));
        }
        if !(BLOCKS_MIN..=BLOCKS_MAX).contains(&self.blocks) {
            return Err(damaged(place, format!("a volume of {} blocks", self.blocks)));
        }
        let shape = MapShape::of(self.blocks);
        if Le::u64(bytes, 136) != MAP_BASE || Le::u64(bytes, 144) != shape.end || bytes[184] != shape.height()
        {
            return Err(damaged(place, "the map or the data are elsewhere than its size says"));
        }
        if self.trees.height > HEIGHT_MAX || self.shared.height > HEIGHT_MAX {
            return Err(damaged(place, "a tree is higher than trees are"));
        }
        if self.at.nanos >= NANOS_END || self.made.nanos >= NANOS_END {
            return Err(damaged(place, "a time with more nanoseconds than a second has"));
        }
        if self.generation == 0 || self.generation > GENERATION_MAX || self.next_tree > TREE_END {
            return Err(damaged(place, "a generation or a number of trees that nobody reaches"));
        }
        if self.free > self.blocks || self.records == 0 {
            return Err(damaged(place, "more free blocks than there are, or no tree"));
        }
        for (fork, what) in [(&self.trees, "table of trees"), (&self.shared, "table of shared blocks")] {
            if let Some(problem) = fork.root.problem((shape.end, self.blocks), self.generation) {
                return Err(damaged(place, format!("the reference to the {what}: {problem}")));
            }
        }
        Ok(())
    }

    /// Fails if the volume may not be written.
    ///
    /// # Errors
    /// `Unsupported`.
    pub fn check_writable(&self) -> Result<()> {
        match self.ro_compat {
            0 => Ok(()),
            bits => Err(Error::Unsupported(format!(
                "writing with feature {:#x} of a waffle volume: mount read-only",
                1_u64 << bits.trailing_zeros()
            ))),
        }
    }

    /// The root among the two places of a volume that begins with `head`, which has these blocks if there are so many.
    ///
    /// # Errors
    /// As [`Root::decode`]; `None` if neither place has one.
    pub fn find(head: &[u8]) -> Result<Option<Self>> {
        let mut best: Option<(u64, u64)> = None;
        for place in ROOT_PLACES {
            let at = to_usize(place * BLOCK_BYTES);
            let Some(bytes) = head.get(at..at + BLOCK) else { continue };
            if !Self::is_there(bytes) {
                continue;
            }
            let generation = Le::u64(bytes, 120);
            if best.is_none_or(|(other, _)| generation > other) {
                best = Some((generation, place));
            }
        }
        let Some((_, place)) = best else { return Ok(None) };
        let at = to_usize(place * BLOCK_BYTES);
        Self::decode(&head[at..at + BLOCK], place).map(Some)
    }

    /// The root of the volume on a device.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if there is none; as [`Root::decode`].
    pub fn read(device: &dyn BlockDevice) -> Result<Self> {
        let head = read_head(device)?;
        let Some(root) = Self::find(&head)? else {
            return Err(damaged(ROOT_PLACES[0], "neither place of a waffle volume has a root"));
        };
        if root.blocks > device.geometry().bytes() / BLOCK_BYTES {
            let problem =
                format!("it says that the volume has {} blocks, and the medium has less", root.blocks);
            return Err(damaged(root.place(), problem));
        }
        Ok(root)
    }
}

/// The blocks of a device up to the second place of the root, as many as there are.
///
/// # Errors
/// `Io`.
pub fn read_head(device: &dyn BlockDevice) -> Result<Vec<u8>> {
    let geometry = device.geometry();
    let size = to_usize(geometry.block_size);
    let bytes = (ROOT_PLACES[1] + 1) * BLOCK_BYTES;
    let count = bytes.div_ceil(to_u64(size)).min(geometry.block_count);
    let mut head = vec![0; to_usize(count) * size];
    let mut reads: Vec<BlockRead<'_>> = head
        .chunks_exact_mut(size)
        .zip(0..)
        .map(|(data, block)| BlockRead { block: BlockNo(block), kind: BlockKind::Superblock, data })
        .collect();
    device.read(&mut reads)?;
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Root {
        Root {
            compat: 0,
            ro_compat: 0,
            incompat: 0,
            uuid: [9; 16],
            label: [0; LABEL],
            generation: 5,
            blocks: 4096,
            map: Ref { block: 17, birth: 5, sum: 1, flags: 0, extra: 3 },
            trees: Fork { root: Ref { block: 20, birth: 4, ..Ref::NONE }, height: 0 },
            shared: Fork::default(),
            is_closed: true,
            records: 1,
            free: 99,
            next_tree: 2,
            at: Timestamp { secs: 5, nanos: 6 },
            made: Timestamp { secs: -1, nanos: 0 },
        }
    }

    #[test]
    fn the_younger_of_two_valid_roots_counts() {
        let mut head = vec![0; to_usize(17 * BLOCK_BYTES)];
        assert_eq!(Root::find(&head).unwrap(), None);
        let (younger, older) = (root(), Root { generation: 4, ..root() });
        for one in [&younger, &older] {
            let at = to_usize(one.place() * BLOCK_BYTES);
            head[at..at + BLOCK].copy_from_slice(&one.encode());
        }
        assert_eq!(Root::find(&head).unwrap(), Some(younger.clone()));
        head[to_usize(younger.place() * BLOCK_BYTES) + 130] ^= 1;
        assert_eq!(Root::find(&head).unwrap(), Some(older));
    }

    #[test]
    fn what_is_unknown_is_refused_by_name() {
        let decode = |root: &Root| Root::decode(&root.encode(), root.place());
        assert!(decode(&root()).is_ok());
        assert!(decode(&Root { incompat: feature::ZSTD, ..root() }).is_ok());
        let log = Root { incompat: feature::LOG, ..root() };
        assert!(decode(&log).unwrap_err().to_string().contains("log"));
        let odd = Root { incompat: 1 << 40, ..root() };
        assert!(matches!(decode(&odd), Err(Error::Unsupported(_))));
        let later = Root { ro_compat: 8, ..root() };
        assert!(decode(&later).unwrap().check_writable().is_err());
        assert!(matches!(decode(&Root { blocks: 5, ..root() }), Err(Error::Corrupt(_))));
        assert!(matches!(decode(&Root { free: 5000, ..root() }), Err(Error::Corrupt(_))));
    }
}
