//! The kernel's first message, in which both sides say what they can do.

use std::io::{Error, ErrorKind, Result};

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::{Device, TRANSFER_MAX};
use crate::wire::{Capabilities, InHeader, InitIn, InitOut, opcode};

const MAJOR: u32 = 7;
/// The newest protocol whose messages are known here.
const MINOR: u32 = 42;
/// The oldest one that has all structures as they are used here (Linux 3.15).
const MINOR_LEAST: u32 = 23;

/// Requests that nobody waits for (read-ahead) under way at a time, and where the kernel takes that for congestion.
const BACKGROUND_MAX: u16 = 16;
const CONGESTION: u16 = 12;

const EPROTO: i32 = 71;

/// A greeting that waits for its answer.
pub(super) struct Greeting {
    unique: u64,
    init: InitIn,
}

/// Waits for the greeting.
pub(super) fn receive(device: &Device) -> Result<Greeting> {
    let mut memory = vec![0; TRANSFER_MAX + 4096];
    loop {
        let Some(len) = device.receive(&mut memory)? else {
            return Err(Error::new(ErrorKind::NotConnected, "the mount vanished before it was greeted"));
        };
        let greeting = Greeting::decode(&memory[..len])
            .ok_or_else(|| Error::new(ErrorKind::InvalidData, "the kernel's first message is no greeting"))?;
        match (greeting.init.major, greeting.init.minor) {
            (MAJOR, MINOR_LEAST..) => return Ok(greeting),
            // A newer kernel asks once more, in our terms.
            (major, _) if major > MAJOR => greeting.send(device, Capabilities(0))?,
            (major, minor) => {
                device.send(greeting.unique, -EPROTO, [&[], &[]])?;
                let least =
                    format!("the kernel's FUSE protocol is {major}.{minor}, {MAJOR}.{MINOR_LEAST} is needed");
                return Err(Error::new(ErrorKind::Unsupported, least));
            }
        }
    }
}

impl Greeting {
    fn decode(message: &[u8]) -> Option<Self> {
        let (header, rest) = InHeader::read_from_prefix(message).ok()?;
        let mut init = InitIn::new_zeroed();
        // Older kernels send the first four words.
        let given = rest.len().min(size_of::<InitIn>());
        init.as_mut_bytes()[..given].copy_from_slice(&rest[..given]);
        (header.opcode == opcode::INIT && given >= 16).then_some(Self { unique: header.unique, init })
    }

    pub(super) fn offered(&self) -> Capabilities {
        let offered = Capabilities::of(self.init.flags, 0);
        if offered.has(Capabilities::INIT_EXT) {
            Capabilities::of(self.init.flags, self.init.flags2)
        } else {
            offered
        }
    }

    /// Answers that `wanted` is used, as far as it is offered.
    pub(super) fn answer(&self, device: &Device, wanted: Capabilities) -> Result<()> {
        let basic = [
            Capabilities::ASYNC_READ,
            Capabilities::BIG_WRITES,
            Capabilities::MAX_PAGES,
            Capabilities::INIT_EXT,
        ];
        let wanted = basic.into_iter().fold(wanted, Capabilities::with);
        self.send(device, Capabilities(wanted.0 & self.offered().0))
    }

    fn send(&self, device: &Device, used: Capabilities) -> Result<()> {
        let (flags, flags2) = used.words();
        let answer = InitOut {
            major: MAJOR,
            minor: MINOR,
            max_readahead: self.init.max_readahead,
            flags,
            max_background: BACKGROUND_MAX,
            congestion_threshold: CONGESTION,
            max_write: u32::try_from(TRANSFER_MAX).expect("a mebibyte"),
            time_gran: 1,
            max_pages: u16::try_from(TRANSFER_MAX / rustix::param::page_size()).unwrap_or(1).max(1),
            map_alignment: 0,
            flags2,
            max_stack_depth: 0,
            unused: [0; 6],
        };
        device.send(self.unique, 0, [answer.as_bytes(), &[]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(opcode: u32, words: &[u32]) -> Vec<u8> {
        let header = InHeader { len: 0, opcode, unique: 5, nodeid: 0, uid: 0, gid: 0, pid: 0, padding: 0 };
        [header.as_bytes(), words.as_bytes()].concat()
    }

    #[test]
    fn short_greetings_offer_the_first_word_only() {
        let high = Capabilities::OVER_IO_URING.words().1;
        let offered = |words: &[u32]| Greeting::decode(&message(opcode::INIT, words)).map(|g| g.offered());
        let all = Capabilities::INIT_EXT.with(Capabilities::OVER_IO_URING);
        assert_eq!(offered(&[7, 42, 0, 1 << 30, high]), Some(all));
        assert_eq!(offered(&[7, 31, 0, 1 << 5]), Some(Capabilities::BIG_WRITES));
        assert_eq!(
            offered(&[7, 31, 0, 1 << 5, high]),
            Some(Capabilities::BIG_WRITES),
            "not said to be there"
        );
        assert_eq!(offered(&[7, 31, 0]), None);
        assert!(Greeting::decode(&message(opcode::LOOKUP, &[7, 42, 0, 0])).is_none());
    }
}
