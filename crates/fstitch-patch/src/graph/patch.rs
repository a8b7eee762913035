//! One patch.

use std::sync::Arc;
use std::time::Duration;

use fstitch_core::num::to_u64;
use fstitch_core::{BlockBuf, BlockNo};
use smallvec::SmallVec;

use crate::PatchId;

/// A patch's place in the arena.
pub(crate) type Px = u32;
/// A block's place among the slots.
pub(crate) type Sx = u32;
/// A volume's place among those that share the graph: each has its own mechanism. 0 is the whole device.
pub(crate) type Vx = u8;
/// Stands for "no block" in [`Patch::slot`].
pub(crate) const NO_SLOT: Sx = u32::MAX;

/// A block as one of the volumes knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Site {
    pub(crate) volume: Vx,
    pub(crate) slot: Sx,
    /// Its number in the volume.
    pub(crate) no: BlockNo,
}

/// What a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Bytes `offset..offset + len`.
    Bytes { offset: u32, len: u32 },
    /// Bits of one 64-bit little-endian word; bits of one word have independent dependencies.
    Bits { word: u32, mask: u64 },
    /// Nothing: groups dependencies.
    Empty,
}

impl Change {
    /// The bytes touched, as `start..end`.
    pub(crate) fn range(self) -> (u32, u32) {
        match self {
            Self::Bytes { offset, len } => (offset, offset + len),
            Self::Bits { word, .. } => (word * 8, word * 8 + 8),
            Self::Empty => (0, 0),
        }
    }

    /// The first and the last byte touched, of a change that touches some: blocks have at most 64 KiB.
    pub(crate) fn ends(self) -> (u16, u16) {
        let (start, end) = self.range();
        let last = end.checked_sub(1).expect("patches of blocks change something");
        (short(start), short(last))
    }

    /// Whether both change a common byte, or for two bit patches a common bit.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        if let (Self::Bits { word: w1, mask: m1 }, Self::Bits { word: w2, mask: m2 }) = (self, other) {
            return w1 == w2 && m1 & m2 != 0;
        }
        let ((s1, e1), (s2, e2)) = (self.range(), other.range());
        s1 < e2 && s2 < e1
    }

    /// Whether every place that both `self` and `other` change lies where `cover` changes.
    pub(crate) fn overlap_within(self, other: Self, cover: Self) -> bool {
        if let (Self::Bits { mask: m1, .. }, Self::Bits { mask: m2, .. }, Self::Bits { mask, .. }) =
            (self, other, cover)
        {
            return m1 & m2 & !mask == 0;
        }
        let ((s1, e1), (s2, e2), (s, e)) = (self.range(), other.range(), cover.range());
        s <= s1.max(s2) && e1.min(e2) <= e && !matches!(cover, Self::Bits { .. })
    }
}

/// A position in a block.
fn short(n: u32) -> u16 {
    u16::try_from(n).expect("blocks have at most 64 KiB")
}

/// What a patch changes, in the room that a patch has for it: blocks have at most 64 KiB. The mask of a change of bits lies
/// with what few patches have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packed {
    Bytes { first: u16, last: u16 },
    Bits { word: u16 },
    Empty,
}

/// What stood in the place of a soft patch's change before.
#[derive(Clone, Debug)]
pub(crate) enum Undo {
    /// A hard or empty patch.
    None,
    /// The bytes of the range.
    Bytes(SmallVec<[u8; 16]>),
    /// The values of the masked bits.
    Bits(u64),
    /// The whole old block.
    Block(Arc<BlockBuf>),
}

impl Undo {
    /// Bytes of undo data held, bits counted as their word.
    pub(crate) fn size(&self) -> u64 {
        let len = match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len(),
            Self::Bits(_) => 8,
            Self::Block(block) => block.len(),
        };
        to_u64(len)
    }
}

/// How an empty patch behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Orders patches.
    Ordinary,
    /// Cannot commit until released; befores may be added.
    Held,
    /// Nothing may depend on it; befores may be added.
    Gather,
}

/// What waits for a patch: for most there is one, for few there are many.
#[derive(Clone, Debug, Default)]
pub(crate) enum Afters {
    #[default]
    None,
    One(Px),
    Many(Box<SmallVec<[Px; 6]>>),
}

impl std::ops::Deref for Afters {
    type Target = [Px];

    fn deref(&self) -> &[Px] {
        match self {
            Self::None => &[],
            Self::One(px) => std::slice::from_ref(px),
            Self::Many(all) => all,
        }
    }
}

impl Afters {
    pub(crate) fn push(&mut self, px: Px) {
        match self {
            Self::None => *self = Self::One(px),
            Self::One(first) => *self = Self::Many(Box::new(SmallVec::from_slice(&[*first, px]))),
            Self::Many(all) => all.push(px),
        }
    }

    /// Takes one out, wherever it is.
    pub(crate) fn remove(&mut self, px: Px) {
        match self {
            Self::One(only) if *only == px => *self = Self::None,
            Self::Many(all) => all.retain(|other| *other != px),
            Self::None | Self::One(_) => {}
        }
    }
}

/// What few patches have.
#[derive(Debug)]
struct Rare {
    undo: Undo,
    /// The bits that a change of bits flips.
    mask: u64,
    serial: u64,
    aliases: Vec<Px>,
    /// What must be stable first; may hold ids that committed meanwhile.
    befores: SmallVec<[PatchId; 3]>,
}

