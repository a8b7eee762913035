//! Modes as chmod(1) has them: octal, or symbolic as in `u+x,go-w`.

/// What becomes of a mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Exactly this; set-id bits of directories stay where only three digits are given.
    Octal { bits: u16, digits: usize },
    /// Step by step.
    Symbolic(Vec<Step>),
}

/// One operation of a symbolic mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The classes it is for, as the bits that belong to them.
    who: u16,
    operation: u8,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum What {
    /// Bits for all classes, and `X`: execution where somebody may execute, and of directories.
    Bits { bits: u16, execute_if: bool },
    /// The bits of another class, by its shift.
    Copy(u16),
}

const USER: u16 = 0o4700;
const GROUP: u16 = 0o2070;
const OTHERS: u16 = 0o1007;

impl Change {
    /// Reads a mode.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let bits = u16::from_str_radix(text, 8).ok().filter(|bits| *bits <= 0o7777);
            let bits = bits.ok_or_else(|| format!("`{text}` is no mode: octal modes are 0 to 7777"))?;
            return Ok(Self::Octal { bits, digits: text.len() });
        }
        let mut steps = Vec::new();
        for clause in text.split(',') {
            clause_steps(clause, &mut steps)
                .ok_or_else(|| format!("`{text}` is no mode: write 755 or u=rwx,go=rx"))?;
        }
        Ok(Self::Symbolic(steps))
    }

    /// The new mode of something with mode `old`.
    pub fn apply(&self, old: u16, directory: bool) -> u16 {
        match self {
            Self::Octal { bits, digits } if directory && *digits < 5 => bits | (old & 0o6000),
            Self::Octal { bits, .. } => *bits,
            Self::Symbolic(steps) => steps.iter().fold(old, |mode, step| step.apply(mode, directory)),
        }
    }
}

/// Reads `[ugoa]*([-+=][rwxXst]*)+`.
fn clause_steps(clause: &str, steps: &mut Vec<Step>) -> Option<()> {
    let bytes = clause.as_bytes();
    let classes = bytes.iter().take_while(|byte| b"ugoa".contains(byte)).count();
    let who = bytes[..classes].iter().fold(0, |who, class| {
        who | match class {
            b'u' => USER,
            b'g' => GROUP,
            b'o' => OTHERS,
            _ => 0o7777,
        }
    });
    // Without classes all are meant, but for what the usual umask keeps from others than the owner.
    let who = if classes == 0 { 0o7777 & !0o022 } else { who };
    let mut rest = &bytes[classes..];
    if rest.is_empty() {
        return None;
    }
    while let Some((&operation, after)) = rest.split_first() {
        if !b"+-=".contains(&operation) {
            return None;
        }
        let len = after.iter().position(|byte| b"+-=".contains(byte)).unwrap_or(after.len());
        steps.push(Step { who, operation, what: what(&after[..len])? });
        rest = &after[len..];
    }
    Some(())
}

fn what(letters: &[u8]) -> Option<What> {
    match letters {
        b"u" => return Some(What::Copy(6)),
        b"g" => return Some(What::Copy(3)),
        b"o" => return Some(What::Copy(0)),
        _ => {}
    }
    let (mut bits, mut execute_if) = (0, false);
    for letter in letters {
        match letter {
            b'r' => bits |= 0o444,
            b'w' => bits |= 0o222,
            b'x' => bits |= 0o111,
            b'X' => execute_if = true,
            b's' => bits |= 0o6000,
            b't' => bits |= 0o1000,
            _ => return None,
        }
    }
    Some(What::Bits { bits, execute_if })
}

impl Step {
    fn apply(&self, mode: u16, directory: bool) -> u16 {
        let bits = match &self.what {
            What::Copy(shift) => ((mode >> shift) & 7) * 0o111,
            What::Bits { bits, execute_if: true } if directory || mode & 0o111 != 0 => bits | 0o111,
            What::Bits { bits, .. } => *bits,
        };
        // The sticky bit is nobody's in particular.
        let who = if bits & 0o1000 != 0 { self.who | 0o1000 } else { self.who };
        match self.operation {
            b'+' => mode | (bits & who),
            b'-' => mode & !(bits & who),
            // Set-id bits of directories stay unless they are named.
            _ => (mode & !(who & if directory { 0o1777 } else { 0o7777 })) | (bits & who),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(text: &str, old: u16, directory: bool) -> u16 {
        Change::parse(text).unwrap().apply(old, directory)
    }

    #[test]
    fn octal_modes_are_exact_but_for_directories() {
        assert_eq!(apply("644", 0o4755, false), 0o644);
        assert_eq!(apply("755", 0o2700, true), 0o2755);
        assert_eq!(apply("00755", 0o2700, true), 0o755);
        assert_eq!(apply("4755", 0o644, false), 0o4755);
    }

    #[test]
    fn symbolic_modes_are_those_of_chmod() {
        for (text, old, directory, new) in [
            ("u+x", 0o644, false, 0o744),
            ("go-w", 0o666, false, 0o644),
            ("a=r", 0o777, false, 0o444),
            ("u=rwx,go=rx", 0o600, false, 0o755),
            ("a+X", 0o644, false, 0o644),
            ("a+X", 0o744, false, 0o755),
            ("a+X", 0o644, true, 0o755),
            ("g=u", 0o640, false, 0o660),
            ("o=g-w", 0o664, false, 0o664),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("u+s,g+s", 0o755, false, 0o6755),
            ("+t", 0o777, true, 0o1777),
            ("u-s", 0o4755, false, 0o755),
            ("u+r-w", 0o200, false, 0o400),
            ("a=", 0o777, false, 0),
            ("g=rx", 0o2770, true, 0o2750),
        ] {
            assert_eq!(apply(text, old, directory), new, "{text} of {old:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in ["", "8", "77777", "u", "x+u", "u+z", "u+x,", "=q"] {
            assert!(Change::parse(text).is_err(), "{text}");
        }
    }
}
