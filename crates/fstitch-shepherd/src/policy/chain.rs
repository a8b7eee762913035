//! Chains: steps in their order, by their nature.

use std::fmt;

use super::step::{Answer, End, Standing, Step};

/// What is done for one kind of block in one direction.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Chain {
    /// What acts on every request, in no order.
    pub standing: Vec<Standing>,
    /// What acts on a fault, in this order, until one helps.
    pub answers: Vec<Answer>,
    /// What comes when none has helped.
    pub end: End,
}

impl Chain {
    /// Puts steps into their places.
    ///
    /// # Errors
    /// With a sentence, if a step could never be reached or stands there twice.
    pub(super) fn new(steps: &[Step]) -> Result<Self, String> {
        let mut chain = Self::default();
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Standing(standing) => chain.stand(*standing)?,
                Step::Answer(answer) => chain.answer(*answer)?,
                Step::End(end) if at + 1 == steps.len() => chain.end = *end,
                Step::End(end) => {
                    return Err(format!("`{}` after `{end}` would never be reached", steps[at + 1]));
                }
            }
        }
        Ok(chain)
    }

    fn stand(&mut self, standing: Standing) -> Result<(), String> {
        let same = |other: &Standing| match (other, &standing) {
            // Copies in several places are several steps; in one place they are a number.
            (Standing::Mirror { place: one, .. }, Standing::Mirror { place: two, .. }) => one == two,
            (one, two) => std::mem::discriminant(one) == std::mem::discriminant(two),
        };
        if self.standing.iter().any(same) {
            return Err(format!("`{standing}` stands there twice"));
        }
        self.standing.push(standing);
        Ok(())
    }

    fn answer(&mut self, answer: Answer) -> Result<(), String> {
        // Asking again may help after something else was tried, and so may telling somebody; the others would do the same again.
        let again = matches!(answer, Answer::Retry(_) | Answer::Notify);
        if !again && self.answers.contains(&answer) {
            return Err(format!("`{answer}` stands there twice"));
        }
        if self
            .answers
            .last()
            .is_some_and(|last| std::mem::discriminant(last) == std::mem::discriminant(&answer))
        {
            return Err(format!("`{answer}` comes twice in a row"));
        }
        self.answers.push(answer);
        Ok(())
    }

    /// Whether it has a standing step.
    #[must_use]
    pub fn stands(&self, standing: Standing) -> bool {
        self.standing.contains(&standing)
    }

    /// How many copies it keeps besides the home, on a volume of so many disks.
    #[must_use]
    pub fn copies(&self, disks: usize) -> usize {
        let of = |standing: &Standing| match standing {
            Standing::Mirror { copies, .. } => usize::from(*copies),
            Standing::AllDisks => disks.saturating_sub(1),
            _ => 0,
        };
        self.standing.iter().map(of).sum()
    }

    /// Whether it keeps copies at all.
    #[must_use]
    pub fn keeps_copies(&self) -> bool {
        self.standing.iter().any(|standing| matches!(standing, Standing::Mirror { .. } | Standing::AllDisks))
    }

    /// Whether it keeps parity.
    #[must_use]
    pub fn keeps_parity(&self) -> bool {
        self.standing.iter().any(|standing| matches!(standing, Standing::Parity { .. }))
    }

    /// All steps: the standing ones, the answers, the end.
    pub fn steps(&self) -> impl Iterator<Item = Step> + '_ {
        let standing = self.standing.iter().copied().map(Step::Standing);
        let answers = self.answers.iter().copied().map(Step::Answer);
        standing.chain(answers).chain(std::iter::once(Step::End(self.end)))
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.steps().enumerate() {
            write!(f, "{}{step}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