/// One uncommitted or in-flight patch: there is one for nearly every dirty block, so it is small, a line of the processor's
/// cache.
#[derive(Debug)]
pub(crate) struct Patch {
    pub(crate) generation: u64,
    /// The block, or [`NO_SLOT`] for empty patches.
    pub(crate) slot: Sx,
    change: Packed,
    /// The volume through which the change was made.
    pub(crate) volume: Vx,
    pub(crate) role: Role,
    pub(crate) hard: bool,
    pub(crate) in_flight: bool,
    /// When it was created; what joins it does not make it younger.
    pub(crate) born: Birth,
    /// Uncommitted befores on other blocks, and empty ones.
    pub(crate) outer: u32,
    /// Uncommitted befores on the same block.
    pub(crate) inner: u32,
    /// Holds what a transaction changed in its block: durable when the transaction is.
    pub(crate) home: bool,
    /// Mark of the last walk that came here.
    pub(crate) mark: u32,
    rare: Option<Box<Rare>>,
    /// What waits for this one; exact.
    pub(crate) afters: Afters,
}

/// When a patch was created, to the millisecond and without what is beyond 49 days: patches do not live so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Birth(u32);

impl Birth {
    pub(crate) fn at(time: Duration) -> Self {
        Self(u32::try_from(time.as_millis() & u128::from(u32::MAX)).expect("masked"))
    }

    /// The age of what was born then.
    pub(crate) fn age(self, now: Duration) -> Duration {
        Duration::from_millis(u64::from(Self::at(now).0.wrapping_sub(self.0)))
    }
}

impl Patch {
    /// A patch of nothing yet, without edges.
    pub(crate) fn new(site: Site, change: Change) -> Self {
        let mut patch = Self {
            generation: 0,
            slot: site.slot,
            change: Packed::Empty,
            volume: site.volume,
            role: Role::Ordinary,
            hard: false,
            in_flight: false,
            born: Birth::default(),
            outer: 0,
            inner: 0,
            home: false,
            mark: 0,
            rare: None,
            afters: Afters::default(),
        };
        patch.set_change(change);
        patch
    }

    /// What it changes.
    pub(crate) fn change(&self) -> Change {
        match self.change {
            Packed::Bytes { first, last } => {
                let (first, last) = (u32::from(first), u32::from(last));
                Change::Bytes { offset: first, len: last - first + 1 }
            }
            Packed::Bits { word } => {
                let mask = self.rare.as_ref().map_or(0, |rare| rare.mask);
                Change::Bits { word: u32::from(word), mask }
            }
            Packed::Empty => Change::Empty,
        }
    }

    /// It changes this.
    pub(crate) fn set_change(&mut self, change: Change) {
        self.change = match change {
            Change::Bytes { .. } => {
                let (first, last) = change.ends();
                Packed::Bytes { first, last }
            }
            Change::Bits { word, mask } => {
                self.rare_mut().mask = mask;
                Packed::Bits { word: short(word) }
            }
            Change::Empty => Packed::Empty,
        };
    }

    fn rare_mut(&mut self) -> &mut Rare {
        self.rare.get_or_insert_with(|| {
            Box::new(Rare {
                undo: Undo::None,
                mask: 0,
                serial: 0,
                aliases: Vec::new(),
                befores: SmallVec::new(),
            })
        })
    }

    /// What must be stable first; may hold ids that committed meanwhile.
    pub(crate) fn befores(&self) -> &[PatchId] {
        self.rare.as_ref().map_or(&[], |rare| &rare.befores)
    }

    /// One more that must be stable first.
    pub(crate) fn add_before(&mut self, id: PatchId) {
        self.rare_mut().befores.push(id);
    }

    /// Forgets those of its befores that `keep` does not want.
    pub(crate) fn retain_befores(&mut self, mut keep: impl FnMut(PatchId) -> bool) {
        if let Some(rare) = &mut self.rare {
            rare.befores.retain(|id| keep(*id));
        }
    }

    /// Its befores, which it forgets.
    pub(crate) fn take_befores(&mut self) -> SmallVec<[PatchId; 3]> {
        self.rare.as_mut().map(|rare| std::mem::take(&mut rare.befores)).unwrap_or_default()
    }

    /// Gives it befores instead of those that were taken.
    pub(crate) fn put_befores(&mut self, befores: SmallVec<[PatchId; 3]>) {
        self.rare_mut().befores = befores;
    }

    pub(crate) fn undo(&self) -> &Undo {
        self.rare.as_ref().map_or(&Undo::None, |rare| &rare.undo)
    }

    /// Sets the undo data and returns what they were.
    pub(crate) fn set_undo(&mut self, undo: Undo) -> Undo {
        match undo {
            Undo::None if self.rare.is_none() => Undo::None,
            undo => std::mem::replace(&mut self.rare_mut().undo, undo),
        }
    }

    /// The last transaction of its volume that it belongs to or waits for; 0 for none.
    pub(crate) fn serial(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.serial)
    }

    /// It belongs to this transaction or waits for it, unless it does so for a later one.
    pub(crate) fn raise_serial(&mut self, serial: u64) {
        if serial > self.serial() {
            self.rare_mut().serial = serial;
        }
    }

    /// Arena places of ids that were merged into this patch.
    pub(crate) fn aliases(&self) -> &[Px] {
        self.rare.as_ref().map_or(&[], |rare| &rare.aliases)
    }

    /// More places of ids that were merged into this patch.
    pub(crate) fn add_aliases(&mut self, more: &[Px]) {
        self.rare_mut().aliases.extend_from_slice(more);
    }

    pub(crate) fn is_gather(&self) -> bool {
        self.role == Role::Gather
    }
}
