//! Numbers that count different things are different types.

use crate::num::to_usize;
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// This number as an index into memory.
            ///
            /// # Panics
            /// If it does not fit `usize`, which cannot happen on 64-bit machines.
            #[must_use]
            pub fn index(self) -> usize {
                to_usize(self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

number!(
    /// A block's number on a device or volume, counted from 0 in units of that device's block size.
    BlockNo
);
number!(
    /// An inode's number, as the format counts it (ext2: from 1, root is 2).
    InodeNo
);
number!(
    /// A byte's position in a file or on a device, from 0.
    ByteOff
);
