//! Typed positions of integers in on-disk structures.

use std::marker::PhantomData;

/// An unsigned little-endian integer of a fixed width.
pub trait FieldInt: Copy {
    /// Bytes on disk.
    const SIZE: usize;
    /// The encoded form.
    type Bytes: AsRef<[u8]> + Copy;
    /// Reads the integer that starts at `at`.
    fn read(bytes: &[u8], at: usize) -> Self;
    /// The integer's bytes.
    fn encode(self) -> Self::Bytes;
}

macro_rules! field_int {
    ($($int:ty),*) => {$(
        impl FieldInt for $int {
            const SIZE: usize = size_of::<$int>();
            type Bytes = [u8; size_of::<$int>()];
            fn read(bytes: &[u8], at: usize) -> Self {
                let mut raw = [0; size_of::<$int>()];
                raw.copy_from_slice(&bytes[at..at + size_of::<$int>()]);
                Self::from_le_bytes(raw)
            }
            fn encode(self) -> Self::Bytes {
                self.to_le_bytes()
            }
        }
    )*};
}

field_int!(u8, u16, u32, u64);

/// A field of an on-disk structure: an integer type at an offset in bytes from the structure's start.
#[derive(Clone, Copy, Debug)]
pub struct Field<T> {
    offset: usize,
    int: PhantomData<T>,
}

impl<T: FieldInt> Field<T> {
    /// The field at `offset`.
    #[must_use]
    pub const fn at(offset: usize) -> Self {
        Self { offset, int: PhantomData }
    }

    /// Bytes from the start of the structure to the field.
    #[must_use]
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Bytes from the start of the structure to what follows the field.
    #[must_use]
    pub const fn end(self) -> usize {
        self.offset + T::SIZE
    }

    /// Reads the field of the structure that starts with `bytes`.
    ///
    /// # Panics
    /// If `bytes` is shorter than the structure: callers slice whole structures.
    #[must_use]
    pub fn get(self, bytes: &[u8]) -> T {
        T::read(bytes, self.offset)
    }

    /// Writes the field into the structure that starts with `bytes`.
    ///
    /// # Panics
    /// As [`Field::get`].
    pub fn put(self, bytes: &mut [u8], value: T) {
        bytes[self.offset..self.end()].copy_from_slice(value.encode().as_ref());
    }
}

/// Declares [`Field`] constants: `NAME: type @ offset;`.
macro_rules! fields {
    ($($(#[$doc:meta])* $name:ident: $int:ident @ $offset:expr;)*) => {
        $($(#[$doc])* pub const $name: $crate::ext2::layout::Field<$int> =
            $crate::ext2::layout::Field::at($offset);)*
    };
}
pub(crate) use fields;
