//! What is served: bytes with a size, under names.

use std::ops::ControlFlow;
use std::sync::Arc;

use fstitch_core::num::{to_u64, to_usize};
use fstitch_core::{Errno, Result};

/// In which pieces an export is used, in bytes; powers of two but for the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Every request begins and ends at a multiple of it; others are refused. At most 65,536.
    pub minimum: u32,
    /// Requests of this size, or a multiple, are cheapest.
    pub preferred: u32,
    /// Longest read or write. The server has a limit of its own, [`Options::payload_max`](crate::Options::payload_max).
    pub maximum: u32,
}

impl Default for BlockSizes {
    fn default() -> Self {
        Self { minimum: 1, preferred: 4096, maximum: 32 << 20 }
    }
}

/// What an export can do. Constant while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    /// In which pieces it is used.
    pub block: BlockSizes,
    /// Nothing may change it: the server refuses changes by itself.
    pub is_read_only: bool,
    /// A client may use several connections at once: what one of them has flushed or seen, all see, and a flush on one covers
    /// the writes that were acknowledged on any.
    pub has_multi_conn: bool,
    /// Distance between requests costs time.
    pub is_rotational: bool,
    /// [`Export::status`] is cheap and knows of zeros: the server asks it before long reads, and does not send the zeros.
    pub has_status: bool,
}

/// How zeros are to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroOptions {
    /// The space may be given back, so that a later write may find none left.
    pub may_trim: bool,
    /// If this is no faster than writing the zeros out, nothing is to be done, and the answer is `EOPNOTSUPP`.
    pub fast: bool,
    /// Stable when it returns.
    pub fua: bool,
}

/// Bytes of one kind, of which the place follows from those before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How many; not 0.
    pub len: u64,
    /// They have no space: a write may find none.
    pub is_hole: bool,
    /// They read as zeros.
    pub is_zero: bool,
}

impl Extent {
    /// Bytes of which nothing is known.
    #[must_use]
    pub const fn data(len: u64) -> Self {
        Self { len, is_hole: false, is_zero: false }
    }

    /// Zeros without space.
    #[must_use]
    pub const fn hole(len: u64) -> Self {
        Self { len, is_hole: true, is_zero: true }
    }
}

/// Bytes that clients read and write. All methods may be called from several threads at once, for places that overlap, too;
/// requests in flight have no order. The server never asks for anything beyond [`Export::size`], nor for nothing at all, nor for
/// anything that is not in multiples of the minimum of [`BlockSizes`].
///
/// A panic in an export ends its connection, and nothing else.
///
/// # Errors
/// Every method fails with what went wrong, which the client is told in the words of NBD: errors of POSIX as they are where NBD
/// knows them, and `EIO` for a failed medium and all else.
pub trait Export: Send + Sync {
    /// The size in bytes, now. Clients that connect are told; those that are connected already cannot be, but what they ask for
    /// beyond the size of that moment is refused. The bytes behind the last multiple of the minimum block size are not served.
    fn size(&self) -> u64;

    /// What it can do.
    fn features(&self) -> Features;

    /// Its proper name, if that is not what it was asked for by.
    fn name(&self) -> Option<String> {
        None
    }

    /// A line for people.
    fn description(&self) -> Option<String> {
        None
    }

    /// Fills `into` with the bytes from `offset` on. What it holds before is anything.
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Writes bytes; with `fua` they are stable when it returns.
    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<()>;

    /// When it returns, all that was acknowledged before the call is stable.
    fn flush(&self) -> Result<()>;

    /// The contents are no longer needed, and read as anything. A hint.
    fn trim(&self, offset: u64, len: u64, fua: bool) -> Result<()> {
        let _ = (offset, len);
        if fua { self.flush() } else { Ok(()) }
    }

    /// Makes the bytes read as zeros.
    fn write_zeroes(&self, offset: u64, len: u64, how: ZeroOptions) -> Result<()> {
        if how.fast {
            return Err(Errno::OPNOTSUPP.into());
        }
        write_zeros_out(self, offset, len)?;
        if how.fua { self.flush() } else { Ok(()) }
    }

    /// The bytes will be read soon. A hint.
    fn cache(&self, offset: u64, len: u64) -> Result<()> {
        let _ = (offset, len);
        Ok(())
    }

    /// Tells `sink` of what kind the bytes from `offset` on are, extent by extent without a gap, until it breaks off or `len`
    /// bytes are told of; more do no harm. Saying less means that of the rest nothing is known.
    fn status(&self, offset: u64, len: u64, sink: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let _ = offset;
        let _ = sink(Extent::data(len));
        Ok(())
    }
}

/// Writes zeros like any other bytes, in pieces that keep memory small.
fn write_zeros_out<E: Export + ?Sized>(export: &E, offset: u64, len: u64) -> Result<()> {
    const PIECE: u64 = 1 << 18;
    let zeros = vec![0; to_usize(len.min(PIECE))];
    let mut done = 0;
    while done < len {
        let piece = &zeros[..to_usize((len - done).min(PIECE))];
        export.write(offset + done, piece, false)?;
        done += to_u64(piece.len());
    }
    Ok(())
}

/// A name that clients may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// A line for people; may be empty.
    pub description: String,
}

/// The exports of a server, by name.
pub trait Exports: Send + Sync {
    /// Those that clients are told of. There may be others.
    ///
    /// # Errors
    /// Whatever stands in the way; clients are refused the list.
    fn list(&self) -> Result<Vec<Listed>>;

    /// What stands for the name to a new connection. A connection asks once for a name as long as it asks for no other one:
    /// looking at an export and then using it are one opening. Whatever is returned is dropped when the connection asks for
    /// another name or ends, after its last request has returned; that may be where work that was not finished is undone.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EACCES` or `EPERM` if it is not for this client, or what else stands in the way.
    fn open(&self, name: &str) -> Result<Arc<dyn Export>>;
}

/// One export, whatever name it is asked for by.
pub struct Single(pub Arc<dyn Export>);

impl std::fmt::Debug for Single {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Single({} bytes)", self.0.size())
    }
}

impl Exports for Single {
    fn list(&self) -> Result<Vec<Listed>> {
        let description = self.0.description().unwrap_or_default();
        Ok(vec![Listed { name: self.0.name().unwrap_or_default(), description }])
    }

    fn open(&self, _name: &str) -> Result<Arc<dyn Export>> {
        Ok(Arc::clone(&self.0))
    }
}
