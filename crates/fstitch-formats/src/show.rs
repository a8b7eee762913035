//! Sizes, times and UUIDs as people read them.

use fstitch_core::Timestamp;

/// A size for people: three digits or so, and a unit.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift > 0 {
            let tenths = (u128::from(bytes) * 10) >> shift;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{bytes} bytes")
}

/// A time in UTC, as ISO 8601 has it.
#[must_use]
pub fn time(time: Timestamp) -> String {
    let (days, second) = (time.secs.div_euclid(86_400), time.secs.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The date of a day counted from 1970-01-01, by eras of 400 years that start on 1 March.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// A UUID as people write it.
#[must_use]
pub fn uuid(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The UUID that people write so.
#[must_use]
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let dashes = text.char_indices().filter(|(_, c)| *c == '-').map(|(at, _)| at);
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let lawful = dashes.eq([8, 13, 18, 23]) && digits.len() == 32 && digits.is_ascii();
    let mut bytes = [0; 16];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(at * 2..at * 2 + 2)?, 16).ok()?;
    }
    lawful.then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown() {
        let show = |secs| time(Timestamp { secs, nanos: 0 });
        assert_eq!(show(0), "1970-01-01T00:00:00Z");
        assert_eq!(show(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(show(-1), "1969-12-31T23:59:59Z");
        assert_eq!(show(15_032_385_535), "2446-05-10T22:38:55Z");
    }

    #[test]
    fn uuids_survive_writing_and_reading() {
        let text = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
        assert_eq!(uuid(&parse_uuid(text).unwrap()), text);
        assert_eq!(parse_uuid("6ba7b8109dad-11d1-80b4-00c04fd430c8"), None);
        assert_eq!(parse_uuid("6ba7b810-9dad-11d1-80b4-00c04fd430cg"), None);
        assert_eq!(parse_uuid(""), None);
    }
}
