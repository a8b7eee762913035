//! From the text of a policy to a policy, with the line of whatever is wrong.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::step::Step;
use super::{Chain, Direction, Group, Kind, Policy, check};

/// Why a policy is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}{}{remedy}", if remedy.is_empty() { "" } else { "; " })]
pub struct BadPolicy {
    /// Where, counted from 1.
    pub line: usize,
    /// What cannot be.
    pub what: String,
    /// What would be right; may be empty.
    pub remedy: String,
}

/// A chain as it was written, and where.
struct Written {
    /// The table, as it is named.
    table: String,
    direction: Direction,
    line: usize,
    chain: Chain,
}

/// Where a kind's chain comes from.
pub(super) struct Origin;

impl Origin {
    /// The line of the chain that holds for a kind, if the text has one for it.
    pub(super) fn of(text: &str, kind: Kind, direction: Direction) -> Option<usize> {
        let written = tables(text).ok()?.chains;
        holding(&written, kind, direction).map(|written| written.line)
    }
}

/// All that a text says.
struct Said {
    description: String,
    on_fault: Option<String>,
    chains: Vec<Written>,
}

/// The table that speaks for metadata and data alike.
const ALL: &str = "all";

/// Reads and checks a policy.
pub(super) fn parse(text: &str) -> Result<Policy, BadPolicy> {
    let said = tables(text)?;
    let chain = |kind, direction| {
        holding(&said.chains, kind, direction).map(|written| written.chain.clone()).unwrap_or_default()
    };
    let chains: Vec<[Chain; 2]> =
        Kind::ALL.into_iter().map(|kind| Direction::ALL.map(|direction| chain(kind, direction))).collect();
    for (kind, [read, write]) in Kind::ALL.into_iter().zip(&chains) {
        check::kind(kind, read, write).map_err(|refusal| {
            let to_blame = holding(&said.chains, kind, refusal.direction);
            let line = to_blame.map_or(1, |written| written.line);
            let table = to_blame.map_or("", |written| &written.table);
            let of = if table == kind.name() { String::new() } else { format!(" (for {})", kind.name()) };
            BadPolicy { line, what: format!("{}{of}", refusal.what), remedy: refusal.remedy.into() }
        })?;
    }
    Ok(Policy { description: said.description, on_fault: said.on_fault, chains })
}

/// The chain that holds for a kind: its own, or its group's, or that of everything.
fn holding(written: &[Written], kind: Kind, direction: Direction) -> Option<&Written> {
    let of = |table: &str| written.iter().find(|one| one.table == table && one.direction == direction);
    let wide = || if kind.group().is_restricted() { None } else { of(ALL) };
    of(kind.name()).or_else(|| of(kind.group().name())).or_else(wide)
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count()
}

fn bad(text: &str, at: usize, what: impl Into<String>, remedy: impl Into<String>) -> BadPolicy {
    BadPolicy { line: line_of(text, at), what: what.into(), remedy: remedy.into() }
}

/// The tables of a text.
fn tables(text: &str) -> Result<Said, BadPolicy> {
    let document = DeTable::parse(text)
        .map_err(|error| bad(text, error.span().map_or(0, |span| span.start), error.message(), ""))?;
    let mut said = Said { description: String::new(), on_fault: None, chains: Vec::new() };
    for (name, value) in document.get_ref() {
        let at = name.span().start;
        match (name.get_ref().as_ref(), value.get_ref()) {
            ("description", DeValue::String(words)) => said.description = words.to_string(),
            ("on_fault", DeValue::String(words)) => said.on_fault = Some(words.to_string()),
            ("description" | "on_fault", _) => {
                return Err(bad(text, at, format!("{} is a string", name.get_ref()), ""));
            }
            (table, DeValue::Table(chains)) if is_table(table) => {
                said.chains.extend(directions(text, table, chains)?)
            }
            (table, _) if is_table(table) => {
                return Err(bad(
                    text,
                    at,
                    format!("{table} is a table"),
                    format!("[{table}] with read = [...] and write = [...]"),
                ));
            }
            (other, _) => {
                return Err(bad(
                    text,
                    at,
                    format!("there is no kind of block `{other}`"),
                    format!("there are {}", names()),
                ));
            }
        }
    }
    Ok(said)
}

fn is_table(name: &str) -> bool {
    name == ALL || Group::ALL.iter().any(|group| group.name() == name) || Kind::of_name(name).is_some()
}

/// What tables may be called, for messages.
fn names() -> String {
    let groups = Group::ALL.iter().map(|group| group.name());
    let is_group = |name: &str| Group::ALL.iter().any(|group| group.name() == name);
    let kinds = Kind::ALL.iter().map(|kind| kind.name()).filter(|name| !is_group(name));
    std::iter::once(ALL).chain(groups).chain(kinds).collect::<Vec<_>>().join(", ")
}

/// The chains of one table.
fn directions(text: &str, table: &str, chains: &DeTable<'_>) -> Result<Vec<Written>, BadPolicy> {
    let mut written = Vec::new();
    for (name, value) in chains {
        let line = line_of(text, name.span().start);
        let direction =
            Direction::ALL.into_iter().find(|direction| direction.name() == name.get_ref().as_ref());
        let Some(direction) = direction else {
            return Err(bad(
                text,
                name.span().start,
                format!("[{table}] has no `{}`", name.get_ref()),
                "it has read and write",
            ));
        };
        let DeValue::Array(steps) = value.get_ref() else {
            let remedy = format!("{} = [\"retry 3\", \"propagate\"]", direction.name());
            return Err(bad(text, value.span().start, "a chain is a list of steps", remedy));
        };
        let steps: Vec<Step> =
            steps.iter().map(|step| one_step(text, step, direction)).collect::<Result<_, _>>()?;
        let chain = Chain::new(&steps).map_err(|what| BadPolicy { line, what, remedy: String::new() })?;
        written.push(Written { table: table.to_owned(), direction, line, chain });
    }
    Ok(written)
}

fn one_step(text: &str, step: &Spanned<DeValue<'_>>, direction: Direction) -> Result<Step, BadPolicy> {
    let at = step.span().start;
    let DeValue::String(words) = step.get_ref() else {
        return Err(bad(text, at, "a step is a string", "as in \"retry 3\""));
    };
    Step::parse(words, direction).map_err(|what| bad(text, at, what, ""))
}
