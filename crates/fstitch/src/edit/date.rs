//! Dates as `touch -d` takes them: `@SECONDS`, or ISO 8601.

use fstitch_core::Timestamp;

/// Reads `@1700000000`, `@1.5`, `2023-11-14`, `2023-11-14T22:13:20`, with fractions of a second and `Z` or `+01:00` at its
/// end; UTC without. A blank does for the `T`.
pub fn parse(text: &str) -> Result<Timestamp, String> {
    let known = || {
        format!(
            "`{text}` is no date: write 2023-11-14, 2023-11-14T22:13:20+01:00 (UTC without a zone) or @SECONDS"
        )
    };
    let parsed = match text.strip_prefix('@') {
        Some(seconds) => since_epoch(seconds),
        None => iso(text),
    };
    parsed.ok_or_else(known)
}

fn since_epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let negative = whole.starts_with('-');
    let (secs, nanos): (i64, u32) = (whole.parse().ok()?, nanos(fraction)?);
    match (negative, nanos) {
        (true, 1..) => Some(Timestamp { secs: secs.checked_sub(1)?, nanos: 1_000_000_000 - nanos }),
        _ => Some(Timestamp { secs, nanos }),
    }
}

/// Nanoseconds of the digits behind a point.
fn nanos(digits: &str) -> Option<u32> {
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let nine: String = digits.chars().chain("000000000".chars()).take(9).collect();
    nine.parse().ok()
}

fn iso(text: &str) -> Option<Timestamp> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time),
        None => (text, "00:00:00"),
    };
    let (time, zone) = zone(time)?;
    let mut parts = date.split('-');
    let (year, month, day) = (field(parts.next()?, 4)?, field(parts.next()?, 2)?, field(parts.next()?, 2)?);
    if parts.next().is_some() || !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    let mut parts = time.split(':');
    let (hour, minute) = (field(parts.next()?, 2)?, field(parts.next()?, 2)?);
    let (second, fraction) =
        parts.next().map_or(("00", ""), |part| part.split_once('.').unwrap_or((part, "")));
    let second = field(second, 2)?;
    if parts.next().is_some() || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let secs = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second - zone;
    Some(Timestamp { secs, nanos: nanos(fraction)? })
}

/// A time, and the seconds by which its zone is ahead of UTC.
fn zone(time: &str) -> Option<(&str, i64)> {
    if let Some(utc) = time.strip_suffix('Z') {
        return Some((utc, 0));
    }
    let Some(at) = time.rfind(['+', '-']) else { return Some((time, 0)) };
    let sign = if time[at..].starts_with('-') { -1 } else { 1 };
    let digits: String = time[at + 1..].chars().filter(|c| *c != ':').collect();
    let (hours, minutes) = match digits.len() {
        2 => (field(&digits, 2)?, 0),
        4 => (field(&digits[..2], 2)?, field(&digits[2..], 2)?),
        _ => return None,
    };
    Some((time[..at].trim_end(), sign * (hours * 3600 + minutes * 60)))
}

/// A number of exactly so many digits.
fn field(text: &str, digits: usize) -> Option<i64> {
    let lawful = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    if lawful { text.parse().ok() } else { None }
}

fn days_in(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1970-01-01 to a date, by eras of 400 years that start on 1 March.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_read() {
        for (text, secs, nanos) in [
            ("@0", 0, 0),
            ("@-1", -1, 0),
            ("@1.5", 1, 500_000_000),
            ("@-1.5", -2, 500_000_000),
            ("1970-01-01", 0, 0),
            ("2023-11-14T22:13:20", 1_700_000_000, 0),
            ("2023-11-14 22:13:20Z", 1_700_000_000, 0),
            ("2023-11-14T23:13:20+01:00", 1_700_000_000, 0),
            ("2023-11-14 17:13:20 -0500", 1_700_000_000, 0),
            ("2023-11-14T22:13:20.25", 1_700_000_000, 250_000_000),
            ("2000-02-29T00:00", 951_782_400, 0),
            ("1969-12-31T23:59:59Z", -1, 0),
        ] {
            assert_eq!(parse(text), Ok(Timestamp { secs, nanos }), "{text}");
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in
            ["", "yesterday", "2023-02-29", "2023-13-01", "2023-1-1", "2023-01-01T24:00", "@x", "@1.x"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
