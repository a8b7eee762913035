//! Times on disk: 32-bit signed seconds and, in inodes larger than 128 bytes, a second word with nanoseconds
//! and two more bits of seconds, which reach from 1901 to 2446.

use fstitch_core::Timestamp;

use super::num::low32;

/// The earliest time, in seconds.
pub const SECS_MIN: i64 = -(1 << 31);
/// The latest time that a 128-byte inode stores.
pub const SECS_MAX_SMALL: i64 = (1 << 31) - 1;
/// The latest time that larger inodes store: 2446-05-10.
pub const SECS_MAX_LARGE: i64 = (1 << 34) - (1 << 31) - 1;

/// The two words of `time`: seconds, and nanoseconds with epoch bits. Times outside the range that fits
/// are moved to its end. Without `extra` (128-byte inodes) the second word is 0.
#[must_use]
pub fn encode(time: Timestamp, extra: bool) -> (u32, u32) {
    if !extra {
        return (bits(time.secs.clamp(SECS_MIN, SECS_MAX_SMALL)), 0);
    }
    if time.secs > SECS_MAX_LARGE {
        return encode(Timestamp { secs: SECS_MAX_LARGE, nanos: 999_999_999 }, true);
    }
    let secs = time.secs.max(SECS_MIN);
    // What the low word, read back as signed, lacks: a multiple of 2^32 between 0 and 3 of them.
    let epoch = (secs - SECS_MIN) >> 32;
    (bits(secs), time.nanos << 2 | bits(epoch))
}

/// The time of two words as [`encode`] makes them.
#[must_use]
pub fn decode(secs: u32, extra: u32) -> Timestamp {
    let signed = i64::from(secs.cast_signed());
    let nanos = (extra >> 2).min(999_999_999);
    Timestamp { secs: signed + (i64::from(extra & 3) << 32), nanos }
}

/// `time` as it comes back after being stored.
#[must_use]
pub fn rounded(time: Timestamp, extra: bool) -> Timestamp {
    let (secs, word) = encode(time, extra);
    decode(secs, word)
}

fn bits(secs: i64) -> u32 {
    low32(secs.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_inodes_reach_2446_with_nanoseconds() {
        for secs in [SECS_MIN, -1, 0, 1 << 31, (1 << 32) - 1, 1 << 32, 10_000_000_000, SECS_MAX_LARGE] {
            let time = Timestamp { secs, nanos: 123_456_789 };
            assert_eq!(rounded(time, true), time, "{secs}");
        }
        assert_eq!(rounded(Timestamp { secs: SECS_MAX_LARGE + 5, nanos: 1 }, true).secs, SECS_MAX_LARGE);
        assert_eq!(rounded(Timestamp { secs: SECS_MIN - 5, nanos: 1 }, true).secs, SECS_MIN);
    }

    #[test]
    fn the_words_are_the_specified_ones() {
        // 2038-01-19T03:14:08Z is the first second that needs an epoch bit.
        assert_eq!(encode(Timestamp { secs: 1 << 31, nanos: 1 }, true), (0x8000_0000, 0b101));
        assert_eq!(encode(Timestamp { secs: -1, nanos: 0 }, true), (0xffff_ffff, 0));
    }

    #[test]
    fn small_inodes_stop_at_2038() {
        assert_eq!(
            rounded(Timestamp { secs: 1 << 40, nanos: 7 }, false),
            Timestamp { secs: SECS_MAX_SMALL, nanos: 0 }
        );
        assert_eq!(rounded(Timestamp { secs: -7, nanos: 7 }, false), Timestamp { secs: -7, nanos: 0 });
    }
}
