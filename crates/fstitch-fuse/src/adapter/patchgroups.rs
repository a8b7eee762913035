//! The ioctls of patchgroups and ordered fsync: `docs/spec/patchgroup-ioctl.md`. Numbers and structures here are those of
//! the specification; what the calls do is decided in [`crate::scopes`].

use std::sync::Arc;

use fstitch_core::{Errno, InodeNo, Result};

use crate::scopes::{About, Asker, Call, GROUPS_MAX, Scopes};

const VERSION: u32 = 1;
const FEATURE_GROUPS: u32 = 1;
const FEATURE_ORDER: u32 = 2;
/// In [`PG_ORDER_BEGIN`]: every change is an ordering point.
const EVERY_CHANGE: u32 = 1;
/// In the answer to [`Asked::Users`]: the whole mount has ordered fsync.
const EVERYBODY: u32 = 1;
/// Processes in one answer.
const USERS_MAX: usize = 30;
/// Words of that structure.
const USERS_WORDS: usize = 4 + 2 * USERS_MAX;

const PG_VERSION: u32 = 0xc010_f500;
const PG_CREATE: u32 = 0xc008_f501;
const PG_DEPEND: u32 = 0x4008_f502;
const PG_ENGAGE: u32 = 0x4008_f503;
const PG_DISENGAGE: u32 = 0x4008_f504;
const PG_SYNC: u32 = 0x4008_f505;
const PG_CLOSE: u32 = 0x4008_f506;
const PG_ENGAGE_FD: u32 = 0x4008_f507;
const PG_DISENGAGE_FD: u32 = 0x4008_f508;
const PG_ORDER_BEGIN: u32 = 0x4008_f510;
const PG_ORDER_END: u32 = 0x0000_f511;
const PG_ORDER_USERS: u32 = 0xc100_f512;

/// What an ioctl of this family asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Version,
    Users { after: u32 },
    Call(Call),
}

impl Asked {
    /// `None` for ioctls of other families, and for numbers that the specification does not have.
    pub(super) fn decode(number: u32, ino: InodeNo, input: &[u8]) -> Option<Result<Self>> {
        let asked = match number {
            PG_VERSION => zeros(input, 0, 4).map(|()| Self::Version),
            PG_CREATE => zeros(input, 0, 2).map(|()| Self::Call(Call::Create)),
            PG_DEPEND => both(input).map(|(after, before)| Self::Call(Call::Depend { after, before })),
            PG_ENGAGE => one(input).map(|no| Self::Call(Call::Engage(no, About::Everything))),
            PG_DISENGAGE => one(input).map(|no| Self::Call(Call::Disengage(no, About::Everything))),
            PG_SYNC => one(input).map(|no| Self::Call(Call::Sync(no))),
            PG_CLOSE => one(input).map(|no| Self::Call(Call::Close(no))),
            PG_ENGAGE_FD => one(input).map(|no| Self::Call(Call::Engage(no, About::File(ino)))),
            PG_DISENGAGE_FD => one(input).map(|no| Self::Call(Call::Disengage(no, About::File(ino)))),
            PG_ORDER_BEGIN => order(input).map(Self::Call),
            PG_ORDER_END => Ok(Self::Call(Call::OrderEnd)),
            PG_ORDER_USERS => {
                zeros(input, 1, USERS_WORDS).and_then(|()| word(input, 0)).map(|after| Self::Users { after })
            }
            _ => return None,
        };
        Some(asked)
    }

    /// Whether it waits for the medium.
    pub(super) fn is_slow(self) -> bool {
        matches!(self, Self::Call(Call::Sync(_)))
    }

    /// Does it; answers what goes back to the caller.
    pub(super) fn perform(self, scopes: &Arc<Scopes>, from: Asker) -> Result<Vec<u8>> {
        match self {
            Self::Version => {
                let features = if scopes.work_here() { FEATURE_GROUPS | FEATURE_ORDER } else { 0 };
                Ok(bytes([VERSION, features, number(GROUPS_MAX), 0]))
            }
            Self::Users { after } => Ok(users(scopes, after)),
            Self::Call(Call::Create) => scopes.call(from, Call::Create).map(|id| bytes([0, id])),
            Self::Call(call) => scopes.call(from, call).map(|_| Vec::new()),
        }
    }
}

