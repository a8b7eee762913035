//! Asking before repairing: without `-n`, `-p` and `-y`, on a terminal.
//!
//! One question for each class of findings, because a class is what can be mended by itself: what a crash may
//! leave is mended alone only where there is no damage, and damage only together with everything else. Nothing is
//! written before the first yes.

use std::io::{BufRead, Write};

use anyhow::Result;
use fstitch_core::CheckReport;
use fstitch_core::{RepairMode, RepairReport};

use super::counted;

/// How often a repair may uncover more before we stop asking. One is usual; more means that mending makes damage.
const QUESTIONS_MAX: u32 = 8;

/// Somebody at a terminal.
pub struct Dialogue<R, W> {
    input: R,
    output: W,
    /// "All" was answered: no more questions.
    all: bool,
}

impl<R: BufRead, W: Write> Dialogue<R, W> {
    /// A dialogue over any pair of streams.
    pub fn new(input: R, output: W) -> Self {
        Self { input, output, all: false }
    }

    /// Whether `question` is answered with yes. The end of the input means no.
    fn agrees(&mut self, question: &str) -> Result<bool> {
        if self.all {
            writeln!(self.output, "{question} yes")?;
            return Ok(true);
        }
        loop {
            write!(self.output, "{question} (y)es, (n)o, yes to (a)ll: ")?;
            self.output.flush()?;
            let mut line = String::new();
            if self.input.read_line(&mut line)? == 0 {
                writeln!(self.output)?;
                return Ok(false);
            }
            match line.trim().to_ascii_lowercase().as_str() {
                "y" | "yes" => return Ok(true),
                "n" | "no" => return Ok(false),
                "a" | "all" => {
                    self.all = true;
                    return Ok(true);
                }
                _ => {}
            }
        }
    }
}

/// Checks, shows what is found, and repairs what is agreed to. `repair` checks and mends in a mode; `describe`
/// makes findings readable.
pub fn converse<R: BufRead, W: Write>(
    dialogue: &mut Dialogue<R, W>,
    mut repair: impl FnMut(RepairMode) -> Result<RepairReport>,
    describe: impl Fn(&CheckReport) -> Result<String>,
) -> Result<RepairReport> {
    let mut report = repair(RepairMode::No)?;
    for _ in 0..QUESTIONS_MAX {
        if report.left.is_clean() {
            break;
        }
        write!(dialogue.output, "{}", describe(&report.left)?)?;
        let (question, mode) = question(&report.left);
        if !dialogue.agrees(&question)? {
            break;
        }
        let done = repair(mode)?;
        report.mended += done.mended;
        report.runs += done.runs;
        report.left = done.left;
        if done.mended == 0 {
            break;
        }
    }
    Ok(report)
}

fn question(left: &CheckReport) -> (String, RepairMode) {
    let allowed = format!("mend {} that a crash may leave?", counted(left.total - left.corrupt, "finding"));
    let corrupt = format!("Repair {}", counted(left.corrupt, "damage"));
    match (left.corrupt, left.total - left.corrupt) {
        (0, _) => (allowed.replacen('m', "M", 1), RepairMode::Preen),
        (_, 0) => (format!("{corrupt}?"), RepairMode::Yes),
        _ => (format!("{corrupt}, and {allowed}"), RepairMode::Yes),
    }
}

#[cfg(test)]
mod tests {
    use fstitch_core::FindingClass;

    use super::*;

    fn found(allowed: u64, corrupt: u64) -> CheckReport {
        let mut report = CheckReport::default();
        (0..allowed).for_each(|_| report.push(FindingClass::Allowed, "block-leaked", "a block"));
        (0..corrupt).for_each(|_| report.push(FindingClass::Corrupt, "block-shared", "a block"));
        report
    }

    /// Answers with `typed` where the volume holds `before`, and each repair in turn leaves one of `after`. Returns
    /// the modes, what was written, and the report.
    fn talk(
        typed: &str,
        before: &CheckReport,
        after: &[CheckReport],
    ) -> (Vec<RepairMode>, String, RepairReport) {
        let (mut modes, mut written) = (Vec::new(), Vec::new());
        let mut left = after.iter();
        let mut repair = |mode| {
            modes.push(mode);
            let left = match mode {
                RepairMode::No => before,
                _ => left.next().expect("no more repairs than there are results"),
            };
            let mended = u64::from(mode != RepairMode::No);
            Ok(RepairReport { found: before.clone(), mended, left: left.clone(), runs: 1 })
        };
        let mut dialogue = Dialogue::new(typed.as_bytes(), &mut written);
        let describe = |report: &CheckReport| Ok(format!("<{}>\n", report.total));
        let report = converse(&mut dialogue, &mut repair, describe).unwrap();
        (modes, String::from_utf8(written).unwrap(), report)
    }

    #[test]
    fn a_healthy_volume_raises_no_question() {
        let (modes, written, _) = talk("", &found(0, 0), &[]);
        assert_eq!((modes.as_slice(), written.as_str()), ([RepairMode::No].as_slice(), ""));
    }

    #[test]
    fn each_class_has_its_question_and_its_repair() {
        let clean = [found(0, 0)];
        let (modes, written, report) = talk("y\n", &found(3, 0), &clean);
        assert_eq!(modes, [RepairMode::No, RepairMode::Preen]);
        assert!(written.starts_with("<3>\nMend 3 findings that a crash may leave? (y)es"), "{written}");
        assert_eq!((report.found.total, report.mended, report.left.total), (3, 1, 0));
        let (modes, written, _) = talk("YES\n", &found(0, 2), &clean);
        assert_eq!(modes, [RepairMode::No, RepairMode::Yes]);
        assert!(written.contains("Repair 2 damages?"), "{written}");
        let (_, written, _) = talk("y\n", &found(1, 2), &clean);
        assert!(written.contains("Repair 2 damages, and mend 1 finding that"), "{written}");
    }

    #[test]
    fn no_and_the_end_of_the_input_change_nothing() {
        for typed in ["n\n", "no\n", "", "what?\n\nn\n"] {
            let (modes, _, report) = talk(typed, &found(1, 1), &[]);
            assert_eq!(modes, [RepairMode::No], "{typed:?}");
            assert_eq!((report.mended, report.left.total), (0, 2));
        }
        let (_, written, _) = talk("what?\n\nn\n", &found(1, 0), &[]);
        assert_eq!(written.matches("Mend").count(), 3, "it asks until it understands");
    }

    #[test]
    fn what_a_repair_uncovers_is_asked_again_unless_all_was_answered() {
        let after = [found(2, 0), found(0, 0)];
        let (modes, written, _) = talk("y\nn\n", &found(0, 1), &after);
        assert_eq!(modes, [RepairMode::No, RepairMode::Yes]);
        assert_eq!(written.matches('?').count(), 2);
        let (modes, written, report) = talk("a\n", &found(0, 1), &after);
        assert_eq!(modes, [RepairMode::No, RepairMode::Yes, RepairMode::Preen]);
        assert!(written.contains("Mend 2 findings that a crash may leave? yes\n"), "{written}");
        assert_eq!((report.mended, report.left.total), (2, 0));
    }
}
