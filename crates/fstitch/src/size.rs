//! Sizes and times as people write them.

use std::time::Duration;

pub use fstitch_formats::show::size as show;

/// Parses bytes: a number with an optional suffix K, M, G, T (powers of 1024; `KiB` and `KB` mean the same).
pub fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let shift = match unit.to_ascii_lowercase().trim_end_matches("ib").trim_end_matches('b') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(format!("`{unit}` is not a unit of size; use K, M, G or T")),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"))
}

/// Parses the size of a new volume as mke2fs does: with a unit it is bytes, without one blocks of `block_size`
/// bytes, and with `s` sectors of 512 bytes.
pub fn volume(text: &str, block_size: u64) -> Result<u64, String> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "" => block_size,
        "s" => 512,
        _ => return bytes(text),
    };
    number.checked_mul(factor).ok_or_else(|| format!("{text} is too large"))
}

/// Parses a duration: seconds, or a number with `ms` or `s`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text)?;
    match unit {
        "" | "s" => Ok(Duration::from_secs(number)),
        "ms" => Ok(Duration::from_millis(number)),
        _ => Err(format!("`{unit}` is not a unit of time; use s or ms")),
    }
}

fn split(text: &str) -> Result<(u64, &str), String> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..end].parse().map_err(|_| format!("`{text}` does not start with a number"))?;
    Ok((number, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed() {
        assert_eq!(bytes("4096"), Ok(4096));
        assert_eq!(bytes("1k"), Ok(1024));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("2GB"), Ok(2 << 30));
        assert!(bytes("x").is_err());
        assert!(bytes("5x").is_err());
        assert!(bytes("99999999999T").is_err());
    }

    #[test]
    fn volumes_are_counted_in_blocks() {
        assert_eq!(volume("100", 4096), Ok(409_600));
        assert_eq!(volume("100s", 4096), Ok(51_200));
        assert_eq!(volume("1M", 4096), Ok(1 << 20));
    }

    #[test]
    fn sizes_are_shown() {
        assert_eq!(show(999), "999 bytes");
        assert_eq!(show(1536), "1.5 KiB");
        assert_eq!(show(3 << 40), "3.0 TiB");
        assert_eq!(show(u64::MAX), "16777215.9 TiB");
    }

    #[test]
    fn durations_are_parsed() {
        assert_eq!(duration("5"), Ok(Duration::from_secs(5)));
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert!(duration("1h").is_err());
    }
}
