//! The FUSE protocol: what the kernel asks and how it is answered, as `include/uapi/linux/fuse.h` of Linux lays it
//! out. Numbers are in the machine's byte order.
//!
//! A message is a header, a structure of fixed length that its operation determines, and what follows: names, contents.
//! Over `/dev/fuse` the three follow each other, over io_uring each has a place of its own ([`crate::transport`]), so
//! [`Request::decode`] takes them apart from each other.

mod layout;
mod reply;
mod request;

pub(crate) use self::layout::{
    Attr, AttrOut, Capabilities, DirentOut, EntryOut, InHeader, InitIn, InitOut, OutHeader, StatfsOut, opcode,
};
pub(crate) use self::reply::{Reply, Route};
pub(crate) use self::request::{Node, Op, Request, Room, Set, fixed_len, room_len};
