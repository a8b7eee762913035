//! Numbers of the superblock that follow from no others: how long the volume is, where the counts of all groups are, how far metadata
//! move from group to group. The first superblock and its copies have them, and where they differ the volume tells whose are right.
//!
//! That is settled before anything is looked for by them: a volume that is too short would cut its files.

use fstitch_core::num::to_u64;
use fstitch_core::{BlockKind, Result};

use super::groups::{self, at as group_at};
use super::state::State;
use super::supers::{Derived, WITNESSES, copy_of, derived, is_same, put_fields, why_unusable};
use super::volume::{Volume, at};
use crate::ufs::layout::superblock::{READ, Superblock};
use crate::ufs::order::Order;

/// Bytes of a group's counts, there and in the list of those of all groups.
const COUNTS: usize = 16;

/// What tells whether a number is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Witness {
    /// The last group has its own length.
    LastGroup,
    /// Counts are those of groups.
    Counts,
    /// Groups are there.
    Groups,
    /// Only copies.
    Nothing,
}

/// Such a number.
struct Number {
    name: &'static str,
    at: usize,
    /// It has 8 bytes.
    is_long: bool,
    witness: Witness,
}

const fn number(name: &'static str, at: usize, is_long: bool, witness: Witness) -> Number {
    Number { name, at, is_long, witness }
}

static ONE: [Number; 5] = [
    number("size", 36, false, Witness::LastGroup),
    number("dsize", 40, false, Witness::Nothing),
    number("csaddr", 152, false, Witness::Counts),
    number("cgoffset", 24, false, Witness::Groups),
    number("cgmask", 28, false, Witness::Groups),
];
static TWO: [Number; 3] = [
    number("size", 1080, true, Witness::LastGroup),
    number("dsize", 1088, true, Witness::Nothing),
    number("csaddr", 1096, true, Witness::Counts),
];
/// Those that say how long the maps of a group are. Systems may have changed them in the first superblock alone, so that what copies say
/// matters only where maps fit no group.
static MAPS: [Number; 3] = [
    number("contigsumsize", at::CLUSTERS, false, Witness::Nothing),
    number("cpg", at::OLD_CPG, false, Witness::Nothing),
    number("nrpos", at::OLD_POSITIONS, false, Witness::Nothing),
];

fn numbers(volume: &Volume<'_>) -> &'static [Number] {
    if volume.is_two() { &TWO } else { &ONE }
}

impl Number {
    fn of(&self, order: Order, raw: &[u8]) -> u64 {
        if self.is_long { order.u64(raw, self.at) } else { order.u32(raw, self.at).into() }
    }

    fn as_field(&self, value: u64) -> Derived {
        Derived { name: self.name, at: self.at, is_long: self.is_long, value }
    }

    /// Whether the volume does not speak against `other` in place of `own`, and for it if more is to be read with it.
    fn is_right(&self, volume: &Volume<'_>, (own, other): (u64, u64)) -> Result<bool> {
        let Some(changed) = with(volume, &self.as_field(other)) else { return Ok(false) };
        if why_unusable(volume).is_some() {
            return Ok(true);
        }
        Ok(match self.witness {
            Witness::LastGroup => {
                let says = last_end(volume)?;
                says != Some(own) && (other < own || says == Some(other))
            }
            Witness::Counts => counts_right(&changed)? >= counts_right(volume)?,
            Witness::Groups => groups_right(&changed)? >= groups_right(volume)?,
            Witness::Nothing => true,
        })
    }
}

/// The volume with another number in its superblock, if that can be.
fn with<'v>(volume: &Volume<'v>, field: &Derived) -> Option<Volume<'v>> {
    let mut raw = volume.raw.clone();
    put_fields(&mut raw, volume.order(), std::slice::from_ref(field));
    let bytes = volume.source.fragments() * volume.fragment();
    let shape = Superblock::parse(&raw, volume.shape.at, bytes).ok()?;
    let changed = Volume { source: volume.source, shape, raw };
    why_unusable(&changed).is_none().then_some(changed)
}