fn word(input: &[u8], no: usize) -> Result<u32> {
    let word = input.get(4 * no..).and_then(|rest| rest.first_chunk::<4>()).ok_or(Errno::INVAL)?;
    Ok(u32::from_ne_bytes(*word))
}

fn both(input: &[u8]) -> Result<(u32, u32)> {
    Ok((word(input, 0)?, word(input, 1)?))
}

/// The words of a structure that has `count` must be 0 from `from` on.
fn zeros(input: &[u8], from: usize, count: usize) -> Result<()> {
    let rest = input.get(4 * from..4 * count).ok_or(Errno::INVAL)?;
    if rest.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(Errno::INVAL.into()) }
}

/// A number without flags.
fn one(input: &[u8]) -> Result<u32> {
    zeros(input, 1, 2)?;
    word(input, 0)
}

fn order(input: &[u8]) -> Result<Call> {
    match both(input)? {
        (flags @ 0..=EVERY_CHANGE, durable_every_ms) => {
            Ok(Call::OrderBegin { durable_every_ms, every_change: flags == EVERY_CHANGE })
        }
        _ => Err(Errno::INVAL.into()),
    }
}

fn bytes(words: impl IntoIterator<Item = u32>) -> Vec<u8> {
    words.into_iter().flat_map(u32::to_ne_bytes).collect()
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn users(scopes: &Scopes, after: u32) -> Vec<u8> {
    let all: Vec<_> = scopes.users().into_iter().filter(|(pid, _)| *pid > after).collect();
    let some = &all[..all.len().min(USERS_MAX)];
    let cursor = if some.len() == all.len() { 0 } else { some.last().map_or(0, |(pid, _)| *pid) };
    let flags = if scopes.orders_everybody() { EVERYBODY } else { 0 };
    let milliseconds = |every: Option<std::time::Duration>| {
        every.map_or(0, |every| u32::try_from(every.as_millis()).unwrap_or(u32::MAX))
    };
    let mut words = vec![cursor, flags, number(some.len()), 0];
    words.extend(some.iter().flat_map(|(pid, every)| [*pid, milliseconds(*every)]));
    words.resize(USERS_WORDS, 0);
    bytes(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers as the macros of Linux make them.
    fn made(direction: u32, no: u32, words: u32) -> u32 {
        direction << 30 | (4 * words) << 16 | 0xf5 << 8 | no
    }

    #[test]
    fn numbers_encode_directions_and_sizes() {
        assert_eq!(PG_VERSION, made(3, 0, 4));
        assert_eq!(PG_CREATE, made(3, 1, 2));
        let two = [PG_DEPEND, PG_ENGAGE, PG_DISENGAGE, PG_SYNC, PG_CLOSE, PG_ENGAGE_FD, PG_DISENGAGE_FD];
        for (no, number) in (2..).zip(two) {
            assert_eq!(number, made(1, no, 2));
        }
        assert_eq!(PG_ORDER_BEGIN, made(1, 0x10, 2));
        assert_eq!(PG_ORDER_END, made(0, 0x11, 0));
        assert_eq!(PG_ORDER_USERS, made(3, 0x12, number(USERS_WORDS)));
    }

    #[test]
    fn reserved_fields_and_short_input_are_refused() {
        let ino = InodeNo(5);
        let decode = |number, words: &[u32]| Asked::decode(number, ino, &bytes(words.iter().copied()));
        assert!(decode(0x5401, &[]).is_none() && decode(0xc008_f5ff, &[0, 0]).is_none());
        let engaged = decode(PG_ENGAGE_FD, &[3, 0]).unwrap().unwrap();
        assert_eq!(engaged, Asked::Call(Call::Engage(3, About::File(ino))));
        for (flags, every_change) in [(0, false), (1, true)] {
            let begun = decode(PG_ORDER_BEGIN, &[flags, 9]).unwrap().unwrap();
            assert_eq!(begun, Asked::Call(Call::OrderBegin { durable_every_ms: 9, every_change }));
        }
        for refused in [
            decode(PG_CREATE, &[1, 0]),
            decode(PG_ENGAGE, &[3, 1]),
            decode(PG_ENGAGE, &[3]),
            decode(PG_ENGAGE, &[]),
            decode(PG_DEPEND, &[1]),
            decode(PG_VERSION, &[0, 0, 0, 9]),
            decode(PG_ORDER_BEGIN, &[2, 0]),
        ] {
            assert_eq!(refused.unwrap().unwrap_err().errno(), Errno::INVAL);
        }
    }
}
