//! The ioctls of `docs/spec/patchgroup-ioctl.md`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{NoArg, Opcode, Setter, Updater, ioctl, opcode};

use crate::call::{Call, Calls, GroupNo, OrderUser, OrderUsers};

/// The type of all these ioctls.
const TYPE: u8 = 0xF5;
/// The version that this crate speaks.
const VERSION: u32 = 1;
/// Pairs in one answer to `PG_ORDER_USERS`.
const USERS_MAX: usize = 30;
/// In the flags of that answer: the whole mount has ordered fsync.
const WHOLE_MOUNT: u32 = 1;

/// Two numbers, which most calls take.
type Pair = [u32; 2];
/// `{ version, features, groups_max, reserved }`.
type Version = [u32; 4];
/// `{ cursor, flags, count, reserved, { pid, durable_every_ms } × 30 }`.
type Users = [u32; 4 + 2 * USERS_MAX];

const PG_VERSION: Opcode = opcode::read_write::<Version>(TYPE, 0);
const PG_CREATE: Opcode = opcode::read_write::<Pair>(TYPE, 1);
const PG_DEPEND: Opcode = opcode::write::<Pair>(TYPE, 2);
const PG_ENGAGE: Opcode = opcode::write::<Pair>(TYPE, 3);
const PG_DISENGAGE: Opcode = opcode::write::<Pair>(TYPE, 4);
const PG_SYNC: Opcode = opcode::write::<Pair>(TYPE, 5);
const PG_CLOSE: Opcode = opcode::write::<Pair>(TYPE, 6);
const PG_ENGAGE_FD: Opcode = opcode::write::<Pair>(TYPE, 7);
const PG_DISENGAGE_FD: Opcode = opcode::write::<Pair>(TYPE, 8);
const PG_ORDER_BEGIN: Opcode = opcode::write::<Pair>(TYPE, 0x10);
const PG_ORDER_END: Opcode = opcode::none(TYPE, 0x11);
const PG_ORDER_USERS: Opcode = opcode::read_write::<Users>(TYPE, 0x12);

/// The mount itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;

/// What the volume that `on` is open on can do: the bits of the specification. An error where there is nothing like
/// patchgroups, or only versions that this crate does not speak.
pub(crate) fn features(on: BorrowedFd<'_>) -> io::Result<u32> {
    let mut answer: Version = [0; 4];
    update::<PG_VERSION, _>(on, &mut answer)?;
    if answer[0] == VERSION { Ok(answer[1]) } else { Err(rustix::io::Errno::OPNOTSUPP.into()) }
}

impl Calls for Kernel {
    fn create(&self, on: BorrowedFd<'_>) -> io::Result<GroupNo> {
        let mut answer: Pair = [0; 2];
        update::<PG_CREATE, _>(on, &mut answer)?;
        Ok(GroupNo(answer[1]))
    }

    fn call(&self, on: BorrowedFd<'_>, call: Call) -> io::Result<()> {
        match call {
            Call::Depend { after, before } => set::<PG_DEPEND>(on, [after.0, before.0]),
            Call::Engage(group) => set::<PG_ENGAGE>(on, [group.0, 0]),
            Call::Disengage(group) => set::<PG_DISENGAGE>(on, [group.0, 0]),
            Call::EngageFile(group) => set::<PG_ENGAGE_FD>(on, [group.0, 0]),
            Call::DisengageFile(group) => set::<PG_DISENGAGE_FD>(on, [group.0, 0]),
            Call::Sync(group) => set::<PG_SYNC>(on, [group.0, 0]),
            Call::Close(group) => set::<PG_CLOSE>(on, [group.0, 0]),
            Call::OrderBegin { every_change, durable_every_ms } => {
                set::<PG_ORDER_BEGIN>(on, [u32::from(every_change), durable_every_ms])
            }
            // SAFETY: PG_ORDER_END has no argument.
            Call::OrderEnd => Ok(unsafe { ioctl(on, NoArg::<PG_ORDER_END>::new()) }?),
        }
    }

    fn order_users(&self, on: BorrowedFd<'_>) -> io::Result<OrderUsers> {
        let mut found = OrderUsers::default();
        let mut cursor = 0;
        loop {
            let mut answer: Users = [0; 4 + 2 * USERS_MAX];
            answer[0] = cursor;
            update::<PG_ORDER_USERS, _>(on, &mut answer)?;
            let [next, flags, count, _, pairs @ ..] = answer;
            found.whole_mount |= flags & WHOLE_MOUNT != 0;
            let count = usize::try_from(count).unwrap_or(USERS_MAX);
            let users = pairs.chunks_exact(2).take(count);
            found.users.extend(users.map(|pair| OrderUser { pid: pair[0], durable_every_ms: pair[1] }));
            // A cursor that does not grow would ask for ever.
            if next <= cursor {
                return Ok(found);
            }
            cursor = next;
        }
    }
}

/// A call that reads a structure.
fn set<const OPCODE: Opcode>(on: BorrowedFd<'_>, pair: Pair) -> io::Result<()> {
    // SAFETY: only numbers above that are made for a `Pair` are used here, and the kernel reads one.
    Ok(unsafe { ioctl(on, Setter::<OPCODE, Pair>::new(pair)) }?)
}

/// A call that reads a structure and writes the answer over it.
fn update<const OPCODE: Opcode, T>(on: BorrowedFd<'_>, value: &mut T) -> io::Result<()> {
    // SAFETY: each number above carries the size of the structure that it is used with, rows of `u32`, of which
    // every value is valid; the kernel reads and writes so many bytes.
    Ok(unsafe { ioctl(on, Updater::<OPCODE, T>::new(value)) }?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_specification() {
        let numbers = [
            (PG_VERSION, 0xC010_F500),
            (PG_CREATE, 0xC008_F501),
            (PG_DEPEND, 0x4008_F502),
            (PG_ENGAGE, 0x4008_F503),
            (PG_DISENGAGE, 0x4008_F504),
            (PG_SYNC, 0x4008_F505),
            (PG_CLOSE, 0x4008_F506),
            (PG_ENGAGE_FD, 0x4008_F507),
            (PG_DISENGAGE_FD, 0x4008_F508),
            (PG_ORDER_BEGIN, 0x4008_F510),
            (PG_ORDER_END, 0x0000_F511),
            (PG_ORDER_USERS, 0xC100_F512),
        ];
        for (number, specified) in numbers {
            assert_eq!(number, specified, "{number:x} is not {specified:x}");
        }
    }
}