/// Where the last group ends, as it says itself.
fn last_end(volume: &Volume<'_>) -> Result<Option<u64>> {
    let last = volume.shape.groups - 1;
    let bytes = groups::read(volume, last)?;
    let count = volume.order().u32(&bytes, group_at::FRAGMENTS);
    Ok(groups::is_numbered(volume, last, &bytes).then(|| volume.group_first(last) + u64::from(count)))
}

/// Groups whose counts are in the list of those of all.
fn counts_right(volume: &Volume<'_>) -> Result<usize> {
    let (at, bytes) = volume.shape.summaries;
    let list = volume.read(at, u64::from(bytes).div_ceil(volume.fragment()), BlockKind::GroupDescriptor)?;
    let mut count = 0;
    for (group, counts) in (0..volume.shape.groups).zip(list.chunks(COUNTS)) {
        let bytes = groups::read(volume, group)?;
        count += usize::from(bytes[group_at::COUNTS..group_at::COUNTS + COUNTS] == *counts);
    }
    Ok(count)
}

/// Groups that are where they should be.
fn groups_right(volume: &Volume<'_>) -> Result<usize> {
    let mut count = 0;
    for group in 0..volume.shape.groups {
        count += usize::from(groups::is_numbered(volume, group, &groups::read(volume, group)?));
    }
    Ok(count)
}

/// Copies of the superblock in the first groups, whatever is there.
pub(super) fn some(volume: &Volume<'_>) -> Result<Vec<Vec<u8>>> {
    let end = volume.source.fragments() * volume.fragment();
    (0..volume.shape.groups.min(WITNESSES))
        .filter_map(|group| copy_of(volume, group))
        .filter(|byte| byte + to_u64(READ) <= end)
        .map(|byte| volume.read_super(byte))
        .collect()
}

/// Whether a copy has the same numbers as the first superblock.
pub(super) fn has_same(volume: &Volume<'_>, copy: &[u8]) -> bool {
    let order = volume.order();
    numbers(volume).iter().all(|number| number.of(order, &volume.raw) == number.of(order, copy))
}

/// Puts the numbers that follow from no others as the superblock of `volume` has them into `raw`; those of maps as well if asked.
pub(super) fn put_all(volume: &Volume<'_>, raw: &mut [u8], with_maps: bool) {
    let (order, maps) = (volume.order(), if with_maps { &MAPS[..] } else { &[] });
    for number in numbers(volume).iter().chain(maps) {
        put_fields(raw, order, &[number.as_field(number.of(order, &volume.raw))]);
    }
}

/// What most copies say, if that is not `own`.
fn most_say(said: &[u64], own: u64) -> Option<u64> {
    let count = |value| said.iter().filter(|&&said| said == value).count();
    let most = said.iter().copied().max_by_key(|&value| count(value))?;
    (count(most) > count(own)).then_some(most)
}

/// Compares the numbers with those of the copies; false if some are wrong, and nothing may be looked for by them.
pub(super) fn settle(volume: &Volume<'_>, state: &mut State) -> Result<bool> {
    let order = volume.order();
    let fields = derived(volume);
    let mut copies = some(volume)?;
    copies.retain(|copy| is_same(&volume.raw, copy, (order, &fields)));
    let mut wrong = Vec::new();
    for number in numbers(volume) {
        let own = number.of(order, &volume.raw);
        let said: Vec<u64> = copies.iter().map(|copy| number.of(order, copy)).collect();
        if let Some(other) = most_say(&said, own)
            && number.is_right(volume, (own, other))?
        {
            wrong.push(number.as_field(other));
        }
    }
    if wrong.is_empty() {
        return Ok(true);
    }
    let names: Vec<&str> = wrong.iter().map(|field| field.name).collect();
    let text = format!("numbers of the superblock are not those of its copies: {}", names.join(", "));
    if state.corrupt("superblock-field", text) {
        volume.edit_super(volume.shape.at, |raw| put_fields(raw, order, &wrong))?;
    }
    Ok(false)
}
