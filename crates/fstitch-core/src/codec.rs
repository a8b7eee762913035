//! Integers in byte slices, in the two byte orders that formats use.
//!
//! Every reader panics when the slice is too short: callers validate lengths once, where untrusted bytes
//! become types, and offsets in formats are constants.

macro_rules! codec {
    ($(#[$doc:meta])* $name:ident, $from:ident, $to:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $name {
            /// Reads 16 bits at `at`.
            #[must_use]
            pub fn u16(bytes: &[u8], at: usize) -> u16 {
                u16::$from([bytes[at], bytes[at + 1]])
            }

            /// Reads 32 bits at `at`.
            #[must_use]
            pub fn u32(bytes: &[u8], at: usize) -> u32 {
                u32::$from([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
            }

            /// Reads 64 bits at `at`.
            #[must_use]
            pub fn u64(bytes: &[u8], at: usize) -> u64 {
                let mut raw = [0; 8];
                raw.copy_from_slice(&bytes[at..at + 8]);
                u64::$from(raw)
            }

            /// Writes 16 bits at `at`.
            pub fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
                bytes[at..at + 2].copy_from_slice(&value.$to());
            }

            /// Writes 32 bits at `at`.
            pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
                bytes[at..at + 4].copy_from_slice(&value.$to());
            }

            /// Writes 64 bits at `at`.
            pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
                bytes[at..at + 8].copy_from_slice(&value.$to());
            }
        }
    };
}

codec!(
    /// Little-endian integers (ext2, ext3, most UFS images).
    Le, from_le_bytes, to_le_bytes
);
codec!(
    /// Big-endian integers (JBD, some UFS images).
    Be, from_be_bytes, to_be_bytes
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders_round_trip() {
        let mut bytes = [0; 16];
        Le::put_u32(&mut bytes, 1, 0x0102_0304);
        assert_eq!(bytes[1..5], [4, 3, 2, 1]);
        assert_eq!(Le::u32(&bytes, 1), 0x0102_0304);
        Be::put_u64(&mut bytes, 8, 0x0102_0304_0506_0708);
        assert_eq!(bytes[8..], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(Be::u16(&bytes, 9), 0x0203);
    }
}
